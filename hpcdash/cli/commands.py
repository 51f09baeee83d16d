"""Every command of `hpcdash` with its options; what runs is imported when it is called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcdash.backends import registry
from hpcdash.cli.help import CommandGroup
from hpcdash.cli.options import CommonOptions, common_options
from hpcdash.domain.tables import JOBS, NODES, QUEUES, SITE_TABLES, TableSpec
from hpcdash.errors import UsageError

if TYPE_CHECKING:
    from hpcdash.cli.images import ImageRequest


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _file_or_stdout(
    _context: click.Context, _option: click.Parameter, file: Path | None
) -> Path | None:
    return None if file == Path("/dev/stdout") else file


def _format_option(*forms: str) -> Decorator:
    """Build `--format` with these forms, the first as its default."""
    return click.option(
        "--format", "form", type=click.Choice(forms), default=forms[0], show_default=True
    )


def _options(*options: Decorator) -> Decorator:
    """Join options into one decorator, in the order of the help."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_FILTER = click.option(
    "--filter", "expression", default="", metavar="EXPR", help="Only rows that match the filter."
)
_FORMAT = _format_option("table", "json")
_ROW_FORMAT = _format_option("table", "json", "csv")
_MINE = click.option(
    "--mine/--all", "mine", default=True, help="Your own jobs (the default), or everyone's."
)
_MAX_AGE = click.option(
    "--max-age",
    "max_age",
    metavar="DURATION",
    help="Accept what another window got so recently: 15s, 1m [default: 2s]",
)
_ALL_CLUSTERS = click.option(
    "--all-clusters", "everywhere", is_flag=True, help="Jobs on all configured clusters."
)
# Nodes and queues always list all rows; the option is accepted for scripts.
_ALWAYS_ALL = click.option("--mine/--all", "mine", default=True, hidden=True)
_TABLE_OPTIONS = {
    "jobs": (
        _FILTER,
        _MINE,
        _ALL_CLUSTERS,
        _MAX_AGE,
        _ROW_FORMAT,
    ),
    "nodes": (_FILTER, _ALWAYS_ALL, _MAX_AGE, _ROW_FORMAT),
    "queues": (_FILTER, _ALWAYS_ALL, _MAX_AGE, _ROW_FORMAT),
    "shares": (
        click.option(
            "--all", "mine", flag_value=False, default=True, help="All accounts, not only yours."
        ),
        _FILTER,
        _MAX_AGE,
        _ROW_FORMAT,
    ),
}


def _table_command(spec: TableSpec) -> click.Command:
    @click.command(spec.name, help=spec.summary)
    @_options(*_TABLE_OPTIONS.get(spec.name, (_FILTER, _MAX_AGE, _ROW_FORMAT)))
    @common_options
    def command(common: CommonOptions, everywhere: bool = False, **given: Any) -> None:
        from hpcdash.cli.jobs import parse_age, run_everywhere, run_table
        from hpcdash.domain.tables import ALL_JOBS

        given["max_age_seconds"] = parse_age(given.pop("max_age"))

        if everywhere:
            run_everywhere(common, ALL_JOBS, **given)
        else:
            run_table(common, spec.name, **given)

    return command


def _runs_options(since: str) -> Decorator:
    """Build the options that select ended jobs; `since` is the default of --since in its help."""
    names = "NAME[,NAME]"
    text = f"Start: 90d, yesterday, 2026-01-01 [default: {since}]"
    options = [
        click.option("--since", default="", metavar="TIME", help=text),
        click.option(
            "--until",
            default="",
            metavar="TIME",
            help="End: a time or a whole day [default: now]",
        ),
        click.option(
            "--user", default="", metavar=names, help="Jobs of these users, not your own."
        ),
        click.option(
            "--account", default="", metavar=names, help="Jobs charged to these accounts."
        ),
        click.option(
            "--queue", default="", metavar=names, help="Jobs in these queues (partitions)."
        ),
        click.option(
            "--state",
            default="",
            metavar="STATE[,STATE]",
            help="Jobs with these end states: failed,timeout.",
        ),
        click.option(
            "--name",
            default="",
            metavar="PATTERN",
            help="Jobs with this name; * matches any text.",
        ),
        _FILTER,
        _MINE,
    ]
    return _options(*options)


@click.command()
@_runs_options("7d")
@_ALL_CLUSTERS
@_MAX_AGE
@_ROW_FORMAT
@common_options
def history(
    common: CommonOptions,
    expression: str,
    mine: bool,
    form: str,
    everywhere: bool,
    max_age: str | None,
    **given: str,
) -> None:
    """List ended jobs of the last 7 days, or those that were active in a span."""
    from hpcdash.cli.history import HistoryOptions, run_history, run_history_everywhere
    from hpcdash.cli.jobs import parse_age, run_everywhere, run_table
    from hpcdash.domain.tables import ALL_HISTORY

    options = HistoryOptions(**given)
    shown: dict[str, Any] = {"expression": expression, "mine": mine, "form": form}
    if not options.is_plain:
        (run_history_everywhere if everywhere else run_history)(common, options, **shown)
        return
    max_age_seconds = parse_age(max_age)
    if everywhere:
        run_everywhere(common, ALL_HISTORY, max_age_seconds=max_age_seconds, **shown)
    else:
        run_table(common, "history", max_age_seconds=max_age_seconds, **shown)


@click.command()
@click.argument("job")
@_FORMAT
@click.option("--steps", is_flag=True, help="List the job's steps and their usage.")
@click.option(
    "--sooner",
    is_flag=True,
    help="Estimate starts with less time or fewer nodes.",
)
@common_options
def show(common: CommonOptions, job: str, form: str, steps: bool, sooner: bool) -> None:
    """Show everything known about a job."""
    from hpcdash.cli.jobs import run_show, run_sooner

    if sooner:
        run_sooner(common, job, form)
    else:
        run_show(common, job, form, steps=steps)


