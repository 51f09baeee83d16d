"""Bash that starts one command on each node of a job and waits for all. Knows no request and not what the command is.

The texts but slurm_srun()'s define `start_nodes`, `signal_nodes NAME` and `wait_nodes`; a script calls them in this
order, the second from a trap. A trap for a signal that must not end the waiting sets `interrupted=1`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from hpcdash.backends.script.containers.words import Word
from hpcdash.errors import UsageError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MARK = "HPCDASH_COMMAND_OF"
START = 'interrupted=\nstart_nodes\nwait_nodes\nexit "$status"\n'

_SLURM_SETTINGS = """\
# What fails on one node ends all.
export SLURM_KILL_BAD_EXIT=1
export SLURM_MPI_TYPE="${SLURM_MPI_TYPE:-pmi2}"
# srun takes no CPUs a task from the job by itself, since 22.05.
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
"""
# Each task would see the one GPU that its place was found by, and srun's tasks of a node find theirs by SLURM_LOCALID.
_ALL_GPUS = """\
# Each task sees all of its node's GPUs, of which SLURM_LOCALID is its own.
unset SLURM_GPUS_PER_TASK SLURM_TRES_PER_TASK
"""
# srun answers 143 where it had to end any, and else the highest status: one that it ended is to have the lowest.
_ON_NODE = """\
# srun's status is to be that of what failed, not 143 of those that it ends for it.
IFS= read -r -d '' on_node << 'END_OF_ON_NODE'
trap : SIGNALS
"$@"
status=$?
[ "$status" -ne 143 ] || status=1
exit "$status"
END_OF_ON_NODE
"""
_SLURM = """\
# In the background, so that this shell can act on signals meanwhile.
start_nodes() {{
  {srun} &
  srun_pid=$!
}}

# All processes of the step, on every node; by srun itself where the controller does not answer.
signal_nodes() {{
  scancel --signal="$1" "$SLURM_JOB_ID.{step}" || kill -s "$1" "$srun_pid"
}}

# A signal cuts wait short while the command still runs.
wait_nodes() {{
  while :; do
    interrupted=
    status=0
    wait "$srun_pid" || status=$?
    [ -n "$interrupted" ] || break
  done
}}
"""

_PBS = """\
# PBS_NODEFILE names a host once for each of its chunks, and PBS may put several on one. This host is its first.
hosts=() slots=() all_slots=0
while read -r count host; do
  hosts+=("$host")
  slots+=("$((count * {slots_a_chunk}{lines_a_chunk}))")
  all_slots=$((all_slots + count * {slots_a_chunk}{lines_a_chunk}))
done < <(awk '!count[$1]++ {{ order[++n] = $1 }} END {{ for (i = 1; i <= n; i++) print count[order[i]], order[i] }}' \\
  "$PBS_NODEFILE")

type -P pbs_tmrsh > /dev/null || PATH=$PATH:$(sed -n 's/^PBS_EXEC=//p' "${{PBS_CONF_FILE:-/etc/pbs.conf}}")/bin

{on_node}# Starts its words on host $1 in a login shell, as PBS starts this script. Nothing else of its environment goes
# along: each variable is written out. PBS's TERM to this script is not for what waits for the host.
on_host() {{
  local host=$1
  shift
  trap '' TERM
  exec pbs_tmrsh "$host" env "{mark}=$PBS_JOBID@$host" "USER=$USER" "LOGNAME=$LOGNAME" \\
    bash -l -c {words_on_node} env "PATH=$PATH" "PBS_JOBID=$PBS_JOBID" \\
    ${{PBS_ARRAY_INDEX:+"PBS_ARRAY_INDEX=$PBS_ARRAY_INDEX" "PBS_ARRAY_ID=$PBS_ARRAY_ID"}} "$@"
}}

# One command on each host. The file of PBS_NODEFILE is this host's own; PBS may have put one on others too.
running=()
start_nodes() {{
  local rank port=${{PBS_JOBID%%[^0-9]*}} here=("PBS_NODEFILE=$PBS_NODEFILE")
  port=$((20000 + (port + ${{PBS_ARRAY_INDEX:-0}}) % 12000))
  for rank in "${{!hosts[@]}}"; do
    on_host "${{hosts[rank]}}" "${{here[@]}}" \\
      "NODE_RANK=$rank" "NUM_NODES=${{#hosts[@]}}" \\
      "NODE_SLOTS=${{slots[rank]}}" "NUM_SLOTS=$all_slots" \\
      "MASTER_ADDR=${{hosts[0]}}" "MASTER_PORT=$port" \\
{variables}      {words} &
    running+=("$!")
    here=()
  done
}}

