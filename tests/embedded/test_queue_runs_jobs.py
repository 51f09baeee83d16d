"""What the embedded queue does with jobs: real scripts, real processes."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from hpcdash.assembly import set_slots
from hpcdash.config.settings import EmbeddedSettings
from tests.embedded.queue_lab import QueueLab, is_alive
from tests.support.waiting import wait_until


def test_a_job_runs_and_its_output_is_in_the_folder_it_was_submitted_from(queue: QueueLab) -> None:
    number = queue.submit("echo hello; pwd")
    job = queue.ended(number)
    assert (job.state, job.exit_code, job.exit_signal) == ("completed", 0, 0)
    assert queue.output(number) == f"hello\n{queue.work}\n"
    assert job.elapsed is not None
    assert job.elapsed >= 0


def test_a_script_that_ends_badly_has_failed_with_its_status(queue: QueueLab) -> None:
    plain, killed = queue.submit("exit 7"), queue.submit("kill -SEGV $$")
    assert (queue.ended(plain).state, queue.ended(plain).exit_code) == ("failed", 7)
    job = queue.ended(killed)
    assert (job.state, job.exit_code, job.exit_signal) == ("failed", 0, 11)


def test_a_log_is_written_as_the_job_writes(queue: QueueLab) -> None:
    number = queue.submit("echo first; while [ ! -e go ]; do sleep 0.02; done; echo last >&2")
    queue.wait_for_output(number, "first\n")
    assert queue.job(number).state == "running"
    (queue.work / "go").touch()
    queue.ended(number)
    assert queue.output(number) == "first\nlast\n"


def test_names_of_outputs_are_filled_in(queue: QueueLab) -> None:
    number = queue.submit(
        "echo out; echo err >&2",
        "--job-name=sim",
        "--array=7",
        "--output=%x-%A-%a.log",
        "--error=%x.%3a.err",
    )
    queue.ended(f"{number}_7")
    assert (queue.work / f"sim-{number}-7.log").read_text() == "out\n"
    assert (queue.work / "sim.007.err").read_text() == "err\n"


def test_a_script_s_lines_are_obeyed_and_the_command_line_goes_before_them(queue: QueueLab) -> None:
    (queue.work / "elsewhere").mkdir()
    script = "\n".join(
        [
            "#!/bin/bash",
            "#SBATCH --job-name=from-script --cpus-per-task=2 -t 1:00",
            "#SBATCH --chdir=elsewhere --comment='a b'",
            "echo $SLURM_JOB_NAME $SLURM_CPUS_PER_TASK; pwd; echo $SLURM_SUBMIT_DIR",
        ]
    )
    (queue.work / "job.sh").write_text(script)
    done = queue.run("submit", "--job-name=from-line", "job.sh")
    assert done.returncode == 0, done.stderr
    job = queue.ended("1")
    assert job.limit_seconds == 60
    assert (queue.work / "elsewhere" / "slurm-1.out").read_text().splitlines() == [
        "from-line 2",
        str(queue.work / "elsewhere"),
        str(queue.work),
    ]
    assert queue.rows("jobs", "1")[0]["comment"] == "a b"


def test_what_a_queue_does_not_know_is_told(queue: QueueLab) -> None:
    script = b"#!/bin/sh\n#SBATCH --partition=gpu --mail-type=END\n#SBATCH --wait\ntrue\n"
    answer = queue.run("submit", "--qos=high", stdin=script)
    assert (
        b'"ignored":["line 2 of the script: --partition=gpu","line 2 of the script: '
        b'--mail-type=END",' in (answer.stdout)
    )
    assert b'"line 3 of the script: --wait","--qos=high"]' in answer.stdout


def test_arguments_environment_and_umask_are_those_of_the_submission(queue: QueueLab) -> None:
    (queue.work / "job.sh").write_text(
        '#!/bin/sh\nprintf "%s|" "$@" "$GREETING"; umask; : > made\n'
    )
    done = queue.run("submit", "job.sh", "one two", "$x", env={"GREETING": "hi there"}, umask=0o027)
    assert done.returncode == 0
    queue.ended("1")
    assert queue.output("1") == "one two|$x|hi there|0027\n"
    assert (queue.work / "made").stat().st_mode & 0o777 == 0o640
    assert (queue.work / "slurm-1.out").stat().st_mode & 0o777 == 0o640


def test_export_chooses_variables(queue: QueueLab) -> None:
    env = {"KEPT": "kept", "LEFT": "left"}
    number = queue.submit('echo "$KEPT-$LEFT-$MADE"', "--export=KEPT,MADE=made", env=env)
    queue.ended(number)
    assert queue.output(number) == "kept--made\n"


def test_slurm_s_variables_name_the_task(queue: QueueLab) -> None:
    number = queue.submit(
        "echo $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_COUNT "
        "$SLURM_ARRAY_TASK_MIN"
        " $SLURM_ARRAY_TASK_MAX $SLURM_ARRAY_TASK_STEP $SLURM_JOB_ID",
        "--array=2-6:2",
    )
    for place, task in enumerate((2, 4, 6)):
        queue.ended(f"{number}_{task}")
        words = (queue.work / f"slurm-{number}_{task}.out").read_text().split()
        assert words == [number, str(task), "3", "2", "6", "2", str(int(number) + place)]


def test_a_job_does_not_take_itself_for_the_one_it_was_submitted_from(queue: QueueLab) -> None:
    env = {"SLURM_ARRAY_TASK_ID": "9", "SLURM_JOB_ID": "77", "PBS_JOBID": "1.x"}
    number = queue.submit('echo "$SLURM_ARRAY_TASK_ID|$PBS_JOBID|$SLURM_JOB_ID"', env=env)
    queue.ended(number)
    assert queue.output(number) == f"||{number}\n"


def test_srun_and_scontrol_work_inside_a_job(queue: QueueLab) -> None:
    number = queue.submit(
        "srun -n 2 --label sh -c 'echo rank $SLURM_PROCID of $SLURM_NTASKS'\n"
        "scontrol show hostnames\nsrun sh -c 'exit 3'",
        "--ntasks=2",
    )
    job = queue.ended(number)
    lines = queue.output(number).splitlines()
    assert sorted(lines[:2]) == ["rank 0 of 2", "rank 1 of 2"]
    assert lines[2] == os.uname().nodename.partition(".")[0]
    assert job.exit_code == 3


def test_cpu_slots_bound_what_runs(queue: QueueLab) -> None:
    queue.set_slots(cpus=2, gpus=0)
    wide = queue.submit("while [ ! -e go ]; do sleep 0.02; done", "--cpus-per-task=2")
    queue.wait(wide, "running")
    narrow = queue.submit("true")
    assert queue.rows("jobs", narrow)[0]["state"] == "pending"
    assert queue.rows("jobs", narrow)[0]["reason"] == "Resources"
    (queue.work / "go").touch()
    queue.ended(narrow)
    first, second = queue.job(wide), queue.job(narrow)
    assert first.ended_at is not None
    assert second.started_at is not None
    assert second.started_at >= first.ended_at


def test_slots_that_the_configuration_adds_are_given_at_once_to_what_waits(queue: QueueLab) -> None:
    queue.set_slots(cpus=1, gpus=0)
    holder = queue.submit("while [ ! -e go ]; do sleep 0.02; done")
    queue.wait(holder, "running")
    waits = queue.submit("true")
    assert queue.rows("jobs", waits)[0]["reason"] == "Resources"
    set_slots(queue.folder, EmbeddedSettings(cpus=2, gpus=0))
    queue.ended(waits)
    assert queue.rows("jobs", holder)[0]["state"] == "running"
    (queue.work / "go").touch()


def test_a_small_job_does_not_pass_a_large_one_that_waits(queue: QueueLab) -> None:
    queue.set_slots(cpus=2, gpus=0)
    holder = queue.submit("while [ ! -e go ]; do sleep 0.02; done")
    queue.wait(holder, "running")
    large, small = queue.submit("true", "-c2"), queue.submit("true")
    (queue.work / "go").touch()
    queue.ended(small)
    assert queue.job(large).started_at <= queue.job(small).started_at  # type: ignore[operator]


def test_gpus_are_given_out_and_seen_by_no_other(queue: QueueLab) -> None:
    queue.set_slots(cpus=4, gpus=2)
    body = 'echo "gpus=$CUDA_VISIBLE_DEVICES"; while [ ! -e go ]; do sleep 0.02; done'
    first, second, none = (
        queue.submit(body, "--gpus=1"),
        queue.submit(body, "--gres=gpu:1"),
        queue.submit(body),
    )
    third = queue.submit(body, "-G1")
    for one in (first, second, none):
        queue.wait_for_output(one, "gpus=")
    assert {queue.output(first), queue.output(second)} == {"gpus=0\n", "gpus=1\n"}
    assert queue.output(none) == "gpus=\n"
    assert queue.job(third).state == "pending"
    (queue.work / "go").touch()
    queue.ended(third)
    refused = queue.run("submit", "--gpus=3", stdin=b"#!/bin/sh\n")
    assert refused.returncode == 2
    assert b"requests 3 GPUs; this machine has 2" in refused.stderr


def test_a_job_larger_than_the_machine_has_become_holds_up_nobody(queue: QueueLab) -> None:
    large = queue.submit("true", "-c4", "--hold")
    queue.set_slots(cpus=2, gpus=0)
    queue.act("release", large)
    small = queue.submit("true")
    queue.ended(small)
    assert queue.rows("jobs", large)[0]["reason"] == "more than this machine has"


def test_an_array_keeps_to_its_throttle(queue: QueueLab) -> None:
    body = "echo s >> log; sleep 0.05; echo e >> log"
    number = queue.submit(body, "--array=1-6%1")
    queue.ended(f"{number}_6")
    assert re.fullmatch("(s\ne\n){6}", (queue.work / "log").read_text())


def test_a_job_behind_a_throttled_array_waits_for_cpus(queue: QueueLab) -> None:
    queue.set_slots(cpus=2, gpus=0)
    body = "while [ ! -e go ]; do sleep 0.02; done"
    array = queue.submit(body, "--array=1-3%1")
    queue.wait(f"{array}_1", "running")
    wide, behind = queue.submit(body, "-c2"), queue.submit(body, "-c2")
    reasons = {row["id"]: row["reason"] for row in queue.rows("jobs") if row["state"] == "pending"}
    assert reasons == {
        f"{array}_2": "JobArrayTaskLimit",
        f"{array}_3": "JobArrayTaskLimit",
        wide: "Resources",
        behind: "Priority",
    }
    (queue.work / "go").touch()


def test_a_job_behind_one_that_never_fits_waits_for_cpus(queue: QueueLab) -> None:
    large = queue.submit("true", "-c4", "--hold")
    queue.set_slots(cpus=1, gpus=0)
    holder = queue.submit("while [ ! -e go ]; do sleep 0.02; done")
    queue.wait(holder, "running")
    queue.act("release", large)
    waits = queue.submit("true")
    assert queue.rows("jobs", waits)[0]["reason"] == "Resources"
    (queue.work / "go").touch()


def test_a_throttle_can_be_altered(queue: QueueLab) -> None:
    number = queue.submit("while [ ! -e go ]; do sleep 0.02; done", "--array=1-4%1")
    queue.wait(f"{number}_1", "running")
    assert queue.rows("jobs", f"{number}_2")[0]["reason"] == "JobArrayTaskLimit"
    assert queue.act("alter", "throttle=3", "--", number)[0]["done"]
    queue.wait(f"{number}_3", "running")
    assert queue.job(f"{number}_4").state == "pending"
    (queue.work / "go").touch()
    queue.ended(f"{number}_4")


def test_dependencies_are_waited_for(queue: QueueLab) -> None:
    good = queue.submit("while [ ! -e go ]; do sleep 0.02; done")
    after = queue.submit("true", f"--dependency=after:{good}")
    queue.ended(after)
    ok = queue.submit("true", f"-dafterok:{good}")
    notok = queue.submit("true", f"--dependency=afternotok:{good}")
    either = queue.submit("true", f"--dependency=afternotok:{good}?afterany:{good}")
    row = queue.rows("jobs", ok)[0]
    assert (row["state"], row["reason"], row["dependency"]) == (
        "pending",
        "Dependency",
        f"afterok:{good}",
    )
    (queue.work / "go").touch()
    assert queue.ended(ok).state == "completed"
    assert queue.ended(either).state == "completed"
    assert queue.rows("jobs", notok)[0]["reason"] == "DependencyNeverSatisfied"
    assert queue.job(notok).state == "pending"


def test_who_depends_on_a_whole_array_waits_for_its_last_task(queue: QueueLab) -> None:
    array = queue.submit("[ $SLURM_ARRAY_TASK_ID != 3 ] || sleep 0.2", "--array=1-3")
    after = queue.submit("true", f"--dependency=afterok:{array}")
    one = queue.submit("true", f"--dependency=afterok:{array}_1")
    queue.ended(after)
    queue.ended(one)
    assert queue.job(after).started_at >= queue.job(f"{array}_3").ended_at  # type: ignore[operator]


def test_a_dependency_on_no_job_is_refused(queue: QueueLab) -> None:
    done = queue.run("submit", "--dependency=afterok:99", stdin=b"#!/bin/sh\n")
    assert done.returncode == 2
    assert b"afterok:99: no such job in this queue" in done.stderr
    assert queue.rows("jobs") == []


def test_singletons_run_one_after_the_other(queue: QueueLab) -> None:
    body = "echo s >> log; sleep 0.05; echo e >> log"
    numbers = [queue.submit(body, "--job-name=only", "--dependency=singleton") for _ in range(3)]
    for number in numbers:
        queue.ended(number)
    assert (queue.work / "log").read_text() == "s\ne\n" * 3


def test_a_held_job_waits_until_it_is_released(queue: QueueLab) -> None:
    number = queue.submit("true", "--hold")
    assert queue.rows("jobs", number)[0]["state"] == "held"
    assert queue.act("release", number) == [{"job_id": number, "done": True, "words": ""}]
    queue.ended(number)
    later = queue.submit("true", "--begin=now+1hour")
    assert queue.rows("jobs", later)[0]["reason"] == "BeginTime"
    queue.act("hold", later)
    assert queue.rows("jobs", later)[0]["reason"] == "JobHeldUser"


def test_a_job_begins_no_earlier_than_asked(queue: QueueLab) -> None:
    number = queue.submit("true", "--begin=now+1")
    job = queue.ended(number)
    submitted = queue.store.submission(job.number).submitted_at
    assert job.started_at is not None
    assert 1.0 <= job.started_at - submitted < 2.0


def test_many_jobs_that_begin_later_do_not_hide_one_that_may_start(queue: QueueLab) -> None:
    first = queue.submit("true", "--array=1-300", "--begin=now+1hour")
    now = queue.submit("true")
    queue.ended(now)
    queue.act("cancel", first)


def test_cancel_ends_all_that_a_job_started_however_it_hides(queue: QueueLab) -> None:
    body = """
    sleep 1000 & echo $! > plain
    setsid sh -c 'echo $$ > session; exec sleep 1000' &
    (setsid sh -c '(echo $$ > /dev/null; exec sh -c "echo \\$\\$ > orphan; exec sleep 1000") &' &)
    sh -c 'trap "" TERM; echo $$ > deaf; while :; do sleep 0.1; done' &
    wait
    """
    number = queue.submit(body)
    names = ("plain", "session", "orphan", "deaf")
    pids = [
        int(
            wait_until(
                name,
                lambda name=name: (queue.work / name).exists() and (queue.work / name).read_text(),
            )
        )  # type: ignore[misc]
        for name in names
    ]
    assert all(map(is_alive, pids))
    assert queue.act("cancel", number)[0]["done"]
    assert queue.ended(number).state == "cancelled"
    assert not any(map(is_alive, pids))


def test_cancel_leaves_a_grace_to_clean_up_even_where_the_shell_ends_at_once(
    queue: QueueLab,
) -> None:
    queue.set_slots(cpus=1, grace_seconds=60)
    child = """
    import signal, sys, time
    count = [0]
    def save(number, frame):
        count[0] += 1
    signal.signal(signal.SIGTERM, save)
    print("ready", flush=True)
    while not count[0]:
        time.sleep(0.01)
    time.sleep(2.5)
    print("saved after", count[0], flush=True)
    """
    (queue.work / "train.py").write_text("\n".join(line[4:] for line in child.splitlines()))
    number = queue.submit("python3 train.py")
    queue.wait_for_output(number, "ready")
    queue.act("cancel", number)
    assert queue.ended(number).state == "cancelled"
    assert "saved after 1\n" in queue.output(number)


def test_a_waiting_job_is_cancelled_at_once(queue: QueueLab) -> None:
    number = queue.submit("true", "--hold", "--array=1-5")
    after = queue.submit("true", f"--dependency=afterany:{number}")
    queue.act("cancel", f"{number}_[2-3]")
    assert [job.state for job in queue.store.find(int(number))] == [
        "pending",
        *["cancelled"] * 2,
        *["pending"] * 2,
    ]
    assert queue.act("cancel", f"{number}_2") == [
        {"job_id": f"{number}_2", "done": False, "words": "already finished (cancelled)"}
    ]
    assert queue.act("cancel", number)[0]["done"]
    assert queue.act("cancel", number)[0]["words"] == "already finished (cancelled)"
    queue.ended(after)


def test_what_a_script_leaves_running_is_ended_with_it(queue: QueueLab) -> None:
    number = queue.submit("setsid sleep 1000 & echo $! > left")
    assert queue.ended(number).state == "completed"
    assert not is_alive(int((queue.work / "left").read_text()))


def test_a_job_ends_at_its_limit(queue: QueueLab) -> None:
    number = queue.submit("echo begun; sleep 1000", "--time=0:01")
    job = queue.ended(number)
    assert (job.state, job.exit_signal) == ("timeout", 15)
    assert 0.9 < (job.elapsed or 0) < 900


def test_an_early_signal_comes_before_the_limit(queue: QueueLab) -> None:
    shell = queue.submit(
        "trap 'echo saved; exit 0' USR1; while :; do sleep 0.02; done",
        "-t0:02",
        "--signal=B:USR1@1",
    )
    program = "import signal, time; signal.signal(10, lambda *_: exit(5)); time.sleep(60)"
    steps = queue.submit(f"srun python3 -c '{program}'", "--time=0:02", "--signal=USR1@1")
    job = queue.ended(shell)
    assert (job.state, queue.output(shell)) == ("completed", "saved\n")
    assert (job.elapsed or 0) > 0.9
    job = queue.ended(steps)
    assert (job.state, job.exit_code) == ("failed", 5)


def test_a_limit_can_be_altered_while_a_job_waits(queue: QueueLab) -> None:
    number = queue.submit("true", "--hold", "--time=30")
    assert queue.act("alter", "time=+10", "--", number)[0]["done"]
    assert queue.job(number).limit_seconds == 2400
    assert queue.act("alter", "time=-41", "--", number)[0]["words"] == "-41 leaves no time"
    assert queue.act("alter", "time=soon", "--", number)[0]["words"].startswith(
        "'soon' is not a duration"
    )
    assert (
        queue.act("alter", "nice=3", "--", number)[0]["words"] == "jobs in this queue have no nice"
    )


def test_a_suspended_job_stands_still_until_it_is_resumed(queue: QueueLab) -> None:
    number = queue.submit("i=0; while [ $i -lt 1000 ]; do i=$((i+1)); echo $i; sleep 0.01; done")
    queue.wait_for_output(number, "1\n")
    assert queue.act("suspend", number)[0]["done"]
    assert queue.job(number).state == "suspended"
    size = (queue.work / f"slurm-{number}.out").stat().st_size
    time.sleep(0.1)
    assert (queue.work / f"slurm-{number}.out").stat().st_size == size
    assert queue.act("suspend", number)[0]["done"], "once more changes nothing"
    assert queue.act("resume", number)[0]["done"]
    wait_until("it goes on", lambda: (queue.work / f"slurm-{number}.out").stat().st_size > size)
    queue.act("suspend", number)
    queue.act("cancel", number)
    assert queue.ended(number).state == "cancelled"


def test_a_signal_reaches_the_steps_the_shell_or_both(queue: QueueLab) -> None:
    step = 'trap "echo step" USR1; echo ready; while :; do sleep 0.02; done'
    body = f"trap 'echo shell' USR1; sh -c '{step}' & wait; wait; wait"
    number = queue.submit(body)
    queue.wait_for_output(number, "ready")
    queue.act("signal", "USR1", "steps", number)
    queue.wait_for_output(number, "step\n")
    assert "shell" not in queue.output(number)
    queue.act("signal", "usr1", "batch", number)
    queue.wait_for_output(number, "shell\n")
    assert queue.output(number).count("step") == 1
    bad = queue.run("signal", "NONSENSE", "full", number)
    assert (bad.returncode, b"'NONSENSE' is not a signal" in bad.stderr) == (2, True)


def test_a_requeued_job_runs_once_more(queue: QueueLab) -> None:
    body = 'echo run ${SLURM_RESTART_COUNT:-0} >> log; [ -n "$SLURM_RESTART_COUNT" ] || sleep 1000'
    number = queue.submit(body)
    wait_until("its first run", lambda: (queue.work / "log").exists())
    assert queue.act("requeue", number)[0]["done"]
    job = queue.ended(number)
    assert (job.state, job.restarts) == ("completed", 1)
    assert queue.act("requeue", number)[0]["done"], "one that ended may run again too"
    wait_until(
        "its third run",
        lambda: queue.job(number).restarts == 2 and queue.job(number).state == "completed",
    )
    assert (queue.work / "log").read_text() == "run 0\nrun 1\nrun 2\n"
    other = queue.submit("sleep 1000", "--no-requeue")
    queue.wait(other, "running")
    assert queue.act("requeue", other)[0]["words"] == "submitted with --no-requeue"
    assert queue.ask("show", other)["Requeue"] == "no"
    assert "Requeue" not in queue.ask("show", number)


def test_a_job_may_requeue_itself_at_its_early_signal(queue: QueueLab) -> None:
    body = """
    [ -z "$SLURM_RESTART_COUNT" ] || { echo resumed; exit 0; }
    trap 'echo saved; scontrol requeue $SLURM_JOB_ID' USR1
    while :; do sleep 0.02; done
    """
    number = queue.submit(body, "--time=0:02", "--signal=B:USR1@1", "--open-mode=append")
    assert queue.ended(number).state == "completed"
    assert queue.output(number) == "saved\nresumed\n"


def test_who_could_never_start_waits_again_once_the_failed_job_is_requeued(queue: QueueLab) -> None:
    first = queue.submit("[ -e fixed ]")
    after = queue.submit("true", f"--dependency=afterok:{first}")
    queue.ended(first)
    wait_until("never", lambda: queue.job(after).ready == -1)
    (queue.work / "fixed").touch()
    queue.act("requeue", first)
    assert queue.ended(after).state == "completed"


def test_a_job_just_begun_can_be_cancelled(queue: QueueLab) -> None:
    for _ in range(5):
        number = queue.submit("sleep 1000")
        assert queue.act("cancel", number)[0]["done"]
        assert queue.ended(number).state == "cancelled"


def test_what_a_job_used_is_told(queue: QueueLab) -> None:
    body = 'python3 -c "x = bytearray(40_000_000); any(i == -1 for i in range(3_000_000))"'
    number = queue.submit(body)
    queue.ended(number)
    usage = queue.ask("usage", number)
    assert usage["cpu_seconds"] > 0.02
    assert 40_000_000 < usage["memory_peak_bytes"] < 400_000_000


def test_history_lists_what_ended_the_newest_first(queue: QueueLab) -> None:
    first = queue.submit("true")
    queue.ended(first)
    second = queue.submit("exit 2")
    queue.ended(second)
    waiting = queue.submit("true", "--hold")
    assert [
        (row["id"], row["state"], row["exit_code"])
        for row in queue.rows("history", "--since", "60")
    ] == [
        (second, "failed", 2),
        (first, "completed", 0),
    ]
    assert [row["id"] for row in queue.rows("jobs")] == [waiting]
    assert [row["id"] for row in queue.rows("jobs", "--ended")] == [waiting, first, second]


def test_the_script_is_kept_as_it_was(queue: QueueLab, tmp_path: Path) -> None:
    script = b"#!/bin/sh\n# \xff\xfe\ntrue\n"
    (queue.work / "job.sh").write_bytes(script)
    assert queue.run("submit", "job.sh").returncode == 0
    (queue.work / "job.sh").write_bytes(b"#!/bin/sh\nexit 9\n")
    assert queue.run("script", "1").stdout == script
    assert queue.ended("1").state == "completed"
