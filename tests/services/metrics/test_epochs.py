"""Steps that a log counts within its epochs count on, from the first epoch, however the log is
read.
"""

from __future__ import annotations

import pytest

from hpcdash.services.metrics.batch import MetricBatch
from hpcdash.services.metrics.joined import JoinedRun, joined
from hpcdash.services.metrics.reader import MetricReader
from hpcdash.services.metrics.series import MetricLog

STEPS, EPOCHS = 40, 5
# A line, the number of the first epoch, and what is added to the steps of an epoch as they stand in
# the line.
LINES = {
    "from 1": ("Epoch {e}/{of}, step {s}/40, loss: {v}", 1, False),
    "from 0": ("Epoch {e}/{of}, step {s}/40, loss: {v}", 0, False),
    "from 0, in brackets": ("[{e}/{of}][{s}/40] Loss_D: {v}", 0, False),
    "over all epochs": ("epoch: {e}, iter: {s}/200, loss: {v}", 1, True),
    "over all, and the epochs are known": ("epoch: {e}/{of}, iter: {s}/200, loss: {v}", 1, True),
    "a bar from 1": ("Epoch {e}: {p:3d}%|#  | {s}/40 [00:01<00:10, 5.0it/s, loss={v}]", 1, False),
    "a bar from 0": ("Epoch {e}: {p:3d}%|#  | {s}/40 [00:01<00:10, 5.0it/s, loss={v}]", 0, False),
}


def batches(name: str, epochs: range = range(EPOCHS), every: int = 4) -> list[MetricBatch]:
    """A batch a line; offsets are those in the whole log."""
    line, first, is_overall = LINES[name]
    text, found = b"", []
    for epoch in epochs:
        for step in range(every, STEPS + 1, every):
            written = step + epoch * STEPS * is_overall
            said = line.format(
                e=epoch + first,
                of=EPOCHS,
                s=written,
                p=100 * step // STEPS,
                v=9 - epoch - step / 1000,
            )
            reader = MetricReader(at=len(text), is_cut=False)
            found.append(reader.feed(f"{said}\n".encode(), is_end=True))
            text += f"{said}\n".encode()
    return found


def make_run(
    parts: list[MetricBatch], *, is_backwards: bool = False, **limits: int
) -> tuple[MetricLog, JoinedRun]:
    log = MetricLog(**limits)
    for batch in reversed(parts) if is_backwards else parts:
        (log.prepend if is_backwards else log.append)(batch)
    return log, joined([log])


@pytest.mark.parametrize("is_backwards", [False, True])
@pytest.mark.parametrize("name", LINES)
def test_steps_count_on_over_the_epochs_forwards_and_backwards(
    name: str, is_backwards: bool
) -> None:
    log, run = make_run(batches(name), is_backwards=is_backwards)
    (loss,) = run.names
    assert run.series(loss).x.tolist() == [float(step) for step in range(4, STEPS * EPOCHS + 1, 4)]
    assert len(run.attempts) == 1
    assert log.last_step == (None if "bar" in name else STEPS * EPOCHS)
    assert log.doubt == ""
    _, folded = make_run(
        batches(name), is_backwards=is_backwards, exact_points=0, cells=8, border_bytes=64
    )
    series = folded.series(loss)
    assert (series.x[1:] > series.x[:-1]).all()
    assert series.x[-1] == STEPS * EPOCHS


def test_what_is_added_later_may_show_that_the_first_epoch_is_0_and_moves_what_was_there() -> None:
    log = MetricLog()
    older, newer = batches("from 0")[:20], batches("from 0")[20:]
    for batch in newer:
        log.append(batch)
    before = log.snapshot()
    assert (joined([log]).series("loss").x[0], log.doubt) == (
        STEPS + 4.0,
        "if epoch 1 is the first",
    )
    for batch in reversed(older):
        log.prepend(batch)
    assert joined([log]).series("loss").x[20] == 2 * STEPS + 4.0
    # What was given out before stays.
    assert joined([before]).series("loss").x[0] == STEPS + 4.0


