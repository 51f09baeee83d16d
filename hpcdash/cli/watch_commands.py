"""The commands that keep an eye on jobs unattended, with their options. Runs nothing itself."""

from __future__ import annotations

from typing import Any

import click

from hpcdash.cli.options import CommonOptions, common_options


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
    from hpcdash.cli.cron import run_cron

    run_cron(common, **given)


COMMANDS: tuple[click.Command, ...] = (
    watch,
    cron,
)
