"""The commands that act on jobs, with their options, and the list of what was done. Runs nothing itself."""

from __future__ import annotations

from typing import Any

import click

from hpcdash.cli.options import CommonOptions, common_options


def _acting_command(verb: str, words: str) -> click.Command:
    @click.command(verb, help=words)
    @click.argument("jobs", metavar="JOB...", nargs=-1, required=True)
    @click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
    @common_options
    def command(common: CommonOptions, jobs: tuple[str, ...], form: str) -> None:
        from hpcdash.cli.acting import run_action

        run_action(common, verb, jobs, form=form)

    return command


@click.command()
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True)
@click.option("--train", is_flag=True, help="All of the train: what runs before and after it too.")
@click.option("--force", is_flag=True, help="Remove jobs whose node does not answer too (PBS).")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@common_options
def cancel(common: CommonOptions, jobs: tuple[str, ...], train: bool, force: bool, form: str) -> None:
    """End jobs, or take them from the queue: hpcdash cancel 41 88_[3-5]"""
    from hpcdash.cli.acting import run_action

    run_action(common, "cancel", jobs, train=train, force=force, form=form)


def _train_command(verb: str, words: str) -> click.Command:
    @click.command(verb, help=words)
    @click.argument("jobs", metavar="JOB...", nargs=-1, required=True)
    @click.option("--train", is_flag=True, help="All of the train: what runs before and after it too.")
    @click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
    @common_options
    def command(common: CommonOptions, jobs: tuple[str, ...], train: bool, form: str) -> None:
        from hpcdash.cli.acting import run_action

        run_action(common, verb, jobs, train=train, form=form)

    return command


@click.command("signal")
@click.argument("signal")
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True)
@click.option("--to", "recipient", metavar="WHOM", default="", help="batch, full, or a step's number; else the steps.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@common_options
def signal_jobs(common: CommonOptions, signal: str, jobs: tuple[str, ...], recipient: str, form: str) -> None:
    """Send a signal to running jobs: hpcdash signal USR1 41 --to batch"""
    from hpcdash.cli.acting import run_action

    run_action(common, "signal", jobs, signal=signal, recipient=recipient, form=form)


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
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True)
@click.option("--time", metavar="LIMIT", help="Time limit: 90 (minutes), 2h, 1-12:00:00.")
@click.option("--queue", metavar="NAME", help="Queue (partition).")
@click.option("--qos", metavar="NAME", help="Quality of service (Slurm only).")
@click.option("--nice", metavar="N", help="Higher waits longer; on PBS -100 is its priority 100 (qalter -p).")
@click.option("--throttle", metavar="N", help="How many tasks of an array may run at once; 0: all (not on PBS).")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@common_options
def alter(common: CommonOptions, jobs: tuple[str, ...], form: str, **changes: str | None) -> None:
    """Change waiting jobs (a running one's time limit, where the site allows it)."""
    from hpcdash.cli.acting import run_action

    run_action(common, "alter", jobs, changes={key: value for key, value in changes.items() if value}, form=form)


@click.command()
@click.option("-n", "newest", type=click.IntRange(min=1), default=50, show_default=True, help="How many actions.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--settle", "settles", is_flag=True, help="Look first for submissions whose outcome is unknown.")
@common_options
def journal(common: CommonOptions, newest: int, form: str, settles: bool) -> None:
    """What was done from here, and how it ended."""
    from hpcdash.cli.journal import run_journal

    run_journal(common, newest, form, settles=settles)


COMMANDS: tuple[click.Command, ...] = (
    cancel,
    _train_command("hold", "Keep waiting jobs from starting."),
    _train_command("release", "Let held jobs start again."),
    _acting_command("requeue", "End running jobs and put them back into the queue."),
    _acting_command("suspend", "Stop running jobs where they are (often for operators alone)."),
    _acting_command("resume", "Let suspended jobs go on."),
    signal_jobs,
    _switch_command("kill", "Make the file that has a training save and end, and its queued array tasks end at once."),
    _switch_command("save", "Make the file that has a training save and go on; the program removes it."),
    alter,
    journal,
)
