"""Fixtures that give tests a real Slurm: started on first use, one a session."""

from __future__ import annotations

import faulthandler
import gc
import importlib.util
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

# Tests import tests.support by its full name, whatever folder pytest was started in.
sys.path.insert(0, str(Path(__file__).parent.parent))

# pyarrow looks for dateutil whenever it infers a type. Where it is missing, each look went through
# all of sys.path.
if importlib.util.find_spec("dateutil") is None:
    sys.modules["dateutil"] = None  # type: ignore[assignment]

from tests.support import suite, waiting
from tests.support.play_case import parse_cases_once
from tests.support.slurm import SlurmLab, free_base_port, why_no_lab

_LAB_FIXTURES = {"slurm_lab", "clean_slurm"}
_LABS = 2
# Folders whose tests start processes.
_SYSTEM_FOLDERS = {"behaviour", "cli", "client", "e2e", "embedded", "slurm", "transport", "web"}
_STARTS_A_PROCESS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
_stderr = pytest.StashKey[int]()

# How long one example takes says more of the machine than of what is tested.
settings.register_profile("hpcdash", deadline=None, max_examples=30)
settings.register_profile("long", deadline=None, max_examples=1000)
settings.load_profile("hpcdash")

# A shell has what it starts in the background ignore ctrl+c and ctrl+\\, and nohup a hangup: every
# program that is tested would ignore them too. A handler, even one that does nothing, is not
# inherited.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "hard_timeout",
        "seconds after which the process of a test is ended",
        type="string",
        default="0",
    )
    parser.addoption(
        "--unit",
        action="store_true",
        help="run the tests that start no process; one that does fails",
    )
    parser.addoption(
        "--journeys",
        action="store_true",
        help="of the tests that start processes run the journeys alone, and no slow ones",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Have all that the tests start end with them."""
    parse_cases_once()
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        if hasattr(config, "workerinput"):
            suite.begin_worker()
        else:
            suite.begin()
        config.stash[_stderr] = os.dup(2)


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[object]:
    """With --unit, refuse every process from here to the end of the last test."""
    refusing = session.config.getoption("--unit")

    def refuse(event: str, arguments: tuple[object, ...]) -> None:
        if refusing and event in _STARTS_A_PROCESS:
            pytest.fail(f"{event}{arguments[:2]}: a test that starts a process is marked `system`")

    if refusing:
        sys.addaudithook(refuse)
    try:
        return (yield)
    finally:
        refusing = False


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End the worker of a test that its limit does not end: asyncio may swallow what is raised
    then.
    """
    faulthandler.dump_traceback_later(
        float(item.config.getini("hard_timeout")), exit=True, file=item.config.stash[_stderr]
    )
    mark = item.get_closest_marker("timeout")
    guard = (
        mark.args[0] if mark else item.config.getoption("timeout") or item.config.getini("timeout")
    )
    waiting.begin_test(float(guard))
    try:
        return (yield)
    finally:
        waiting.end_test()
        faulthandler.cancel_dump_traceback_later()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Have --unit and --journeys read no file of which they run nothing, and --unit none of the
    screen, whose tests take minutes.
    """
    folders = _system_folders(config)
    if config.getoption("--unit"):
        return True if collection_path in folders | {config.rootpath / "tests" / "ui"} else None
    if config.getoption("--journeys") and not folders.isdisjoint(collection_path.parents):
        is_test = collection_path.match("test_*.py")
        return True if is_test and "journey" not in collection_path.read_text("utf-8") else None
    return None


def _system_folders(config: pytest.Config) -> set[Path]:
    return {config.rootpath / "tests" / name for name in _SYSTEM_FOLDERS}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give markers to tests that use the lab or start processes; with several workers two have the
    lab, one each.

    The longest come first: groups, which one worker has, then what starts processes.
    """
    folders = _system_folders(config)
    for item in items:
        if not folders.isdisjoint(item.path.parents):
            item.add_marker("system")
        if _uses_lab(item):
            item.add_marker("slurm")
    left_out = [item for item in items if _is_left_out(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not _is_left_out(item)]
    on_slurm = [item for item in items if item.get_closest_marker("slurm")]
    files = sorted({item.path for item in on_slurm})
    labs = 1 if os.environ.get("HPCDASH_SLURM_LAB") or config.getoption("--journeys") else _LABS
    for item in on_slurm:
        item.add_marker(pytest.mark.xdist_group(f"slurm{files.index(item.path) % labs}"))
    firsts = ("slurm", "xdist_group", "system")
    items.sort(
        key=lambda item: next(
            (place for place, name in enumerate(firsts) if item.get_closest_marker(name)), 3
        )
    )


def _is_left_out(item: pytest.Item) -> bool:
    config, on_system = item.config, any(map(item.get_closest_marker, ("system", "slurm")))
    is_slow = any(map(item.get_closest_marker, ("slow", "long")))
    if config.getoption("--unit"):
        return on_system or is_slow
    is_journey = item.get_closest_marker("journey") is not None
    return config.getoption("--journeys") and (is_slow or (on_system and not is_journey))


class _ByFile(LoadGroupScheduling):
    """A worker has a file at a time, or a whole group, in the order above: what a module sets up is
    set up once.

    By the test, xdist goes through all that a worker has ever had at each of eleven thousand.
    """

    def _split_scope(self, nodeid: str) -> str:
        return super()._split_scope(nodeid).partition("::")[0]

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        scope = self._split_scope(self.registered_collections[node][item_index])
        super().mark_test_complete(node, item_index, duration)
        if all(self.assigned_work[node][scope].values()):
            del self.assigned_work[node][scope]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _ByFile:
    return _ByFile(config, log)


def pytest_collection_finish() -> None:
    """Have no collection of garbage go through all that was loaded and collected, nor one begin at
    every turn.

    In tests of screens that took half of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


def _uses_lab(item: pytest.Item) -> bool:
    return bool(_LAB_FIXTURES & set(getattr(item, "fixturenames", ())))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs Slurm where there is none; under CI, where there must be one, fail
    it.
    """
    if item.get_closest_marker("slurm") is None or (reason := why_no_lab()) is None:
        return
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def slurm_lab() -> Iterator[SlurmLab]:
    """The session's Slurm, as it was left by the test before: submit what you need, look only at
    that.

    HPCDASH_SLURM_LAB=DIR, of `python -m tests.support.slurm start DIR`, has this lab used and left
    running.
    """
    kept = os.environ.get("HPCDASH_SLURM_LAB")
    if kept:
        lab = SlurmLab.attach(kept)
        lab.start()
        yield lab
        return
    port = free_base_port()
    # Jobs of two labs that write to one home have different ids.
    lab = SlurmLab(
        # pytest's own temporary folders are closed to the lab's users.
        tempfile.mkdtemp(prefix="hpcdash-slurm-"),
        base_port=port,
        users=suite.people(),
        extra_conf=f"FirstJobId={port}",
    )
    try:
        lab.start()
        yield lab
    finally:
        lab.stop(wipe=True)


@pytest.fixture
def clean_slurm(slurm_lab: SlurmLab) -> Iterator[SlurmLab]:
    """The session's Slurm with no job in its queue and its nodes and daemons up, before the test
    and after it.
    """
    slurm_lab.reset()
    yield slurm_lab
    slurm_lab.reset()
