"""Actions on Ray's jobs: stop, delete, and submit, once, under an ID of ours."""

from __future__ import annotations

import json
import re
import secrets
import shlex
from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from hpcdash.backends.actions import ActionCommand, ActionRequest, Outcome, Verb
from hpcdash.backends.base import ActionsPart, SubmitPart
from hpcdash.backends.job_detail import JobDetail, Script
from hpcdash.backends.queries import TEXT_BYTES, Answer, Query
from hpcdash.backends.ray.jobs import JOBS_PATH, job_path, noted_resources
from hpcdash.backends.ray.responses import decode, read_responses, refusal, table, text
from hpcdash.backends.ray.slices import METADATA_KEY
from hpcdash.backends.submissions import AS_IT_WAS, NewLimits, Submission, SubmitCommand
from hpcdash.domain.array_tasks import ArrayTasks
from hpcdash.domain.job_ids import RAY_START
from hpcdash.errors import HpcdashError, SchedulerRefused, UsageError

_ID_LETTERS = 16
PACKAGES = "/api/packages/gcs/"
_PACKAGE = re.compile(r"gcs://(_ray_pkg_[0-9a-zA-Z]+\.zip)")
_PATH_LETTERS = "/?#%"


def _read_stop(answer: Answer, *, job_id: str) -> tuple[Outcome, ...]:
    try:
        [response] = read_responses(answer)
    except HpcdashError as error:
        return (Outcome(job_id, None, error.message),)
    if not response.is_success:
        # The dashboard requests it from an agent, by a path that it does not quote.
        odd = "".join(letter for letter in _PATH_LETTERS if letter in job_id)
        text = f"Ray cannot stop a job whose ID contains {odd}" if odd else refusal(response.body)
        return (Outcome(job_id, False, text),)
    try:
        is_stopped = table(decode(answer, response)).get("stopped") is not False
    except HpcdashError as error:
        return (Outcome(job_id, None, error.message),)
    return (Outcome(job_id, is_stopped, "" if is_stopped else "it had already finished"),)


def _read_delete(answer: Answer, *, job_id: str) -> tuple[Outcome, ...]:
    try:
        [response] = read_responses(answer)
    except HpcdashError as error:
        return (Outcome(job_id, None, error.message),)
    # For a job that has not ended the response is 500 with a traceback.
    return (
        Outcome(job_id, response.is_success, "" if response.is_success else refusal(response.body)),
    )


def _check_package(answer: Answer) -> None:
    [response] = read_responses(answer)
    if not response.is_success:
        raise SchedulerRefused(
            "Ray has deleted the package with this job's files: it keeps packages only while a "
            "job uses them",
            "Submit its request again.",
            argv=answer.argv,
            status=answer.status,
            output=refusal(response.body),
        )


def submit_command(body: Mapping[str, Any], target: str, mark: str, name: str) -> SubmitCommand:
    """Submit a job, a body of the Jobs API, under an id that the mark gives: sent twice, the second
    is refused.
    """
    job_id = RAY_START + (mark.rpartition(":")[2] or secrets.token_hex(_ID_LETTERS // 2))
    content = json.dumps({**body, "submission_id": job_id}).encode()
    command = ActionCommand(
        # Ray ignores the query; the journal finds the job by it.
        ("POST", f"{JOBS_PATH}?mark={mark}"),
        (target,),
        partial(_read_submission, name=target, job_id=job_id),
        content,
        shown=(f"POST {JOBS_PATH} submission_id={job_id}",),
    )
    return SubmitCommand(command, (), mark, name)


def _read_submission(answer: Answer, *, name: str, job_id: str) -> tuple[Outcome, ...]:
    try:
        [response] = read_responses(answer)
    except HpcdashError as error:
        return (Outcome(name, None, error.message),)
    # A second request with the same id answers 500 with a traceback: the first was taken.
    if response.is_success or b"already exists" in response.body:
        return (Outcome(name, True, f"job {job_id}"),)
    return (Outcome(name, False, refusal(response.body)),)


class RayActions(ActionsPart):
    """Actions by Ray's Jobs API."""

    def commands(self, request: ActionRequest) -> tuple[ActionCommand, ...]:
        """A request for each job; raises UsageError for what Ray cannot do."""
        if not request.job_ids:
            raise UsageError("specify a job")
        if request.verb not in (Verb.CANCEL, Verb.DELETE) or request.force:
            raise UsageError(
                f"Ray cannot {request.verb} a job{' by force' * request.force}",
                "It stops jobs (hpcdash cancel JOB) and deletes those that ended (hpcdash delete "
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


class ScriptSubmit(SubmitPart):
    """Submission of scripts by Ray's Jobs API."""

    def submission(self, submission: Submission) -> SubmitCommand:
        """A job whose entrypoint is a script, which goes with the request.

        A second request with its id is refused by Ray.

        Raises UsageError for what Ray's jobs do not have.
        """
        unavailable = {
            "array": submission.array,
            "after": submission.after,
            "hold": submission.held,
            "run_as": submission.run_as,
            "options": submission.options,
        }
        if given := [name for name, value in unavailable.items() if value]:
            raise UsageError(
                f"{given[0]}: Ray jobs have no such setting",
                "Remove it, or submit to another cluster.",
            )
        # Ray runs entrypoints with sh -c.
        command = f"bash {shlex.quote(submission.file)}"
        if not submission.file:
            script = submission.script.decode("utf-8", "surrogateescape")
            command = f"bash -c {shlex.quote(script)} {shlex.quote(submission.name)}"
        entrypoint = f"{command} {shlex.join(submission.arguments)}".rstrip()
        body = {"entrypoint": entrypoint, "metadata": {"job_name": submission.name}}
        return submit_command(body, submission.name, submission.mark, submission.name)

    def resubmission(
        self,
        detail: JobDetail,
        past: Mapping[str, str],
        script: Script,
        tasks: ArrayTasks | None,
        mark: str,
        limits: NewLimits = AS_IT_WAS,
    ) -> SubmitCommand:
        """The same entrypoint, runtime environment, metadata and, of a request, resources under
        another id.

        Raises UsageError for a driver's.
        """
        native = detail.native or past
        if not native.get("submission_id"):
            raise UsageError(
                "this driver connected by itself: Ray cannot start it again",
                "Run its program again.",
            )
        body: dict[str, Any] = {"entrypoint": native.get("entrypoint", "")}
        body |= {
            key: json.loads(native[key]) for key in ("runtime_env", "metadata") if key in native
        }
        if isinstance(body.get("metadata"), dict):
            # The outcome of the run before is no part of the next one.
            body["metadata"].pop(METADATA_KEY, None)
        body |= noted_resources(table(body.get("metadata")))
        row = detail.job.to_pylist()[0]
        package = _PACKAGE.fullmatch(text(table(body.get("runtime_env")).get("working_dir")) or "")
        # Ray stores it for ten minutes after the request.
        check = (
            Query(("GET", f"{PACKAGES}{package[1]}"), _check_package, cap_bytes=TEXT_BYTES)
            if package
            else None
        )
        return replace(submit_command(body, row["id"], mark, row["name"] or ""), check=check)
