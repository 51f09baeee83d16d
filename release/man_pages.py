"""Man pages from what `--help` and `hpcdash help` say.

The build has click, msgspec and rich for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from textwrap import fill

import click

from hpcdash import __version__
from hpcdash.cli.help import EXAMPLES, EXIT_STATUS, FILTERS, GROUPS
from hpcdash.cli.main import cli

# With what escaping adds, no line of running text is longer than 80.
_SOURCE_WIDTH = 72
_FILES = (
    (
        "~/.config/hpcdash/config.toml",
        "Clusters and settings. `hpcdash config example` prints one with every key.",
    ),
    ("~/.config/hpcdash/themes/", "Themes of your own."),
    ("~/.local/state/hpcdash/", "The journal, launches, templates and the embedded queue."),
    ("~/.cache/hpcdash/", "What earlier runs saw of each cluster."),
)
_VARIABLES = (
    ("HPCDASH_CONFIG", "The configuration file."),
    ("HPCDASH_STATE", "The folder of the state."),
    ("HPCDASH_CACHE", "The folder of the cache."),
    ("HPCDASH_QUEUE", "The folder of the embedded queue."),
    ("NO_COLOR", "Any value turns colours off."),
)
_PLACES = "The files' places follow the XDG variables; on macOS they are below ~/Library."


def man_pages(date: str) -> dict[str, str]:
    """File name → text: `hpcdash.1`, and one a command with those below it; `date` is
    YYYY-MM-DD.
    """
    context = click.Context(cli, info_name="hpcdash", **cli.context_settings)
    pages = {"hpcdash.1": _page("hpcdash", date, cli, _main_sections(context))}
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        if command is not None and not command.hidden:
            pages[f"hpcdash-{name}.1"] = _page(
                f"hpcdash-{name}", date, command, _command_sections(command, context)
            )
    return pages


def _page(name: str, date: str, command: click.Command, sections: Iterable[str]) -> str:
    title = f'.TH {_text(name.upper())} 1 {date} "hpcdash {__version__}" "User Commands"'
    return (
        "\n".join(
            [
                title,
                ".SH NAME",
                f"{_text(name)} \\-\n{_wrapped(_summary(command).rstrip('.'))}",
                *sections,
            ]
        )
        + "\n"
    )


def _main_sections(context: click.Context) -> Iterator[str]:
    yield ".SH SYNOPSIS"
    yield ".B hpcdash\n[OPTIONS] [COMMAND] [ARGS]..."
    yield ".SH DESCRIPTION"
    yield _paragraphs(cli.help or "")
    yield from _options(cli, context)
    yield ".SH COMMANDS"
    for group, names in GROUPS.items():
        yield f".SS {_text(group)}"
        for name in names:
            command = cli.get_command(context, name)
            assert command is not None
            yield _item(f"\\fBhpcdash\\-{_text(name)}\\fR(1)", _summary(command))
    yield ".SH FILTERS"
    yield _verbatim(FILTERS)
    yield ".SH EXIT STATUS"
    yield _verbatim(EXIT_STATUS)
    yield ".SH FILES"
    yield from (_item(f"\\fI{_text(file)}\\fR", text) for file, text in _FILES)
    yield f".PP\n{_wrapped(_PLACES)}"
    yield ".SH ENVIRONMENT"
    yield from (_item(f"\\fB{_text(name)}\\fR", text) for name, text in _VARIABLES)


def _command_sections(command: click.Command, parent: click.Context) -> Iterator[str]:
    context = click.Context(command, info_name=command.name, parent=parent)
    yield ".SH SYNOPSIS"
    yield _synopsis(command, context)
    yield ".SH DESCRIPTION"
    yield _paragraphs(command.help or "")
    yield from _options(command, context)
    if isinstance(command, click.Group):
        yield ".SH COMMANDS"
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is None or below.hidden:
                continue
            inner = click.Context(below, info_name=name, parent=context)
            yield f".SS {_text(name)}\n{_synopsis(below, inner)}\n.PP\n{_paragraphs(below.help or '')}"
            yield from (
                _item(f"\\fB{_text(spec)}\\fR", text) for spec, text in _records(below, inner)
            )
    if examples := EXAMPLES.get(command.name or ""):
        yield ".SH EXAMPLES"
        yield _verbatim("\n".join(f"hpcdash {line}" for line in examples))
    yield ".SH SEE ALSO"
    yield "\\fBhpcdash\\fR(1) has the options that every command takes, filters and exit statuses."


def _synopsis(command: click.Command, context: click.Context) -> str:
    return (
        f"\\fB{_text(context.command_path)}\\fR "
        f"{_text(' '.join(command.collect_usage_pieces(context)))}"
    )


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    yield ".SH OPTIONS"
    yield from (_item(f"\\fB{_text(spec)}\\fR", text) for spec, text in _records(command, context))


def _records(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    for parameter in command.get_params(context):
        # The synopsis has the arguments.
        if (record := parameter.get_help_record(context)) is not None and record[1]:
            yield record


def _summary(command: click.Command) -> str:
    return command.get_short_help_str(limit=1000)


def _item(term: str, text: str) -> str:
    return f".TP\n{term}\n{_wrapped(text)}"


def _paragraphs(text: str) -> str:
    """click's help: paragraphs are rewrapped, but those that begin with \\b."""
    parts = []
    for part in re.split(r"\n\s*\n", text.strip()):
        is_verbatim = part.startswith("\b")
        parts.append(_verbatim(part.lstrip("\b\n")) if is_verbatim else _wrapped(part))
    return "\n.PP\n".join(parts)


def _wrapped(text: str) -> str:
    """Running text in lines that a person can read and compare."""
    return _text(
        fill(" ".join(text.split()), _SOURCE_WIDTH, break_long_words=False, break_on_hyphens=False)
    )


def _verbatim(text: str) -> str:
    return f".nf\n{_text(text.rstrip())}\n.fi"


def _text(text: str) -> str:
    """Text in which nothing is a request or an escape; a blank line is a break."""
    lines = text.replace("\\", "\\e").replace("-", "\\-").splitlines()
    return "\n".join(
        f"\\&{line}" if line.startswith((".", "'")) else line or ".sp" for line in lines
    )
