"""Makes the scenes of fixtures/pbs/ from what a real OpenPBS printed: a DSV file for each list of
qstat and pbsnodes.

    python -m tests.support.pbs.compose FOLDER_OF_RECORDINGS

A recording is SET/NAME.out. Where DSV was recorded its bytes are taken as they are; other lists are
written from the text or the JSON of the same moment, as qstat would have written them.
fixtures/README.md says which.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tests.support.pbs.standin import DELIMITER, as_text

SCENES = Path(__file__).resolve().parents[3] / "fixtures" / "pbs" / "23.06" / "scenes"
Fields = list[tuple[str, bytes]]


class Entry(Struct, frozen=True):
    """One job, queue, server or node: how its line begins (`Job Id: 2.pbs01`), and its fields as
    printed.
    """

    head: bytes
    fields: Fields

    def line(self) -> bytes:
        written = [self.head, *(name.encode() + b"=" + value for name, value in self.fields)]
        return DELIMITER.join(written) + b"\n"

    def value(self, name: str) -> bytes:
        return dict(self.fields).get(name, b"")

    def with_values(self, changed: Mapping[str, bytes | None]) -> Entry:
        """With values set, or left out where None."""
        kept = [(name, changed.get(name, value)) for name, value in self.fields]
        kept += [(name, value) for name, value in changed.items() if name not in dict(self.fields)]
        return replace(self, fields=[(name, value) for name, value in kept if value is not None])


def dsv_value(value: bytes) -> bytes:
    """A value as qstat writes it in DSV: no line ends, control bytes with a caret."""
    value = value.replace(b"\n", b"\\n").replace(b"\f", b"\\f")
    return re.sub(rb"[\x00-\x08\x0b-\x1f]", lambda found: b"^" + bytes([found[0][0] + 64]), value)


def from_dsv(raw: bytes, delimiter: bytes) -> list[Entry]:
    """Entries of recorded DSV whose values hold no delimiter."""
    found = []
    for line in raw.splitlines():
        head, *fields = line.split(delimiter)
        pairs = [field.partition(b"=") for field in fields]
        found.append(Entry(head, [(name.decode(), value) for name, _, value in pairs]))
    return found


def from_text(raw: bytes) -> list[Entry]:
    """Entries of `qstat -f`, long values joined; for text in which no value begins a line of its
    own.
    """
    found: list[Entry] = []
    for line in raw.replace(b"\n\t", b"").splitlines():
        if re.match(rb"(Job Id|Queue|Server): ", line):
            found.append(Entry(line, []))
        elif field := re.match(rb"    (\S+) = (.*)", line):
            found[-1].fields.append((field[1].decode(), dsv_value(field[2])))
    return found


def from_json(jobs: Mapping[str, Any]) -> list[Entry]:
    """Entries of the "Jobs" of qstat's JSON."""
    return [
        Entry(b"Job Id: " + job_id.encode(), list(_flat(said))) for job_id, said in jobs.items()
    ]


def _flat(said: Mapping[str, Any]) -> Iterable[tuple[str, bytes]]:
    for name, value in said.items():
        if name == "Variable_List":
            joined = ",".join(f"{key}={_escaped(str(one))}" for key, one in value.items())
            yield name, dsv_value(joined.encode())
        elif isinstance(value, dict):
            yield from (
                (f"{name}.{key}", dsv_value(str(one).encode())) for key, one in value.items()
            )
        else:
            yield name, dsv_value(str(value).encode())


def _escaped(value: str) -> str:
    return value.replace(",", "\\,")


def json_jobs(raw: bytes) -> dict[str, Any]:
    """The jobs of qstat's JSON one by one: those that are no JSON are left out."""
    found = {}
    for block in re.finditer(rb'\n {8}"([^"\n]+)":(\{\n.*?\n {8}\})', raw, re.DOTALL):
        try:
            found[block[1].decode()] = json.loads(block[2])
        except ValueError:
            continue
    return found