@click.command()
@click.argument("job")
@click.option("--err", is_flag=True, help="Show stderr instead of stdout.")
@click.option(
    "-n",
    "--lines",
    "lines",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="Number of lines from the end.",
)
@click.option(
    "-f", "--follow", is_flag=True, help="Keep printing as the file grows, until interrupted."
)
@click.option("--path", "path_only", is_flag=True, help="Print only the path of the log.")
@click.option(
    "--run",
    type=click.IntRange(min=1),
    metavar="N",
    help="Log of run N in an allocation (hpcdash alloc).",
)
@click.option(
    "--logs", "lists_logs", is_flag=True, help="List the logs of ranks and of Ray's workers."
)
@click.option("--of", metavar="NAME", help="Log of a rank, worker, task or actor (see --logs).")
@_format_option("text", "json")
@common_options
def log(common: CommonOptions, **given: Any) -> None:
    """Print the last lines of a job's log, or follow it."""
    from hpcdash.cli.log import run_log

    run_log(common, **given)


@click.command()
@click.argument("job")
@common_options
def stacks(common: CommonOptions, job: str) -> None:
    """Print the Python stacks of a running job, by node.

    Needs py-spy on the nodes. The job continues.
    """
    from hpcdash.cli.inside import run_stacks

    run_stacks(common, job)


@click.command("exec")
@click.argument("job")
@click.argument("command", metavar="-- COMMAND [ARGUMENT...]", nargs=-1)
@click.option(
    "--each-node",
    "each_gpu",
    flag_value=False,
    type=bool,
    default=False,
    help="Once per node (the default).",
)
@click.option(
    "--each-gpu",
    "each_gpu",
    flag_value=True,
    type=bool,
    help="Once per GPU, with CUDA_VISIBLE_DEVICES set to it.",
)
@click.option(
    "--leftovers",
    is_flag=True,
    help="List processes left by your jobs; offer to end them.",
)
@click.option(
    "--timeout", metavar="TIME", default="60s", show_default=True, help="Time limit on each node."
)
@_format_option("text", "json")
@common_options
def exec_inside(common: CommonOptions, **given: Any) -> None:
    """Run a command on each node of a running job.

    It runs in the job's allocation, with the job's GPUs and cgroup where the scheduler supports
    that. Identical output is printed once. The exit status is 1 if the command failed anywhere.
    """
    from hpcdash.cli.inside import run_exec

    run_exec(common, **given)


@click.command()
@click.argument("job")
@click.option("--once", is_flag=True, help="Measure once (two seconds) and exit.")
@_FORMAT
@common_options
def top(common: CommonOptions, **given: Any) -> None:
    """Show CPU, memory and GPU use of a running job, by node.

    It measures every 10 s, and leaves nothing running on the nodes. JSON has one line per
    measurement.
    """
    from hpcdash.cli.top import run_top

    run_top(common, **given)


@click.command()
@click.argument("job")
@click.argument("command", nargs=-1, metavar="[-- COMMAND]")
@click.option(
    "--node",
    default="",
    metavar="N|NAME",
    help="Node: its name, or its index in the job's list.",
)
@click.option("--outside", is_flag=True, help="Do not enter the job's container.")
@common_options
def connect(common: CommonOptions, **given: Any) -> None:
    """Open a shell, or run a command, inside a running job.

    If the job has a container, the shell runs in it. The exit status is that of the shell or of
    COMMAND. ~. at the start of a line disconnects. Without a terminal, COMMAND runs without stdin,
    and its stdout is printed when it ends.
    """
    from hpcdash.cli.connect import run_connect

    run_connect(common, **given)


@click.command()
@click.argument("job", required=False, default="")
@click.argument("ports", required=False, default="", metavar="[PORT[:LOCAL]]")
@click.option(
    "--node",
    default="",
    metavar="N|NAME",
    help="Node: its name, or its index in the job's list.",
)
@click.option("--tcp", is_flag=True, help="Listen on a port even where other users can reach it.")
@click.option("--open", "opens", is_flag=True, help="Open the address in the browser.")
@click.option("--list", "lists", is_flag=True, help="List the forwards of this machine.")
@_FORMAT
@common_options
def forward(common: CommonOptions, **given: Any) -> None:
    """Reach a port of a running job from this machine: Jupyter, TensorBoard, vLLM, a debugger.

    Without PORT it is the one in the newest address of the job's log. It ends with the job or
    ctrl+c, and reconnects with the connection. The program in the job may listen on 127.0.0.1, as
    it should. Where other users could connect to a port, it is a unix socket.
    """
    from hpcdash.cli.forward import run_forward

    run_forward(common, **given)


@click.command()
@click.argument("job", required=False, default="")
@click.option(
    "--format",
    "form",
    type=click.Choice(["chart", "json", "csv", "parquet"]),
    default="chart",
    metavar="FORM",
    show_default=True,
    help="chart, json, csv or parquet.",
)
@click.option(
    "--metric",
    "requested",
    metavar="NAME",
    multiple=True,
    help="Select a metric; may be repeated.",
)
@click.option("--log", is_flag=True, help="Draw a logarithmic y axis.")
@click.option(
    "--file",
    "file",
    metavar="PATH",
    default="",
    help="Read this file on the cluster, not a job's logs.",
)
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Redraw the chart or append CSV until the job ends.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    callback=_file_or_stdout,
    metavar="FILE",
    help="Write to FILE, replacing it.",
)
@common_options
def metrics(common: CommonOptions, **given: Any) -> None:
    """Chart the loss and other metrics in a job's log.

    JOB may be an array: its tasks become one curve. --file needs no JOB. In JSON, a y of NaN or
    infinity is null, and its x is listed under "nan" or "inf"; CSV writes nan, inf and -inf.
    """
    from hpcdash.cli.metrics import run_metrics

    run_metrics(common, **given)


@click.command()
@click.argument("job")
@click.option("--diff", metavar="JOB", help="Diff against another job's script.")
@click.option("--explain", is_flag=True, help="Explain each directive.")
@common_options
def script(common: CommonOptions, **given: Any) -> None:
    """Print a job's batch script as the scheduler stores it."""
    from hpcdash.cli.jobs import run_script

    run_script(common, **given)


