"""Which lines of known_hosts speak of a host."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path

import pytest

from hpcdash.transport.known_hosts import KnownKeys, fingerprint, known_keys, name_in_file, remember
from tests.support.records import for_each

KEY_A, KEY_B = b"\0\0\0\x0bssh-ed25519-a", b"\0\0\0\x0bssh-ed25519-b"
A, B = (f"ssh-ed25519 {base64.b64encode(key).decode()}" for key in (KEY_A, KEY_B))


def looked_up(folder: Path, text: str, host: str, port: int = 22) -> KnownKeys:
    path = folder / "known_hosts"
    path.write_text(text)
    return known_keys([folder / "missing", path], host, port)


@for_each(
    ("names", "host", "port", "known"),
    [
        ("login.site", "login.site", 22, True),
        ("login.site", "LOGIN.site", 22, True),
        ("login.site", "login.site.evil", 22, False),
        ("other,login.site", "login.site", 22, True),
        ("*.site", "login.site", 22, True),
        ("login?.site", "login1.site", 22, True),
        ("*.site,!login.site", "login.site", 22, False),
        ("!login.site,*.site", "login.site", 22, False),
        ("[login.site]:2222", "login.site", 2222, True),
        ("[login.site]:2222", "login.site", 22, False),
        ("[login.site]:2222", "l", 2222, False),
        ("[*.site]:2222", "login.site", 2222, True),
    ],
)
def test_a_name_pattern_speaks_of_a_host(
    tmp_path: Path, names: str, host: str, port: int, known: bool
) -> None:
    assert bool(looked_up(tmp_path, f"{names} {A}\n", host, port).host_keys) is known


def test_the_line_of_an_entry_is_known(tmp_path: Path) -> None:
    found = looked_up(
        tmp_path, f"# comment\n\nnot an entry\nhost {A} who@where\nhost ssh-rsa !!!\n", "host"
    )
    (key,) = found.host_keys
    assert (key.where, key.blob) == (f"{tmp_path}/known_hosts:4", KEY_A)


def test_a_name_without_port_stands_for_another_port_only_where_that_is_unknown(
    tmp_path: Path,
) -> None:
    both = f"host {A}\n[host]:2222 {B}\n"
    assert [key.blob for key in looked_up(tmp_path, both, "host", 2222).host_keys] == [KEY_B]
    fallback = looked_up(tmp_path, f"host {A}\n", "host", 2222)
    assert ([key.blob for key in fallback.host_keys], fallback.exact) == ([KEY_A], False)


def test_a_revoked_key_is_in_no_other_list(tmp_path: Path) -> None:
    found = looked_up(
        tmp_path, f"host {A}\nhost {B}\n@revoked * {A}\n@cert-authority *.x,host {A}\n", "host"
    )
    assert [key.blob for key in found.host_keys] == [KEY_B]
    assert [key.blob for key in found.revoked] == [KEY_A]
    assert found.authorities == ()


def test_names_hashed_by_ssh_keygen_are_found(tmp_path: Path) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed")
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True
    )
    public = " ".join((tmp_path / "key.pub").read_text().split()[:2])
    path = tmp_path / "known_hosts"
    path.write_text(f"[login.site]:2222 {public}\n")
    subprocess.run(["ssh-keygen", "-Hf", str(path)], check=True, capture_output=True)
    assert path.read_text().startswith("|1|")
    assert known_keys([path], "login.site", 2222).host_keys
    assert not known_keys([path], "login.site", 2223).host_keys
    listed = subprocess.run(
        ["ssh-keygen", "-lf", str(tmp_path / "key.pub")], check=True, capture_output=True, text=True
    )
    assert fingerprint(base64.b64decode(public.split()[1])) == listed.stdout.split()[1]


def test_what_is_remembered_is_known_and_joins_no_other_line(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(f"old {A}")
    remember(path, host="New", port=2222, key_type="ssh-ed25519", blob=KEY_B)
    assert path.read_text() == f"old {A}\n[new]:2222 {B}\n"
    assert [key.blob for key in known_keys([path], "new", 2222).host_keys] == [KEY_B]


def test_a_host_on_the_usual_port_is_named_without_it() -> None:
    assert (name_in_file("Host"), name_in_file("host", 2222)) == ("host", "[host]:2222")
