"""Where the Python processes of a running job stand: a script for one node, and how its lines are read.

The script changes nothing of the job: py-spy reads the processes without stopping them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from hpcdash.backends.queries import Answer
from hpcdash.errors import excerpt

LIMIT_SECONDS = 90
# $1 is the number in the name of the job's cgroup, '' for none; the others are regular expressions, each of which
# matches a variable of the job's processes. Slurm sets SLURM_JOB_ID for what this runs too: HPCDASH_STACKS tells it
# apart. `test -O` is dash's and bash's.
NODE_SCRIPT = r"""
export HPCDASH_STACKS=1 LC_ALL=C
node=${SLURMD_NODENAME:-$(uname -n)}
variable() { tr '\0' '\n' < "$of/environ" 2>/dev/null | sed -n "s/^$1=//p" | head -n 1; }
is_of_job() {
  cgroup=$1
  shift
  [ -n "$cgroup" ] && grep -qE "/job_$cgroup(/|\$)" "$of/cgroup" 2>/dev/null && return 0
  for pattern; do grep -qzE -e "$pattern" "$of/environ" 2>/dev/null || return 1; done
}
in_proc() {
  sed -n -E 's/^(State|Threads|VmRSS):[[:space:]]*/  \1: /p' "$of/status"
  for task in "$of"/task/*; do
    echo "  thread ${task##*/} $(cat "$task/comm"): $(sed -n 's/^State:[[:space:]]*//p' "$task/status")," \
      "waits in $(cat "$task/wchan" 2>/dev/null || echo '?')"
    sed 's/^/    /' "$task/stack" 2>/dev/null
  done 2>/dev/null | head -n 60
}
each() {
  count=0 missing=
  for of in /proc/[0-9]*; do
    [ -O "$of" ] || continue
    case $(readlink "$of/exe" 2>/dev/null) in */python*|*/pypy*) ;; *) continue ;; esac
    is_of_job "$@" || continue
    grep -qz '^HPCDASH_STACKS=' "$of/environ" 2>/dev/null && continue
    # Several of Slurm's nodes may be one machine.
    its=$(variable SLURMD_NODENAME)
    [ "${its:-$node}" = "$node" ] || [ -z "$SLURMD_NODENAME" ] || continue
    count=$((count + 1))
    rank=$(variable RANK)
    [ -n "$rank" ] || rank=$(variable SLURM_PROCID)
    echo "process ${of#/proc/}${rank:+, rank $rank}: $(tr '\0\n' '  ' < "$of/cmdline" 2>/dev/null | cut -c 1-300)"
    tool=$(PATH="$PATH:$HOME/.local/bin:$(variable PATH)"; command -v py-spy)
    if [ -z "$tool" ]; then
      missing=1
      in_proc
    elif said=$(timeout -k 2 10 "$tool" dump --nonblocking --pid "${of#/proc/}" 2>&1); then
      printf '%s\n' "$said"
    else
      echo "  py-spy ended with $?: $(printf '%s\n' "$said" | tail -n 1); what /proc tells:"
      in_proc
    fi
  done
  [ "$count" -gt 0 ] || echo "no Python process of the job, as far as you may see"
  [ -z "$missing" ] || echo "py-spy is not here, which shows Python's own stacks: pip install --user py-spy"
}
each "$@" | sed "s/^/$node: /"
"""


@dataclass(frozen=True, slots=True)
class NodeStacks:
    """What was found on a node, line by line, as a process wrote it."""

    node: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stacks:
    """By the nodes' names; `problem` says why there may be less than all, '' where nothing is known to lack."""

    nodes: tuple[NodeStacks, ...]
    problem: str = ""


def exactly(text: str) -> str:
    """A regular expression of grep -E for this text."""
    return re.sub(r"([][\\.^$*+?(){}|])", r"\\\1", text)


def read_stacks(answer: Answer, failure: Callable[[Answer], Exception]) -> Stacks:
    """Raises `failure(answer)` where no node told anything and the command failed."""
    lines = answer.stdout.decode("utf-8", "replace").splitlines()
    by_node: dict[str, list[str]] = {}
    for line in lines:
        node, mark, text = line.partition(":")
        if mark:
            by_node.setdefault(node, []).append(text.removeprefix(" "))
    if not by_node and answer.status != 0:
        raise failure(answer)
    nodes = tuple(NodeStacks(node, tuple(by_node[node])) for node in sorted(by_node, key=_natural))
    words = "the output was cut" if answer.truncated else ""
    if answer.status != 0:
        words = excerpt(answer.stderr) or f"it ended with {answer.status}"
    return Stacks(nodes, words)


def _natural(name: str) -> list[tuple[int, str]]:
    """n2 before n10: the longer of two numbers is the larger."""
    parts = ((part, part.lstrip("0")) for part in re.split(r"([0-9]+)", name))
    return [(len(number), number) if part[:1].isdigit() else (-1, part) for part, number in parts]
