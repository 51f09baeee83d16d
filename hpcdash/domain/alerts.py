"""Records of the findings of rules, and their severity."""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct

from hpcdash.domain.text import visible

# Stands for every aspect, in a key.
ANY_ASPECT = "*"


class Severity(IntEnum):
    """Severity of a finding: INFO can wait, WARNING until the morning, CRITICAL cannot wait."""

    INFO = 1
    WARNING = 2
    CRITICAL = 3

    @property
    def word(self) -> str:
        return self.name.lower()


class Finding(Struct, frozen=True):
    """A problem that a rule found with a subject: a job, a node, a path.

    `text` says what is wrong and `next_step` what to do; both are one line and may contain names
    chosen by anyone, as may `subject` and `name`, the job's name. `aspect` tells apart two findings
    of a rule about one subject: bytes and inodes. A finding that `is_moment`, a loss spike, is not
    a lasting state: it is reported once, neither again nor as resolved.
    """

    rule: str
    subject: str
    severity: Severity
    text: str
    next_step: str = ""
    aspect: str = ""
    is_moment: bool = False
    name: str = ""

    @property
    def key(self) -> str:
        """The same for the same trouble, however its words change."""
        return finding_key(self.rule, self.subject, self.aspect)


def finding_key(rule: str, subject: str = "", aspect: str = "") -> str:
    """A finding's key from its parts; with the rule alone what stands for all of its keys."""
    return f"{rule}/{aspect}/{subject}" if subject or aspect else f"{rule}/"


def format_job(job_id: object, name: object = None) -> str:
    """`job 7 (train)`, `job 7` where its name is not known."""
    return f"job {shown(job_id)} ({shown(name)})" if name else f"job {shown(job_id)}"


def shown(name: object) -> str:
    """A name as it stands in words: control characters made visible, null as a question mark."""
    return "?" if name is None else visible(str(name))
