"""How a job ended, in plain words: exit codes, signals, and the states that say more than both."""

from __future__ import annotations

import signal

from hpcdash.domain.states import ENDED, JobState

# A shell adds this to the number of the signal that ended its command.
_SHELL_SIGNAL = 128
# Slurm's own, where the signal of a job is expected. Source: slurm_errno.h, and what its 22.05 prints.
_OUTPUT_NOT_WRITABLE = 53
_OUT_OF_MEMORY = 125
_MAY_LACK_THE_SHELLS_PART = frozenset({signal.SIGABRT, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM})
_SIGNALS: dict[int, str] = {
    signal.SIGHUP: "its terminal or session went away",
    signal.SIGINT: "interrupted",
    signal.SIGQUIT: "told to quit",
    signal.SIGILL: "an instruction this processor does not know: built for another kind of node?",
    signal.SIGTRAP: "stopped by a trap",
    signal.SIGABRT: "it aborted itself: a failed assertion or an uncaught error",
    signal.SIGBUS: "a bus error: a file it had mapped shrank, or the disk is full",
    signal.SIGFPE: "an arithmetic error, such as a division by zero",
    signal.SIGKILL: "killed outright, often for using too much memory",
    signal.SIGUSR1: "a signal it did not handle",
    signal.SIGSEGV: "segmentation fault: it reached for memory that is not its own",
    signal.SIGUSR2: "a signal it did not handle",
    signal.SIGPIPE: "wrote to a pipe nobody reads any more",
    signal.SIGALRM: "its own alarm went off",
    signal.SIGTERM: "asked to end",
    signal.SIGXCPU: "used up its CPU time limit",
    signal.SIGXFSZ: "wrote a larger file than it may",
}
_CODES = {
    2: "wrong usage, or a shell's syntax error",
    126: "a command was found but could not be executed: is it a program, and executable?",
    127: "a command was not found: a module not loaded, an environment not active, a typing error?",
}
_STATES: dict[str, str] = {
    JobState.TIMEOUT: "ran into its time limit",
    JobState.OUT_OF_MEMORY: "used more memory than it asked for",
    JobState.PREEMPTED: "made way for a job that comes first",
    JobState.NODE_FAILED: "a node it ran on failed",
    JobState.CANCELLED: "cancelled",
    JobState.GONE: "no list and no history knows how it ended",
}


def signal_name(number: int) -> str:
    """'KILL' for 9; '' for a number that is no signal."""
    try:
        return signal.Signals(number).name.removeprefix("SIG")
    except ValueError:
        return ""


def exit_words(state: str, exit_code: int | None, exit_signal: int | None) -> str:
    """What a state of domain.states with its exit code and signal means; '' for a job that has not ended or ended well.

    `exit 137: ended by signal 9 (KILL): killed outright, often for using too much memory`.
    """
    if state not in ENDED:
        return ""
    if state in _STATES and not (state == JobState.CANCELLED and exit_code):
        return _STATES[state]
    if exit_signal:
        return _signal_words(exit_signal)
    if not exit_code:
        return "" if state == JobState.COMPLETED or exit_code is None else "exit 0, yet not as it should"
    number = exit_code - _SHELL_SIGNAL
    if number > 0 and signal_name(number):
        return f"exit {exit_code}: a command of it was ended by {_signal_words(number)}"
    words = _CODES.get(exit_code)
    if words is None and exit_code in _MAY_LACK_THE_SHELLS_PART:
        # Slurm's accounting keeps seven bits of an exit code.
        words = f"its own; or {exit_code + _SHELL_SIGNAL}, which accounting cuts: ended by {_signal_words(exit_code)}"
    return f"exit {exit_code}: {words}" if words else f"exit {exit_code}"


def _signal_words(number: int) -> str:
    if number == _OUTPUT_NOT_WRITABLE:
        return "its output could not be written: is the folder there, writable, and is there quota left?"
    if number == _OUT_OF_MEMORY:
        return "used more memory than it asked for"
    name = signal_name(number)
    meaning = _SIGNALS.get(number, "") if name else ""
    return f"signal {number}" + (f" ({name})" if name else "") + (f": {meaning}" if meaning else "")
