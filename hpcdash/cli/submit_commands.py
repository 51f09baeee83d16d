"""The commands that prepare and hand in jobs, with their options, and show a train of them. Runs nothing itself."""

from __future__ import annotations

from typing import Any

import click

from hpcdash.cli.options import CommonOptions, common_options

_SCHEDULERS = click.Choice(["slurm", "pbs"])


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("script")
@click.argument("arguments", nargs=-1, metavar="[-- SCHEDULER OPTIONS [-- ARGUMENTS]]")
@click.option("--array", metavar="TASKS", help="As an array: 1-10, 0-15:4, 1-10%1.")
@click.option("--after", metavar="JOB[,JOB]", help="Not before these ended, however they end.")
@click.option("--hold", is_flag=True, help="Not before it is released.")
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


@click.command("train")
@click.argument("job")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@common_options
def train_of(common: CommonOptions, job: str, form: str) -> None:
    """The train a job belongs to: those before and after it, and when it would end."""
    from hpcdash.cli.train import run_train

    run_train(common, job=job, form=form)


@click.command("stub")
@click.argument("script")
@click.option("--at", metavar="PATH", help="Where jobs will find the script; by default where it is.")
def stub(script: str, at: str | None) -> None:
    """Print a script with the same directives that reads SCRIPT when it starts, so that it can be edited until then."""
    from hpcdash.cli.train import run_stub

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


COMMANDS: tuple[click.Command, ...] = (
    submit,
    render,
    train_of,
    stub,
    sudoers,
    checkpoints,
)
