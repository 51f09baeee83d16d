"""`python -m hpcdash.job.runner`: calls a function of a submission in its job, and reports the
outcome.

It exits with 0 or 1, so that the scheduler sees a failed job. The function handles its own signals.
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

# Beginnings of the variables that callbacks get, and of the secrets among them.
_REPORTED_VARIABLES = (
    "SLURM_",
    "PBS_",
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "MASTER_",
    "JOB_DIR",
)
_SECRET_VARIABLES = ("SLURM_JWT", "PBS_JOBCOOKIE")
# File in a venv that was created for the job.
_VENV_MARK = "hpcdash-packaged"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(1, f"{self.prog}: error: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m hpcdash.job.runner", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--module", required=True, help="module of the function, as imported")
    add(
        "--function",
        required=True,
        help="function name in the module, dotted for a class attribute",
    )
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
        help="index of the item; default: the array task's number in the environment",
    )
    add(
        "--array-items-file",
        help="a base64 pickle of a list: a tuple is positional arguments, a dict keyword "
        "arguments, else one argument",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit status: 0 if the function returned (or raised SystemExit(0)) and its result
    was written, else 1.
    """
    options = _parser().parse_args(argv)
    # The root logger stays as it is, so that logging.basicConfig() works in the function.
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("hpcdash: %(levelname)s: %(message)s"))
    log.addHandler(handler)
    log.setLevel(options.loglevel)
    log.propagate = False
    _leave_working_copy()
    sys.path[:0] = options.sys_path
    if options.job_dir:
        # A job submitted by another job inherits that job's JOB_DIR.
        os.environ["JOB_DIR"] = options.job_dir
    return _Run(options).run()


def _leave_working_copy() -> None:
    """Remove the current folder from sys.path in a venv that was created for the job.

    `python -m` and an empty entry of PYTHONPATH put it first: a working copy where the job was
    submitted would hide the packages of the venv.
    """
    try:
        folder = os.getcwd()
    except OSError:
        # It was removed: nothing can be imported from it.
        return
    python_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if folder not in python_path and os.path.exists(os.path.join(sys.prefix, _VENV_MARK)):
        sys.path[:] = [path for path in sys.path if path not in ("", folder)]


class _Run:
    """Call of a function, with its result, its failure and its callbacks."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        # None until the function is called.
        self.began_at: float | None = None
        self.callbacks: list[Callback] = []
        self.context: JobContext | None = None
        self.launch = Launch(options.module, options.function)
        self.output_path: str | None = None

    def run(self) -> int:
        """Return the exit status."""
        try:
            self.context = context = current_job_context()
            if self.options.output_file:
                # Absolute, as the function may change the current folder. All ranks of a step have
                # the same command line.
                self.output_path = os.path.abspath(self.options.output_file)
                self.output_path += f".{context.rank}" if context.rank else ""
            if self.options.main:
                import_main(self.options.main)
            args, kwargs = self._load(context)
            function = imported(self.options.module, self.options.function)
            args, kwargs = bind_job_context(function, args, kwargs, context)
            self.began_at = time.time()
            tell(self.callbacks, "on_run_begin", self._begin(context, self.began_at))
            result = _call(function, args, kwargs)
            if self.output_path:
                write_result(self.output_path, result, self.options.result_format)
        # The exit status, the file and the callbacks report any failure.
        except BaseException as error:
            failure = _failure(error)
            # Written before stderr, which may be on a full disk.
            try:
                self._write_failure(failure, error)
                _write_to_stderr(failure.traceback)
            finally:
                self._notify_end(RunStatus.FAILURE, None, failure)
            return 1
        self._notify_end(RunStatus.SUCCESS, result, None)
        return 0

    def _load(self, context: JobContext) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the function's arguments, and load the callbacks."""
        options = self.options
        if self.output_path:
            # An earlier attempt may have left files.
            for path in (self.output_path, self.output_path + ".error"):
                if os.path.exists(path):
                    os.unlink(path)
        index = context.array_index
        if options.array_index:
            try:
                index = int(options.array_index)
            except ValueError:
                raise ValueError(
                    f"--array-index: {options.array_index!r} is not a number"
                ) from None
        self.launch = Launch(
            module=options.module,
            function=options.function,
            job_dir=options.job_dir,
            stdout_path=options.stdout_path,
            stderr_path=options.stderr_path,
            pre_submission_id=options.pre_submission_id,
            array_index=index,
        )
        if options.callbacks_file:
            self.callbacks = received(options.callbacks_file)
        self.callbacks += named(options.callback)
        args = tuple(_loaded(options.args_file, (list, tuple), ()))
        kwargs = dict(_loaded(options.kwargs_file, (dict,), {}))
        if options.array_items_file:
            item_args, item_kwargs = _item(options.array_items_file, index)
            args = item_args + args
            kwargs.update(item_kwargs)
        return args, kwargs

    def _begin(self, context: JobContext, began_at: float) -> RunBegin:
        environment = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(_REPORTED_VARIABLES) and not name.startswith(_SECRET_VARIABLES)
        }
        return RunBegin(
            self.launch,
            context,
            began_at,
            hostname=os.uname().nodename,
            pid=os.getpid(),
            python_executable=sys.executable,
            python_version=".".join(map(str, sys.version_info[:3])),
            working_dir=os.getcwd(),
            environment=environment,
        )

    def _notify_end(self, status: RunStatus, result: object, failure: Failure | None) -> None:
        """Call the callbacks for the end of the run, if it began, and for its completion."""
        ended_at = time.time()
        result_path = self.output_path if failure is None else None
        try:
            if self.context is not None and self.began_at is not None:
                end = RunEnd(
                    self.launch,
                    self.context,
                    status,
                    self.began_at,
                    ended_at,
                    result=result,
                    result_path=result_path,
                    failure=failure,
                )
                tell(self.callbacks, "on_run_end", end)
        finally:
            completed = Completed(
                self.launch,
                EmittedBy.RUNNER,
                status,
                ended_at,
                job_id=self.context.job_id if self.context else None,
                job_context=self.context,
                began_at=self.began_at,
                result_path=result_path,
                failure=failure,
            )
            tell(self.callbacks, "on_completed", completed)

    def _write_failure(self, failure: Failure, error: BaseException) -> None:
        """Write a failure beside the result, with the error as a pickle for the client to raise."""
        if not self.output_path:
            return
        fields = {
            "type": failure.type,
            "message": failure.message,
            "traceback": failure.traceback,
        }
        if self.options.result_format == PICKLE:
            # Pickling and unpickling may run the error's own methods.
            try:
                content = pickle.dumps(error, protocol=4)
                pickle.loads(content)
                fields["pickle"] = base64.b64encode(content).decode("ascii")
            except BaseException:
                fields["pickle"] = ""
        try:
            with write_whole(self.output_path + ".error") as beside:
                beside.write_text(json.dumps(fields), encoding="utf-8")
        except Exception:  # Memory may be exhausted like the disk: the callbacks are still called.
            log.exception("the failure could not be written next to the result")