@click.command()
@click.argument("jobs", metavar="[JOB...]", nargs=-1)
@_runs_options("7d")
@click.option(
    "--by",
    type=click.Choice(["run", "array", "name"]),
    default="run",
    show_default=True,
    help="Group by run, array or job name.",
)
@click.option(
    "--sooner",
    is_flag=True,
    help="Estimate earlier starts with smaller requests.",
)
@_ROW_FORMAT
@common_options
def efficiency(common: CommonOptions, jobs: tuple[str, ...], **given: Any) -> None:
    """Compare what ended jobs used with what they requested."""
    from hpcdash.cli.history import HistoryOptions
    from hpcdash.cli.usage import run_efficiency

    options = HistoryOptions(**{key: given.pop(key) for key in HistoryOptions.__struct_fields__})
    run_efficiency(common, jobs, options, **given)


@click.command()
@_runs_options("30d")
@click.option(
    "--by",
    type=click.Choice(["day", "week", "queue", "user", "account", "name", "cluster"]),
    default=None,
    metavar="KEY",
    help="queue (the default), day, week, user, account, name.",
)
@click.option(
    "--all-clusters", "everywhere", is_flag=True, help="All configured clusters; --by cluster."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["chart", "table", "json", "csv", "parquet"]),
    default="chart",
    metavar="FORM",
    show_default=True,
    help="chart, table, json, csv or parquet.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    callback=_file_or_stdout,
    metavar="FILE",
    help="Write CSV or Parquet to FILE, replacing it.",
)
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write one HTML page to FILE.",
)
@common_options
def report(common: CommonOptions, **given: Any) -> None:
    """Report GPU and CPU hours, jobs, failures and waits."""
    from hpcdash.cli.history import HistoryOptions
    from hpcdash.cli.usage import run_report

    options = HistoryOptions(**{key: given.pop(key) for key in HistoryOptions.__struct_fields__})
    run_report(common, options, **given)


LOOK_COMMANDS: tuple[click.Command, ...] = (
    *map(_table_command, (JOBS, NODES, QUEUES)),
    history,
    show,
    log,
    stacks,
    connect,
    forward,
    exec_inside,
    top,
    metrics,
    script,
    efficiency,
    report,
)


_CHAIN = click.option(
    "--chain", "chain", is_flag=True, help="Also the jobs before and after it in its chain."
)
# JOB..., or the jobs that --filter matches.
_TARGETS = _options(
    click.argument("jobs", metavar="JOB...", nargs=-1),
    click.option(
        "--filter",
        "expression",
        default="",
        metavar="EXPR",
        help="Act on matching jobs, after confirmation.",
    ),
    click.option(
        "--all", "everyone", is_flag=True, help="With --filter: everyone's jobs, not only yours."
    ),
)


def _acting_command(verb: str, text: str, *options: Decorator) -> click.Command:
    @click.command(verb, help=text)
    @_TARGETS
    @_options(*options)
    @_FORMAT
    @common_options
    def command(common: CommonOptions, **given: Any) -> None:
        from hpcdash.cli.actions import run_action

        run_action(common, verb, **given)

    return command


@click.command("signal")
@click.argument("signal")
@_TARGETS
@click.option(
    "--to",
    "recipient",
    metavar="WHOM",
    default="",
    help="batch, full or a step number [default: all steps]",
)
@_FORMAT
@common_options
def signal_jobs(common: CommonOptions, **given: Any) -> None:
    """Send a signal to running jobs."""
    from hpcdash.cli.actions import run_action

    run_action(common, "signal", **given)


def _switch_command(kind: str, text: str) -> click.Command:
    @click.command(f"{kind}-switch", help=text)
    @click.argument("jobs", metavar="JOB...", nargs=-1, required=True)
    @click.option(
        "--path",
        default="",
        metavar="FILE",
        help="Switch file [default: from the launch or script]",
    )
    @click.option("--clear", is_flag=True, help="Clear the switch: remove its file.")
    @click.option(
        "--status", is_flag=True, help="Show whether it is set, who set it, and its effect."
    )
    @click.option("--forget", is_flag=True, help="Forget an earlier --path.")
    @_FORMAT
    @common_options
    def command(common: CommonOptions, **given: Any) -> None:
        from hpcdash.cli.switches import run_switch
        from hpcdash.domain.switches import SwitchKind

        run_switch(common, SwitchKind(kind), **given)

    return command


@click.command()
@_TARGETS
@click.option("--time", metavar="LIMIT", help="Time limit: 90 (minutes), 2h, 1-12:00:00.")
@click.option("--queue", metavar="NAME", help="Queue (partition).")
@click.option("--qos", metavar="NAME", help="Quality of service (Slurm only).")
@click.option(
    "--nice",
    metavar="N",
    help="Nice value; on PBS, -100 sets priority 100.",
)
@click.option(
    "--throttle", metavar="N", help="Max array tasks at once; 0 means no limit (Slurm only)."
)
@click.option("--comment", metavar="TEXT", help="Comment, also for running jobs (not on PBS).")
@_FORMAT
@common_options
def alter(
    common: CommonOptions,
    jobs: tuple[str, ...],
    expression: str,
    everyone: bool,
    form: str,
    **changes: str | None,
) -> None:
    """Change pending jobs, or the time limit of running ones."""
    from hpcdash.cli.actions import run_action

    given = {key: value for key, value in changes.items() if value}
    run_action(
        common, "alter", jobs, expression=expression, everyone=everyone, changes=given, form=form
    )


