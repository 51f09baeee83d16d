"""The example configuration: every key, its default and what it does. Knows nothing of reading it."""

# A line '#key = value' or '#[table]' is a setting left at its default; prose has a blank after the '#'.
_EXAMPLE = """\
# hpcdash: every key that can be set. All are optional; take the '#' away from what you change.
# Times are in seconds.

# The cluster shown first (a name from [clusters] below); the first of them by default.
#default_cluster = "juno"

#theme = "hpcdash-dark"

# true takes every key away that changes something on a cluster.
#read_only = false

# How often a cluster is asked, whoever is looking: one poll serves every view. 3 seconds at the least.
#[poll]
# One's own jobs; the whole queue; nodes and queues; ended jobs (the last three only while they are shown).
#mine_seconds = 15
#everyone_seconds = 60
#nodes_seconds = 60
#history_seconds = 120
# All of these times this while the terminal has no focus.
#unfocused_factor = 4
# Never more commands a minute than this, nor more of the controller's time (0.1: a tenth, the most there can be).
#commands_per_minute = 30
#controller_share = 0.1

# Keys by the name of the action; `?` in the dashboard shows the names. Several keys: "x,ctrl+x".
#[keys]
#ask_now = "ctrl+r,f5"

# Words for the ':' command line.
#[aliases]
#gpu = "jobs queue:gpu"

# One table a cluster. `hpcdash clusters add` writes them too.
#[clusters.juno]
#title = "Juno (physics)"
# Where to, as ssh takes it: a Host of ~/.ssh/config or [user@]host[:port].
#ssh = "juno"
# "ssh" (built in), "openssh" (the ssh program with your ControlMaster) or "local" (this machine).
#transport = "ssh"
# "slurm", "pbs" or "local" (hpcdash's own queue); found out by asking when left out.
#backend = "slurm"
# Where the scheduler's commands are, if a plain login does not find them.
#path = "/opt/slurm/bin"
# Whose jobs are mine; by default who one is there.
#user = "ada"
# Any key of [poll], for this cluster alone.
#poll.mine_seconds = 30

# What generated scripts are to know of a site; [site] of a request's own file says otherwise for one job.
#[launch]
# Whether Slurm here counts GPUs by itself (--gpus), whether it knows them at all (--gres); PBS: whether it has ngpus.
#tres_supported = true
#gres_supported = true
# What a slot is where a request does not say: "cuda", "rocm" or "cpu"; by default GPUs where the queue has some.
#slot_type = "cuda"
# What jobs are accounted to (--wckey, -P): "project", "workspace", "label" or "label:PREFIX".
#job_project_source = "project"
# A folder there that holds a folder a launch: its script, its files, its logs; hpcdash/launches in the home by default.
#storage_root = "/work/ada/launches"
# "always" keeps that folder; "failed" removes it once its job has completed.
#keep = "always"
# How the names of jobs begin that have none of their own.
#name_prefix = "det-ai"
# Where images of apptainer are that a request names as NAME:TAG. Also known as apptainer_image_root or
# singularity_image_root; one of the three.
#image_root = "/work/images"
# Whose account jobs are submitted as, through sudo (`hpcdash sudoers`); "user" is the cluster's own `user`.
#run_as = "ada"

# What holds in one queue; its name in upper or lower case. Single values count where a request says nothing, lists are
# added before the request's own. Of a request: slots_per_node, slot_type, gpu_type, account, qos, time, memory, signal,
# requeue, launcher, project, workspace, labels, exclude_nodes, extra_args, environment; of [launch]: tres_supported,
# gres_supported, job_project_source, name_prefix, image_root.
#[launch.queues.gpu]
#slots_per_node = 8
#extra_args = ["--constraint=a100"]
#environment.NCCL_DEBUG = "INFO"

# Any key of [launch], for one cluster alone.
#[clusters.juno.launch]
#gres_supported = false
#queues.cpu.slot_type = "cpu"

# The embedded queue of this machine: what jobs may have at once (found out when left out, GPUs by nvidia-smi), and how
# long one that is ended has from TERM to KILL. What was set stays set until it is set anew.
#[embedded]
#cpus = 8
#gpus = 2
#grace_seconds = 10

#[ui]
# Columns by view (jobs, nodes, queues, history), named as in `hpcdash jobs --format json`; jobs also have
# left (time until the limit), where (nodes or reason) and starts (the estimate).
#columns.jobs = ["id", "state", "name", "user", "queue", "gpus", "elapsed_seconds", "limit_seconds", "reason"]
# The column sorted by; '-' for the largest first.
#sort.jobs = "-priority"
#fold_arrays = true
# "local" or "utc".
#clock = "local"
"""


def default_config_text() -> str:
    """A configuration in which everything is commented out, so that it changes nothing; each line says its default."""
    return _EXAMPLE
