"""Folders of this user's state on this machine, and what lies in them."""

from __future__ import annotations

import sys
from pathlib import Path

import platformdirs
from msgspec.structs import replace

from hpcdash.config.read import path_variable
from hpcdash.config.settings import PoolSettings
from hpcdash.embedded import FOLDER_VARIABLE
from hpcdash.embedded.machine import node_name
from hpcdash.private_files import require_own
from hpcdash.services.state.journal import Journal


def cache_root() -> Path:
    """Return the folder of snapshots cached between runs; HPCDASH_CACHE overrides it."""
    return path_variable("HPCDASH_CACHE") or platformdirs.user_cache_path("hpcdash")


def state_root() -> Path:
    """Return the folder of state.db, the journal and stored scripts; HPCDASH_STATE overrides it.

    Raises NotPrivate.
    """
    named = path_variable("HPCDASH_STATE")
    folder = named or platformdirs.user_state_path("hpcdash")
    # Only someone who controls the home could replace the usual place.
    require_own(folder, "HPCDASH_STATE", may_be_replaced=named is None)
    return folder


def journal() -> Journal:
    """Return the journal of actions from this machine on all clusters."""
    return Journal(state_root() / "journal.jsonl")


def queue_folder() -> Path:
    """Return the folder of this machine's embedded queue; HPCDASH_QUEUE overrides it.

    Machines may share a home, so the folder has the node's name.
    """
    return path_variable(FOLDER_VARIABLE) or state_root() / "queue" / node_name()


def queue_program(folder: Path) -> tuple[str, ...]:
    """The argv before a command of the embedded queue in a folder."""
    # -P: a folder that one happens to be in must not stand for the package.
    return (sys.executable, "-P", "-m", "hpcdash.embedded", str(folder))


def pool_folder(name: str) -> Path:
    """Return the folder in which the coordinator of a shared pool stores its state."""
    return state_root() / "share" / name


def with_state_file(pool: PoolSettings) -> PoolSettings:
    """With the file that its coordinator publishes where the configuration names none."""
    return replace(pool, state_file=pool.state_file or str(pool_folder(pool.name) / "pool.json"))
