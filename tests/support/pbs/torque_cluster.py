"""A made-up Torque cluster: its jobs, nodes, queues and server, attribute by attribute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.support.pbs.torque_standin import CLOCK, SERVER

SERVER_NAME = SERVER
_HOUR = 3600
_LOGIN = "login1.example.org"


@dataclass(frozen=True, slots=True)
class Record:
    """Something with attributes, in the order they are printed; `name` is its id.

    A resource is NAME.RESOURCE.
    """

    name: str
    attributes: Mapping[str, str]


def _job(
    number: str,
    name: str,
    state: str,
    *,
    user: str = "maya",
    queue: str = "batch",
    submitted_seconds_ago: int = 2 * _HOUR,
    started_seconds_ago: int | None = None,
    ended_seconds_ago: int | None = None,
    exec_host: str = "",
    asked: Mapping[str, str] | None = None,
    used: Mapping[str, str] | None = None,
    task: str = "",
    exit_status: str = "",
    variables: str = "",
    **more: str,
) -> Record:
    """One job as `qstat -f` orders it; times are seconds before CLOCK."""
    start = "" if started_seconds_ago is None else str(CLOCK - started_seconds_ago)
    end = "" if ended_seconds_ago is None else str(CLOCK - ended_seconds_ago)
    submitted = str(CLOCK - submitted_seconds_ago)
    plain = number.partition("[")[0]
    stem = name.removesuffix(f"-{task}") if task else name
    ending = f"{plain}-{task}" if task else plain
    folder = f"/home/{user}/runs"
    walltime = (asked or {}).get("walltime", "")
    remaining = ""
    if state == "R" and walltime and started_seconds_ago is not None:
        hours, minutes, seconds = (int(part) for part in walltime.split(":"))
        remaining = str(hours * _HOUR + minutes * 60 + seconds - started_seconds_ago)
    environment = ",".join(
        part
        for part in (
            f"PBS_ARRAYID={task}" if task else "",
            f"PBS_O_QUEUE={queue},PBS_O_HOME=/home/{user},PBS_O_LOGNAME={user}",
            "PBS_O_PATH=/usr/local/bin:/usr/bin:/bin,PBS_O_SHELL=/bin/bash,PBS_O_LANG=en_US.UTF-8",
            variables,
            f"PBS_O_WORKDIR={folder},PBS_O_HOST={_LOGIN},PBS_O_SERVER={SERVER_NAME}",
        )
        if part
    )
    attributes = {
        "Job_Name": name,
        "Job_Owner": f"{user}@{_LOGIN}",
        **{f"resources_used.{key}": value for key, value in (used or {}).items()},
        "job_state": state,
        "queue": queue,
        "server": SERVER_NAME,
        "Account_Name": more.pop("Account_Name", ""),
        "Checkpoint": "u",
        "ctime": submitted,
        "depend": more.pop("depend", ""),
        "Error_Path": f"{_LOGIN}:{folder}/{stem}.e{ending}",
        "exec_host": exec_host,
        "Execution_Time": more.pop("Execution_Time", ""),
        "Hold_Types": more.pop("Hold_Types", "n"),
        "Join_Path": more.pop("Join_Path", "n"),
        "Keep_Files": "n",
        "Mail_Points": "a",
        "mtime": end or start or submitted,
        "Output_Path": f"{_LOGIN}:{folder}/{stem}.o{ending}",
        "Priority": "0",
        "qtime": submitted,
        "Rerunable": "True",
        **{f"Resource_List.{key}": value for key, value in (asked or {}).items()},
        "session_id": "20117" if start else "",
        "Variable_List": environment,
        "comment": more.pop("comment", ""),
        "euser": user,
        "egroup": "users",
        "queue_type": "E",
        "etime": "" if state in "HW" else submitted,
        "exit_status": exit_status,
        "submit_args": more.pop("submit_args", f"{stem}.sh"),
        "job_array_id": task,
        "start_time": start,
        "Walltime.Remaining": remaining,
        "start_count": "1" if start else "",
        "fault_tolerant": "False",
        "comp_time": end,
        "job_radix": "0",
        "total_runtime": "" if not end or not start else f"{int(end) - int(start)}.482710",
        "submit_host": _LOGIN,
        "init_work_dir": folder,
        **more,
        "request_version": "1",
    }
    return Record(
        f"{number}.{SERVER_NAME}", {key: value for key, value in attributes.items() if value != ""}
    )


def _used(walltime: str, cput: str, mem: str) -> Mapping[str, str]:
    return {"cput": cput, "energy_used": "0", "mem": mem, "vmem": "4194304kb", "walltime": walltime}


_SWEEP = {"nodes": "1:ppn=2", "walltime": "04:00:00", "nodect": "1"}
_SHORT = {"nodes": "1:ppn=1", "walltime": "00:30:00", "nodect": "1"}


def _ended(
    number: str, name: str, exit_status: str, *, minutes_ago: int, walltime: str = "00:20:00"
) -> Record:
    hours, minutes, seconds = (int(part) for part in walltime.split(":"))
    ran = hours * _HOUR + minutes * 60 + seconds
    return _job(
        number,
        name,
        "C",
        submitted_seconds_ago=minutes_ago * 60 + ran + 60,
        started_seconds_ago=minutes_ago * 60 + ran,
        ended_seconds_ago=minutes_ago * 60,
        exec_host="n01/4",
        asked=_SHORT,
        used=_used(walltime, walltime, "524288kb"),
        exit_status=exit_status,
    )


JOBS = (
    _job(
        "1042",
        "train-resnet",
        "R",
        queue="gpu",
        started_seconds_ago=6450,
        exec_host="g01/0-3+g02/0",
        asked={
            "mem": "64gb",
            "nodes": "g01:ppn=4:gpus=1+g02:ppn=1:gpus=1",
            "walltime": "24:00:00",
            "nodect": "2",
        },
        used=_used("01:47:22", "07:01:10", "18874368kb"),
        variables='HPCDASH_MARK=hpcdash:3f2a9c,NOTE=a <b> & "c"',
        Account_Name="physics",
        exec_gpus="g01-gpu/0+g02-gpu/1",
        submit_args="-l nodes=g01:ppn=4:gpus=1+g02:ppn=1:gpus=1,walltime=24:00:00 -q gpu "
        "train-resnet.sh",
    ),
    _job(
        "1043[1]",
        "sweep-1",
        "C",
        started_seconds_ago=5400,
        ended_seconds_ago=1800,
        exec_host="n01/0-1",
        asked=_SWEEP,
        used=_used("01:00:00", "01:58:12", "1048576kb"),
        task="1",
        exit_status="0",
        submit_args="-t 1-4%2 sweep.sh",
    ),
    _job(
        "1043[2]",
        "sweep-2",
        "R",
        started_seconds_ago=5400,
        exec_host="n01/2-3",
        asked=_SWEEP,
        used=_used("01:30:00", "02:55:40", "1048576kb"),
        task="2",
        submit_args="-t 1-4%2 sweep.sh",
    ),
    _job(
        "1043[3]",
        "sweep-3",
        "R",
        started_seconds_ago=1790,
        exec_host="n02/0-1",
        asked=_SWEEP,
        used=_used("00:29:50", "00:55:01", "1048576kb"),
        task="3",
        submit_args="-t 1-4%2 sweep.sh",
    ),
    _job(
        "1043[4]",
        "sweep-4",
        "H",
        asked=_SWEEP,
        task="4",
        Hold_Types="l",
        submit_args="-t 1-4%2 sweep.sh",
    ),
    _job("1044", "held-by-me", "H", asked=_SHORT, Hold_Types="u"),
    _job(
        "1045",
        "after-training",
        "H",
        asked=_SHORT,
        Hold_Types="s",
        depend=f"afterok:1042.{SERVER_NAME}@{SERVER_NAME}",
    ),
    _job("1046", "tonight", "W", asked=_SHORT, Execution_Time=str(CLOCK + 6 * _HOUR)),
    _job(
        "1047",
        "big",
        "Q",
        user="jon",
        asked={"nodes": "40:ppn=8", "walltime": "48:00:00", "nodect": "40"},
        comment="Not Running: Not enough of the right type of nodes are available",
    ),
    _job("1048", '<b>&"it\'s"', "Q", user="jon", asked=_SHORT),
    _job("1049", "odd-bytes", "Q", user="jon", asked=_SHORT, variables="A=one\ntwo\x1b[31m \udce9"),
    _job(
        "1050",
        "ending",
        "E",
        started_seconds_ago=600,
        exec_host="n02/2",
        asked=_SHORT,
        used=_used("00:10:00", "00:09:58", "262144kb"),
    ),
    _job(
        "1051",
        "paused",
        "S",
        user="jon",
        started_seconds_ago=3000,
        exec_host="n02/3",
        asked=_SHORT,
        used=_used("00:20:00", "00:19:58", "262144kb"),
    ),
    _job("1052", "joined", "Q", asked={"procs": "16", "walltime": "01:00:00"}, Join_Path="oe"),
    _ended("1030", "went-well", "0", minutes_ago=4),
    _ended("1031", "failed", "1", minutes_ago=4),
    _ended("1032", "deleted", "271", minutes_ago=3),
    _ended("1033", "killed", "265", minutes_ago=3),
    _ended("1034", "too-much-memory", "-10", minutes_ago=2),
    _ended("1035", "too-slow", "-11", minutes_ago=2, walltime="00:30:14"),
    _ended("1036", "too-much-cpu", "-12", minutes_ago=2),
    _ended("1037", "never-began", "-2", minutes_ago=1, walltime="00:00:00"),
)

# Without -t qstat shows an array in place of its tasks.
SUMMARISED_JOBS = (
    *(job for job in JOBS if "[" not in job.name),
    _job(
        "1043[]",
        "sweep",
        "Q",
        asked=_SWEEP,
        submit_args="-t 1-4%2 sweep.sh",
        job_array_request="1-4%2",
    ),
)


def _status(
    load: str,
    jobs: str,
    *,
    state: str = "free",
    total: str = "67108864kb",
    free: str = "50331648kb",
) -> str:
    return (
        "opsys=linux,uname=Linux n 3.10.0-1127.el7.x86_64 #1 SMP Tue Mar 31 23:36:51 UTC 2020 "
        "x86_64,"
        f"sessions=20117,nsessions=1,nusers=1,idletime=1201,totmem={total},availmem={free},physmem={total},ncpus=8,"
        f"loadave={load},gres=,netload=2262988229,state={state},varattr= "
        ",cpuclock=Fixed,macaddr=ac:1f:6b:6a:ed:34,"
        f"version=6.1.3,rectime={CLOCK - 20},jobs={jobs}"
    )


def _gpu(index: int, state: str, utilization: int) -> str:
    return (
        f"gpu[{index}]=gpu_id=00000000:0{index + 3}:00.0;gpu_pci_location_id=00000000:0{index + 3}:00.0;"
        "gpu_product_name=Tesla V100-SXM2-32GB;gpu_memory_total=32510 MB;gpu_memory_used=812 "
        "MB;gpu_mode=Default;"
        f"gpu_state={state};gpu_utilization={utilization}%;gpu_temperature=40 C"
    )


def _node(name: str, state: str, properties: str, **more: str) -> Record:
    attributes = {
        "state": state,
        "power_state": "Running",
        "np": "8",
        "properties": properties,
        "ntype": "cluster",
        "jobs": more.pop("jobs", ""),
        "status": more.pop("status", ""),
        "note": more.pop("note", ""),
        "mom_service_port": "15002",
        "mom_manager_port": "15003",
        **more,
    }
    return Record(name, {key: value for key, value in attributes.items() if value != ""})


_DRIVER = "driver_ver=450.51.05,timestamp=Wed Mar  4 09:29:41 2026"
NODES = (
    _node(
        "g01",
        "free",
        "gpu,v100",
        jobs=f"0-3/1042.{SERVER_NAME}",
        status=_status("3.91", f"1042.{SERVER_NAME}"),
        gpus="2",
        gpu_status=f"{_gpu(0, 'Exclusive', 97)},{_gpu(1, 'Unallocated', 0)},{_DRIVER}",
    ),
    _node(
        "g02",
        "free",
        "gpu,v100",
        jobs=f"0/1042.{SERVER_NAME}",
        status=_status("1.02", f"1042.{SERVER_NAME}"),
        gpus="2",
        gpu_status=f"{_gpu(0, 'Unallocated', 0)},{_gpu(1, 'Exclusive', 88)},{_DRIVER}",
    ),
    _node(
        "n01",
        "free",
        "batch",
        jobs=f"2-3/1043[2].{SERVER_NAME}",
        status=_status("2.00", f"1043[2].{SERVER_NAME}"),
    ),
    _node(
        "n02",
        "job-exclusive",
        "batch",
        jobs=f"0-1/1043[3].{SERVER_NAME},2/1050.{SERVER_NAME},3-7/1051.{SERVER_NAME}",
        status=_status("7.88", f"1043[3].{SERVER_NAME} 1050.{SERVER_NAME} 1051.{SERVER_NAME}"),
    ),
    _node("n03", "offline", "batch", status=_status("0.00", ""), note="disk swap, Tuesday (ops)"),
    _node("n04", "down", "batch"),
    _node("n05", "down,offline", "batch", note="no power: see <ticket> 4711 & ask"),
    _node("n06", "busy", "batch", status=_status("31.50", "", state="busy")),
    # As Torque before 5 wrote its jobs, and a node that takes no part in anything.
    _node("n07", "free", "batch", jobs=f"0/1060.{SERVER_NAME}, 1/1060.{SERVER_NAME}"),
    _node("n08", "state-unknown,down", "batch"),
)

QUEUES = (
    Record(
        "batch",
        {
            "queue_type": "Execution",
            "total_jobs": "21",
            "state_count": "Transit:0 Queued:4 Held:3 Waiting:1 Running:3 Exiting:1 Complete:9 ",
            "resources_default.nodes": "1",
            "resources_default.walltime": "01:00:00",
            "mtime": "1771200000",
            "resources_assigned.nodect": "4",
            "enabled": "True",
            "started": "True",
        },
    ),
    Record(
        "gpu",
        {
            "queue_type": "Execution",
            "total_jobs": "1",
            "state_count": "Transit:0 Queued:0 Held:0 Waiting:0 Running:1 Exiting:0 Complete:0 ",
            "resources_max.walltime": "48:00:00",
            "resources_default.neednodes": "gpu",
            "acl_group_enable": "True",
            "acl_groups": "users",
            "mtime": "1771200000",
            "resources_assigned.nodect": "2",
            "enabled": "True",
            "started": "True",
        },
    ),
    Record(
        "closed",
        {
            "queue_type": "Execution",
            "total_jobs": "0",
            "state_count": "Transit:0 Queued:0 Held:0 Waiting:0 Running:0 Exiting:0 Complete:0 ",
            "max_running": "6",
            "mtime": "1771200000",
            "enabled": "False",
            "started": "True",
        },
    ),
    Record(
        "stopped",
        {
            "queue_type": "Execution",
            "total_jobs": "0",
            "state_count": "Transit:0 Queued:0 Held:0 Waiting:0 Running:0 Exiting:0 Complete:0 ",
            "mtime": "1771200000",
            "enabled": "True",
            "started": "False",
        },
    ),
    Record(
        "feed",
        {
            "queue_type": "Route",
            "total_jobs": "0",
            "state_count": "Transit:0 Queued:0 Held:0 Waiting:0 Running:0 Exiting:0 Complete:0 ",
            "route_destinations": "batch,gpu",
            "mtime": "1771200000",
            "enabled": "True",
            "started": "True",
        },
    ),
)

SERVER_ATTRIBUTES = {
    "server_state": "Active",
    "scheduling": "True",
    "total_jobs": "22",
    "state_count": "Transit:0 Queued:4 Held:3 Waiting:1 Running:4 Exiting:1 Complete:9 ",
    "acl_hosts": SERVER_NAME,
    "managers": f"root@{SERVER_NAME}",
    "operators": f"root@{SERVER_NAME}",
    "default_queue": "batch",
    "log_events": "2047",
    "mail_from": "adm",
    "query_other_jobs": "True",
    "resources_assigned.nodect": "6",
    "scheduler_iteration": "600",
    "node_check_rate": "150",
    "tcp_timeout": "300",
    "job_stat_rate": "300",
    "poll_jobs": "True",
    "mom_job_sync": "True",
    "pbs_version": "6.1.3",
    "keep_completed": "300",
    "next_job_number": "1053",
    "net_counter": "5 3 2",
}
