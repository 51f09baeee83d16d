"""The command lines of the recordings: what is read, acted on, rendered and submitted on recorded
clusters.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import click

from hpcdash.cli.main import cli
from tests.contract.record import Recording
from tests.support.code_blocks import PAGES, page_blocks

JOBS_HERE = ("jobs", "--local", "--backend", "local")
IMPORTS = "tests.contract.imports"
SLURM = "slurm/22.05/everyday"
SLURM_ARRAYS = "slurm/22.05/arrays"
PBS = "pbs/23.06/everyday"
TORQUE = "pbs/torque-6.1/torque"
SLURM_LIMITS = "slurm/22.05/limits"
PBS_LIMITS = "pbs/23.06/limits"
RAY_SLICES = "ray/2.60/slices"
SLURM_TRAINING = "slurm/22.05/training"
PBS_TRAINING = "pbs/23.06/training"
TABLES = ("jobs", "nodes", "queues", "history")


def recordings() -> tuple[Recording, ...]:
    return (
        Recording("slurm-reading", SLURM, (*_tables(), *_details("57", "10", "13_5", "60"))),
        Recording("slurm-arrays-reading", SLURM_ARRAYS, (("jobs", "--all", "--format", "table"),)),
        Recording("pbs-reading", PBS, _tables()),
        Recording("torque-reading", TORQUE, _tables()),
        Recording(
            "slurm-limits-reading",
            SLURM_LIMITS,
            (*_rules("shares", "limits", "reservations"), ("show", "49")),
        ),
        Recording(
            "pbs-limits-reading", PBS_LIMITS, (*_rules("limits", "reservations"), ("shares",))
        ),
        Recording("ray-slices-reading", RAY_SLICES, _slices()),
        Recording(
            "slurm-actions",
            SLURM,
            _actions(
                "6", "57", "61", "13", "13_[10-24]", "20_12", "20_[15-17]", "57,62", "4711", "x y"
            ),
        ),
        Recording(
            "slurm-array-actions", SLURM_ARRAYS, _actions("3", "6_[1-2,4]", "5_64", "13+1", "2_1")
        ),
        Recording(
            "pbs-actions",
            PBS,
            _actions("2", "4", "6", "12[]", "12[3]", "14[6-8]", "23", "2,4", "4711", "x y"),
        ),
        Recording("torque-actions", TORQUE, _actions("1", "2[]", "2[3]")),
        Recording(
            "slurm-submit",
            SLURM,
            (*_submissions("--partition=gpu", "--nice=3"), ("submit", "train.sh", "--yes")),
            SCRIPTS,
        ),
        Recording("pbs-submit", PBS, _submissions("-q", "gpu"), SCRIPTS),
        Recording("render", "", _renders(_features()), _files(_features())),
        Recording(
            "render-resources",
            "",
            _renders(_resources()),
            _files(_resources()),
            only="^#(SBATCH|PBS)",
        ),
        Recording("render-refused", "", _refused_renders(), tuple(_REFUSED.items())),
        Recording("words", "", _words(), SCRIPTS),
        Recording("help", "", _helps()),
        Recording(
            "slurm-commands",
            SLURM_TRAINING,
            (*_commands_on("6", "57"), *_logs("6", "13_3", "57"), *_usage("13")),
            SCRIPTS,
        ),
        Recording("pbs-commands", PBS_TRAINING, _commands_on("2", "9"), SCRIPTS),
        Recording("example-requests", "", _example_renders(), _EXAMPLES),
        Recording("imports", "", (JOBS_HERE, ("first-screen",)), program=IMPORTS),
        Recording("configuration", "", _configurations(), tuple(_CONFIGURATIONS.items())),
        Recording("slurm-state", SLURM, _readings_of_state("57"), STATE),
        Recording("pbs-state", PBS, JOURNAL, STATE),
    )


def _tables() -> tuple[tuple[str, ...], ...]:
    formats = itertools.product(TABLES, ("--all", "--mine"), ("json", "csv", "table"))
    filters = (
        "state:pending",
        "gpus>=1 state:running",
        "name~^m !debug",
        "limit>2h or user:maya",
        "memory_bytes>16G",
    )
    return (
        *((name, whose, "--format", form) for name, whose, form in formats),
        *(("jobs", "--all", "--filter", wanted, "--format", "csv") for wanted in filters),
        ("jobs", "--filter", "gpus>>1"),
        ("jobs", "--filter", "colour:red"),
    )


def _rules(*names: str) -> tuple[tuple[str, ...], ...]:
    forms = itertools.product(names, ("json", "csv", "table"))
    return (*((name, "--format", form) for name, form in forms), ("limits", "--filter", "free:0"))


def _details(*jobs: str) -> tuple[tuple[str, ...], ...]:
    return tuple(
        line
        for job in jobs
        for line in (
            ("show", job),
            ("show", job, "--format", "json"),
            ("script", job),
            ("script", job, "--explain"),
            ("log", job, "--path"),
            ("log", job, "--err", "--path"),
        )
    )


def _slices() -> tuple[tuple[str, ...], ...]:
    run, failed = "raysubmit_pretrain", "raysubmit_evalsweep"
    return (
        *((table, "--format", "table") for table in TABLES),
        ("jobs", "--format", "json"),
        ("jobs", "--filter", "node:10.130.0.8 queue:slice-a"),
        *(("show", job) for job in (run, failed)),
        ("show", run, "--format", "json"),
        *(("show", job, "--steps") for job in (run, failed)),
        ("script", run),
        ("log", run, "--logs"),
        ("log", failed, "--of", "worker7"),
        ("cancel", run, "--yes"),
        ("hold", run, "--yes"),
    )


def _actions(*jobs: str) -> tuple[tuple[str, ...], ...]:
    verbs = ("cancel", "hold", "release", "requeue", "suspend", "resume")
    changes = (
        ("--time", "2h"),
        ("--time", "+30m"),
        ("--queue", "gpu"),
        ("--qos", "high"),
        ("--nice", "100"),
        ("--throttle", "2"),
        ("--time", "soon"),
    )
    return (
        *((verb, job, "--yes") for verb in verbs for job in jobs),
        *(("cancel", job) for job in jobs[:1]),
        *(("cancel", job, "--yes", "--format", "json") for job in jobs[:2]),
        *(("signal", "USR1", job, "--yes") for job in jobs),
        *(
            ("signal", "USR1", jobs[0], "--to", whom, "--yes")
            for whom in ("batch", "full", "0", "nobody")
        ),
        ("signal", "NOSUCH", jobs[0], "--yes"),
        *(("alter", job, *change, "--yes") for job in jobs[:4] for change in changes),
        ("cancel", jobs[0], "--read-only"),
    )


def _commands_on(running: str, chained: str) -> tuple[tuple[str, ...], ...]:
    """Command lines of which the tables, actions and submissions have none."""
    return (
        *(
            (*line, *form)
            for line in (("chain", chained), ("launches", "list"))
            for form in ((), ("--format", "json"))
        ),
        *((f"{kind}-switch", running, "--status") for kind in ("kill", "save")),
        ("alloc", "--list"),
        ("alloc", "--gpus", "2", "--nodes", "1", "--dry-run"),
        ("check-nodes", "gpu"),
        ("delete", running, "--yes"),
        ("images", "list"),
    )


def _logs(running: str, failed: str, waiting: str) -> tuple[tuple[str, ...], ...]:
    return (
        *(("metrics", running, "--format", form) for form in ("json", "csv", "chart")),
        ("metrics", waiting),
        *(("log", job) for job in (running, failed, waiting)),
        ("log", running, "--err"),
    )


def _usage(job: str) -> tuple[tuple[str, ...], ...]:
    forms = ((), ("--format", "json"), ("--format", "csv"))
    lines = (("efficiency", job), ("efficiency", "--all"), ("report", "--all", "--since", "7d"))
    return tuple((*line, *form) for line in lines for form in forms)


SCRIPTS = (
    ("config/hpcdash/config.toml", '[launch]\nstorage_root = "/work/ada/launches"\n'),
    (
        "train.sh",
        "#!/bin/bash\n#SBATCH --job-name=train --time=2:00:00\n#PBS -N train -l "
        "walltime=2:00:00\npython train.py\n",
    ),
    ("plain.sh", "#!/bin/sh\nhostname\n"),
    ("request.toml", 'name = "llm"\ncommand = "python train.py"\nslots = 2\ntime = "2h"\n'),
    (
        "sweep.toml",
        'name = "sweep"\ncommand = "python train.py"\nslots = 8\nslots_per_node = 4\narray = '
        '"1-4%2"\nhold = true\n'
        'after = ["57"]\nsignal = "USR1@600"\nkill_switch = '
        '"/work/ada/stop"\n[environment]\nOMP_NUM_THREADS = 8\n',
    ),
)


def _submissions(*options: str) -> tuple[tuple[str, ...], ...]:
    return (
        ("submit", "train.sh", "--dry-run"),
        ("submit", "train.sh", "--dry-run", "--format", "json"),
        (
            "submit",
            "plain.sh",
            "--array",
            "1-10%2",
            "--after",
            "57,afterok:62",
            "--hold",
            "--dry-run",
        ),
        ("submit", "plain.sh", "--dry-run", "--", *options),
        ("submit", "plain.sh", "--dry-run", "--", *options, "--", "one", "two words"),
        ("submit", "plain.sh", "--array", "1-10:0", "--dry-run"),
        ("submit", "missing.sh"),
        ("submit", "request.toml", "--dry-run"),
        ("submit", "request.toml", "--chain", "3", "--dry-run"),
        ("submit", "sweep.toml", "--dry-run"),
        ("submit", "sweep.toml", "--dry-run", "--format", "json"),
    )


def _files(requests: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((f"{name}.toml", text) for name, text in requests.items())


def _renders(requests: dict[str, str]) -> tuple[tuple[str, ...], ...]:
    return tuple(
        ("render", f"{name}.toml", "--for", scheduler, "--storage-root", "/work/ada/launches")
        for name in requests
        for scheduler in ("slurm", "pbs")
    )


def _resources() -> dict[str, str]:
    """Requests by name: slots, slots per node, type and what the site supports, in every
    combination.
    """
    found = {}
    for kind, slots, per_node, tres, gres in itertools.product(
        ("cuda", "rocm", "cpu"), (0, 1, 8, 100), (None, 4, 32), (True, False), (True, False)
    ):
        if kind == "rocm" and (slots != 8 or per_node != 4):
            continue
        lines = ['command = "python train.py"', f'slot_type = "{kind}"', f"slots = {slots}"]
        lines += [f"slots_per_node = {per_node}"] if per_node else []
        lines += [
            "[site]",
            f"tres_supported = {json.dumps(tres)}",
            f"gres_supported = {json.dumps(gres)}",
        ]
        found[
            f"{kind}-{slots}-by-{per_node or 1}-{'tres' if tres else 'notres'}-{'gres' if gres else 'nogres'}"
        ] = _lines(*lines)
    return found


def _features() -> dict[str, str]:
    """Requests by name: each feature by itself, and some together."""
    given = {
        name: _lines('command = "python train.py"', *lines) for name, lines in _FEATURES.items()
    }
    return {**given, **{name: _lines(*lines) for name, lines in _WHOLE.items()}}


def _lines(*lines: str) -> str:
    return "\n".join(lines) + "\n"


_NODES = ("slots = 8", "slots_per_node = 4")
_FEATURES: dict[str, tuple[str, ...]] = {
    "names": ('name = "a name, with $(odd) letters"', 'kind = "exp-2-trial-2"'),
    "limits": (
        'time = "1-02:00:00"',
        'memory = "64G"',
        'queue = "gpu"',
        'account = "ml"',
        'qos = "high"',
    ),
    "gpu-type": ("slots = 8", "slots_per_node = 4", 'gpu_type = "a100"', 'slot_type = "cuda"'),
    "array": ('array = "1-10%2"',),
    "array-stepped": ('array = "0-30:5"', "requeue = true"),
    "array-by-launcher": ('array = "1-3"', *_NODES, 'launcher = "torchrun"'),
    "after": ('after = ["12", "13"]', "hold = true"),
    "signal": ('signal = "USR1@600"', 'time = "2h"'),
    "signal-batch": ('signal = "B:USR1@120"', 'time = "2h"', "requeue = true"),
    "switches": ('kill_switch = "/work/ada/stop"', 'save_switch = "/work/ada/save"'),
    "checkpoints": ('checkpoints = "/work/ada/run-%a"', 'array = "1-3"'),
    "rank-logs": (*_NODES, "rank_logs = true"),
    "no-job-library": ("job_library = false",),
    "plain": ("plain = true", *_NODES, 'work_dir = "/work/ada"', "[environment]", "SEED = 1"),
    "work-dir": ('work_dir = "/work/ada/a folder"',),
    "exclude-nodes": ('exclude_nodes = ["n01", "n[03-05]"]',),
    "extra-args": ('extra_args = ["--nice=3"]',),
    "extra-args-pbs": (*_NODES, 'extra_args = ["-l select=2:mem=4gb", "-l place=scatter:excl"]'),
    "torchrun": (*_NODES, 'launcher = "torchrun"', 'slot_type = "cuda"'),
    "accelerate": (*_NODES, 'launcher = "accelerate"', 'slot_type = "cuda"'),
    "srun": (*_NODES, 'launcher = "srun"', 'slot_type = "cuda"'),
    "plain-nodes": (*_NODES, 'launcher = "plain"'),
    "environment": (
        "[environment]",
        "OMP_NUM_THREADS = 8",
        'ODD = "a \\"b\\" $c `d`"',
        'EMPTY = ""',
    ),
    "project": ('project = "p1"', 'workspace = "w1"', 'labels = ["a:b", "c"]'),
    "project-workspace": ('workspace = "w/1"', "[site]", 'job_project_source = "workspace"'),
    "project-labels": ('labels = ["x:b", "x:a", "c"]', "[site]", 'job_project_source = "label:x:"'),
    "apptainer": (
        *_NODES,
        "[container]",
        'runtime = "apptainer"',
        'image = "nvcr.io/nvidia/pytorch:24.05-py3"',
    ),
    "apptainer-binds": (
        'slot_type = "rocm"',
        "[container]",
        'image = "docker://ubuntu:24.04"',
        'binds = ["/work", "/data:/in:ro"]',
        "force_pull = true",
        "[site]",
        'image_root = "/work/images"',
    ),
    "podman": (
        *_NODES,
        "[container]",
        'runtime = "podman"',
        'image = "ubuntu:24.04"',
        "[environment]",
        'A = "1"',
    ),
    "enroot": (
        "[container]",
        'runtime = "enroot"',
        'image = "nvcr.io/nvidia/pytorch:24.05-py3"',
        "force_pull = true",
    ),
    "probe": (*_NODES, "[site]", 'node_probe = "nvidia-smi -L > /dev/null"'),
    "everything": (
        'name = "llm"',
        *_NODES,
        'slot_type = "cuda"',
        'launcher = "torchrun"',
        'queue = "gpu"',
        'time = "20h"',
        'array = "1-2"',
        'signal = "USR1@600"',
        'kill_switch = "/work/ada/stop"',
        'checkpoints = "/work/ada/run-%a"',
        'account = "ml"',
        "requeue = true",
        "[environment]",
        'A = "1"',
        "[container]",
        'image = "ubuntu:24.04"',
        "[site]",
        'node_probe = "true"',
        'keep = "failed"',
    ),
}
_WHOLE: dict[str, tuple[str, ...]] = {
    "call": ("[call]", 'function = "train:main"', 'args = [1, "x"]', "kwargs = { lr = 0.001 }"),
    "call-items": (
        *_NODES,
        'launcher = "srun"',
        "[call]",
        'function = "train:main"',
        "items = [{ seed = 1 }, { seed = 2 }, 3]",
        'sys_path = ["/home/ada/project"]',
        'python = "/opt/env/bin/python"',
        'callbacks = ["train:Notes"]',
    ),
    "call-wheel": (
        "[call]",
        'function = "train:main"',
        'wheel = "/home/ada/dist/x-1-py3-none-any.whl"',
    ),
    "call-source": ("[call]", 'function = "train:main"', 'source = "/home/ada/project"'),
}
# Requests in which something is wrong.
_REFUSED = {
    "unknown-key.toml": 'comand = "x"\nslots = 2\n',
    "several.toml": 'command = "x"\nslots = "two"\ntime = 90\nmemory = "lots"\nlauncher = '
    '"mpirun"\n',
    "none.toml": "slots = 2\n",
    "both.toml": 'command = "x"\nscript = "y.sh"\n',
    "not-toml.toml": "command = \n",
    "reserved-slurm.toml": 'command = "x"\nextra_args = ["--gpus=3"]\n',
    "reserved-short.toml": 'command = "x"\nextra_args = ["-N2"]\n',
    "reserved-abbreviated.toml": 'command = "x"\nextra_args = ["--part=gpu"]\n',
    "reserved-gres.toml": 'command = "x"\nextra_args = ["--gres=license:1,gpu:2"]\n',
    "reserved-hidden.toml": 'command = "x"\nextra_args = ["-A acct   -I"]\n',
    "reserved-pbs.toml": 'command = "x"\nextra_args = ["-J", "1-3"]\n',
    "bad-array.toml": 'command = "x"\narray = "10-1"\n',
    "bad-signal.toml": 'command = "x"\nsignal = "USR9@10"\n',
    "bad-bind.toml": 'command = "x"\n[container]\nimage = "a"\nbinds = ["/a:b"]\n',
    "plain.toml": 'command = "x"\nplain = true\nrequeue = true\n[container]\nimage = "a"\n',
    "bad-call.toml": '[call]\nfunction = "train"\nargs = 3\n',
}


def _examples() -> tuple[tuple[str, str], ...]:
    """Files with the requests of the documentation."""
    return tuple(
        (f"{Path(page).stem}-{number}.toml", block.text)
        for page in PAGES
        for number, block in enumerate(
            (block for block in page_blocks(page) if block.file.endswith("REQUEST.toml")), start=1
        )
    )


_EXAMPLES = _examples()


def _example_renders() -> tuple[tuple[str, ...], ...]:
    """The script of each request in the documentation."""
    root = ("--storage-root", "/work/ada/launches")
    return tuple(
        ("render", name, "--for", kind, *root) for name, _ in _EXAMPLES for kind in ("slurm", "pbs")
    )


def _refused_renders() -> tuple[tuple[str, ...], ...]:
    return tuple(
        ("render", name, "--for", scheduler) for name in _REFUSED for scheduler in ("slurm", "pbs")
    )


def _words() -> tuple[tuple[str, ...], ...]:
    return (
        ("checkpoints", "--days", "90", "--every", "3h", "--save", "40s", "--tb", "2.3"),
        (
            "checkpoints",
            "--days",
            "90",
            "--every",
            "3h",
            "--save",
            "40s",
            "--tb",
            "2.3",
            "--format",
            "json",
        ),
        ("stub", "train.sh"),
        ("journal",),
        ("journal", "--format", "json"),
        ("clusters", "--format", "json"),
        *(("completion", shell) for shell in ("bash", "zsh", "fish")),
        *(("help", topic) for topic in ("filters", "keys", "exit-status")),
        *(
            (
                "sudoers",
                "--account",
                "launcher",
                "--group",
                "hpcusers",
                "--storage-root",
                "/work/launches",
                "--for",
                name,
            )
            for name in ("slurm", "pbs")
        ),
        ("nonsense",),
        ("jobs", "--nonsense"),
    )


def _helps() -> tuple[tuple[str, ...], ...]:
    """`--help` of every command, hidden ones too."""
    return (("--help",), *((*names, "--help") for names in _commands(cli)))


def _commands(group: click.Group) -> Iterator[tuple[str, ...]]:
    group.list_commands(click.Context(group))
    for name, command in sorted(group.commands.items()):
        yield (name,)
        if isinstance(command, click.Group):
            yield from ((name, *names) for names in _commands(command))


# Configurations as people have them; all that is wrong in one is named at once.
_CONFIGURATIONS = {
    "good.toml": 'default_cluster = "juno"\n[poll]\nmine_seconds = 30\n[clusters.juno]\nssh = '
    '"ada@juno:2222"\n'
    'backend = "slurm"\npath = "/opt/slurm/bin"\n[clusters.juno.launch]\ngres_supported = false\n'
    '[clusters.here]\ntransport = "local"\nbackend = "pbs"\n[launch]\nstorage_root = '
    '"/work/ada/launches"\n'
    '[watch]\nevery_seconds = "10m"\n[[watch.running]]\nname = "train-7b"\n',
    "wrong.toml": 'themes = "x"\nread_only = "yes"\ndefault_cluster = '
    '"jupiter"\n[pol]\n[poll]\nmine_seconds = 1\n'
    'evryone_seconds = 60\ncontroller_share = 0.5\n[keys]\nnothing = "x"\n[aliases]\nbad = '
    "3\n[clusters.juno]\n"
    'ssh = "a b"\ntransport = "telnet"\nbackend = "lsf"\n[clusters.two]\ncolour = "red"\n[launch]\n'
    'keep = "never"\nslot_type = "tpu"\ntres_suported = true\n[launch.queues.gpu]\ntime = '
    '"soon"\n[embedded]\n'
    'cpus = -1\n[metrics]\npatterns = ["(", "no group"]\n[watch]\nevery_seconds = "often"\nleast = '
    '"grave"\n'
    '[[watch.running]]\nnam = "x"\n[[watch.hanging]]\nlimit_seconds = "x"\n[watch.quiet]\nstart = '
    '"25:00"\n',
    "not-toml.toml": "[poll\nmine_seconds = 30\n",
    "empty.toml": "",
}


def _configurations() -> tuple[tuple[str, ...], ...]:
    return (
        *(("config", "check", "--config", name) for name in (*_CONFIGURATIONS, "missing.toml")),
        ("config", "example"),
        ("clusters", "--config", "good.toml", "--format", "json"),
        ("jobs", "--config", "wrong.toml"),
    )


def _state() -> tuple[tuple[str, str], ...]:
    """Files of state as today's program has written them."""
    folder = Path(__file__).parent / "state"
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return tuple((f"state/{path.relative_to(folder)}", path.read_text("utf-8")) for path in files)


STATE = _state()


# The recorded PBS answers for no job that is asked for by its id.
JOURNAL = (("journal",), ("journal", "--format", "json"))


def _readings_of_state(job: str) -> tuple[tuple[str, ...], ...]:
    return (
        *JOURNAL,
        ("script", job),
        ("show", job, "--format", "json"),
        ("kill-switch", job, "--status"),
    )
