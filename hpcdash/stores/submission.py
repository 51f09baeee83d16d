"""Plans the submission of a batch script, marked so that one whose answer was lost is found. Knows no screen."""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import UTC, datetime

from hpcdash.backends.base import MARK_START, ActionRequest, Submission, Verb
from hpcdash.domain.sbatch import last_value, read_command_line, read_directives
from hpcdash.stores.actions import Plan
from hpcdash.stores.cluster import ClusterStore
from hpcdash.stores.resubmission import CLOCKS_APART, Again, Search


def plan_submission(store: ClusterStore, wanted: Submission) -> Again:
    """What handing a script in would run; nothing is submitted. Raises UsageError for what cannot be.

    `stores.resubmission.settle` finds out what became of one whose answer was lost.
    """
    marked = replace(wanted, mark=f"{MARK_START}{secrets.token_hex(5)}")
    command = store.backend.submission(marked)
    not_before = datetime.fromtimestamp(store.clock.now(), UTC) - CLOCKS_APART
    request = ActionRequest(Verb.SUBMIT, command.job_ids)
    in_script = read_directives(wanted.script.decode("utf-8", "surrogateescape")).options
    given = (*in_script, *read_command_line(wanted.options).options)
    # A job that has a comment of its own keeps it, and is looked for by its name.
    mark = marked.mark if last_value(given, "comment") is None else ""
    searches = {wanted.name: Search(mark, last_value(given, "job-name") or wanted.name, not_before)}
    return Again(Plan(request, (), (command,)), (), searches)
