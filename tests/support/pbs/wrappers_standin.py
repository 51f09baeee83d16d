"""Answers as Slurm's commands by Torque's names did when the scene beside this file was recorded.

    wrappers_standin.py SCENE_FOLDER PROGRAM [WORD…]

Only what tells of jobs, queues and nodes; whatever else is refused with exit status 99. Standard
library only.
"""

import json
import re
import sys
from pathlib import Path

NOT_RECORDED = 99
NOTHING_FOUND = 153
USAGE_STATUS = 2
LISTS = {
    ("qstat", "-f"): "qstat-f",
    ("qstat", "-Q", "-f"): "qstat-Q-f",
    ("qstat", "-q"): "qstat-q",
    ("qstat", "-Q"): "qstat-Q-f",
    ("pbsnodes", "-a"): "pbsnodes-a",
    ("qstat",): "qstat",
}
USAGE = "Usage:\n    qstat [-f] [-a|-i|-r] [-n [-1]] [-G|-M] [-u user_list] [-? | --help]\n"


def main(scene, words):
    options = tuple(word for word in words if word.startswith("-") or word in ("qstat", "pbsnodes"))
    ids = [word for word in words if word not in options]
    if any(option not in ("-f", "-Q", "-q", "-a") for option in options[1:]):
        unknown = next(option for option in options[1:] if option not in ("-f", "-Q", "-q", "-a"))
        print(f"Unknown option: {unknown.lstrip('-')}\n{USAGE}", file=sys.stderr)
        return USAGE_STATUS
    if options not in LISTS:
        return NOT_RECORDED
    name = LISTS[options]
    kept = {
        command["name"]: command["exit"]
        for command in json.loads((scene / "commands.json").read_text("utf-8"))
    }
    out, err = (read(scene / f"{name}{suffix}") for suffix in (".out", ".err"))
    sys.stderr.buffer.write(err)
    if not ids:
        sys.stdout.buffer.write(out)
        return kept.get(name, NOTHING_FOUND)
    found = narrowed(out, ids, is_full="-f" in options)
    sys.stdout.buffer.write(found)
    return kept.get(name, NOTHING_FOUND) if found or kept.get(name) else NOTHING_FOUND


def narrowed(out, ids, *, is_full):
    """The records of these jobs, in scenes where no name looks like a record."""
    wanted = {job_id.encode() for job_id in ids}
    if is_full:
        records = re.findall(rb"Job Id:\t([0-9]+)(\n.*?\n\n)(?=Job Id:|\Z)", out, re.DOTALL)
        return b"".join(
            b"Job Id:\t" + number + text for number, text in records if number in wanted
        )
    header, rows = out.splitlines(keepends=True)[:2], out.splitlines(keepends=True)[2:]
    kept = [row for row in rows if row.split(b" ", 1)[0] in wanted]
    return b"".join((*header, *kept)) if kept else b""


def read(file):
    return file.read_bytes() if file.is_file() else b""


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
