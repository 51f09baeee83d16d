"""`hpcdash images` over a real sshd, where stand-ins of the runtimes note what they are called
with.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import tempfile
import termios
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.program import Program, home_with
from tests.support.sshd import Sshd, login_user, why_no_sshd

PASSWORD = "s'ecret $(pw)"
# Notes its words, the registry's user and how a file of its login is kept; makes what it is to
# make.
_STAND_IN = """\
#!/bin/bash
{{
  printf '%s' "${{0##*/}}"; printf ' %s' "$@"
  printf ' [%s %s]\\n' "${{APPTAINER_DOCKER_USERNAME-}}" "$(stat -c %a "$REGISTRY_AUTH_FILE" 2>/dev/null)"
}} >>{folder}/calls
case "$1 $2" in
  "pull docker://broken:1"*) ;;
  "pull --quiet") echo 4af7; exit ;;
  pull*) [ "${{0##*/}}" = podman ] || : >"${{@: -2:1}}" ;;
  build*) : >"$2" ;;
  "import --output") : >"$3" ;;
  "list "*) cat {folder}/containers 2>/dev/null ;;
  "create --name") echo "$3" >>{folder}/containers ;;
esac
printf 'fetching 1%%\\rfetching 100%%\\nwith \\033[2Jcolours\\n'
echo 'to stderr' >&2
case "$*" in *broken*) printf 'no such image'; exit 7 ;; esac
"""


@dataclass(frozen=True, slots=True)
class LoginNode:
    """A login node whose runtimes are stand-ins; `folder` is open to whoever logs in."""

    folder: Path
    program: Program

    def calls(self) -> list[str]:
        """What the runtimes were called with since the last time."""
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines


@pytest.fixture(scope="module")
def node() -> Iterator[LoginNode]:
    if reason := why_no_sshd():
        pytest.skip(reason)
    user = login_user("bash")
    if user is None:
        pytest.skip("no user with bash as login shell")
    # pytest's own folders are closed to the users who log in.
    folder = Path(tempfile.mkdtemp(prefix="hpcdash-images-"))
    folder.chmod(0o777)
    (folder / "bin").mkdir()
    for name in ("apptainer", "podman", "enroot"):
        program = folder / "bin" / name
        program.write_text(_STAND_IN.format(folder=folder))
        program.chmod(0o755)
    server = Sshd(folder / "sshd")
    server.start()
    try:
        known_hosts = folder / "known_hosts"
        known_hosts.write_text(f"[127.0.0.1]:{server.port} {server.host_key_line}\n")
        ssh_config = (
            f"Host login1\n  HostName 127.0.0.1\n  Port {server.port}\n  User {user}\n  "
            f"IdentityFile {server.key}\n"
            f"  IdentitiesOnly yes\n  UserKnownHostsFile {known_hosts}\n  StrictHostKeyChecking "
            "yes\n"
        )
        program_there = Program(home_with(folder / "home", ssh_config))
        program_there.config.parent.mkdir(parents=True)
        program_there.config.write_text(
            f'[clusters.juno]\nssh = "login1"\nbackend = "slurm"\npath = "{folder}/bin"\n'
            f'[clusters.juno.launch]\nimage_root = "{folder}/images"\nstorage_root = '
            f'"{folder}/launches"\n'
        )
        yield LoginNode(folder, program_there)
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def as_at_first(node: LoginNode) -> None:
    for name in ("calls", "containers"):
        (node.folder / name).unlink(missing_ok=True)
    for name in ("images", "launches"):
        shutil.rmtree(node.folder / name, ignore_errors=True)


def test_a_store_without_images_is_an_empty_list_and_no_error(node: LoginNode) -> None:
    for _ in range(2):
        listed = node.program("images", "list")
        assert (listed.status, listed.stdout) == (0, b"")
        said = f"No images in {node.folder}/images. hpcdash images pull fetches one."
        assert listed.stderr.splitlines()[-1] == said
        (node.folder / "images").mkdir(mode=0o755, exist_ok=True)


def test_an_image_is_fetched_once_where_launches_look_and_anew_by_force(node: LoginNode) -> None:
    file = f"{node.folder}/images/nvidia/cuda:12"
    done = node.program("images", "pull", "nvidia/cuda:12")
    assert (done.status, done.text) == (0, "fetching 100%\nwith ␛[2Jcolours\nto stderr\n")
    assert f"on juno: apptainer pull {file} docker://nvidia/cuda:12\n" in done.stderr
    assert node.calls() == [f"apptainer pull {file} docker://nvidia/cuda:12 [ ]"]
    again = node.program("images", "pull", "nvidia/cuda:12")
    assert f"hpcdash: {file} already exists (--force replaces it)\n" in again.stderr
    assert node.calls() == []
    node.program("images", "pull", "nvidia/cuda:12", "--force")
    assert node.calls() == [
        f"apptainer pull --force --disable-cache {file} docker://nvidia/cuda:12 [ ]"
    ]
    assert node.program("images", "list").text == f"{file}\n"


def test_what_the_runtime_says_last_and_its_status_are_told(node: LoginNode) -> None:
    done = node.program("images", "pull", "broken:1")
    assert done.status == 1
    assert done.text.endswith("to stderr\nno such image\n")
    assert done.stderr.endswith("hpcdash: apptainer exited with 7\n")


def test_enroot_has_its_names_its_store_and_containers_only_if_wanted(node: LoginNode) -> None:
    words = (
        "images",
        "pull",
        "nvcr.io/nvidia/cuda:12",
        "--runtime",
        "enroot",
        "--store",
        f"{node.folder}/images",
    )
    file = f"{node.folder}/images/nvcr.io+nvidia+cuda+12.sqsh"
    fetched = f"enroot import --output {file}.part -- docker://nvcr.io#nvidia/cuda:12 [ ]"
    assert node.program(*words, "--nocreate").status == 0
    assert node.calls() == [fetched]
    assert Path(file).exists()
    assert node.program(*words).status == 0
    assert node.calls()[-1] == f"enroot create --name nvcr.io+nvidia+cuda+12 -- {file} [ ]"
    done = node.program(*words)
    assert "enroot's container nvcr.io+nvidia+cuda+12 already exists" in done.stderr
    assert node.calls() == ["enroot list [ ]"]
    refused = node.program("images", "pull", "a:1", "--nocreate").refused(2)
    assert "--nocreate works only with enroot" in refused


def test_an_archive_is_taken_in_under_its_reference(node: LoginNode) -> None:
    (node.folder / "a.tar").write_bytes(b"")
    done = node.program("images", "import", f"{node.folder}/a.tar", "a:1", "--runtime", "podman")
    assert (done.status, done.text.splitlines()[-1]) == (0, "4af7")
    assert node.calls() == [
        f"podman pull --quiet docker-archive:{node.folder}/a.tar [ ]",
        "podman tag 4af7 a:1 [ ]",
    ]
    node.program("images", "import", f"{node.folder}/a.tar", "a:1")
    assert node.calls() == [
        f"apptainer build {node.folder}/images/a:1 docker-archive:{node.folder}/a.tar [ ]"
    ]


def test_a_login_is_kept_for_its_owner_alone_and_used_by_every_runtime(node: LoginNode) -> None:
    words = node.program.argv("images", "login", "ada", "--password-stdin")
    done = subprocess.run(
        words,
        input=f"{PASSWORD}\n".encode(),
        env=node.program.environment,
        capture_output=True,
        check=True,
    )
    file = node.folder / "launches" / "login"
    assert done.stdout.decode() == f"{file}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    sourced = subprocess.run(
        ["bash", "-c", f'. {file}; printf %s "$SINGULARITY_DOCKER_PASSWORD"'],
        capture_output=True,
        check=True,
    )
    assert sourced.stdout.decode() == PASSWORD
    for runtime, user in (("apptainer", "ada "), ("podman", "ada 600"), ("enroot", "ada ")):
        pulled = node.program(
            "images",
            "pull",
            "nvcr.io/a/b:1",
            "--runtime",
            runtime,
            "--store",
            f"{node.folder}/images",
        )
        assert "on juno, with the registry's login: " in pulled.stderr
        assert any(call.endswith(f"[{user}]") for call in node.calls())
        assert PASSWORD not in pulled.text + pulled.stderr
    kept = [path for path in (node.program.home).rglob("*") if path.is_file()]
    assert not any(PASSWORD.encode() in path.read_bytes() for path in kept)


def test_the_password_is_asked_for_and_not_echoed(node: LoginNode) -> None:
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        node.program.argv("images", "login"),
        env=node.program.environment,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    shown = b""
    for wanted, typed in ((b"User: ", "grace"), (b"Password or token: ", PASSWORD)):
        while not shown.endswith(wanted):
            shown += os.read(ours, 1000)
        os.write(ours, f"{typed}\n".encode())
    stdout, stderr = process.communicate()
    os.close(ours)
    assert process.returncode == 0, stderr
    assert stdout.decode() == f"{node.folder}/launches/login\n"
    assert f"on juno: writes {node.folder}/launches/login, mode 0600\n" in stderr.decode()
    assert "s'ecret" not in (shown + stdout + stderr).decode()
    assert (
        "export APPTAINER_DOCKER_USERNAME=grace\n"
        in (node.folder / "launches" / "login").read_text()
    )


def test_nothing_is_changed_where_it_is_not_to_be_nor_asked_where_nobody_can_answer(
    node: LoginNode,
) -> None:
    assert "read-only" in node.program("images", "pull", "a:1", "--read-only").refused(2)
    assert "read-only" in node.program("images", "login", "ada", "--read-only").refused(2)
    assert "--password-stdin reads the password" in node.program("images", "login", "ada").stderr
    assert not (node.folder / "launches").exists()
