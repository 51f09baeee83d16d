"""A cluster's `path` goes before the PATH, on this machine and on a login node."""

import tempfile
from pathlib import Path

from hpcdash.transport.local import LocalTransport
from hpcdash.transport.ssh import SshTransport
from tests.support.person import Person
from tests.support.sshd import Sshd


def make_program(folder: Path, words: str) -> None:
    folder.chmod(0o755)
    program = folder / "hpcdash-path-probe"
    program.write_text(f"#!/bin/sh\necho {words}\n")
    program.chmod(0o755)


async def test_a_local_program_is_found_in_the_configured_path(tmp_path: Path) -> None:
    make_program(tmp_path, "from the configured path")
    transport = LocalTransport(path=str(tmp_path))

    completed = await transport.run(("env", "LC_ALL=C", "hpcdash-path-probe"))
    async with transport.stream(("hpcdash-path-probe",)) as stream:
        streamed = b"".join([chunk async for chunk in stream])

    assert completed.stdout == b"from the configured path\n"
    assert completed.status == 0
    assert (await LocalTransport().run(("env", "hpcdash-path-probe"))).status == 127
    # The program to start is looked up in the configured path as well.
    assert streamed == b"from the configured path\n"


async def test_a_login_node_looks_in_the_configured_path_first(sshd: Sshd, user: str, tmp_path: Path) -> None:
    # The one who logs in may not enter pytest's own folders.
    with tempfile.TemporaryDirectory(prefix="with a 'quote ") as folder:
        make_program(Path(folder), "from there")
        config = tmp_path / "config"
        config.write_text(f"Host *\n  IdentityFile {sshd.key}\n  IdentitiesOnly yes\n")
        known_hosts = tmp_path / "known_hosts"
        known_hosts.write_text(f"[127.0.0.1]:{sshd.port} {sshd.host_key_line}\n")
        destination = f"{user}@127.0.0.1:{sshd.port}"
        transport = SshTransport(destination, Person(), config_path=config, known_hosts=known_hosts, path=folder)
        try:
            found = await transport.run(("env", "hpcdash-path-probe"))
            own = await transport.run(("sh", "-c", "echo $PATH"))
        finally:
            await transport.close()

    assert found.stdout == b"from there\n"
    # What was on the PATH stays on it.
    assert own.stdout.decode().startswith(f"{folder}:/")
