"""The example configuration: every key, its default and what it does."""

# A line '#key = value' or '#[table]' is a setting left at its default; prose has a blank after the
# '#'.
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

# The dashboard takes in [keys], [aliases], [filters], [[plugins]], columns, sort and theme once this file is saved.

# Keys by the name of the action; `?` in the dashboard shows the names. Several keys: "x,ctrl+x". An alias can have a
# key too, which then enters its line.
#[keys]
#ask_now = "ctrl+r,f5"
#gpu = "f6"

# Words for the ':' command line.
#[aliases]
#gpu = "jobs queue:gpu"
#broken = "history @broken user:me"

# Saved filters: `@broken` stands for the expression wherever a filter is typed (after '/', `:jobs`, in an alias).
#[filters]
#broken = "state:failed,timeout"

# Your own commands, by a key, by `:NAME` and in the palette; none in read-only mode. The command is a list of words,
# no shell: {field} in a word becomes the value of the row under the cursor, in that one word. Fields are the columns of
# `hpcdash jobs --format json` (or nodes, queues), cluster, and node (of a job its first one); {{id}} is a plain {id}.
# Each field is also a variable: HPCDASH_JOB_ID, HPCDASH_JOB_NAME, HPCDASH_JOB_WORK_DIR, … (HPCDASH_NODE_STATE,
# HPCDASH_QUEUE_NAME, …), HPCDASH_CLUSTER, HPCDASH_NODE. A shell takes those:
# ["sh", "-c", 'grep -- "$HPCDASH_JOB_NAME" ~/notes'].
# A command is not run if a field is unknown, holds control characters, begins with '-' where it begins a word ("--"
# before it allows that), is or holds a '..' inside a path, or holds more than letters, digits and _.,:@%+=/- where
# ssh, watch or tmux would hand it to a shell.
# Whoever can write this file decides what runs: hpcdash refuses it where others can (`chmod go-w`).
#[[plugins]]
#name = "gpus"
#key = "f7"
#command = ["ssh", "{node}", "nvidia-smi"]
# Where it is offered: jobs (by default), history, node, job, log, script, chart, triage, chain, nodes, queues.
#views = ["jobs", "node", "nodes"]
#description = "GPUs of the node"
# "pane" shows what it writes, the last 5000 lines; "terminal" leaves the screen to it, as for an editor; "background"
# tells how it ended.
#output = "pane"
# true asks first, and shows the command.
#dangerous = false
# "here", or "cluster": on the login node, over hpcdash's own connection.
#where = "here"
# It is ended then, and when its pane is left; not one in the terminal.
#limit_seconds = "10m"
# Variables of your environment that look like secrets (..._TOKEN, ..._API_KEY) are kept from it but for these.
#secrets = ["WANDB_API_KEY"]

# Commands for the nodes of a running job, offered after X: argv, which no shell reads, once a node or for each GPU.
#[[exec.commands]]
#name = "ib counters"
#command = ["perfquery", "-x"]
#each = "node"
#limit_seconds = "60s"
#description = "InfiniBand counters"

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

# A Ray cluster is the URL of its dashboard; with `ssh` it is asked through that host, and no port is opened here.
#[clusters.tpu]
#ray = "http://127.0.0.1:8265"
# The file, readable by you alone, with the token that the dashboard asks for.
#token_file = "~/.ray/auth_token"
# Likewise of headers that a proxy before it asks for: one `Name: value` a line.
#headers_file = "~/.ray/headers"

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
# "always" keeps that folder; "failed" removes it once its job has completed, "14d" 14 days after that, "nothing" once
# it has ended in any way.
# A folder in which a job left files of its own stays.
#keep = "always"
# The most that a request's `files` may come to; what git ignores is not sent.
#files_limit = "200M"
# The queues of requests that name none; by default the cluster's own default, and one with GPUs for those of GPUs.
#default_cpu_queue = "batch"
#default_gpu_queue = "gpu"
# How the names of jobs begin that have none of their own.
#name_prefix = "hpcdash"
# Where images of apptainer are that a request names as NAME:TAG. Also known as apptainer_image_root or
# singularity_image_root; one of the three.
#image_root = "/work/images"
# Whose account jobs are submitted as, through sudo (`hpcdash sudoers`); "user" is the cluster's own `user`.
#run_as = "ada"
# Root's program there that keeps the launches of other accounts (`hpcdash sudoers --program`).
#launch_program = "/usr/local/libexec/hpcdash-launch"
# Bash that is run on each node before a launch's command: a node on which it fails, or takes over 5 minutes, is named
# in the job's stderr, and the job ends with 1 before the command starts anywhere. "true" asks for nothing.
# ["cuda", "disk"] are ready checks: cuda, nccl, gpu-memory, disk, clock.
#node_probe = "nvidia-smi -L > /dev/null && df -h /data > /dev/null"

