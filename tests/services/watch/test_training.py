"""What a training's log tells from round to round: nan, spikes each once, a stall, and whether it
ends in its time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from hpcdash.config.watch_settings import LOSS_KINDS, LossesRule
from hpcdash.domain.alerts import Finding, Severity
from hpcdash.services.files import Chunk, FileStat
from hpcdash.services.watch.rules.losses import Course, find_late_end, find_losses, read_course
from hpcdash.services.watch.state import LogTail
from hpcdash.services.watch.training import MAX_POINTS, read_on

NOW = 1_790_000_000.0
JOB = {"id": "7", "name": None}
STEPS = 5000
NOISE = random.Random(7)


def lines(steps: Iterable[int], loss: Any = None, *, stamped: bool = False) -> bytes:
    written = []
    for step in steps:
        value = loss(step) if loss is not None else 2 + math.exp(-step / 500) + NOISE.gauss(0, 0.02)
        stamp = f"[{datetime.fromtimestamp(NOW + step, UTC):%Y-%m-%d %H:%M:%S}] " if stamped else ""
        written.append(
            f"{stamp}iteration {step}/{STEPS} | lm loss: {value:.6E} | grad norm: 0.9 |\n"
        )
    return "".join(written).encode()


class Log:
    """A log that is looked at round by round, as the script does it; what is remembered goes
    through JSON.
    """

    def __init__(self, most_bytes: int = 1 << 20) -> None:
        self.content = b""
        self.tail: LogTail | None = None
        self.now = NOW
        self.most = most_bytes
        self.sent = 0
        self.identity = "1:2"

    def round(
        self, added: bytes = b"", *, age: float | None = 0.0, seconds: float = 600
    ) -> list[Finding]:
        self.content += added
        self.now += seconds
        begin = 0 if self.tail is None else self.tail.read_from
        if self.tail is not None and self.tail.is_done and self.tail.read_to == len(self.content):
            begin = len(self.content)
        begin = max(begin, len(self.content) - self.most)
        written_at = 0.0 if age is None else self.now - age
        stat = FileStat(self.identity, len(self.content), written_at, age_seconds=age)
        piece = Chunk(stat, begin, self.content[begin:])
        self.sent += len(piece.content)
        tail = read_on(self.tail, piece, self.now)
        self.tail = msgspec.json.decode(msgspec.json.encode(tail), type=LogTail)
        found = find_losses(JOB, self.tail, self.now, LossesRule(kinds=LOSS_KINDS))
        self.tail = msgspec.json.decode(msgspec.json.encode(self.tail), type=LogTail)
        return found


def spiked(step: int) -> float:
    return 2 + NOISE.gauss(0, 0.02) + (3 if 640 <= step < 650 else 0)


def test_nan_is_grave_until_there_are_numbers_again_and_then_no_more() -> None:
    log = Log()
    assert log.round(lines(range(1, 200))) == []
    (found,) = log.round(lines(range(200, 240), lambda step: float("nan")))
    assert (found.severity, found.is_moment) == (Severity.CRITICAL, False)
    assert found.text.startswith("job 7: lm loss: nan first at 200 ")
    assert found.next_step.startswith(
        "hpcdash cancel 7, and resume from the newest checkpoint before step 200. "
    )
    assert "hpcdash save-switch" not in found.next_step
    assert log.round(lines(range(240, 300), lambda step: float("nan")))[0].key == found.key
    assert log.round(lines(range(300, 330))) == []


def test_a_loss_that_megatron_leaves_out_once_it_is_nan_is_grave() -> None:
    log = Log()
    record = (
        " iteration {}/ 5000 | lm loss: {:.6E} | loss scale: 1.0 | grad norm: 0.731 | number "
        "of nan iterations: 0 |\n"
    )
    broken = (
        " iteration {}/ 5000 | loss scale: 1.0 | grad norm: nan | number of nan iterations: 1 |\n"
    )
    assert (
        log.round(
            "".join(
                record.format(step, 2 + NOISE.gauss(0, 0.02)) for step in range(1, 200)
            ).encode()
        )
        == []
    )
    found = log.round("".join(broken.format(step) for step in range(200, 214)).encode())
    assert {one.severity for one in found} == {Severity.CRITICAL}
    assert [one.text.partition(" (")[0] for one in found] == [
        "job 7: lm loss: not logged since 200, in 14 records: some trainers do not log a loss that "
        "is nan",
        "job 7: grad norm: nan first at 200",
    ]
    assert log.round("".join(record.format(step, 2.0) for step in range(214, 230)).encode()) == []


def test_a_loss_of_exactly_0_beside_a_gradient_that_is_nan_is_grave() -> None:
    log = Log()
    record = "{{'loss': {}, 'grad_norm': {}, 'learning_rate': 1e-4, 'epoch': {}}}\n"
    log.round(
        "".join(record.format(2 - step / 50, 1.2, step / 10) for step in range(1, 20)).encode()
    )
    found = log.round(
        "".join(record.format(0.0, "nan", step / 10) for step in range(20, 24)).encode()
    )
    assert [one.text.partition(" (")[0] for one in found] == [
        "job 7: loss: exactly 0 since 2",
        "job 7: grad_norm: nan first at 2",
    ]


def test_where_a_log_tells_epochs_alone_no_step_is_named_to_resume_from() -> None:
    log = Log()
    log.round(
        "".join(
            f"{{'loss': 2.{epoch % 10}, 'epoch': {epoch / 100}}}\n" for epoch in range(1, 200)
        ).encode()
    )
    (found,) = log.round(
        "".join(f"{{'loss': nan, 'epoch': {epoch / 100}}}\n" for epoch in range(200, 240)).encode()
    )
    assert found.next_step.startswith(
        "hpcdash cancel 7, and resume from the newest checkpoint before then. "
    )


def test_a_nan_that_passed_between_two_rounds_is_told_as_a_moment() -> None:
    log = Log()
    log.round(lines(range(1, 200)))
    (found,) = log.round(lines([200], lambda step: float("nan")) + lines(range(201, 260)))
    assert (found.severity, found.is_moment) == (Severity.WARNING, True)
    assert found.next_step == "hpcdash metrics 7; keep a checkpoint from before step 200"


def test_a_spike_is_one_moment_with_its_step_whatever_else_the_log_gets() -> None:
    log = Log(most_bytes=64_000)
    keys = set()
    for begin in range(1, 4801, 300):
        found = log.round(lines(range(begin, begin + 300), spiked))
        keys |= {one.key for one in found}
        assert not found or "spike at 640" in found[0].text
    assert keys == {"loss/spike lm loss@640/7"}
    assert log.tail is not None
    assert len(log.tail.metrics["lm loss"].x) // 8 <= MAX_POINTS + 64


def test_only_what_is_new_and_a_little_before_is_read() -> None:
    log = Log()
    log.round(lines(range(1, 3000)))
    log.sent = 0
    added = lines(range(3000, 3050))
    log.round(added)
    assert log.sent < len(added) + 20_000
    log.round(age=60)
    log.sent = 0
    log.round(age=660)
    assert log.sent == 0


def test_a_log_whose_beginning_is_too_long_to_be_read_is_read_from_its_end() -> None:
    log = Log(most_bytes=20_000)
    log.round(lines(range(1, 3000)))
    (found,) = log.round(lines(range(3000, 3010), lambda step: float("inf")), age=60)
    assert found.text.startswith("job 7: lm loss: inf first at 3 000")


def test_a_run_that_begins_anew_from_a_checkpoint_leaves_what_it_repeats_behind() -> None:
    log = Log()
    log.round(lines(range(1, 400)) + lines(range(400, 420), lambda step: float("nan")))
    assert log.round(lines(range(350, 430))) == []


def test_a_log_under_the_same_name_that_is_another_is_read_anew() -> None:
    log = Log()
    log.round(lines(range(1, 400), lambda step: float("nan")))
    log.content = b""
    assert log.round(lines(range(1, 50))) == []


def test_a_log_that_is_copied_for_each_look_stalls_as_one_that_is_looked_at_does() -> None:
    log = Log()
    log.round(lines(range(1000, 1100), stamped=True), age=None)
    log.identity = "1:3"
    (found,) = log.round(age=None)
    assert "no sample for 10 min after 1 099" in found.text


def test_divergence_is_grave_and_a_training_that_diverges_is_no_spike() -> None:
    log = Log()
    log.round(lines(range(1, 600)))
    kinds = [
        one.aspect.split()[0]
        for one in log.round(
            lines(range(600, 800), lambda step: 2 + (step - 600) / 20 + NOISE.gauss(0, 0.02))
        )
    ]
    assert kinds == ["divergence"]


def test_no_sample_for_much_longer_than_usual_is_a_stall_by_our_clock() -> None:
    log = Log()
    assert log.round(lines(range(1000, 1100), stamped=True), age=5) == []
    assert log.round(age=35, seconds=30) == []
    (found,) = log.round(b"still loading\n" * 20, age=0, seconds=270)
    assert "no sample for 5 min after 1 099; usually every 1 s" in found.text
    assert log.round(lines(range(1100, 1110), stamped=True)) == []


def test_samples_that_came_since_the_last_look_are_no_stall_though_the_servers_clock_is_behind() -> (
    None
):
    log, behind = Log(), 40 * 60.0
    log.round(lines(range(1000, 1100), stamped=True), age=behind)
    assert log.round(lines(range(1100, 1200), stamped=True), age=behind) == []
    assert log.tail is not None
    assert log.tail.stands[-1][0] - log.tail.stands[0][0] == 600
    (found,) = log.round(b"still loading\n", age=behind)
    assert "no sample for 10 min" in found.text


def test_what_was_cut_short_holds_more_back() -> None:
    log = Log()
    log.content = lines(range(1, 20))
    piece = Chunk(FileStat("1:2", len(log.content) + 50, age_seconds=60.0), 0, log.content)
    assert not read_on(None, piece, NOW).is_done


def test_kinds_that_are_not_watched_are_not_told() -> None:
    log = Log()
    log.round(lines(range(1, 200)) + lines(range(200, 240), lambda step: float("nan")))
    assert log.tail is not None
    assert find_losses(JOB, log.tail, log.now, LossesRule(kinds=("spike",))) == []


def row(limit_hours: float, ran_hours: float) -> dict[str, Any]:
    ends = datetime.fromtimestamp(NOW, UTC) + timedelta(hours=limit_hours - ran_hours)
    limit = int(limit_hours * 3600)
    return {"id": "7_1", "array_id": "7", "name": None, "ends_at": ends, "limit_seconds": limit}


def test_a_training_that_needs_more_tasks_than_wait_behind_it() -> None:
    # 30 h to go, 2 h left, tasks of 10 h: three more.
    stand = Course(step=0, last_step=1080, seconds_per_step=100)
    (found,) = find_late_end(row(10, 8), stand, NOW, waiting=1)
    assert "needs 3 more array tasks; 1 queued" in found.text
    assert "--array 1-2%1 --after 7_1" in found.next_step
    (found,) = find_late_end({**row(10, 8), "id": "7", "array_id": None}, stand, NOW, waiting=1)
    assert "needs 3 more jobs of this length; 1 queued" in found.text
    assert find_late_end(row(10, 8), stand, NOW, waiting=3) == []
    assert find_late_end(row(40, 8), stand, NOW, waiting=0) == []
    assert find_late_end(row(10, 8), Course(0, 1080), NOW, waiting=0) == []


def test_the_last_step_of_epochs_is_that_of_all_of_them() -> None:
    log = Log()
    line = "epoch: {}/10, step: {}/100, loss: {}\n"
    log.round("".join(line.format(1, step, 2 - step / 1000) for step in range(1, 51)).encode())
    assert log.tail is not None
    assert read_course(log.tail) == Course(50, 1000, None)
    log.round(
        "".join(
            line.format(epoch, step, 1.5) for epoch in (1, 2) for step in range(51, 101)
        ).encode()
    )
    assert read_course(log.tail) == Course(200, 1000, 600 / 150)


def test_the_pace_is_the_logs_own_else_what_rounds_saw() -> None:
    log = Log()
    log.round(lines(range(1, 100)))
    assert log.tail is not None
    assert read_course(log.tail) == Course(99, STEPS, None)
    log.round(lines(range(100, 160)), seconds=120)
    assert read_course(log.tail) == Course(159, STEPS, 2.0)
    log.round(
        b"".join(
            b"iteration %d/5000 | loss 2.0 | iteration time (s): 3.5\n" % step
            for step in range(160, 200)
        )
    )
    found = read_course(log.tail)
    assert found is not None
    assert found.seconds_per_step == 3.5
    # 100 steps of 60 s each would not have come in two minutes.
    claims = b"".join(
        b"iteration %d/5000 | loss 2.0 | iteration time (s): 60\n" % step
        for step in range(200, 300)
    )
    log.round(claims, seconds=120)
    found = read_course(log.tail)
    assert found is not None
    assert found.seconds_per_step is not None
    assert found.seconds_per_step < 5