@click.command()
@click.argument("job")
@click.option("--queue", default="", metavar="NAME", help="Queue (partition).")
@click.option("--account", default="", metavar="NAME", help="Account to charge.")
@click.option("--qos", default="", metavar="NAME", help="Quality of service (Slurm only).")
@click.option("--to", "target", default="", metavar="CLUSTER", help="Configured cluster.")
@click.option("--dry-run", is_flag=True, help="Show the commands; change nothing.")
@_FORMAT
@common_options
def move(
    common: CommonOptions, job: str, target: str, *, dry_run: bool, form: str, **given: str
) -> None:
    """Move a waiting job to another queue, account, QoS or cluster.

    In place where the scheduler can. To another cluster (asks) the job is held, submitted there
    held, cancelled here, and released there once it is certain that it had not started. `hpcdash
    where --like JOB` lists the places. Exit status: 1 if nothing was moved, 3 if it is unclear.
    """
    from hpcdash.cli.move import run_move_command
    from hpcdash.services.submit.move_plan import Destination

    destination = Destination(**given)
    run_move_command(common, job, destination, target=target, dry_run=dry_run, form=form)


@click.command()
@click.option(
    "-n",
    "newest",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="Number of actions to show.",
)
@_FORMAT
@click.option(
    "--settle",
    "settles",
    is_flag=True,
    help="First resolve submissions and moves with unknown outcome.",
)
@common_options
def journal(common: CommonOptions, newest: int, form: str, settles: bool) -> None:
    """List the actions taken from here and their results."""
    from hpcdash.cli.actions import run_journal

    run_journal(common, newest, form, settles=settles)


ACT_COMMANDS: tuple[click.Command, ...] = (
    _acting_command(
        "cancel",
        "Cancel pending or running jobs.",
        _CHAIN,
        click.option("--force", is_flag=True, help="Also remove jobs whose node is down (PBS)."),
    ),
    _acting_command("hold", "Hold pending jobs: they do not start until released.", _CHAIN),
    _acting_command("release", "Release held jobs.", _CHAIN),
    _acting_command("requeue", "Stop running jobs and return them to the queue."),
    _acting_command("suspend", "Suspend running jobs (often only operators may)."),
    _acting_command("resume", "Resume suspended jobs."),
    _acting_command("delete", "Delete ended jobs from the cluster's list (Ray)."),
    signal_jobs,
    _switch_command(
        "kill",
        "Set a job's kill switch: the training saves and stops.\n\n"
        "The switch is a file. Queued array tasks exit as they start.",
    ),
    _switch_command(
        "save",
        "Set a job's save switch: the training saves and continues.\n\n"
        "The switch is a file. The training removes it.",
    ),
    alter,
    move,
    journal,
)


_PLAIN = click.option(
    "--plain", is_flag=True, help="Only directives and the command, no hpcdash.job."
)
_SCHEDULER = click.option(
    "--for",
    "scheduler",
    type=click.Choice(registry.ON_LOGIN_NODES),
    help="Scheduler [default: the cluster's]",
)
_STORAGE_ROOT = click.option(
    "--storage-root", metavar="DIR", help="Folder of launches [default: from the configuration]"
)


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("script", required=False, default="")
@click.argument("arguments", nargs=-1, metavar="[-- SCHEDULER OPTIONS [-- ARGUMENTS]]")
@click.option("--array", metavar="TASKS", help="Submit as an array: 1-10, 0-15:4, 1-10%1.")
@click.option(
    "--after",
    metavar="JOB[,JOB]",
    help="Wait for jobs: 12, {afterok,afternotok,after}:12.",
)
@click.option("--hold", is_flag=True, help="Submit held.")
@click.option(
    "--chain",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Submit N jobs, each after the previous one.",
)
@_PLAIN
@click.option("--in", "inside", metavar="JOB", help="Run in an allocation (see hpcdash alloc).")
@click.option(
    "--template",
    default="",
    metavar="NAME",
    help="A template: jupyter, vllm, one you saved.",
)
@click.option(
    "--set",
    "changes",
    metavar="FIELD=VALUE",
    multiple=True,
    help="A field of the template; may be repeated.",
)
@click.option("--best", is_flag=True, help="Submit where it starts first, after confirmation.")
@click.option("--dry-run", is_flag=True, help="Show the script and commands; submit nothing.")
@_FORMAT
@common_options
def submit(common: CommonOptions, *, inside: str | None, **given: Any) -> None:
    """Submit a batch script or a request, and print the job ID. SCRIPT is a file on this
    machine (a request: *.toml), or - for stdin.
    """
    if not (given["script"] or given["template"]):
        raise click.MissingParameter(param_hint="'SCRIPT'", param_type="argument")
    if inside is not None:
        if given.pop("template") or given.pop("changes"):
            raise UsageError("--template cannot be used with --in", "Submit it as a job.")
        from hpcdash.cli.alloc import run_inside

        run_inside(common, inside, **given)
        return
    from hpcdash.cli.submit import run_submit

    run_submit(common, **given)


@click.command()
@click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="GPUs in total.")
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Nodes; GPUs or CPUs are spread evenly.",
)
@click.option(
    "--cpus",
    type=click.IntRange(min=1),
    metavar="N",
    help="CPUs in total; with --gpus, per GPU.",
)
@click.option("--memory", metavar="SIZE", help="Memory per node: 64G.")
@click.option("--time", "limit", metavar="LIMIT", help="Time limit: 90m, 4h, 1-12:00:00.")
@click.option("--queue", default="", metavar="NAME", help="Queue (partition).")
@click.option("--account", default="", metavar="NAME", help="Account to charge.")
@click.option("--name", default="", metavar="NAME", help="Name of the job.")
@click.option("--keep", is_flag=True, help="Keep the allocation when this command exits.")
@click.option(
    "--idle-limit",
    metavar="TIME",
    help="End after idling (no run, GPUs at 0%): 30m.",
)
@click.option("--hold", is_flag=True, help="Submit held.")
@click.option("--list", "listing", is_flag=True, help="List your allocations and their time left.")
@click.option("--runs", "job", metavar="JOB", help="List the runs in an allocation.")
@click.option("--dry-run", is_flag=True, help="Show the script and commands; submit nothing.")
@_FORMAT
@common_options
def alloc(common: CommonOptions, **given: Any) -> None:
    """Allocate nodes for several runs.

    An allocation is a batch job that executes runs one after another: hpcdash submit REQUEST.toml
    --in JOB. Without --keep it is cancelled when this command ends.
    """
    from hpcdash.cli.alloc import run_alloc

    run_alloc(common, **given)


