"""What an alert is about, in a few words, by its rule and aspect."""

from __future__ import annotations

_TITLES = {
    "is-running": "a job does not run",
    "is-hanging": "its log stands still",
    "storage": "a disk fills up",
    "drained-nodes": "a node is out of use",
    "spare-nodes": "few nodes to spare",
    "no-successor": "nothing waits behind it",
    "never-starts": "it will never start",
    "end-before-save": "it ends before it saves",
    "no-save": "it does not save",
    "grace-too-short": "too little time to save",
    "fails-on-a-node": "it fails on one node",
    "loss": "its loss is not as it should be",
    "ends-late": "it needs more than its time",
    "unreachable": "the cluster does not answer",
    "cannot-look": "it cannot be looked at",
}
_OF_ASPECTS = {
    ("is-running", "held"): "it is held",
    ("storage", "inodes"): "inodes run out",
    ("loss", "nan"): "its loss is nan",
    ("loss", "inf"): "its loss is infinite",
    ("loss", "divergence"): "its loss diverges",
    ("loss", "spike"): "its loss has a spike",
    ("loss", "plateau"): "its loss stands still",
    ("loss", "stall"): "it logs no more samples",
}


# Whose subject is a job's id, or an array's.
_OF_JOBS = frozenset(
    ("is-hanging", "no-successor", "never-starts", "end-before-save", "no-save", "grace-too-short", "loss", "ends-late")
)


def is_of_job(rule: str) -> bool:
    """Whether the subject of what a rule finds is a job's id, or an array's."""
    return rule in _OF_JOBS


def title_of(rule: str, aspect: str = "") -> str:
    """`its log stands still`; the rule's own name where there are no words for it."""
    if aspect == "cannot be seen":
        return "it cannot be seen"
    known = _OF_ASPECTS.get((rule, aspect)) or _OF_ASPECTS.get((rule, aspect.partition(" ")[0]))
    return known or _TITLES.get(rule, rule)
