"""tests.support.fuzz: a mutant is the same wherever it is tried, and what breaks a reader is told
with its place.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from tests.support import fuzz
from tests.support.fuzz import Reader, main, mutant_at


@pytest.mark.system
def test_mutants_are_the_same_however_many_workers_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    summaries = []
    for workers in ("1", "3"):
        assert (
            main(["--seed", "7", "--count", "1700", "--reader", "job", "--workers", workers]) == 0
        )
        summaries.append(capsys.readouterr().out.splitlines()[0])
    assert summaries[0] == summaries[1]


def test_a_mutant_depends_on_nothing_but_its_seed_and_number() -> None:
    some = (Reader("a", lambda raw, status: None, (b"step 1 loss 2.5\n", b'{"a": [1, null]}')),)
    made = b"".join(mutant_at(3, number, some)[1] for number in range(200))
    assert hashlib.sha256(made).hexdigest()[:16] == "f35ea8f81fc6472f"


def test_what_breaks_a_reader_is_told_with_its_seed_number_and_bytes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(raw: bytes, status: int) -> None:
        raise KeyError("lost")

    some = (Reader("good", lambda raw, status: None, (b"x 1\n",)), Reader("bad", read, (b"a=1\n",)))
    monkeypatch.setattr(fuzz, "readers", lambda: some)
    assert main(["--seed", "5", "--first", "40", "--count", "3", "--workers", "1"]) == 1
    printed = capsys.readouterr().out
    told = re.search(
        r"^seed 5, number 41: bad raised KeyError: 'lost' \(exit status \d+\): (.+)$",
        printed,
        re.MULTILINE,
    )
    assert told
    assert Path(told[1]).read_bytes() == mutant_at(5, 41, some)[1]
    assert "seed 5: 3 mutants" in printed
    assert "broken 1 times: bad KeyError" in printed
    Path(told[1]).unlink()
