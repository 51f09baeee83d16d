"""The commands on the configuration and on whether it works here, with their options. Runs nothing itself."""

from __future__ import annotations

import click

from hpcdash.cli.options import ROW_FORMATS, CommonOptions, common_options


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
    from hpcdash.config import default_config_text

    click.echo(default_config_text(), nl=False)


COMMANDS: tuple[click.Command, ...] = (
    doctor,
    clusters,
    config,
)
