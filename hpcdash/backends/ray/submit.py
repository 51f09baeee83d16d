"""Submission to Ray's Jobs API: scripts, and requests with a package that Ray unpacks beside the
driver.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import secrets
import shlex
import zipfile
from collections.abc import Iterable, Mapping
from functools import cache, partial
from importlib import resources
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.actions import ActionCommand, Outcome
from hpcdash.backends.base import SubmitPart
from hpcdash.backends.job_detail import JobDetail, Script
from hpcdash.backends.queries import TEXT_BYTES, Answer, Query
from hpcdash.backends.ray.jobs import (
    JOBS_PATH,
    RESOURCES_KEY,
    SCRIPT_KEY,
    SWITCH_VARIABLES,
    recorded_resources,
)
from hpcdash.backends.ray.responses import read_responses, refusal, table, text
from hpcdash.backends.ray.slices import METADATA_KEY, SliceType, slice_type, types_among
from hpcdash.backends.script.body import bound_folders
from hpcdash.backends.script.call import (
    RESULT_NAMES,
    call_files,
    call_names,
    call_python,
    runner_command,
)
from hpcdash.backends.script.resume import fixed_part, resume_lines
from hpcdash.backends.submissions import (
    AS_IT_WAS,
    Copy,
    NewLimits,
    SentFile,
    Submission,
    SubmitCommand,
    SubmittedRequest,
)
from hpcdash.domain.array_tasks import ArrayTasks
from hpcdash.domain.demand import LintFinding, nearest
from hpcdash.domain.job_ids import RAY_START
from hpcdash.domain.offers import Offers
from hpcdash.domain.request import (
    NOT_KEPT,
    Call,
    Launcher,
    Request,
    Runtime,
    SlotType,
    without_secret_values,
)
from hpcdash.domain.text import counted
from hpcdash.domain.units import format_memory
from hpcdash.errors import HpcdashError, SchedulerRefused, UsageError
from hpcdash.job.results import JSON
from hpcdash.shell_files import shell_text

_ID_CHARACTERS = 16
_PACKAGES_PATH = "/api/packages/gcs/"
_PACKAGE_URI = re.compile(r"gcs://(_ray_pkg_[0-9a-zA-Z]+\.zip)")
_DRIVER = "slice_driver"
_LIBRARY_NAME = "hpcdash-job.zip"
_REQUEST_NAME = "request.json"
# Placeholder of the package's folder, which differs by node: the variable of this name has it.
_PACKAGE = "/HPCDASH_PACKAGE"
_RUN_NAME = "hpcdash-run.sh"
# There is no folder to fetch a result from: its line ends the log.
_RESULT = b"hpcdash-result: "
_FAILURE = b"hpcdash-failure: "
# Limit of the dashboard for one request: DASHBOARD_CLIENT_MAX_SIZE of
# ray/_private/ray_constants.py.
_MAX_PACKAGE_BYTES = 100 << 20
_MIN_BYTES_PER_SECOND = 64 * 1024
# The earliest time that a zip can store: the same files give the same bytes.
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
# Defaults of request fields for the driver.
_RETRIES_PREEMPTION = 10_000
_RETRIES_FAILURE = 10
_GROW_AFTER_SECONDS = 12 * 3600
_GROW_EVERY_SECONDS = 3 * 3600
# Each worker writes its own lines, with its attempt and number. The driver itself reports a missing
# slice, less often than Ray's autoscaler.
_ENTRYPOINT = f"RAY_DEDUP_LOGS=0 RAY_COLOR_PREFIX=0 RAY_SCHEDULER_EVENTS=0 python -m {_DRIVER}"
# Fields without use for a Ray job. Its resources are those of its entrypoint, or its slices.
_REFUSED_FIELDS = (
    "script",
    "array",
    "after",
    "hold",
    "queue",
    "account",
    "qos",
    "limit_seconds",
    "place",
    "signal",
    "requeue",
    "max_requeues",
    "exclude_nodes",
    "extra_args",
    "attributes",
    "keep_files",
    "slots_per_node",
    "gpu_type",
    "begin",
    "project",
    "cpus_per_gpu",
    "rank_variables",
    "rank_logs",
    "reservation",
    "share",
    "pool",
)
# A run on slices takes whole machines.
_REFUSED_WITH_SLICE = ("slots", "slot_type", "memory_bytes")
# Keys of REQUEST.toml by the names of their fields.
_KEYS = {"limit_seconds": "time", "memory_bytes": "memory"}
_DEFAULT = Request()
_UNAVAILABLE = ("not supported for Ray jobs", "Remove it, or submit to another cluster.")


def _slice_findings(request: Request, offers: Offers) -> tuple[LintFinding, ...]:
    kind = slice_type(request.slice)
    heads = offers.queue(kind.head_resource)
    if heads is None:
        message = f"the cluster has no {kind.name} now: the job waits for one"
        types = types_among(queue.name for queue in offers.queues)
        hint = nearest(kind.name, types) or "It has no other slice either."
        return (LintFinding("warning", "slice", message, hint),)
    findings = []
    slices = min(request.num_slices or (1,))
    if slices > heads.nodes:
        available = f"the cluster has {counted(heads.nodes, 'slice')} of {kind.name} now"
        message = f"{available}: the job waits for {slices}"
        findings.append(LintFinding("warning", "num_slices", message))
    tpus = offers.queue("TPU")
    largest = (tpus.gpus_per_node or 0) if tpus else 0
    requested = _tpus(request, kind)
    if requested > largest:
        available = f"no node has {counted(requested, 'TPU')} now, at most {largest}"
        hint = f"Set tpus_per_worker = {largest}."
        message = f"{available}: the job waits for one"
        findings.append(LintFinding("warning", "tpus_per_worker", message, hint))
    return tuple(findings)


def _node_findings(request: Request, offers: Offers) -> tuple[LintFinding, ...]:
    """Return findings on the resources that a single node must have."""
    cpus = offers.queue("CPU")
    largest: int | None = 0
    if request.slot_type is SlotType.CPU:
        unit = "CPU"
        if cpus:
            largest = cpus.cpus_per_node
    else:
        unit = "GPU"
        if gpus := offers.queue("GPU"):
            largest = gpus.gpus_per_node
    findings = []
    if _needs_slots(request) and largest is not None and request.slots > largest:
        at_most = f", at most {largest}" if largest else ""
        message = f"no node has {counted(request.slots, unit)} now{at_most}: the job waits for one"
        findings.append(LintFinding("warning", "slots", message))
    memory = cpus.memory_per_node_bytes if cpus else None
    if request.memory_bytes is not None and memory is not None and request.memory_bytes > memory:
        message = (
            f"no node has {format_memory(request.memory_bytes)} now, at most "
            f"{format_memory(memory)}: the job waits for one"
        )
        findings.append(LintFinding("warning", "memory", message))
    return tuple(findings)


def _is_uploaded(answer: Answer) -> bool:
    """Whether Ray has a package: it stores it for ten minutes after a request."""
    [response] = read_responses(answer)
    return response.is_success


def _switches(request: Request) -> dict[str, str]:
    """Return the variables of a request's switches."""
    paths = zip(SWITCH_VARIABLES, (request.kill_switch, request.save_switch), strict=True)
    return {name: path for name, path in paths if path}


