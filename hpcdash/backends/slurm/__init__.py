"""Slurm, by its own commands: squeue, sinfo, sacct, scontrol. Text with explicit columns; JSON is many times dearer."""

from hpcdash.backends.slurm.backend import SlurmBackend

BACKEND = SlurmBackend()

__all__ = ["BACKEND", "SlurmBackend"]
