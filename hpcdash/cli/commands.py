"""Every command of `hpcdash` with its options; what runs is imported when it is called."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcdash.backends import registry
from hpcdash.cli.options import ROW_FORMATS, CommonOptions, common_options

if TYPE_CHECKING:
    from hpcdash.cli.images import ImageRequest
    from hpcdash.cli.tables import Kind

_SCHEDULERS = click.Choice(registry.NAMES)


def _table_command(name: Kind, words: str) -> click.Command:
    @click.command(name, help=words)
    @click.option("--filter", "expression", default="", metavar="EXPR", help="Only rows this filter matches.")
    @click.option("--mine/--all", "mine", default=True, help="One's own (the default) or everyone's jobs.")
    @click.option("--format", "form", type=ROW_FORMATS, default="table", show_default=True)
    @common_options
    def command(common: CommonOptions, **given: Any) -> None:
        from hpcdash.cli.jobs import run_table

        run_table(common, name, **given)

    return command


@click.command()
@click.argument("job")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@common_options
def show(common: CommonOptions, job: str, form: str) -> None:
    """Everything of one job."""
    from hpcdash.cli.jobs import run_show

    run_show(common, job, form)


@click.command()
@click.argument("job")
@click.option("--err", is_flag=True, help="stderr's file.")
@click.option("-n", "lines", type=click.IntRange(min=0), default=100, show_default=True, help="How many last lines.")
@click.option("-f", "--follow", is_flag=True, help="Go on as the file grows, until interrupted.")
@click.option("--path", "path_only", is_flag=True, help="Print where the log is, and nothing else.")
@common_options
def log(common: CommonOptions, **given: Any) -> None:
    """The last lines of a job's log, as they are in the file."""
    from hpcdash.cli.log import run_log

    run_log(common, **given)


@click.command()
@click.argument("job")
@common_options
def stacks(common: CommonOptions, job: str) -> None:
    """Where the Python processes of a running job stand, on each of its nodes, by py-spy; the job goes on."""
    from hpcdash.cli.jobs import run_stacks

    run_stacks(common, job)


@click.command()
@click.argument("job", required=False, default="")
@click.option(
    "--format", "form", type=click.Choice(["chart", "json", "csv", "parquet"]), default="chart", show_default=True
)
@click.option("--metric", "wanted", metavar="NAME", multiple=True, help="Only this one; may be given again.")
@click.option("--log", is_flag=True, help="A chart with a logarithmic scale.")
@click.option(
    "--file", "file", metavar="PATH", default="", help="This file of the job, in place of its logs; without JOB any."
)
@click.option("-f", "--follow", is_flag=True, help="Until the job ends: a chart is drawn anew, CSV grows.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write there, not to stdout.")
@common_options
def metrics(common: CommonOptions, **given: Any) -> None:
    """The loss and other metrics of a job, or of an array's tasks joined, read from its log.

    A log or metrics file of no job, on the machine where the cluster's commands run: hpcdash metrics --file train.log

    In JSON a y that was nan or inf is null, and the x of each stands under "nan" and "inf". CSV has a column for the
    step and one a metric; there they are nan, inf and -inf, and empty where a metric has no value at a step.
    """
    from hpcdash.cli.metrics import run_metrics

    run_metrics(common, **given)


@click.command()
@click.argument("job")
@click.option("--diff", metavar="JOB", help="How it differs from another job's script.")
@click.option("--explain", is_flag=True, help="Beside each directive, what it asks for.")
@common_options
def script(common: CommonOptions, **given: Any) -> None:
    """The batch script of a job, as the scheduler has it."""
    from hpcdash.cli.jobs import run_script

    run_script(common, **given)


LOOK_COMMANDS: tuple[click.Command, ...] = (
    _table_command("jobs", "Jobs in the queue."),
    _table_command("nodes", "Nodes, what they have, and why some are drained. Always all of them."),
    _table_command("queues", "Queues (partitions), their limits and what is free. Always all of them."),
    _table_command("history", "Jobs that ended within the last 7 days."),
    show,
    log,
    stacks,
    metrics,
    script,
)