# Every process of the command on every host, found by the variable that it was started with.
signal_nodes() {{
  local host senders=()
  for host in "${{hosts[@]}}"; do
    pbs_tmrsh "$host" bash -c '
      grep -lszFx "{mark}=$1" /proc/[0-9]*/environ | cut -d/ -f3 |
        while read -r pid; do kill -s "$0" "$pid" 2>/dev/null; done' "$1" "$PBS_JOBID@$host" &
    senders+=("$!")
  done
  wait "${{senders[@]}}"
}}

# A look each second: `wait -n` is not in every bash, and misses those that ended before it.
wait_nodes() {{
  local pid left
  status=0
  while [ "${{#running[@]}}" -gt 0 ]; do
    left=()
    for pid in "${{running[@]}}"; do
      if kill -0 "$pid" 2>/dev/null; then
        left+=("$pid")
        continue
      fi
      while :; do
        interrupted=
        status=0
        wait "$pid" || status=$?
        [ -n "$interrupted" ] || break
      done
      if [ "$status" -ne 0 ]; then
        echo "a command on a host ended with $status: all are ended" >&2
        end_nodes "$status" 30
      fi
    done
    running=(${{left[@]+"${{left[@]}}"}})
    [ "${{#running[@]}}" -eq 0 ] || sleep 1
  done
}}

# Asks all commands to end, and kills after $2 s those that did not; without it PBS has asked, and kills: some save yet.
end_nodes() {{
  trap '' TERM
  [ -z "${{2:-}}" ] || signal_nodes TERM
  local pid left seconds=0
  while :; do
    left=
    for pid in "${{running[@]}}"; do
      kill -0 "$pid" 2>/dev/null && left=1
    done
    [ -n "$left" ] || exit "$1"
    [ "$seconds" != "${{2:-}}" ] || break
    seconds=$((seconds + 1))
    sleep 1
  done
  signal_nodes KILL
  exit "$1"
}}
trap 'end_nodes 143' TERM
"""

_ON_ONE = """'cd -- "$0" && exec "$@"' "$PWD\""""
_PBS_ON_NODE = """\
# With several hosts PBS's TERM ends what takes their output too, and reaches the commands of the first host alone.
# $1 is the folder, $2 and $3 the logs, $4 the first host, the rest what is started.
IFS= read -r -d '' on_node << 'END_OF_ON_NODE'
cd -- "$1" || exit
out=$2 err=$3 first=$4 watch=
shift 4
if ! [ -S /dev/fd/1 ] || ! pipes=$(mktemp -d) || ! mkfifo "$pipes/out" "$pipes/err"; then
  exec "$@"
fi
exec 3>&1 4>&2
# Passes a stream on; once nobody takes it any more, into the log itself. TERM has it look for a second: PBS may end
# what takes the output after the commands.
relay() {
  trap : TERM
  trap '' HUP INT QUIT USR1 USR2
  until cat; do
    read -r -t 1 <&3
    if [ "$?" -le 128 ]; then
      trap '' TERM
      cat >> "$1"
      return
    fi
  done
}
relay "$out" < "$pipes/out" 2> /dev/null &
relays=("$!")
relay "$err" < "$pipes/err" >&4 2> /dev/null &
relays+=("$!")
exec 5> "$pipes/out" 6> "$pipes/err"
rm -r "$pipes"
if [ "${MARK#*@}" != "$first" ]; then
  (
    trap '' TERM HUP INT QUIT USR1 USR2
    while read -r <&3; do :; done
    grep -lszFx "MARK=$MARK" /proc/[0-9]*/environ | cut -d/ -f3 |
      while read -r pid; do kill -s TERM "$pid"; done
  ) 2> /dev/null 5>&- 6>&- &
  watch=$!
  disown
fi
# Signals are for the command; this shell may have nowhere to write to.
trap : TERM HUP INT QUIT USR1 USR2 PIPE
"$@" >&5 2>&6 3>&- 4>&- 5>&- 6>&-
status=$?
exec 5>&- 6>&-
for ((left = 50; left > 0; left--)); do
  kill -0 "${relays[@]}" 2> /dev/null || break
  sleep 0.1
done
[ -z "$watch" ] || kill -s KILL "$watch"
exit "$status"
END_OF_ON_NODE

""".replace("MARK", MARK)
# A login shell that ends by itself would run .bash_logout.
_ON_SEVERAL = """'exec bash -c "$@"' bash \\
    "$on_node" on_node "$PWD" "$out" "$err" "${hosts[0]}" \\
   """


def exports(environment: Mapping[str, str]) -> str:
    """Bash that sets the variables for all that it starts; '' for none. Raises UsageError for what bash cannot hold."""
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in _checked(environment)]
    return "# For the command, on every node:\n" + "".join(lines) if lines else ""


