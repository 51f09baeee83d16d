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
from hpcdash.backends.script.containers.words import ContainerCommand, SplitEnvironment, Word, words
from hpcdash.domain.request import Container, SlotType

_DEVICES = {
    # The Container Device Interface's name, as `nvidia-ctk cdi generate` writes it.
    SlotType.CUDA: ("--device=nvidia.com/gpu=all",),
    SlotType.ROCM: ("--device=/dev/kfd", "--device=/dev/dri", "--group-add=keep-groups"),
    SlotType.CPU: (),
}

# The first process of a container gets the signals of a job, and those it does not catch are lost:
# a shell hands them to all others. What a shell starts beside it ignores INT.
_HAND_SIGNALS_ON = """\
[ "$$" = 1 ] || exec "$@"
for name in HUP TERM USR1 USR2; do trap "kill -$name -1" "$name"; done
trap 'kill -TERM -1' INT
exec 3<&0
"$@" <&3 3<&- &
child=$!
while :; do
  wait "$child"
  status=$?
  kill -0 "$child" 2>/dev/null || exit "$status"
done"""

# A signal that kills `podman run` need not reach the container, which is conmon's child: a process
# in a session of its own kills it after this shell.
_NAME_IT = (
    'hpcdash_container=hpcdash-$(od -An -N 8 -t x8 /dev/urandom | tr -d " ")',
    """(setsid sh -c 'trap "" HUP INT TERM; tail -s 2 --pid="$1" -f /dev/null; podman kill -s KILL "$2"' sh \\
  "$$" "$hpcdash_container" < /dev/null > /dev/null 2>&1 &)""",
)
# `podman run` ends before its container does where it cannot forward a signal: scancel sends CONT
# and TERM to each process of a job, and TERM ends the runtime that is just forwarding CONT. Podman
# then forwards no more, and dies of TERM, which the container has not received.
_WAIT_FOR_IT = """\
hpcdash_waited() {
  trap "" TERM
  %s
  [ "$(podman inspect -f "{{.State.Running}}" "$hpcdash_container" 2>/dev/null)" = true ] || exit "$1"
  podman attach --no-stdin --sig-proxy=false "$hpcdash_container" &
  sleep 0.5
  podman kill -s TERM "$hpcdash_container" >/dev/null 2>&1
  wait "$!"
  exit "$?"
}"""


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
    waiting = _WAIT_FOR_IT.replace("  %s\n", '  rm -f -- "$hpcdash_auth"\n' if has_login else "")
    return ContainerCommand(
        argv=(*words((*options, container.image, "sh", "-c", _HAND_SIGNALS_ON, "sh")), *command),
        prepare=(
            *source_login(login),
            *(registry_login(container.image) if has_login else ()),
            *_NAME_IT,
            waiting,
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
        f'>"$hpcdash_auth"',
        "unset hpcdash_login",
    )
