"""Help in groups with examples, `hpcdash help TOPIC`, and what a shell completes."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from hpcdash import __version__
from hpcdash.cli.completion import completion_script
from hpcdash.cli.help import EXAMPLES, GROUPS, agent_help
from hpcdash.cli.main import cli
from tests.support.command_words import read_words
from tests.support.program import Program, home_with

GROUPED = {name for names in GROUPS.values() for name in names}
LOCAL = "--local --backend local"


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """On an embedded queue of its own."""
    return Program(
        home_with(tmp_path / "home"),
        variables={
            "HPCDASH_QUEUE": str(tmp_path / "queue"),
            "HPCDASH_STATE": str(tmp_path / "state"),
        },
    )


def test_every_command_is_in_one_group_and_has_examples_that_it_takes() -> None:
    context = click.Context(cli, info_name="hpcdash")
    visible = {
        name for name in cli.list_commands(context) if not cli.get_command(context, name).hidden
    }  # type: ignore[union-attr]
    assert Counter(name for names in GROUPS.values() for name in names) == Counter(visible)
    assert set(EXAMPLES) == visible - {"demo"}
    for name, lines in EXAMPLES.items():
        for line in lines:
            words = shlex.split(re.split(r" [|>] ", line)[0])
            assert words[0] == name
            read_words(words)


def test_the_page_for_assistants_names_commands_and_options_that_exist() -> None:
    page = agent_help()
    lines = re.findall(r"hpcdash ([a-z][^`\n]*)", page)
    assert len(lines) > 20
    without_json = set()
    for line in lines:
        # An optional part is given, `JOB...` and `[-n 200]` included.
        words = shlex.split(re.sub(r"[\[\]]|  .*|\.\.\.", "", line))
        if words[0] not in GROUPED:
            continue
        read_words(words)
        command = cli.get_command(click.Context(cli), words[0])
        assert command is not None
        if not any("--format" in parameter.opts for parameter in command.params):
            without_json.add(words[0])
    assert without_json == {"script", "render"}


def test_the_help_of_nodes_and_queues_offers_no_choice_of_jobs(program: Program) -> None:
    assert "--mine / --all" in program("jobs", "--help").text
    for name in ("nodes", "queues"):
        assert "--mine" not in program(name, "--help").text
        assert program(name, "--local", "--backend", "local", "--all").status == 0


def test_help_is_whole_and_has_common_options_once(program: Program) -> None:
    whole = program("--help").text
    assert "..." not in whole.split("Look:")[1]
    assert "--ssh [USER@]HOST[:PORT]" in whole
    cancel = program("help", "cancel").text
    assert cancel == program("cancel", "--help").text
    assert "  --ssh" not in cancel
    assert "hpcdash cancel --filter 'name:sweep state:pending'" in cancel
    assert "time_left" not in program("help", "filters").text
    assert program("help", "exit-status").text.startswith("0  done\n")
    assert program("help", "config").text == program("config", "example").text
    assert any(
        line.split()[:2] == ["x", "cancel"] for line in program("help", "keys").text.splitlines()
    )
    named = {line.split()[0]: line for line in program("help", "licenses").text.splitlines()}
    assert named["hpcdash"].endswith(" MIT")
    # Of the extra that hpcdash asks asyncssh for; what its developers need is not listed.
    assert "bcrypt" in named
    assert not {"pytest", "mypy", "ruff"} & set(named)
    assert "Topics: filters, keys" in program("help", "nonsense").refused(2)


def command_paths(command: click.Command, *path: str) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from command_paths(below, *path, name)


# The first lists every command, the second has 16 options.
_LONGER_THAN_A_SCREEN = {(), ("alloc",), ("where",)}


def test_the_help_of_a_command_is_ascii_and_fits_a_terminal_of_80_by_24() -> None:
    cli.list_commands(click.Context(cli))
    helps = {
        path: CliRunner()
        .invoke(cli, [*path, "--help"], prog_name="hpcdash", terminal_width=80)
        .output.splitlines()
        for path in command_paths(cli)
    }
    assert len(helps) > 60
    assert {path for path, lines in helps.items() if len(lines) > 24} == _LONGER_THAN_A_SCREEN
    assert {path for path, lines in helps.items() if max(map(len, lines)) > 80} == set()
    assert {path for path, lines in helps.items() if not "".join(lines).isascii()} == set()


def test_the_version_is_one_line_with_the_build_and_the_python(program: Program) -> None:
    build = r"build [0-9a-f]+\+? of \d{4}-\d\d-\d\d|not a released build"
    expected = rf"hpcdash {re.escape(__version__)} \(({build})\), Python 3\.\d+\.\d+\n"
    assert re.fullmatch(expected, program("--version").text)


def completed(program: Program, line: str) -> list[str]:
    words = line.split(" ")
    said = program(_HPCDASH_COMPLETE="fish_complete", COMP_WORDS=line, COMP_CWORD=words[-1])
    assert said.stderr == ""
    return [line.split("\t")[0].removeprefix("plain,") for line in said.text.splitlines() if line]


def test_a_shell_completes_ids_filters_and_clusters_without_asking(program: Program) -> None:
    (program.home / "a.sh").write_text(
        "#!/bin/bash\n#SBATCH --job-name=$(touch${IFS}owned)\n#SBATCH --hold\ntrue\n"
    )
    job = program("--local", "--backend", "local", "submit", "a.sh").text.strip()
    # None before a table was seen.
    assert completed(program, f"hpcdash {LOCAL} cancel {job[0]}") == []
    assert program.before == ()
    program(*LOCAL.split(), "jobs")
    program(*LOCAL.split(), "queues")
    program.config.parent.mkdir(parents=True)
    program.config.write_text('[clusters.juno]\nssh = "juno.invalid"\n')
    assert completed(program, f"hpcdash {LOCAL} cancel {job[0]}") == [job]
    assert completed(program, f"hpcdash cancel {LOCAL} {job[0]}") == [job]
    assert "state:held" in completed(program, f"hpcdash {LOCAL} jobs --filter state:h")
    assert completed(program, f"hpcdash {LOCAL} jobs --filter name:") == []
    assert completed(program, f"hpcdash {LOCAL} history --queue l") == ["local"]
    assert completed(program, f"hpcdash {LOCAL} check-nodes l") == ["local"]
    assert completed(program, "hpcdash jobs --cluster j") == ["juno"]
    # A cluster that was never asked has no tables, and is not asked for them.
    assert completed(program, "hpcdash --cluster juno cancel 1") == []
    assert completed(program, "hpcdash help exi") == ["exit-status"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_written_where_the_shell_looks(program: Program, shell: str) -> None:
    file, then = program(
        "completion", shell, "--install", XDG_CONFIG_HOME="", XDG_DATA_HOME=""
    ).text.splitlines()
    assert then
    assert Path(file).is_relative_to(program.home)
    assert Path(file).read_text() == program("completion", shell).text
    if shell == "bash":
        subprocess.run(["bash", "-n", file], check=True)


def test_bash_completes_what_is_behind_a_colon(tmp_path: Path) -> None:
    stub = tmp_path / "hpcdash"
    stub.write_text(
        '#!/bin/sh\ntest "$COMP_WORDS" = "$(printf "hpcdash\\njobs\\nstate:r")" && echo '
        "plain,state:running\n"
    )
    stub.chmod(0o755)
    script = completion_script(cli, "bash") + (
        f"COMP_WORDS=(hpcdash jobs state : r) COMP_CWORD=4; _hpcdash_completion {stub}; echo "
        '"$COMPREPLY"\n'
        "COMP_WORDBREAKS=' '; COMP_WORDS=(hpcdash jobs state:r) COMP_CWORD=2; COMPREPLY=()\n"
        f'_hpcdash_completion {stub}; echo "$COMPREPLY"\n'
    )
    said = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True)
    assert said.stdout.split() == ["running", "state:running"]