def _metadata(request: Request) -> dict[str, str]:
    """Return a request's metadata; the values are text."""
    fields = {
        "slice": request.slice,
        "workspace": request.workspace,
        "labels": ",".join(request.labels),
    }
    return {name: value for name, value in fields.items() if value} | _switches(request)


class _Content(Struct, frozen=True):
    """Content of a request's package.

    `files` by name, the command that runs them, the resources of that entrypoint, and the text that
    is shown to a person.
    """

    files: dict[str, bytes]
    entrypoint: str
    resources: Mapping[str, int]
    shown: str


def _slices_content(request: Request, name: str, mark: str) -> _Content:
    """Build the driver and its request, for a run on slices."""
    kind = slice_type(request.slice)
    environment = {**request.environment, **_switches(request)}
    settings: dict[str, Any] = {
        "slice": kind.name,
        "head_resource": kind.head_resource,
        "workers": kind.workers,
        "num_slices": request.num_slices or (1,),
        "tpus": _tpus(request, kind),
        "retries_preemption": _value_or(request.retries_preemption, _RETRIES_PREEMPTION),
        "retries_failure": _value_or(request.retries_failure, _RETRIES_FAILURE),
        "grow_after": _value_or(request.grow_after, _GROW_AFTER_SECONDS),
        "grow_every": _value_or(request.grow_every, _GROW_EVERY_SECONDS),
        "argv": ("bash", "-c", _script(request, mark)),
        "environment": environment,
        "container": _container(request, name),
    }
    content = json.dumps(settings, indent=1, sort_keys=True)
    settings["environment"] = dict.fromkeys(environment, "…")
    shown = json.dumps(settings, indent=1, sort_keys=True, ensure_ascii=False)
    return _Content({**_driver(), _REQUEST_NAME: content.encode()}, _ENTRYPOINT, {}, shown)


