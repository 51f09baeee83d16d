"""Commands in a container on a node: one module for each runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from hpcdash.backends.script.containers.apptainer import apptainer_command
from hpcdash.backends.script.containers.enroot import enroot_command
from hpcdash.backends.script.containers.login import login_file
from hpcdash.backends.script.containers.podman import podman_command
from hpcdash.backends.script.containers.pyxis import pyxis_options
from hpcdash.backends.script.containers.words import (
    ContainerCommand,
    Word,
    split_environment,
    to_arguments,
)
from hpcdash.domain.request import Container, Runtime, SlotType
from hpcdash.errors import UsageError

__all__ = ["ContainerCommand", "Word", "container_command", "login_file", "pyxis_options"]

# Variable of the embedded queue: it finds a job's processes by it.
_ATTEMPT = "HPCDASH_ATTEMPT"
VISIBLE_DEVICES = (
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
)


def container_command(
    container: Container,
    command: Sequence[str | Word],
    *,
    slot_type: SlotType,
    environment: Mapping[str, str],
    binds: Sequence[str] = (),
    scheduler_variables: Sequence[str] = ("SLURM_*",),
    image_root: str = "",
    login: str = "",
) -> ContainerCommand:
    """Build the command of one node that runs `command` in the container.

    `binds` are added to the container's own. `scheduler_variables` are names or prefixes (`PBS_*`)
    to pass on in a runtime that passes on nothing, like the variables of visible devices and those
    of `environment` without a value. `login` is the path of a file made of `login_file()`. Raises
    UsageError for an image, a bind or a variable that cannot be passed to the runtime.
    """
    split = split_environment(environment)
    command_arguments = to_arguments(command)
    image = container.image
    if not image or image.startswith("-") or "\0" in image:
        raise UsageError(
            f"container.image: {image!r} is not an image",
            "Use a path, docker://NAME:TAG or NAME:TAG.",
        )
    container = replace(container, binds=(*container.binds, *binds))
    for bind in container.binds:
        if not bind.partition(":")[0] or "\0" in bind:
            raise UsageError(
                f"container.binds: {bind!r} has no source", "Use SOURCE[:TARGET[:OPTIONS]]."
            )
    inherited = tuple(dict.fromkeys((*scheduler_variables, *VISIBLE_DEVICES, _ATTEMPT)))
    if container.runtime is Runtime.DOCKER:
        raise UsageError(
            "container.runtime: docker would run as root on the nodes",
            "Use apptainer, podman or enroot.",
        )
    if container.runtime in (None, Runtime.APPTAINER):
        return apptainer_command(
            container,
            command_arguments,
            slot_type=slot_type,
            environment=split,
            image_root=image_root,
            login=login,
        )
    run = podman_command if container.runtime is Runtime.PODMAN else enroot_command
    return run(
        container,
        command_arguments,
        slot_type=slot_type,
        environment=split,
        inherited=inherited,
        login=login,
    )