def import_main(path: str) -> None:
    """Import a program's file as multiprocessing does, without its `if __name__ == "__main__"`.

    Pickles find its names in `__main__`, and imports find it as the module of its file.
    """
    loader = importlib.machinery.SourceFileLoader("__mp_main__", path)
    spec = importlib.util.spec_from_loader("__mp_main__", loader)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    _replaced_mains.append(sys.modules["__main__"])
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    sys.modules["__main__"] = module
    sys.modules["__mp_main__"] = module
    sys.modules.setdefault(os.path.splitext(os.path.basename(path))[0], module)
    loader.exec_module(module)


# Python empties a module without a reference.
_replaced_mains: list[Any] = []


def imported(module: str, function: str) -> Callable[..., Any]:
    """Import a function; raises ImportError, AttributeError, or TypeError for another object."""
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
        text = " or ".join(kind.__name__ for kind in types)
        raise TypeError(f"{path} contains a {type(value).__name__}, not a {text}")
    return value


def _item(path: str, index: int | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments of an array task."""
    items = _loaded(path, (list, tuple), ())
    if index is None:
        raise ValueError("--array-items-file needs --array-index, or must run in an array task")
    if not 0 <= index < len(items):
        raise IndexError(f"array index {index} is out of range: {path} has {len(items)} items")
    item = items[index]
    if isinstance(item, dict):
        return (), item
    return (item, {}) if isinstance(item, tuple) else ((item,), {})


def _failure(error: BaseException) -> Failure:
    """Return an error with its traceback, from the function's own frames on if it has any."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__") in (
        __name__,
        "hpcdash.job.task",
    ):
        frames = frames.tb_next
    try:
        lines = traceback.format_exception(type(error), error, frames or error.__traceback__)
    # A traceback may show broken attributes of the error's class.
    except BaseException as another:
        lines = [
            f"{type(error).__name__}, whose traceback cannot be written: {type(another).__name__}\n"
        ]
    try:
        message = str(error)
    # An error's own __str__ may fail, even with SystemExit(0).
    except BaseException:
        message = ""
    return Failure(type(error).__name__, message, "".join(lines))


def _write_to_stderr(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except BaseException:
        # Its disk is full, it is closed, or the function replaced it.
        pass


def _close_streams() -> None:
    """Close the streams: if the last output cannot be written, Python would exit with 120, and the
    status of the function would be lost.
    """
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except BaseException as error:  # The function may have replaced it by anything, also None.
            if getattr(sys, name) is not None and name == "stdout":
                _write_to_stderr(
                    f"hpcdash: the last output of the function is lost: {type(error).__name__}\n"
                )
            setattr(sys, name, None)


if __name__ == "__main__":
    status = main()
    _close_streams()
    sys.exit(status)
