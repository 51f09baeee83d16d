"""A throw-away real Slurm for tests, and jobs to fill it with."""

from .bulk import bulk_jobs as bulk_jobs
from .daemons import LabError as LabError
from .hostile import HOSTILE_NODE as HOSTILE_NODE
from .hostile import HOSTILE_REASON as HOSTILE_REASON
from .hostile import hostile_jobs as hostile_jobs
from .lab import SlurmLab as SlurmLab
from .layout import free_base_port as free_base_port
from .requirements import why_no_bulk as why_no_bulk
from .requirements import why_no_lab as why_no_lab
from .requirements import why_no_wrappers as why_no_wrappers
from .scenario import scenario as scenario
