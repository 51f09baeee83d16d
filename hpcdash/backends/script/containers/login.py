"""The login of an image registry: a file of mode 0600 that a script sources, so that no secret is
in the script.
"""

from __future__ import annotations

import shlex

USERNAME = "APPTAINER_DOCKER_USERNAME"
PASSWORD = "APPTAINER_DOCKER_PASSWORD"


def login_file(username: str, password: str) -> str:
    """The text of the file to be sourced; to be written with mode 0600, and shown nowhere."""
    return "".join(
        f"export {prefix}_DOCKER_{name}={shlex.quote(value)}\n"
        for prefix in ("APPTAINER", "SINGULARITY")
        for name, value in (("USERNAME", username), ("PASSWORD", password))
    )


def without_trace(*lines: str) -> tuple[str, ...]:
    """The same lines with `set -x` off, and on again after them if it was on."""
    return (
        "{ hpcdash_trace=$-; set +x; } 2>/dev/null",
        *lines,
        '[[ "$hpcdash_trace" != *x* ]] || set -x',
    )


def source_login(path: str) -> tuple[str, ...]:
    """Lines of bash that source the file; they end the shell where it is a link, another's, or
    others may read it.
    """
    if not path:
        return ()
    file = shlex.quote(path)
    complaint = shlex.quote(
        f"hpcdash: {path} must be your own file with mode 0600; nothing was started"
    )
    return without_trace(
        f'[[ ! -L {file} && -O {file} && "$(stat -L -c %a -- {file})" == 600 ]] || {{',
        f"  printf '%s\\n' {complaint} >&2",
        "  exit 1",
        "}",
        f"source {file}",
    )


def split_registry(image: str) -> tuple[str, str]:
    """The registry's host and what comes after it: `nvcr.io/nvidia/cuda:12` → (`nvcr.io`,
    `nvidia/cuda:12`).

    The host is '' where none is written: Docker Hub.
    """
    name = image.partition("://")[2] if "://" in image else image
    host, slash, rest = name.partition("/")
    if slash and ("." in host or ":" in host or host == "localhost"):
        return host, rest
    return "", name
