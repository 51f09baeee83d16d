"""The options that every command takes, before or after its name, and checks of all arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource
from msgspec.structs import asdict, replace

from hpcdash.backends import registry
from hpcdash.config.destination import ClusterChoice
from hpcdash.domain.job_ids import BadJobId, named_ids
from hpcdash.errors import UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])
# No filter leaves nothing out, and a job's script may be given empty arguments.
_MAY_BE_EMPTY = ("--filter", "arguments")


class CommonOptions(ClusterChoice, frozen=True):
    """Options that every command takes; None and False by default."""

    yes: bool = False
    debug: bool = False

    def over(self, earlier: CommonOptions) -> CommonOptions:
        """Return these options, completed by those given earlier on the line."""
        given = {name: value for name, value in asdict(self).items() if value}
        return replace(earlier, **given)

    def cluster_argv(self) -> list[str]:
        """Return the options of another hpcdash for the same cluster and configuration."""
        values = {
            "--cluster": self.cluster,
            "--ssh": self.ssh,
            # A URL has its scheduler's own option, which chooses the backend.
            f"--{self.backend}" if self.url else "--backend": self.url or self.backend,
            "--config": self.config,
        }
        flags = {"--local": self.local, "--no-broker": self.no_broker}
        argv = [f"{name}={value}" for name, value in values.items() if value]
        return argv + [name for name, is_set in flags.items() if is_set]

    def check(self) -> None:
        """Raise UsageError if two options contradict each other."""
        choices = {"--cluster": self.cluster, "--ssh": self.ssh, "--local": self.local}
        chosen = [name for name, value in choices.items() if value]
        if self.url and (self.cluster or self.local):
            raise UsageError(f"{chosen[0]} cannot be used with a URL", "Use only one of them.")
        if len(chosen) > 1:
            raise UsageError(
                f"{' and '.join(chosen)} cannot be used together", "Use only one of them."
            )


class _CommonOption(click.Option):
    """Option that only `hpcdash --help` describes."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        return super().get_help_record(ctx) if ctx.parent is None else None


_option = partial(click.option, cls=_CommonOption)
_OPTIONS = (
    _option("--cluster", metavar="NAME", help="Cluster from the configuration."),
    _option(
        "--ssh",
        metavar="[USER@]HOST[:PORT]",
        help="Login node, or a Host in ~/.ssh/config.",
    ),
    _option("--local", is_flag=True, help="This machine's scheduler."),
    *(
        _option(f"--{name}", metavar="URL", help=f"URL of a {name.capitalize()} dashboard.")
        for name in registry.OVER_HTTP
    ),
    _option(
        "--backend",
        type=click.Choice([*registry.NAMES, "local"]),
        metavar="NAME",
        help=f"{', '.join(registry.NAMES)} or local [default: detected]",
    ),
    _option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Configuration file.",
    ),
    _option("--yes", is_flag=True, help="Skip confirmations."),
    _option("--read-only", is_flag=True, help="Refuse every action that changes something."),
    _option("--no-broker", is_flag=True, help="Connect by itself, not through the broker."),
    _option("--debug", is_flag=True, help="Write tracebacks to the log file."),
)


def common_options(function: F) -> F:
    """Add the common options to a click command, whose function gets them as `common`."""

    @click.pass_context
    def wrapper(context: click.Context, /, **given: Any) -> Any:
        for name in registry.OVER_HTTP:
            given["url"] = given.pop(name) or given.get("url")
            if given["url"] and given["backend"] not in (None, name):
                raise UsageError(
                    f"--{name} and --backend {given['backend']} cannot be used together"
                )
            given["backend"] = name if given["url"] else given["backend"]
        names = [name for name in CommonOptions.__struct_fields__ if name != "program"]
        own = CommonOptions(program=_program(context), **{name: given.pop(name) for name in names})
        common = own.over(context.obj) if isinstance(context.obj, CommonOptions) else own
        common.check()
        common = on_named_cluster(common, given)
        context.obj = common
        return context.invoke(function, common=common, **given)

    wrapper.__name__ = function.__name__
    wrapper.__doc__ = function.__doc__
    wrapper.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    decorated: Any = wrapper
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def on_named_cluster(common: CommonOptions, given: dict[str, Any]) -> CommonOptions:
    """Choose the configured cluster that the jobs of a command name as in 15@NAME, whose IDs are
    then plain.
    """
    several = given.get("jobs")
    job_ids = several or [given.get("job") or ""]
    if common.ssh or common.local or common.url or not any("@" in job_id for job_id in job_ids):
        return common
    from hpcdash.assembly import split_cluster
    from hpcdash.config.read import load_settings

    configured = load_settings(common.config).clusters.values()
    # With --cluster, any other name is one of its site's.
    clusters = [one for one in configured if common.cluster in (None, one.name)]
    plain, names = zip(*(split_cluster(job_id, clusters) for job_id in job_ids), strict=True)
    if common.cluster is None:
        if len({*names}) > 1:
            raise UsageError(
                "these jobs are on different clusters", "Run the command once for each cluster."
            )
        common = replace(common, cluster=names[0] or None)
    given.update({"jobs": plain} if several else {"job": plain[0]})
    return common


def _program(context: click.Context) -> str:
    """Return how a person calls a command, without its arguments: hpcdash clusters add."""
    parts = []
    while context.parent is not None:
        parts.append(context.info_name or "")
        context = context.parent
    return " ".join(["hpcdash", *reversed(parts)])


Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def check_arguments(command: click.Command, complete: Complete) -> None:
    """Have a command and its subcommands raise UsageError for each empty option or argument.

    `--ssh "$HOST"` without a HOST would be this machine, and `--after "$JOB"` would not wait.
    `complete` returns the completions for a shell.
    """
    for parameter in command.params:
        if isinstance(parameter.type, click.types.StringParamType | click.Path):
            parameter.type = _CheckedType(
                parameter.type, complete, may_be_empty=bool({*parameter.opts} & {*_MAY_BE_EMPTY})
            )
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            check_arguments(subcommand, complete)


class _CheckedType(click.ParamType):  # type: ignore[type-arg]
    """Type of text that a shell can complete, and that may only be empty by default.

    `may_be_empty` allows any empty text.
    """

    def __init__(
        self,
        base: click.types.StringParamType | click.Path,
        complete: Complete,
        *,
        may_be_empty: bool,
    ) -> None:
        self._base = base
        self._complete = complete
        self._may_be_empty = may_be_empty
        self.name = base.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        assert ctx is not None
        assert param is not None
        is_default = ctx.get_parameter_source(param.name or "") is ParameterSource.DEFAULT
        if (
            isinstance(value, str)
            and not value.strip()
            and not is_default
            and not self._may_be_empty
        ):
            name = param.opts[0] if isinstance(param, click.Option) else param.human_readable_name
            raise UsageError(
                f"{name} is empty",
                "Is a shell variable unset? Give the option a value, or omit it.",
            )
        return self._base.convert(value, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return self._complete(ctx, param, incomplete) or self._base.shell_complete(
            ctx, param, incomplete
        )


def named_jobs(parts: Sequence[str]) -> tuple[str, ...]:
    """Return the IDs in arguments, each once. Raises UsageError."""
    try:
        return tuple(dict.fromkeys(job_id for part in parts for job_id in named_ids(part)))
    except BadJobId as error:
        raise UsageError(str(error)) from None
