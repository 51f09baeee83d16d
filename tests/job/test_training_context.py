"""What a process knows of its job from its environment."""

import dataclasses
from pathlib import Path

import pytest

from hpcdash.job.context import JobContext, current_job_context, expand_hosts
from hpcdash.job.rank_variables import processes_in_all, rank_among_all
from tests.support.records import for_each

SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "8",
    "SLURM_NNODES": "2",
    "SLURM_NTASKS_PER_NODE": "4",
    "SLURM_GPUS_PER_NODE": "a100:4",
    "SLURM_STEP_NODELIST": "gpu[08-09]",
    "SLURM_SRUN_COMM_PORT": "41234",
    "SLURM_ARRAY_TASK_ID": "3",
    "JOB_DIR": "/scratch/ada/4711",
}


def of(**variables: str) -> JobContext:
    return JobContext.from_environment(variables)


def test_a_task_of_slurm_knows_where_it_stands() -> None:
    assert of(**SLURM) == JobContext(
        job_id="4711",
        step_id="0",
        node_rank=1,
        rank=5,
        local_rank=1,
        world_size=8,
        num_nodes=2,
        local_world_size=4,
        gpus_per_node=4,
        hostnames=("gpu08", "gpu09"),
        master_addr="gpu08",
        master_port=24711,
        output_dir="/scratch/ada/4711",
        array_index=3,
    )


def test_torch_gets_what_is_known_and_zeros_too() -> None:
    assert of(**SLURM, MASTER_ADDR="10.0.0.1", MASTER_PORT="1234").torch_distributed_env() == {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "1234",
        "WORLD_SIZE": "8",
        "RANK": "5",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "NODE_RANK": "1",
    }
    assert of(SLURM_PROCID="0").torch_distributed_env() == {"MASTER_PORT": "29500", "RANK": "0"}


def test_each_fallback_is_taken_where_the_first_source_is_missing() -> None:
    context = of(
        SLURM_JOBID="1",
        WORLD_SIZE="4",
        SLURM_JOB_NUM_NODES="3",
        SLURM_GPUS_ON_NODE="2",
        SLURM_TASKS_PER_NODE="4(x2),3",
        SLURM_LAUNCH_NODE_IPADDR="10.1.1.1",
    )
    assert (context.job_id, context.world_size, context.num_nodes, context.gpus_per_node) == (
        "1",
        4,
        3,
        2,
    )
    assert (context.local_world_size, context.master_addr, context.master_port) == (
        4,
        "10.1.1.1",
        20001,
    )
    assert of(SLURM_NODELIST="a[1-2]", SLURM_JOB_NODELIST="b1").hostnames == ("a1", "a2")
    assert of(SLURM_JOB_NODELIST="b[1-3]").num_nodes == 3


@for_each("bad", ["", "x", "-1", "4.0", "٣", "1e3", "9" * 40])
def test_a_number_that_is_none_is_not_known(bad: str) -> None:
    context = of(
        SLURM_PROCID=bad,
        SLURM_NTASKS=bad,
        SLURM_NNODES=bad,
        SLURM_GPUS_PER_NODE=bad,
        SLURM_NTASKS_PER_NODE=bad,
        MASTER_PORT=bad,
    )
    assert context == JobContext(master_port=29500)


def test_ranks_meet_at_a_port_of_their_own_job_and_step_below_those_that_anybody_is_given() -> None:
    def port(**variables: str) -> int | None:
        return of(**variables).master_port

    step = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0"}
    beside = [
        port(**step, SLURM_PROCID="1"),
        port(SLURM_JOB_ID="4712", SLURM_STEP_ID="0"),
        port(SLURM_JOB_ID="4711", SLURM_STEP_ID="1"),
        port(SLURM_JOB_ID="4711", SLURM_STEP_ID="2"),
        *(
            port(PBS_JOBID="4800[].pbs", PBS_ARRAY_INDEX=str(index), PBS_TASKNUM="3")
            for index in (1, 2)
        ),
    ]
    assert len(set(beside)) == 6
    assert {port(SLURM_JOB_ID=str(job), SLURM_STEP_ID="7") for job in range(12000)} == set(
        range(20000, 32000)
    )
    assert port(**step, SLURM_SRUN_COMM_PORT="41234") == beside[0]
    # Of two tasks that pbs_tmrsh started, and of what mpirun started in its step on another node.
    assert port(PBS_JOBID="12.pbs", PBS_TASKNUM="1") == port(PBS_JOBID="12.pbs", PBS_TASKNUM="2")
    mpi = {"SLURM_JOB_ID": "4711", "OMPI_COMM_WORLD_RANK": "3"}
    assert port(**mpi) == port(**mpi, SLURM_STEP_ID="4")
    assert (port(**step, MASTER_PORT="1234"), port(PBS_JOBID="x")) == (1234, 29500)


