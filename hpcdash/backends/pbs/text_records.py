"""Parser of the wrapped text of `qstat -f` and `pbsnodes -a`, and of Torque's XML, into attributes
as bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import BytesIO
from typing import TypeAlias

from hpcdash.backends.pbs.values import restored
from hpcdash.backends.queries import noise_lines, row_excerpt

# (id, attributes)
Record: TypeAlias = tuple[bytes, dict[bytes, bytes]]
_TEXT_HEAD = re.compile(rb"(Job Id|Queue|Server): [ \t]*(\S.*)")
_TEXT_ATTRIBUTE = re.compile(rb" {3,8}([A-Za-z][\w.-]*) =(?: (.*))?")
_XML_RECORDS = frozenset((b"Job", b"Node", b"Queue", b"Server"))
_XML_IDS = (b"Job_Id", b"name", b"Name")
# An element without others in it, or the beginning of one, or an end. No value goes on over a `<`:
# each byte is looked at twice at most, however many elements have no end.
_XML_PART = re.compile(rb"<([A-Za-z_][\w.-]*)>(?:([^<]*)</\1>)?|</([A-Za-z_][\w.-]*)>")
# Torque's deepest: req_information, task_usage.0.task.0, cpu_list.
_XML_DEPTH = 3
_XML_OUTSIDE = re.compile(rb"<\?xml[^<>]*>|</?Data>")
_XML_ENTITY = re.compile(rb"&(?:(lt|gt|amp|quot|apos)|#([0-9]{1,7})|#[xX]([0-9A-Fa-f]{1,6}));")
_XML_NAMED = {b"lt": b"<", b"gt": b">", b"amp": b"&", b"quot": b'"', b"apos": b"'"}
# Whose values nobody but a manager sets.
_TRUSTED = frozenset({b"Queue", b"Server"})
TRUSTED_HEADS = (b"Queue: ", b"Server: ")
_MAX_JOINED_BYTES = 1 << 16


def join_attribute(fields: dict[bytes, bytes], key: bytes, value: bytes) -> None:
    """Add an attribute of a queue or server: of several limits each comes by itself (max_run =
    [o:PBS_ALL=9]).
    """
    before = fields.get(key)
    if before is None:
        fields[key] = value
    elif len(before) < _MAX_JOINED_BYTES:
        fields[key] = before + b"," + value


class _TextRecord:
    """A record of text while its lines are read."""

    def __init__(self, name: bytes, is_trusted: bool) -> None:
        self.name = name
        self.fields: dict[bytes, bytes] = {}
        self._is_trusted = is_trusted
        self._key: bytes | None = None
        self._value = bytearray()
        # Lines that may belong to the value, each after its newline.
        self._undecided = bytearray()

    def add(self, line: bytes) -> None:
        """An attribute, or what belongs to the value before it; after an empty line that is seen
        only later.
        """
        is_indented = line[:1] in (b" ", b"\t")
        found = _TEXT_ATTRIBUTE.fullmatch(line) if is_indented else None
        goes_on = line[:1] == b"\t"
        if not found and not goes_on and (not line or self._undecided):
            self._undecided += b"\n"
            self._undecided += line
            return
        self._value += self._undecided
        self._undecided.clear()
        if found:
            self._keep()
            self._key = found[1]
            self._value = bytearray(found[2] or b"")
        else:
            self._value += line[1:] if goes_on else b"\n" + line

    def end(self, rejected: list[str]) -> Record:
        """Return the record; lines after it that are not its own are added to `rejected`."""
        self._keep()
        rejected += noise_lines(self._undecided)
        return self.name, self.fields

    def _keep(self) -> None:
        """Store an attribute; the second of a name was forged, by the variables, which come after
        most.
        """
        if self._key is None:
            return
        value = restored(bytes(self._value))
        if self._is_trusted:
            join_attribute(self.fields, self._key, value)
        else:
            self.fields.setdefault(self._key, value)


def text_records(raw: bytes, rejected: list[str]) -> Iterator[Record]:
    """The records of text, in order; what is none is added to `rejected`.

    A value's own lines belong to it as long as they do not look like the end of one record and the
    beginning of another, which cannot be told from real ones.
    """
    heads = _TextHeads()
    current: _TextRecord | None = None
    before = b""
    # What came before the first record.
    outside = bytearray()
    # Not all at once: a list of lines may take thirty times the memory of what they are made of.
    lines = iter(BytesIO(raw))
    after = next(lines, b"")
    while after.endswith(b"\n"):
        line = after[:-1]
        after = next(lines, b"")
        may_begin = line and line[:1] not in b" \t"
        begun = heads.begun(line, before, after.removesuffix(b"\n")) if may_begin else None
        if begun is not None:
            if current is not None:
                yield current.end(rejected)
            current = begun
        elif current is not None:
            current.add(line)
        elif line:
            outside += line + b"\n"
        before = line
    rejected[:0] = noise_lines(outside)
    cut = after
    if current is not None and cut and before:
        cut = current.name
    elif current is not None:
        yield current.end(rejected)
    if cut:
        rejected.append(f"the output ended inside a record: {row_excerpt(cut)}")


class _TextHeads:
    """Finds where records begin: `Job Id: 12.srv`, or a node's name alone, and then the attribute
    that is always first.

    A node's name follows an empty line, but for the first, which may follow anything, such as a
    greeting.
    """

    def __init__(self) -> None:
        self._first_attributes: dict[bytes, bytes] = {}

    def begun(self, line: bytes, before: bytes, after: bytes) -> _TextRecord | None:
        named = _TEXT_HEAD.fullmatch(line)
        kind, name = (named[1], named[2]) if named else (b"", line)
        if self._first_attributes and (named is None) != (b"" in self._first_attributes):
            return None
        if self._first_attributes and named is None and before.strip():
            return None
        attribute = _TEXT_ATTRIBUTE.fullmatch(after)
        first = attribute[1] if attribute else b""
        if named is None and not first:
            return None
        if self._first_attributes.setdefault(kind, first) != first and kind not in _TRUSTED:
            return None
        return _TextRecord(name.strip(), kind in _TRUSTED)


def xml_records(raw: bytes, rejected: list[str]) -> Iterator[Record]:
    """Parse Torque's <Data><Job>… as text_records does; a nested element becomes
    Resource_List.walltime.

    No strict reader of XML: Torque writes control bytes and bytes that are no UTF-8 as they are,
    and escapes `<`.
    """
    # Where what is no whole record began, and where the record that is read did.
    outside = begin = 0
    kind = b""
    fields: dict[bytes, bytes] = {}
    path: list[bytes] = []
    for part in _XML_PART.finditer(raw):
        name, value, ended = part.groups()
        if name in _XML_RECORDS:
            # One that has no end was cut off.
            kind = name
            begin = part.start()
            fields = {}
            path = []
        elif not kind:
            continue
        elif value is not None:
            fields.setdefault(b".".join((*path, name)), _unescaped(value))
        elif name is not None:
            if len(path) < _XML_DEPTH:
                path.append(name)
        elif ended in path:
            del path[path.index(ended) :]
        elif ended == kind:
            _reject_outside(raw[outside:begin], rejected)
            outside = part.end()
            kind = b""
            ids = [fields.pop(name) for name in _XML_IDS if name in fields]
            if ids:
                yield ids[0].strip(), fields
            else:
                rejected.append(row_excerpt(raw[begin:outside]))
    _reject_outside(raw[outside:], rejected)


def _reject_outside(between: bytes, rejected: list[str]) -> None:
    noise = _XML_OUTSIDE.sub(b"", between)
    if noise.strip():
        rejected.append(row_excerpt(noise))


def _unescaped(value: bytes) -> bytes:
    return _XML_ENTITY.sub(_entity, value) if b"&" in value else value


def _entity(found: re.Match[bytes]) -> bytes:
    if found[1]:
        return _XML_NAMED[found[1]]
    number = int(found[2]) if found[2] else int(found[3], 16)
    return chr(number).encode("utf-8", "replace") if number <= 0x10FFFF else found[0]