def status_kept(words: Sequence[Word], signal: str = "") -> tuple[str, tuple[Word, ...]]:
    """Bash and words for several tasks of an srun, so that its status is that of the task that failed.

    `signal` is for the words' own processes: what is around them goes on.
    """
    around = (Word("bash"), Word("-c"), Word('"$on_node"', is_shell=True), Word("on_node"))
    return _ON_NODE.replace("SIGNALS", f"TERM {signal}".strip()), (*around, *words)


def slurm_srun(words: Sequence[str | Word], *, tasks_per_node: int | None = 1, srun_options: Sequence[str] = ()) -> str:
    """Bash for sbatch's script: `words` on each node by one srun, which is waited for; its status is the script's.

    `tasks_per_node` None: as many tasks as the job has, as they are spread. Texts among `words` are passed as they are:
    what is to be expanded on a node is in a `bash -c` among them. A container that does not inherit the environment has
    its variables among `words`. Raises UsageError for what bash cannot hold.
    """
    return f"{_settings(tasks_per_node)}\n{_srun(words, tasks_per_node, srun_options, '')}\n"


def slurm_fanout(
    words: Sequence[str | Word],
    environment: Mapping[str, str],
    *,
    step: int = 0,
    tasks_per_node: int | None = 1,
    srun_options: Sequence[str] = (),
) -> str:
    """As slurm_srun(), for a script that acts on signals meanwhile: its srun is the `step`th of the script."""
    srun = _srun(words, tasks_per_node, srun_options, "  ")
    return f"{exports(environment)}{_settings(tasks_per_node)}\n{_SLURM.format(srun=srun, step=int(step))}"


def _settings(tasks_per_node: int | None) -> str:
    return _SLURM_SETTINGS + (_ALL_GPUS if tasks_per_node is None else "")


def _srun(words: Sequence[str | Word], tasks_per_node: int | None, options: Sequence[str], indent: str) -> str:
    if tasks_per_node is None:
        tasks = '--ntasks="$SLURM_NTASKS"'
    elif tasks_per_node == 1:
        tasks = '--ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1'
    else:
        count = f"$((SLURM_JOB_NUM_NODES * {int(tasks_per_node)}))"
        tasks = f'--ntasks="{count}" --ntasks-per-node={int(tasks_per_node)}'
    lines = [f'srun --nodes="$SLURM_JOB_NUM_NODES" {tasks}', " ".join(map(shlex.quote, options)), _quoted(words)]
    return f" \\\n{indent}  ".join(line for line in lines if line)


def pbs_fanout(
    words: Sequence[str | Word],
    environment: Mapping[str, str],
    *,
    passed_on: Sequence[str] = (),
    slots_a_chunk: int = 1,
    lines_a_chunk: int = 1,
    logs: tuple[str, str] | None = None,
) -> str:
    """Bash for qsub's script: `words` once on each host of $PBS_NODEFILE, in the script's own folder and a login shell.

    The hosts are in the order of that file; on the first, which is the script's own, the variable names it. Besides
    `environment` and the script's PATH there are NODE_RANK (from 0), NUM_NODES, NODE_SLOTS and NUM_SLOTS (of the host,
    and in all), MASTER_ADDR and MASTER_PORT, the same on all hosts, and of the script's own variables those
    `passed_on`. A chunk of `mpiprocs` has so many `lines_a_chunk` in the file. The first that fails ends all and the
    script, with its status. `logs` are bash words for the files of stdout and stderr of a job of several hosts: where
    PBS ends it, output goes there, and each host ends its own command. Raises UsageError for what bash cannot hold.
    """
    variables = "".join(f"      {shlex.quote(f'{name}={value}')} \\\n" for name, value in _checked(environment))
    variables += "".join(f'      "{name}=${name}" \\\n' for name in passed_on)
    lines = f" / {int(lines_a_chunk)}" if lines_a_chunk > 1 else ""
    return _PBS.format(
        words=_quoted(words),
        variables=variables,
        mark=MARK,
        slots_a_chunk=int(slots_a_chunk),
        lines_a_chunk=lines,
        on_node=f"out={logs[0]} err={logs[1]}\n{_PBS_ON_NODE}" if logs else "",
        words_on_node=_ON_SEVERAL if logs else _ON_ONE,
    )


def _checked(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    for name, value in environment.items():
        if not _NAME.fullmatch(name):
            raise UsageError(f"environment: {name!r} is no name of a variable", "Letters, digits and _.")
        if "\0" in value:
            raise UsageError(f"environment.{name}: a variable holds no NUL byte", "Leave it out.")
    return list(environment.items())


def _quoted(words: Sequence[str | Word]) -> str:
    if not words:
        raise UsageError("command: there is nothing to start", "Write command or script.")
    made = [word if isinstance(word, Word) else Word(word) for word in words]
    if any("\0" in word.text for word in made):
        raise UsageError("command: a word holds no NUL byte", "Leave it out.")
    return " ".join(word.quoted() for word in made)
