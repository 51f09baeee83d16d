"""Scripts of a runner's call, as a batch script has it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from hpcdash.job.packaging import Packaged, RunnerCall


def runner_script(
    call: RunnerCall,
    python: str,
    python_path: Sequence[str],
    *,
    wrap: Sequence[str] = (),
    packaging: Packaged | None = None,
) -> str:
    """Bash that calls it, by `python` or in the venv of a packaging, behind the words `wrap`."""
    command = " ".join(
        [*wrap, *(text if is_shell else shlex.quote(text) for text, is_shell in call.words())]
    )
    return "\n".join((*runner_lines(python, python_path, packaging), command, ""))


def runner_lines(
    python: str, python_path: Sequence[str], packaging: Packaged | None = None
) -> tuple[str, ...]:
    """What stands before the runner's command."""
    path = shlex.quote(":".join(python_path))
    return (
        f'export PYTHONPATH={path}"${{PYTHONPATH:+:$PYTHONPATH}}"',
        *((f"PY_EXEC={shlex.quote(python)}",) if packaging is None else packaging.lines()),
    )
