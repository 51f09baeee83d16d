"""The schedulers that are driven over any transport, by name, the one to be tried first before the others.

A backend is loaded when one is asked for: the command line needs their names alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdash.backends.base import Backend, RequestField

# Each is the folder of a backend, whose module `backend` has the BACKEND.
NAMES = ("slurm", "pbs")
BACKENDS: dict[str, Backend]
# What requests can hold for one of them alone, by their keys.
REQUEST_FIELDS: dict[str, RequestField]


def __getattr__(name: str) -> object:
    if name not in ("BACKENDS", "REQUEST_FIELDS"):
        raise AttributeError(name)
    loaded: list[Backend] = [import_module(f"hpcdash.backends.{folder}.backend").BACKEND for folder in NAMES]
    fields = {field.name: field for backend in loaded for field in backend.scripts.request_fields}
    globals().update(BACKENDS={backend.name: backend for backend in loaded}, REQUEST_FIELDS=fields)
    return globals()[name]
