"""A person's own commands: their words and environment, whatever a job is called, and how they
end.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hpcdash.config.plugins import Plugin
from hpcdash.errors import CommandError, UsageError
from hpcdash.services.plugins import (
    MAX_LINES,
    OutputLines,
    PluginCommand,
    build_command,
    environment_here,
    run_plugin,
    with_cluster,
)
from hpcdash.transport.local import LocalTransport
from tests.support.job_rows import job_row
from tests.support.records import for_each
from tests.support.scripted_transport import ScriptedTransport
from tests.support.sshd import until_gone

SHELL = [
    "$(rm -rf ~)",
    "`id`",
    "a;b",
    "a b",
    "*",
    "'",
    '"',
    "a\nb",
    "a\x1b]0;x\x07",
    "a\0b",
    "a\ud800",
]
HOSTILE = [*SHELL, "-rf", "--help"]


def built(*command: str, where: str = "here", **row: Any) -> PluginCommand:
    fields = with_cluster(job_row("12", **row), "juno")
    return build_command(Plugin("mine", command, where=where), fields, "job", "12")


async def output_of(command: PluginCommand) -> tuple[int, str]:
    output = OutputLines()
    status = await run_plugin(command, ScriptedTransport(), output.feed)
    return status, "\n".join(line.text for line in output.lines())


def test_a_field_stays_in_its_one_word() -> None:
    assert built("x", "--id={id}", "{id}@{cluster}", "{{id}}", "{}").argv == (
        "x",
        "--id=12",
        "12@juno",
        "{id}",
        "{}",
    )
    argument = ("sh", "-c", 'echo "$1"', "sh", "{name}")
    assert built(*argument, name="$(rm -rf ~) 'a' {id}").argv == (
        *argument[:-1],
        "$(rm -rf ~) 'a' {id}",
    )


def test_the_node_of_a_job_is_its_first() -> None:
    assert built("ssh", "{node}", node_list="g[07-09],h1").argv == ("ssh", "g07")


@pytest.mark.parametrize("name", ["-rf", "--help"])
def test_a_field_is_never_an_option(name: str) -> None:
    with pytest.raises(UsageError, match="begins with '-'"):
        built("ssh", "host", "grep", "--", "{name}", name=name)
    with pytest.raises(UsageError, match="begins with '-' and would be read as an option"):
        built("rm", "{name}", name=name)
    assert built("rm", "--", "{name}", name=name).argv[-1] == name
    assert built("x", "--title={name}", name=name).argv[-1] == f"--title={name}"


@for_each("name", ["a\nb", "a\x1b]0;x\x07", "a\0b", "a\ud800", "a\x9b31m"])
def test_a_field_with_control_characters_is_no_word(name: str) -> None:
    with pytest.raises(UsageError, match="the name of job 12 contains control characters"):
        built("x", "{name}", name=name)


@for_each("name", ["..", "../../home/alice", "a/../../b"])
def test_a_field_does_not_lead_out_of_a_folder(name: str) -> None:
    with pytest.raises(UsageError, match=r"contains '\.\.' and would leave the folder"):
        built("rm", "-r", "/scratch/{name}", name=name)
    assert built("rm", "-r", "/scratch/{name}", name="run..1/a").argv[-1] == "/scratch/run..1/a"


def test_a_field_that_is_unknown_is_no_empty_word() -> None:
    with pytest.raises(UsageError, match="job 12 has no node"):
        built("ssh", "{node}")


@for_each("name", SHELL)
@for_each("program", ["ssh", "/usr/bin/ssh", "watch", "tmux", "clush", "pdsh", "mine"])
def test_no_program_gets_what_a_shell_acts_on_as_it_may_hand_its_words_to_one(
    program: str, name: str
) -> None:
    with pytest.raises(UsageError):
        built(program, "host", "grep", "--", "x{name}", name=name)


@pytest.mark.system
@for_each("name", HOSTILE)
async def test_a_hostile_name_reaches_a_program_as_it_is_or_not_at_all(name: str) -> None:
    try:
        command = built("printf", "[%s]", "x{name}", name=name)
    except UsageError:
        command = built("sh", "-c", 'printf "[x%s]" "$HPCDASH_JOB_NAME"', name=name)
        name = "" if "\0" in name or "\ud800" in name else name
    raw = bytearray()
    assert await run_plugin(command, ScriptedTransport(), raw.extend) == 0
    assert raw.decode() == f"[x{name}]"


def test_every_field_is_a_variable_and_secrets_stay_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LAB_TOKEN", "WANDB_API_KEY", "MAIL", "HARMLESS"):
        monkeypatch.setenv(name, "value")
    command = build_command(
        Plugin("mine", ("x",), secrets=("WANDB_API_KEY",)), {"id": "12", "gpus": 4}, "job", "12"
    )
    environment = environment_here(command, frozenset({"MAIL"}))
    assert (environment["HPCDASH_JOB_ID"], environment["HPCDASH_JOB_GPUS"]) == ("12", "4")
    assert {"HARMLESS", "WANDB_API_KEY"} <= environment.keys()
    assert not {"LAB_TOKEN", "MAIL"} & environment.keys()


def test_no_variable_of_a_row_is_one_that_hpcdash_reads() -> None:
    command = built("x", state="running", queue="gpu")
    assert (command.variables["HPCDASH_JOB_STATE"], command.variables["HPCDASH_JOB_QUEUE"]) == (
        "running",
        "gpu",
    )
    assert (
        not {"HPCDASH_STATE", "HPCDASH_QUEUE", "HPCDASH_CONFIG", "HPCDASH_CACHE"}
        & command.variables.keys()
    )


@pytest.mark.system
async def test_output_has_both_streams_and_the_status_and_nothing_that_a_terminal_obeys() -> None:
    script = r"printf 'out\033[31mred\033[0m\033]0;t\007\n'; printf 'err\n' >&2; exit 3"
    assert await output_of(built("sh", "-c", script)) == (3, "outred\nerr")


@pytest.mark.system
async def test_a_program_that_is_not_there_says_so() -> None:
    with pytest.raises(CommandError, match="no-such-program cannot be run: No such file"):
        await output_of(built("no-such-program"))


@pytest.mark.system
async def test_a_command_is_ended_at_its_limit() -> None:
    plugin = Plugin("mine", ("sleep", "600"), limit_seconds=0.1)
    with pytest.raises(CommandError, match=r"sleep did not finish within 0.1 s"):
        await output_of(build_command(plugin, {}, "job", "12"))


@pytest.mark.system
async def test_a_command_that_is_given_up_ends_with_what_it_started() -> None:
    started = asyncio.Event()
    command = built("sh", "-c", "sleep 600.4711 & echo begun; wait")
    task = asyncio.ensure_future(
        run_plugin(command, ScriptedTransport(), lambda chunk: started.set())
    )
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await until_gone("600.4711") == []


@pytest.mark.system
async def test_on_the_cluster_words_and_variables_are_the_row_s_too() -> None:
    command = built(
        "sh",
        "-c",
        'printf "%s\\n" "$1" "$HPCDASH_JOB_ID" "$HPCDASH_JOB_NAME"',
        "x",
        "{name}",
        where="cluster",
        name=SHELL[0],
    )
    output = OutputLines()
    assert await run_plugin(command, LocalTransport("here"), output.feed) == 0
    assert [line.text for line in output.lines()] == ["$(rm -rf ~)", "12", "$(rm -rf ~)"]


def test_output_is_bounded_in_lines_and_in_their_length() -> None:
    output = OutputLines()
    for number in range(MAX_LINES + 10):
        output.feed(b"%d\n" % number)
    assert (len(output.lines()), output.left_out, output.lines()[0].text) == (MAX_LINES, 10, "10")
    output.feed(b"x" * 1_000_000)
    assert max(len(line.text) for line in output.lines()) <= 16 * 1024
