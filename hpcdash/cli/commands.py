"""Every command of `hpcdash` with its options; what runs is imported when it is called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcdash.backends import registry
from hpcdash.cli.help import CommandGroup
from hpcdash.cli.options import ROW_FORMATS, CommonOptions, common_options
from hpcdash.domain.tables import JOBS, NODES, QUEUES, SITE_TABLES, TableSpec

if TYPE_CHECKING:
    from hpcdash.cli.images import ImageRequest


def _file_or_stdout(
    _context: click.Context, _option: click.Parameter, file: Path | None
) -> Path | None:
    return None if file == Path("/dev/stdout") else file


_SCHEDULERS = click.Choice(registry.ON_LOGIN_NODES)


_FILTER = click.option(
    "--filter", "expression", default="", metavar="EXPR", help="Only rows this filter matches."
)
_FORMAT = click.option("--format", "form", type=ROW_FORMATS, default="table", show_default=True)
_MINE = click.option(
    "--mine/--all", "mine", default=True, help="Your own jobs (the default) or everyone's."
)
# Nodes and queues always list all rows; the option is accepted for scripts.
_ALWAYS_ALL = click.option("--mine/--all", "mine", default=True, hidden=True)
_TABLE_OPTIONS = {
    "jobs": (_FILTER, _MINE, _FORMAT),
    "nodes": (_FILTER, _ALWAYS_ALL, _FORMAT),
    "queues": (_FILTER, _ALWAYS_ALL, _FORMAT),
    "shares": (
        click.option(
            "--all", "mine", flag_value=False, default=True, help="All accounts, not only yours."
        ),
        _FILTER,
        _FORMAT,
    ),
}


def _table_command(spec: TableSpec) -> click.Command:
    def command(common: CommonOptions, **given: Any) -> None:
        from hpcdash.cli.jobs import run_table

        run_table(common, spec.name, **given)

    decorated = common_options(command)
    for option in reversed(_TABLE_OPTIONS.get(spec.name, (_FILTER, _FORMAT))):
        decorated = option(decorated)
    return click.command(spec.name, help=spec.summary)(decorated)


def _runs_options(since: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Options that select ended jobs; `since` says what is so without --since."""
    names = "NAME[,NAME]"
    text = f"Start of the span: 90d, 12h, yesterday, 2026-01-01; {since} by default."
    options = [
        click.option("--since", default="", metavar="TIME", help=text),
        click.option(
            "--until",
            default="",
            metavar="TIME",
            help="End of the span, a time or a whole day; now by default.",
        ),
        click.option(
            "--user", default="", metavar=names, help="Jobs of these users, instead of your own."
        ),
        click.option(
            "--account", default="", metavar=names, help="Only jobs charged to these accounts."
        ),
        click.option(
            "--queue", default="", metavar=names, help="Only jobs of these queues (partitions)."
        ),
        click.option(
            "--state",
            default="",
            metavar="STATE[,STATE]",
            help="Only jobs that ended in one of these states: failed,timeout.",
        ),
        click.option(
            "--name",
            default="",
            metavar="PATTERN",
            help="Only jobs with this name; * matches any text.",
        ),
        _FILTER,
        _MINE,
    ]

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


@click.command()
@_runs_options("7d")
@_FORMAT
@common_options
def history(common: CommonOptions, expression: str, mine: bool, form: str, **given: str) -> None:
    """Jobs that ended: within the last 7 days, or in any span of time.

    A span has the jobs that were there at any time in it and have ended since. What was asked for
    once is kept on this machine: only what is new is asked for again.
    """
    from hpcdash.cli.history import HistoryOptions, run_history
    from hpcdash.cli.jobs import run_table

    options = HistoryOptions(**given)
    if options.is_plain:
        run_table(common, "history", expression=expression, mine=mine, form=form)
    else:
        run_history(common, options, expression=expression, mine=mine, form=form)


@click.command()
@click.argument("job")
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)
@click.option(
    "--steps", is_flag=True, help="List its steps and what each used; JSON has both job and steps."
)
@click.option(
    "--sooner",
    is_flag=True,
    help="Estimate when a pending job would start: as is, with less time, on fewer nodes.",
)
@common_options
def show(common: CommonOptions, job: str, form: str, steps: bool, sooner: bool) -> None:
    """Show everything known about one job."""
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
    help="The log of run N in an allocation (hpcdash alloc).",
)
@click.option(
    "--logs", "lists_logs", is_flag=True, help="List the logs of its parts: ranks, workers (Ray)."
)
@click.option(
    "--of", metavar="NAME", help="The log of a part: its name as --logs lists it, a task or actor."
)
@common_options
def log(common: CommonOptions, **given: Any) -> None:
    """Print the last lines of a job's log, unchanged."""
    from hpcdash.cli.log import run_log

    run_log(common, **given)


