"""The schedulers by name, the one to be tried first before the others.

A backend is loaded when it is asked for: the command line needs the names alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdash.backends.base import Backend, LocalConfiguration, RequestField

# Each is the folder of a backend: its module `backend` has the BACKEND, and on login nodes `probe`
# its LOCAL_CONFIGURATION.
# Those that commands of a login node ask, over any transport.
ON_LOGIN_NODES = ("slurm", "pbs")
# Those that a URL leads to: --NAME URL, and NAME = "URL" in a cluster's table.
OVER_HTTP = ("ray",)
NAMES = (*ON_LOGIN_NODES, *OVER_HTTP)
# Keys in a cluster's table that name one of the clusters of a scheduler's site.
SITE_CLUSTERS = {"slurm_cluster": "slurm"}


@cache
def load_backend(name: str) -> Backend:
    """One of NAMES."""
    backend: Backend = import_module(f"hpcdash.backends.{name}.backend").BACKEND
    return backend


@cache
def request_fields(names: tuple[str, ...] = NAMES) -> Mapping[str, RequestField]:
    """Return the request fields that belong to one scheduler alone, by their keys."""
    return {
        field.name: field for name in names for field in load_backend(name).scripts.request_fields
    }


def local_configuration(name: str) -> LocalConfiguration:
    """Return the configuration on a machine that names the scheduler's server; the rest of the
    backend is not loaded.
    """
    found: LocalConfiguration = import_module(f"hpcdash.backends.{name}.probe").LOCAL_CONFIGURATION
    return found
