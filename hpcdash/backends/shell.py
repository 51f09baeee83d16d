"""A shell in a running job: what a scheduler has to run for it, in the job's folder and
container.
"""

from __future__ import annotations

from msgspec import Struct


class ShellRequest(Struct, frozen=True):
    """On which of the job's nodes ('': none is known), and what runs there: `command`, () for the
    person's own shell.

    `in_container`: the launch has its command run in a container, so the shell is to be inside of
    it. Without `has_terminal` the command's output goes to pipes.
    """

    node: str = ""
    command: tuple[str, ...] = ()
    in_container: bool = False
    has_terminal: bool = True


class ShellCommand(Struct, frozen=True):
    """What runs on a person's terminal: `argv` on the login node, or on `host` through ssh from
    there.

    `notes` say what it does not give.
    """

    argv: tuple[str, ...]
    host: str = ""
    notes: tuple[str, ...] = ()


# Takes the variables of a process over: $1 is its folder in /proc, $2 a regular expression without
# groups for their names. Values stand in '…', so that nothing in them is read; those that a shell
# keeps for itself are left out.
ADOPT = r"""
adopt() {
  eval "$(tr '\n\0' '\001\n' 2>/dev/null < "$1/environ" | LC_ALL=C sed -n -E \
    -e '/^(UID|EUID|PPID|SHELLOPTS|BASHOPTS|TERM|_)=/d' -e "s/'/'\\\\''/g" -e "s/^($2)=(.*)\$/export \1='\2'/p" \
    | tr '\001' '\n')"
}
"""
# $1 is the folder to be in, then come the words of a command. Where the folder cannot be entered
# `cd` says so.
_IN_FOLDER = '[ -z "$1" ] || cd -- "$1"; shift; [ -x "${SHELL-}" ] || SHELL=/bin/sh; exec '
# A process of the job with another root folder is in its container; what starts containers may have
# other mounts than the node, but not another root. The oldest has the container's variables. What
# is in a user namespace of the person's own can be entered by them, that of a setuid program
# cannot. A container may not pass all variables of a job on. `sh` is in each image that a launch
# runs in, `true` need not be. $1 is what starts in the container, and $2 outside of it; $3 is the
# folder, then come the words of a command.
_IN_CONTAINER = (
    ADOPT
    + r"""
inside=$1 outside=$2 folder=$3 every='[A-Za-z_][A-Za-z0-9_]*'
shift 3
root=$(stat -L -c %d:%i /)
found='' oldest=''
for of in /proc/[0-9]*; do
  [ -O "$of" ] || continue
  [ "$(readlink "$of/ns/mnt")" != "$(readlink /proc/self/ns/mnt)" ] || continue
  [ "$(stat -L -c %d:%i "$of/root/")" != "$root" ] || continue
  for name in HPCDASH_ATTEMPT SLURM_JOB_ID PBS_JOBID; do
    eval "value=\${$name-}"
    [ -n "$value" ] || continue
    if tr '\n\0' '\001\n' < "$of/environ" | grep -Fxq -e "$name=$value"; then
      began=$(sed 's/.*) //' "$of/stat" | cut -d ' ' -f 20)
      [ -n "$oldest" ] && [ "${began:-0}" -ge "$oldest" ] || { found=$of oldest=$began; }
    fi
    break
  done
done 2>/dev/null
why="no process in it is to be seen on this node"
nsenter=$(command -v nsenter) || why="nsenter is not on this node" found=
if [ -n "$found" ]; then
  how="--mount --root --wd"
  for kind in pid ipc uts net; do
    [ "$(readlink "$found/ns/$kind")" = "$(readlink "/proc/self/ns/$kind")" ] || how="$how --$kind"
  done
  [ "$(readlink "$found/ns/user")" = "$(readlink /proc/self/ns/user)" ] || how="--user --preserve-credentials $how"
  if why=$(adopt "$found" "$every"; "$nsenter" --target "${found#/proc/}" $how -- sh -c : 2>&1); then
    adopt "$found" "$every"
    exec "$nsenter" --target "${found#/proc/}" $how -- sh -c "$inside" sh "$folder" "$@"
  fi
fi
echo "hpcdash: the job's container cannot be entered: $why" >&2
if [ $# -gt 0 ] || ! [ -t 0 ]; then
  echo "hpcdash: nothing was run; with --outside it runs on the node, outside of the container" >&2
  exit 126
fi
printf 'hpcdash: a shell on the node, outside of the container? [y/N] ' >&2
read -r answer
case $answer in [yY]*) exec sh -c "$outside" sh "$folder" ;; esac
exit 126
"""
)


def in_folder(
    folder: str, command: tuple[str, ...] = (), *, is_login: bool = True
) -> tuple[str, ...]:
    """A command in a folder, or the person's shell, which reads what a login reads unless
    `is_login` is False.
    """
    return "sh", "-c", _start(command, is_login=is_login), "sh", folder, *command


def _start(command: tuple[str, ...], *, is_login: bool) -> str:
    shell = '"$SHELL" -l' if is_login else '"$SHELL"'
    return _IN_FOLDER + ('"$@"' if command else shell)


def in_job(folder: str, request: ShellRequest, *, is_login: bool = True) -> tuple[str, ...]:
    """What a request runs on a job's node: in the job's folder, and in its container."""
    if not request.in_container:
        return in_folder(folder, request.command, is_login=is_login)
    # What a login reads is the machine's, not the container's.
    starts = (_start(request.command, is_login=inside) for inside in (False, is_login))
    return "sh", "-c", _IN_CONTAINER, "sh", *starts, folder, *request.command
