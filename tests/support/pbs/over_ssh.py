"""A login node that is reached over a real sshd, whose PBS is the stand-ins."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.pbs.cluster import StandIns
from tests.support.sshd import Sshd, login_user, why_no_sshd

HOST = "login1"
_SSH_CONFIG = """\
Host {host}
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {key}
  IdentitiesOnly yes
  UserKnownHostsFile {known_hosts}
  StrictHostKeyChecking yes
"""


@dataclass(frozen=True, slots=True)
class PbsCluster:
    """A running login node; `stand_ins.play(scene)` changes what its PBS says."""

    stand_ins: StandIns
    ssh_config: str


def why_no_cluster() -> str | None:
    """Why there can be none here, or None."""
    if reason := why_no_sshd():
        return reason
    return None if login_user("bash") else "no user with bash as login shell"


@contextmanager
def pbs_over_ssh(scene: str = "everyday") -> Iterator[PbsCluster]:
    """Start one; at the end nothing of it is left."""
    user = login_user("bash")
    assert user is not None
    # pytest's own folders are closed to the users who log in.
    folder = Path(tempfile.mkdtemp(prefix="hpcdash-pbs-"))
    folder.chmod(0o755)
    try:
        stand_ins = StandIns.install(folder / "pbs", scene)
        server = Sshd(folder / "sshd")
        server.start(f"SetEnv PATH={stand_ins.path}:/usr/local/bin:/usr/bin:/bin\n")
        known_hosts = folder / "known_hosts"
        known_hosts.write_text(f"[127.0.0.1]:{server.port} {server.host_key_line}\n")
        try:
            config = _SSH_CONFIG.format(
                host=HOST, port=server.port, user=user, key=server.key, known_hosts=known_hosts
            )
            yield PbsCluster(stand_ins, config)
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