def _value_or(value: int | None, default: int) -> int:
    return default if value is None else value


def _tpus(request: Request, kind: SliceType) -> int:
    return _value_or(request.tpus_per_worker, kind.chips)


def _container(request: Request, name: str) -> dict[str, Any] | None:
    """Return the driver's container settings, for docker or podman; None for no container.

    Raises UsageError for any other runtime.
    """
    container = request.container
    if container is None or container.runtime is Runtime.NONE:
        return None
    if container.runtime not in (None, Runtime.DOCKER, Runtime.PODMAN):
        raise UsageError(
            f"container.runtime: Ray cannot start a container with {container.runtime}",
            'Use "docker" or "podman" (default: docker).',
        )
    return {
        "program": "podman" if container.runtime is Runtime.PODMAN else "docker",
        "image": container.image.removeprefix("docker://"),
        "pull": container.force_pull,
        # A path alone would be a volume of docker's own.
        "binds": [
            bind if ":" in bind else f"{bind}:{bind}"
            for bind in (*container.binds, *bound_folders(request))
        ],
        # podman does not bind a missing folder.
        "made": [path] if (path := fixed_part(request.checkpoints)).startswith("/") else [],
        # docker allows few characters in names.
        "name": re.sub("[^a-zA-Z0-9_.-]", "-", f"hpcdash-{name}"),
    }


def _node_content(request: Request, mark: str) -> _Content:
    """Build the script of a command on one node, with its slots as the entrypoint's resources."""
    if request.container is not None and request.container.runtime is not Runtime.NONE:
        raise UsageError("container: Ray starts containers only on slices", 'Set slice = "v4-8".')
    if request.num_slices:
        raise UsageError("num_slices needs a slice type", 'Set it: slice = "v4-256".')
    kind = "entrypoint_num_cpus" if request.slot_type is SlotType.CPU else "entrypoint_num_gpus"
    entrypoint_resources = {kind: request.slots} if _needs_slots(request) else {}
    if request.memory_bytes is not None:
        entrypoint_resources["entrypoint_memory"] = request.memory_bytes
    head = "#!/bin/bash\n"
    if request.job_library:
        head += f'export PYTHONPATH="$PWD/{_LIBRARY_NAME}${{PYTHONPATH:+:$PYTHONPATH}}"\n'
    if request.call is not None:
        head += f'export {_PACKAGE[1:]}="$PWD"\n'
    body = _script(request, mark)
    environment = {**request.environment, **_switches(request)}
    exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in environment.items())
    hidden_exports = "".join(f"export {key}=…\n" for key in environment)
    return _Content(
        {_RUN_NAME: f"{head}{exports}{body}".encode()},
        f"bash {_RUN_NAME}",
        entrypoint_resources,
        f"{head}{hidden_exports}{body}",
    )


