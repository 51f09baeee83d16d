"""What #SBATCH lines ask for, in a few words each."""

from __future__ import annotations


def explain(line: str) -> str:
    raise NotImplementedError
