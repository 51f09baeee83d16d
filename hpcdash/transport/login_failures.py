"""Why a login did not come about, in plain words with a next step."""

from __future__ import annotations

import errno
import shlex
import socket

import asyncssh

from hpcdash.domain.units import format_age
from hpcdash.errors import AuthenticationFailed, ConfigError, ConnectionFailed, UnreachableError
from hpcdash.transport.ssh_client import HopClient
from hpcdash.transport.ssh_config import Hop
from hpcdash.transport.ssh_identity import GSSAPI, Identities
from hpcdash.transport.ssh_line import Line

_LONGEST_WORDS = 500


def explain_failure(
    error: Exception, hop: Hop, line: Line, client: HopClient, identities: Identities
) -> UnreachableError | ConfigError:
    """What went wrong at a hop, in plain words with a next step."""
    where = hop.label + (f" (by way of {', '.join(line.labels)})" if line.labels else "")
    seconds = client.clock.seconds
    if isinstance(error, asyncssh.PermissionDenied) or _says_too_many(error):
        tried, steps = [*identities.names, *client.tried], [*dict.fromkeys(identities.next_steps)]
        if identities.gssapi_problem and (not client.offered or GSSAPI in client.offered):
            tried.append(identities.gssapi_problem)
            steps.append(identities.gssapi_step)
        gave_up = " (given up)" if client.gave_up else ""
        if client.found_nobody:
            steps.append("Run it in a terminal, or let it log in with a key alone.")
        elif client.awaited_approval:
            steps.append("Connect again when you can approve the login on your phone or another device.")
        return AuthenticationFailed(
            f"{where} did not let us in{gave_up}. Tried: {', '.join(tried) or 'nothing it accepts'}.{_said(client)}",
            "\n".join(steps) or "Check the user name, the key (ssh-add -l) and the password, then connect again.",
        )
    if client.attended and isinstance(error, asyncssh.DisconnectError | OSError):
        took = format_age(client.clock.elapsed_seconds)
        if isinstance(error, TimeoutError) and error.errno is None:
            what = f"{where} had not let us in after {took}"
        else:
            reason = error.reason if isinstance(error, asyncssh.DisconnectError) else error.strerror or str(error)
            what = f"{where} ended the login after {took}: {reason}"
        return AuthenticationFailed(
            f"{what}.{_said(client)}",
            "Connect again when you can answer: a host waits for a password or an approval for two minutes as a rule.",
        )
    if isinstance(error, asyncssh.ChannelOpenError):
        return ConnectionFailed(
            f"The host before it could not reach {where}: {error.reason}.", "Check ProxyJump, HostName and Port."
        )
    if isinstance(error, asyncssh.DisconnectError):
        return ConnectionFailed(
            f"{where} ended the connection: {error.reason}{_proxy_message(line)}.{_said(client)}",
            f"Try it by hand: ssh {shlex.quote(hop.alias.host)}",
        )
    if isinstance(error, socket.gaierror):
        return ConnectionFailed(
            f"No address is known for {hop.host}: {error.strerror}.",
            "Check the host's name, the network and the VPN.",
        )
    if isinstance(error, TimeoutError) and error.errno is None:
        return ConnectionFailed(
            f"{where} did not answer within {seconds:g} s.", "Check the network, the VPN and the host's port."
        )
    if isinstance(error, OSError):
        if _is(error, errno.ECONNREFUSED):
            return ConnectionFailed(
                f"{where} refused the connection: nothing listens there.", "Check the host and the port."
            )
        return ConnectionFailed(
            f"{where} could not be reached: {error.strerror or error}{_proxy_message(line)}.",
            "Check the network, the VPN and ProxyCommand." if line.proxy else "Check the network and the VPN.",
        )
    return ConfigError(f"{where} cannot be connected to: {error}", "Check its entry in ~/.ssh/config.")


def _said(client: HopClient) -> str:
    """The last thing the host said, with a space before it."""
    words = " ".join(client.words.split())
    return f" It said: {words[:_LONGEST_WORDS]}" if words else ""


def _says_too_many(error: Exception) -> bool:
    """sshd's word for the last failed try: code 2 and "Too many authentication failures"."""
    return isinstance(error, asyncssh.DisconnectError) and "authentication fail" in error.reason.lower()


def _is(error: OSError, number: int) -> bool:
    """Also where asyncio tried several addresses and joined what they said into one text."""
    return error.errno == number or (error.errno is None and f"[Errno {number}]" in str(error))


def _proxy_message(line: Line) -> str:
    """What a ProxyCommand that failed said of it."""
    said = line.proxy.said() if line.proxy else ""
    return f" (ProxyCommand said: {said})" if said else ""
