"""Slurm's commands by Torque's names: the words they take, and the records of what they print."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from hpcdash.backends.pbs.text_records import Record, text_records
from hpcdash.backends.queries import row_excerpt
from hpcdash.errors import UsageError

_HEAD = re.compile(rb"^Job Id:\t([0-9]{1,12})\n(?=\tJob_(?:Name|Owner) = )", re.MULTILINE)
_NAME = b"\tJob_Name = "
# Of all that follows the name, which anyone may choose, this comes first: its last one is the job's
# own.
_OWNER = b"\tJob_Owner = "
_ATTRIBUTE = re.compile(rb"\t([A-Za-z][\w.]*) = ?([^\n]*)")
_SHORT_HEADER = re.compile(rb"Job id +[^\n]*\n(-[- ]*)\n")
# The columns of the short list by their place.
_ID, _USER, _QUEUE = 0, 2, 5


class _Listed(Struct, frozen=True):
    """What the short list says of a job, as far as its columns are wide."""

    user: bytes
    queue: bytes
    user_bytes: int
    queue_bytes: int

    def agrees(self, fields: Mapping[bytes, bytes]) -> bool:
        user = fields.get(b"Job_Owner", b"").partition(b"@")[0][: self.user_bytes]
        return (
            user == self.user
            and fields.get(b"queue", b"")[: self.queue_bytes].rstrip() == self.queue
        )


def wrapped_records(raw: bytes, token: bytes, rejected: list[str]) -> Iterator[Record]:
    """The records of `qstat -f`, a line with `token`, and `qstat`; what names no job there is is
    added to `rejected`.

    Without the short list nothing can be compared, and a whole record within a name is taken for
    one.
    """
    full, line, short = raw.partition(b"\n" + token + b"\n")
    listed = _listed_jobs(short) if line else None
    if listed is None:
        yield from text_records(full, rejected)
        return
    # The first of all may follow a greeting, the others follow an empty line.
    heads = [
        head
        for index, head in enumerate(_HEAD.finditer(full))
        if not index or full.endswith(b"\n\n", 0, head.start())
    ]
    before = full[: heads[0].start()] if heads else full
    if before.strip():
        rejected.append(row_excerpt(before))
    pieces = [
        (head[1], full[head.end() : following])
        for head, following in zip(
            heads, [*(head.start() for head in heads[1:]), len(full)], strict=False
        )
    ]
    chosen = _chosen(pieces, listed)
    for place, (job_id, text) in enumerate(pieces):
        if chosen.get(job_id) != place:
            continue
        fields = _fields(text)
        if not listed[job_id].agrees(fields):
            # Its own name looked like the beginning of the next.
            until = next(
                (at for at in range(place + 1, len(pieces)) if chosen.get(pieces[at][0]) == at),
                len(pieces),
            )
            fields = _fields(
                full[heads[place].end() : heads[until].start() if until < len(heads) else len(full)]
            )
        if listed[job_id].agrees(fields):
            yield job_id, fields
        else:
            rejected.append(
                f"the name of job {row_excerpt(job_id)} looks like other jobs: {row_excerpt(text)}"
            )


def _chosen(
    pieces: Sequence[tuple[bytes, bytes]], listed: Mapping[bytes, _Listed]
) -> dict[bytes, int]:
    """Where each listed job's own record begins.

    Both lists have the jobs in one order: of several places under an id those count that lie
    between the jobs before it and after it, and of these the last that agrees with the short list,
    since what a job's name forges of a later one comes before that one.
    """
    places: dict[bytes, list[int]] = {}
    for place, (job_id, _) in enumerate(pieces):
        if job_id in listed:
            places.setdefault(job_id, []).append(place)
    order = [job_id for job_id in listed if job_id in places]
    lowest: list[int] = []
    for job_id in order:
        lowest.append(
            max([*lowest[-1:], *(places[job_id] if len(places[job_id]) == 1 else [])], default=-1)
        )
    highest: list[int] = []
    for job_id in reversed(order):
        highest.append(
            min(
                [*highest[-1:], *(places[job_id] if len(places[job_id]) == 1 else [])],
                default=len(pieces),
            )
        )
    highest.reverse()
    chosen = {}
    for job_id, low, high in zip(order, lowest, highest, strict=True):
        between = [place for place in places[job_id] if low <= place <= high] or places[job_id]
        if len(between) > 1:
            between = [
                place for place in between if listed[job_id].agrees(_fields(pieces[place][1]))
            ] or between
        chosen[job_id] = between[-1]
    return chosen


def _fields(text: bytes) -> dict[bytes, bytes]:
    """The attributes of one record: all that comes before its own owner is the name."""
    owner = text.rfind(b"\n" + _OWNER) + 1
    name = (
        text[:owner].removeprefix(_NAME).removesuffix(b"\n")
        if text.startswith(_NAME) and owner
        else b""
    )
    fields = {b"Job_Name": name} if name else {}
    for key, value in _ATTRIBUTE.findall(text[owner:]):
        fields.setdefault(key, value)
    return fields


def _listed_jobs(short: bytes) -> dict[bytes, _Listed] | None:
    """The jobs of the short list by their ids; None where this is none."""
    if not short:
        return {}
    header = _SHORT_HEADER.match(short)
    if header is None:
        return None
    columns = [match.span() for match in re.finditer(rb"-+", header[1])]
    row_bytes = len(header[1]) + 1
    if len(columns) <= _QUEUE or (len(short) - header.end()) % row_bytes:
        return None
    (first, last), (user, after_user), (queue, after_queue) = (
        columns[_ID],
        columns[_USER],
        columns[_QUEUE],
    )
    found = {}
    for start in range(header.end(), len(short), row_bytes):
        row = short[start : start + row_bytes]
        found[row[first:last].strip()] = _Listed(
            row[user:after_user].rstrip(),
            row[queue:after_queue].rstrip(),
            after_user - user,
            after_queue - queue,
        )
    return found


# As shlex has it: no shell makes anything else of these.
_UNSAFE = re.compile(r"[^A-Za-z0-9@%+=:,./_-]")
# Of these the value goes into the shell's line as it is, and a backslash before a character keeps
# it that character.
_ESCAPED = frozenset({"N", "o", "e", "A", "q", "wd", "M", "P", "v", "a"})
_OTHERS_WITH_VALUE = frozenset({"b", "j", "J", "l", "m", "p", "pe", "r", "S", "t", "W"})
_FLAGS = frozenset({"h", "V", "cwd"})
# qsub makes double quotes of single ones here, and takes quotes for itself.
_NO_QUOTES = frozenset({"v"})
_NEXT_STEP = "Leave it out, or write it into the script as a #SBATCH line."


def shell_safe(parts: Sequence[str]) -> list[str]:
    """The options so that qsub's shell takes each value for what it is; raises UsageError where
    that cannot be said.
    """
    return list(_safe(parts))


def _safe(parts: Sequence[str]) -> Iterator[str]:
    rest = list(parts)
    while rest:
        word = rest.pop(0)
        dashes = word[: len(word) - len(word.lstrip("-"))]
        name, equals, value = (
            word[len(dashes) :].partition("=") if dashes in ("-", "--") else ("", "", "")
        )
        takes_value = name in _ESCAPED | _OTHERS_WITH_VALUE
        if takes_value and equals:
            yield f"{dashes}{name}={_value(name, value)}"
        elif takes_value:
            yield word
            for _ in range(_values_after(name, rest)):
                yield _value(name, rest.pop(0))
        elif name in _FLAGS and not equals:
            yield word
        else:
            raise UsageError(
                f"{word!r} is not an option of Slurm's qsub",
                "Its options: qsub --help, or man qsub.",
            )


def _values_after(name: str, rest: Sequence[str]) -> int:
    """How many of the words that come next are an option's own."""
    # -j may stand alone.
    is_alone = name == "j" and bool(rest) and rest[0].startswith("-")
    return 0 if is_alone else min(len(rest), 2 if name == "pe" else 1)


def _value(name: str, value: str) -> str:
    if name == "b" and "y" in value:
        raise UsageError("-b y takes a command, and this is a script", "Leave it out.")
    if not _UNSAFE.search(value):
        return value
    if (
        name not in _ESCAPED
        or "\n" in value
        or "\0" in value
        or (name in _NO_QUOTES and re.search("[\"']", value))
    ):
        raise UsageError(f"-{name} {value!r}: Slurm's qsub would have a shell read it", _NEXT_STEP)
    return _UNSAFE.sub(lambda found: f"\\{found[0]}", value)
