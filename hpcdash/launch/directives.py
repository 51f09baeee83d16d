"""What a scheduler's part gives to a batch script: options, and what a person should know of them. Knows no script."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Directives:
    """Options, one a directive line, without `#SBATCH` or `#PBS`: `--nodes=4`, `-l select=2:ngpus=4`.

    `warnings` are sentences for the person who asks, to be shown before anything is submitted.
    """

    options: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __add__(self, other: Directives) -> Directives:
        return Directives((*self.options, *other.options), (*self.warnings, *other.warnings))
