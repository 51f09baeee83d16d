"""What a request leaves unsaid: its queue, and what its site says of that queue."""

from __future__ import annotations

import pytest

from hpcdash.config.queue_defaults import Pool, with_queue_defaults
from hpcdash.config.request import read_request
from hpcdash.domain.request import Launcher, Request, Site, SlotType
from tests.support.records import for_each

POOLS = (Pool("cpu", is_default=True), Pool("gpu", has_gpus=True))
GPU = {"GPU": {"account": "llm", "slots_per_node": 8, "slots": 3, "tres_supported": False}}


@for_each(
    ("text", "queue"),
    [
        pytest.param("", "gpu", id="a training asks for GPUs"),
        pytest.param("slots = 0", "cpu", id="none is requested"),
        pytest.param('slot_type = "cpu"', "cpu", id="CPUs requested"),
        pytest.param('slot_type = "rocm"', "gpu", id="GPUs are requested"),
        pytest.param('queue = "long"', "long", id="it names its own"),
    ],
)
def test_a_request_that_names_no_queue_goes_where_what_it_asks_for_is(
    text: str, queue: str
) -> None:
    request = read_request(f'command = "a"\n{text}')
    assert with_queue_defaults(request, {}, POOLS).queue == queue
    assert with_queue_defaults(request, {}, ()).queue == request.queue


def test_where_the_site_s_slots_are_cpus_a_request_that_does_not_say_goes_to_no_gpus() -> None:
    request = Request(command="a", site=Site(slot_type=SlotType.CPU))
    filled = with_queue_defaults(request, {}, POOLS)
    assert (filled.queue, filled.slot_type) == ("cpu", SlotType.CPU)
    asked = Request(command="a", slot_type=SlotType.CUDA, site=Site(slot_type=SlotType.CPU))
    assert with_queue_defaults(asked, {}, POOLS).slot_type is SlotType.CUDA


def test_what_a_queue_says_counts_where_the_request_does_not_say_it() -> None:
    filled = with_queue_defaults(
        read_request('command = "a"\nqueue = "gpu"\naccount = "mine"'), GPU, ()
    )
    assert (filled.account, filled.slots_per_node, filled.site.tres_supported) == ("mine", 8, False)


def test_what_the_default_queue_says_counts_too() -> None:
    filled = with_queue_defaults(Request(command="a"), GPU, POOLS)
    assert (filled.queue, filled.account) == ("gpu", "llm")


def test_a_default_that_was_written_down_is_what_the_person_wants() -> None:
    queues = {"gpu": {"launcher": Launcher.SRUN, "requeue": True, "tres_supported": False}}
    text = (
        'command = "a"\nqueue = "gpu"\nlauncher = "plain"\nrequeue = '
        "false\n[site]\ntres_supported = true"
    )
    filled = with_queue_defaults(read_request(text), queues, ())
    assert (filled.launcher, filled.requeue, filled.site.tres_supported) == (
        Launcher.PLAIN,
        False,
        True,
    )


def test_lists_of_a_queue_go_before_the_request_s_own_and_its_variables_below_them() -> None:
    queues = {
        "gpu": {
            "extra_args": ("--constraint=a100", "--nice=3"),
            "environment": {"A": "queue", "B": "queue"},
        }
    }
    request = Request(
        command="a",
        queue="GPU",
        extra_args=("--nice=3", "--mail-type=END"),
        environment={"A": "own", "C": "own"},
    )
    filled = with_queue_defaults(request, queues, ())
    assert filled.extra_args == ("--constraint=a100", "--nice=3", "--mail-type=END")
    assert filled.environment == {"A": "own", "B": "queue", "C": "own"}
    # Whoever fills it in twice gets the same.
    assert with_queue_defaults(filled, queues, ()) == filled


def test_another_queue_says_nothing_of_this_one() -> None:
    request = Request(command="a", queue="cpu")
    assert with_queue_defaults(request, GPU, POOLS) == request
