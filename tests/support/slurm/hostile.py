"""Jobs whose names, comments and node reasons break a careless reader."""

from __future__ import annotations

import os

from .lab import SlurmLab

HOSTILE_NODE = "n3"
HOSTILE_REASON = (
    "[red]Xid 79[/red] | \x1b[31mfell off\x1b[0m\tthe bus, \u202ebob@ops\u202c '\"$(id)`id`"
).encode()


def hostile_names(lab: SlurmLab) -> tuple[bytes, ...]:
    """Every hostile name, as the bytes given to sbatch; one of them would create `lab.tripwire` if
    it were run.
    """
    tripwire = os.fsencode(lab.tripwire)
    return (
        b"latin1-\xe9\xff",
        b"a|b|c",
        b"[red]markup[/red] [link=http://e]x[/link] [",
        b"\x1b[31mred\x1b[0m\x1b]0;title\x07\x1b[2J",
        b"line1\nline2\r\ttab",
        "rtl \u202egpj.exe\u202c \u2066\u2069 \u200fמא".encode(),
        "étude-日本語-🚀-👩‍🔬-é-٣".encode(),
        b"x" * 250,
        b"$(touch " + tripwire + b")`touch " + tripwire + b"`;touch " + tripwire + b"&",
        b"x\x1f\x1e\n999\x1fforged\x1fPENDING",
        b"y\n998|forged|PENDING|root",
        b"JobId=99 JobState=RUNNING",
        b"\t\ttabs\tonly\t",
        b" ",
        "\u3164\u200b".encode(),
        b'it\'s "quoted" \\back\\',
        b"%j %x %u {} {0}",
        b"--version",
        b"N/A",
        b"(null)",
    )


def hostile_jobs(lab: SlurmLab, user: str = "alice") -> dict[bytes, str]:
    """Submit a held job for every hostile name, with it as comment too, and drain HOSTILE_NODE for
    HOSTILE_REASON.

    Answers the job's id by its name.
    """
    lab.admin(
        "scontrol", "update", f"nodename={HOSTILE_NODE}", "state=drain", b"reason=" + HOSTILE_REASON
    )
    return {
        name: lab.submit(user, "--hold", b"--job-name=" + name, b"--comment=" + name)
        for name in hostile_names(lab)
    }