@click.command()
@click.argument("job")
@common_options
def stacks(common: CommonOptions, job: str) -> None:
    """Dump the Python stacks of a running job with py-spy, on each of its nodes. The job keeps
    running.
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
    help="Instead of running a command, list processes your ended jobs left behind, and offer to "
    "end them.",
)
@click.option(
    "--timeout", metavar="TIME", default="60s", show_default=True, help="Time limit on each node."
)
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
)
@common_options
def exec_inside(common: CommonOptions, **given: Any) -> None:
    """Run a command on each node of a running job.

    It runs in the job's allocation, with its GPUs and in its cgroup where the scheduler can. Equal
    answers are printed once. Exits with 0 if it did so everywhere, else with 1.
    """
    from hpcdash.cli.inside import run_exec

    run_exec(common, **given)


@click.command()
@click.argument("job")
@click.option(
    "--once", is_flag=True, help="Take one measurement (two samples, two seconds apart) and exit."
)
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)
@common_options
def top(common: CommonOptions, **given: Any) -> None:
    """Follow what a running job uses on each node: CPU, memory, GPUs and processes, every 10 s.

    JSON has one line for each measurement. Nothing is left running once it ends.
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
    help="The node: its name, or its number in the job's list, from 0.",
)
@click.option("--outside", is_flag=True, help="On the node itself, outside the job's container.")
@common_options
def connect(common: CommonOptions, **given: Any) -> None:
    """Open a shell inside a running job, in its container, or run COMMAND there, on this terminal.

    It ends with the command's exit status. At the start of a line, ~. ends it at once. Where stdin
    or stdout is no terminal, COMMAND runs without one, and without stdin; its stdout is written
    when it has ended.
    """
    from hpcdash.cli.connect import run_connect

    run_connect(common, **given)


@click.command()
@click.argument("job", required=False, default="")
@click.option(
    "--format",
    "form",
    type=click.Choice(["chart", "json", "csv", "parquet"]),
    default="chart",
    show_default=True,
)
@click.option(
    "--metric",
    "requested",
    metavar="NAME",
    multiple=True,
    help="Only this metric; may be repeated.",
)
@click.option("--log", is_flag=True, help="Draw the chart with a logarithmic scale.")
@click.option(
    "--file",
    "file",
    metavar="PATH",
    default="",
    help="Read this file instead of the job's logs; any file without JOB.",
)
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Follow until the job ends: redraw the chart, or append to the CSV.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    callback=_file_or_stdout,
    metavar="FILE",
    help="Write to FILE instead of stdout, in the place of what was there.",
)
@common_options
def metrics(common: CommonOptions, **given: Any) -> None:
    """Read the loss and other metrics from the log of a job, or of all tasks of an array.

    Without a job, read any log or metrics file on the cluster.

    In JSON, a y that was nan or inf is null, and its x is listed under "nan" or "inf". CSV has a
    column for the step and one for each metric; nan, inf and -inf are written as such, and a cell
    is empty where a metric has no value.
    """
    from hpcdash.cli.metrics import run_metrics

    run_metrics(common, **given)


@click.command()
@click.argument("job")
@click.option("--diff", metavar="JOB", help="Compare it with another job's script.")
@click.option("--explain", is_flag=True, help="Explain each directive.")
@common_options
def script(common: CommonOptions, **given: Any) -> None:
    """Print a job's batch script, as the scheduler has it."""
    from hpcdash.cli.jobs import run_script

    run_script(common, **given)


_HISTORY_KEYS = ("since", "until", "user", "account", "queue", "state", "name")


@click.command()
@click.argument("jobs", metavar="[JOB...]", nargs=-1)
@_runs_options("7d")
@click.option(
    "--by",
    type=click.Choice(["run", "array", "name"]),
    default="run",
    show_default=True,
    help="One row per run, per array, or per user and job name.",
)
@click.option(
    "--sooner",
    is_flag=True,
    help="Estimate how much earlier your jobs would start if they asked for what they use.",
)
@_FORMAT
@common_options
def efficiency(common: CommonOptions, jobs: tuple[str, ...], **given: Any) -> None:
    """Show what ended jobs used of what they asked for, with advice.

    CPUs, memory, GPUs and time; without JOB of all that ended within a span. What a site's jobstats
    measured goes before the accounting. What nobody measured is shown as -, and is null in JSON.
    """
    from hpcdash.cli.history import HistoryOptions
    from hpcdash.cli.usage import run_efficiency

    options = HistoryOptions(**{key: given.pop(key) for key in _HISTORY_KEYS})
    run_efficiency(common, jobs, options, **given)