@click.command()
@click.argument("request", metavar="REQUEST.toml")
@_SCHEDULER
@_STORAGE_ROOT
@_PLAIN
@common_options
def render(common: CommonOptions, **given: Any) -> None:
    """Print the batch script of a request (- for stdin), offline."""
    from hpcdash.cli.render import run_render

    run_render(common, **given)


@click.command("chain")
@click.argument("job")
@_FORMAT
@common_options
def show_chain(common: CommonOptions, job: str, form: str) -> None:
    """Show the jobs before and after a job, and the expected end."""
    from hpcdash.cli.chains import run_chain

    run_chain(common, job=job, form=form)


@click.command("stub")
@click.argument("script")
@click.option("--at", metavar="PATH", help="Path of SCRIPT on the cluster [default: same as here]")
def stub(script: str, at: str | None) -> None:
    """Print a stub that runs SCRIPT when its job starts.

    The stub has the directives of SCRIPT. Until the job starts, SCRIPT can be edited.
    """
    from hpcdash.cli.chains import run_stub

    run_stub(script, at)


@click.command()
@click.option("--account", metavar="NAME", help="Account that submits for others [default: yours]")
@click.option("--group", metavar="GROUP", help="Group of users it may submit for.")
@_SCHEDULER
@click.option("--bin", "bin_folder", metavar="DIR", help="Folder with its commands: /opt/slurm/bin")
@_STORAGE_ROOT
@click.option(
    "--env-file",
    metavar="FILE",
    help="Root's file with variables such as SLURM_CONF.",
)
@click.option(
    "--program",
    is_flag=True,
    help="Print the root-owned program for launch folders.",
)
@common_options
def sudoers(common: CommonOptions, **given: Any) -> None:
    """Print sudo rules for submitting jobs as other users.

    The account can then run any program as any member of the group.
    """
    from hpcdash.cli.sudoers import run_sudoers

    run_sudoers(common, **given)


@click.command()
@click.option("--days", type=float, metavar="N", help="Length of the training in days.")
@click.option("--every", metavar="TIME", help="Time between saves: 3h, 90m (default unit: hours).")
@click.option("--save", metavar="TIME", help="Duration of a save: 40s, 2m (default unit: seconds).")
@click.option("--tb", type=float, metavar="TB", help="Size of a save in TB.")
@_FORMAT
def checkpoints(**given: Any) -> None:
    """Estimate checkpoint overhead."""
    from hpcdash.cli.checkpoints import run_checkpoints

    run_checkpoints(**given)


@click.command("check-nodes")
@click.argument("where", metavar="QUEUE|NODES")
@click.option(
    "--checks", metavar="NAME[,NAME]", help="cuda, nccl, gpu-memory, disk, clock [default: all]"
)
@click.option(
    "--queue",
    metavar="QUEUE",
    help="Queue of the job [default: one with these nodes]",
)
@click.option(
    "--time",
    "limit",
    metavar="TIME",
    default="10m",
    show_default=True,
    help="Time limit of the job.",
)
@_FORMAT
@common_options
def check_nodes(common: CommonOptions, **given: Any) -> None:
    """Check nodes with a job that tests GPUs, disks and clock.

    NODES are n01,n[03-07]; of a QUEUE, its idle nodes are checked.
    """
    from hpcdash.cli.check_nodes import run_check_nodes

    run_check_nodes(common, **given)


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@_ROW_FORMAT
@common_options
def storage(common: CommonOptions, paths: tuple[str, ...], form: str) -> None:
    """List what is used and free on file systems, and of quotas, and when they are full.

    Without PATH: the quotas of quota_command, your home, the folder of launches, your jobs'
    directories, and the paths of [[watch.storage]].
    """
    from hpcdash.cli.storage import run_storage

    run_storage(common, paths, form)


@click.command()
@click.argument("source", required=False, default="", metavar="[REQUEST.toml | SCRIPT]")
@click.option("--like", default="", metavar="JOB", help="Same size as this job.")
@click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="GPUs in total.")
@click.option("--gpu-type", default="", metavar="NAME", help="GPU type: a100.")
@click.option("--gpu-mem", default="", metavar="SIZE", help="Memory of each GPU: 40G.")
@click.option(
    "--needs", default="", metavar="FORMATS", help="Number formats the GPUs support: bf16,fp8."
)
@click.option(
    "--cpus", type=click.IntRange(min=1), metavar="N", help="CPUs in total, without GPUs."
)
@click.option("--cpus-per-gpu", type=click.IntRange(min=1), metavar="N", help="CPUs for each GPU.")
@click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="Nodes.")
@click.option("--mem", default="", metavar="SIZE", help="Memory of each node.")
@click.option("--time", default="", metavar="TIME", help="Time limit: 2d, 4h, 01:30:00.")
@click.option("--queue", default="", metavar="NAME", help="Only this queue.")
@click.option("--account", default="", metavar="NAME", help="Only this account.")
@click.option("--qos", default="", metavar="NAME", help="Only this QoS.")
@click.option("--all", "refused", is_flag=True, help="Also list places that would refuse it.")
@_ROW_FORMAT
@common_options
def where(
    common: CommonOptions, source: str, like: str, form: str, refused: bool, **given: Any
) -> None:
    """List where a job could run, and where it starts first.

    The job is described by options, a request, a batch script, or another job. All configured
    clusters are searched, unless --cluster names one. The exit status is 1 if no place takes it.
    """
    from hpcdash.cli.where import run_where

    run_where(common, source=source, like=like, form=form, refused=refused, options=given)


@click.command("files")
@click.argument("job")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--delete", is_flag=True, help="Delete the paths (confirms).")
@_FILTER
@_ROW_FORMAT
@common_options
def list_files(common: CommonOptions, job: str, paths: tuple[str, ...], **given: Any) -> None:
    """List a job's folders, or the files in one, newest first; checkpoints are checked.

    A relative PATH starts in the job's working directory. With --delete, files and folders below
    the folders of a finished job are deleted; links are deleted, never followed.
    """
    from hpcdash.cli.files import run_files

    run_files(common, job, paths, **given)


