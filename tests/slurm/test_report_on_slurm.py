"""A report's totals are sreport's and sacct's own, to the second, over some hundred runs in a real
accounting.
"""

from __future__ import annotations

import pwd
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcdash.domain.rfc3339 import format_utc
from tests.support.program import program_on_the_spot
from tests.support.slurm import SlurmLab
from tests.support.slurm.programs import mariadb_client_argv

pytestmark = pytest.mark.slurm_releases

HOUR, DAY = 3600, 86_400
RUNS = 400
FIRST_ID = 900_000
# Neither ends at a midnight, in any zone of whole hours: sreport adds up hours then.
SPAN_HOURS = (3, 21)


def sql(lab: SlurmLab, statement: str) -> list[list[str]]:
    """Rows of tab separated cells, without the titles."""
    argv = mariadb_client_argv(lab.run_dir, statement)
    printed = lab.admin(
        *argv[:-2], "--batch", "--skip-column-names", "slurm_acct_db", *argv[-2:]
    ).stdout
    return [line.split("\t") for line in printed.decode().splitlines()]


@pytest.fixture
def day(clean_slurm: SlurmLab) -> Iterator[int]:
    """A day a hundred days ago, whose accounting has runs before, in, after and across it, and some
    suspended ones.
    """
    lab = clean_slurm
    begins = int(time.time()) // DAY * DAY - 100 * DAY
    chance = random.Random(5)
    gpu = sql(lab, "select id from tres_table where type='gres' and name='gpu'")[0][0]
    of_physics = "select id_assoc from lab_assoc_table where acct='physics' and deleted=0 and user="
    associations = {user: sql(lab, f"{of_physics}'{user}'")[0][0] for user in (lab.alice, lab.bob)}
    uids = {user: pwd.getpwnam(user).pw_uid for user in associations}
    jobs, pauses = [], []
    for number in range(RUNS):
        user = chance.choice(sorted(associations))
        uid = uids[user]
        start = begins + chance.randrange(-12 * HOUR, 30 * HOUR)
        end = start + chance.randrange(1, 9 * HOUR)
        cpus, gpus = chance.randrange(1, 9), chance.choice([0, 0, 1, 2])
        suspended = 0
        # When a run was suspended is not told to those who ask: only within the span are the
        # seconds certain.
        if begins + 4 * HOUR < start and end < begins + 20 * HOUR and chance.random() < 0.4:
            at = start + chance.randrange(0, (end - start) // 2 + 1)
            suspended = chance.randrange(0, end - at)
            if suspended:
                pauses.append(f"({FIRST_ID + number},{associations[user]},{at},{at + suspended})")
        tres = f"1={cpus},2=100,4=1,5={cpus}" + (f",{gpu}={gpus}" if gpus else "")
        state, code = chance.choice([(3, 0), (3, 0), (5, 256), (6, 0)])
        jobs.append(
            f"({FIRST_ID + number},{FIRST_ID + number},{end},'physics',{cpus},'past',{associations[user]},4294967294,1,"
            f"0,0,{uid},{uid},0,4294967294,0,100,'n1',1,'main',1,{state},{code},600,{start - 60},{start - 30},{start},"
            f"{end},{suspended},'{tres}','{tres}','','','','*','/tmp')"
        )
    columns = (
        "job_db_inx,id_job,mod_time,account,cpus_req,job_name,id_assoc,id_array_task,id_qos,id_resv,id_wckey,id_user,"
        "id_group,het_job_id,het_job_offset,state_reason_prev,mem_req,nodelist,nodes_alloc,`partition`,priority,state,"
        "exit_code,timelimit,time_submit,time_eligible,time_start,time_end,time_suspended,tres_alloc,tres_req,"
        "constraints,mcs_label,gres_used,wckey,work_dir"
    )
    registered = sql(lab, "select min(time_start) from lab_event_table where node_name=''")[0][0]
    try:
        sql(lab, f"insert into lab_job_table ({columns}) values {','.join(jobs)}")
        sql(
            lab,
            "insert into lab_suspend_table (job_db_inx,id_assoc,time_start,time_end) values "
            f"{','.join(pauses)}",
        )
        # Before a cluster was registered sreport counts nothing.
        sql(
            lab,
            f"update lab_event_table set time_start={begins - 10 * DAY} where node_name='' and "
            f"time_start={registered}",
        )
        times = [
            time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(begins + hour * HOUR))
            for hour in SPAN_HOURS
        ]
        lab.admin("env", "TZ=UTC", "sacctmgr", "-i", "roll", *times)
        yield begins
    finally:
        for table, condition in (
            ("job_table", f"job_db_inx >= {FIRST_ID}"),
            ("suspend_table", f"job_db_inx >= {FIRST_ID}"),
            *(
                (f"{what}_{unit}_table", f"time_start < {begins + 40 * DAY}")
                for what in ("assoc_usage", "wckey_usage", "usage")
                for unit in ("hour", "day", "month")
            ),
        ):
            sql(lab, f"delete from lab_{table} where {condition}")
        sql(
            lab,
            f"update lab_event_table set time_start={registered} where "
            f"time_start={begins - 10 * DAY}",
        )


def test_totals_are_those_of_sreport_and_sacct_to_the_second(
    clean_slurm: SlurmLab, day: int, tmp_path: Path
) -> None:
    lab = clean_slurm
    since, until = (day + hour * HOUR for hour in SPAN_HOURS)
    program = program_on_the_spot(lab, tmp_path / "home")
    answer = program(
        *("report", "--all", "--name", "past", "--format", "json"),
        *("--since", format_utc(since), "--until", format_utc(until)),
        TZ="UTC",
    ).json
    ours = {row["key"]: (row["cpu_seconds"], row["gpu_seconds"]) for row in answer["by_user"]}

    times = [time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) for at in (since, until)]
    report = (
        "env",
        "TZ=UTC",
        "sreport",
        "-n",
        "-P",
        "-t",
        "seconds",
        "-T",
        "cpu,gres/gpu",
        "user",
        "top",
    )
    printed = lab.admin(*report, f"start={times[0]}", f"end={times[1]}").stdout
    theirs: dict[str, dict[str, int]] = {}
    for line in printed.decode().split():
        _cluster, login, *_, tres, used = line.split("|")
        theirs.setdefault(login, {})[tres] = int(used)
    assert ours == {user: (used["cpu"], used["gres/gpu"]) for user, used in theirs.items()}
    assert len(ours) == 2

    # sacct's own list of those that ended in the span, counted by state.
    ended = (
        "env",
        "TZ=UTC",
        "SLURM_TIME_FORMAT=%s",
        "sacct",
        "-a",
        "-n",
        "-P",
        "-X",
        "-o",
        "state,end",
    )
    listed = lab.admin(*ended, "--name", "past", "-S", times[0], "-E", times[1]).stdout
    rows = [line.split("|") for line in listed.decode().split()]
    states = Counter(state for state, end in rows if since <= int(end) < until)
    assert answer["total"]["jobs"] == states.total() > 100
    assert answer["total"]["failed"] == states["FAILED"] + states["TIMEOUT"]
    assert sum(row["cpu_seconds"] for row in answer["by_day"]) == answer["total"]["cpu_seconds"]
