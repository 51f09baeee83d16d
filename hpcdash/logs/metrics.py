"""What a training's log says of its metrics: samples, column by column.

A sample is what a log says at one step: `loss 3.21, time 12ms`. The same metric of several lines is a series.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Points:
    """One metric: its values, and of which samples they are (positions in the batch, ascending).

    nan and inf are values that the log said.
    """

    samples: Integers
    values: Floats


@dataclass(frozen=True, slots=True)
class MetricBatch:
    """The samples of a stretch of a log, in its order; every array is as long as `offsets`.

    `offsets` are where in the log a sample's first line begins, in bytes. `steps`, `epochs`, `tokens` and `times`
    (epoch seconds, of a time that stands in the line) are nan where the log does not say them. `last_step` is the final
    step that the log names (`iteration 1000/ 95367`), None where it names none. `format` is the reader's word for the
    format.
    """

    offsets: Integers
    steps: Floats
    epochs: Floats
    tokens: Floats
    times: Floats
    metrics: Mapping[str, Points] = field(default_factory=dict)
    last_step: int | None = None
    format: str = ""
