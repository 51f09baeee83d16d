"""What is found wrong with a request before it is submitted, by what the cluster offers."""

from __future__ import annotations

from msgspec.structs import replace

from hpcdash.backends.script.body import BatchScript
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.demand import LintFinding
from hpcdash.domain.offers import AccountOffer, Offers, QosOffer, QueueOffer
from hpcdash.domain.request import Request, Site, SlotType
from hpcdash.services.submit.request_lint import format_resources, lint_request
from tests.support.records import for_each

GB, HOUR = 1 << 30, 3600
MAIN = QueueOffer(
    "main", True, True, 48 * HOUR, 4, 2, 32, 20, cpus_per_node=8, memory_per_node_bytes=64 * GB
)
GPU = QueueOffer(
    *("gpu", False, True, 24 * HOUR, 4, 1, 128, 40, 32, 12, ("a100",)),
    cpus_per_node=32,
    gpus_per_node=8,
    memory_per_node_bytes=512 * GB,
)
LONG = QueueOffer(
    "long", False, True, None, 2, 2, 16, 16, cpus_per_node=8, memory_per_node_bytes=64 * GB
)
CLOSED = QueueOffer("closed", False, False, 24 * HOUR, 1, 1, 8, 8, cpus_per_node=8)
OFFERS = Offers(
    (MAIN, GPU, LONG, CLOSED),
    (
        AccountOffer("physics", True, ("normal", "tiny")),
        AccountOffer("chem", False, ("normal", "limited")),
    ),
    (
        QosOffer("normal"),
        QosOffer("tiny", limit_seconds=600),
        QosOffer("limited", most_cpus=6, most_gpus=2),
    ),
    ("a100",),
)


def ask(**asked: object) -> Request:
    return Request(command="x", **asked)  # type: ignore[arg-type]


def found(request: Request, offers: Offers = OFFERS) -> list[tuple[str, str]]:
    return [(one.severity, one.field) for one in lint_request(request, offers)]


def only(request: Request) -> LintFinding:
    (one,) = lint_request(request, OFFERS)
    return one


@for_each(
    "request_",
    [
        ask(slot_type=SlotType.CPU),
        ask(slots=32, slots_per_node=8, queue="gpu", gpu_type="A100", limit_seconds=24 * HOUR),
        ask(slots=32, queue="gpu"),
        ask(account="CHEM", qos="limited", slots=6, slots_per_node=6, queue="main"),
        ask(slots=8, queue="gpu", kind="shell"),
        ask(queue="long", limit_seconds=400 * HOUR),
    ],
)
def test_what_fits_finds_nothing(request_: Request) -> None:
    assert lint_request(request_, OFFERS) == ()


@for_each(
    ("request_", "wanted"),
    [
        (ask(queue="gpuu"), [("error", "queue")]),
        (ask(queue="closed"), [("warning", "queue")]),
        (ask(limit_seconds=49 * HOUR), [("error", "time")]),
        (ask(slots=5, slot_type=SlotType.CPU, queue="main"), [("error", "slots")]),
        (ask(slots=16, slots_per_node=16, queue="gpu"), [("error", "slots_per_node")]),
        (ask(slots=9, kind="shell", queue="gpu"), [("error", "slots")]),
        (ask(slots=33, queue="gpu"), [("error", "slots")]),
        (ask(slot_type=SlotType.CUDA), [("error", "slots")]),
        (ask(gpu_type="a100"), [("error", "slots")]),
        (ask(gpu_type="h100", queue="gpu"), [("error", "gpu_type")]),
        (ask(gpu_type="a100", queue="gpu", slot_type=SlotType.CPU), [("warning", "gpu_type")]),
        (ask(memory_bytes=65 * GB), [("error", "memory")]),
        (ask(account="biology"), [("error", "account")]),
        (ask(qos="tinny"), [("error", "qos")]),
        (ask(qos="limited"), [("error", "qos")]),
        (ask(qos="tiny", limit_seconds=HOUR), [("error", "time")]),
        (
            ask(qos="limited", account="chem", slots=4, slots_per_node=4, queue="gpu"),
            [("error", "slots")],
        ),
    ],
)
def test_what_does_not_fit_is_found_where_it_was_written(
    request_: Request, wanted: list[tuple[str, str]]
) -> None:
    assert found(request_) == wanted


def test_a_name_that_is_not_there_suggests_the_nearest() -> None:
    assert only(ask(queue="GPUS")).next_step == "Did you mean 'gpu'?"
    assert only(ask(queue="zzz")).next_step == "Available: closed, gpu, long, main."


def test_a_queue_that_can_take_all_of_it_is_named() -> None:
    one = only(ask(limit_seconds=60 * HOUR))
    assert one.text == (
        "2-12:00:00 exceeds the limit of queue main, 2-00:00:00: the job would pend forever or "
        "be rejected"
    )
    assert one.next_step == "At most 2-00:00:00. Queue long fits the whole request."
    assert "Queue" not in only(ask(limit_seconds=60 * HOUR, queue="gpu", slots=8)).next_step


def test_what_becomes_of_a_job_in_a_closed_queue_is_said_and_a_refusal_is_an_error() -> None:
    disabled = replace(CLOSED, note="disabled: PBS rejects new jobs", refuses=True)
    stopped = replace(CLOSED, name="stopped", note="stopped: its jobs wait")
    off = replace(MAIN, server_note="scheduling is off on this server: jobs do not start")
    offers = Offers((off, disabled, stopped))
    told = [
        (one.severity, one.field, one.text)
        for queue in ("closed", "stopped", "main")
        for one in lint_request(ask(queue=queue, slot_type=SlotType.CPU), offers)
    ]
    assert told == [
        ("error", "queue", "queue closed is disabled: PBS rejects new jobs"),
        ("warning", "queue", "queue stopped is stopped: its jobs wait"),
        ("warning", "queue", "scheduling is off on this server: jobs do not start"),
    ]