_FORCE = click.option("--force", is_flag=True, help="Replace files that exist.")


@click.command("get")
@click.argument("job")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--to", metavar="DIR", default=".", help="Folder on this machine [default: the current one]"
)
@_FORCE
@_ROW_FORMAT
@common_options
def get_files(common: CommonOptions, job: str, paths: tuple[str, ...], **given: Any) -> None:
    """Copy files and folders of a job to this machine, checked by SHA-256.

    A relative PATH starts in the job's working directory. An interrupted copy continues where it
    was when the command is run again. Links are not copied.
    """
    from hpcdash.cli.files import run_get

    run_get(common, job, paths, **given)


@click.command("put")
@click.argument("job")
@click.argument("paths", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--to", metavar="PATH", default=".", help="Folder there [default: the job's work directory]"
)
@_FORCE
@_ROW_FORMAT
@common_options
def put_files(common: CommonOptions, job: str, paths: tuple[str, ...], **given: Any) -> None:
    """Copy files and folders of this machine to a job's folder, checked by SHA-256.

    An interrupted copy continues where it was when the command is run again. Links are not copied.
    """
    from hpcdash.cli.files import run_put

    run_put(common, job, paths, **given)


@click.command("sync")
@click.argument("job")
@click.argument("folder")
@click.option("--to", metavar="DIR", help="Folder on this machine [default: FOLDER's name]")
@click.option(
    "--every", metavar="TIME", default="30s", show_default=True, help="Time between rounds."
)
@click.option("--once", is_flag=True, help="Run one round.")
@common_options
def sync_files(common: CommonOptions, **given: Any) -> None:
    """Bring a folder of a job to this machine as it grows, until the job has ended.

    Only files that it brought itself, and that were not changed here, are replaced; others are left
    and listed. Nothing is deleted.
    """
    from hpcdash.cli.files import run_sync

    run_sync(common, **given)


FILE_COMMANDS: tuple[click.Command, ...] = (list_files, get_files, put_files, sync_files)
SUBMIT_COMMANDS: tuple[click.Command, ...] = (
    submit,
    where,
    storage,
    alloc,
    render,
    check_nodes,
    show_chain,
    stub,
    sudoers,
    checkpoints,
)


@click.command()
@click.option("--once", is_flag=True, help="Run one round, for cron.")
@click.option("--dry-run", is_flag=True, help="Show who would be notified; send and write nothing.")
@click.option("--trial", is_flag=True, help="Send a test message to every recipient.")
@click.option("--every", metavar="TIME", help="Time between rounds: 10m (default unit: minutes).")
@common_options
def watch(common: CommonOptions, **given: Any) -> None:
    """Run the watchdogs of [watch] in the foreground.

    Each alert is sent once when it starts and once when it ends; failed deliveries are retried each
    round. Exit status of --once: 0 whatever it finds, 1 if a round failed or an alert was not
    delivered, 2 if a recipient's secret is missing, 3 if a cluster could not be reached.
    """
    from hpcdash.cli.watch import run_watch

    run_watch(common, **given)


@click.command()
@click.option("--install", "action", flag_value="install", help="Install and submit the job.")
@click.option(
    "--remove",
    "action",
    flag_value="remove",
    help="Uninstall it and cancel the pending job.",
)
@click.option(
    "--status", "action", flag_value="status", help="Show what is installed and its next run."
)
@click.option("--every", metavar="TIME", help="Time between runs: 15m, 1d [default: 1h]")
@click.option("--folder", metavar="DIR", help="Folder on the cluster [default: ~/hpcdash/cron]")
@click.option("--watch", "watches", is_flag=True, help="Also run hpcdash watch --once.")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="WORD",
    help="Scheduler option: --option=--partition=cpu",
)
@common_options
def cron(common: CommonOptions, **given: Any) -> None:
    """Print or install a job that replaces cron.

    The job resubmits itself, then runs every script in a folder on the cluster.
    """
    from hpcdash.cli.watch import run_cron

    run_cron(common, **given)


WATCH_COMMANDS: tuple[click.Command, ...] = (
    watch,
    cron,
)


@click.group(cls=CommandGroup)
def share() -> None:
    """Share a pool of nodes in time slices, by priority and quota."""


@share.command("run")
@click.argument("pool")
@click.option("--once", is_flag=True, help="Exit when there is nothing to start or stop, for cron.")
@click.option(
    "--for",
    "limit",
    metavar="TIME",
    help="Exit after this time: 9m (default unit: minutes).",
)
@common_options
def share_run(common: CommonOptions, pool: str, once: bool, limit: str | None) -> None:
    """Coordinate a pool: start, suspend and resume its tasks.

    One coordinator runs at a time, on the cluster itself, until it is interrupted. It may end at
    any moment; the next one continues.
    """
    from hpcdash.cli.share import run_coordinator

    run_coordinator(common, pool, once=once, limit=limit)


@share.command("show")
@click.argument("pool", default="")
@click.option(
    "--filter", "expression", default="", metavar="EXPR", help="Only tasks that match the filter."
)
@_ROW_FORMAT
@common_options
def share_show(common: CommonOptions, pool: str, expression: str, form: str) -> None:
    """Show a pool: load, quotas, running and waiting tasks.

    POOL may be omitted if the configuration has only one. JSON has the start and end of each run.
    """
    from hpcdash.cli.share import run_show

    run_show(common, pool, expression=expression, form=form)


def _wish_command(wish: str, text: str) -> None:
    @share.command(wish, help=text)
    @click.argument("job")
    @click.option("--pool", "name", default="", metavar="POOL", help="Pool, if there are several.")
    @common_options
    def command(common: CommonOptions, job: str, name: str, to: str | None = None) -> None:
        from hpcdash.cli.share import run_wish

        run_wish(common, wish, job, name=name, priority=to)

    if wish in ("raise", "lower"):
        command.params.append(
            click.Option(
                ["--to"], metavar="PRIORITY", help="Priority [default: the next one with quota]"
            )
        )


