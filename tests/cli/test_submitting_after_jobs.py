"""The jobs that a submission waits for, as the scheduler names them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from hpcdash.backends.pbs.backend import pbs_backend
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.slurm.backend import BACKEND as SLURM
from hpcdash.backends.submissions import Submission
from hpcdash.cli.submit import _after_in_full

WANTED = Submission(b"#!/bin/sh\n", "job.sh", after=("12",))


def session(backend: Any, asked: list[tuple[str, ...]]) -> Any:
    async def rows_of(job_ids: tuple[str, ...]) -> list[dict[str, str]]:
        asked.append(job_ids)
        return [{"id": "12[3].pbs01", "array_id": "12[].pbs01"}]

    return cast(
        "Any", SimpleNamespace(store=SimpleNamespace(backend=backend), actions=SimpleNamespace(rows_of=rows_of))
    )


@pytest.mark.parametrize("backend", [SLURM, pbs_backend(Dialect.SLURM_WRAPPERS)])
async def test_where_an_id_is_whole_as_it_is_written_nobody_is_asked(backend: Any) -> None:
    asked: list[tuple[str, ...]] = []
    assert await _after_in_full(WANTED, session(backend, asked)) == WANTED
    assert asked == []


async def test_where_it_may_be_an_array_s_the_queue_tells() -> None:
    asked: list[tuple[str, ...]] = []
    wanted = await _after_in_full(WANTED, session(pbs_backend(Dialect.OPENPBS), asked))
    assert (wanted.after, asked) == (("12[].pbs01",), [("12",)])
