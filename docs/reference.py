"""Reference of commands, keys and configuration, generated from the program for the documentation."""

from __future__ import annotations

from pathlib import Path

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from hpcdash.cli.main import cli
from hpcdash.config.document import example_text
from hpcdash.ui.actions import ACTIONS, key_sign


def commands() -> str:
    """Return the help of every command."""
    pages = ["# Commands\n\nWhat `hpcdash COMMAND --help` prints.\n"]
    pages += _help(cli, "hpcdash", None)
    return "\n".join(pages)


def _help(command: click.Command, name: str, parent: click.Context | None) -> list[str]:
    context = click.Context(
        command, info_name=name, parent=parent, max_content_width=100, terminal_width=100
    )
    path = context.command_path
    pages = [f"## {path}\n\n```text\n{command.get_help(context)}\n```\n"]
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is not None and not found.hidden:
                pages += _help(found, child, context)
    return pages


def keys() -> str:
    """Return every action with its key, its name for `:` and the configuration, and its views."""
    rows = ["| key | name | action | views |", "|---|---|---|---|"]
    for action in ACTIONS:
        views = "all" if action.views is None else ", ".join(sorted(action.views))
        rows.append(
            f"| {_cell(key_sign(action.key))} | `{action.name}` | {_escaped(action.text)} | "
            f"{views} |"
        )
    words = (
        "Names are those of `[keys]` in the configuration, and of the command line that `:` opens."
    )
    return f"# Keys\n\n{words}\n\n" + "\n".join(rows) + "\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _cell(text: str) -> str:
    return f"`{text}`" if "|" not in text else _escaped(text)


def configuration() -> str:
    """Return the example configuration, which explains every key."""
    return (
        "# config.toml\n\n`hpcdash config example` prints this "
        f"file.\n\n```toml\n{example_text()}\n```\n"
    )


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages; mkdocs calls it."""
    root = Path(config.config_file_path).parent
    written = {"commands": commands(), "keys": keys(), "configuration": configuration()}
    for name, file in (("changelog", "CHANGELOG.md"), ("threat-model", "SECURITY.md")):
        written[name] = (root / file).read_text()
    for name, text in written.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files
