"""What a filter that is being typed may become: keys, and the values that there are. Reads no filter."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.domain.query_keys import keys_of
from hpcdash.domain.states import JobState, NodeState

_LAST_KEY = re.compile(r"(?:^|(?<=[\s(!]))([A-Za-z_][A-Za-z0-9_]*)?$")
_LAST_VALUE = re.compile(r"(?:^|(?<=[\s(!]))([A-Za-z_][A-Za-z0-9_]*)(?:!?[:=])(?:[^\s\",]*,)*([^\s\",]*)$")


def completions(prefix: str, schema: pa.Schema, table: pa.Table | None = None) -> list[str]:
    """Whole filters that `prefix` may become: its last word completed to a key, or its last value to one there is.

    Values are the states, yes and no, and, with a `table`, the distinct words of its columns.
    """
    keys = keys_of(schema)
    if value := _LAST_VALUE.search(prefix):
        name = keys.get(value[1].lower())
        fragment = value[2].lower()
        known = _known_values(name, schema, table) if name else []
        return [
            prefix[: value.start(2)] + word for word in known if word.lower().startswith(fragment) and word != value[2]
        ]
    if key := _LAST_KEY.search(prefix):
        fragment = (key[1] or "").lower()
        # An alias is offered where the column's own name does not begin the same way.
        names = [
            name
            for name in keys
            if name.startswith(fragment) and (keys[name] == name or not keys[name].startswith(fragment))
        ]
        return [prefix[: len(prefix) - len(fragment)] + name + ":" for name in names]
    return []


def _known_values(name: str, schema: pa.Schema, table: pa.Table | None) -> list[str]:
    column_type = schema.field(name).type
    if table is not None and name in table.column_names and pa.types.is_dictionary(column_type):
        words = pc.unique(table[name]).to_pylist()
        return sorted(_quoted(word) for word in words if word is not None)
    if name == "state":
        return [state.value for state in (JobState if "id" in schema.names else NodeState)]
    return ["yes", "no"] if pa.types.is_boolean(column_type) else []


def _quoted(word: str) -> str:
    if re.fullmatch(r"[^\s()\",*\\]+", word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'
