"""Commands in containers, as bash on a node runs them: with stand-ins for the runtimes that record
their words.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcdash.backends.script.containers import container_command
from hpcdash.backends.script.containers.enroot import container_name, import_uri
from hpcdash.backends.script.containers.login import login_file
from hpcdash.backends.script.containers.words import ContainerCommand, Word
from hpcdash.domain.request import Container, Runtime, SlotType
from hpcdash.errors import UsageError
from tests.support.records import for_each
from tests.support.waiting import wait_until

pytestmark = pytest.mark.system
HOSTILE = [
    "$(rm -rf ~)",
    "`touch owned`",
    "it's",
    'say "x"',
    "two\nlines",
    "a b",
    "*",
    "; touch owned",
    "$HOME\\",
    "é",
]
STAND_IN = r"""#!/bin/bash
# Of a container that runs on, and exits with $LEFT; else there is none any more.
[[ "$1" != inspect ]] || { [[ -z "$LEFT" ]] || echo true; exit; }
[[ "$1" != attach ]] || { echo "attached" >>"$RECORD/killed"; exit "$LEFT"; }
[[ "$1" != kill ]] || { echo "$*" >>"$RECORD/killed"; exit; }
printf '%s\0' "$0" "$@" >>"$RECORD/argv"; printf '\0' >>"$RECORD/argv"
env -0 >"$RECORD/env"
[[ -z "$REGISTRY_AUTH_FILE" ]] || cp "$REGISTRY_AUTH_FILE" "$RECORD/auth"
[[ "$1" != import ]] || { [[ -z "$OFFLINE" ]] || exit 1
  cp "$ENROOT_CONFIG_PATH/.credentials" "$RECORD/netrc" 2>/dev/null; : >"$3"; }
[[ "$1" != create ]] || { while [[ "$1" != --name ]]; do shift; done
  [[ -n "$BROKEN" ]] || echo "$2" >>"$RECORD/list"; [[ -z "$BROKEN" ]] || exit 1; }
[[ "$1" != list ]] || cat "$RECORD/list"
exit "${STATUS:-0}"
"""


class Node:
    """A folder with stand-ins on PATH; `run` gives the argv of each call, and the last one's
    environment.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env: dict[str, str] = {}
        for name in ("bin", "home", "tmp", "record"):
            (folder / name).mkdir()
        self.add("apptainer", "podman", "enroot")
        (folder / "record" / "list").touch()

    def add(self, *names: str) -> None:
        for name in names:
            (self.folder / "bin" / name).write_text(STAND_IN)
            (self.folder / "bin" / name).chmod(0o755)

    def run(
        self, made: ContainerCommand, **variables: str
    ) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
        script = "\n".join(made.lines())
        subprocess.run(["bash", "-n"], input=script.encode(), check=True)
        environ = {
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder / "tmp"),
            "RECORD": str(self.folder / "record"),
            **variables,
        }
        ended = subprocess.run(
            ["bash", "-c", script],
            env=environ,
            cwd=self.folder / "home",
            capture_output=True,
            text=True,
            check=False,
        )
        record = self.folder / "record"
        raw = (record / "argv").read_bytes().decode() if (record / "argv").exists() else ""
        calls = [call.split("\0") for call in raw.split("\0\0")[:-1]]
        if (record / "env").exists():
            entries = (record / "env").read_bytes().decode().split("\0")[:-1]
            self.env = dict(entry.split("=", 1) for entry in entries)
        return ended, [[os.path.basename(call[0]), *call[1:]] for call in calls]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def made_of(runtime: str, image: str = "lab/net:1", **more: Any) -> ContainerCommand:
    binds: tuple[str, ...] = tuple(more.pop("own_binds", ()))
    force = bool(more.pop("force_pull", False))
    options: dict[str, Any] = {"slot_type": SlotType.CUDA, "environment": {}, **more}
    command = options.pop("command", ("python", "train.py"))
    return container_command(Container(Runtime(runtime), image, binds, force), command, **options)