def test_a_restart_goes_back_to_its_epoch() -> None:
    said = [(epoch, step) for epoch in range(3) for step in range(4, STEPS + 1, 4)]
    said += [(1, step) for step in range(4, STEPS + 1, 4)]
    line = LINES["from 0"][0]
    content = "".join(line.format(e=epoch, of=EPOCHS, s=step, v=1) + "\n" for epoch, step in said)
    _, run = make_run([MetricReader().feed(content.encode(), is_end=True)])
    assert [(one.first[0], one.last[0]) for one in run.attempts] == [(4.0, 120.0), (44.0, 80.0)]


@pytest.mark.parametrize("name", ["from 0", "from 1", "from 0, in brackets"])
def test_a_log_that_goes_on_in_a_later_epoch_counts_from_the_first_of_the_log_before_it(
    name: str,
) -> None:
    first, _ = make_run(batches(name, range(3)))
    second, alone = make_run(batches(name, range(3, 5)))
    assert (first.doubt, second.doubt) == (
        "",
        "" if name == "from 1" else "if epoch 1 is the first",
    )
    before = alone.series(alone.names[0]).x.tolist()
    run = joined([first, second])
    assert run.series(run.names[0]).x.tolist() == [
        float(step) for step in range(4, STEPS * EPOCHS + 1, 4)
    ]
    assert (run.doubt, run.last_step) == ("", STEPS * EPOCHS)
    # What each says by itself stays.
    assert alone.series(alone.names[0]).x.tolist() == before


@pytest.mark.parametrize(
    ("content", "doubt"),
    [
        (
            "Epoch 7/10, step 3/40, loss: 2\nEpoch 7/10, step 4/40, loss: 2\n",
            "if epoch 1 is the first",
        ),
        ("Epoch 10/10, step 3/40, loss: 2\n", ""),
        ("Epoch [7][3/40]\tloss: 2\n", ""),
        ("epoch 7, iter 300/4000, loss: 2\n", "of its epoch or of all"),
        ("Epoch 1/10, step 3/40, loss: 2\nglobal_step 5, loss: 2\n", "counted in two ways"),
        ("Epoch 1/10, step 3/40, loss: 2\nEpoch 1/10, step 3/20, loss: 2\n", "counted in two ways"),
        ("step 3/40, loss: 2\n", ""),
        ("global_step: 3 epoch: 7 loss: 2\n", ""),
    ],
)
def test_what_the_lines_leave_open_is_told(content: str, doubt: str) -> None:
    log, run = make_run([MetricReader().feed(content.encode(), is_end=True)])
    assert log.doubt == run.doubt == doubt


@pytest.mark.parametrize(
    ("content", "last_step"),
    [
        # Of the first epoch alone nobody knows whether 100 are its steps or all.
        ("Epoch 1 | Step 10/100 | Loss 2.5\n", None),
        ("Epoch 1 | Step 10/100 | Loss 2.5\nEpoch 2 | Step 5/100 | Loss 2.5\n", None),
        ("Epoch 1 | Step 10/100 | Loss 2.5\nEpoch 2 | Step 15/100 | Loss 2.5\n", 100),
        ("Epoch 1/3 | Step 10/100 | Loss 2.5\n", 300),
        ("Epoch 0/3 | Step 10/100 | Loss 2.5\n", 300),
        ("Epoch 0/3 | Step 10/100 | Loss 2.5\nEpoch 3/3 | Step 10/100 | Loss 2.5\n", 400),
        ("Epoch 0.5 | Step 10/100 | Loss 2.5\n", 100),
        ("Step 10/100 | Loss 2.5\n", 100),
    ],
)
def test_the_last_step_is_that_of_all_epochs_where_the_log_names_it(
    content: str, last_step: int | None
) -> None:
    assert make_run([MetricReader().feed(content.encode(), is_end=True)])[0].last_step == last_step
