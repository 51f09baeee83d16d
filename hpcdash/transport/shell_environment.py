"""Asks a login shell, of whatever kind, for what it sets that other shells do not have."""

from __future__ import annotations

from hpcdash.transport.shell import fresh_marker

LOGIN_ENVIRONMENT_SECONDS = 20.0
NAMES = ("PATH", "LD_LIBRARY_PATH", "SLURM_CONF")

# csh and tcsh take -l only when it stands alone, so they get their command on stdin.
_ASK = 'eval "$1"; case $SHELL in *csh) printf "%s\\n" "$2" | "$SHELL" -l;; *) "$SHELL" -lc "$2";; esac'
_PRINT = """/bin/sh -c 'for n in {names}; do eval "v=\\$$n"; echo "{marker} {who} $n=$v"; done'"""


def login_environment_argv() -> tuple[tuple[str, ...], bytes]:
    """The command that asks the shell named by $SHELL, and the marker its answer is found by.

    It has to run in the environment a command has without us.
    """
    marker = fresh_marker()
    here, login = (_PRINT.format(names=" ".join(NAMES), marker=marker, who=who) for who in ("here", "login"))
    return ("/bin/sh", "-c", _ASK, "sh", here, login), marker.encode()


def login_environment(stdout: bytes, marker: bytes) -> dict[str, str]:
    """The variables a login shell sets otherwise, out of an answer in which rc files may have printed as well."""
    found: dict[str, dict[str, str]] = {"here": {}, "login": {}}
    for line in stdout.split(b"\n"):
        _noise, mark, answer = line.partition(marker + b" ")
        who, _, assignment = answer.decode("utf-8", "surrogateescape").partition(" ")
        name, _, value = assignment.partition("=")
        if mark and who in found and name in NAMES:
            found[who][name] = value
    return {name: value for name, value in found["login"].items() if value and value != found["here"].get(name)}