def _whole_chain(command: Callable[..., None]) -> Callable[..., None]:
    """--chain, which was called --train."""
    words = "All of the chain: what runs before and after it too."
    old = click.option("--train", "chain", flag_value=True, default=False, type=bool, hidden=True)
    return click.option("--chain", "chain", flag_value=True, default=False, type=bool, help=words)(old(command))


def _named_or_filtered(command: Callable[..., None]) -> Callable[..., None]:
    """JOB..., or --filter for those that match."""
    of_all = click.option("--all", "everyone", is_flag=True, help="With --filter: everyone's jobs, not only your own.")
    words = "The jobs this filter matches, instead of JOB... (lists them and asks)."
    expression = click.option("--filter", "expression", default="", metavar="EXPR", help=words)
    return click.argument("jobs", metavar="JOB...", nargs=-1)(expression(of_all(command)))


def _acting_command(verb: str, words: str) -> click.Command:
    @click.command(verb, help=words)
    @_named_or_filtered
    @click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
    @common_options
    def command(common: CommonOptions, **given: Any) -> None:
        from hpcdash.cli.actions import run_action

        run_action(common, verb, **given)

    return command


@click.command()
@_named_or_filtered
@_whole_chain
@click.option("--force", is_flag=True, help="Remove jobs whose node does not answer too (PBS).")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@common_options
def cancel(common: CommonOptions, **given: Any) -> None:
    """End jobs, or take them from the queue: hpcdash cancel 41 88_[3-5]"""
    from hpcdash.cli.actions import run_action

    run_action(common, "cancel", **given)


def _chain_command(verb: str, words: str) -> click.Command:
    @click.command(verb, help=words)
    @_named_or_filtered
    @_whole_chain
    @click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
    @common_options
    def command(common: CommonOptions, **given: Any) -> None:
        from hpcdash.cli.actions import run_action

        run_action(common, verb, **given)

    return command


