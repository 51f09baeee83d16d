"""Command lines of Slurm: free of the person's output settings, in C locale, with epoch times."""

from __future__ import annotations

from hpcdash.shell_files import shell_text

# Each changes the output of squeue, sinfo or sacct, or the cluster they query; `env -u` takes no
# patterns. Source: the ENVIRONMENT VARIABLES sections of squeue(1), sinfo(1), sacct(1),
# scontrol(1).
_CHANGE_OUTPUT = (
    "SQUEUE_ACCOUNT",
    "SQUEUE_ALL",
    "SQUEUE_ARRAY",
    "SQUEUE_EXPAND_PATTERNS",
    "SQUEUE_FEDERATION",
    "SQUEUE_FORMAT",
    "SQUEUE_FORMAT2",
    "SQUEUE_LICENSES",
    "SQUEUE_LOCAL",
    "SQUEUE_NAMES",
    "SQUEUE_ONLY_JOB_STATE",
    "SQUEUE_PARTITION",
    "SQUEUE_PRIORITY",
    "SQUEUE_QOS",
    "SQUEUE_SIBLING",
    "SQUEUE_SORT",
    "SQUEUE_STATES",
    "SQUEUE_USERS",
    "SINFO_ALL",
    "SINFO_FEDERATION",
    "SINFO_FORMAT",
    "SINFO_FORMAT2",
    "SINFO_FUTURE",
    "SINFO_LOCAL",
    "SINFO_PARTITION",
    "SINFO_SORT",
    "SACCT_FEDERATION",
    "SACCT_FORMAT",
    "SACCT_LOCAL",
    "SCONTROL_ALL",
    "SCONTROL_FEDERATION",
    "SCONTROL_FUTURE",
    "SCONTROL_LOCAL",
    "SCONTROL_SIBLING",
    "SLURM_CLUSTERS",
    "SLURM_DEBUG_FLAGS",
    "SLURM_JSON",
    "SLURM_YAML",
)
_UNSET = tuple(word for name in _CHANGE_OUTPUT for word in ("-u", name))
# SLURM_BITSTR_LEN=0 prints the tasks of an array whole: squeue cuts them at 64 bytes by default.
LAST_SETTING = "SLURM_BITSTR_LEN=0"
_SET = ("LC_ALL=C", "SLURM_TIME_FORMAT=%s", LAST_SETTING)


def with_clusters_variable(*argv: str) -> tuple[str, ...]:
    """Return a command line that keeps SLURM_CLUSTERS, for a script that unsets it after a read."""
    at = _UNSET.index("SLURM_CLUSTERS")
    return ("env", *_UNSET[: at - 1], *_UNSET[at + 1 :], *_SET, *argv)


def slurm(*argv: str) -> tuple[str, ...]:
    """A Slurm command with a clean environment around it."""
    return ("env", *_UNSET, *_SET, *argv)


def slurm_script(file: str, *arguments: str) -> tuple[str, ...]:
    """A .sh file of ours, with arguments, in the environment of `slurm`."""
    return slurm("sh", "-c", shell_text(file), "sh", *arguments)
