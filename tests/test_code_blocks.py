"""The code in the documentation's pages runs, or is at least read by what would run it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from hpcdash.config.read import settings_from_text
from hpcdash.config.request import read_request
from hpcdash.config.site_rules import parse_site_rules
from hpcdash.web.api.tokens import parse_tokens
from tests.support.code_blocks import PAGES, Block, PageFolder, commands_of, page_blocks
from tests.support.command_words import read_words
from tests.support.records import for_each

BLOCKS = [block for page in PAGES for block in page_blocks(page)]
LANGUAGES = {"sh", "python", "toml", "text"}


def of(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


def test_every_block_says_its_language() -> None:
    assert [block.place for block in BLOCKS if block.language not in LANGUAGES] == []
    # Code that is indented in place of a fence would be run by nobody.
    for page in PAGES:
        assert page.read_text().count("```") == 2 * len(page_blocks(page)), page


@for_each("block", of("toml"), ids=lambda block: block.place)
def test_settings_are_read_by_what_reads_them(block: Block) -> None:
    if block.file.endswith("REQUEST.toml"):
        read_request(block.text)
    elif "\n[template]\n" in block.text:
        read_request(block.text.partition("\n[template]\n")[0])
    elif block.file == "api-tokens.toml":
        parse_tokens(block.text, block.file)
    elif block.file == "site.toml":
        parse_site_rules(block.text)
    else:
        settings_from_text(block.text, Path("config.toml"))


@for_each("block", of("sh"), ids=lambda block: block.place)
def test_commands_have_the_options_they_are_given(block: Block) -> None:
    for words in commands_of(block):
        read_words(words)


@for_each("block", of("python"), ids=lambda block: block.place)
def test_python_is_python(block: Block) -> None:
    ast.parse(block.text)


@pytest.mark.system
@pytest.mark.parametrize("page", sorted({block.page for block in BLOCKS if block.is_run}))
def test_the_code_of_a_page_runs(tmp_path: Path, page: str) -> None:
    blocks = [block for block in BLOCKS if block.page == page]
    folder = PageFolder(tmp_path)
    try:
        for block in blocks:
            if block.file:
                folder.write(block)
            elif block.is_run and block.language == "sh":
                folder.run_shell(block)
        # The blocks of a page go on from one another.
        folder.run_python(
            [block for block in blocks if block.is_run and block.language == "python"]
        )
    finally:
        folder.queue.end()
