"""What commands tell of a job that was launched from here: what it calls, where its result and its switches are."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.program import Program, home_with
from tests.embedded.queue_lab import until

REQUEST = """\
name = "night"
slots = 0
requeue = true
work_dir = "{home}"
kill_switch = "KILL"
checkpoints = "saved/%a"
[call]
function = "nightpkg:main"
items = [{{ rate = 0.1 }}, {{ rate = 0.2 }}]
sys_path = ["{home}"]
"""


def test_an_array_of_calls_is_told_of_by_item_and_its_switch_before_it_runs_again(tmp_path: Path) -> None:
    home = home_with(tmp_path / "home")
    state = {"HPCDASH_QUEUE": str(tmp_path / "queue"), "HPCDASH_STATE": str(tmp_path / "state")}
    program = Program(home, ("--local", "--backend", "local"), state)
    (home / "nightpkg.py").write_text("def main(rate):\n    return 1 / (rate - 0.2)\n")
    (home / "a.toml").write_text(REQUEST.format(home=home))
    assert program("submit", str(home / "a.toml")).text == "1\n"
    (folder,) = (home / "hpcdash" / "launches").iterdir()
    until(lambda: (folder / "result-1.pkl.error").exists() and (folder / "result-0.pkl").exists(), "the results")
    until(lambda: not program.rows("jobs"), "the end")

    told = program("show", "1_1").text
    assert "  calls         nightpkg:main, item 1 of 2, from 0: {'rate': 0.2}\n" in told
    assert f"  result        {folder}/result-1.pkl\n  or traceback  {folder}/result-1.pkl.error\n" in told
    assert f"  checkpoints   {home}/saved/1\n  kill switch   {home}/KILL\n  folder        {folder}\n" in told
    assert program("show", "1_0", "--format", "json").json["launch"] == {
        "folder": str(folder),
        "function": "nightpkg:main",
        "items": 2,
        "item_index": 0,
        "item": {"rate": 0.1},
        "result_path": f"{folder}/result-0.pkl",
        "error_path": f"{folder}/result-0.pkl.error",
        "checkpoints": f"{home}/saved/0",
        "kill_switch": f"{home}/KILL",
        "save_switch": None,
    }
    whole = program("show", "1").text
    assert "  calls         nightpkg:main, 2 items, a task each\n" in whole
    assert f"  result        {folder}/result-N.pkl\n" in whole

    (home / "KILL").touch()
    warned = f"hpcdash: the kill switch {home}/KILL is there: the job ends at once. "
    said = program("requeue", "1_1", "--yes")
    assert (said.status, said.text) == (0, "1_1  requeued\n"), said
    assert f"{warned}Clear it first: hpcdash kill-switch 1 --clear\n" in said.stderr
    until(lambda: not program.rows("jobs"), "the end")