def _needs_slots(request: Request) -> bool:
    """Whether a request needs slots: the default, one slot of no type, needs no GPU."""
    return request.slot_type is not None or request.slots > 1


def _script(request: Request, mark: str) -> str:
    """Write the bash that one worker runs."""
    folder = f"cd -- {shlex.quote(request.work_dir)} || exit 1\n" if request.work_dir else ""
    resume = resume_lines(request.checkpoints, "RANK") if request.checkpoints else ""
    hook = f"{request.startup_hook.rstrip()}\n" if request.startup_hook else ""
    command = request.command if request.call is None else _call(request, request.call, mark)
    return f"{folder}{hook}{resume}{command}\n"


def _call(request: Request, call: Call, mark: str) -> str:
    """Write the bash that calls a function with arguments from the package.

    Its result goes into the working directory. Raises UsageError for settings that Ray jobs do not
    have.
    """
    if not request.job_library:
        raise UsageError(
            "job_library: [call] needs it to start the function", "Remove job_library."
        )
    if call.package:
        raise UsageError(
            "call: Ray jobs cannot install a wheel or source in a venv",
            "Pass the folder as sys_path.",
        )
    folder = request.work_dir or _PACKAGE
    is_json = call.result_format == JSON
    # Each run in a folder has a result of its own.
    stem, dot, suffix = RESULT_NAMES[call.result_format].rpartition(".")
    output = f"{folder}/{stem}-{mark.rpartition(':')[2]}{dot}{suffix}"
    command = runner_command(
        f"{call_python(call)} -m",
        call,
        folder,
        {name: f"{_PACKAGE}/{name}" for name in call_names(call)},
        main=f"{_PACKAGE}/{call.main}" if call.main else "",
        submission_id=mark,
        sys_path=(*call.sys_path, folder),
        output=shlex.quote(output) if request.work_dir or is_json else "",
    )
    if is_json and not request.slice:
        print_result = shell_text("backends/ray/print_result.sh")
        command += f"\nstatus=$?\noutput={shlex.quote(output)}\n{print_result}"
    return command.replace(f"={_PACKAGE}", f'="${_PACKAGE[1:]}"')


def logged_result(content: bytes) -> tuple[bytes | None, bytes | None]:
    """Return the result (JSON) and the failure (JSON) at the end of a call's log; None for none."""
    values: dict[bytes, bytes | None] = {_RESULT: None, _FAILURE: None}
    for line in content.splitlines():
        for prefix in values:
            if line.startswith(prefix):
                values[prefix] = line.removeprefix(prefix)
    return values[_RESULT], values[_FAILURE]


@cache
def _driver() -> dict[str, bytes]:
    """Read the driver's files, by their names in the package."""
    folder = resources.files("hpcdash.backends.ray") / "driver"
    return {
        f"{_DRIVER}/{file.name}": file.read_bytes()
        for file in folder.iterdir()
        if file.name.endswith(".py")
    }


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


