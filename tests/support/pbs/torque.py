"""Writes what Torque 6.1's qstat and pbsnodes would print of a made-up cluster, from the formats'
definition.

    python -m tests.support.pbs.torque FOLDER

The sources are Torque's own: qstat.c and MXML.c (XML with five characters escaped and every other
byte as it is; text in lines of 80), pbsnodes.c. Nothing here was recorded: there is no Torque
server to be had.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.support.pbs.torque_cluster import (
    JOBS,
    NODES,
    QUEUES,
    SERVER_ATTRIBUTES,
    SERVER_NAME,
    SUMMARISED_JOBS,
    Record,
)

_LINE_WIDTH = 80
_ESCAPES = {
    ord("<"): "&lt;",
    ord(">"): "&gt;",
    ord("&"): "&amp;",
    ord('"'): "&quot;",
    ord("'"): "&apos;",
}
# What the text of `qstat -f` writes as ctime() does, and XML as the number it is.
_TIMES = frozenset(
    {"ctime", "etime", "mtime", "qtime", "start_time", "comp_time", "Execution_Time"}
)


def jobs_xml(jobs: Iterable[Record]) -> bytes:
    """`qstat -x`: one line, nothing between the elements.

    A resource is an element within its attribute's.
    """
    written = "".join(
        f"<Job>{_element('Job_Id', job.name)}{_elements(job.attributes)}</Job>" for job in jobs
    )
    return f'<?xml version="1.0"?>\n<Data>{written}</Data>\n'.encode("utf-8", "surrogateescape")


def _elements(attributes: Mapping[str, str]) -> str:
    written, opened = "", ""
    for key, value in attributes.items():
        name, _, resource = key.partition(".")
        if opened and opened != name:
            written += f"</{opened}>"
            opened = ""
        if not resource:
            written += _element(name, value)
            continue
        if not opened:
            written += f"<{name}>"
            opened = name
        written += _element(resource, value)
    return written + (f"</{opened}>" if opened else "")


def _element(name: str, value: str) -> str:
    return f"<{name}>{value.translate(_ESCAPES)}</{name}>"


def jobs_text(jobs: Iterable[Record]) -> bytes:
    """`qstat -f`."""
    return "".join(_record("Job Id", job) for job in jobs).encode("utf-8", "surrogateescape")


def queues_text(queues: Iterable[Record]) -> bytes:
    """`qstat -Q -f`."""
    return "".join(_record("Queue", queue) for queue in queues).encode()


def server_text() -> bytes:
    """`qstat -B -f`."""
    return _record("Server", Record(SERVER_NAME, SERVER_ATTRIBUTES)).encode()


def _record(kind: str, record: Record) -> str:
    lines = [f"{kind}: {record.name}"]
    for key, value in record.attributes.items():
        is_time = kind == "Job Id" and key in _TIMES
        lines.append(
            _wrapped(f"    {key} = ", time.asctime(time.gmtime(int(value))) if is_time else value)
        )
    return "\n".join(lines) + "\n\n"


def _wrapped(start: str, value: str) -> str:
    """A full line goes on in the next one, after a tab: behind a comma, or in the middle of a
    word.
    """
    lines, line = [], start
    for index, piece in enumerate(pieces := value.split(",")):
        word = piece + ("," if index < len(pieces) - 1 else "")
        if len(line) + len(word) >= _LINE_WIDTH and line not in (start, "\t"):
            lines.append(line)
            line = "\t"
        while len(line) + len(word) >= _LINE_WIDTH:
            room = _LINE_WIDTH - 1 - len(line)
            lines.append(line + word[:room])
            word, line = word[room:], "\t"
        line += word
    return "\n".join((*lines, line))


def nodes_text(nodes: Iterable[Record]) -> bytes:
    """`pbsnodes -a`."""
    written = []
    for node in nodes:
        written += [
            f"{node.name}\n",
            *(f"     {key} = {value}\n" for key, value in node.attributes.items()),
            "\n",
        ]
    return "".join(written).encode()


def printed() -> Mapping[str, bytes]:
    """The bytes of each list, by the name of its file."""
    return {
        "qstat-x-t.xml": jobs_xml(JOBS),
        "qstat-x.xml": jobs_xml(SUMMARISED_JOBS),
        "qstat-f-t.txt": jobs_text(JOBS),
        "qstat-Q-f.txt": queues_text(QUEUES),
        "qstat-B-f.txt": server_text(),
        "pbsnodes-a.txt": nodes_text(NODES),
        "qstat-version.err": b"Version: 6.1.3\nCommit: 5e5b9a2b0c8d3f1e7a6490d2f4c8b1a3e5d7f902\n",
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.pbs.torque", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, raw in printed().items():
        (folder / name).write_bytes(raw)


if __name__ == "__main__":
    main()
