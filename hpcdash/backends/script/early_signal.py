"""How a warning before the time limit reaches the command on all nodes: by Slurm, or by a timer. Starts nothing itself.

The bash here goes between the text of a fan-out, whose `signal_nodes` and `interrupted` it uses, and its start.
"""

from __future__ import annotations

from hpcdash.backends.options import Directives
from hpcdash.domain.request import EarlySignal
from hpcdash.errors import UsageError

# Signals that a program can act on; TERM is the end itself on PBS.
SIGNALS = ("USR1", "USR2", "HUP", "INT", "QUIT", "TERM", "CONT")
# sbatch: an integer between 0 and 65535.
SLURM_MOST_SECONDS = 65535

_TRAP = """\
# {name} comes {seconds} s before the time limit{to}.
# It is passed on to the command on all nodes.
pass_on() {{
  interrupted=1
  signal_nodes {name}
}}
trap pass_on {name}
"""

_TIMER = """\
# This scheduler sends no early signal: a timer does, {delay} s after the start. It ends with this script.
(
  trap 'kill "$!"; wait "$!"; exit' TERM
  sleep "$(({delay} > SECONDS ? {delay} - SECONDS : 0))" &
  wait "$!" && kill -s {name} "$$"
) 2>/dev/null &
timer=$!
trap 'jobs -pr | grep -qx "$timer" && kill "$timer" && wait "$timer" 2>/dev/null{finish}' EXIT
"""


def slurm_signal_option(signal: EarlySignal) -> Directives:
    """`--signal=USR1@600`, to all processes of the steps; `--signal=B:USR1@600`, to the batch shell alone.

    Raises UsageError for a signal that is none, or a time that sbatch refuses.
    """
    name = signal_name(signal)
    if signal.seconds_before > SLURM_MOST_SECONDS:
        raise UsageError(
            f"signal: {signal.seconds_before} s before the limit is more than Slurm takes",
            f"At most {SLURM_MOST_SECONDS}.",
        )
    return Directives((f"--signal={'B:' if signal.batch_only else ''}{name}@{signal.seconds_before}",))


def slurm_signal_trap(signal: EarlySignal) -> str:
    """Bash that passes the batch shell's signal on to all nodes; '' where Slurm signals the steps itself."""
    name = signal_name(signal)
    if not signal.batch_only:
        return ""
    return _TRAP.format(
        name=name, seconds=signal.seconds_before, to=" (Slurm: up to 60 s earlier), to this shell alone"
    )


def pbs_signal_timer(signal: EarlySignal, limit_seconds: int | None, *, finish: str = "") -> str:
    """Bash whose timer sends the signal `limit_seconds - seconds_before` after the script's start, to all nodes.

    The timer ends with the script, which then calls `finish` too, a function of its own. Raises UsageError where there
    is no limit, or one that is over before.
    """
    name = signal_name(signal)
    if name == "TERM":
        raise UsageError("signal: TERM is how PBS ends a job", "USR1 says that the end is near.")
    if limit_seconds is None:
        raise UsageError("signal: without a time limit there is no time before it", "Write time.")
    delay = limit_seconds - signal.seconds_before
    if delay <= 0:
        raise UsageError(
            f"signal: {signal.seconds_before} s before a limit of {limit_seconds} s is before the start",
            "Write less seconds, or more time.",
        )
    return _TRAP.format(name=name, seconds=signal.seconds_before, to="") + _TIMER.format(
        name=name, delay=delay, finish=f"; {finish}" if finish else ""
    )


def signal_name(signal: EarlySignal) -> str:
    """`USR1`, however it was written. Raises UsageError for none that a command can act on."""
    name = signal.name.upper().removeprefix("SIG")
    if name not in SIGNALS:
        raise UsageError(f"signal: {signal.name!r} is no signal a command can act on", ", ".join(SIGNALS))
    if signal.seconds_before < 0:
        raise UsageError(f"signal: {signal.seconds_before} s before the limit is after it", "Write 0 or more.")
    return name
