"""Output of `--help` and `hpcdash help`: commands in groups, examples of each, and topics."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from importlib import resources

import click

from hpcdash.domain.tables import SITE_TABLES

GROUPS = {
    "Look": ("jobs", "show", "log", "metrics", "script", "nodes", "queues", "chain"),
    "Usage": ("history", "efficiency", "report", *(spec.name for spec in SITE_TABLES), "storage"),
    "Files": ("files", "get", "put", "sync"),
    "Act": (
        "cancel",
        "hold",
        "release",
        "requeue",
        "suspend",
        "resume",
        "signal",
        "alter",
        "move",
        "kill-switch",
        "save-switch",
        "delete",
        "journal",
    ),
    "Submit": (
        "where",
        "submit",
        "render",
        "stub",
        "alloc",
        "share",
        "images",
        "launches",
        "check-nodes",
        "checkpoints",
    ),
    "Inside a running job": ("connect", "forward", "exec", "top", "stacks"),
    "Watch": ("watch", "cron"),
    "Set up": (
        "doctor",
        "clusters",
        "broker",
        "config",
        "completion",
        "sudoers",
        "serve",
        "mcp",
        "demo",
        "replay",
        "help",
        "agent-help",
    ),
}
EXAMPLES = {
    "agent-help": ("agent-help",),
    **{spec.name: (spec.name,) for spec in SITE_TABLES},
    "jobs": ("jobs --all --filter 'queue:gpu state:pending'", "jobs --format json"),
    "show": ("show 4711", "show 4711 --steps", "show 4711 --sooner"),
    "log": ("log 4711 -f", "log 88_3 --err -n 500"),
    "metrics": (
        "metrics 4711 -f",
        "metrics 88 --metric loss --format csv --out loss.csv",
        "metrics --file train.log",
    ),
    "script": ("script 88_3 --explain",),
    "nodes": ("nodes --filter 'state:idle gpus>=4'",),
    "queues": ("queues --format json",),
    "chain": ("chain 4711",),
    "history": (
        "history --since 90d --state failed,timeout",
        "history --since 2026-01-01 --user ada --format csv",
    ),
    "efficiency": (
        "efficiency 4711 88",
        "efficiency --since 30d --by name --sooner",
    ),
    "report": ("report --all --since 30d --html usage.html",),
    "shares": ("shares --all",),
    "cancel": ("cancel 41 '88_[3-5]'", "cancel --filter 'name:sweep state:pending'"),
    "hold": ("hold 41 42",),
    "release": ("release 41 42",),
    "requeue": ("requeue '88_[3-5]'",),
    "suspend": ("suspend 41",),
    "resume": ("resume 41",),
    "signal": ("signal USR1 41 --to batch",),
    "alter": ("alter 4711 --time 1-12:00:00",),
    "move": ("move 4711 --queue long", "move 4711 --to lab2 --queue gpu --dry-run"),
    "delete": ("delete 4711", "delete --filter state:failed"),
    "kill-switch": ("kill-switch 4711", "kill-switch 4711 --status", "kill-switch 4711 --clear"),
    "save-switch": ("save-switch 4711",),
    "journal": ("journal",),
    "submit": (
        "submit train.sh --array 1-10%1 --after 4711 -- --partition=gpu",
        "submit request.toml --chain 4 --dry-run",
        "submit --template jupyter --set time=1:00:00",
    ),
    "render": ("render request.toml --for pbs",),
    "storage": ("storage", "storage /scratch/alice /project/lab"),
    "files": ("files 4711", "files 4711 checkpoints --filter checkpoint:broken"),
    "get": ("get 4711 out/metrics.csv", "get 4711 checkpoints/step-00000100 --to runs"),
    "put": ("put 4711 config.yaml", "put 4711 data/ --to inputs"),
    "sync": ("sync 4711 out --to runs/4711",),
    "where": (
        "where --gpus 4 --gpu-mem 40G --time 2d",
        "where train.sh",
        "where --like 4711 --all",
    ),
    "stub": ("stub train.sh | hpcdash submit -",),
    "alloc": ("alloc --gpus 8 --time 4h --keep",),
    "share": (
        "share run lab",
        "share show",
        "share raise 4711",
    ),
    "launches": ("launches list", "launches prune --older-than 14d"),
    "images": ("images pull nvcr.io/nvidia/pytorch:24.05-py3", "images list"),
    "check-nodes": ("check-nodes gpu", "check-nodes n01,n[03-07]"),
    "checkpoints": ("checkpoints --days 90 --every 3h --save 40s --tb 2.3",),
    "forward": ("forward 4711 8888 --open", "forward 4711 8888:9000", "forward --list"),
    "connect": ("connect 4711", "connect 4711 --node 1 -- nvidia-smi"),
    "exec": (
        "exec 4711 -- nvidia-smi",
        "exec 4711 --each-gpu -- df -h /dev/shm",
        "exec 4711 --leftovers",
    ),
    "top": ("top 4711", "top 4711 --once --format json"),
    "stacks": ("stacks 4711",),
    "watch": ("watch", "watch --once"),
    "cron": ("cron --install --watch --every 15m", "cron --status"),
    "doctor": ("doctor", "doctor --cluster juno"),
    "clusters": ("clusters", "clusters add juno --ssh me@login.example.org"),
    "broker": ("broker status", "broker stop"),
    "config": ("config example > ~/.config/hpcdash/config.toml", "config check"),
    "completion": ("completion bash --install",),
    "sudoers": ("sudoers --account launcher --group hpcusers --storage-root /work",),
    "serve": ("serve", "serve --socket ~/hpcdash.sock", "serve --api"),
    "mcp": ("mcp --print-config", "mcp --allow submit,cancel"),
    "replay": ("replay",),
    "help": ("help filters", "help keys", "help submit"),
}
EXIT_STATUS = """\
0  done
1  refused by the scheduler, or not found; the scheduler's message is on stderr
2  wrong usage or configuration, with the file, line and key
3  the cluster could not be reached; stderr shows what was tried and what to do
"""
FILTERS = """\
All words and conditions in a filter must match. `or` and parentheses work.

  word                   in the name, ID, user or queue
  !word                  not in the row
  state:failed,timeout   one of these values
  state!:failed          none of them
  gpus>=4  limit>2h      numbers, with their usual units
  memory_bytes>16G
  name~^exp              a regular expression
  user:me                your own
  name:"two words"       quotes keep spaces and commas
