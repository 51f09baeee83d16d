"""The commands that only look at a cluster and its jobs, with their options. Runs nothing itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcdash.cli.options import ROW_FORMATS, CommonOptions, common_options

if TYPE_CHECKING:
    # Arrow comes with it, and a command that needs none starts without.
    from hpcdash.cli.kinds import Kind


def _table_command(name: Kind, words: str) -> click.Command:
    @click.command(name, help=words)
    @click.option("--filter", "expression", default="", metavar="EXPR", help="Only rows this filter matches.")
    @click.option("--mine/--all", "mine", default=True, help="One's own (the default) or everyone's jobs.")
    @click.option("--format", "form", type=ROW_FORMATS, default="table", show_default=True)
    @common_options
    def command(common: CommonOptions, **given: Any) -> None:
        from hpcdash.cli.oneshot import run_table

        run_table(common, name, **given)

    return command


@click.command()
@click.argument("job")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@common_options
def show(common: CommonOptions, job: str, form: str) -> None:
    """Everything of one job."""
    from hpcdash.cli.oneshot import run_show

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
    from hpcdash.cli.stacks import run_stacks

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
    from hpcdash.cli.script import run_script

    run_script(common, **given)


COMMANDS: tuple[click.Command, ...] = (
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
