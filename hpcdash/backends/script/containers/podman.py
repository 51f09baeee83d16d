"""Commands that run under Podman, without root."""

from __future__ import annotations

import shlex
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
from hpcdash.shell_files import shell_text

_DEVICES = {
    # The Container Device Interface's name, as `nvidia-ctk cdi generate` writes it.
    SlotType.CUDA: ("--device=nvidia.com/gpu=all",),
    SlotType.ROCM: ("--device=/dev/kfd", "--device=/dev/dri", "--group-add=keep-groups"),
    SlotType.CPU: (),
}


def podman_command(
    container: Container,
    command: Sequence[Word],
    *,
    slot_type: SlotType,
    environment: SplitEnvironment,
    inherited: Sequence[str],
    login: str,
) -> ContainerCommand:
    """`podman run …`.

    Values are exported and named (`--env=NAME`), so that no list of processes shows them.

    `inherited` are names, or prefixes as `SLURM_*`, that are passed on where the node has them.
    """
    options: list[str | Word] = [
        "podman",
        "run",
        "--rm",
        Word('--name="$hpcdash_container"', is_shell=True),
    ]
    options += ["--network=host", "--ipc=host", *_DEVICES[slot_type]]
    is_archive = container.image.startswith("oci-archive:")
    has_login = bool(login) and not is_archive
    if container.force_pull and not is_archive:
        options.append("--pull=always")
    options.append("--volume=/etc/hosts:/etc/hosts:ro")
    options += [f"--volume={bind if ':' in bind else f'{bind}:{bind}'}" for bind in container.binds]
    options += [
        f"--env={name}"
        for name in dict.fromkeys((*inherited, *environment.inherited, *environment.exported))
    ]
    options += [f"--env={name}={value}" for name, value in environment.explicit.items()]
    return ContainerCommand(
        argv=(
            *to_arguments(
                (
                    *options,
                    container.image,
                    "sh",
                    "-c",
                    shell_text("backends/script/containers/pass_signals.sh"),
                    "sh",
                )
            ),
            *command,
        ),
        prepare=(
            *source_login(login),
            *(registry_login(container.image) if has_login else ()),
            shell_text("backends/script/containers/podman.sh").rstrip("\n"),
        ),
        environment=environment.exported,
        finish=('hpcdash_waited "$?"',),
    )


def registry_login(image: str) -> tuple[str, ...]:
    """Podman takes no login from variables: a file of its own form, mode 0600 by mktemp, for this
    run alone.
    """
    registry = shlex.quote(split_registry(image)[0] or "docker.io")
    return without_trace(
        "hpcdash_auth=$(mktemp) || exit",
        'export REGISTRY_AUTH_FILE="$hpcdash_auth"',
        f'hpcdash_login=$(printf "%s:%s" "${USERNAME}" "${PASSWORD}" | base64 -w 0)',
        f'printf \'{{"auths":{{"%s":{{"auth":"%s"}}}}}}\\n\' {registry} "$hpcdash_login" '
        '>"$hpcdash_auth"',
        "unset hpcdash_login",
    )
