"""Processes that a person's ended jobs left on the nodes of a running one: found, shown, ended
where that is wanted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from msgspec import Struct

from hpcdash.backends.inside import OF_JOB, InsideCommand, NodeOutput
from hpcdash.domain.states import ENDED
from hpcdash.domain.tables import Kind
from hpcdash.services.cluster.store import ClusterStore

# So many are ended at once; the arguments of a command have a limit.
MOST_ENDED = 400
# $1 "list" or "end", $2 the numbers of the person's jobs that have not ended, then NODE and
# PID/START of what to end. A process is left behind where its variables name a job
# (HPCDASH_JOB_VARIABLES, of which the first must be there and end with HPCDASH_JOB_SUFFIX) and that
# has ended. What names no job is not ended, and neither is a job of another scheduler
# (HPCDASH_JOB_SAME), what leads here, what is in the cgroup of a job that runs, and an embedded
# queue that a job may have started.
_SCRIPT = (
    "export LC_ALL=C\nexec 2>/dev/null\n"
    + OF_JOB
    + r"""
mode=$1 running=$2
shift 2
leads_here=' ' pid=$$
while [ "${pid:-0}" -gt 1 ]; do
  leads_here="$leads_here$pid "
  pid=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status")
done
began() {
  IFS= read -r line < "/proc/$1/stat" || return 1
  set -f
  # shellcheck disable=SC2086
  set -- ${line##*) }
  set +f
  [ "$1" != Z ] && echo "${20}"
}
left_by() {
  [ -O "/proc/$1" ] || return 1
  case $leads_here in *" $1 "*) return 1 ;; esac
  ! grep -qz -e '^HPCDASH_INSIDE=' -e '^HPCDASH_SUPERVISOR=' "/proc/$1/environ" || return 1
  first=${HPCDASH_JOB_VARIABLES%% *}
  value=$(variable "$1" "$first")
  number=${value%%[!0-9]*}
  [ -n "$number" ] || return 1
  case $value in *"$HPCDASH_JOB_SUFFIX") ;; *) return 1 ;; esac
  [ "$first" = HPCDASH_ATTEMPT ] || ! grep -qz '^HPCDASH_ATTEMPT=' "/proc/$1/environ" || return 1
  for name in $HPCDASH_JOB_SAME; do
    [ "$(variable "$1" "$name")" = "$(printenv "$name")" ] || return 1
  done
  if [ -n "$HPCDASH_NODE_VARIABLE" ]; then
    its=$(variable "$1" "$HPCDASH_NODE_VARIABLE")
    [ "${its:-$HPCDASH_NODE}" = "$HPCDASH_NODE" ] || return 1
  fi
  ! of_job "$1" || return 1
  for name in $HPCDASH_JOB_VARIABLES; do
    value=$(variable "$1" "$name")
    case " $running " in *" ${value%%[!0-9]*} "*) return 1 ;; esac
  done
  for one in $running; do
    ! grep -qE "/${HPCDASH_JOB_CGROUP%%[0-9]*}$one([^0-9]|\$)" "/proc/$1/cgroup" || return 1
  done
  echo "$number"
}
count=0
if [ "$mode" = list ]; then
  others=0
  for of in /proc/[0-9]*; do
    pid=${of#/proc/}
    [ -O "$of" ] || continue
    words=$(tr '\0\n' '  ' < "$of/cmdline" | cut -c 1-200)
    [ -n "$words" ] || continue
    if number=$(left_by "$pid") && start=$(began "$pid"); then
      count=$((count + 1))
      echo "left by job $number, which has ended: $pid/$start: $words"
    elif ! grep -qz '^HPCDASH_INSIDE=' "$of/environ" && ! of_job "$pid"; then
      others=$((others + 1))
    fi
  done
  [ "$count" -gt 0 ] || echo "no process of yours that an ended job left behind, as far as you may see"
  [ "$others" -eq 0 ] || echo "$others other processes of yours are not this job's: of another that runs, or of none"
  exit 0
fi
ending=
while [ $# -ge 2 ]; do
  if [ "$1" = "$HPCDASH_NODE" ] && [ "$(began "${2%/*}")" = "${2#*/}" ] && left_by "${2%/*}" >/dev/null; then
    kill -TERM "${2%/*}" && ending="$ending $2"
  fi
  shift 2
done
still() {
  there=
  for one in $ending; do
    [ "$(began "${one%/*}")" != "${one#*/}" ] || there="$there $one"
  done
  [ -n "$there" ]
}
while [ "$count" -lt 25 ] && still; do
  sleep 0.2
  count=$((count + 1))
done
still && for one in $there; do kill -KILL "${one%/*}"; done
[ -z "$there" ] || sleep 0.5
still
for one in $ending; do
  case "$there " in *" $one "*) echo "still there: ${one%/*}" ;; *) echo "ended: ${one%/*}" ;; esac
done
[ -n "$ending" ] || echo "nothing to end here: what was shown is gone"
[ -z "$there" ]
"""
)
_LEFT = re.compile(r"left by job (\d+), which has ended: (\d+/\d+): (.*)")


class Leftover(Struct, frozen=True):
    """A process that `job` had started on a node: its number and its start in ticks of that
    machine, `4711/88212`.
    """

    node: str
    process: str
    job: str
    command: str


LIST_LEFTOVERS = InsideCommand(("sh", "-c", _SCRIPT, "leftovers", "list", ""))


async def list_command(store: ClusterStore) -> InsideCommand:
    """The command that lists them.

    Queries which of the user's jobs are unfinished; raises if the cluster cannot tell.
    """
    return InsideCommand(("sh", "-c", _SCRIPT, "leftovers", "list", await _numbers(store)))


async def end_command(store: ClusterStore, chosen: Sequence[Leftover]) -> InsideCommand:
    """What ends these, where they still are what they were: with TERM, and KILL five seconds
    after.
    """
    where = [word for one in chosen[:MOST_ENDED] for word in (one.node, one.process)]
    title = f"end {len(where) // 2} left processes"
    return InsideCommand(
        ("sh", "-c", _SCRIPT, "leftovers", "end", await _numbers(store), *where), title=title
    )


async def _numbers(store: ClusterStore) -> str:
    """The numbers of jobs, those of arrays and of jobs with several parts among them."""
    table = (await store.fetch(Kind.MINE)).table.select(["id", "state"])
    living = (row["id"] for row in table.to_pylist() if row["state"] not in ENDED)
    return " ".join(sorted({number[0] for one in living if (number := re.match(r"\d+", str(one)))}))


def read_leftovers(outputs: Collection[NodeOutput]) -> tuple[Leftover, ...]:
    """What a list showed, on each node that answered."""
    found = []
    for output in outputs:
        for line in output.output.decode("utf-8", "replace").split("\n"):
            if output.status == 0 and (match := _LEFT.fullmatch(line)):
                found.append(Leftover(output.node, match[2], match[1], match[3]))
    return tuple(found)
