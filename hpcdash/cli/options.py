"""The options every command takes, before or after its name. Knows no cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from hpcdash.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])
# How a command prints rows.
ROW_FORMATS = click.Choice(["table", "json", "csv"])


@dataclass(frozen=True, slots=True)
class CommonOptions:
    """Which cluster and how; None and False where the person said nothing."""

    cluster: str | None = None
    ssh: str | None = None
    local: bool = False
    backend: str | None = None
    config: Path | None = None
    yes: bool = False
    read_only: bool = False
    debug: bool = False

    def over(self, earlier: CommonOptions) -> CommonOptions:
        """These options, and those given earlier on the line where these say nothing."""
        said = {field.name: getattr(self, field.name) for field in fields(self) if getattr(self, field.name)}
        return replace(earlier, **said)

    def check(self) -> None:
        """Raises UsageError where two options contradict each other."""
        chosen = [
            name for name, value in (("--cluster", self.cluster), ("--ssh", self.ssh), ("--local", self.local)) if value
        ]
        if len(chosen) > 1:
            raise UsageError(f"{' and '.join(chosen)} cannot be used together", "One of them says which cluster it is.")


def common_options(function: F) -> F:
    """Adds the common options to a click command; its function takes them as one CommonOptions, `common`."""
    options = [
        click.option("--cluster", metavar="NAME", help="A cluster of the configuration."),
        click.option("--ssh", metavar="[USER@]HOST[:PORT]", help="A login node, or its Host in ~/.ssh/config."),
        click.option("--local", is_flag=True, help="This machine's own scheduler."),
        click.option(
            "--backend",
            type=click.Choice(["slurm", "pbs", "local"]),
            help="The scheduler; found by itself when left out.",
        ),
        click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="Another configuration."),
        click.option("--yes", is_flag=True, help="Ask no question."),
        click.option("--read-only", is_flag=True, help="Take every key away that changes something."),
        click.option("--debug", is_flag=True, help="Write tracebacks to the log file."),
    ]

    @click.pass_context
    def wrapper(context: click.Context, /, **given: Any) -> Any:
        own = CommonOptions(**{field.name: given.pop(field.name) for field in fields(CommonOptions)})
        common = own.over(context.obj) if isinstance(context.obj, CommonOptions) else own
        common.check()
        context.obj = common
        return context.invoke(function, common=common, **given)

    wrapper.__name__ = function.__name__
    wrapper.__doc__ = function.__doc__
    wrapper.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    decorated: Any = wrapper
    for option in reversed(options):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]