def test_apptainer_is_given_gpus_a_tmpfs_and_a_tmp_of_its_own_that_goes(node: Node) -> None:
    ended, (call,) = node.run(made_of("apptainer", own_binds=["/data:/d:ro"]))
    tmp = call[5].removesuffix(":/tmp")
    assert call == [
        *(
            "apptainer",
            "exec",
            "--nv",
            "--writable-tmpfs",
            "--bind",
            f"{tmp}:/tmp",
            "--bind",
            "/data:/d:ro",
        ),
        *("docker://lab/net:1", "python", "train.py"),
    ]
    assert tmp.startswith(str(node.folder / "tmp"))
    assert not Path(tmp).exists()
    assert ended.returncode == 0
    assert node.env["APPTAINERENV_TMPDIR"] == "/tmp"


@for_each("bind", ["/tmp", "/scratch:/tmp", "/scratch:/tmp/:rw"])
def test_who_binds_tmp_gets_no_other(bind: str) -> None:
    assert "mktemp" not in "\n".join(made_of("apptainer", own_binds=[bind]).lines())


@for_each(
    ("runtime", "slot_type", "options"),
    [
        ("apptainer", SlotType.CUDA, {"--nv"}),
        ("apptainer", SlotType.ROCM, {"--rocm"}),
        ("apptainer", SlotType.CPU, set()),
        ("podman", SlotType.CUDA, {"--device=nvidia.com/gpu=all"}),
        (
            "podman",
            SlotType.ROCM,
            {"--device=/dev/kfd", "--device=/dev/dri", "--group-add=keep-groups"},
        ),
        ("podman", SlotType.CPU, set()),
    ],
)
def test_gpus(runtime: str, slot_type: SlotType, options: set[str]) -> None:
    words = {word.text for word in made_of(runtime, slot_type=slot_type).argv}
    gpu = {
        word
        for word in words
        if word in ("--nv", "--rocm") or word.startswith(("--device", "--group-add"))
    }
    assert gpu == options


@pytest.mark.parametrize(
    ("image", "root", "given"),
    [
        ("/images/net.sif", "ROOT", "/images/net.sif"),
        ("./net.sif", "ROOT", "./net.sif"),
        ("docker://net:1", "ROOT", "docker://net:1"),
        ("oras://reg/net:1", "ROOT", "oras://reg/net:1"),
        ("library://net:1", "ROOT", "library://net:1"),
        ("shub://net:1", "ROOT", "shub://net:1"),
        ("here:1", "ROOT", "ROOT/here:1"),
        ("lab/here:1", "ROOT", "ROOT/lab/here:1"),
        ("gone:1", "ROOT", "docker://gone:1"),
        ("here:1", "", "docker://here:1"),
    ],
)
def test_an_apptainer_image_is_looked_for(node: Node, image: str, root: str, given: str) -> None:
    folder = node.folder / "it's images"
    (folder / "lab").mkdir(parents=True)
    (folder / "here:1").touch()
    (folder / "lab" / "here:1").touch()
    _, (call,) = node.run(made_of("apptainer", image, image_root=root.replace("ROOT", str(folder))))
    assert call[-3] == given.replace("ROOT", str(folder))


@pytest.mark.parametrize(
    ("bind", "given"),
    [("/a,b", r"/a\,b"), ("/a,b:/c,d:ro,nosuid", r"/a\,b:/c\,d:ro,nosuid"), ("/$(x)", "/$(x)")],
)
def test_a_comma_in_a_path_does_not_end_an_apptainer_bind(
    node: Node, bind: str, given: str
) -> None:
    _, (call,) = node.run(made_of("apptainer", binds=(bind,)))
    assert call[7] == given


def test_a_containers_tmpdir_and_path_are_not_the_nodes(node: Node) -> None:
    ended, _ = node.run(
        made_of("apptainer", environment={"TMPDIR": "/only/inside", "PATH": "/opt/bin"})
    )
    assert ended.returncode == 0, ended.stderr
    assert (node.env["APPTAINERENV_TMPDIR"], node.env["APPTAINERENV_PATH"]) == (
        "/only/inside",
        "/opt/bin",
    )


