"""Errors in a script for the embedded queue, which reads #PBS lines where there are no #SBATCH
lines.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpcdash.backends.pbs import lint as pbs
from hpcdash.backends.pbs.options import read_directives as read_pbs
from hpcdash.backends.script.lint import directive_part
from hpcdash.backends.slurm import lint as slurm
from hpcdash.backends.slurm.lint import place_options, refusal_hint
from hpcdash.backends.slurm.options import read_directives as read_slurm
from hpcdash.domain.demand import Demand, LintFinding
from hpcdash.domain.offers import Offers

__all__ = ["lint_script", "place_options", "refusal_hint", "script_demand"]


def lint_script(script: bytes, offers: Offers, over: Sequence[str] = ()) -> tuple[LintFinding, ...]:
    """Find errors, as hpcdash.backends.script.lint.lint; command line options are sbatch's."""
    return (
        pbs.lint_script(script, offers)
        if _is_pbs(script)
        else slurm.lint_script(script, offers, over)
    )


def script_demand(script: bytes, over: Sequence[str] = ()) -> Demand:
    """Return the resources that a script requests, with options `over` its own."""
    return pbs.script_demand(script) if _is_pbs(script) else slurm.script_demand(script, over)


def _is_pbs(script: bytes) -> bool:
    text = directive_part(script)
    return not read_slurm(text).given and bool(read_pbs(text).given)