_wish_command("raise", "Raise your task's priority, after confirmation.")
_wish_command("lower", "Lower your task's priority, after confirmation.")
_wish_command("suspend", "Suspend your task until you resume it; it saves first.")
_wish_command("resume", "Resume your suspended task at its next turn.")
_wish_command("stop", "Stop your task for good.")


@share.command("simulate")
@click.argument("trace", metavar="TRACE")
@click.option(
    "--pool",
    "name",
    default="",
    metavar="NAME",
    help="Pool from the configuration: nodes, quotas, rules.",
)
@click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="Nodes of the pool.")
@click.option(
    "--quota",
    "quotas",
    multiple=True,
    metavar="USER:PRIORITY=N",
    help="Maximum nodes at once [default: the pool's, else all]",
)
@click.option(
    "--grace", type=click.FloatRange(min=0), help="Seconds for a save [default: the pool's, else 5]"
)
@click.option(
    "--load",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds for a resume.",
)
@_format_option("chart", "json")
@common_options
def share_simulate(common: CommonOptions, **given: Any) -> None:
    """Replay a trace of tasks under a pool's rules.

    The results stand beside those of first come, first served, and of separate nodes for each user.
    TRACE is a CSV file (- for stdin) with the columns submitted_at, user, nodes, seconds, and
    optionally priority, save_seconds, checkpoint_seconds.
    """
    from hpcdash.cli.share import run_simulate

    run_simulate(common, **given)


@share.command("generate")
@click.option("--tasks", type=click.IntRange(1, 1_000_000), default=10_000, show_default=True)
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Nodes of the pool.",
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True)
@common_options
def share_generate(common: CommonOptions, **given: Any) -> None:
    """Print a synthetic trace for hpcdash share simulate.

    The same seed gives the same trace.
    """
    from hpcdash.cli.share import run_generate

    run_generate(**given)


@click.group(cls=CommandGroup)
def images() -> None:
    """Pull, import and list container images on a cluster."""


_IMAGE_OPTIONS = _options(
    click.option(
        "--runtime",
        type=click.Choice(["apptainer", "podman", "enroot"]),
        default="apptainer",
        metavar="NAME",
        show_default=True,
        help="apptainer, podman or enroot.",
    ),
    click.option(
        "--store", "folder", metavar="DIR", default="", help="Absolute path of the image store."
    ),
)
_FILLING_OPTIONS = _options(
    _IMAGE_OPTIONS,
    click.option("--force", is_flag=True, help="Replace an existing image."),
    click.option("--nocreate", is_flag=True, help="Create no container on this node (enroot)."),
)


def _requested_images(
    runtime: str, folder: str, *, force: bool = False, nocreate: bool = False
) -> ImageRequest:
    from hpcdash.cli.images import ImageRequest
    from hpcdash.domain.request import Runtime

    return ImageRequest(Runtime(runtime), folder, force=force, create=not nocreate)


@images.command("pull")
@click.argument("image")
@_FILLING_OPTIONS
@common_options
def images_pull(common: CommonOptions, image: str, **given: Any) -> None:
    """Pull an image from its registry.

    Example: hpcdash images pull nvcr.io/nvidia/pytorch:24.05-py3
    """
    from hpcdash.cli.images import run_pull

    run_pull(common, _requested_images(**given), image)


@images.command("import")
@click.argument("file")
@click.argument("reference")
@_FILLING_OPTIONS
@common_options
def images_import(common: CommonOptions, file: str, reference: str, **given: Any) -> None:
    """Import an image file on the cluster as NAME:TAG.

    Example: hpcdash images import /work/torch.sif torch:2.3
    """
    from hpcdash.cli.images import run_import

    run_import(common, _requested_images(**given), file, reference)


@images.command("list")
@_IMAGE_OPTIONS
@common_options
def images_list(common: CommonOptions, **given: Any) -> None:
    """List images."""
    from hpcdash.cli.images import run_list

    run_list(common, _requested_images(**given))


@images.command("login")
@click.argument("username", metavar="[REGISTRY-USER]", required=False)
@click.option("--password-stdin", is_flag=True, help="Read the password from stdin.")
@common_options
def images_login(common: CommonOptions, username: str | None, password_stdin: bool) -> None:
    """Store a registry login on the cluster.

    Launches and hpcdash images pull use it. The file has mode 0600.
    """
    from hpcdash.cli.images import run_login

    run_login(common, username=username, password_stdin=password_stdin)


@click.group(cls=CommandGroup)
def launches() -> None:
    """List or remove the folders of launches on a cluster."""


@launches.command("list")
@_FORMAT
@common_options
def launches_list(common: CommonOptions, **given: Any) -> None:
    """List launch folders: job, state, size, why each is kept."""
    from hpcdash.cli.launches import run_list

    run_list(common, **given)


@launches.command("prune")
@click.option(
    "--older-than",
    metavar="TIME",
    default="",
    help="Minimum time since the launch ended: 12h, 14d.",
)
@click.option("--failed", is_flag=True, help="Also launches with jobs that did not complete.")
@click.option("--dry-run", is_flag=True, help="List what would be removed; remove nothing.")
@_FORMAT
@common_options
def launches_prune(common: CommonOptions, **given: Any) -> None:
    """Remove folders of completed launches, after confirmation.

    Only folders with nothing but staged files and logs are removed. Results are always kept, as is
    every folder that a job in the queue names or whose job's end is unknown. Links are not
    followed.
    """
    from hpcdash.cli.launches import run_prune

    run_prune(common, **given)


