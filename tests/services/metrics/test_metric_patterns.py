"""A person's own patterns are Python's, and none of them holds up what reads with it."""

from __future__ import annotations

import re
import threading
import time

import pytest

from hpcdash.config.metric_patterns import MetricPattern, compile_patterns, pattern_problems
from hpcdash.errors import ConfigError
from hpcdash.services.metrics.reader import MetricReader
from tests.support.records import for_each

# It is tried at 2 ** 30 places of this line.
_ENDLESS = "a" * 60 + "!"


@for_each(
    "pattern",
    [
        r"it(?:er)? (?P<step>\d+)[^=]*total=(?P<loss>[-+.0-9e]+)",
        r"(?<=\bloss: )(?P<loss>\S+)(?! s)",
        r"(?i)LOSS\s*[:=]\s*(?P<loss>-?\d+(?:\.\d+)?(?:e[-+]?\d{1,3})?)\b",
        r"^\[(?P<epoch>\d{1,4})/\d+\].*?(?P<loss>\d+\.\d{2,}+)$",
        r"(?P<quote>['\"])loss(?P=quote): (?P<loss>[^,}]+)",
        r"(?x) step \s (?P<loss>\d+)  # a comment",
        r"(?P<a>l)?oss(?(a): |=)(?P<loss>\d)",
        r"(?P<name>\w+)=(?P<value>\S+)\Z",
        r"é(?P<loss>[\d٠-٩]+)",
    ],
)
def test_a_pattern_finds_what_python_s_own_re_finds(pattern: str) -> None:
    lines = [
        "iter 12/40: total=2.5e-3 lr=1",
        "[12/40] loss: 2.5 s",
        "[3/9] step 7 Loss = -3.25",
        "{'loss': 2.75, \"loss\": 9}",
        "oss=4 loss: 5",
        "é١٢ é12",
        "",
    ]
    (compiled,) = compile_patterns([pattern])
    for line in lines:
        found = re.search(pattern, line)
        assert compiled.search(line) == (None if found is None else found.groupdict())


def test_a_line_that_takes_a_pattern_too_long_is_left_out_and_told() -> None:
    pattern = r"^left-out (?P<loss>(a|aa)+)$"
    reader = MetricReader([pattern])
    batch = reader.feed(
        f"left-out aa\nleft-out {_ENDLESS}\nstep 3: loss 2.5\n".encode(), is_end=True
    )
    assert batch.metrics["loss"].values.tolist() == [2.5]
    (problem,) = pattern_problems([pattern])
    assert problem.startswith(
        f"the pattern {pattern!r} of [metrics] took too long on 1 line (skipped)"
    )
    assert "(a+)+" in problem


def test_a_pattern_that_is_too_slow_for_many_lines_is_given_up_and_the_rest_is_read() -> None:
    pattern = r"^given-up (?P<loss>(a|aa)+)$"
    usual = r"energy=(?P<energy>\S+)"
    content = "".join(
        f"given-up {_ENDLESS}\nenergy={at}\nstep {at}: loss 2.5\n" for at in range(2000)
    )
    batch = MetricReader([pattern, usual]).feed(content.encode(), is_end=True)
    assert len(batch.metrics["energy"].values) == len(batch.metrics["loss"].values) == 2000
    (problem,) = pattern_problems([pattern, usual])
    assert "takes too long and is no longer used" in problem
    # Nor is it in the next log.
    assert (
        len(MetricReader([pattern]).feed(content.encode(), is_end=True).metrics["loss"].values)
        == 2000
    )


def test_time_that_other_processes_take_is_not_a_patterns_own() -> None:
    class Preempted:
        def search(self, text: str, timeout: float) -> None:
            time.sleep(0.3)

    pattern = MetricPattern("loss (?P<loss>[0-9.]+)")
    pattern._expression = Preempted()
    for _ in range(6):
        pattern.search("loss 1")
    assert not pattern.problem


def test_others_go_on_while_a_pattern_takes_its_time() -> None:
    (compiled,) = compile_patterns([r"^beside (?P<loss>(a|aa)+)$"])
    beats: list[float] = []
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(0.002):
            beats.append(time.monotonic())

    other = threading.Thread(target=beat)
    other.start()
    compiled.search(f"beside {_ENDLESS}")
    ended.set()
    other.join()
    assert len(beats) > 3
    assert compiled.problem


@for_each(
    "pattern",
    ["(?P<loss>.){99999999}", "(?P<loss>((a{90}){90}){90})", "(?P<loss>([ab]{1000}){1000})"],
)
def test_counts_that_would_take_all_memory_are_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="its repeat count exceeds the maximum line length"):
        compile_patterns([pattern])


@pytest.mark.parametrize(
    "pattern", [r"(?P<loss>.{80}.{20}.{30}.{40}.{50})", r"[){5}](?P<loss>\d{4}-\d{2}){0,90}\{3}"]
)
def test_usual_counts_are_none_of_these(pattern: str) -> None:
    assert len(compile_patterns([pattern])) == 1