@pytest.mark.parametrize("asked", ["2", "2(x2)", "2(x1),2"])
def test_tasks_of_a_node_are_known_as_slurm_may_count_them(asked: str) -> None:
    assert of(SLURM_NTASKS_PER_NODE=asked).local_world_size == 2
    assert of(SLURM_NTASKS_PER_NODE=asked, SLURM_NODEID="7").local_world_size == 2


@for_each(
    ("node", "tasks", "on_this_node"),
    [
        ("0", "2,1", 2),
        ("1", "2,1", 1),
        ("1", "2(x1),1", 1),
        ("2", "4(x3),2,1(x2)", 4),
        ("4", "4(x3),2,1(x2)", 1),
    ],
)
def test_a_node_with_fewer_tasks_than_the_first_says_its_own(
    node: str, tasks: str, on_this_node: int
) -> None:
    assert of(SLURM_NODEID=node, SLURM_STEP_TASKS_PER_NODE=tasks).local_world_size == on_this_node
    # What the job was asked for is not what a step of fewer tasks has.
    asked = {"SLURM_NTASKS_PER_NODE": "8", "SLURM_TASKS_PER_NODE": "8(x6)"}
    assert (
        of(**asked, SLURM_NODEID=node, SLURM_STEP_TASKS_PER_NODE=tasks).local_world_size
        == on_this_node
    )
    assert of(SLURM_TASKS_PER_NODE=tasks).local_world_size == int(tasks[0])
    assert of(SLURM_NODEID="9", SLURM_TASKS_PER_NODE=tasks).local_world_size is None


@for_each(
    ("written", "names"),
    [
        ("n1", ("n1",)),
        ("n[1-3,07],g1", ("n1", "n2", "n3", "n07", "g1")),
        ("n[008-011]", ("n008", "n009", "n010", "n011")),
        ("n[1-9:2]", ("n1", "n3", "n5", "n7", "n9")),
        ("r[1-2]n[01-02]-ib", ("r1n01-ib", "r1n02-ib", "r2n01-ib", "r2n02-ib")),
        ("n[3-1]", ()),
        ("n[1-", ()),
        ("n[a-b]", ()),
        ("n[1-999999999]", ()),
        ("n[1-9:0]", ()),
    ],
)
def test_a_list_of_hosts_is_its_names(written: str, names: tuple[str, ...]) -> None:
    assert expand_hosts(written) == names