@click.command()
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    metavar="N",
    help="Port on 127.0.0.1 [default: any free port]",
)
@click.option(
    "--socket",
    "socket_path",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Listen on a Unix socket (mode 0600) instead.",
)
@click.option("--allow-actions", is_flag=True, help="Allow actions [default: read-only]")
@click.option("--api", is_flag=True, help="Serve the HTTP API instead; needs hpcdash[api].")
@click.option(
    "--tokens",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Tokens of the API (mode 0600).",
)
@common_options
def serve(common: CommonOptions, **given: Any) -> None:
    """Serve the dashboard to a browser, or an HTTP API to programs.

    The server is reachable from this machine only; from another one, use the ssh -L command that it
    prints. Each link admits one browser, once, within ten minutes; enter prints a new link, ctrl+c
    ends the server. Other users of this machine can reach a port, but not a socket. The dashboard
    needs hpcdash[web]. The API accepts the tokens of api-tokens.toml beside the configuration.
    """
    from hpcdash.cli.serve import run_serve

    run_serve(common, **given)


@click.command()
@click.option(
    "--allow",
    default="",
    metavar="ACTION[,ACTION]",
    help="Actions that the assistant may plan: submit,cancel,hold,release,requeue,suspend,resume.",
)
@click.option(
    "--allow-unattended",
    is_flag=True,
    help="Act without a person on jobs that this session submitted.",
)
@click.option("--print-config", is_flag=True, help="Print the configuration for assistants.")
@common_options
def mcp(common: CommonOptions, **given: Any) -> None:
    """Serve tools to an assistant over stdin and stdout (MCP).

    The assistant starts it. Without --allow it reads only; an allowed action is planned first, and
    run when a person accepts it. Needs hpcdash[mcp].
    """
    from hpcdash.cli.mcp import run_mcp

    run_mcp(common, **given)


@click.command()
@_FORMAT
@common_options
def doctor(common: CommonOptions, form: str) -> None:
    """Check the setup, with a next step for each problem."""
    from hpcdash.cli.doctor import run_doctor

    run_doctor(common, form)


@click.group(cls=CommandGroup, invoke_without_command=True)
@_ROW_FORMAT
@common_options
@click.pass_context
def clusters(context: click.Context, common: CommonOptions, form: str) -> None:
    """List configured clusters, schedulers found here, and other clusters of a site."""
    if context.invoked_subcommand is None:
        from hpcdash.cli.clusters import run_clusters

        run_clusters(common, form)


@clusters.command("add")
@click.argument("name")
@click.option("--title", help="Display name.")
@click.option("--path", help="Folder with its commands: /opt/slurm/bin")
@click.option("--user", help="Your user name on the cluster.")
@click.option("--force", is_flag=True, help="Add it even if it cannot be reached.")
@common_options
def clusters_add(common: CommonOptions, name: str, force: bool, **given: str | None) -> None:
    """Try a cluster and add it to the configuration.

    Example: hpcdash clusters add juno --ssh me@juno.example.org
    """
    from hpcdash.cli.clusters import run_add

    run_add(common, name, {key: value for key, value in given.items() if value}, force=force)


@click.group(cls=CommandGroup, invoke_without_command=True)
@common_options
@click.pass_context
def broker(context: click.Context, common: CommonOptions) -> None:
    """Start the background process that shares one login and its queries among your windows.

    With broker = true in [connection], the first program that connects over ssh starts it.
    """
    if context.invoked_subcommand is None:
        from hpcdash.cli.broker import run_start

        run_start(common)


@broker.command("status")
@_FORMAT
def broker_status(form: str) -> None:
    """Show its connections and the programs that use them."""
    from hpcdash.cli.broker import run_status

    run_status(form)


@broker.command("stop")
def broker_stop() -> None:
    """End it and its connections; commands that are running there end too."""
    from hpcdash.cli.broker import run_stop

    run_stop()


@click.group(cls=CommandGroup)
def config() -> None:
    """Check the configuration file, or print an example."""


@config.command("check")
@common_options
def config_check(common: CommonOptions) -> None:
    """Check the configuration file."""
    from hpcdash.cli.clusters import run_config_check

    run_config_check(common)


@config.command("example")
def config_example() -> None:
    """Print an example that explains every key."""
    from hpcdash.config.document import example_text

    print(example_text(), end="")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.option("--install", "installs", is_flag=True, help="Install it for the shell.")
@click.pass_context
def completion(context: click.Context, shell: str, installs: bool) -> None:
    """Print or install shell completion.

    It completes commands, options, job IDs, clusters, queues and filters, without contacting a
    cluster.
    """
    from hpcdash.cli.completion import completion_script, install

    cli = context.find_root().command
    if not installs:
        click.echo(completion_script(cli, shell), nl=False)
        return
    file, next_steps = install(cli, shell)
    click.echo(f"{file}\n{next_steps}")


@click.command("help")
@click.argument("topic", default="", metavar="[TOPIC | COMMAND]")
@click.pass_context
def show_help(context: click.Context, topic: str) -> None:
    """Explain a topic or a command.

    Topics: filters, keys, config, exit-status, licenses, agents.
    """
    from hpcdash.cli.help import topics
    from hpcdash.errors import UsageError

    root = context.find_root()
    assert isinstance(root.command, click.Group)
    if not topic:
        click.echo(root.get_help())
    elif (text := topics().get(topic)) is not None:
        print(text(), end="")
    elif (command := root.command.get_command(root, topic)) is not None:
        click.echo(command.get_help(click.Context(command, info_name=topic, parent=root)))
    else:
        raise UsageError(f"no topic or command {topic!r}", f"Topics: {', '.join(topics())}.")


@click.command("agent-help")
def show_agent_help() -> None:
    """Explain hpcdash to an assistant that uses it through a shell."""
    from hpcdash.cli.help import agent_help

    print(agent_help(), end="")


SETUP_COMMANDS: tuple[click.Command, ...] = (
    doctor,
    clusters,
    broker,
    config,
    completion,
    show_help,
    show_agent_help,
)


COMMANDS = (
    *LOOK_COMMANDS,
    *map(_table_command, SITE_TABLES),
    *ACT_COMMANDS,
    *SUBMIT_COMMANDS,
    *FILE_COMMANDS,
    *WATCH_COMMANDS,
    share,
    serve,
    mcp,
    images,
    launches,
    *SETUP_COMMANDS,
)
