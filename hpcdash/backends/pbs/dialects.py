"""The kinds of PBS, told apart by what the commands say of themselves. Asks nothing."""

from __future__ import annotations

from enum import StrEnum


class Dialect(StrEnum):
    """Which commands and formats a cluster has; a probe finds it out once."""

    # OpenPBS and PBS Professional from 18 on: `qstat -f -F dsv -D DELIMITER`, a line a job.
    OPENPBS = "openpbs"
    # PBS Professional before 18 has no -F: wrapped text.
    PBS_TEXT = "pbs-text"
    # `qstat -x` is XML, nodes=2:ppn=4, state C, PBS_ARRAYID.
    TORQUE = "torque"
    # Slurm's contribs/torque: qstat and the others as Perl programs that ask slurmctld.
    SLURM_WRAPPERS = "slurm-wrappers"

    @property
    def has_array_brackets(self) -> bool:
        """Whether an array is 12[].server; Slurm's wrappers know no arrays."""
        return self is not Dialect.SLURM_WRAPPERS
