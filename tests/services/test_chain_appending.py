"""What is appended to a train is the same job again, in its scheduler's words, to wait for the end of the last."""

from __future__ import annotations

from pathlib import Path

from hpcdash.backends.job_detail import Script
from hpcdash.cli.build import build_replay
from hpcdash.errors import without_env
from hpcdash.services.chains import Appendix, ChainReader, plan_append
from hpcdash.services.cluster.snapshots import Kind

PBS = Path(__file__).parents[2] / "fixtures" / "pbs" / "23.06" / "everyday"
SCRIPT = Script("#!/bin/sh\n#PBS -N child\nsleep 60\n", "a test's")


async def test_in_pbs_one_waits_for_the_last_of_a_chain() -> None:
    store = build_replay(PBS).store
    await store.fetch(Kind.EVERYONE)
    train = await ChainReader(store, "9.pbs01").read()
    assert [unit.job_id for unit in train.units] == ["9.pbs01", "10.pbs01", "11.pbs01"]
    detail = await store.fetch_detail("10.pbs01")
    again = plan_append(store, Appendix("10.pbs01", SCRIPT, "child", detail, {}), (train.ends[-1].job_id,))
    [command] = again.plan.commands
    words = without_env(command.argv)
    at = words.index("qsub")
    assert words[at : at + 4] == ("qsub", "-f", "-W", "depend=afterany:11.pbs01")
    assert sum(word.startswith("depend=") for word in words) == 1
    assert command.stdin == SCRIPT.text.encode()
    assert again.searches["10.pbs01"].mark in " ".join(words)


async def test_a_script_of_one_s_own_waits_for_a_pbs_array() -> None:
    store = build_replay(PBS).store
    await store.open()
    again = plan_append(store, Appendix("next.sh", SCRIPT, "next.sh"), ("15[].pbs01",), "1-4%1")
    words = without_env(again.plan.commands[0].argv)
    assert "depend=afterany:15[].pbs01" in words
    assert words[words.index("-J") + 1] == "1-4%1"
