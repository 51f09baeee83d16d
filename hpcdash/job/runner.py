"""`python -m hpcdash.job.runner`: calls one function of a submission in its job, and tells how it
went.

Reads its files and its environment; touches neither ssh nor the scheduler. Ends with 0 or 1, so
that the scheduler knows a job that failed. Signals are the function's own to handle.
"""

from __future__ import annotations

import argparse
import base64
import importlib
import importlib.machinery
import importlib.util
import json
import logging
import os
import pickle
import sys
import time
import traceback
from typing import Any, Callable, NoReturn, Sequence

from hpcdash.job.callbacks import Callback, named, received, tell
from hpcdash.job.context import JobContext, current_job_context
from hpcdash.job.injection import bind_job_context
from hpcdash.job.on_disk import write_whole
from hpcdash.job.pickles import read_packed
from hpcdash.job.results import FORMATS, PICKLE, write_result
from hpcdash.job.states import Completed, EmittedBy, Failure, Launch, RunBegin, RunEnd, RunStatus

log = logging.getLogger("hpcdash.job")

_INDEX_VARIABLES = ("SLURM_ARRAY_TASK_ID", "PBS_ARRAY_INDEX", "PBS_ARRAYID")
_TOLD_VARIABLES = (
    "SLURM_",
    "PBS_",
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "MASTER_",
    "JOB_DIR",
)
_SECRET_VARIABLES = ("SLURM_JWT", "PBS_JOBCOOKIE")
# A file in a venv that was made for the job.
_VENV_MARK = "hpcdash-packaged"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(1, f"{self.prog}: error: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m hpcdash.job.runner", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--module", required=True, help="module of the function, as imported")
    add("--function", required=True, help="its name in the module, with dots for a class attribute")
    add("--args-file", help="a base64 pickle of the positional arguments, a tuple or list")
    add("--kwargs-file", help="a base64 pickle of the keyword arguments, a dict")
    add("--callbacks-file", help="output of hpcdash.job.callbacks.shipped()")
    add(
        "--callback",
        action="append",
        default=[],
        metavar="MODULE:NAME",
        help="also called; may be repeated",
    )
    add("--job-dir", help="the job's folder, given to the function as JOB_DIR")
    add("--stdout-path", help="passed to callbacks")
    add("--stderr-path", help="passed to callbacks")
    add("--pre-submission-id", help="passed to callbacks")
    add(
        "--output-file",
        help="where the result is written (FILE.N for rank N > 0); a failure goes to FILE.error",
    )
    add("--result-format", default=PICKLE, choices=FORMATS, help="format of the result")
    add(
        "--main",
        metavar="FILE",
        help="the program that submitted the job; it is imported, except its __main__ block",
    )
    add(
        "--sys-path",
        action="append",
        default=[],
        metavar="DIR",
        help="added at the start of sys.path; may be repeated",
    )
    add(
        "--loglevel",
        default="WARNING",
        type=str.upper,
        choices=["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"],
    )
    add(
        "--array-index",
        help="which of the items; by default the array task's number in the environment",
    )
    add(
        "--array-items-file",
        help="a base64 pickle of a list: a tuple is positional arguments, a dict keyword "
        "arguments, else one argument",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0 where the function returned (or raised SystemExit(0)) and its result was
    written, else 1.
    """
    options = _parser().parse_args(argv)
    _log_to_stderr(options.loglevel)
    _leave_working_copy()
    sys.path[:0] = options.sys_path
    if options.job_dir:
        # A job submitted by another has inherited that one's.
        os.environ["JOB_DIR"] = options.job_dir
    return _Run(options).run()


def _leave_working_copy() -> None:
    """In a venv made for the job import what it holds, not a folder of the same name where the job
    was submitted: `python -m` puts the current folder first, and so does an empty entry of
    PYTHONPATH.
    """
    try:
        here = os.getcwd()
    except OSError:
        # It was removed: nothing can be imported from it.
        return
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if here not in named and os.path.exists(os.path.join(sys.prefix, _VENV_MARK)):
        sys.path[:] = [path for path in sys.path if path not in ("", here)]


class _Run:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.began_at = time.time()
        self.callbacks: list[Callback] = []
        self.context: JobContext | None = None
        self.launch = Launch(options.module, options.function)
        self.output_path: str | None = None
        self.error: BaseException | None = None

    def run(self) -> int:
        began, result = False, None
        failure: Failure | None = None
        try:
            self.context = context = current_job_context()
            # The function may change the folder it works in.
            self.output_path = _output_path(self.options.output_file, context)
            if self.options.main:
                import_main(self.options.main)
            args, kwargs = self._load()
            function = imported(self.options.module, self.options.function)
            args, kwargs = bind_job_context(function, args, kwargs, context)
            self.began_at = time.time()
            began = True
            tell(self.callbacks, "on_run_begin", self._begin(context))
            result = _call(function, args, kwargs)
            if self.output_path:
                write_result(self.output_path, result, self.options.result_format)
        except (
            BaseException
        ) as error:  # Whatever it was, the exit status, the file and the callbacks report it.
            failure, result = _failure(error), None
            self.error = error
            # The output that programs read goes first: stderr may be on a full disk.
            try:
                self._write_failure(failure)
                _write_to_stderr(failure.traceback)
            finally:
                self._notify_end(began, result, failure)
        else:
            self._notify_end(began, result, failure)
        return 0 if failure is None else 1

    def _load(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        options = self.options
        if self.output_path:
            # Files left by an earlier attempt are not this one's.
            for path in (self.output_path, self.output_path + ".error"):
                if os.path.exists(path):
                    os.unlink(path)
        index = _array_index(options.array_index)
        self.launch = Launch(
            options.module,
            options.function,
            options.job_dir,
            options.stdout_path,
            options.stderr_path,
            options.pre_submission_id,
            index,
        )
        if options.callbacks_file:
            self.callbacks = received(options.callbacks_file)
        self.callbacks += named(options.callback)
        args = tuple(_loaded(options.args_file, (list, tuple), ()))
        kwargs = dict(_loaded(options.kwargs_file, (dict,), {}))
        if options.array_items_file:
            item_args, item_kwargs = _item(options.array_items_file, index)
            args, kwargs = item_args + args, {**kwargs, **item_kwargs}
        return args, kwargs

    def _begin(self, context: JobContext) -> RunBegin:
        reported = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(_TOLD_VARIABLES) and not name.startswith(_SECRET_VARIABLES)
        }
        return RunBegin(
            self.launch,
            context,
            self.began_at,
            hostname=os.uname().nodename,
            pid=os.getpid(),
            python_executable=sys.executable,
            python_version=".".join(map(str, sys.version_info[:3])),
            working_dir=os.getcwd(),
            environment=reported,
        )

    def _notify_end(self, began: bool, result: object, failure: Failure | None) -> None:
        status = RunStatus.SUCCESS if failure is None else RunStatus.FAILURE
        result_path = self.output_path if failure is None else None
        ended_at = time.time()
        if began and self.context is not None:
            end = RunEnd(
                self.launch,
                self.context,
                status,
                self.began_at,
                ended_at,
                result,
                result_path,
                failure,
            )
            try:
                tell(self.callbacks, "on_run_end", end)
            finally:
                self._notify_completed(status, ended_at, began, result_path, failure)
        else:
            self._notify_completed(status, ended_at, began, result_path, failure)

    def _notify_completed(
        self,
        status: RunStatus,
        ended_at: float,
        began: bool,
        result_path: str | None,
        failure: Failure | None,
    ) -> None:
        completed = Completed(
            self.launch,
            EmittedBy.RUNNER,
            status,
            ended_at,
            job_id=self.context.job_id if self.context else None,
            job_context=self.context,
            began_at=self.began_at if began else None,
            result_path=result_path,
            failure=failure,
        )
        tell(self.callbacks, "on_completed", completed)

    def _write_failure(self, failure: Failure) -> None:
        if not self.output_path:
            return
        reported = {
            "type": failure.type,
            "message": failure.message,
            "traceback": failure.traceback,
        }
        if self.options.result_format == PICKLE and self.error is not None:
            reported["pickle"] = _pickled(self.error)
        try:
            with write_whole(self.output_path + ".error") as beside:
                beside.write_text(json.dumps(reported), encoding="utf-8")
        except Exception:  # Memory may be exhausted like the disk: the callbacks are still called.
            log.exception("the failure could not be written next to the result")


def import_main(path: str) -> None:
    """Import a program's file as multiprocessing does: what it pickles as its own is found, and its
    `if __name__ == "__main__"` is not run. It is the module of its own name too."""
    loader = importlib.machinery.SourceFileLoader("__mp_main__", path)
    spec = importlib.util.spec_from_loader("__mp_main__", loader)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    _replaced_mains.append(sys.modules["__main__"])
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    sys.modules.setdefault(os.path.splitext(os.path.basename(path))[0], module)
    loader.exec_module(module)


# A module without a reference is emptied.
_replaced_mains: list[Any] = []


def imported(module: str, function: str) -> Callable[..., Any]:
    """The function of that name.

    Raises ImportError, AttributeError, and TypeError for what cannot be called.
    """
    if module == "__main__":
        raise ImportError(
            "a function of the program itself cannot be imported in a job: move it into a module"
        )
    found: Any = importlib.import_module(module)
    for name in function.split("."):
        found = getattr(found, name)
    if not callable(found):
        raise TypeError(f"{module}.{function} is not a function ({type(found).__name__})")
    return found  # type: ignore[no-any-return]


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return function(*args, **kwargs)
    except SystemExit as end:
        # A training that was requested to stop leaves by sys.exit(0).
        if end.code in (None, 0):
            return None
        raise


def _loaded(path: str | None, types: tuple[type, ...], default: Any) -> Any:
    if path is None:
        return default
    value = read_packed(path)
    if not isinstance(value, types):
        text = " or ".join(each.__name__ for each in types)
        raise TypeError(f"{path} holds a {type(value).__name__}, not a {text}")
    return value


def _array_index(given: str | None) -> int | None:
    text = given or next(
        (os.environ[name] for name in _INDEX_VARIABLES if os.environ.get(name)), None
    )
    try:
        return None if text is None else int(text)
    except ValueError:
        raise ValueError(f"--array-index: {text!r} is not a number") from None


def _item(path: str, index: int | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    items = _loaded(path, (list, tuple), ())
    if index is None:
        raise ValueError("--array-items-file needs --array-index, or must run in an array task")
    if not 0 <= index < len(items):
        raise IndexError(f"array index {index} is out of range: {path} has {len(items)} items")
    item = items[index]
    if isinstance(item, dict):
        return (), item
    return (item, {}) if isinstance(item, tuple) else ((item,), {})


def _output_path(path: str | None, context: JobContext) -> str | None:
    if path is None:
        return None
    # Each rank of a step has the same command line.
    return os.path.abspath(path) + (f".{context.rank}" if context.rank else "")


def _failure(error: BaseException) -> Failure:
    """The error with its traceback from the function's own frames on, where it has any."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__") in (
        __name__,
        "hpcdash.job.task",
    ):
        frames = frames.tb_next
    try:
        lines = traceback.format_exception(type(error), error, frames or error.__traceback__)
    except (
        BaseException
    ) as another:  # Its own classes may have broken attributes that a traceback shows.
        lines = [
            f"{type(error).__name__}, whose traceback cannot be written: {type(another).__name__}\n"
        ]
    try:
        message = str(error)
    except BaseException:  # An error's own __str__ may fail, and were it with SystemExit(0).
        message = ""
    return Failure(type(error).__name__, message, "".join(lines))


def _pickled(error: BaseException) -> str:
    """The error for the client to raise; '' for one that cannot be pickled, or not read back."""
    try:
        content = pickle.dumps(error, protocol=4)
        pickle.loads(content)
    except BaseException:  # Both may run the error's own methods.
        return ""
    return base64.b64encode(content).decode("ascii")


def _write_to_stderr(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except BaseException:
        # No output is left: its disk is full, it is closed, or the function replaced it.
        pass


def _log_to_stderr(level: str) -> None:
    # The root logger stays as it is: logging.basicConfig() in the function would do nothing
    # otherwise.
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("hpcdash: %(levelname)s: %(message)s"))
    log.addHandler(handler)
    log.setLevel(level)
    log.propagate = False


def _close_streams() -> None:
    """Close the streams: Python would exit with 120 where the last output cannot be written.

    The function's own status would be lost.
    """
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except BaseException as error:  # As above: it may be anything by now, None too.
            if getattr(sys, name) is not None and name == "stdout":
                _write_to_stderr(
                    f"hpcdash: what the function printed last is lost: {type(error).__name__}\n"
                )
            setattr(sys, name, None)


if __name__ == "__main__":
    status = main()
    _close_streams()
    sys.exit(status)