# What holds in one queue; its name in upper or lower case. Single values count where a request says nothing, lists are
# added before the request's own. Of a request: slots_per_node, slot_type, gpu_type, cpus_per_gpu, account, qos, time,
# memory, signal, requeue, max_requeues, launcher, project, workspace, labels, exclude_nodes, extra_args, environment,
# and for PBS place, attributes, keep_files; of [launch]: tres_supported, gres_supported, job_project_source,
# name_prefix, node_probe, image_root.
#[launch.queues.gpu]
#slots_per_node = 8
#extra_args = ["--constraint=a100"]
#attributes = ["group_list=lab", "umask=027"]
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

# A pool of nodes that tasks share in slices of time, by priority and quota (`hpcdash share run lab`). A request with
# share = "NORMAL" is a task of it; pool = "lab" names it where there are several. Whoever is not among the choosers
# gets the highest priority with quota left. Of a cluster a queue, a QoS, a reservation or a list of nodes is the pool,
# and as_owners acts on other users' jobs by sudo; on the embedded queue cpus_per_node and gpus_per_node say what a node
# is. The coordinator is an account, one's own by default;
# `hpcdash share show` and :share show what it publishes in state_file.
#[share.lab]
#cluster = "gpu"
#coordinator = "hpcshare"
#state_file = "/shared/lab/pool.json"
#nodes = 4
#queue = "shared"
#qos = "shared"
#reservation = "shared"
#node_list = "n[01-16]"
#as_owners = false
#cpus_per_node = 8
#gpus_per_node = 1
#choosers = ["ada"]
#least_gpus = 1
#grace_seconds = 5
#demote_after_seconds = 1800
#start_seconds = 120
#retry_seconds = 600
#no_log_seconds = 1800
#poll_seconds = 5
#[[share.lab.quotas]]
#users = ["*"]
#priority = "NORMAL"
#nodes = 2

# Your own regular expressions for lines of training logs, tried before the formats that are known. The named groups
# step, last_step, epoch and tokens say where in the training a line stands, each other name is a metric's.
#[metrics]
#patterns = ['round (?P<step>\\d+): objective (?P<loss>\\S+)']

# The watchdogs (`hpcdash watch`, and the view of alerts). Times are seconds, or text such as "30m" and "2d";
# amounts bytes, or text such as "500G". Each [[watch.…]] may stand more than once. Of jobs: `name` is exact, any
# when left out; `users` are whose, one's own when left out, ["*"] anyone's; `clusters` where, everywhere when left
# out.
#[watch]
# From one round to the next, and the file of this machine that PULSE lines are appended to (stdout when left out).
#every_seconds = "10m"
#pulse_file = "~/main_log.txt"
# A cluster that did not answer, or a log or disk that could not be looked at, for so many rounds is an alert.
#unreachable_rounds = 3
# One's own jobs that will never start.
#never_starts = true
# What is less grave ("info", "warning", "critical") is not told; what lasts is told again ("never": it is not);
# what is gone so long is over; whether that is told.
#least = "warning"
#remind_seconds = "1d"
#settle_seconds = 0
#tells_recovery = true
# How long `z` silences an alert.
#snooze_seconds = "4h"

# When only grave alerts are told; in a zone such as "Europe/Paris", this machine's when left out.
#[watch.quiet]
#start = "22:00"
#end = "07:00"
#zone = "Europe/Paris"
#lets_through = "critical"

# An alert's key, or a rule and '/', and until when it is silent.
#[watch.snoozed]
#"storage/" = 2026-12-01T08:00:00Z

# A job that must run or wait.
#[[watch.running]]
#name = "train-7b"
#users = ["ada", "bob"]
#clusters = ["juno"]
#severity = "critical"

# Running jobs whose output must grow: their own, or a file there ({id}: the job's).
#[[watch.hanging]]
#name = "train-7b"
#limit_seconds = "30m"
#severity = "critical"
#log = "/work/ada/train-7b/{id}.log"

# Running trainings whose metrics are read in their output, or in a file there: only what is new of it, at most 256 KiB
# a log and round. kinds: "nan", "inf", "divergence", "spike" (once, by its step), "stall", "limit" (it ends after its
# time limit, and too little waits behind it), "plateau"; without it all but the last. severity is of the first three.
#[[watch.losses]]
#name = "train-7b"
#kinds = ["nan", "inf", "divergence", "spike", "stall", "limit"]
#severity = "critical"
#log = "/work/ada/train-7b/{id}.log"