def nodes_from_text(text: bytes) -> list[Entry]:
    """Every node of `pbsnodes -a` or `-av`, with its times and lists as DSV has them."""
    found = []
    for block in re.split(rb"\n\n+", text.strip(b"\n")):
        name, *lines = block.split(b"\n")
        pairs = (line.partition(b" = ") for line in lines)
        fields = [
            (key.strip().decode(), _node_value(key.strip(), value)) for key, _, value in pairs
        ]
        found.append(Entry(b"Name=" + name, fields))
    return found


def _node_value(name: bytes, value: bytes) -> bytes:
    if name == b"jobs":
        return value.replace(b", ", b",")
    if name.endswith(b"_time") and value != b"<various>":
        moment = datetime.strptime(value.decode(), "%a %b %d %H:%M:%S %Y").replace(tzinfo=UTC)
        return str(int(moment.timestamp())).encode()
    return value


def write(
    scene: str,
    about: str,
    clock: int,
    lists: Mapping[str, Sequence[Entry]],
    *,
    texts: Mapping[str, bytes] | None = None,
    **more: Any,
) -> None:
    """The folder of a scene. `more`: what else the stand-ins must know."""
    folder = SCENES / scene
    folder.mkdir(parents=True, exist_ok=True)
    for name, entries in lists.items():
        (folder / f"{name}.dsv").write_bytes(b"".join(entry.line() for entry in entries))
    for name, text in (texts or {}).items():
        (folder / f"{name}.txt").write_bytes(text)
    settings = {"about": about, "user": "alice", "clock": clock, **more}
    (folder / "scene.json").write_text(json.dumps(settings, indent=1) + "\n", "utf-8")


def id_of(entry: Entry) -> str:
    return entry.head.removeprefix(b"Job Id: ").decode()


