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
# The jobs that stand among the arguments that are being pickled: each becomes its result there.
_waited_for: contextvars.ContextVar[list[Any] | None] = contextvars.ContextVar(
    "waited_for", default=None
)


class Code(Struct, frozen=True):
    """Location of a function for a job: `module` and `function` by name, `main` its program file.

    `folder` is sent with the job, which starts in it; None: no folder is. `staged` are files of the
    launch's folder. With `by_value` the function is in the pickle of its arguments.
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

    Raises UsageError for code that cannot be there.
    """
    if packaging not in PACKAGINGS:
        raise UsageError(f"packaging: {packaging!r} is not one of {', '.join(PACKAGINGS)}")
    main = sys.modules.get("__main__")
    main_file: str | None = getattr(main, "__file__", None)
    is_sent = packaging == "source" or not is_here
    if is_by_value(function):
        code = Code(
            "hpcdash.job.pickles", "call_packed", staged=_pickler_zip(function), by_value=True
        )
        root = Path(main_file).absolute().parent if main_file else Path.cwd()
        if packaging not in ("auto", "source") or (
            is_sent and packaging == "auto" and not main_file
        ):
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
    if (
        found is None
        or packaging in ("wheel", "container")
        or (packaging == "none" and not is_here)
    ):
        if main_file or packaging == "wheel":
            where = main_file or module
            raise UsageError(
                f"packaging: the job would not have {name} of {where}",
                "Move it into a project's module.",
            )
        return Code(module, name)
    if main_file is None:
        return (
            Code(module, name, folder=found)
            if is_sent
            else Code(module, name, sys_path=(str(found),))
        )
    stem = Path(main_file).stem
    module = stem if stem.isidentifier() and stem not in sys.stdlib_module_names else "__mp_main__"
    if is_sent:
        return Code(module, name, Path(main_file).name, folder=found)
    return Code(module, name, str(Path(main_file).absolute()), (str(found),))


def is_by_value(function: Callable[..., Any]) -> bool:
    """Whether no job can import it by a name: a lambda, a function within another, one of a
    notebook, an object.
    """
    function = inspect.unwrap(function)
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", "<object>")
    if not module or "<" in name:
        return True
    return module == "__main__" and getattr(sys.modules.get("__main__"), "__file__", None) is None


def refuse_import_time(function: Callable[..., Any]) -> None:
    """Raises UsageError where the caller runs while the function's own file is imported: its job
    would submit again.
    """
    function = inspect.unwrap(function)
    if is_by_value(function) or (code := getattr(function, "__code__", None)) is None:
        return
    frame = inspect.currentframe()
    while frame is not None:
        is_top = frame.f_code.co_name == "<module>" and frame.f_globals is function.__globals__
        if is_top and frame.f_code.co_filename == code.co_filename and not _is_below_an_if(frame):
            file = Path(code.co_filename).name
            raise UsageError(
                f"{file}:{frame.f_lineno} submits {function.__name__} as {file} is imported, which "
                "the job does too",
                'Write what submits below: if __name__ == "__main__":',
            )
        frame = frame.f_back


def _is_below_an_if(frame: FrameType) -> bool:
    """Whether the program's own file is at a statement that its import leaves out."""
    if frame.f_globals.get("__name__") != "__main__":
        return False
    try:
        tree = ast.parse("".join(linecache.getlines(frame.f_code.co_filename)))
    except SyntaxError:
        return True
    lines = [
        (one.lineno, one.end_lineno or one.lineno)
        for one in tree.body
        if not isinstance(one, ast.If)
    ]
    return not any(first <= frame.f_lineno <= last for first, last in lines)


def _root(module: str, main_file: str | None) -> Path | None:
    """The folder that a module is imported from; None for what is installed."""
    if main_file:
        return Path(main_file).absolute().parent
    found = sys.modules.get(module) or importlib.import_module(module)
    if (file := getattr(found, "__file__", None)) is None:
        return None
    path = Path(file).resolve()
    installed = {
        Path(sysconfig.get_path(one)).resolve()
        for one in ("stdlib", "platstdlib", "purelib", "platlib")
    }
    if any(folder in path.parents for folder in installed):
        return None
    depth = module.count(".") + (path.name == "__init__.py")
    return path.parents[depth]


def _build_wheel(root: Path) -> dict[str, bytes]:
    """The wheel of the project that a folder is of."""
    project = next(
        (
            one
            for one in (root, *root.parents)
            if any((one / name).exists() for name in _PROJECT_FILES)
        ),
        None,
    )
    if project is None:
        raise UsageError(
            f"packaging: there is no pyproject.toml in {root} or above it",
            'Write packaging = "source".',
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
                f"packaging: no wheel of {project} could be built: {excerpt(built.stderr)}"
            )
        return {wheels[0].name: wheels[0].read_bytes()}


def _pickler_zip(function: Callable[..., Any]) -> dict[str, bytes]:
    """cloudpickle, which reads functions by value: it need not be installed in the job."""
    spec = importlib.util.find_spec("cloudpickle")
    if spec is None or spec.origin is None:
        raise _needs_cloudpickle(function)
    content = io.BytesIO()
    folder = Path(spec.origin).parent
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.glob("*.py")):
            archive.writestr(
                zipfile.ZipInfo(f"cloudpickle/{file.name}", (1980, 1, 1, 0, 0, 0)),
                file.read_bytes(),
            )
    return {"cloudpickle.zip": content.getvalue()}


def _needs_cloudpickle(function: Callable[..., Any]) -> UsageError:
    name = getattr(function, "__qualname__", None) or repr(function)
    return UsageError(
        f"{name} has no name that a job could import it by",
        "Move it to the top of a module or a script, or install cloudpickle here.",
    )


@contextlib.contextmanager
def waiting_jobs() -> Iterator[list[Any]]:
    """Collects jobs found while pickling; only inside this block can they be pickled."""
    found: list[Any] = []
    token = _waited_for.set(found)
    try:
        yield found
    finally:
        _waited_for.reset(token)


def note_waiting(job: object) -> bool:
    """Whether a job may be pickled now, as an argument; it is waited for then."""
    found = _waited_for.get()
    if found is not None:
        found.append(job)
    return found is not None


def dumps(value: object, *, by_value: bool = False) -> bytes:
    """A pickle for a job; raises UsageError for what cannot be pickled.

    Protocol 4: the job's Python may be older.
    """
    try:
        if not by_value:
            return pickle.dumps(value, protocol=4)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise UsageError(
            f"an argument cannot be sent to a job: {error}",
            "Pass what it is made of, or the path of a file.",
        ) from error
    try:
        import cloudpickle
    except ImportError:
        raise _needs_cloudpickle(value[0] if isinstance(value, tuple) else value) from None  # type: ignore[arg-type]
    content: bytes = cloudpickle.dumps(value, protocol=4)
    return content


def packed(content: bytes) -> bytes:
    """A pickle as the runner reads it from a file."""
    return base64.b64encode(content) + b"\n"
