"""The logs of many trainers say what a person reads in them."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest

from hpcdash.services.metrics.joined import joined
from hpcdash.services.metrics.reader import MetricReader
from hpcdash.services.metrics.series import MetricLog

TRAINERS = tomllib.loads(Path(__file__).with_name("trainers.toml").read_text("utf-8"))["trainer"]
FEWEST = 60


def differences(trainer: dict[str, Any], pieces: int = 1) -> list[str]:
    """What is read otherwise than it was written down; the log comes in so many pieces."""
    content = trainer["log"].lstrip("\n").encode()
    size = -(-len(content) // pieces)
    reader, log = MetricReader(), MetricLog()
    for begin in range(0, len(content), size):
        log.append(reader.feed(content[begin : begin + size]))
    log.append(reader.feed(b"", is_end=True))
    axes, values = joined([log]).written(trainer["loss"])
    found = [
        tuple(point)
        for point in zip(axes[0].tolist(), axes[1].tolist(), values.tolist(), strict=True)
    ]
    wanted = [tuple(map(float, point)) for point in trainer["points"]]
    said = (
        []
        if _same(found, wanted)
        else [f"{trainer['loss']}: {wanted} was read as {found}; names: {log.names}"]
    )
    last = (log.last_step, trainer.get("last_step"))
    said += [f"last step {last[1]} was read as {last[0]}"] if last[0] != last[1] else []
    doubt = (log.doubt, trainer.get("doubt", ""))
    return said + ([f"{doubt[1]!r} of the axis is {doubt[0]!r}"] if doubt[0] != doubt[1] else [])


def _same(found: list[tuple[float, ...]], wanted: list[tuple[float, ...]]) -> bool:
    return len(found) == len(wanted) and all(
        (math.isnan(a) and math.isnan(b)) or a == b
        for one, other in zip(found, wanted, strict=True)
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("pieces", [1, 7])
def test_the_logs_of_sixty_trainers_say_what_a_person_reads_in_them(pieces: int) -> None:
    assert len({trainer["name"] for trainer in TRAINERS}) == len(TRAINERS) >= FEWEST
    wrong = {
        trainer["name"]: said for trainer in TRAINERS if (said := differences(trainer, pieces))
    }
    assert not wrong, "\n".join(f"{name}: {'; '.join(said)}" for name, said in wrong.items())


@pytest.mark.parametrize(
    "worker",
    [
        "(pid=7)",
        "(Trainer pid=7, ip=10.0.0.4)",
        "(train_fn pid=7)",
        "(Worker(rank=0) pid=7, ip=::1)",
    ],
)
@pytest.mark.parametrize(
    "repeated", ["", " [repeated 3x across cluster]", " [repeated 2x across cluster] (SET_IT=0)"]
)
def test_what_a_driver_writes_around_its_workers_lines_is_no_metric(
    worker: str, repeated: str
) -> None:
    lines = [
        f"\x1b[36m{worker}\x1b[0m step {step} loss {1 / step}{repeated}\n" for step in range(1, 500)
    ]
    log = MetricLog()
    log.append(MetricReader().feed("".join(lines).encode()))
    axes, values = joined([log]).written("loss")
    assert list(log.names) == ["loss"]
    assert (axes[0].tolist(), values.tolist()) == (
        list(range(1, 500)),
        [1 / step for step in range(1, 500)],
    )
