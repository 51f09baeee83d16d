"""Commands that run under Apptainer or Singularity, whichever a node has."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Sequence

from hpcdash.backends.script.containers.login import source_login
from hpcdash.backends.script.containers.words import (
    ContainerCommand,
    SplitEnvironment,
    Word,
    to_arguments,
)
from hpcdash.domain.request import Container, SlotType

SCHEMES = ("docker://", "oras://", "library://", "shub://", "docker-archive:", "oci-archive:")
_GPU_OPTIONS = {SlotType.CUDA: ("--nv",), SlotType.ROCM: ("--rocm",), SlotType.CPU: ()}
_FIND_PROGRAM = """\
hpcdash_runtime=$(type -P apptainer || type -P singularity) || {
  echo "hpcdash: neither apptainer nor singularity is on $HOSTNAME's PATH; load its module" >&2
  exit 127
}"""
_PRIVATE_TMP = 'hpcdash_tmp=$(mktemp -d "${TMPDIR:-/tmp}/hpcdash.XXXXXXXX") || exit'


def apptainer_command(
    container: Container,
    command: Sequence[Word],
    *,
    slot_type: SlotType,
    environment: SplitEnvironment,
    image_root: str,
    login: str,
) -> ContainerCommand:
    """`apptainer exec …`.

    Variables reach the container as APPTAINERENV_NAME, so that an image cannot override them.
    """
    image, find_image, notes = _image(container, image_root)
    private_tmp = not any(_target(bind) == "/tmp" for bind in container.binds)
    explicit = dict(environment.explicit)
    if private_tmp:
        explicit.setdefault("TMPDIR", "/tmp")
    options: list[str | Word] = ["exec", *_GPU_OPTIONS[slot_type], "--writable-tmpfs"]
    if container.force_pull:
        options.append("--disable-cache")
    if private_tmp:
        options += ["--bind", Word('"$hpcdash_tmp:/tmp"', is_shell=True)]
    for bind in container.binds:
        # A comma would end the bind: it is escaped in its paths, not in its options.
        source, first, rest = bind.partition(":")
        target, second, flags = rest.partition(":")
        paths = (source + first + target).replace(",", "\\,")
        options += ["--bind", paths + second + flags]
    return ContainerCommand(
        argv=(Word('"$hpcdash_runtime"', is_shell=True), *to_arguments(options), image, *command),
        prepare=(
            *source_login(login),
            *_hand_over(environment, explicit),
            _FIND_PROGRAM,
            *find_image,
            *((_PRIVATE_TMP,) if private_tmp else ()),
        ),
        environment=environment.exported,
        finish=('rm -rf -- "$hpcdash_tmp"',) if private_tmp else (),
        notes=notes,
    )


def _image(container: Container, image_root: str) -> tuple[Word, tuple[str, ...], tuple[str, ...]]:
    """Return the image, bash that finds it, and notes.

    A name is searched below image_root, then on a registry.
    """
    name = container.image
    if name.startswith(("/", "./", "../")):
        note = (f"force_pull has no effect on the file {name}.",) if container.force_pull else ()
        return Word(name), (), note
    if name.startswith(SCHEMES):
        return Word(name), (), ()
    remote = f"docker://{name}"
    if not image_root or container.force_pull:
        return Word(remote), (), ()
    file = shlex.quote(posixpath.join(image_root, name))
    lines = (
        f"hpcdash_image={file}",
        f'[[ -e "$hpcdash_image" ]] || hpcdash_image={shlex.quote(remote)}',
    )
    return Word('"$hpcdash_image"', is_shell=True), lines, ()


def _hand_over(environment: SplitEnvironment, explicit: dict[str, str]) -> tuple[str, ...]:
    lines = []
    if environment.exported:
        lines += [
            f"for hpcdash_name in {' '.join(environment.exported)}; do",
            '  export "APPTAINERENV_$hpcdash_name=${!hpcdash_name}" '
            '"SINGULARITYENV_$hpcdash_name=${!hpcdash_name}"',
            "done",
        ]
    for name, value in explicit.items():
        lines.append(
            f"export APPTAINERENV_{name}={shlex.quote(value)} "
            f"SINGULARITYENV_{name}={shlex.quote(value)}"
        )
    return tuple(lines)


def _target(bind: str) -> str:
    source, _, rest = bind.partition(":")
    return posixpath.normpath(rest.partition(":")[0] or source)
