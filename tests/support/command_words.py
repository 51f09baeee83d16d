"""Has the command line read words without running what they name."""

from __future__ import annotations

from collections.abc import Sequence

import click

from hpcdash.cli.main import cli


def read_words(words: Sequence[str]) -> None:
    """Raises click.ClickException where `hpcdash WORDS` is not what hpcdash takes."""
    _read_below(cli, cli.make_context("hpcdash", list(words)))


def _read_below(group: click.Group, context: click.Context) -> None:
    if not (words := [*context._protected_args, *context.args]):
        return
    name, command, rest = group.resolve_command(context, words)
    assert command is not None
    below = command.make_context(name, list(rest), parent=context)
    if isinstance(command, click.Group):
        _read_below(command, below)