def test_a_qos_may_allow_more_time_than_its_queue() -> None:
    assert found(ask(qos="normal", limit_seconds=60 * HOUR)) == [("warning", "time")]


def test_errors_stand_before_warnings() -> None:
    request = ask(queue="closed", limit_seconds=30 * HOUR)
    assert found(request) == [("error", "time"), ("warning", "queue")]


def test_gpus_that_slurm_may_lay_together_need_no_node_each() -> None:
    assert found(ask(slots=8, queue="gpu")) == []
    assert found(ask(slots=8, queue="gpu", site=Site(tres_supported=False))) == [("error", "slots")]


def test_what_nobody_knows_finds_nothing() -> None:
    request = ask(
        queue="x", account="y", qos="z", slots=1000, slots_per_node=500, limit_seconds=10**9
    )
    assert lint_request(request, Offers()) == ()


def test_the_warnings_of_a_script_are_told_with_the_rest() -> None:
    script = BatchScript(
        "#!/bin/bash\n", "x", ("4 nodes × 32 GPUs = 128: 28 more than the 100 requested",)
    )
    assert lint_request(ask(queue="main"), OFFERS, script.warnings) == (
        LintFinding("warning", "", script.warnings[0]),
    )


@for_each(
    ("request_", "words"),
    [
        (
            ask(slots=32, slots_per_node=8, gpu_type="a100", queue="gpu", limit_seconds=20 * HOUR),
            "4 nodes × 8 A100 for 20 h = 640 GPU-hours; 12 idle now",
        ),
        (ask(slots=4, queue="gpu", limit_seconds=5400), "4 GPUs for 1 h 30 min = 6 GPU-hours; 12 "
                                                        "idle now"),
        (ask(slots=1, queue="gpu", limit_seconds=60), "1 GPU for 1 min = 1 GPU-minute; 12 "
                                                      "idle now"),
        (
            ask(slots=16, slots_per_node=8, slot_type=SlotType.CPU),
            "2 nodes × 8 CPUs for at most the queue's 48 h (up to 768 CPU-hours); 20 CPUs idle now",
        ),
        (
            ask(slots=8, slots_per_node=8, queue="gpu", limit_seconds=HOUR, array=parse_tasks("1-10%2")),
            "8 GPUs × 10 tasks, 2 at a time, for 1 h = 80 GPU-hours; 12 idle now",
        ),
        (
            ask(slots=10, slots_per_node=8, queue="gpu", limit_seconds=72 * HOUR),
            "2 nodes × 8 GPUs for 3 d = 1,152 GPU-hours; 6 more than the 10 requested; 12 idle now",
        ),
        (ask(slots=0, queue="long"), "1 CPU without a time limit; 16 CPUs idle now"),
        (
            ask(slots=2, queue="closed"),
            "2 nodes × 1 CPU for at most the queue's 24 h (up to 48 CPU-hours);"
            " queue closed is not starting jobs now",
        ),
    ],
)  # fmt: skip
def test_what_a_request_comes_to_is_one_line(request_: Request, words: str) -> None:
    assert format_resources(request_, OFFERS) == words


def test_more_nodes_than_have_gpus_are_told_of() -> None:
    mixed = Offers((replace(GPU, nodes=6, gpu_nodes=2),))
    assert lint_request(ask(slots=4, slots_per_node=2, queue="gpu"), mixed) == ()
    request_ = ask(slots=6, slots_per_node=2, queue="gpu", site=Site(tres_supported=False))
    assert (
        lint_request(request_, mixed)[0].text
        == "3 nodes with GPUs requested, but queue gpu has only 2"
    )
    assert (
        lint_request(ask(slots=6, slots_per_node=1, slot_type=SlotType.CPU, queue="gpu"), mixed)
        == ()
    )


def test_pbs_may_put_slots_that_are_not_counted_a_node_on_few_nodes() -> None:
    for request_ in (ask(slots=8, queue="gpu"), ask(slots=8, queue="main", slot_type=SlotType.CPU)):
        assert lint_request(request_, OFFERS, packs_nodes=True) == ()
    (many,) = lint_request(ask(slots=8, slots_per_node=1, queue="gpu"), OFFERS, packs_nodes=True)
    assert "8 nodes requested" in many.text
    cores = ask(slots=8, slot_type=SlotType.CPU, limit_seconds=HOUR)
    assert format_resources(cores, Offers(), packs_nodes=True) == "8 CPUs for 1 h = 8 CPU-hours"


def test_without_offers_there_is_no_word_of_what_is_idle() -> None:
    assert (
        format_resources(ask(slots=4, limit_seconds=HOUR), Offers())
        == "4 GPUs for 1 h = 4 GPU-hours"
    )
    assert format_resources(ask(slots=4), Offers()) == "4 GPUs for the queue's maximum time"


def test_a_type_of_gpu_may_be_a_part_of_a_device_s_whole_name() -> None:
    torque = Offers(
        (QueueOffer("batch", True, nodes=2, gpus=4, gpu_types=("Tesla V100-SXM2-32GB",)),)
    )
    assert found(ask(gpu_type="v100"), torque) == []
    assert found(ask(gpu_type="a100"), torque) == [("error", "gpu_type")]
    assert found(ask(gpu_type="a10", queue="gpu")) == [("error", "gpu_type")]