@click.command("signal")
@click.argument("signal")
@_named_or_filtered
@click.option("--to", "recipient", metavar="WHOM", default="", help="batch, full, or a step's number; else the steps.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@common_options
def signal_jobs(common: CommonOptions, **given: Any) -> None:
    """Send a signal to running jobs: hpcdash signal USR1 41 --to batch"""
    from hpcdash.cli.actions import run_action

    run_action(common, "signal", **given)


def _switch_command(kind: str, words: str) -> click.Command:
    @click.command(f"{kind}-switch", help=words)
    @click.argument("jobs", metavar="JOB...", nargs=-1, required=True)
    @click.option("--path", default="", metavar="FILE", help="The file; else as launched, scripted or named before.")
    @click.option("--clear", is_flag=True, help="Remove it; what may be no switch is asked about.")
    @click.option("--status", is_flag=True, help="Only look: whether it is there, who made it, what came of it.")
    @click.option("--forget", is_flag=True, help="Forget the path that was named for it before.")
    @click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
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
@click.option("--nice", metavar="N", help="Higher waits longer; on PBS -100 is its priority 100 (qalter -p).")
@click.option("--throttle", metavar="N", help="How many tasks of an array may run at once; 0: all (not on PBS).")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@common_options
def alter(
    common: CommonOptions,
    jobs: tuple[str, ...],
    expression: str,
    everyone: bool,
    form: str,
    **changes: str | None,
) -> None:
    """Change waiting jobs (a running one's time limit, where the site allows it)."""
    from hpcdash.cli.actions import run_action

    given = {key: value for key, value in changes.items() if value}
    run_action(common, "alter", jobs, expression=expression, everyone=everyone, changes=given, form=form)


@click.command()
@click.option("-n", "newest", type=click.IntRange(min=1), default=50, show_default=True, help="How many actions.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--settle", "settles", is_flag=True, help="Look first for submissions whose outcome is unknown.")
@common_options
def journal(common: CommonOptions, newest: int, form: str, settles: bool) -> None:
    """What was done from here, and how it ended."""
    from hpcdash.cli.actions import run_journal

    run_journal(common, newest, form, settles=settles)


ACT_COMMANDS: tuple[click.Command, ...] = (
    cancel,
    _chain_command("hold", "Keep waiting jobs from starting."),
    _chain_command("release", "Let held jobs start again."),
    _acting_command("requeue", "End running jobs and put them back into the queue."),
    _acting_command("suspend", "Stop running jobs where they are (often for operators alone)."),
    _acting_command("resume", "Let suspended jobs go on."),
    signal_jobs,
    _switch_command("kill", "Create the kill-switch file: the run saves and stops, queued array tasks exit."),
    _switch_command("save", "Create the save-switch file: the run saves and continues; it removes the file."),
    alter,
    journal,
)


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("script")
@click.argument("arguments", nargs=-1, metavar="[-- SCHEDULER OPTIONS [-- ARGUMENTS]]")
@click.option("--array", metavar="TASKS", help="As an array: 1-10, 0-15:4, 1-10%1.")
@click.option("--after", metavar="JOB[,JOB]", help="Start after these jobs end (afterany).")
@click.option("--hold", is_flag=True, help="Submit held.")
@click.option("--chain", type=click.IntRange(min=1), default=1, metavar="N", help="N jobs, one after the other's end.")
@click.option("--dry-run", is_flag=True, help="Show the command, and a request's script; nothing is submitted.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@common_options
def submit(common: CommonOptions, **given: Any) -> None:
    """Submit a batch script of this machine (- is stdin) or a request (*.toml) and print the new job's number."""
    from hpcdash.cli.submit import run_submit

    run_submit(common, **given)


@click.command()
@click.argument("request", metavar="REQUEST.toml")
@click.option("--for", "scheduler", type=_SCHEDULERS, help="Whose script; the cluster's own when left out.")
@click.option("--storage-root", metavar="DIR", help="Where the cluster keeps launches; else the configuration's.")
@common_options
def render(common: CommonOptions, **given: Any) -> None:
    """Print the batch script of a request (- is stdin); nothing is submitted and no cluster is asked."""
    from hpcdash.cli.render import run_render

    run_render(common, **given)


@click.command("chain")
@click.argument("job")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@common_options
def chain_of(common: CommonOptions, job: str, form: str) -> None:
    """The chain a job belongs to: those before and after it, and when it would end."""
    from hpcdash.cli.chains import run_chain

    run_chain(common, job=job, form=form)


@click.command("stub")
@click.argument("script")
@click.option("--at", metavar="PATH", help="Where jobs will find the script; by default where it is.")
def stub(script: str, at: str | None) -> None:
    """Print a script with the same directives that reads SCRIPT when it starts, so that it can be edited until then."""
    from hpcdash.cli.chains import run_stub

    run_stub(script, at)


@click.command()
@click.option("--account", metavar="NAME", help="Who submits for others; who one is when left out.")
@click.option("--group", metavar="GROUP", help="Whose members it submits for, and can then run anything as.")
@click.option("--for", "scheduler", type=_SCHEDULERS, help="Whose commands; the cluster's own when left out.")
@click.option("--bin", "bin_folder", metavar="DIR", help="Where they are: /opt/slurm/bin")
@click.option("--storage-root", metavar="DIR", help="Where launches are; else the configuration's.")
@click.option("--env-file", metavar="FILE", help="Root's file of variables for these commands, such as SLURM_CONF.")
@click.option("--program", is_flag=True, help="Print root's program, which makes, reads and removes launches.")
@common_options
def sudoers(common: CommonOptions, **given: Any) -> None:
    """Print sudo rules with which one account submits jobs as the members of a group."""
    from hpcdash.cli.sudoers import run_sudoers

    run_sudoers(common, **given)


@click.command()
@click.option("--days", type=float, metavar="N", help="How long the training takes.")
@click.option("--every", metavar="TIME", help="From one save to the next: 3h, 90m; a number is hours.")
@click.option("--save", metavar="TIME", help="How long one save takes: 40s, 2m; a number is seconds.")
@click.option("--tb", type=float, metavar="TB", help="How much one save writes, in TB.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
def checkpoints(**given: Any) -> None:
    """What saving checkpoints costs: hpcdash checkpoints --days 90 --every 3h --save 40s --tb 2.3"""
    from hpcdash.cli.checkpoints import run_checkpoints

    run_checkpoints(**given)


SUBMIT_COMMANDS: tuple[click.Command, ...] = (
    submit,
    render,
    chain_of,
    stub,
    sudoers,
    checkpoints,
)


@click.command()
@click.option("--once", is_flag=True, help="One round, for cron; what is known is kept for the next.")
@click.option("--dry-run", is_flag=True, help="Tell nobody and write nothing; say who would be told what.")
@click.option("--trial", is_flag=True, help="Send a message that nothing is wrong to all who would be told.")
@click.option("--every", metavar="TIME", help="From one round to the next: 10m; a number is minutes.")
@common_options
def watch(common: CommonOptions, **given: Any) -> None:
    """The watchdogs of the configuration's [watch], in the foreground: looks, tells, writes PULSE lines.

    Each trouble is told once, and once that it is over; whoever could not be reached is tried again each round. --once
    ends with 0 whatever it finds, with 1 where a round could not be done or kept or an alert was not delivered to
    someone, with 2 where a secret that telling someone needs is missing, with 3 where a cluster could not be asked.
    `hpcdash config example` has every key.
    """
    from hpcdash.cli.watch import run_watch

    run_watch(common, **given)


@click.command()
@click.option("--install", "deed", flag_value="install", help="Write it to the cluster, and submit it.")
@click.option("--remove", "deed", flag_value="remove", help="Move it away, cancel the one that waits (asks).")
@click.option("--status", "deed", flag_value="status", help="What is there, and when it runs next.")
@click.option("--every", metavar="TIME", help="From one run to the next: 1h (the default), 1d, 15m.")
@click.option("--folder", metavar="DIR", help="Where on the cluster; hpcdash/cron in the home by default.")
@click.option("--watch", "watches", is_flag=True, help="Have it run `hpcdash watch --once`.")
@click.option("--option", "options", multiple=True, metavar="WORD", help="Of the scheduler: --option=--partition=cpu")
@common_options
def cron(common: CommonOptions, **given: Any) -> None:
    """Cron where there is none: a job that submits itself again and runs every script of a folder. Prints it."""
    from hpcdash.cli.watch import run_cron

    run_cron(common, **given)


WATCH_COMMANDS: tuple[click.Command, ...] = (
    watch,
    cron,
)


@click.group()
def images() -> None:
    """Container images on a cluster: fetch, take in from a file, list, and the login of their registry."""


def _image_options(function: Callable[..., None]) -> Callable[..., None]:
    runtimes = click.Choice(["apptainer", "podman", "enroot"])
    for option in (
        click.option("--store", "folder", metavar="DIR", default="", help="Where images are there, from the root."),
        click.option("--runtime", type=runtimes, default="apptainer", show_default=True),
    ):
        function = option(function)
    return function


def _filling_options(function: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--nocreate", is_flag=True, help="enroot: the image alone, no container of it on this node."),
        click.option("--force", is_flag=True, help="Also where it is there already."),
    ):
        function = option(function)
    return _image_options(function)


def _wanted_images(runtime: str, folder: str, *, force: bool = False, nocreate: bool = False) -> ImageRequest:
    from hpcdash.cli.images import ImageRequest
    from hpcdash.domain.request import Runtime

    return ImageRequest(Runtime(runtime), folder, force=force, create=not nocreate)


@images.command("pull")
@click.argument("image")
@_filling_options
@common_options
def images_pull(common: CommonOptions, image: str, **given: Any) -> None:
    """Fetch an image from its registry: hpcdash images pull nvcr.io/nvidia/pytorch:24.05-py3"""
    from hpcdash.cli.images import run_pull

    run_pull(common, _wanted_images(**given), image)


@images.command("import")
@click.argument("file")
@click.argument("reference")
@_filling_options
@common_options
def images_import(common: CommonOptions, file: str, reference: str, **given: Any) -> None:
    """Take in a file of the cluster's as NAME:TAG: hpcdash images import /work/torch.sif torch:2.3"""
    from hpcdash.cli.images import run_import

    run_import(common, _wanted_images(**given), file, reference)


@images.command("list")
@_image_options
@common_options
def images_list(common: CommonOptions, **given: Any) -> None:
    """What is there."""
    from hpcdash.cli.images import run_list

    run_list(common, _wanted_images(**given))


@images.command("login")
@click.argument("username", metavar="REGISTRY-USER", required=False)
@click.option("--password-stdin", is_flag=True, help="Read the password from stdin instead of asking for it.")
@common_options
def images_login(common: CommonOptions, username: str | None, password_stdin: bool) -> None:
    """Keep a registry's login on the cluster, mode 0600, for launches and for `images pull`."""
    from hpcdash.cli.images import run_login

    run_login(common, username=username, password_stdin=password_stdin)


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="This port of 127.0.0.1; else any free one.")
@click.option(
    "--socket",
    "socket_path",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="A unix socket, mode 0600, instead.",
)
@click.option("--allow-actions", is_flag=True, help="With the keys that change something; else it is read-only.")
@common_options
def serve(common: CommonOptions, **given: Any) -> None:
    """The dashboard in a browser, by a link that is printed; needs hpcdash[web].

    Each link lets one browser in, once, within ten minutes; enter prints a new one. A browser that is in stays in until
    this ends with ctrl+c. Each tab has a dashboard of its own, which ends as the tab is closed.

    It is reached from this machine alone. From another one: ssh -L PORT:127.0.0.1:PORT HOST, with --socket
    ssh -L 8080:PATH HOST. Other users of this machine reach a port too, and only the link keeps them out; a
    socket is closed to them.
    """
    from hpcdash.cli.serve import run_serve

    run_serve(common, **given)


@click.command()
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@common_options
def doctor(common: CommonOptions, form: str) -> None:
    """Can it work here? Connection, commands, versions, clock; each with a next step."""
    from hpcdash.cli.doctor import run_doctor

    run_doctor(common, form)


@click.group(invoke_without_command=True)
@click.option("--format", "form", type=ROW_FORMATS, default="table", show_default=True)
@common_options
@click.pass_context
def clusters(context: click.Context, common: CommonOptions, form: str) -> None:
    """What is configured, and what was found here."""
    if context.invoked_subcommand is None:
        from hpcdash.cli.clusters import run_clusters

        run_clusters(common, form)


@clusters.command("add")
@click.argument("name")
@click.option("--title", help="How it is shown.")
@click.option("--path", help="Where its commands are, when not on the PATH: /opt/slurm/bin")
@click.option("--user", help="Whose jobs are mine there.")
@click.option("--force", is_flag=True, help="Write it even where it cannot be reached.")
@common_options
def clusters_add(common: CommonOptions, name: str, force: bool, **given: str | None) -> None:
    """Try a cluster, and write it into the configuration: hpcdash clusters add juno --ssh me@juno.example.org"""
    from hpcdash.cli.clusters import run_add

    run_add(common, name, {key: value for key, value in given.items() if value}, force=force)


@click.group()
def config() -> None:
    """The configuration file."""


@config.command("check")
@common_options
def config_check(common: CommonOptions) -> None:
    """Read the configuration and say what is wrong with it."""
    from hpcdash.cli.clusters import run_config_check

    run_config_check(common)


@config.command("example")
def config_example() -> None:
    """Print a configuration with every key explained."""
    from hpcdash.config.example import default_config_text

    click.echo(default_config_text(), nl=False)


SETUP_COMMANDS: tuple[click.Command, ...] = (
    doctor,
    clusters,
    config,
)


# What `hpcdash chain` was called.
_OLD_CHAIN = copy(chain_of)
_OLD_CHAIN.name, _OLD_CHAIN.hidden = "train", True
COMMANDS = (
    *LOOK_COMMANDS,
    *ACT_COMMANDS,
    *SUBMIT_COMMANDS,
    _OLD_CHAIN,
    *WATCH_COMMANDS,
    serve,
    images,
    *SETUP_COMMANDS,
)
