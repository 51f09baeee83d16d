"""The dashboard on a PBS: ids as people say them, arrays by their tasks, and no question for what
it does not have.
"""

from __future__ import annotations

from hpcdash.ui.app import HpcdashApp
from tests.ui.jobs.acting_stage import point_at
from tests.ui.stage import PBS_CASES, dashboard, ids_of, press, screen_text, settled, type_text

SIZE = (120, 50)


def lines_with(app: HpcdashApp, word: str) -> list[str]:
    return [line for line in screen_text(app).splitlines() if word in line]


async def test_ids_are_shown_without_the_server_that_all_of_them_name_and_stay_whole_beneath() -> (
    None
):
    app = dashboard(cases=PBS_CASES)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        (line,) = lines_with(app, "heldjob")
        assert line.split()[0] == "6"
        assert ".pbs01" not in line
        assert "6.pbs01" in ids_of(app)
        await point_at(pilot, "6.pbs01")
        await press(pilot, "d")
        assert "6.pbs01" in screen_text(app)


async def test_a_folded_array_is_named_as_pbs_names_it_with_the_number_of_its_tasks() -> None:
    app = dashboard(cases=PBS_CASES)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        (line,) = lines_with(app, "arrthr")
        assert line.lstrip(" ▌").startswith("+ 14[] (8)")
        await press(pilot, "a")
        lines = lines_with(app, "arrthr")
        assert [line.lstrip(" ▌").split("  ")[0] for line in lines] == [
            "- 14[] (8)",
            "14[3]",
            "14[4]",
            "14[5]",
            "14[6-10]",
        ]


async def test_an_array_of_another_says_how_many_of_its_tasks_run() -> None:
    app = dashboard(cases=PBS_CASES)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "m")
        (line,) = lines_with(app, "arrstep")
        assert line.split()[0] == "13[]"
        assert line.rstrip().endswith("5 running")


async def test_an_array_that_ended_has_no_reason_of_one_of_its_tasks_for_its_end() -> None:
    app = dashboard(cases=PBS_CASES)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "4")
        (array,) = [line for line in lines_with(app, " 12[] (7) ") if "arr" in line]
        assert "failed" in array
        assert "terminat" not in array
        (too_long,) = lines_with(app, "walltime1")
        assert "timed out" in too_long
        assert "exceeded" not in too_long
        (signalled,) = lines_with(app, "todelete ")
        assert "signal 15" in signalled


async def test_a_node_says_which_of_its_jobs_are_not_listed_and_which_are_its_host_s() -> None:
    app = dashboard(cases=PBS_CASES)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "2")
        await point_at(pilot, "cn01")
        await press(pilot, "enter")
        assert "arrays listed as one row are omitted" in screen_text(app)
        assert "those of all of" not in screen_text(app)
        await press(pilot, "escape")
        await point_at(pilot, "gpu01[1]")
        await press(pilot, "enter")
        assert "all jobs on gpu01: the scheduler does not report them per part" in screen_text(app)
        await press(pilot, "escape")
        await point_at(pilot, "cn03")
        await press(pilot, "enter")
        assert "left out" not in screen_text(app)


async def test_the_help_names_what_pbs_lets_one_change() -> None:
    app = dashboard(cases=PBS_CASES)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "question_mark")
        assert "change time limit, queue, nice or throttle" in screen_text(app)


async def test_a_suspended_job_says_why_rather_than_where_it_stands_still() -> None:
    app = dashboard("preempted", cases=PBS_CASES)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        (line,) = lines_with(app, "lowprio")
        assert "suspended by the scheduler" in line


async def test_a_job_is_found_by_its_number_alone() -> None:
    app = dashboard(cases=PBS_CASES)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "slash")
        await type_text(pilot, "id:6")
        await press(pilot, "enter")
        assert "heldjob" in screen_text(app)
        assert "tomorrow2" not in screen_text(app)


async def test_queues_have_no_columns_of_nodes_where_pbs_binds_none_to_them() -> None:
    app = dashboard(cases=PBS_CASES)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "3")
        (heading,) = lines_with(app, "QUEUE")
        assert "LIMIT" in heading
        assert "RUNNING" in heading
        assert "IDLE" not in heading
        assert "GPU" not in heading


async def test_a_queue_says_what_it_does_with_jobs() -> None:
    app = dashboard(cases=PBS_CASES)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "3")
        shown = {
            name: lines_with(app, name)[0].split()[1]
            for name in ("maint", "stopped", "bobonly", "route")
        }
        assert shown == {
            "maint": "disabled",
            "stopped": "stopped",
            "bobonly": "closed",
            "route": "routing",
        }
        await press(pilot, "j", "j", "j")
        assert "disabled: PBS rejects new jobs" in screen_text(app)


async def test_a_column_that_somebody_chose_is_there_whether_or_not_it_says_anything() -> None:
    app = dashboard(cases=PBS_CASES, columns={"queues": ("name", "idle")})
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "3")
        (heading,) = lines_with(app, "QUEUE")
        assert "IDLE" in heading


async def test_a_script_that_pbs_does_not_give_back_is_not_waited_for() -> None:
    app = dashboard(cases=PBS_CASES)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        # `qsub -- /bin/sleep 3000`: no file on the login node can be it.
        await point_at(pilot, "22.pbs01")
        await press(pilot, "b")
        assert "PBS does not return scripts" in screen_text(app)