@click.command()
@_runs_options("30d")
@click.option(
    "--by",
    type=click.Choice(["day", "week", "queue", "user", "account", "name"]),
    default="queue",
    show_default=True,
    help="Group the table, CSV, Parquet and the chart's table by this.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["chart", "table", "json", "csv", "parquet"]),
    default="chart",
    show_default=True,
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    callback=_file_or_stdout,
    metavar="FILE",
    help="Write CSV or Parquet to FILE, in the place of what was there.",
)
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write one page of HTML to FILE.",
)
@common_options
def report(common: CommonOptions, **given: Any) -> None:
    """Report what was used: GPU and CPU hours, jobs, failures and waiting, by day, queue, user,
    account and name.

    Of jobs that have ended, and of those that still run up to now. Hours are those allocated within
    the span: a run that began before it or ended after it is cut. CPU time leaves out what was
    suspended. Days are this machine's. What was asked for once is kept here: only what is new is
    asked for again.
    """
    from hpcdash.cli.history import HistoryOptions
    from hpcdash.cli.usage import run_report

    options = HistoryOptions(**{key: given.pop(key) for key in _HISTORY_KEYS})
    run_report(common, options, **given)


LOOK_COMMANDS: tuple[click.Command, ...] = (
    *map(_table_command, (JOBS, NODES, QUEUES)),
    history,
    show,
    log,
    stacks,
    connect,
    exec_inside,
    top,
    metrics,
    script,
    efficiency,
    report,
)


def _whole_chain(command: Callable[..., None]) -> Callable[..., None]:
    text = "The whole chain: also the jobs before and after it."
    return click.option("--chain", "chain", is_flag=True, help=text)(command)


def _named_or_filtered(command: Callable[..., None]) -> Callable[..., None]:
    """JOB..., or --filter for those that match."""
    all_option = click.option(
        "--all", "everyone", is_flag=True, help="With --filter: everyone's jobs, not only yours."
    )
    text = "The jobs this filter matches, instead of JOB... (lists them and asks)."
    expression = click.option("--filter", "expression", default="", metavar="EXPR", help=text)
    return click.argument("jobs", metavar="JOB...", nargs=-1)(expression(all_option(command)))


def _acting_command(verb: str, text: str) -> click.Command:
    @click.command(verb, help=text)
    @_named_or_filtered
    @click.option(
        "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
    )
    @common_options
    def command(common: CommonOptions, **given: Any) -> None:
        from hpcdash.cli.actions import run_action

        run_action(common, verb, **given)

    return command


@click.command()
@_named_or_filtered
@_whole_chain
@click.option("--force", is_flag=True, help="Also remove jobs whose node does not answer (PBS).")
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)
@common_options
def cancel(common: CommonOptions, **given: Any) -> None:
    """Cancel running or queued jobs."""
    from hpcdash.cli.actions import run_action

    run_action(common, "cancel", **given)


def _chain_command(verb: str, text: str) -> click.Command:
    @click.command(verb, help=text)
    @_named_or_filtered
    @_whole_chain
    @click.option(
        "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
    )
    @common_options
    def command(common: CommonOptions, **given: Any) -> None:
        from hpcdash.cli.actions import run_action

        run_action(common, verb, **given)

    return command


@click.command("signal")
@click.argument("signal")
@_named_or_filtered
@click.option(
    "--to",
    "recipient",
    metavar="WHOM",
    default="",
    help="batch, full or a step number; the job steps by default.",
)
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)
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
        help="The switch file; by default from the launch, the script or an earlier --path.",
    )
    @click.option("--clear", is_flag=True, help="Remove the file; asks if it may not be a switch.")
    @click.option(
        "--status", is_flag=True, help="Only report: whether it is set, by whom, and what happened."
    )
    @click.option("--forget", is_flag=True, help="Forget the path given earlier.")
    @click.option(
        "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
    )
    @common_options
    def command(common: CommonOptions, **given: Any) -> None:
        from hpcdash.cli.switches import run_switch
        from hpcdash.domain.switches import SwitchKind

        run_switch(common, SwitchKind(kind), **given)

    return command