def test_a_node_with_singularity_alone_runs_it_and_one_with_neither_says_so(node: Node) -> None:
    (node.folder / "bin" / "apptainer").unlink()
    ended, calls = node.run(made_of("apptainer"))
    assert (ended.returncode, calls) == (127, [])
    assert "neither apptainer nor singularity" in ended.stderr
    node.add("singularity")
    assert node.run(made_of("apptainer"))[1][0][0] == "singularity"


def test_podman_shares_the_network_and_is_given_each_variable_by_name(node: Node) -> None:
    made = made_of(
        "podman",
        environment={"A": "1", "B": "", "PATH": "/opt/bin"},
        own_binds=["/data", "/s:/t:ro"],
    )
    _, (call,) = node.run(made)
    assert re.fullmatch("--name=hpcdash-[0-9a-f]{16}", call.pop(3))
    first = call.index("sh")
    assert call[:first] == [
        *("podman", "run", "--rm", "--network=host", "--ipc=host", "--device=nvidia.com/gpu=all"),
        *(
            "--volume=/etc/hosts:/etc/hosts:ro",
            "--volume=/data:/data",
            "--volume=/s:/t:ro",
            "--env=SLURM_*",
        ),
        *(f"--env={name}_VISIBLE_DEVICES" for name in ("CUDA", "NVIDIA", "ROCR", "HIP")),
        *("--env=HPCDASH_ATTEMPT", "--env=B", "--env=A", "--env=PATH=/opt/bin", "lab/net:1"),
    ]
    assert call[-2:] == ["python", "train.py"]
    assert node.env["A"] == "1"
    # The first process of its namespace, which the kernel spares signals that nothing catches.
    starts = "trap 'exit 4' TERM; kill -TERM 1; while :; do sleep 0.1; done"
    contained = [
        "unshare",
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "--kill-child",
        *call[first:-2],
    ]
    ended = subprocess.run([*contained, "sh", "-c", starts], stdin=subprocess.DEVNULL, check=False)
    assert ended.returncode == 4


@pytest.mark.parametrize(("left", "status"), [("3", 3), ("", 0)])
def test_a_container_that_outlasts_podman_run_hears_of_its_end_and_gives_its_status(
    node: Node, left: str, status: int
) -> None:
    ended, _ = node.run(made_of("podman"), LEFT=left)
    assert (ended.returncode, ended.stderr) == (status, "")
    if left:
        # Read before it is ended: its last words are the log's.
        told = (node.folder / "record" / "killed").read_text().splitlines()
        assert (told[0], told[1].split()[:3]) == ("attached", ["kill", "-s", "TERM"])


def test_a_container_is_killed_after_the_shell_that_started_it_was(node: Node) -> None:
    record = node.folder / "record"
    (node.folder / "bin" / "podman").write_text(
        f'#!/bin/sh\necho "$@" >> {record}/$1; [ "$1" != run ] || exec sleep 60\n'
    )
    # A session that begins late, as on a busy node.
    slow_setsid = node.folder / "bin" / "setsid"
    slow_setsid.write_text('#!/bin/sh\nsleep 0.5\nexec /usr/bin/setsid "$@"\n')
    slow_setsid.chmod(0o755)
    script = "\n".join(made_of("podman").lines())
    environ = {"PATH": f"{node.folder}/bin:/usr/bin:/bin"}
    with subprocess.Popen(["bash", "-c", script], env=environ, start_new_session=True) as shell:
        wait_until("the container", lambda: (record / "run").exists())
        (name,) = re.findall("--name=(hpcdash-[0-9a-f]{16})", (record / "run").read_text())
        os.killpg(shell.pid, signal.SIGKILL)
    wait_until(
        "its end", lambda: (record / "kill").exists() and (record / "kill").read_text() != ""
    )
    assert (record / "kill").read_text().split() == ["kill", "-s", "KILL", name]


