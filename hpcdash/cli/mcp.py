"""`hpcdash mcp`: tools for an assistant, over stdin and stdout."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import click
from msgspec.structs import replace

from hpcdash.assembly import chosen_clusters
from hpcdash.cli.actions import refuse_read_only
from hpcdash.cli.ending import ends_silently, run_async
from hpcdash.cli.options import CommonOptions
from hpcdash.config.problems import did_you_mean
from hpcdash.config.read import load_settings
from hpcdash.errors import UsageError


def run_mcp(
    common: CommonOptions, *, allow: str, allow_unattended: bool, print_config: bool
) -> None:
    """Serve one assistant until it closes stdin, or print the configuration for assistants."""
    if find_spec("mcp") is None:
        raise UsageError("hpcdash mcp needs mcp", "Install it: pip install 'hpcdash[mcp]'")
    from hpcdash.cli.assistant.plans import ALLOWED_VERBS

    names = [name.strip() for name in allow.split(",") if name.strip()]
    if unknown := [name for name in names if name not in ALLOWED_VERBS]:
        raise UsageError(
            f"--allow: {unknown[0]!r} is not an action{did_you_mean(unknown[0], ALLOWED_VERBS)}",
            f"One or more of: {','.join(ALLOWED_VERBS)}",
        )
    if allow_unattended and not names:
        raise UsageError("--allow-unattended requires --allow", "Name the actions: --allow cancel")
    settings = load_settings(common.config)
    if names:
        refuse_read_only(common, settings, "--allow", "Remove --allow, or allow actions.")
    chosen_clusters(common, settings)
    if print_config:
        _print_config(common, allow, allow_unattended=allow_unattended)
        return
    if sys.stdin.isatty():
        raise UsageError(
            "hpcdash mcp is started by an assistant, not in a terminal",
            "hpcdash mcp --print-config prints what the assistant needs.",
        )
    if not names:
        common = replace(common, read_only=True)
    # Without a terminal, nothing can be asked on that of the assistant.
    with suppress(PermissionError):
        os.setsid()
    from hpcdash.cli.assistant.server import AssistantServer

    program = click.get_current_context().find_root().command

    async def serve() -> None:
        verbs = [verb for verb in ALLOWED_VERBS if verb in names]
        server = AssistantServer(
            program, common, settings, verbs, allow_unattended=allow_unattended
        )
        await server.serve()

    with ends_silently():
        run_async(serve())


def _print_config(common: CommonOptions, allow: str, *, allow_unattended: bool) -> None:
    program = Path(sys.argv[0])
    if program.name == "hpcdash" and os.access(program, os.X_OK):
        argv = [str(program.absolute())]
    else:
        # With -P, the current folder cannot replace the package.
        argv = [sys.executable, "-P", "-m", "hpcdash"]
    if common.config is not None:
        common = replace(common, config=common.config.absolute())
    argv += [*common.cluster_argv(), *(["--read-only"] if common.read_only else []), "mcp"]
    argv += [f"--allow={allow}"] if allow else []
    argv += ["--allow-unattended"] if allow_unattended else []
    server = {"command": argv[0], "args": argv[1:]}
    entries = {
        "Claude Desktop (claude_desktop_config.json), Claude Code (.mcp.json), "
        "Cursor (~/.cursor/mcp.json)": {"mcpServers": {"hpcdash": server}},
        "VS Code (.vscode/mcp.json)": {"servers": {"hpcdash": {"type": "stdio", **server}}},
    }
    for client, entry in entries.items():
        print(f"{client}:", file=sys.stderr)
        print(json.dumps(entry, indent=2), flush=True)
