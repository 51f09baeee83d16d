"""What is typed into the form as a request, and a request as it would be typed."""

from __future__ import annotations

import pytest

from hpcdash.backends.pbs import lint as pbs_lint
from hpcdash.backends.slurm import lint as slurm_lint
from hpcdash.domain.request import Container, Launcher, Runtime, SlotType
from hpcdash.services.submit.form import (
    Draft,
    parse_draft,
    read_form,
    read_script_form,
    split_error,
)
from hpcdash.services.submit.form_fields import FIELDS, GROUPS
from tests.support.records import for_each

ALL = {
    "name": "train",
    "command": "module load cuda\npython train.py",
    "queue": "gpu",
    "slots": "8",
    "slots_per_node": "4",
    "slot_type": "cuda",
    "gpu_type": "a100",
    "cpus_per_gpu": "12",
    "memory": "64G",
    "time": "2h",
    "array": "1-10%1",
    "after": "12 13_[1-2]",
    "hold": "yes",
    "account": "lab",
    "qos": "high",
    "project": "llm",
    "work_dir": "/scratch/me",
    "environment": "A=1\nB=two words = 2",
    "container.image": "docker://python:3.12",
    "container.runtime": "podman",
    "container.binds": "/data:/data:ro '/with blank:/x'",
    "signal": "B:USR1@600",
    "requeue": "yes",
    "kill_switch": "/scratch/KILL",
    "save_switch": "/scratch/SAVE",
    "checkpoints": "/scratch/run",
    "rank_logs": "yes",
    "job_library": "no",
    "rank_variables": "nodes",
    "launcher": "torchrun",
    "exclude_nodes": "n[01-03] n17",
    "extra_args": '--nice=3 --comment="a b" -A other',
    "place": "scatter:excl",
    "attributes": "group_list=lab umask=027",
    "keep_files": "oe",
}

READERS = {"slurm": slurm_lint, "pbs": pbs_lint}


def test_every_field_of_the_form_reaches_the_request() -> None:
    reading = read_form(Draft(ALL))
    request = reading.request
    assert reading.problems == {}
    assert request is not None
    assert (request.slots, request.slots_per_node, request.slot_type) == (8, 4, SlotType.CUDA)
    assert request.cpus_per_gpu == 12
    assert (request.limit_seconds, request.memory_bytes) == (7200, 64 * 1024**3)
    assert request.command == "module load cuda\npython train.py"
    assert (str(request.array), request.after, request.hold) == ("1-10%1", ("12", "13_[1-2]"), True)
    assert request.environment == {"A": "1", "B": "two words = 2"}
    assert request.container == Container(
        Runtime.PODMAN, "docker://python:3.12", ("/data:/data:ro", "/with blank:/x")
    )
    assert request.extra_args == ("--nice=3", '--comment="a b"', "-A other")
    assert (request.place, request.attributes) == ("scatter:excl", ("group_list=lab", "umask=027"))
    assert request.keep_files == "oe"
    assert request.exclude_nodes == ("n[01-03]", "n17")
    assert (request.launcher, request.requeue) == (Launcher.TORCHRUN, True)
    assert (request.checkpoints, request.job_library) == ("/scratch/run", False)
    assert (request.rank_variables, request.rank_logs) == ("nodes", True)


def test_a_request_that_was_typed_is_typed_again_as_it_was() -> None:
    again = parse_draft(read_form(Draft(ALL)).text)
    assert read_form(again).request == read_form(Draft(ALL)).request
    assert dict(again.texts) == {**ALL, "container.binds": "/data:/data:ro '/with blank:/x'"}


@for_each(("typed", "sizes"), [("2", (2,)), ("2 4 8", (2, 4, 8)), ("8, 4", (4, 8))])
def test_one_number_of_slices_or_those_that_fit_are_typed_in_one_line(
    typed: str, sizes: tuple[int, ...]
) -> None:
    reading = read_form(Draft({"command": "true", "slice": "v4-16", "num_slices": typed}))
    assert reading.request is not None
    assert reading.request.num_slices == sizes
    assert parse_draft(reading.text).texts["num_slices"] == typed.replace(",", "")
    wrong = read_form(Draft({"command": "true", "slice": "v4-16", "num_slices": "2 few"}))
    assert wrong.problems.keys() == {"num_slices"}


