"""Asks once a connection whether PBS is here, which kind and version, who we are, and what the clock says."""

from __future__ import annotations

from hpcdash.backends.base import Answer, Probe, Query


def probe_query() -> Query[Probe]:
    """One shell on the other side; `Probe.dialect` is a Dialect."""
    raise NotImplementedError


def parse_probe(answer: Answer) -> Probe:
    """What was found; raises CommandMissing where qstat is not there or speaks no dialect we know."""
    raise NotImplementedError