@click.command()
@_named_or_filtered
@click.option("--time", metavar="LIMIT", help="Time limit: 90 (minutes), 2h, 1-12:00:00.")
@click.option("--queue", metavar="NAME", help="Queue (partition).")
@click.option("--qos", metavar="NAME", help="Quality of service (Slurm only).")
@click.option(
    "--nice",
    metavar="N",
    help="Higher values wait longer; on PBS, -100 sets priority 100 (qalter -p).",
)
@click.option(
    "--throttle", metavar="N", help="Array tasks that may run at once; 0, on Slurm only, means all."
)
@click.option("--comment", metavar="TEXT", help="Comment, of running jobs too (not on PBS).")
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)
@common_options
def alter(
    common: CommonOptions,
    jobs: tuple[str, ...],
    expression: str,
    everyone: bool,
    form: str,
    **changes: str | None,
) -> None:
    """Change pending jobs, or a running job's time limit where the site allows it."""
    from hpcdash.cli.actions import run_action

    given = {key: value for key, value in changes.items() if value}
    run_action(
        common, "alter", jobs, expression=expression, everyone=everyone, changes=given, form=form
    )


@click.command()
@click.option(
    "-n",
    "newest",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="Number of actions to show.",
)
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)
@click.option(
    "--settle", "settles", is_flag=True, help="First look for submissions whose outcome is unknown."
)
@common_options
def journal(common: CommonOptions, newest: int, form: str, settles: bool) -> None:
    """List the actions taken from here and their results."""
    from hpcdash.cli.actions import run_journal

    run_journal(common, newest, form, settles=settles)


ACT_COMMANDS: tuple[click.Command, ...] = (
    cancel,
    _chain_command("hold", "Keep pending jobs from starting."),
    _chain_command("release", "Let held jobs start again."),
    _acting_command("requeue", "Stop running jobs and put them back in the queue."),
    _acting_command("suspend", "Pause running jobs (often only operators may)."),
    _acting_command("resume", "Continue suspended jobs."),
    _acting_command("delete", "Delete ended jobs from the cluster's list (Ray)."),
    signal_jobs,
    _switch_command(
        "kill", "Create the kill-switch file: the run saves and stops, queued array tasks exit."
    ),
    _switch_command(
        "save", "Create the save-switch file: the run saves and continues; it removes the file."
    ),
    alter,
    journal,
)


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("script")
@click.argument("arguments", nargs=-1, metavar="[-- SCHEDULER OPTIONS [-- ARGUMENTS]]")
@click.option("--array", metavar="TASKS", help="Submit as an array: 1-10, 0-15:4, 1-10%1.")
@click.option(
    "--after",
    metavar="JOB[,JOB]",
    help="Start after these jobs end: 12, or afterok:12, afternotok:12, after:12.",
)
@click.option("--hold", is_flag=True, help="Submit held.")
@click.option(
    "--chain",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Submit a chain of N jobs, each after the one before it ends.",
)
@click.option(
    "--in", "inside", metavar="JOB", help="Run it in this allocation of yours (hpcdash alloc)."
)
@click.option(
    "--dry-run", is_flag=True, help="Show the command and the generated script; submit nothing."
)
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)
@common_options
def submit(common: CommonOptions, *, inside: str | None, **given: Any) -> None:
    """Submit a local batch script (- for stdin) or a request (*.toml), and print the new job ID."""
    if inside is not None:
        from hpcdash.cli.alloc import run_inside

        run_inside(common, inside, **given)
        return
    from hpcdash.cli.submit import run_submit

    run_submit(common, **given)


@click.command()
@click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="Total number of GPUs.")
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of nodes; GPUs or CPUs are spread evenly.",
)
@click.option(
    "--cpus",
    type=click.IntRange(min=1),
    metavar="N",
    help="Total number of CPUs; with --gpus, CPUs per GPU.",
)
@click.option("--memory", metavar="SIZE", help="Memory of each node: 64G.")
@click.option("--time", "limit", metavar="LIMIT", help="Time limit: 90m, 4h, 1-12:00:00.")
@click.option("--queue", default="", metavar="NAME", help="Queue (partition).")
@click.option("--account", default="", metavar="NAME", help="Account to charge.")
@click.option("--name", default="", metavar="NAME", help="Name of the job.")
@click.option("--keep", is_flag=True, help="Keep the allocation after this command has ended.")
@click.option(
    "--idle-limit",
    metavar="TIME",
    help="End it after it has been idle this long (no run, GPUs at 0 %): 30m.",
)
@click.option("--hold", is_flag=True, help="Submit held.")
@click.option(
    "--list", "listing", is_flag=True, help="List your allocations and the time each has left."
)
@click.option("--runs", "job", metavar="JOB", help="List the runs in an allocation.")
@click.option(
    "--dry-run", is_flag=True, help="Show the generated script and the commands; submit nothing."
)
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)
@common_options
def alloc(common: CommonOptions, **given: Any) -> None:
    """Allocate nodes for several runs.

    The allocation is a batch job that waits for runs, and runs them one after another: hpcdash
    submit REQUEST.toml --in JOB. Without --keep it is cancelled when this command ends.
    """
    from hpcdash.cli.alloc import run_alloc

    run_alloc(common, **given)


