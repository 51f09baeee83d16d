"""hpcdash: one terminal over all of a person's Slurm and PBS clusters."""

__version__ = "0.1.0"