def test_enroot_imports_creates_and_starts_once(node: Node) -> None:
    made = made_of(
        "enroot",
        "nvcr.io/lab/net:1",
        environment={"A": "1", "B": ""},
        own_binds=["/data", "/s:/t:ro"],
    )
    _, calls = node.run(made, SLURM_PROCID="3", CUDA_VISIBLE_DEVICES="0", OTHER="x")
    assert [call[1] for call in calls] == ["list", "import", "create", "start"]
    name = "nvcr.io+lab+net+1"
    image = f"{node.folder}/home/.cache/hpcdash/images/{name}.sqsh"
    assert calls[1][-1] == "docker://nvcr.io#lab/net:1"
    assert calls[2] == ["enroot", "create", "--name", name, "--", image]
    assert calls[3] == [
        *("enroot", "start", "--rw", "--mount", "tmpfs:/var/tmp:tmpfs:x-create=dir"),
        *(
            "--mount",
            "/data:/data:none:x-create=auto,rbind",
            "--mount",
            "/s:/t:none:x-create=auto,rbind,ro",
        ),
        *(
            "--env",
            "B",
            "--env",
            "A",
            "--env",
            "CUDA_VISIBLE_DEVICES",
            "--env",
            "NVIDIA_VISIBLE_DEVICES",
        ),
        *("--env", "SLURM_PROCID", "--", name, "python", "train.py"),
    ]
    assert node.env["ENROOT_MOUNT_HOME"] == "y"
    assert [call[1] for call in node.run(made)[1][4:]] == ["list", "start"]


def test_a_missing_enroot_container_is_said_with_what_makes_it(node: Node) -> None:
    ended, calls = node.run(made_of("enroot"), BROKEN="1")
    assert ended.returncode == 1
    assert "start" not in {call[1] for call in calls}
    assert (
        "enroot import -o lab+net+1.sqsh -- docker://lab/net:1 && enroot create --name lab+net+1"
        in ended.stderr
    )


def test_a_pull_that_failed_starts_no_older_enroot_container(node: Node) -> None:
    node.run(made_of("enroot"))
    ended, calls = node.run(made_of("enroot", force_pull=True), OFFLINE="1")
    assert ended.returncode == 1
    assert calls[-1][1] == "import"


def test_an_enroot_image_that_is_a_file_is_not_imported(node: Node) -> None:
    _, calls = node.run(made_of("enroot", "/images/net.sqsh"))
    assert calls[1] == ["enroot", "create", "--name", "images+net", "--", "/images/net.sqsh"]
    assert calls[-1][-3:] == ["images+net", "python", "train.py"]


@for_each(
    ("image", "name", "uri"),
    [
        ("ubuntu", "ubuntu", "docker://ubuntu"),
        ("lab/net:1", "lab+net+1", "docker://lab/net:1"),
        ("docker://nvcr.io#lab/net:1", "nvcr.io+lab+net+1", "docker://nvcr.io#lab/net:1"),
        ("localhost:5000/net:1", "localhost+5000+net+1", "docker://localhost:5000#net:1"),
    ],
)
def test_enroot_names(image: str, name: str, uri: str) -> None:
    assert (container_name(image), import_uri(image)) == (name, uri)


@pytest.mark.parametrize(
    ("runtime", "image", "word"),
    [
        ("apptainer", "lab/net:1", "--disable-cache"),
        ("podman", "lab/net:1", "--pull=always"),
        ("enroot", "lab/net:1", "--force"),
    ],
)
def test_force_pull_bypasses_the_cache(node: Node, runtime: str, image: str, word: str) -> None:
    made = made_of(
        runtime, image, force_pull=True, **({"image_root": "/"} if runtime == "apptainer" else {})
    )
    node.run(made)
    assert any(word in call for call in node.run(made)[1])
    assert not any(word in line for line in made_of(runtime, image).lines())


def test_podman_runs_an_archive_as_it_is_named(node: Node) -> None:
    _, (call,) = node.run(made_of("podman", "oci-archive:/x/net.tar", force_pull=True))
    assert "oci-archive:/x/net.tar" in call
    assert "--pull=always" not in call


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("runtime", ["apptainer", "podman", "enroot"])
def test_what_is_hostile_arrives_as_it_was_and_runs_nothing(
    node: Node, runtime: str, hostile: str
) -> None:
    keep = node.folder / "home" / "keep"
    keep.touch()
    bind = "/data:/d" if runtime == "enroot" and set(hostile) & set(" \n") else f"/{hostile}:/d"
    made = made_of(
        runtime,
        f"x{hostile}",
        own_binds=[bind],
        environment={"V": hostile, "PATH": hostile},
        command=("run", hostile),
    )
    ended, calls = node.run(made)
    assert ended.returncode == 0, ended.stderr
    assert calls[-1][-1] == hostile
    assert any(f"x{hostile}" in word for call in calls for word in call)
    assert any(bind in word for word in calls[-1])
    assert node.env["V"] == hostile
    assert (
        any(f"PATH={hostile}" in word for word in calls[-1])
        or node.env["APPTAINERENV_PATH"] == hostile
    )
    assert keep.exists()
    assert not list(node.folder.rglob("owned"))


