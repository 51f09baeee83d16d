"""Commands that run under Enroot: import the image, create the container, start it."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Sequence

from hpcdash.backends.script.containers.login import (
    PASSWORD,
    USERNAME,
    source_login,
    split_registry,
    without_trace,
)
from hpcdash.backends.script.containers.words import (
    ContainerCommand,
    SplitEnvironment,
    Word,
    to_arguments,
)
from hpcdash.domain.request import Container, SlotType
from hpcdash.errors import UsageError

_DOCKER_HUB_MACHINES = ("auth.docker.io", "registry-1.docker.io")


def container_name(image: str) -> str:
    """`nvcr.io/nvidia/cuda:12` → `nvcr.io+nvidia+cuda+12`; what else no image's name holds becomes
    `_`.
    """
    name = re.sub(r"[/:#]", "+", image.removeprefix("docker://").removesuffix(".sqsh").lstrip("/"))
    return re.sub(r"[^A-Za-z0-9._+@=-]", "_", name)


def import_uri(image: str) -> str:
    """`nvcr.io/nvidia/cuda:12` → `docker://nvcr.io#nvidia/cuda:12`: the registry ends with `#`."""
    name = image.removeprefix("docker://")
    host, rest = split_registry(name)
    return f"docker://{host}#{rest}" if host and "#" not in name else f"docker://{name}"


def enroot_command(
    container: Container,
    command: Sequence[Word],
    *,
    slot_type: SlotType,
    environment: SplitEnvironment,
    inherited: Sequence[str],
    login: str,
) -> ContainerCommand:
    """`enroot start …` of a container that is created where the node has none.

    Enroot reads its variables and mounts line by line: a value of several lines is set by `env`
    inside, and a bind with white space raises UsageError.
    """
    image = container.image
    for bind in container.binds:
        if re.search(r"\s", bind):
            raise UsageError(
                f"container.binds: enroot cannot mount a path with white space: {bind!r}",
                "Bind its parent folder.",
            )
    name = container_name(image)
    values = {**environment.exported, **environment.explicit}
    multiline_values = {key: value for key, value in values.items() if "\n" in value}
    options = ["enroot", "start", "--rw", "--mount", "tmpfs:/var/tmp:tmpfs:x-create=dir"]
    for bind in container.binds:
        source, _, rest = bind.partition(":")
        target, _, flags = rest.partition(":")
        fstab = ",".join(filter(None, ("x-create=auto,rbind", flags)))
        options += ["--mount", f"{source}:{target or source}:none:{fstab}"]
    for key in (*environment.inherited, *environment.exported):
        options += ["--env", key] if key not in multiline_values else []
    for key, value in environment.explicit.items():
        options += ["--env", f"{key}={value}"] if key not in multiline_values else []
    inside = [f"{key}={value}" for key, value in multiline_values.items()]
    if inside:
        inside.insert(0, "env")
    visible = "export NVIDIA_VISIBLE_DEVICES=${NVIDIA_VISIBLE_DEVICES:-all}"
    note = "force_pull recreates the container: other jobs on the node that use it lose its files."
    return ContainerCommand(
        argv=(
            *to_arguments(options),
            Word('"${hpcdash_env[@]}"', is_shell=True),
            *to_arguments(("--", name, *inside)),
            *command,
        ),
        prepare=(
            *source_login(login),
            *([visible] if slot_type is SlotType.CUDA else ()),
            *_present(inherited),
            *_create(container, name, login),
        ),
        environment={"ENROOT_MOUNT_HOME": "y", **environment.exported},
        finish=('rm -rf -- "$hpcdash_config"',) if login else (),
        notes=(note,) if container.force_pull else (),
    )


def _present(names: Sequence[str]) -> tuple[str, ...]:
    """Enroot takes no prefix: an array of `--env NAME` for those that the node's environment
    has.
    """
    requested = " \\\n    ".join(textwrap.wrap(" | ".join(names), 100)) or "''"
    return (
        "hpcdash_env=()",
        "for hpcdash_name in $(compgen -e); do",
        '  case "$hpcdash_name" in',
        f"    {requested})",
        '      hpcdash_env+=(--env "$hpcdash_name") ;;',
        "  esac",
        "done",
    )


def _create(container: Container, name: str, login: str) -> tuple[str, ...]:
    image = container.image
    quoted_name = shlex.quote(name)
    is_file = image.startswith("/")
    hint = shlex.quote(
        f"hpcdash: no enroot container {name} here; on this node run: "
        + (
            ""
            if is_file
            else f"enroot import -o {quoted_name}.sqsh -- {shlex.quote(import_uri(image))} && "
        )
        + (
            f"enroot create --name {quoted_name} -- "
            f"{shlex.quote(image) if is_file else quoted_name + '.sqsh'}"
        )
    )
    listed = f"enroot list | grep -Fxq -- {quoted_name}"
    force = "--force " if container.force_pull else ""
    cached = f'"${{XDG_CACHE_HOME:-$HOME/.cache}}"/hpcdash/images/{shlex.quote(name + ".sqsh")}'
    import_lines: tuple[str, ...] = ()
    if not is_file:
        needed = "true" if container.force_pull else '[[ ! -e "$hpcdash_file" ]]'
        import_lines = (
            f"if {needed}; then",
            *(f"  {line}" for line in _import(image, login)),
            "fi",
        )
    made_by_another = "" if container.force_pull else f"{listed} || "
    return (
        "hpcdash_missing() {",
        f"  printf '%s\\n' {hint} >&2",
        "  exit 1",
        "}",
        f"hpcdash_file={shlex.quote(image) if is_file else cached}",
        f"if {'true' if container.force_pull else f'! {listed}'}; then",
        *(f"  {line}" for line in import_lines),
        f'  enroot create {force}--name {quoted_name} -- "$hpcdash_file" || '
        f"{made_by_another}hpcdash_missing",
        "fi",
    )


def _import(image: str, login: str) -> tuple[str, ...]:
    """Nodes may share the folder: each imports to a file of its own, and the last to finish puts
    its own in place.
    """
    before = "ENROOT_CONFIG_PATH=$hpcdash_config " if login else ""
    return (
        'mkdir -p -- "${hpcdash_file%/*}"',
        "hpcdash_part=$hpcdash_file.$HOSTNAME.$$",
        *(login_lines(image) if login else ()),
        f'{before}enroot import --output "$hpcdash_part" -- {shlex.quote(import_uri(image))} || {{',
        '  rm -f -- "$hpcdash_part"',
        "  hpcdash_missing",
        "}",
        'mv -f -- "$hpcdash_part" "$hpcdash_file"',
        *(('rm -rf -- "$hpcdash_config"',) if login else ()),
    )


def login_lines(image: str) -> tuple[str, ...]:
    """Enroot reads logins from a netrc file in its configuration's folder: one of mode 0700 for the
    import alone.
    """
    host = split_registry(image.replace("#", "/", 1))[0]
    machines = " ".join(
        shlex.quote(machine) for machine in ((host,) if host else _DOCKER_HUB_MACHINES)
    )
    return without_trace(
        "hpcdash_config=$(mktemp -d) || exit",
        f"for hpcdash_machine in {machines}; do",
        "  printf 'machine %s login %s password %s\\n' \\",
        f'    "$hpcdash_machine" "${USERNAME}" "${PASSWORD}"',
        'done >"$hpcdash_config/.credentials"',
    )
