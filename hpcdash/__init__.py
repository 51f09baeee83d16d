"""hpcdash: one terminal for all your Slurm and PBS clusters, and functions that run on them."""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    from hpcdash.job.names import find

    return find(__name__, name)