# Bytes and inodes of a path: told from a share on (0.75 of scratch), below a floor, and as soon as it would be full
# within the forecast ("never" for none). full_at: the share at which writes fail already. quota: "auto", "none",
# "lfs", "beegfs-ctl", "mmlsquota", "quota"; quota_of: "user", "user:NAME", "group:NAME", "project:ID". With limits
# of your own du counts the folder.
#[[watch.storage]]
#path = "/scratch/ada"
#clusters = ["juno"]
#share = 0.85
#is_scratch = true
#full_at = 0.8
#floor_bytes = "500G"
#floor_inodes = 10000
#forecast_seconds = "2d"
#critical_seconds = "12h"
#limit_bytes = "20T"
#limit_inodes = 1000000
#planned_bytes_a_day = "18T"
#quota = "auto"
#quota_of = "user"

# Nodes that are drained or down, and idle ones as a share of those in use.
#[watch.nodes]
#queues = ["gpu"]
#least_spare_share = 0.05

# A chain that runs must have so much lined up behind it.
#[[watch.chains]]
#name = "train-7b"
#fewest_waiting = 1

# Jobs that do not save for three intervals, or end, or may be preempted by QoS or partition, before they have saved.
# The last save is the newest file of a pattern (saved), or the newest whole checkpoint in a folder (checkpoints: of
# hpcdash.job, Hugging Face's Trainer, torch.distributed); {id} is the job's. A job whose REQUEST.toml names
# checkpoints and that was launched from here needs neither.
#[[watch.saves]]
#name = "train-7b"
#interval_seconds = "3h"
#save_seconds = 40
#spare_seconds = 60
#checkpoints = "/scratch/ada/train-7b"

# A node that fails a job again and again.
#[watch.failures]
#in_a_row = 3
#most_nodes = 2

# Tasks of shared pools (`[share.POOL]`): one that gets no turn for so long, that was interrupted so often in a row and
# never saved, or that is too slow to save; and a pool whose coordinator is silent.
#[watch.pools]
#name = "train-7b"
#users = ["*"]
#no_turn_seconds = "1d"
#unsaved_in_a_row = 2

# Who is told. Secrets are in files (mode 0600) or environment variables of this machine.
#[[watch.mail]]
#recipients = ["ada@example.org"]
#sender = "hpcdash@example.org"
#host = "smtp.example.org"
#port = 587
# "starttls", "tls" or "none"; ca_file names certificates to trust instead of the system's.
#security = "starttls"
#user = "ada"
#password_file = "~/.config/hpcdash/smtp-password"
#timeout_seconds = 20

# form: "json", all there is, or "slack" (Mattermost and Rocket.Chat too); url_env and headers_env name variables;
# `url` and `headers` may stand here where they are no secret.
#[[watch.webhook]]
#form = "slack"
#url_file = "~/.config/hpcdash/slack-url"
#headers_file.Authorization = "~/.config/hpcdash/hook-token"
#timeout_seconds = 20

# A program that gets the alert as JSON on stdin, and in HPCDASH_SUBJECT, HPCDASH_TEXT, HPCDASH_SEVERITY.
#[[watch.command]]
#argv = ["/home/ada/bin/tell"]
#limit_seconds = 30

# Whatever apprise knows, where it is installed: an address a line.
#[[watch.apprise]]
#urls_file = "~/.config/hpcdash/apprise"
#limit_seconds = 60

# The dashboard rings, and sends a desktop notification where the terminal knows these (OSC 9).
#[watch.terminal]
#bell = true
#notification = true

#[ui]
# Columns by view (jobs, nodes, queues, history), named as in `hpcdash jobs --format json`; jobs also have
# left (time until the limit), where (nodes or reason), starts (the estimate) and
# loss (the newest values in the logs of one's own running jobs, read at the pace of polls).
#columns.jobs = ["id", "state", "name", "user", "queue", "gpus", "elapsed_seconds", "limit_seconds", "reason"]
# The column sorted by; '-' for the largest first.
#sort.jobs = "-priority"
#fold_arrays = true
# "local" or "utc".
#clock = "local"
# When a job of yours ends while the terminal has no focus: "osc9" or "osc777" (a desktop notification, and the bell),
# "bell" or "none".
#notify = "osc9"
"""


def default_config_text() -> str:
    """Return a configuration with all lines commented out and their defaults.

    It changes nothing.
    """
    return _EXAMPLE
