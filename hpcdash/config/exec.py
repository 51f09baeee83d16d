"""[[exec.commands]]: a site's or a person's own commands for the nodes of a running job."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Struct

from hpcdash.config import values
from hpcdash.config.model import TableReader, ValidationError
from hpcdash.config.plugins import command_word
from hpcdash.config.problems import shown
from hpcdash.config.values import Text
from hpcdash.domain.units import HOUR

_MOST_WORDS = 200


def _command(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= _MOST_WORDS:
        raise ValidationError(
            f"expected the program and its arguments in brackets, not {shown(value)}"
        )
    parts = tuple(map(command_word, value))
    if not parts[0].strip() or parts[0].startswith("-"):
        raise ValidationError(f"{shown(parts[0])} is not a program")
    return parts


def _limit(value: object) -> float:
    return values.number(values.seconds(value), 1, HOUR, "seconds")


class SiteCommand(Struct, frozen=True):
    """One of [[exec.commands]]: argv, run once a node or once for each GPU of the job."""

    name: Annotated[str, values.parse_line_text]
    command: Annotated[tuple[str, ...], _command]
    each: Annotated[str, values.one_of("node", "gpu")] = "node"
    limit_seconds: Annotated[float, _limit] = 60.0
    description: Text = ""


def read_commands(reader: TableReader, document: Mapping[str, object]) -> tuple[SiteCommand, ...]:
    """Read [[exec.commands]] of a document."""
    table = reader.table(document, (), "exec")
    reader.fields(table, ("exec",), {}, ("commands",))
    found = (
        reader.record(SiteCommand, one, path)
        for one, path in reader.tables(table, ("exec",), "commands")
    )
    return tuple(one for one in found if one is not None)
