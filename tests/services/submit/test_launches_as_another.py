"""Launches that one account submits as another, through the real sudo; sbatch is a stand-in that
tells who called.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcdash.backends.actions import Outcome
from hpcdash.backends.pbs.backend import pbs_backend
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.slurm.backend import BACKEND as SLURM
from hpcdash.backends.submissions import Submission
from hpcdash.config.settings import LaunchSettings
from hpcdash.domain.request import Container, Request, Site, SlotType
from hpcdash.errors import UsageError
from hpcdash.services.cluster.clock import SystemClock
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.state.journal import Journal
from hpcdash.services.submit.launches import Launches
from hpcdash.services.submit.staging import discard_argv
from hpcdash.services.submit.submission import SubmissionPlan
from hpcdash.services.submit.sudoers import NOTHING_THERE
from hpcdash.transport.base import CommandResult
from tests.support.scripted_transport import ScriptedTransport
from tests.support.sudo_rules import SudoSite, install_rules, sudo_site, why_no_sudo

pytestmark = pytest.mark.system
SQUEUE = '#!/bin/sh\n[ "$1" = --version ] && echo "slurm-wlm 22.05.8"\n'
SCONTROL = '#!/bin/sh\necho "Slurmctld(primary) at here is UP"\n'
SBATCH = """#!/bin/sh
[ -e "$(dirname "$0")/refuses" ] && { echo "sbatch: error: Batch job submission failed: Invalid qos" >&2; exit 1; }
for file; do :; done
{ id -un; pwd; printf '%s\\n' "$@"; env; cat -- "$file"; } > "$(dirname "$0")/said/called"
echo "Submitted batch job 7"
"""


def as_launcher(site: SudoSite) -> ScriptedTransport:
    """Runs commands as the launcher, with the stand-ins on the PATH."""
    before = (*site.argv_as(site.launcher), f"PATH={site.bin}:/usr/bin:/bin")
    transport = ScriptedTransport()
    transport.answers["*"] = lambda command: replace(
        command, argv=(*before, *command.argv)
    ).run_here()
    return transport


@pytest.fixture(scope="module")
def a_site() -> Iterator[SudoSite]:
    if reason := why_no_sudo():
        pytest.skip(reason)
    with sudo_site() as found:
        for name, text in (("squeue", SQUEUE), ("scontrol", SCONTROL), ("sbatch", SBATCH)):
            (found.bin / name).write_text(text)
            (found.bin / name).chmod(0o755)
        yield found


@pytest.fixture
def site(a_site: SudoSite) -> SudoSite:
    """The rules as they are printed, and nothing launched so far."""
    shutil.rmtree(a_site.root, ignore_errors=True)
    shutil.rmtree(a_site.bin / "said", ignore_errors=True)
    (a_site.bin / "said").mkdir()
    (a_site.bin / "said").chmod(0o777)
    (a_site.bin / "refuses").unlink(missing_ok=True)
    a_site.install(commands=("sbatch",), bin_folder=str(a_site.bin))
    return a_site


@pytest.fixture
def launches(site: SudoSite, tmp_path: Path) -> Launches:
    store = ClusterStore(
        "site", as_launcher(site), (SLURM,), clock=SystemClock(), budget=CommandBudget(600)
    )
    settings = LaunchSettings(
        Site(storage_root=str(site.root), run_as=site.alice), {}, str(site.program)
    )
    return Launches(store, settings, tmp_path / "state")


async def planned(launches: Launches, name: str = "run.sh") -> SubmissionPlan:
    request = Request(
        script=name, name="as-another", slot_type=SlotType.CPU, site=launches.settings.site
    )
    return await launches.plan(request, "# text\n", {name: b"#!/bin/sh\n"})


async def submitted(launches: Launches, one: SubmissionPlan, tmp_path: Path) -> tuple[Outcome, str]:
    actions = Actions(launches.store, Journal(tmp_path / "journal.jsonl"))
    (outcome,) = (await actions.run(one.plan)).outcomes
    return outcome, await launches.record_outcome(one, outcome)


def called(site: SudoSite) -> list[str]:
    return (site.bin / "said" / "called").read_text().splitlines()


def owners(folder: Path) -> set[str]:
    return {path.owner() for path in (folder, *folder.rglob("*"))}


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def modes_in(folder: Path) -> dict[str, int]:
    return {path.name: mode(path) for path in folder.iterdir()}


def identity(path: Path) -> str:
    found = path.stat()
    return f"{found.st_dev}:{found.st_ino}"


async def test_it_is_submitted_as_the_user_whose_the_folder_is(
    launches: Launches, site: SudoSite, tmp_path: Path
) -> None:
    one = await planned(launches)
    assert await submitted(launches, one, tmp_path) == (Outcome("as-another", True, "job 7"), "")
    folder = Path(one.folder)
    assert owners(folder) == {site.alice}
    modes = modes_in(folder)
    assert modes.pop("run.sh") == modes.pop("batch.sh") == 0o700
    assert set(modes) == {"SHA256SUMS", "request.toml", "hpcdash-job.zip"}
    assert set(modes.values()) == {0o600}
    assert mode(folder) == 0o700
    said = called(site)
    assert said[0] == site.alice
    assert f"{folder}/batch.sh" in said
    assert f"bash {folder}/run.sh" in said
    assert f"#SBATCH --chdir={folder}" in said
    assert not [
        line for line in said if line.startswith(("HOME=", "USER=")) and site.alice not in line
    ]


async def test_nothing_is_run_but_what_the_rules_allow(launches: Launches, site: SudoSite) -> None:
    one = await planned(launches)
    stage, submit = one.plan.commands
    assert "chown" not in " ".join(stage.argv)
    assert stage.text.startswith("stage 4 files (")
    assert stage.text.endswith(f") in {one.folder} as {site.alice}")
    assert submit.argv[:5] == ("sudo", "-n", "-u", site.alice, f"{site.bin}/sbatch")
    assert one.searches["as-another"].user == site.alice


def test_pbs_gets_our_mark_as_a_word_and_its_configuration_from_root_s_file(site: SudoSite) -> None:
    qsub, variables = site.bin / "qsub", site.top / "pbs.env"
    qsub.write_text(SBATCH.replace("Submitted batch job 7", "7.pbs01"))
    qsub.chmod(0o755)
    variables.write_text("PBS_CONF_FILE=/etc/roots.conf\n")
    site.install(commands=("qsub",), bin_folder=str(site.bin), env_file=str(variables))
    file = site.home(site.alice) / "batch.sh"
    file.write_text("#!/bin/sh\n")
    wanted = Submission(
        b"#!/bin/sh\n",
        "one",
        mark="hpcdash:1",
        file=str(file),
        run_as=site.alice,
        program=str(qsub),
    )
    command = pbs_backend(Dialect.OPENPBS).submit.submission(wanted).command
    own = {"PBS_CONF_FILE": "/tmp/mine.conf", "PBS_DEFAULT": "mine"}
    done = site.run_as(site.launcher, *command.argv, stdin=command.stdin or b"", variables=own)
    answer = CommandResult(command.argv, done.returncode, done.stdout, done.stderr, 0.0)
    assert command.read(answer) == (Outcome("one", True, "job 7.pbs01"),)
    said = called(site)
    assert said[0] == site.alice
    assert said[said.index("-v") + 1] == "HPCDASH_MARK=hpcdash:1"
    assert "PBS_CONF_FILE=/etc/roots.conf" in said
    assert not [line for line in said if "mine" in line]


async def test_a_refused_one_is_removed(launches: Launches, site: SudoSite, tmp_path: Path) -> None:
    (site.bin / "refuses").touch()
    outcome, said = await submitted(launches, await planned(launches), tmp_path)
    assert (outcome.done, outcome.text, said) == (False, "Invalid qos", "")
    assert list(site.root.iterdir()) == []


async def test_without_the_rules_nothing_is_submitted(
    launches: Launches, site: SudoSite, tmp_path: Path
) -> None:
    one = await planned(launches)
    install_rules(site.rules, "")
    outcome, said = await submitted(launches, one, tmp_path)
    assert outcome.done is False
    assert (
        f"not submitted: cannot create {one.folder} and its files: sudo: a password is "
        "required" in (outcome.text)
    )
    assert (
        f"the sudo rules do not let this account run {site.program} as {site.alice}" in outcome.text
    )
    assert said == ""
    assert not (site.bin / "said" / "called").exists()
    assert list(site.root.iterdir()) == []


async def test_nothing_is_submitted_from_a_folder_that_was_there_before(
    launches: Launches, site: SudoSite, tmp_path: Path
) -> None:
    one = await planned(launches)
    site.run_as(site.bob, "mkdir", "-m", "777", one.folder)
    outcome, said = await submitted(launches, one, tmp_path)
    assert outcome.done is False
    assert "File exists" in outcome.text
    assert "belongs to another account" in said
    assert owners(Path(one.folder)) == {site.bob}
    assert not (site.bin / "said" / "called").exists()


async def test_a_program_that_keeps_another_root_is_told_of(
    launches: Launches, site: SudoSite, tmp_path: Path
) -> None:
    other = site.top / "other"
    other.mkdir(exist_ok=True)
    other.chmod(0o1777)
    launches.settings = replace(
        launches.settings, site=replace(launches.settings.site, storage_root=str(other))
    )
    outcome, said = await submitted(launches, await planned(launches), tmp_path)
    assert outcome.done is False
    assert f"{site.program} keeps launches in {site.root}" in outcome.text
    assert said == ""
    assert (list(site.root.iterdir()), list(other.iterdir())) == ([], [])


async def test_one_that_has_run_is_removed_as_its_account(
    launches: Launches, site: SudoSite, tmp_path: Path
) -> None:
    one = await planned(launches)
    await submitted(launches, one, tmp_path)
    folder = Path(one.folder)
    assert one.record is not None
    assert site.launch(site.alice, "write", folder.name, "7.out", stdin=b"1\n").returncode == 0
    argv = discard_argv(
        str(folder.parent),
        folder.name,
        one.record.sums,
        has_run=True,
        run_as=site.alice,
        launch_program=str(site.program),
    )
    assert site.run_as(site.launcher, *argv).returncode == 0
    assert list(site.root.iterdir()) == []
    assert site.run_as(site.launcher, *argv).returncode == NOTHING_THERE


async def test_its_log_is_read_as_its_account(
    launches: Launches, site: SudoSite, tmp_path: Path
) -> None:
    one = await planned(launches)
    await submitted(launches, one, tmp_path)
    path = f"{one.folder}/7.out"
    file = launches.store.log_file(path)
    missing = await file.stat()
    assert (missing.is_there, missing.is_missing) == (False, True)
    assert missing.problem == "hpcdash-launch: no file 7.out"
    lines = b"".join(b"line %d\n" % number for number in range(1000))
    assert (
        site.launch(
            site.alice, "write", one.folder.rpartition("/")[2], "7.out", stdin=lines
        ).returncode
        == 0
    )
    chunk = await file.read(5, 3)
    assert (chunk.stat.identity, chunk.stat.size) == (identity(Path(path)), len(lines))
    assert (chunk.offset, chunk.content) == (5, lines[5:8])
    end = await file.read_end(9)
    assert (end.content, end.ends_the_file) == (lines[-9:], True)
    assert await file.find("LINE 7".lower(), 0) == lines.index(b"line 7\n")
    assert await file.find("line 7", len(lines), backwards=True) == lines.index(b"line 799\n")
    assert await file.count_lines(lines.index(b"line 500\n")) == 500
    # Whoever is not the launch's account may not, and says why.
    plain = await launches.store.log_file(f"{one.folder}x/7.out").stat()
    assert plain.is_missing
    install_rules(site.rules, "")
    assert (await file.stat()).problem == "sudo: a password is required"


async def test_it_needs_a_storage_root(launches: Launches, site: SudoSite) -> None:
    launches.settings = replace(launches.settings, site=Site(run_as=site.alice))
    with pytest.raises(UsageError, match="storage_root"):
        await planned(launches)


@pytest.mark.parametrize(
    "name", ["batch.sh", "SHA256SUMS", "two words.sh", "-rf", ".profile", "naïve.sh"]
)
async def test_a_script_that_root_s_program_takes_no_such_name_of_is_refused(
    launches: Launches, name: str
) -> None:
    with pytest.raises(UsageError, match="a staged file cannot be named"):
        await planned(launches, name)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda site: site.program.unlink(), "{program} does not exist"),
        (lambda site: site.program.chmod(0o775), "others may write to {program}"),
        (lambda site: site.program.chmod(0o644), "{program} is not a program"),
        (lambda site: shutil.chown(site.program, site.launcher), "{program} is not owned by root"),
        (lambda site: site.program.parent.chmod(0o1777), "others may write to {program.parent}"),
        (
            lambda site: shutil.chown(site.program.parent, site.launcher),
            "{program.parent} is not owned by root",
        ),
        (lambda site: site.top.chmod(0o775), "others may write to {top}"),
        (lambda site: site.root.rmdir(), "{root} does not exist"),
        (lambda site: site.root.chmod(0o777), "others may write to {root}"),
        (lambda site: shutil.chown(site.root, site.alice), "{root} is not owned by root"),
        (lambda site: (site.root.rmdir(), site.root.symlink_to("/tmp")), "{root} is a link"),
        (
            lambda site: (site.program.unlink(), site.program.symlink_to("/bin/sh")),
            "{program} is a link",
        ),
    ],
)
async def test_what_others_could_swap_is_refused_with_root_s_commands(
    launches: Launches, site: SudoSite, spoil: object, why: str
) -> None:
    assert callable(spoil)
    spoil(site)
    try:
        with pytest.raises(UsageError) as refused:
            await planned(launches)
    finally:
        site.top.chmod(0o755)
        shutil.chown(site.program.parent, "root")
        site.program.parent.chmod(0o755)
        site.program.unlink(missing_ok=True)
        if site.root.is_symlink():
            site.root.unlink()
    assert (
        refused.value.message
        == f"run_as: {why.format(program=site.program, root=site.root, top=site.top)}"
    )
    assert f"install -o root -m 0755 -D /dev/stdin {site.program}" in refused.value.next_step
    assert f"install -d -m 1777 {site.root}" in refused.value.next_step


async def test_without_another_account_nothing_uses_sudo(
    launches: Launches, site: SudoSite, tmp_path: Path
) -> None:
    launches.settings = LaunchSettings(Site(storage_root=str(site.root)))
    one = await planned(launches)
    assert not [command for command in one.plan.commands if "sudo" in " ".join(command.argv)]
    outcome, _ = await submitted(launches, one, tmp_path)
    assert outcome.done
    assert called(site)[0] == site.launcher


@pytest.mark.parametrize("planted", ["own file", "link"])
async def test_a_login_that_another_planted_in_the_shared_root_is_none(
    launches: Launches, site: SudoSite, planted: str
) -> None:
    own = site.home(site.launcher) / "commands"
    own.write_text("touch stolen\n")
    shutil.chown(own, site.launcher)
    own.chmod(0o600)
    login = site.root / "login"
    site.run_as(
        site.bob,
        *(("cp", "/etc/hostname") if planted == "own file" else ("ln", "-s", str(own))),
        str(login),
    )
    site_settings = Site(storage_root=str(site.root))
    launches.settings = LaunchSettings(site_settings)
    container = Container(image="nvcr.io/lab/net:1")
    request = Request(
        command="true", name="one", slot_type=SlotType.CPU, site=site_settings, container=container
    )
    assert "source" not in (await launches.plan(request)).shown