def test_enroot_sets_a_value_of_several_lines_inside(node: Node) -> None:
    _, calls = node.run(made_of("enroot", environment={"V": "a\nb"}))
    assert calls[-1][-5:] == ["lab+net+1", "env", "V=a\nb", "python", "train.py"]


@pytest.mark.parametrize("runtime", ["apptainer", "podman", "enroot"])
def test_a_login_is_in_no_script_and_in_no_argv(node: Node, runtime: str) -> None:
    secret = "pass'w $(x)word"
    file = node.folder / "it's login"
    file.write_text(login_file("me", secret))
    made = made_of(runtime, "nvcr.io/lab/net:1", login=str(file), command=("apptainer", "x"))
    file.chmod(0o644)
    refused, calls = node.run(made)
    assert (refused.returncode, calls) == (1, [])
    assert "mode 0600" in refused.stderr
    file.chmod(0o600)
    # Who else may put files there could have another file of one's own read as a script.
    link = file.with_name("link")
    link.symlink_to(file)
    refused, calls = node.run(
        made_of(runtime, "nvcr.io/lab/net:1", login=str(link), command=("apptainer", "x"))
    )
    assert (refused.returncode, calls) == (1, [])
    assert "mode 0600" in refused.stderr
    link.unlink()
    traced = ContainerCommand(made.argv, ("set -x", *made.prepare), made.environment, made.finish)
    ended, calls = node.run(traced)
    assert ended.returncode == 0, ended.stderr
    assert "pass'w" not in "\n".join(made.lines()) + ended.stderr.replace("\\", "") + repr(calls)
    assert (
        node.env["APPTAINER_DOCKER_PASSWORD"] == node.env["SINGULARITY_DOCKER_PASSWORD"] == secret
    )
    record = node.folder / "record"
    if runtime == "podman":
        assert '{"auths":{"nvcr.io":{"auth":"' in (record / "auth").read_text()
    if runtime == "enroot":
        assert (record / "netrc").read_text() == f"machine nvcr.io login me password {secret}\n"
    assert not list((node.folder / "tmp").iterdir())


def test_the_exit_status_is_the_commands(node: Node) -> None:
    for runtime in ("apptainer", "podman"):
        assert node.run(made_of(runtime), STATUS="7")[0].returncode == 7


def test_a_shell_word_is_expanded_on_the_node(node: Node) -> None:
    made = made_of("podman", command=("echo", Word('"$SLURM_NODEID"', is_shell=True)))
    assert node.run(made, SLURM_NODEID="4 $x")[1][0][-1] == "4 $x"


@for_each(
    ("runtime", "image", "more", "named"),
    [
        ("apptainer", "", {}, "image"),
        ("podman", "--privileged", {}, "image"),
        ("podman", "x", {"own_binds": [":/x"]}, "binds"),
        ("enroot", "x", {"own_binds": ["/a b"]}, "white space"),
        ("podman", "x", {"environment": {"A;x": "1"}}, "A;x"),
        ("podman", "x", {"environment": {"UID": "1"}}, "UID"),
        ("podman", "x", {"environment": {"A": "\0"}}, "NUL byte"),
        (
            "apptainer",
            "x",
            {"environment": {"APPTAINER_DOCKER_PASSWORD": "p"}},
            "would be in the script",
        ),
    ],
)
def test_what_no_runtime_can_be_given_is_refused(
    runtime: str, image: str, more: dict[str, Any], named: str
) -> None:
    with pytest.raises(UsageError, match=named):
        made_of(runtime, image, **more)
