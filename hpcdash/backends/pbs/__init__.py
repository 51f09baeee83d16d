"""PBS by its own commands: OpenPBS and PBS Professional, Torque, and Slurm's commands by Torque's names."""

from hpcdash.backends.pbs.backend import PbsBackend

BACKEND = PbsBackend()

__all__ = ["BACKEND", "PbsBackend"]