@click.command()
@click.argument("request", metavar="REQUEST.toml")
@click.option(
    "--for",
    "scheduler",
    type=_SCHEDULERS,
    help="Scheduler of the script; the cluster's by default.",
)
@click.option(
    "--storage-root",
    metavar="DIR",
    help="Folder for launches on the cluster; from the configuration by default.",
)
@common_options
def render(common: CommonOptions, **given: Any) -> None:
    """Print the batch script of a request (- for stdin), without contacting a cluster."""
    from hpcdash.cli.render import run_render

    run_render(common, **given)


@click.command("chain")
@click.argument("job")
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)
@common_options
def show_chain(common: CommonOptions, job: str, form: str) -> None:
    """Show the chain of a job: the jobs before and after it, and when it should end."""
    from hpcdash.cli.chains import run_chain

    run_chain(common, job=job, form=form)


@click.command("stub")
@click.argument("script")
@click.option(
    "--at", metavar="PATH", help="Where jobs find the script; its current path by default."
)
def stub(script: str, at: str | None) -> None:
    """Print a stub with the same directives that runs SCRIPT at start, so SCRIPT can be edited
    until then.
    """
    from hpcdash.cli.chains import run_stub

    run_stub(script, at)


@click.command()
@click.option(
    "--account", metavar="NAME", help="The account that submits for others; yours by default."
)
@click.option(
    "--group", metavar="GROUP", help="The group it submits for; it can run anything as its members."
)
@click.option(
    "--for",
    "scheduler",
    type=_SCHEDULERS,
    help="Scheduler whose commands to allow; the cluster's by default.",
)
@click.option("--bin", "bin_folder", metavar="DIR", help="Folder of those commands: /opt/slurm/bin")
@click.option(
    "--storage-root", metavar="DIR", help="Folder of launches; from the configuration by default."
)
@click.option(
    "--env-file",
    metavar="FILE",
    help="Root-owned file with variables for these commands, such as SLURM_CONF.",
)
@click.option(
    "--program",
    is_flag=True,
    help="Print the program that creates, reads and removes launches as root.",
)
@common_options
def sudoers(common: CommonOptions, **given: Any) -> None:
    """Print sudo rules that let one account submit jobs as members of a group."""
    from hpcdash.cli.sudoers import run_sudoers

    run_sudoers(common, **given)


@click.command()
@click.option("--days", type=float, metavar="N", help="Length of the training in days.")
@click.option(
    "--every", metavar="TIME", help="Time between saves: 3h, 90m; a bare number is hours."
)
@click.option(
    "--save", metavar="TIME", help="Duration of one save: 40s, 2m; a bare number is seconds."
)
@click.option("--tb", type=float, metavar="TB", help="Size of one save in TB.")
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)
def checkpoints(**given: Any) -> None:
    """Estimate checkpoint overhead."""
    from hpcdash.cli.checkpoints import run_checkpoints

    run_checkpoints(**given)


@click.command("check-nodes")
@click.argument("where", metavar="QUEUE|NODES")
@click.option(
    "--checks", metavar="NAME[,NAME]", help="cuda, nccl, gpu-memory, disk, clock; all by default."
)
@click.option(
    "--queue",
    metavar="QUEUE",
    help="Queue for the job when nodes are given; by default one they belong to.",
)
@click.option(
    "--time",
    "limit",
    metavar="TIME",
    default="10m",
    show_default=True,
    help="Time limit of the job.",
)
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)
@common_options
def check_nodes(common: CommonOptions, **given: Any) -> None:
    """Check nodes (n01,n[03-07], or the idle ones of a queue) by a job, and show what it found."""
    from hpcdash.cli.check_nodes import run_check_nodes

    run_check_nodes(common, **given)


SUBMIT_COMMANDS: tuple[click.Command, ...] = (
    submit,
    alloc,
    render,
    check_nodes,
    show_chain,
    stub,
    sudoers,
    checkpoints,
)


