"""`hpcdash broker`: the process that owns the ssh connections of all windows."""

from __future__ import annotations

import asyncio
import time

from hpcdash.assembly import broker_keep_seconds
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.terminal import print_json, print_notes
from hpcdash.config.read import load_settings
from hpcdash.domain.rfc3339 import format_utc
from hpcdash.domain.text import counted, visible
from hpcdash.domain.units import format_age
from hpcdash.transport.broker import inquire, start_broker
from hpcdash.transport.broker_frames import ConnectionState, State


def run_start(common: CommonOptions) -> None:
    """Start the broker of this environment unless it runs."""
    settings = load_settings(common.config)
    asyncio.run(start_broker(broker_keep_seconds(settings)))
    run_status("table")
    if not settings.connection.broker:
        print_notes("nothing uses it: set broker = true in [connection]")


def run_status(form: str) -> None:
    """Print the broker's connections and clients, as text or JSON."""
    state = asyncio.run(inquire())
    if form == "json":
        print_json({"broker": None if state is None else _answer(state)})
    elif state is None:
        print("no broker is running")
    else:
        print("\n".join(format_state(state)))


def run_stop() -> None:
    """End the broker, with its connections. Raises HpcdashError where it does not end."""
    state = asyncio.run(inquire(stop=True))
    if state is None:
        print("no broker is running")
        return
    print(f"stopped the broker (pid {state.pid})")
    clients = sum(len(connection.clients) for connection in state.connections)
    if clients:
        print(f"{counted(clients, 'client')} will start it again if no login is needed")


def format_state(state: State) -> list[str]:
    now = time.time()
    keeps = f"ends {format_age(state.keep_seconds)} after its last client"
    if not state.keep_seconds:
        keeps = "ends with its last client"
    lines = [f"broker (pid {state.pid}), up {format_age(now - state.started_at)}, {keeps}"]
    for one in state.connections:
        since = "" if one.connected_at is None else f" {format_age(now - one.connected_at)}"
        detail = f": {visible(one.detail)}" if one.detail else ""
        lines.append(
            f"{visible(one.name)}  {one.state}{since}{detail}, {counted(one.sent, 'command')}, "
            f"{counted(one.shared, 'shared answer')}"
        )
        lines += [
            f"  {client.pid}  {visible(client.command)}{', read-only' * client.is_read_only}"
            for client in one.clients
        ]
    return lines


def _answer(state: State) -> dict[str, object]:
    return {
        "pid": state.pid,
        "started_at": format_utc(state.started_at),
        "keep_seconds": state.keep_seconds,
        "connections": [_connection(one) for one in state.connections],
    }


def _connection(one: ConnectionState) -> dict[str, object]:
    return {
        "name": one.name,
        "state": one.state,
        "connected_at": None if one.connected_at is None else format_utc(one.connected_at),
        "commands": one.sent,
        "shared_answers": one.shared,
        "clients": [
            {"pid": client.pid, "command": client.command, "read_only": client.is_read_only}
            for client in one.clients
        ],
    }