def test_what_has_no_field_is_kept_and_comes_back() -> None:
    text = 'command = "x"\nworkspace = "w"\nkind = "cmd"\n[site]\ntres_supported = false\n'
    draft = parse_draft(text)
    assert set(draft.rest) == {"workspace", "kind", "site"}
    request = read_form(draft).request
    assert request is not None
    assert (request.workspace, request.kind, request.site.tres_supported) == ("w", "cmd", False)


@for_each(
    ("name", "text", "words"),
    [
        ("slots", "many", "whole number"),
        ("time", "30", "has no unit"),
        ("memory", "64", "has no unit"),
        ("slot_type", "gpu", "expected"),
        ("array", "3-", "3-"),
        ("environment", "1A=x", "not a variable name"),
        ("environment", "PATH", "expected NAME=value"),
        ("container.binds", '"/a', "unclosed quote"),
        ("container.binds", "/a:b", "in the container must start with '/'"),
        ("extra_args", "--comment='x", "unclosed quote"),
        ("signal", "USR1", "use"),
        ("chain", "0", "from 1 to 100"),
        ("chain", "2x", "from 1 to 100"),
    ],
)
def test_what_is_wrong_is_told_of_its_field(name: str, text: str, words: str) -> None:
    image = {"container.image": "x.sif"} if name.startswith("container") else {}
    reading = read_form(Draft({"command": "x", **image, name: text}))
    assert reading.request is None
    assert words in reading.problems[name]
    assert set(reading.problems) == {name}


def test_an_empty_form_misses_a_command_and_nothing_else() -> None:
    assert read_form(Draft()).problems == {"command": "missing: set command, script or [call]"}


def test_each_odd_name_of_a_variable_is_told() -> None:
    problems = read_form(Draft({"command": "x", "environment": "1A=x\nGOOD=1\nB-C=2"})).problems
    assert problems["environment"].count("not a variable name") == 2
    assert problems["environment"].startswith("1A: ")
    assert "; B-C: " in problems["environment"]


def test_a_chain_of_an_array_is_not_both() -> None:
    reading = read_form(Draft({"command": "x", "array": "1-4%1", "chain": "3"}))
    assert "use either array or chain" in reading.problems["chain"]


def test_quotes_line_ends_and_odd_letters_of_a_command_stay_what_they_are() -> None:
    command = """python -c 'print("a\\tb")' # ü "end"\n\techo \\"""
    request = read_form(Draft({"command": command})).request
    assert request is not None
    assert request.command == command


@pytest.mark.parametrize(
    ("directives", "options"),
    [
        ("slurm", ("--partition=gpu", "--time=01:30:00", "--nice=3")),
        ("pbs", ("-q", "gpu", "-l", "walltime=01:30:00", "--nice=3")),
    ],
)
def test_what_is_said_over_a_script_is_in_the_words_of_its_scheduler(
    directives: str, options: tuple[str, ...]
) -> None:
    typed = {
        "file": "a.sh",
        "queue": "gpu",
        "time": "90m",
        "extra_args": "--nice=3",
        "array": "1-3",
        "after": "7",
    }
    reading = read_script_form(
        Draft({**typed, "hold": "yes", "arguments": "--epochs '1 2'"}), READERS[directives]
    )
    assert reading.problems == {}
    assert reading.options == options
    assert (reading.array, reading.after, reading.held) == ("1-3", ("7",), True)
    assert reading.arguments == ("--epochs", "1 2")


def test_a_script_without_a_path_is_missing_one() -> None:
    assert read_script_form(Draft(), READERS["slurm"]).problems["file"].startswith("missing")


@for_each(
    ("words", "field"),
    [
        ("queue: 'a b' is not allowed in a batch script", "queue"),
        ("container.image: no such scheme", "container.image"),
        ("-A is not allowed in extra_args: account sets it", "extra_args"),
        ("storage_root: no path", ""),
        ("nothing is known: ask again", ""),
    ],
)
def test_an_error_is_told_of_the_field_that_it_names(words: str, field: str) -> None:
    assert split_error(words)[0] == field


def test_each_field_has_a_hint_and_stands_in_one_group() -> None:
    names = [field.name for group in GROUPS for field in group.fields]
    assert len(names) == len(set(names)) == len(FIELDS)
    assert all(field.hint and len(field.label) <= 13 for field in FIELDS.values())
