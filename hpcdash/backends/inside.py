"""Running a command on every node of a running job: the script for one node, and how its frames are
read.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from collections.abc import Callable, Iterable

from msgspec import Struct

from hpcdash.backends.queries import Answer
from hpcdash.errors import HpcdashError

# Of what a command writes on one node, or for one GPU, so much is sent.
CAP_BYTES = 256 << 10
# Beyond the time that a command has on its node, what a step may take to start there and to be
# ended.
GRACE_SECONDS = 45

# Which processes are the job's, for scripts that look at them. A step sets HPCDASH_JOB_CGROUP to
# the name of the job's cgroup ('' for none), and HPCDASH_JOB_PATTERNS to regular expressions, a
# line each, all of which match variables of the job's processes; HPCDASH_NODE_VARIABLE names the
# variable that tells nodes apart which are one machine. HPCDASH_RANK_VARIABLE names the one that a
# task's number is in. HPCDASH_JOB_VARIABLES name those with a job's number, the first of which
# every process of a job has, with HPCDASH_JOB_SUFFIX at its end; those that HPCDASH_JOB_SAME names
# are alike in all jobs of one scheduler, and in a step.
# HPCDASH_INSIDE marks what hpcdash itself runs in a job. `test -O` is dash's and bash's.
OF_JOB = r"""
variable() {
  tr '\0' '\n' < "/proc/$1/environ" 2>/dev/null | while IFS= read -r assignment; do
    case $assignment in "$2="*) printf '%s\n' "${assignment#*=}"; break ;; esac
  done
}
rank_of() {
  for name in RANK "$HPCDASH_RANK_VARIABLE" OMPI_COMM_WORLD_RANK PMI_RANK; do
    [ -n "$name" ] || continue
    value=$(variable "$1" "$name")
    case $value in '' | *[!0-9]*) ;; *) echo "$value"; return ;; esac
  done
}
job_cgroup() {
  [ -n "$HPCDASH_JOB_CGROUP" ] || return 1
  while IFS= read -r line; do
    case $line in */"$HPCDASH_JOB_CGROUP" | */"$HPCDASH_JOB_CGROUP"/*)
      printf '%s\n' "${line%%/"$HPCDASH_JOB_CGROUP"*}/$HPCDASH_JOB_CGROUP" ;;
    esac
  done 2>/dev/null < "/proc/$1/cgroup"
}
of_job() {
  [ -O "/proc/$1" ] || return 1
  grep -qz '^HPCDASH_INSIDE=' "/proc/$1/environ" 2>/dev/null && return 1
  if [ -n "$HPCDASH_NODE_VARIABLE" ]; then
    its=$(variable "$1" "$HPCDASH_NODE_VARIABLE")
    [ "${its:-$HPCDASH_NODE}" = "$HPCDASH_NODE" ] || return 1
  fi
  [ -n "$(job_cgroup "$1")" ] && return 0
  [ -n "$HPCDASH_JOB_PATTERNS" ] || return 1
  while IFS= read -r pattern; do
    grep -qzE -e "$pattern" "/proc/$1/environ" 2>/dev/null || return 1
  done <<patterns
$HPCDASH_JOB_PATTERNS
patterns
}
"""

# How a script on a node begins, once it has set `token`. Each line that it prints is a frame:
# token, node, GPU or '-', and '.' with a line of base64, '=' with an exit status (and words) or '!'
# with words. What is written to a frame is encoded, so that no command's output is taken for one.
# stdin is held open while somebody reads this: its end ends the script.
NODE_START = (
    r"""
HPCDASH_NODE=${HPCDASH_NODE:-$(uname -n)} HPCDASH_INSIDE=$token
export HPCDASH_NODE HPCDASH_INSIDE
exec 7<&0 9>&1 </dev/null 2>/dev/null
trap 'trap "" TERM; kill -TERM 0; exit 143' TERM
( trap "" TERM; while read -r _; do :; done <&7; kill -TERM 0 ) 9>&- &
watcher=$!
exec 7<&-
"""
    + OF_JOB
    + r"""
frame() { printf '%s %s %s %s\n' "$token" "$HPCDASH_NODE" "$1" "$2" >&9; }
framed() { base64 | while IFS= read -r line; do frame "$1" ".$line"; done; }
"""
)
# $1 token, $2 seconds, $3 "node" or "gpu", $4 folder, $5 "job" for the environment of the job's
# first process, then the command.
NODE_SCRIPT = (
    r"""
token=$1 seconds=$2 each=$3 folder=$4 inherits=$5
shift 5
"""
    + NODE_START
    + r"""
take_environment() {
  nl='
' mark=$(printf '\001')
  while IFS= read -r line; do
    name=${line%%=*}
    case $name in '' | "$line" | [0-9]* | *[!A-Za-z0-9_]*) continue ;; esac
    case $name in IFS | PPID | UID | EUID | GROUPS | PWD | OLDPWD | _ | SHELLOPTS | BASHOPTS | BASH_*) continue ;;
      HPCDASH_INSIDE | HPCDASH_NODE | HPCDASH_NODE_* | HPCDASH_JOB_* | HPCDASH_RANK_*) continue ;;
    esac
    while :; do
      case $line in *"$mark"*) line=${line%%"$mark"*}$nl${line#*"$mark"} ;; *) break ;; esac
    done
    export "${line?}"
  done
}
limited() {
  if [ -n "$gpu" ]; then
    export "$gpus_variable=$gpu"
  fi
  timeout -k 5 "$seconds" "$@" </dev/null 2>&1 8>&- 9>&- &
  child=$!
  trap 'kill -TERM "$child"; exit 143' TERM
  wait "$child"
}
as_job() {
  if [ -n "$leader" ]; then
    tr '\0\n' '\n\001' < "/proc/$leader/environ" | { take_environment; limited "$@"; }
  else
    unset LC_ALL
    limited "$@"
  fi
}
# Whatever the command leaves running may hold its output: two seconds after the command `cat` is ended, and with it the
# reading. fd 8 tells what has ended.
run() {
  gpu=$1 unit=${1:--}
  shift
  {
    { as_job "$@"; echo "status $?" >&8; exec >&-; sleep 2 & echo "grace $!" >&8; wait "$!" && echo late >&8; } |
      { exec 5<&0 </dev/null; cat <&5 5<&- 8>&- & echo "reader $!" >&8; exec 5<&- 8>&-; wait "$!"; } |
      head -c "$HPCDASH_CAP" 8>&- | { framed "$unit"; echo end >&8; }
  } 8>&1 >/dev/null | {
    status='' grace='' reader='' ended='' held=''
    while read -r word value; do
      case $word in
        status) status=$value ;;
        grace) grace=$value ;;
        reader) reader=$value ;;
        late) [ -n "$ended" ] || { held=' a background process still holds the output'; kill "$reader"; } ;;
        end) ended=1 ;;
      esac
      [ -z "$ended" ] || [ -z "$grace" ] || kill "$grace"
    done
    frame "$unit" "=$status$held"
  }
}
leader=
if [ "$inherits" = job ]; then
  for process in /proc/[0-9]*; do
    of_job "${process#/proc/}" || continue
    case $(readlink "$process/exe") in
      # A script that started the rest has not what it exported to it.
      */sh | */*sh) [ -n "$leader" ] || leader=${process#/proc/} ;;
      *) leader=${process#/proc/}; break ;;
    esac
  done
fi
cd -- "$folder" || cd /
if [ "$each" = gpu ]; then
  gpus='' gpus_variable=CUDA_VISIBLE_DEVICES
  for name in CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES; do
    if [ -n "$leader" ]; then gpus=$(variable "$leader" "$name"); else gpus=$(printenv "$name"); fi
    if [ -n "$gpus" ]; then gpus_variable=$name; break; fi
  done
  [ -n "$gpus" ] || gpus=$(timeout 10 nvidia-smi --query-gpu=index --format=csv,noheader | tr '\n' ',')
  count=0 running=
  while [ -n "$gpus" ]; do
    one=${gpus%%,*}
    case $gpus in *,*) gpus=${gpus#*,} ;; *) gpus= ;; esac
    case $one in '' | *[!A-Za-z0-9:/._-]*) continue ;; esac
    run "$one" "$@" &
    running="$running $!" count=$((count + 1))
  done
  for process in $running; do wait "$process"; done
  [ "$count" -gt 0 ] || frame - "!no GPU of the job is known here"
else
  run '' "$@"
fi
kill -KILL "$watcher"
"""
)

# $1 the longest time in seconds, then a command of the login node whose stdin is held open until
# nobody reads its stdout any more: an empty line now and then finds that out.
HELD_SCRIPT = r"""
seconds=$1
shift
exec 3>&2 4>&1 2>/dev/null
sh -c '
  echo $$
  trap "" PIPE
  while [ "$1" -gt 0 ] && printf "\n" >&4; do sleep 3 >/dev/null 4>&-; set -- $(($1 - 3)); done
' sh "$seconds" 3>&- | {
  read -r holder
  "$@" 2>&3 3>&- 4>&-
  status=$?
  kill "$holder"
  exit $status
}
"""


class InsideCommand(Struct, frozen=True):
    """What is to be run on each node of a job: argv, and for how long there.

    `each_gpu`: once for each GPU that the job has on the node, which is then the only one it sees.
    A `sampler` writes its frames itself, for as long as somebody reads them. `title` stands for
    argv in the journal.
    """

    argv: tuple[str, ...]
    seconds: int = 60
    each_gpu: bool = False
    is_sampler: bool = False
    title: str = ""

    def words(self, token: str, folder: str, *, as_job: bool) -> tuple[str, ...]:
        """What a shell on a node is given after `-c`: the script and its arguments."""
        if self.is_sampler:
            script, *arguments = self.argv
            return (script, "sh", token, *arguments)
        each, inherits = "gpu" if self.each_gpu else "node", "job" if as_job else ""
        script = NODE_SCRIPT.replace("$HPCDASH_CAP", str(CAP_BYTES))
        return (script, "sh", token, str(self.seconds), each, folder or "/", inherits, *self.argv)


class InsideStep(Struct, frozen=True):
    """The one command of the login node that runs an InsideCommand on each of a job's nodes.

    `nodes` are those it should hear from, () where that is not known; `command` is what a person
    would have called, `skipped` are nodes it does not go to. `failure` makes an error of an answer
    without a frame.
    """

    argv: tuple[str, ...]
    token: str
    limit_seconds: float
    failure: Callable[[Answer], HpcdashError]
    nodes: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


def fresh_frame_token() -> str:
    """What begins the frames of one step."""
    return f"hpcdash-{secrets.token_hex(8)}"


def held(seconds: float, *argv: str) -> tuple[str, ...]:
    """A command of the login node whose stdin is open as long as somebody reads its stdout."""
    return ("sh", "-c", HELD_SCRIPT, "sh", str(int(seconds)), *argv)


def exactly(text: str) -> str:
    """A regular expression of grep -E for this text."""
    return re.sub(r"([][\\.^$*+?(){}|])", r"\\\1", text)


class NodeOutput(Struct, frozen=True):
    """What a command wrote on a node (for a GPU, '' where it ran once for all), and how it ended.

    `status` is None where that is not known: the node did not answer, or not to the end. `problem`
    is in its own words, or what stayed of a command that has ended.
    """

    node: str
    gpu: str = ""
    output: bytes = b""
    status: int | None = None
    problem: str = ""

    @property
    def is_cut(self) -> bool:
        return len(self.output) >= CAP_BYTES


class Frames:
    """Reads the frames of a step, chunk by chunk; what else stands on its stdout is dropped."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._rest = b""
        self.outputs: dict[tuple[str, str], NodeOutput] = {}

    def feed(self, chunk: bytes) -> list[NodeOutput]:
        """Those that ended with this chunk."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > CAP_BYTES:
            self._rest = b""
        return [ended for line in lines if (ended := self._take(line)) is not None]

    def _take(self, line: bytes) -> NodeOutput | None:
        parts = line.split(b" ", 3)
        if len(parts) != 4 or parts[0] != self._token or not parts[3]:
            return None
        node, gpu = (word.decode("utf-8", "replace") for word in parts[1:3])
        key = (node, "" if gpu == "-" else gpu)
        known = self.outputs.get(key, NodeOutput(*key))
        kind, content = parts[3][:1], parts[3][1:]
        match kind:
            case b".":
                try:
                    more = base64.b64decode(content, validate=True)
                except binascii.Error:
                    return None
                self.outputs[key] = NodeOutput(*key, (known.output + more)[:CAP_BYTES])
                return None
            case b"=":
                status, _, end_text = content.decode("utf-8", "replace").partition(" ")
                number = int(status) if status.isascii() and status.isdecimal() else None
                self.outputs[key] = NodeOutput(*key, known.output, number, end_text)
            case b"!":
                self.outputs[key] = NodeOutput(
                    *key, known.output, None, content.decode("utf-8", "replace")
                )
            case _:
                return None
        return self.outputs[key]

    def take_ended(self, ended: Iterable[NodeOutput]) -> None:
        """Forget what is read, so that the same nodes may write again."""
        for output in ended:
            self.outputs.pop((output.node, output.gpu), None)
