"""Which hosts ~/.ssh/config leads through."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpcdash.errors import ConfigError
from hpcdash.transport.ssh_config import Destination, Hop, hops_to, named_hosts, parse_destination
from tests.support.records import for_each


def hops(folder: Path, config: str, destination: str) -> tuple[Hop, ...]:
    (folder / "config").write_text(config)
    return hops_to(destination, folder / "config")


def labels(folder: Path, config: str, destination: str) -> list[str]:
    return [hop.label for hop in hops(folder, config, destination)]


@for_each(
    ("text", "meant"),
    [
        ("host", Destination("host")),
        ("user@host", Destination("host", "user")),
        ("user@host:2222", Destination("host", "user", 2222)),
        ("first@last@host", Destination("host", "first@last")),
        ("[::1]:2222", Destination("::1", None, 2222)),
        ("user@fe80::1", Destination("fe80::1", "user")),
        ("ssh://user@host:22/", Destination("host", "user", 22)),
    ],
)
def test_a_destination_is_read_as_ssh_reads_it(text: str, meant: Destination) -> None:
    assert parse_destination(text) == meant


@for_each("text", ["", "@host", "host:port", "user@", "-oProxyCommand=x"])
def test_what_is_no_destination_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_destination(text)


def test_an_alias_is_resolved(tmp_path: Path) -> None:
    config = "Host hpc\n HostName login.site\n Port 2222\n User ann\n"
    assert labels(tmp_path, config, "hpc") == ["ann@login.site:2222"]
    assert labels(tmp_path, config, "bob@hpc:22") == ["bob@login.site"]


def test_jumps_are_followed_through_aliases_that_jump_themselves(tmp_path: Path) -> None:
    config = (
        "Host target\n ProxyJump c,u@d:9\n"
        "Host c\n HostName c.site\n ProxyJump b\n"
        "Host b\n ProxyJump a\n"
        "Host d\n ProxyJump elsewhere\n"
        "Host *\n User me\n"
    )
    assert labels(tmp_path, config, "target") == ["me@a", "me@b", "me@c.site", "u@d:9", "me@target"]


def test_a_jump_for_all_hosts_is_not_made_through_itself(tmp_path: Path) -> None:
    config = "Host *\n User me\n ProxyJump gate\n"
    assert labels(tmp_path, config, "hpc") == ["me@gate", "me@hpc"]
    assert labels(tmp_path, config, "gate") == ["me@gate"]


def test_jumps_in_a_circle_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ProxyJump is circular"):
        hops(tmp_path, "Host a\n ProxyJump b\nHost b\n ProxyJump a\n", "a")


def test_the_first_of_proxy_jump_and_proxy_command_wins(tmp_path: Path) -> None:
    (alone,) = hops(
        tmp_path, "Host x\n User u\n ProxyCommand nc %h %p\nHost *\n ProxyJump gate\n", "x"
    )
    assert alone.proxy_command == "nc x 22"
    both = hops(
        tmp_path, "Host x\n ProxyJump gate\nHost *\n ProxyCommand nc %h %p\nHost gate\n", "x"
    )
    assert both[-1].proxy_command is None
    (none,) = hops(tmp_path, "Host x\n ProxyJump none\nHost *\n ProxyJump gate\n", "x")
    assert none.proxy_command is None


def test_match_and_include_are_honoured(tmp_path: Path) -> None:
    (tmp_path / "more").write_text("Host hpc\n Port 2200\n")
    config = f"Include {tmp_path}/more\nMatch originalhost hpc user ann\n HostName for-ann\n"
    assert labels(tmp_path, config, "ann@hpc") == ["ann@for-ann:2200"]


def test_host_key_options_are_read(tmp_path: Path) -> None:
    config = (
        "Host hpc\n HostName login.site\n Port 2222\n HostKeyAlias the-cluster\n "
        "StrictHostKeyChecking accept-new\n"
        f" UserKnownHostsFile {tmp_path}/%n ~/b\n GlobalKnownHostsFile none\n"
    )
    (hop,) = hops(tmp_path, config, "hpc")
    assert hop.name_in_known_hosts == "the-cluster"
    assert hop.strict == "accept-new"
    assert hop.user_known_hosts == (tmp_path / "hpc", Path("~/b").expanduser())
    assert hop.global_known_hosts == ()
    (plain,) = hops(tmp_path, "", "login.site:2222")
    assert plain.strict == "ask"
    assert plain.name_in_known_hosts == "[login.site]:2222"
    assert plain.user_known_hosts[0] == Path("~/.ssh/known_hosts").expanduser()


def test_key_files_that_are_not_there_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "id").write_text("")
    config = (
        f"Host *\n IdentityFile {tmp_path}/gone\n IdentityFile {tmp_path}/id\n IdentitiesOnly yes\n"
    )
    (hop,) = hops(tmp_path, config, "hpc")
    assert hop.identity_files == (tmp_path / "id",)
    assert hop.identities_only


def test_an_unreadable_line_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 2"):
        hops(tmp_path, "Host hpc\n Port many\n", "hpc")


# The hosts that a configuration names.


def test_named_hosts_are_read_from_every_file_and_block_without_running_anything(
    tmp_path: Path,
) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "site").write_text(
        f"Host inner\n HostName 10.0.0.1\nInclude {tmp_path}/config\n"
    )
    (tmp_path / "config").write_text(
        f"Include {tmp_path}/more/*\n"
        "Host juno j2 *.example !not wild?card\n HostName login.%h\n HostName second\n User me\n"
        f'Match host x exec "touch {tmp_path}/ran"\n HostName of-no-host\n'
        f"Host far\n ProxyJump juno\n Include {tmp_path}/more/*\n HostName far.site\n"
        "Host *\n HostName everywhere\n"
    )
    named = named_hosts(tmp_path / "config")
    assert named == {"inner": "10.0.0.1", "juno": "login.%h", "j2": "login.%h", "far": "far.site"}
    assert list(named) == ["inner", "juno", "j2", "far"]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("line", ['Host "open', "Include ~no-such-user-here/x", b"Host \xff"])
def test_an_ssh_configuration_that_cannot_be_read_is_named(
    tmp_path: Path, line: str | bytes
) -> None:
    (tmp_path / "config").write_bytes(line if isinstance(line, bytes) else line.encode())
    for read in (named_hosts, lambda path: hops_to("juno", path)):
        with pytest.raises(ConfigError, match="Cannot read the ssh configuration"):
            read(tmp_path / "config")


def test_files_that_include_one_another_for_ever_are_an_error_of_theirs(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(f"Include {tmp_path}/config\n")
    assert named_hosts(tmp_path / "config") == {}
    with pytest.raises(ConfigError, match="its files include each other"):
        hops_to("juno", tmp_path / "config")


# What OpenSSH reads and asyncssh does not.

GATED = "Host hpc\n HostName login.site\n{match}\n ProxyJump gate\n User other\nHost *\n User ann\n"
# None of them holds here.
CRITERIA = [
    "localnetwork 203.0.113.0/24",
    "version No_*",
    "sessiontype subsystem",
    "command rsync*",
    "tagged office",
]


@pytest.mark.parametrize(
    "criterion", [*CRITERIA[:-1], "!localnetwork 203.0.113.0/24", "new-in-2030"]
)
@pytest.mark.parametrize("beside", ["", "host login.site ", "originalhost hpc user ann "])
def test_a_criterion_that_is_unknown_makes_its_block_not_match_and_is_warned_of(
    tmp_path: Path, criterion: str, beside: str
) -> None:
    config = GATED.format(match=f"Match {beside}{criterion}").replace("", "")
    (hop,) = hops(tmp_path, config, "ann@hpc")
    assert hop.label == "ann@login.site"
    assert hop.warnings == (
        f"{tmp_path}/config line 3: hpcdash cannot evaluate Match {criterion}: the block is "
        "ignored, with its ProxyJump gate",
    )
    (hop,) = hops(tmp_path, config, "hpc")
    assert (
        hop.warnings == ()
        if "user" in beside
        else hop.warnings[0].endswith("ProxyJump gate, User other")
    )


def test_only_lines_that_count_for_a_host_are_warned_of(tmp_path: Path) -> None:
    config = (
        "Match host other localnetwork 10.0.0.0/8\n User x\nMatch localnetwork 10.0.0.0/8 "
        "host other\n User x\n"
    )
    (hop,) = hops(tmp_path, config + "Match localnetwork 10.0.0.0/8\n Compression yes\n", "hpc")
    (warning,) = hop.warnings
    assert warning.endswith(
        "line 5: hpcdash cannot evaluate Match localnetwork 10.0.0.0/8: the block is ignored"
    )


def test_nothing_is_run_for_a_block_that_does_not_match(tmp_path: Path) -> None:
    run = f'exec "touch {tmp_path}/ran"'
    hops(tmp_path, f"Match {run} version 9\n User x\nMatch version 9 {run}\n User x\n", "hpc")
    assert not (tmp_path / "ran").exists()


def test_times_with_units_remarks_and_new_values_are_read(tmp_path: Path) -> None:
    config = (
        "Host hpc # ours\n HostName login.site # here\n ConnectTimeout 1m30\n ServerAliveInterval "
        "2M\n"
        " PubkeyAuthentication host-bound\n Port 2200\t#22\nMatch host login.site # too\n User "
        "ann\n"
    )
    (hop,) = hops(tmp_path, config, "hpc")
    assert (hop.label, hop.login_seconds, hop.keepalive_seconds) == ("ann@login.site:2200", 90, 120)
    assert labels(tmp_path, "Host hpc # ours\n User x\nHost *\n User y\n", "ours") == ["y@ours"]
    assert named_hosts(tmp_path / "config") == {"hpc": ""}
    with pytest.raises(ConfigError, match="line 1: Invalid ConnectTimeout"):
        hops(tmp_path, "ConnectTimeout soon\n", "hpc")
    with pytest.raises(ConfigError, match="line 1: Missing"):
        hops(tmp_path, "Port # none\n", "hpc")


@pytest.mark.system
@pytest.mark.parametrize("criterion", CRITERIA)
def test_a_block_that_does_not_match_leads_where_openssh_goes(
    tmp_path: Path, criterion: str
) -> None:
    config = GATED.format(match=f"Match {criterion}").replace("", "")
    (hop,) = hops(tmp_path, config, "hpc")
    asked = ["ssh", "-G", "-F", str(tmp_path / "config"), "hpc"]
    shown = subprocess.run(
        asked, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    if "Bad Match condition" in shown.stderr:
        pytest.skip(f"this OpenSSH does not know Match {criterion.split()[0]}")
    settings = dict(line.split(" ", 1) for line in shown.stdout.splitlines() if " " in line)
    assert (hop.user, hop.host) == (settings["user"], settings["hostname"])
    assert "proxyjump" not in settings
