"""Who shares a connection."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hpcdash.errors import ConfigError
from hpcdash.transport.local import LocalTransport
from hpcdash.transport.pool import ConnectionPool


def local_transport(destination: str, path: str) -> LocalTransport:
    return LocalTransport(destination, path=path)


def test_two_clusters_behind_one_host_share_a_transport() -> None:
    pool = ConnectionPool({"local": local_transport, "other": local_transport})
    first = pool.transport("local", "here")
    assert pool.transport("local", "here") is first
    assert pool.transport("local", "there") is not first
    assert pool.transport("local", "here", "/opt/slurm/bin") is not first
    assert pool.transport("other", "here") is not first


def test_a_kind_that_is_unknown_is_named() -> None:
    with pytest.raises(ConfigError, match="telnet"):
        ConnectionPool({}).transport("telnet", "here")


def test_importing_the_transports_imports_no_asyncssh() -> None:
    modules = (
        "hpcdash.transport.ssh, hpcdash.transport.openssh, hpcdash.transport.local, "
        "hpcdash.transport.pool"
    )
    code = f"import sys, {modules}; sys.exit('asyncssh' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