def test_pbs_says_its_hosts_in_a_file_once_for_each_process(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("cn1\ncn1\ncn2\ncn2\n")
    context = of(
        PBS_JOBID="12[3].server", PBS_NODEFILE=str(nodes), PBS_ARRAY_INDEX="3", PBS_TASKNUM="1"
    )
    assert (context.job_id, context.step_id, context.array_index) == ("12[3].server", "1", 3)
    assert (context.hostnames, context.num_nodes, context.world_size) == (("cn1", "cn2"), 2, 4)
    assert (context.local_world_size, context.master_addr) == (2, "cn1")
    assert of(PBS_JOBID="1", PBS_NODEFILE=str(tmp_path / "gone"), PBS_ARRAYID="4").array_index == 4


def test_a_rank_of_mpirun_is_not_the_task_of_slurm_that_started_it() -> None:
    assert rank_among_all({"SLURM_PROCID": "0", "OMPI_COMM_WORLD_RANK": "3"}) == 3
    assert (
        of(
            SLURM_PROCID="0", SLURM_NTASKS="1", OMPI_COMM_WORLD_RANK="3", OMPI_COMM_WORLD_SIZE="4"
        ).rank
        == 3
    )
    assert (rank_among_all({}), processes_in_all({}), processes_in_all({"WORLD_SIZE": "8"})) == (
        0,
        1,
        8,
    )


IN_A_STEP_OF_TWO = {
    "SLURM_STEP_ID": "0",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_NTASKS_PER_NODE": "1",
}
IN_A_BATCH_SCRIPT = {
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "8",
}


def three(rank: int, local_rank: int, world_size: int) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": str(local_rank), "WORLD_SIZE": str(world_size)}


@for_each(
    ("environment", "stands"),
    [
        # torchrun, four on each of two nodes, once a node by srun.
        (
            {
                **IN_A_STEP_OF_TWO,
                **three(6, 2, 8),
                "LOCAL_WORLD_SIZE": "4",
                "TORCHELASTIC_RUN_ID": "x",
            },
            (6, 2, 8, 4),
        ),
        # deepspeed and accelerate, which say no more than the three.
        ({**IN_A_STEP_OF_TWO, **three(6, 2, 8)}, (6, 2, 8, None)),
        # torchrun, one a node: its ranks need not be in the order of the nodes.
        ({**IN_A_STEP_OF_TWO, **three(0, 0, 2), "TORCHELASTIC_RUN_ID": "x"}, (0, 0, 2, None)),
        # deepspeed in a batch script that asked for as many tasks.
        ({**IN_A_BATCH_SCRIPT, **three(5, 5, 8), "LOCAL_WORLD_SIZE": "8"}, (5, 5, 8, 8)),
        # torchrun under mpirun, once a node.
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", **three(5, 1, 8)},
            (5, 1, 8, None),
        ),
        # srun, in a script that exported the three for its own shell, where they are those of task
        # 0.
        ({**IN_A_STEP_OF_TWO, **three(0, 0, 2)}, (1, 0, 2, 1)),
        # srun, in a script with a RANK of its own, as of an adapter.
        ({**IN_A_STEP_OF_TWO, "RANK": "16"}, (1, 0, 2, 1)),
        # Lightning, which starts processes itself and says no RANK: on one node, on two of PBS, in
        # a batch script.
        ({"NODE_RANK": "0", "LOCAL_RANK": "2", "WORLD_SIZE": "4"}, (2, 2, 4, None)),
        (
            {"NODE_RANK": "1", "NUM_NODES": "2", "LOCAL_RANK": "2", "WORLD_SIZE": "8"},
            (6, 2, 8, None),
        ),
        (
            {**IN_A_BATCH_SCRIPT, "NODE_RANK": "0", "LOCAL_RANK": "2", "WORLD_SIZE": "8"},
            (2, 2, 8, None),
        ),
        # torchrun without a scheduler.
        (three(3, 1, 4), (3, 1, 4, None)),
    ],
)
def test_of_launchers_below_others_the_last_one_says_the_rank(
    environment: dict[str, str], stands: tuple[int | None, ...]
) -> None:
    context = of(**environment)
    assert (
        context.rank,
        context.local_rank,
        context.world_size,
        context.local_world_size,
    ) == stands
    assert (rank_among_all(environment), processes_in_all(environment)) == (
        context.rank,
        context.world_size,
    )
    assert context.torch_distributed_env()["RANK"] == str(context.rank)


def test_a_rank_of_another_node_is_not_taken_for_the_first_where_its_number_cannot_be_known() -> (
    None
):
    on_second_node = {"NODE_RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "8", "SLURM_PROCID": "0"}
    assert (of(**on_second_node).rank, rank_among_all(on_second_node) > 0) == (None, True)


def test_the_context_is_read_once_and_cannot_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    current_job_context.cache_clear()
    monkeypatch.setenv("SLURM_PROCID", "2")
    context = current_job_context()
    monkeypatch.setenv("SLURM_PROCID", "3")
    assert current_job_context() is context
    assert (context.rank, context.is_main) == (2, False)
    with pytest.raises(dataclasses.FrozenInstanceError):
        context.rank = 0  # type: ignore[misc]
    current_job_context.cache_clear()
