"""The functions to submit in a folder of their own, and an embedded queue to run them on."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import hpcdash
from hpcdash.domain.tables import Kind
from hpcdash.services.cluster.poller import Pace
from tests.support.program import Program, home_with

CALLS = Path(__file__).with_name("calls.py")


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module of `calls.py`, imported from a folder that a job finds it in."""
    folder = tmp_path / "code"
    folder.mkdir()
    shutil.copy(CALLS, folder / "client_calls.py")
    monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module("client_calls")
    del sys.modules["client_calls"]


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """A home of its own, with an embedded queue, for this process too."""
    variables = {name: str(tmp_path / name.lower()) for name in ("HPCDASH_QUEUE", "HPCDASH_STATE")}
    program = Program(home_with(tmp_path / "home"), (), variables)
    for name, value in program.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(program.home)
    return program


@pytest.fixture
def queue(person: Program) -> Iterator[hpcdash.Cluster]:
    with hpcdash.connect("local") as cluster:
        # As soon as it can be.
        cluster.session.poller.pace = Pace(dict.fromkeys(Kind, 0.2), controller_share=0.5)
        yield cluster
