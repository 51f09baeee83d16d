"""Packaging of a function and its arguments for a job: by name with its code, or by value."""

from __future__ import annotations

import ast
import base64
import contextlib
import contextvars
import importlib
import importlib.util
import inspect
import io
import linecache
import pickle
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from hpcdash.errors import UsageError, excerpt

PACKAGINGS = ("auto", "none", "source", "wheel", "container")
_BUILD_SECONDS = 600
_PROJECT_FILES = ("pyproject.toml", "setup.py")
# The jobs among the arguments being pickled: each is replaced by its result in the job.
_waited_for: contextvars.ContextVar[list[Any] | None] = contextvars.ContextVar(
    "waited_for", default=None
)


class Code(Struct, frozen=True):
    """Location of a function for a job: `module` and `function` by name, `main` its program file.

    `folder` is sent with the job, which starts in it; None for no folder. `staged` are files of the
    launch folder. With `by_value`, the function is in the pickle of its arguments.
    """

    module: str
    function: str
    main: str = ""
    sys_path: tuple[str, ...] = ()
    folder: Path | None = None
    staged: Mapping[str, bytes] = field(default_factory=dict)
    by_value: bool = False


def find_code(function: Callable[..., Any], packaging: str, *, is_here: bool) -> Code:
    """Return the code with which a job calls a function; `is_here`: it sees this machine's files.

    Raises UsageError for code that the job cannot have.
    """
    if packaging not in PACKAGINGS:
        raise UsageError(f"packaging: {packaging!r} is not one of {', '.join(PACKAGINGS)}")
    main = sys.modules.get("__main__")
    main_file: str | None = getattr(main, "__file__", None)
    is_sent = packaging == "source" or not is_here
    if is_by_value(function):
        staged = _pickler_zip(function)
        code = Code("hpcdash.job.pickles", "call_packed", staged=staged, by_value=True)
        root = Path(main_file).absolute().parent if main_file else Path.cwd()
        has_source = packaging == "source" or main_file or not is_sent
        if packaging not in ("auto", "source") or not has_source:
            return code
        return replace(code, folder=root) if is_sent else replace(code, sys_path=(str(root),))
    function = inspect.unwrap(function)
    module = str(function.__module__)
    name = str(function.__qualname__)
    if module == "__main__" and (spec := getattr(main, "__spec__", None)) is not None:
        # Started as `python -m package.module`.
        module = str(spec.name)
    # In a job the program is __mp_main__.
    if module not in ("__main__", "__mp_main__"):
        main_file = None
    found = _root(module, main_file)
    if packaging == "wheel" and found is not None and not main_file:
        return Code(module, name, staged=_build_wheel(found))
    is_excluded = packaging in ("wheel", "container") or (packaging == "none" and not is_here)
    if found is None or is_excluded:
        if main_file or packaging == "wheel":
            where = main_file or module
            raise UsageError(
                f"packaging: the job could not import {name} from {where}",
                "Move it into a module of the project.",
            )
        return Code(module, name)
    if main_file is None:
        if is_sent:
            return Code(module, name, folder=found)
        return Code(module, name, sys_path=(str(found),))
    stem = Path(main_file).stem
    is_importable = stem.isidentifier() and stem not in sys.stdlib_module_names
    module = stem if is_importable else "__mp_main__"
    if is_sent:
        return Code(module, name, Path(main_file).name, folder=found)
    return Code(module, name, str(Path(main_file).absolute()), (str(found),))


def is_by_value(function: Callable[..., Any]) -> bool:
    """Whether jobs cannot import it by name: a lambda, an inner or notebook function, an object."""
    function = inspect.unwrap(function)
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", "<object>")
    if not module or "<" in name:
        return True
    return module == "__main__" and getattr(sys.modules.get("__main__"), "__file__", None) is None


def refuse_import_time(function: Callable[..., Any]) -> None:
    """Raise UsageError if the function's file is being imported, as its job would submit again."""
    function = inspect.unwrap(function)
    if is_by_value(function) or (code := getattr(function, "__code__", None)) is None:
        return
    frame = inspect.currentframe()
    while frame is not None:
        is_top = frame.f_code.co_name == "<module>" and frame.f_globals is function.__globals__
        if is_top and frame.f_code.co_filename == code.co_filename and not _is_below_an_if(frame):
            file = Path(code.co_filename).name
            raise UsageError(
                f"{file}:{frame.f_lineno} submits {function.__name__} when {file} is imported, "
                "and the job imports it too",
                'Move the submission below: if __name__ == "__main__":',
            )
        frame = frame.f_back