def compose(recorded: Path) -> None:
    """Write every scene."""

    def out(name: str) -> bytes:
        return (recorded / f"{name}.out").read_bytes()

    def clock_of(name: str) -> int:
        found = re.search(rb'"timestamp":(\d+)', out(name))
        assert found is not None, name
        return int(found[1])

    def lists_of(moment: str) -> dict[str, list[Entry]]:
        jobs = from_dsv(out(f"{moment}/qstat-f-dsv-D"), b"@@")
        known = {id_of(entry): entry for entry in jobs}
        subjobs = from_json(json_jobs(out(f"{moment}/qstat-tf-json")))
        ended = [
            entry
            for entry in from_text(out(f"{moment}/qstat-xf"))
            if entry.value("job_state") == b"F"
        ]
        return {
            "jobs": jobs,
            "subjobs": [entry for entry in subjobs if id_of(entry) not in known],
            "ended": ended,
            "queues": from_text(out(f"{moment}/qstat-Qf")),
            "server": from_text(out(f"{moment}/qstat-Bf")),
            "nodes": from_dsv(out(f"{moment}/pbsnodes-a-dsv"), b"|"),
            "vnodes": nodes_from_text(out(f"{moment}/pbsnodes-av")),
        }

    day = lists_of("main")
    clock = clock_of("main/qstat-f-json")
    for name, listed in (("qstat-Qf", "queues"), ("qstat-Bf", "server")):
        if b"".join(as_text(entry.line()[:-1]) + b"\n" for entry in day[listed]) != out(
            f"main/{name}"
        ):
            print(f"{name}: the text that the stand-ins write is not what was recorded")
    write("everyday", "jobs, arrays and chains of two people on five nodes", clock, day)
    write(
        "older",
        "everyday as a PBS Professional without -F prints it",
        clock,
        day,
        texts={
            name: out(f"main/pbsnodes-{options}")
            for name, options in (("nodes", "a"), ("vnodes", "av"))
        },
        formats=False,
        version="14.1.2",
    )

    odd = lists_of("odd")
    odd["jobs"] += from_dsv(out("odd2/qstat-V-dsv"), b"|")
    write(
        "odd",
        "names, variables and folders meant to break a reader",
        clock_of("odd/qstat-f-json"),
        odd,
        lines_in_values=True,
    )

    idle = {
        "nodes": [_idle(node) for node in day["nodes"]],
        "vnodes": [_idle(node) for node in day["vnodes"]],
        "queues": [queue.with_values(_no_jobs()) for queue in day["queues"]],
        "server": [day["server"][0].with_values(_no_jobs())],
    }
    nothing: dict[str, list[Entry]] = {"jobs": [], "subjobs": [], "ended": []}
    write("empty", "nobody has a job", clock, {**idle, **nothing})

    ended = from_json(json_jobs(out("finished/all-finished-json")))
    ended += from_text(out("finished/dep-never"))
    write(
        "finished",
        "the ways a job ends",
        clock_of("finished/all-finished-json"),
        {**idle, "jobs": [], "subjobs": [], "ended": ended},
    )

    failed = from_json(json_jobs(out("nodefail/qstat-xf-json")))
    (lost,) = nodes_from_text(out("nodefail/pbsnodes").split(b"\n\n")[0])
    write(
        "node-failed",
        "a node went away under its jobs",
        clock_of("nodefail/qstat-xf-json"),
        {
            **idle,
            "nodes": [lost if node.head == lost.head else node for node in idle["nodes"]],
            "vnodes": [lost if node.head == lost.head else node for node in idle["vnodes"]],
            "jobs": [entry for entry in failed if entry.value("job_state") != b"F"],
            "subjobs": [],
            "ended": [entry for entry in failed if entry.value("job_state") == b"F"],
        },
    )

    shown = out("preempt/qstat")
    suspended = from_text(shown[shown.index(b"Job Id: ") :])
    shown = out("preempt/requeue-qstat")
    requeued = from_text(shown[shown.index(b"Job Id: ") :])
    write(
        "preempted",
        "two jobs made way for others",
        1795234629,
        {**idle, **nothing, "jobs": suspended + requeued},
    )

    mine = {
        name: [job for job in day[name] if _owner(job) == b"alice"]
        for name in ("jobs", "subjobs", "ended")
    }
    hidden = [day["server"][0].with_values({"query_other_jobs": b"False"})]
    write("private", "nobody sees the jobs of others", clock, {**day, **mine, "server": hidden})

    no_past = [
        day["server"][0].with_values(
            {"job_history_enable": b"False", "job_history_duration": None}
        ),
    ]
    write(
        "history-off",
        "no history is kept",
        clock,
        {**day, "ended": [], "server": no_past},
        history=False,
    )

    for name, about, words in (
        ("server-down", "nothing listens where the server should be", "Connection refused"),
        ("server-unreachable", "there is no way to the server", "No route to host"),
    ):
        write(name, about, clock_of("server-down/qstat-f-json"), {}, unreachable=words)
    write("server-hung", "the server takes connections and says nothing", clock, {}, hung=True)


def _idle(node: Entry) -> Entry:
    nothing = {"ncpus": b"0", "ngpus": b"0", "mem": b"0kb"}
    known = dict(node.fields)
    unused = {
        name: value
        for one, value in nothing.items()
        if (name := f"resources_assigned.{one}") in known
    }
    state = node.value("state")
    return node.with_values(
        {**unused, "jobs": None, "state": b"free" if state == b"job-busy" else state}
    )


def _no_jobs() -> dict[str, bytes | None]:
    counts = b"Transit:0 Queued:0 Held:0 Waiting:0 Running:0 Exiting:0 Begun:0 "
    assigned = {f"resources_assigned.{name}": None for name in ("mem", "ncpus", "nodect")}
    return {"total_jobs": b"0", "state_count": counts, **assigned}


def _owner(job: Entry) -> bytes:
    return job.value("Job_Owner").partition(b"@")[0]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.pbs.compose", description=__doc__
    )
    parser.add_argument("recorded", type=Path, help="a folder of SET/NAME.out")
    compose(parser.parse_args().recorded)


if __name__ == "__main__":
    main()