def _submit_command(body: Mapping[str, Any], target: str, mark: str, name: str) -> SubmitCommand:
    """Build the command that submits a body of the Jobs API.

    Its job has an ID from the mark: a second request with it is refused.
    """
    job_id = RAY_START + (mark.rpartition(":")[2] or secrets.token_hex(_ID_CHARACTERS // 2))
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
    # A second request with the same ID answers 500 with a traceback: the first was accepted.
    if response.is_success or b"already exists" in response.body:
        return (Outcome(name, True, f"job {job_id}"),)
    return (Outcome(name, False, refusal(response.body)),)


def _zip(content: Mapping[str, SentFile]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file in sorted(content.items()):
            entry = zipfile.ZipInfo(name, _ZIP_TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100700 if file.is_program else 0o100600) << 16
            archive.writestr(entry, file.content)
    return buffer.getvalue()


def _read_upload(answer: Answer, *, name: str) -> tuple[Outcome, ...]:
    try:
        [response] = read_responses(answer)
    except HpcdashError as error:
        return (Outcome(name, False, error.message),)
    message = "" if response.is_success else refusal(response.body)
    return (Outcome(name, response.is_success, message),)


def _require_default(request: Request, names: Iterable[str], problem: str, hint: str) -> None:
    """Raise UsageError if a request sets one of some fields."""
    for name in names:
        if getattr(request, name) != getattr(_DEFAULT, name):
            raise UsageError(f"{_KEYS.get(name, name)}: {problem}", hint)


class RaySubmit(SubmitPart):
    """Submission of scripts and requests by Ray's Jobs API."""

    takes_requests = True
    without_fields = frozenset(
        {*(_KEYS.get(name, name) for name in _REFUSED_FIELDS), "launcher", "plain"}
    )

    def request(
        self,
        request: Request,
        library: bytes,
        mark: str,
        files: Mapping[str, SentFile] = MappingProxyType({}),
    ) -> SubmittedRequest:
        """Build the upload of a request's package, and the submission of the job that runs it.

        Variables of the environment go in the package: the dashboard shows the body of a submission
        to everyone. Raises UsageError, naming a field that Ray jobs do not have.
        """
        _require_default(request, _REFUSED_FIELDS, *_UNAVAILABLE)
        if request.plain:
            raise UsageError("plain: a Ray job has no batch script", "Remove it.")
        if NOT_KEPT in json.dumps(request.runtime_env):
            raise UsageError(
                "runtime_env: secrets are not saved with a submission",
                "Set its value, or remove it.",
            )
        if request.launcher is not Launcher.PLAIN:
            raise UsageError("launcher: Ray's driver starts the command itself", "Remove it.")
        name = request.name or request.slice or "job"
        if request.slice:
            problem = "a slice gives each worker a whole machine"
            _require_default(request, _REFUSED_WITH_SLICE, problem, "Remove it, or remove `slice`.")
            content = _slices_content(request, name, mark)
        else:
            content = _node_content(request, mark)
        own_files = dict(content.files)
        if request.job_library:
            own_files[_LIBRARY_NAME] = library
        if request.call is not None:
            own_files |= call_files(request.call)
        own_names = {path.partition("/")[0] for path in own_files}
        if conflicts := sorted(path for path in files if path.partition("/")[0] in own_names):
            raise UsageError(
                f"files: hpcdash uses the name {conflicts[0]} itself", "Rename it or remove it."
            )
        package = _zip({path: SentFile(file) for path, file in own_files.items()} | dict(files))
        if len(package) > _MAX_PACKAGE_BYTES:
            raise UsageError(
                f"files: {format_memory(len(package))} packed; Ray's dashboard accepts at most "
                f"{format_memory(_MAX_PACKAGE_BYTES)}",
                "Exclude files in .gitignore, or list fewer.",
            )
        uri = f"_ray_pkg_{hashlib.sha256(package).hexdigest()[:32]}.zip"
        path = f"{_PACKAGES_PATH}{uri}"
        metadata = {"job_name": name, **_metadata(request), SCRIPT_KEY: content.shown}
        if content.resources:
            metadata[RESOURCES_KEY] = json.dumps(content.resources)
        body = {
            "entrypoint": content.entrypoint,
            "runtime_env": {**(request.runtime_env or {}), "working_dir": f"gcs://{uri}"},
            "metadata": metadata,
            **content.resources,
        }
        shown = content.shown
        if request.runtime_env:
            runtime_env = without_secret_values(request.runtime_env)
            shown += f"\n# runtime_env = {json.dumps(runtime_env, sort_keys=True)}\n"
        names = sorted(own_files)
        if files:
            names.append(f"{counted(len(files), 'file')} of yours")
        upload = ActionCommand(
            ("PUT", path),
            (name,),
            partial(_read_upload, name=name),
            package,
            60.0 + len(package) / _MIN_BYTES_PER_SECOND,
            shown=(f"PUT {path} ({format_memory(len(package))}: {', '.join(names)})",),
        )
        is_uploaded = Query(("GET", path), _is_uploaded, cap_bytes=TEXT_BYTES)
        command = _submit_command(body, name, mark, name)
        return SubmittedRequest((upload,), command, shown, is_uploaded)

    def request_findings(self, request: Request, offers: Offers) -> tuple[LintFinding, ...]:
        """Return findings on secrets that the dashboard would show, and on missing resources.

        A job waits for missing resources, as the cluster may get them.
        """
        findings: tuple[LintFinding, ...] = ()
        if without_secret_values(request.runtime_env) != request.runtime_env:
            message = (
                "it contains a password or a token, which anyone with access to the dashboard "
                "can read"
            )
            hint = "Configure the package index on the nodes."
            findings = (LintFinding("warning", "runtime_env", message, hint),)
        if offers.queues:
            findings += (_slice_findings if request.slice else _node_findings)(request, offers)
        return findings

    def submission(self, submission: Submission) -> SubmitCommand:
        """Build the submission of a job whose entrypoint is a script.

        Raises UsageError for settings that Ray jobs do not have.
        """
        unavailable = {
            "array": submission.array,
            "after": submission.after,
            "hold": submission.held,
            "run_as": submission.run_as,
            "options": submission.options,
        }
        for name, value in unavailable.items():
            if value:
                problem, hint = _UNAVAILABLE
                raise UsageError(f"{name}: {problem}", hint)
        # Ray runs entrypoints with sh -c.
        command = f"bash {shlex.quote(submission.file)}"
        if not submission.file:
            script = submission.script.decode("utf-8", "surrogateescape")
            command = f"bash -c {shlex.quote(script)} {shlex.quote(submission.name)}"
        entrypoint = f"{command} {shlex.join(submission.arguments)}".rstrip()
        body = {"entrypoint": entrypoint, "metadata": {"job_name": submission.name}}
        return _submit_command(body, submission.name, submission.mark, submission.name)

    def resubmission(
        self,
        detail: JobDetail,
        past: Mapping[str, str],
        script: Script,
        tasks: ArrayTasks | None,
        mark: str,
        limits: NewLimits = AS_IT_WAS,
        copy: Copy | None = None,
    ) -> SubmitCommand:
        """Build the submission of a job's entrypoint, runtime environment, metadata and recorded
        resources under another ID.

        Raises UsageError for a driver that connected by itself.
        """
        native = detail.native or past
        if not native.get("submission_id"):
            raise UsageError(
                "this driver connected by itself: Ray cannot start it again",
                "Run its program again.",
            )
        body: dict[str, Any] = {"entrypoint": native.get("entrypoint", "")}
        for key in ("runtime_env", "metadata"):
            if key in native:
                body[key] = json.loads(native[key])
        if isinstance(body.get("metadata"), dict):
            # The outcome of the last run is no part of the next.
            body["metadata"].pop(METADATA_KEY, None)
        body |= recorded_resources(table(body.get("metadata")))
        row = detail.job.to_pylist()[0]
        command = _submit_command(body, row["id"], mark, row["name"] or "")
        working_dir = text(table(body.get("runtime_env")).get("working_dir")) or ""
        package = _PACKAGE_URI.fullmatch(working_dir)
        if package is None:
            return command
        path = f"{_PACKAGES_PATH}{package[1]}"
        return replace(command, check=Query(("GET", path), _check_package, cap_bytes=TEXT_BYTES))