@click.command()
@click.option("--once", is_flag=True, help="Run one round, for cron; state is kept for the next.")
@click.option(
    "--dry-run", is_flag=True, help="Send and write nothing; show which alerts would go to whom."
)
@click.option("--trial", is_flag=True, help="Send a test message to every recipient.")
@click.option("--every", metavar="TIME", help="Time between rounds: 10m; a bare number is minutes.")
@common_options
def watch(common: CommonOptions, **given: Any) -> None:
    """Run the watchdogs of [watch] in the foreground: check, notify, write PULSE lines.

    Each alert is sent once when it starts and once when it ends; failed deliveries are retried each
    round. --once exits with 0 whatever it finds, 1 if a round failed or an alert was not delivered,
    2 if a recipient's secret is missing, 3 if a cluster could not be reached. `hpcdash config
    example` lists every key.
    """
    from hpcdash.cli.watch import run_watch

    run_watch(common, **given)


@click.command()
@click.option(
    "--install", "action", flag_value="install", help="Write it to the cluster and submit it."
)
@click.option(
    "--remove",
    "action",
    flag_value="remove",
    help="Move it away and cancel the pending job (asks).",
)
@click.option(
    "--status", "action", flag_value="status", help="Show what is installed and when it runs next."
)
@click.option("--every", metavar="TIME", help="Time between runs: 1h (the default), 1d, 15m.")
@click.option("--folder", metavar="DIR", help="Folder on the cluster; ~/hpcdash/cron by default.")
@click.option("--watch", "watches", is_flag=True, help="Run `hpcdash watch --once` in it.")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="WORD",
    help="Scheduler option: --option=--partition=cpu",
)
@common_options
def cron(common: CommonOptions, **given: Any) -> None:
    """Print a job that replaces cron: it resubmits itself and runs every script in a folder."""
    from hpcdash.cli.watch import run_cron

    run_cron(common, **given)


WATCH_COMMANDS: tuple[click.Command, ...] = (
    watch,
    cron,
)


@click.group(cls=CommandGroup)
def share() -> None:
    """Share a pool of nodes in slices of time, by priority and quota."""


@share.command("run")
@click.argument("pool")
@click.option(
    "--once", is_flag=True, help="End once nothing is about to start or to be suspended, for cron."
)
@click.option(
    "--for",
    "limit",
    metavar="TIME",
    help="End after so long, for cron: 9m; a bare number is minutes.",
)
@common_options
def share_run(common: CommonOptions, pool: str, once: bool, limit: str | None) -> None:
    """Coordinate a pool of the configuration: start, suspend and resume its tasks until
    interrupted.

    One coordinator runs at a time, on the cluster itself. It may end at any moment: the next one
    goes on.
    """
    from hpcdash.cli.share import run_coordinator

    run_coordinator(common, pool, once=once, limit=limit)


@share.command("show")
@click.argument("pool", default="")
@click.option(
    "--filter", "expression", default="", metavar="EXPR", help="Only tasks this filter matches."
)
@_FORMAT
@common_options
def share_show(common: CommonOptions, pool: str, expression: str, form: str) -> None:
    """Show a pool: how full it is, quotas, who runs, who waits and why, who is next, who was
    interrupted.

    POOL may be left out where the configuration has one. JSON has each run's start and end.
    """
    from hpcdash.cli.share import run_show

    run_show(common, pool, expression=expression, form=form)


def _wish_command(wish: str, text: str) -> None:
    @share.command(wish, help=text)
    @click.argument("job")
    @click.option(
        "--pool", "name", default="", metavar="POOL", help="The pool, where there are several."
    )
    @common_options
    def command(common: CommonOptions, job: str, name: str, to: str | None = None) -> None:
        from hpcdash.cli.share import run_wish

        run_wish(common, wish, job, name=name, priority=to)

    if wish in ("raise", "lower"):
        command.params.append(
            click.Option(["--to"], metavar="PRIORITY", help="The next one with quota by default.")
        )


_wish_command("raise", "Raise your task's priority; asks first, and shows whom it interrupts.")
_wish_command("lower", "Lower your task's priority; asks first.")
_wish_command("suspend", "Suspend your task until it is resumed; it saves first.")
_wish_command(
    "resume", "Have your suspended task run again when it is its turn; shows whom it interrupts."
)
_wish_command("stop", "End your task for good.")


