"""Logs of fixtures/metrics with what must be read from them, and batches as plain values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from hpcdash.services.metrics.batch import MetricBatch

FOLDER = Path(__file__).parents[3] / "fixtures" / "metrics"
NAMES = sorted(path.stem for path in FOLDER.glob("*.log"))
CONTENTS = {name: (FOLDER / f"{name}.log").read_bytes() for name in NAMES}
# Formats in one log, quiet lines between them; no more metrics than a reader takes of one log.
_MIXED = (
    "hf-trainer",
    "nanogpt",
    "keras",
    "olmo",
    "lightning",
    "composer",
    "plain",
    "keras",
    "jsonl",
)
MIXED = b"".join(CONTENTS[name][:8000] + b"\n" + CONTENTS["quiet"][:1200] for name in _MIXED)


def expected(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return loaded


def samples(batches: Sequence[MetricBatch]) -> list[str]:
    """Each sample of batches that follow one another, written down: nan equals nan that way."""
    rows: list[str] = []
    for batch in batches:
        values: list[dict[str, float]] = [{} for _ in batch.offsets]
        for name, points in batch.metrics.items():
            assert bool((np.diff(points.samples) > 0).all())
            for position, value in zip(
                points.samples.tolist(), points.values.tolist(), strict=True
            ):
                values[position][name] = value
        columns = zip(
            batch.offsets.tolist(),
            *batch.axes.tolist(),
            values,
            strict=True,
        )
        rows += [repr((*places, sorted(said.items()))) for *places, said in columns]
    return rows


def expected_samples(name: str) -> list[str]:
    """As `samples`, without the offsets."""
    return [
        repr(
            (
                *(s.get(place, nan) for place in ("step", "epoch", "tokens", "time")),
                sorted(s["values"].items()),
            )
        )
        for s in expected(name)["samples"]
    ]


def without_offsets(rows: list[str]) -> list[str]:
    return ["(" + row.partition(", ")[2] for row in rows]
