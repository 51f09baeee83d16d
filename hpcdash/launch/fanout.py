"""Bash that starts one command on each node of a job and waits for all. Knows no request and not what the command is.

The texts define `start_nodes`, `signal_nodes NAME` and `wait_nodes`; a script calls them in this order, the second from
a trap. A trap for a signal that must not end the waiting sets `interrupted=1`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from hpcdash.errors import UsageError
from hpcdash.launch.containers.words import Word

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
START = 'interrupted=\nstart_nodes\nwait_nodes\nexit "$status"\n'

_SLURM = """\
# What fails on one node ends all.
export SLURM_KILL_BAD_EXIT=1
export SLURM_MPI_TYPE="${{SLURM_MPI_TYPE:-pmi2}}"

# srun takes no CPUs a task from the job by itself, since 22.05.
[ -z "${{SLURM_CPUS_PER_TASK:-}}" ] || export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"

# The command on each node. It is in the background so that this shell can act on signals meanwhile.
start_nodes() {{
  srun --nodes="$SLURM_JOB_NUM_NODES" {tasks} {options}\\
    {words} &
  srun_pid=$!
}}

# All processes of the step, on every node.
signal_nodes() {{
  scancel --signal="$1" "$SLURM_JOB_ID.{step}"
}}

wait_nodes() {{
  while :; do
    interrupted=
    status=0
    wait "$srun_pid" || status=$?
    # A signal cuts wait short while the command still runs.
    [ -n "$interrupted" ] || break
  done
}}
"""

_PBS = """\
# PBS_NODEFILE names a host once for each of its chunks.
hosts=()
while read -r host; do
  hosts+=("$host")
done < <(sort -u "$PBS_NODEFILE")
running=()
trap 'end_nodes 143' TERM

# One command on each host. Nothing of this environment goes along: each variable is written out.
start_nodes() {{
  local host number="${{PBS_JOBID%%[^0-9]*}}"
  for host in "${{hosts[@]}}"; do
    pbs_tmrsh "$host" bash -c 'cd -- "$0" && exec "$@"' "$PWD" \\
      env "{mark}=$PBS_JOBID@$host" "NODE_RANK=${{#running[@]}}" "NUM_NODES=${{#hosts[@]}}" \\
      "MASTER_ADDR=${{hosts[0]}}" "MASTER_PORT=$((20000 + number % 20000))" {variables}\\
      {words} &
    running+=("$!")
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
        end_nodes "$status"
      fi
    done
    running=(${{left[@]+"${{left[@]}}"}})
    [ "${{#running[@]}}" -eq 0 ] || sleep 1
  done
}}

# Asks all commands to end, and ends after 5 s those that did not.
end_nodes() {{
  trap '' TERM
  signal_nodes TERM
  local pid left
  for _ in 1 2 3 4 5; do
    left=
    for pid in "${{running[@]}}"; do
      kill -0 "$pid" 2>/dev/null && left=1
    done
    [ -n "$left" ] || exit "$1"
    sleep 1
  done
  signal_nodes KILL
  exit "$1"
}}
"""

MARK = "HPCDASH_COMMAND_OF"


def slurm_fanout(
    words: Sequence[str | Word],
    environment: Mapping[str, str],
    *,
    step: int = 0,
    tasks_per_node: int | None = 1,
    srun_options: Sequence[str] = (),
) -> str:
    """Bash for sbatch's script: the variables exported, `words` on each node by one srun, the script's `step`th.

    `tasks_per_node` None: as many tasks as the job has, as they are spread. Texts among `words` are passed as they are:
    what is to be expanded on a node is in a `bash -c` among them. A container that does not inherit the environment has
    its variables among `words`. Raises UsageError for what bash cannot hold.
    """
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in _checked(environment))
    options = "".join(f"{shlex.quote(option)} " for option in srun_options)
    if tasks_per_node is None:
        tasks = '--ntasks="$SLURM_NTASKS"'
    else:
        count = f"$((SLURM_JOB_NUM_NODES * {int(tasks_per_node)}))"
        tasks = f'--ntasks="{count}" --ntasks-per-node={int(tasks_per_node)}'
    return exports + _SLURM.format(words=_quoted(words), step=int(step), tasks=tasks, options=options)


def pbs_fanout(words: Sequence[str | Word], environment: Mapping[str, str]) -> str:
    """Bash for qsub's script: `words` once on each host of $PBS_NODEFILE, in the script's own folder.

    Besides `environment` it has NODE_RANK (from 0), NUM_NODES, and MASTER_ADDR and MASTER_PORT, the same on all hosts.
    The first that fails ends all and the script, with its status. Raises UsageError for what bash cannot hold.
    """
    variables = "".join(f"{shlex.quote(f'{name}={value}')} " for name, value in _checked(environment))
    return _PBS.format(words=_quoted(words), variables=variables, mark=MARK)


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
