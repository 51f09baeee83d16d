"""Answers as the commands of Torque 6.1 would on the cluster of fixtures/pbs/torque-6.1/printed.

    torque_standin.py FOLDER PROGRAM [WORD…]

FOLDER holds the lists as they are printed; what a command was called with is added to
FOLDER/called, a JSON array a line: the program, its words, and what it read from stdin. Standard
library only: it runs on the login node of a test.
"""

import getopt
import json
import os
import re
import sys
from pathlib import Path

SERVER = "trq01.example.org"
NEXT_JOB = 1053
# 2026-03-04 09:30:00 UTC.
CLOCK = 1772616600
USAGE_STATUS = 2
# PBSE_UNKJOBID & 255.
UNKNOWN_JOB_STATUS = 153
_QSTAT_OPTIONS = "aE:efgilnqrsu:xGMQRBW:1t"
_ACTING_OPTIONS = "a:A:c:e:fh:j:k:l:m:M:nN:o:p:q:r:s:S:t:u:v:W:x:"
_QSUB_OPTIONS = "a:A:b:c:C:d:D:e:EfF:hIj:J:k:K:l:L:m:M:nN:o:p:P:q:r:S:t:T:u:v:Vw:W:xXz"


def main(folder, program, words):
    """Answer one call; the exit status."""
    if program == "qstat":
        return qstat(folder, words)
    if program == "pbsnodes":
        return pbsnodes(folder, words)
    if program == "qselect":
        return qselect(folder, words)
    stdin = sys.stdin.buffer.read().decode("utf-8", "replace") if program == "qsub" else ""
    with open(folder / "called", "a", encoding="utf-8") as called:
        called.write(json.dumps([program, *words, {"stdin": stdin, "cwd": os.getcwd()}]) + "\n")
    if program == "qsub":
        getopt.getopt(words, _QSUB_OPTIONS)
        print(f"{NEXT_JOB}[].{SERVER}" if "-t" in words else f"{NEXT_JOB}.{SERVER}")
        return 0
    _, named = getopt.getopt(words, _ACTING_OPTIONS)
    return each_job(folder, program, named[1:] if program == "qmove" else named)


def qstat(folder, words):
    if "--version" in words:
        # Torque says it on stderr.
        sys.stderr.buffer.write((folder / "qstat-version.err").read_bytes())
        return 0
    options, named = getopt.getopt(words, _QSTAT_OPTIONS)
    given = dict(options)
    if "-Q" in given and "-f" in given:
        return show(folder / "qstat-Q-f.txt")
    if "-B" in given and "-f" in given:
        return show(folder / "qstat-B-f.txt")
    if named:
        return one_job(folder, named[0], wants_xml="-x" in given, wants_tasks="-t" in given)
    if "-x" in given:
        return show(folder / ("qstat-x-t.xml" if "-t" in given else "qstat-x.xml"))
    if "-f" in given:
        return show(folder / "qstat-f-t.txt")
    return 0


def one_job(folder, job_id, *, wants_xml, wants_tasks):
    """A job or a task; of an array its tasks with -t, else what stands for them."""
    wanted = job_id if job_id.endswith(SERVER) else f"{job_id}.{SERVER}"
    is_array = "[]" in wanted
    if wants_xml:
        raw = (
            folder / ("qstat-x.xml" if is_array and not wants_tasks else "qstat-x-t.xml")
        ).read_bytes()
        pattern = rb"<Job><Job_Id>([^<]*)</Job_Id>.*?</Job>"
    else:
        raw, pattern = (
            (folder / "qstat-f-t.txt").read_bytes(),
            rb"Job Id: (\S*)\n.*?\n\n(?=Job Id: |\Z)",
        )
    start = wanted.partition("]")[0]
    found = [
        job[0]
        for job in re.finditer(pattern, raw, re.DOTALL)
        if job[1].decode() == wanted
        or (is_array and wants_tasks and job[1].decode().startswith(start))
    ]
    if not found:
        print(f"qstat: Unknown Job Id Error {wanted}", file=sys.stderr)
        return UNKNOWN_JOB_STATUS
    text = b"".join(found)
    sys.stdout.buffer.write(
        b'<?xml version="1.0"?>\n<Data>' + text + b"</Data>\n" if wants_xml else text
    )
    return 0


def each_job(folder, program, job_ids):
    """What becomes of ids: those there are, and arrays and tasks of them, are taken."""
    raw = (folder / "qstat-x-t.xml").read_bytes() + (folder / "qstat-x.xml").read_bytes()
    there = {found.decode() for found in re.findall(rb"<Job_Id>([^<]*)</Job_Id>", raw)}
    status = 0
    for job_id in job_ids:
        wanted = job_id if job_id.endswith(SERVER) else f"{job_id}.{SERVER}"
        if wanted not in there:
            print(f"{program}: Unknown Job Id Error {wanted}", file=sys.stderr)
            status = UNKNOWN_JOB_STATUS
    return status


def pbsnodes(folder, words):
    if "--version" in words:
        print("version: 6.1.3", file=sys.stderr)
        return 0
    return show(folder / "pbsnodes-a.txt")


def qselect(folder, words):
    options, _ = getopt.getopt(words, "a:A:c:eh:l:N:o:p:q:r:s:u:")
    owner = dict(options).get("-u", "")
    for found in re.finditer(
        rb"<Job_Id>([^<]*)</Job_Id>.*?<Job_Owner>([^<@]*)", (folder / "qstat-x-t.xml").read_bytes()
    ):
        if owner in ("", found[2].decode()):
            print(found[1].decode())
    return 0


def show(file):
    sys.stdout.buffer.write(file.read_bytes())
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
    except getopt.GetoptError as error:
        print(f"{sys.argv[2]}: invalid option -- '{error.opt}'", file=sys.stderr)
        print(f"usage: {sys.argv[2]} …", file=sys.stderr)
        sys.exit(USAGE_STATUS)
