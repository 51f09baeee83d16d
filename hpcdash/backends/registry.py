"""The schedulers that are driven over any transport, the one to be tried first before the others."""

from __future__ import annotations

from hpcdash.backends.base import Backend, RequestField
from hpcdash.backends.pbs.backend import BACKEND as PBS
from hpcdash.backends.slurm.backend import BACKEND as SLURM

BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (SLURM, PBS)}
# What requests can hold for one of them alone, by their keys.
REQUEST_FIELDS: dict[str, RequestField] = {
    field.name: field for backend in BACKENDS.values() for field in backend.scripts.request_fields
}