def _is_below_an_if(frame: FrameType) -> bool:
    """Whether the program is at a statement that an import of its file skips."""
    if frame.f_globals.get("__name__") != "__main__":
        return False
    try:
        tree = ast.parse("".join(linecache.getlines(frame.f_code.co_filename)))
    except SyntaxError:
        return True
    for statement in tree.body:
        last_line = statement.end_lineno or statement.lineno
        if statement.lineno <= frame.f_lineno <= last_line:
            return isinstance(statement, ast.If)
    return True


def _root(module: str, main_file: str | None) -> Path | None:
    """Return the folder that a module is imported from; None for installed modules."""
    if main_file:
        return Path(main_file).absolute().parent
    found = sys.modules.get(module) or importlib.import_module(module)
    if (file := getattr(found, "__file__", None)) is None:
        return None
    path = Path(file).resolve()
    for name in ("stdlib", "platstdlib", "purelib", "platlib"):
        if Path(sysconfig.get_path(name)).resolve() in path.parents:
            return None
    depth = module.count(".") + (path.name == "__init__.py")
    return path.parents[depth]


def _build_wheel(root: Path) -> dict[str, bytes]:
    """Build the wheel of the project that contains a folder; return its content by its name."""
    for project in (root, *root.parents):
        if any((project / name).exists() for name in _PROJECT_FILES):
            break
    else:
        raise UsageError(
            f"packaging: there is no pyproject.toml in {root} or above it",
            'Use packaging = "source".',
        )
    with tempfile.TemporaryDirectory(prefix="hpcdash-wheel-") as folder:
        parts = (
            "pip",
            "wheel",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--wheel-dir",
            folder,
            "--",
        )
        built = subprocess.run(
            (sys.executable, "-m", *parts, str(project)),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_BUILD_SECONDS,
            check=False,
        )
        wheels = list(Path(folder).glob("*.whl"))
        if built.returncode or not wheels:
            raise UsageError(
                f"packaging: could not build a wheel of {project}: {excerpt(built.stderr)}"
            )
        return {wheels[0].name: wheels[0].read_bytes()}


def _pickler_zip(function: Callable[..., Any]) -> dict[str, bytes]:
    """Return cloudpickle as a zip, with which jobs read functions by value."""
    spec = importlib.util.find_spec("cloudpickle")
    if spec is None or spec.origin is None:
        raise _needs_cloudpickle(function)
    content = io.BytesIO()
    folder = Path(spec.origin).parent
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.glob("*.py")):
            entry = zipfile.ZipInfo(f"cloudpickle/{file.name}", (1980, 1, 1, 0, 0, 0))
            archive.writestr(entry, file.read_bytes())
    return {"cloudpickle.zip": content.getvalue()}


def _needs_cloudpickle(function: Callable[..., Any]) -> UsageError:
    name = getattr(function, "__qualname__", None) or repr(function)
    return UsageError(
        f"jobs cannot import {name} by name",
        "Move it to the top of a module or a script, or install cloudpickle here.",
    )


@contextlib.contextmanager
def waiting_jobs() -> Iterator[list[Any]]:
    """Collect the jobs found while pickling, which is possible only in this context."""
    found: list[Any] = []
    token = _waited_for.set(found)
    try:
        yield found
    finally:
        _waited_for.reset(token)


def note_waiting(job: object) -> bool:
    """Collect a job that is pickled as an argument; False if jobs cannot be pickled now."""
    found = _waited_for.get()
    if found is not None:
        found.append(job)
    return found is not None


def dumps(value: object, *, by_value: bool = False) -> bytes:
    """Return a pickle for a job, with protocol 4 for older Pythons; raises UsageError."""
    try:
        if not by_value:
            return pickle.dumps(value, protocol=4)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise UsageError(
            f"an argument cannot be sent to a job: {error}",
            "Pass its parts, or the path of a file.",
        ) from error
    try:
        import cloudpickle
    except ImportError:
        function: Any = value[0] if isinstance(value, tuple) else value
        raise _needs_cloudpickle(function) from None
    content: bytes = cloudpickle.dumps(value, protocol=4)
    return content


def packed(content: bytes) -> bytes:
    """Return a pickle in the runner's file format."""
    return base64.b64encode(content) + b"\n"
