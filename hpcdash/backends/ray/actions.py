"""Actions on Ray's jobs: stop and delete."""

from __future__ import annotations

from functools import partial

from hpcdash.backends.actions import ActionCommand, ActionRequest, Outcome, Verb
from hpcdash.backends.base import ActionsPart
from hpcdash.backends.queries import Answer
from hpcdash.backends.ray.jobs import job_path
from hpcdash.backends.ray.responses import decode, read_responses, refusal, table
from hpcdash.errors import HpcdashError, UsageError

_URL_CHARACTERS = "/?#%"


def _read_stop(answer: Answer, *, job_id: str) -> tuple[Outcome, ...]:
    try:
        [response] = read_responses(answer)
        result = table(decode(answer, response)) if response.is_success else {}
    except HpcdashError as error:
        return (Outcome(job_id, None, error.message),)
    if not response.is_success:
        # The dashboard requests it from an agent, by a path that it does not quote.
        special = "".join(character for character in _URL_CHARACTERS if character in job_id)
        message = f"Ray cannot stop a job whose ID contains {special}"
        return (Outcome(job_id, False, message if special else refusal(response.body)),)
    is_stopped = result.get("stopped") is not False
    return (Outcome(job_id, is_stopped, "" if is_stopped else "already finished"),)


def _read_delete(answer: Answer, *, job_id: str) -> tuple[Outcome, ...]:
    try:
        [response] = read_responses(answer)
    except HpcdashError as error:
        return (Outcome(job_id, None, error.message),)
    # For a job that has not ended the response is 500 with a traceback.
    message = "" if response.is_success else refusal(response.body)
    return (Outcome(job_id, response.is_success, message),)


class RayActions(ActionsPart):
    """Actions by Ray's Jobs API."""

    def commands(self, request: ActionRequest) -> tuple[ActionCommand, ...]:
        """Return a request for each job; raises UsageError for an action that Ray does not have."""
        if not request.job_ids:
            raise UsageError("specify a job")
        if request.verb not in (Verb.CANCEL, Verb.DELETE) or request.force:
            raise UsageError(
                f"Ray cannot {request.verb} a job{' by force' * request.force}",
                "Ray can stop jobs (hpcdash cancel JOB) and delete ended jobs (hpcdash delete "
                "JOB).",
            )
        is_cancel = request.verb is Verb.CANCEL
        return tuple(
            ActionCommand(
                ("POST", f"{job_path(job_id)}/stop") if is_cancel else ("DELETE", job_path(job_id)),
                (job_id,),
                partial(_read_stop if is_cancel else _read_delete, job_id=job_id),
            )
            for job_id in dict.fromkeys(request.job_ids)
        )