@share.command("simulate")
@click.argument("trace", metavar="TRACE")
@click.option(
    "--pool",
    "name",
    default="",
    metavar="NAME",
    help="A pool of the configuration: nodes, quotas, rules.",
)
@click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="Nodes of the pool.")
@click.option(
    "--quota",
    "quotas",
    multiple=True,
    metavar="USER:PRIORITY=N",
    help="Most nodes at once; default: the pool's, else all.",
)
@click.option(
    "--grace", type=click.FloatRange(min=0), help="Seconds to save in; default: the pool's, else 5."
)
@click.option(
    "--load",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds to resume.",
)
@click.option(
    "--format", "form", type=click.Choice(["chart", "json"]), default="chart", show_default=True
)
@common_options
def share_simulate(common: CommonOptions, **given: Any) -> None:
    """Replay a trace of tasks under the rules, beside first come, first served and nodes of each
    user's own.

    TRACE is a CSV file (- is stdin) with the columns submitted_at, user, nodes, seconds, and where
    they are known priority, save_seconds, checkpoint_seconds.
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
    help="Nodes that it is for.",
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True)
@common_options
def share_generate(common: CommonOptions, **given: Any) -> None:
    """Print a synthetic trace for `hpcdash share simulate`. The same seed gives the same trace."""
    from hpcdash.cli.share import run_generate

    run_generate(**given)


@click.group(cls=CommandGroup)
def images() -> None:
    """Manage container images on a cluster: pull, import, list, and log in to a registry."""


def _image_options(function: Callable[..., None]) -> Callable[..., None]:
    runtimes = click.Choice(["apptainer", "podman", "enroot"])
    for option in (
        click.option(
            "--store", "folder", metavar="DIR", default="", help="Absolute path of the image store."
        ),
        click.option("--runtime", type=runtimes, default="apptainer", show_default=True),
    ):
        function = option(function)
    return function


def _filling_options(function: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option(
            "--nocreate", is_flag=True, help="enroot: only the image, no container on this node."
        ),
        click.option("--force", is_flag=True, help="Replace an existing image."),
    ):
        function = option(function)
    return _image_options(function)


def _requested_images(
    runtime: str, folder: str, *, force: bool = False, nocreate: bool = False
) -> ImageRequest:
    from hpcdash.cli.images import ImageRequest
    from hpcdash.domain.request import Runtime

    return ImageRequest(Runtime(runtime), folder, force=force, create=not nocreate)


@images.command("pull")
@click.argument("image")
@_filling_options
@common_options
def images_pull(common: CommonOptions, image: str, **given: Any) -> None:
    """Pull an image from its registry: hpcdash images pull nvcr.io/nvidia/pytorch:24.05-py3"""
    from hpcdash.cli.images import run_pull

    run_pull(common, _requested_images(**given), image)


@images.command("import")
@click.argument("file")
@click.argument("reference")
@_filling_options
@common_options
def images_import(common: CommonOptions, file: str, reference: str, **given: Any) -> None:
    """Import a file on the cluster as NAME:TAG: hpcdash images import /work/torch.sif torch:2.3"""
    from hpcdash.cli.images import run_import

    run_import(common, _requested_images(**given), file, reference)


@images.command("list")
@_image_options
@common_options
def images_list(common: CommonOptions, **given: Any) -> None:
    """List the images."""
    from hpcdash.cli.images import run_list

    run_list(common, _requested_images(**given))


@images.command("login")
@click.argument("username", metavar="REGISTRY-USER", required=False)
@click.option(
    "--password-stdin", is_flag=True, help="Read the password from stdin instead of asking for it."
)
@common_options
def images_login(common: CommonOptions, username: str | None, password_stdin: bool) -> None:
    """Store a registry login on the cluster (mode 0600) for launches and `images pull`."""
    from hpcdash.cli.images import run_login

    run_login(common, username=username, password_stdin=password_stdin)


@click.group(cls=CommandGroup)
def launches() -> None:
    """List the folders that launches left on a cluster, and remove those that nothing needs."""


@launches.command("list")
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)
@common_options
def launches_list(common: CommonOptions, **given: Any) -> None:
    """List launches from here whose folders are there: job, state, size, number of files, and why
    one is kept.
    """
    from hpcdash.cli.launches import run_list

    run_list(common, **given)


@launches.command("prune")
@click.option(
    "--older-than", metavar="TIME", default="", help="Only what ended so long ago: 12h, 14d."
)
@click.option("--failed", is_flag=True, help="Also those whose job did not complete.")
@click.option("--dry-run", is_flag=True, help="List what would be removed.")
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)
@common_options
def launches_prune(common: CommonOptions, **given: Any) -> None:
    """Remove the folders of launches that completed and hold nothing but staged files and logs;
    asks first.

    Results are always kept, as is every folder that a queued job names or of whose job the end is
    not known. Links are not followed.
    """
    from hpcdash.cli.launches import run_prune

    run_prune(common, **given)


@click.command()
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    metavar="N",
    help="Port on 127.0.0.1; any free one by default.",
)
@click.option(
    "--socket",
    "socket_path",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Listen on a unix socket (mode 0600) instead.",
)
@click.option("--allow-actions", is_flag=True, help="Allow actions; read-only by default.")
@click.option(
    "--api", is_flag=True, help="Serve the HTTP API for programs instead; needs hpcdash[api]."
)
@click.option(
    "--tokens",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The API's tokens (mode 0600); api-tokens.toml beside the configuration by default.",
)
@common_options
def serve(common: CommonOptions, **given: Any) -> None:
    """Serve the dashboard to a browser at the printed link; needs hpcdash[web].

    Each link admits one browser, once, within ten minutes; press enter for a new link. An admitted
    browser stays admitted until ctrl+c ends the server. Each tab runs its own dashboard, which ends
    when the tab is closed.

    The server accepts connections from this machine only. From another machine, use ssh -L
    PORT:127.0.0.1:PORT HOST, or ssh -L 8080:PATH HOST with --socket. Other users of this machine
    can reach a port, and only the link keeps them out; they cannot open a socket.

    With --api, programs launch requests on one cluster, follow their logs and list jobs, in JSON.
    Each comes with a token; a token names the accounts that it may run as, and sees only what
    belongs to them.
    """
    from hpcdash.cli.serve import run_serve

    run_serve(common, **given)


@click.command()
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)
@common_options
def doctor(common: CommonOptions, form: str) -> None:
    """Check the setup: connection, commands, versions, clock; each problem with a next step."""
    from hpcdash.cli.doctor import run_doctor

    run_doctor(common, form)


@click.group(cls=CommandGroup, invoke_without_command=True)
@_FORMAT
@common_options
@click.pass_context
def clusters(context: click.Context, common: CommonOptions, form: str) -> None:
    """List configured clusters and schedulers found here."""
    if context.invoked_subcommand is None:
        from hpcdash.cli.clusters import run_clusters

        run_clusters(common, form)


@clusters.command("add")
@click.argument("name")
@click.option("--title", help="Display name.")
@click.option("--path", help="Folder of its commands if not on the PATH: /opt/slurm/bin")
@click.option("--user", help="Your user name there.")
@click.option("--force", is_flag=True, help="Add it even if it cannot be reached.")
@common_options
def clusters_add(common: CommonOptions, name: str, force: bool, **given: str | None) -> None:
    """Try a cluster and add it to the configuration: hpcdash clusters add juno --ssh
    me@juno.example.org
    """
    from hpcdash.cli.clusters import run_add

    run_add(common, name, {key: value for key, value in given.items() if value}, force=force)


@click.group(cls=CommandGroup)
def config() -> None:
    """Check the configuration file, or print an example."""


@config.command("check")
@common_options
def config_check(common: CommonOptions) -> None:
    """Report problems in the configuration."""
    from hpcdash.cli.clusters import run_config_check

    run_config_check(common)


@config.command("example")
def config_example() -> None:
    """Print an example configuration with every key explained."""
    from hpcdash.config.example import default_config_text

    click.echo(default_config_text(), nl=False)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.option(
    "--install", "installs", is_flag=True, help="Install it for the shell instead of printing it."
)
@click.pass_context
def completion(context: click.Context, shell: str, installs: bool) -> None:
    """Complete commands, options, job IDs, clusters, queues and filters in a shell; no cluster is
    asked.
    """
    from hpcdash.cli.completion import completion_script, install

    cli = context.find_root().command
    if not installs:
        click.echo(completion_script(cli, shell), nl=False)
        return
    file, then = install(cli, shell)
    click.echo(f"{file}\n{then}")


@click.command("help")
@click.argument("topic", default="", metavar="[TOPIC | COMMAND]")
@click.pass_context
def show_help(context: click.Context, topic: str) -> None:
    """Explain a topic (filters, keys, config, exit-status, licenses) or a command."""
    from hpcdash.cli.help import topics
    from hpcdash.errors import UsageError

    root = context.find_root()
    assert isinstance(root.command, click.Group)
    if not topic:
        click.echo(root.get_help())
    elif (text := topics().get(topic)) is not None:
        click.echo(text(), nl=False)
    elif (command := root.command.get_command(root, topic)) is not None:
        click.echo(command.get_help(click.Context(command, info_name=topic, parent=root)))
    else:
        raise UsageError(f"no topic or command {topic!r}", f"Topics: {', '.join(topics())}.")


SETUP_COMMANDS: tuple[click.Command, ...] = (doctor, clusters, config, completion, show_help)


COMMANDS = (
    *LOOK_COMMANDS,
    *map(_table_command, SITE_TABLES),
    *ACT_COMMANDS,
    *SUBMIT_COMMANDS,
    *WATCH_COMMANDS,
    share,
    serve,
    images,
    launches,
    *SETUP_COMMANDS,
)