"""


class CommandGroup(click.Group):
    """Group that lists its commands with complete summaries."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.write_section(ctx, formatter, "Commands", self.list_commands(ctx))

    def write_section(
        self, ctx: click.Context, formatter: click.HelpFormatter, heading: str, names: Iterable[str]
    ) -> None:
        found = [
            (name, command)
            for name in names
            if (command := self.get_command(ctx, name)) and not command.hidden
        ]
        with formatter.section(heading):
            formatter.write_dl(
                [(name, command.get_short_help_str(limit=1000)) for name, command in found]
            )


class Commands(CommandGroup):
    """All commands, listed in groups; the help of each ends with examples."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        super().add_command(cmd, name)
        examples = EXAMPLES.get(name or cmd.name or "", ())
        shown = "\n".join(f"  hpcdash {line}" for line in examples)
        common = "Options of hpcdash itself (--cluster, --ssh, --yes ...): see hpcdash --help"
        cmd.epilog = f"\b\nExamples:\n{shown}\n{common}" if examples else common

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, names in GROUPS.items():
            self.write_section(ctx, formatter, heading, names)


def topics() -> dict[str, Callable[[], str]]:
    """Return the functions that build the texts of `hpcdash help TOPIC`."""
    return {
        "filters": _filters,
        "keys": _keys,
        "config": _config,
        "exit-status": lambda: EXIT_STATUS,
        "licenses": _licenses,
        "agents": agent_help,
    }


def agent_help() -> str:
    """Return the page for assistants that use hpcdash through a shell."""
    from hpcdash.domain.tables import JOBS, NODES, PLACES, QUEUES

    text = resources.files("hpcdash.cli").joinpath("agent_help.txt").read_text("utf-8")
    for key, spec in (("jobs", JOBS), ("nodes", NODES), ("queues", QUEUES), ("places", PLACES)):
        names = " ".join(name for name in spec.fields if not name.startswith("_"))
        text += textwrap.fill(f"{key}: {names}", 100, initial_indent="  ", subsequent_indent="    ")
        text += "\n"
    return f"{text}\nExit status\n{textwrap.indent(EXIT_STATUS, '  ')}"


def _filters() -> str:
    from hpcdash.domain import schema
    from hpcdash.domain.query import filter_keys

    keys = " ".join(sorted(filter_keys(schema.JOBS)))
    columns = textwrap.fill(keys, 79, initial_indent="  ", subsequent_indent="  ")
    return f"{FILTERS}\nKeys of jobs:\n{columns}\n"


def _keys() -> str:
    from hpcdash.ui.actions import ACTIONS, key_sign

    return "".join(
        f"{key_sign(action.key):14} {action.name:20} {action.text}\n" for action in ACTIONS
    )


def _config() -> str:
    from hpcdash.config.document import example_text

    return example_text()


def _licenses() -> str:
    from hpcdash.cli.licenses import licenses

    return licenses()
