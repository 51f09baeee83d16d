"""Shell completion of job IDs, clusters, queues and filters.

The values come from the configuration and from earlier runs.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from hpcdash.assembly import chosen_clusters, snapshot_cache
from hpcdash.cli.help import topics
from hpcdash.cli.options import CommonOptions
from hpcdash.config.read import load_settings
from hpcdash.domain.query import completions
from hpcdash.domain.schema import SCHEMAS
from hpcdash.domain.states import UNLISTED
from hpcdash.domain.tables import JOBS, TABLES, Kind
from hpcdash.domain.text import visible
from hpcdash.errors import HpcdashError, UsageError
from hpcdash.private_files import atomic_write, make_folder
from hpcdash.shell_files import shell_text

_VARIABLE = "_HPCDASH_COMPLETE"
_JOBS = frozenset(("job", "jobs", "after", "inside"))
_MAX_JOBS = 200
# A shell inserts it as it is: what another user named must be no command there.
_HARMLESS = re.compile(r"[A-Za-z0-9_.,:@%+=<>~^/-]+")


def complete(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the completions of an argument or an option's value.

    Queries no cluster; unreadable files complete to nothing.
    """
    try:
        found = _find_completions(context, parameter.name or "", incomplete)
    except HpcdashError:
        return []
    return [
        item
        for item in found
        if item.value.startswith(incomplete) and _HARMLESS.fullmatch(item.value)
    ]


def _find_completions(context: click.Context, name: str, incomplete: str) -> list[CompletionItem]:
    common = _read_common(context)
    settings = load_settings(common.config)
    if name in ("cluster", "target"):
        return [CompletionItem(cluster) for cluster in settings.clusters]
    if name == "topic":
        cli = context.find_root().command
        return [
            CompletionItem(topic) for topic in (*topics(), *sorted(getattr(cli, "commands", ())))
        ]
    if name not in _JOBS | {"queue", "where", "expression"}:
        return []
    cache = snapshot_cache(chosen_clusters(common, settings)[0])
    if name in ("queue", "where"):
        kinds = (Kind.QUEUES,) if name == "queue" else (Kind.QUEUES, Kind.NODES)
        rows: list[dict[str, Any]] = []
        for kind in kinds:
            if (snapshot := cache.load(kind)) is not None:
                rows += snapshot.table.to_pylist()
        return [CompletionItem(row["name"]) for row in rows if row.get("_standing") not in UNLISTED]
    if name == "expression":
        kind = TABLES.get(context.info_name or "", JOBS).kind()
        known = cache.load(kind)
        return [
            CompletionItem(text)
            for text in completions(incomplete, SCHEMAS[kind], known and known.table)
        ]
    before, comma, _ = incomplete.rpartition(",")
    items = []
    for kind in (Kind.MINE, Kind.HISTORY):
        if (snapshot := cache.load(kind)) is None:
            continue
        newest = snapshot.table.select(["id", "name", "state"]).slice(0, _MAX_JOBS)
        for row in newest.to_pylist():
            text = visible(f"{row['name']} {row['state']}")
            items.append(CompletionItem(f"{before}{comma}{row['id']}", help=text))
    return items


def _read_common(context: click.Context) -> CommonOptions:
    """Return the common options so far on the line, before or after the command."""
    common = CommonOptions()
    current: click.Context | None = context
    while current is not None:
        given = {name: current.params.get(name) for name in CommonOptions.__struct_fields__}
        known = {name: value for name, value in given.items() if value is not None}
        common = common.over(CommonOptions(**known))
        current = current.parent
    return common


def completion_script(cli: click.Command, shell: str) -> str:
    """Return the script that a shell reads to complete `hpcdash`."""
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(cli, {}, "hpcdash", _VARIABLE).source() + "\n"
    if shell != "bash":
        return script
    own = 'COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD'
    assert own in script
    script = script.replace(
        "    response=$(", f"{shell_text('cli/completion_words.sh')}    response=$("
    )
    script = script.replace(own, 'COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1))')
    return script.replace("COMPREPLY+=($value)", 'COMPREPLY+=("${value#"$before"}")')


def install(cli: click.Command, shell: str) -> tuple[Path, str]:
    """Write the completion where the shell reads it; return the file, and the remaining steps.

    Raises UsageError if it cannot be written.
    """
    home = Path.home()
    share = Path(os.environ.get("XDG_DATA_HOME") or home / ".local/share")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    file, next_steps = {
        "bash": (
            share / "bash-completion/completions/hpcdash",
            "Active in new shells if the package bash-completion is installed.",
        ),
        "zsh": (
            home / ".zfunc/_hpcdash",
            "Active in new shells once ~/.zshrc has: fpath=(~/.zfunc $fpath); autoload -Uz "
            "compinit; compinit",
        ),
        "fish": (config / "fish/completions/hpcdash.fish", "Takes effect in new shells."),
    }[shell]
    try:
        make_folder(file.parent)
        atomic_write(file, completion_script(cli, shell).encode())
    except OSError as error:
        raise UsageError(
            f"{file}: {error.strerror}", f"hpcdash completion {shell} prints it."
        ) from error
    return file, next_steps
