"""The configuration: what a file says, where it is wrong, and how a cluster is added to it."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from hpcdash.config import plugins, settings, watch_settings
from hpcdash.config.destination import SshDestination, parse_ssh_destination
from hpcdash.config.document import example_text, parse_document
from hpcdash.config.locate import find_line, key_lines
from hpcdash.config.metric_patterns import EXAMPLE, EXAMPLE_LINE, compile_patterns
from hpcdash.config.model import record_keys
from hpcdash.config.problems import ConfigProblems
from hpcdash.config.read import config_path, load_settings, settings_from_text
from hpcdash.config.request import QUEUE_KEYS, SITE_KEYS
from hpcdash.config.settings import PollSettings, Settings
from hpcdash.config.toml_text import format_toml
from hpcdash.config.write import write_cluster
from hpcdash.domain.request import SlotType
from hpcdash.errors import ConfigError
from hpcdash.ui.actions import ACTION_NAMES, configured, key_problems
from tests.support.real_files import as_somebody_else
from tests.support.records import for_each

FILE = Path("config.toml")
FULL = """\
default_cluster = "juno"
theme = "night"
read_only = true
[poll]
mine_seconds = 5
controller_share = 0.05
[keys]
cancel = "x, ctrl+x"
help = "?"
[aliases]
gpu = ":jobs queue:gpu"
[clusters.juno]
title = "Juno"
ssh = "ada@juno.example.org:2222"
backend = "slurm"
path = "/opt/slurm/bin:/opt/bin"
user = "lovelace"
poll.mine_seconds = 30
[clusters.here]
[clusters.old]
transport = "openssh"
ssh = "old"
port = 22
[ui]
columns.jobs = ["id", "name"]
sort.jobs = "-priority"
fold_arrays = false
clock = "utc"
"""


@pytest.fixture(autouse=True)
def no_configuration_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HPCDASH_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))


def problems_of(text: str, **known: object) -> list[tuple[int | None, str, str]]:
    with pytest.raises(ConfigProblems) as raised:
        settings_from_text(text, FILE, **known)  # type: ignore[arg-type]
    return [(problem.line, problem.key, problem.message) for problem in raised.value.problems]


def refusal(text: str, **known: object) -> ConfigProblems | None:
    try:
        assert isinstance(settings_from_text(text, FILE, **known), Settings)  # type: ignore[arg-type]
    except ConfigProblems as error:
        return error
    return None


def only_problem_of(text: str, **known: object) -> tuple[int | None, str, str]:
    (problem,) = problems_of(text, **known)
    return problem


# Reading


def test_every_key_is_read() -> None:
    read = settings_from_text(FULL, FILE)
    assert (read.default_cluster, read.theme, read.read_only, read.file) == (
        "juno",
        "night",
        True,
        FILE,
    )
    assert read.poll == PollSettings(mine_seconds=5.0, controller_share=0.05)
    assert read.keys == {"cancel": "x,ctrl+x", "help": "?"}
    assert read.aliases == {"gpu": "jobs queue:gpu"}
    assert list(read.clusters) == ["juno", "here", "old"]
    juno = read.clusters["juno"]
    assert (juno.name, juno.title, juno.transport, juno.backend) == ("juno", "Juno", "ssh", "slurm")
    assert juno.ssh == SshDestination("juno.example.org", "ada", 2222)
    assert (juno.path, juno.user) == ("/opt/slurm/bin:/opt/bin", "lovelace")
    assert juno.poll == PollSettings(mine_seconds=30.0, controller_share=0.05)
    here = read.clusters["here"]
    assert (here.title, here.transport, here.ssh, here.backend, here.user) == (
        "here",
        "local",
        None,
        None,
        None,
    )
    old = read.clusters["old"]
    assert (old.transport, old.ssh) == ("openssh", SshDestination("old", None, 22))
    assert read.ui.columns == {"jobs": ("id", "name")}
    assert (read.ui.sort, read.ui.fold_arrays, read.ui.clock) == (
        {"jobs": "-priority"},
        False,
        "utc",
    )


def test_an_empty_file_gives_the_defaults() -> None:
    assert settings_from_text("", FILE) == Settings(file=FILE)


def test_the_example_as_it_is_changes_nothing() -> None:
    assert settings_from_text(example_text(), FILE) == Settings(file=FILE)


def test_the_example_names_every_key() -> None:
    records = [
        record
        for module in (plugins, settings, watch_settings)
        for record in vars(module).values()
        if isinstance(record, type) and issubclass(record, Struct)
    ]
    declared = {key for record in records for key in record_keys(record).readers}
    named = set(re.findall(r"\w+", example_text()))
    assert {*declared, *SITE_KEYS, *QUEUE_KEYS} <= named
    assert len(declared) > 80


def test_the_example_opened_has_no_problem_and_shows_the_defaults() -> None:
    read = settings_from_text(EXAMPLE_CONFIG, FILE, action_names=ACTION_NAMES, check=key_problems)
    default = Settings()

    def has_defaults(found: object, usual: object, names: str) -> bool:
        return all(getattr(found, name) == getattr(usual, name) for name in names.split())

    assert has_defaults(read, default, "poll theme read_only")
    assert has_defaults(read.ui, default.ui, "fold_arrays clock notify")
    assert has_defaults(
        read.launch.site,
        default.launch.site,
        "tres_supported gres_supported job_project_source keep name_prefix",
    )
    assert has_defaults(read.launch, default.launch, "launch_program files_limit")
    assert has_defaults(
        read.watch, default.watch, "every_seconds unreachable_rounds never_starts snooze_seconds"
    )
    assert has_defaults(read.watch.alerts, default.watch.alerts, "least remind_seconds")
    usual = plugins.Plugin("x", ("x",))
    assert has_defaults(read.plugins[0], usual, "output dangerous where limit_seconds")
    juno = read.clusters["juno"]
    assert (juno.poll.mine_seconds, juno.launch.site.gres_supported) == (30.0, False)
    assert juno.launch.queues["cpu"] == {"slot_type": SlotType.CPU}
    assert {"gpus", "gpu"} <= {action.name for action in configured(read)}
    (pattern,) = compile_patterns(read.metrics.patterns)
    assert f"#{EXAMPLE}".replace("\n", "\n#") in example_text()
    assert pattern.search(EXAMPLE_LINE) == {"step": "12", "loss": "-0.31"}
    rules = "running hanging losses storage nodes chains saves failures pools terminal"
    assert all(getattr(read.watch, name) for name in rules.split())
    assert len(read.watch.notices) == 4


# Choice of the file


def test_without_a_file_all_is_by_default() -> None:
    assert load_settings() == Settings()


def test_the_usual_file_is_in_the_configuration_folder(tmp_path: Path) -> None:
    usual = tmp_path / "xdg" / "hpcdash" / "config.toml"
    usual.parent.mkdir(parents=True)
    usual.write_text('theme = "usual"')
    assert config_path() == (usual, False)
    assert load_settings().theme == "usual"


def test_the_environment_names_a_file_and_the_argument_goes_before_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    named, argued = tmp_path / "named.toml", tmp_path / "argued.toml"
    named.write_text('theme = "named"')
    argued.write_text('theme = "argued"')
    monkeypatch.setenv("HPCDASH_CONFIG", str(named))
    assert load_settings().theme == "named"
    assert load_settings(argued).theme == "argued"


def test_a_file_asked_for_by_name_must_be_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="no such file") as raised:
        load_settings(tmp_path / "missing.toml")
    assert (raised.value.file, raised.value.exit_status) == (str(tmp_path / "missing.toml"), 2)
    monkeypatch.setenv("HPCDASH_CONFIG", str(tmp_path / "gone.toml"))
    with pytest.raises(ConfigError, match="no such file"):
        load_settings()


def test_a_file_that_cannot_be_read_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="this is a directory"):
        load_settings(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(tmp_path / "loop")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(tmp_path / "file" / "config.toml")
    with pytest.raises(ConfigError, match="not a valid file name"):
        load_settings(Path("a\0b"))
    with pytest.raises(ConfigError, match="larger than 256 KiB"):
        load_settings(Path("/dev/zero"))


def test_a_file_without_permission_is_said_in_words() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        secret = Path(folder) / "secret.toml"
        secret.touch(mode=0)
        with (
            as_somebody_else(),
            pytest.raises(ConfigError, match="no permission to read this file"),
        ):
            load_settings(secret)


@pytest.mark.parametrize(
    ("raw", "line", "words"),
    [
        (b'theme = "a"\nx = "\xff"\n', 2, "not UTF-8 (byte 0xFF): save it as UTF-8"),
        ('theme = "a"'.encode("utf-16"), 1, "this is UTF-16; TOML is UTF-8: save it as UTF-8"),
    ],
)
def test_a_file_in_another_encoding_is_named_as_such(
    tmp_path: Path, raw: bytes, line: int, words: str
) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(raw)
    with pytest.raises(ConfigError) as raised:
        load_settings(file)
    assert str(raised.value).startswith(f"{file}:{line}: {words}")


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(b'\xef\xbb\xbftheme = "a"\r\n[poll]\r\nmine_seconds = 9\r\n')
    assert load_settings(file).poll.mine_seconds == 9
    file.write_bytes(b'\xef\xbb\xbftheme = "a"\r\n[poll]\r\nmine = 9\r\n')
    with pytest.raises(ConfigError) as raised:
        load_settings(file)
    assert (raised.value.line, raised.value.key) == (3, "poll.mine")


# Problems


def test_an_unknown_key_is_named_with_file_line_and_the_likely_one() -> None:
    with pytest.raises(ConfigError) as raised:
        settings_from_text('theme = "a"\n\n[clusters.juno]\nssh = "juno"\nprot = 22\n', FILE)
    error = raised.value
    assert (error.file, error.line, error.key) == ("config.toml", 5, "clusters.juno.prot")
    assert (
        str(error).splitlines()[0]
        == 'config.toml:5: clusters.juno.prot: unknown key; did you mean "port"?'
    )


def test_all_problems_are_told_at_once_in_the_order_of_the_file() -> None:
    text = 'read_only = "yes"\n[ui]\nclock = "gmt"\n[poll]\nmine_seconds = 1\n'
    with pytest.raises(ConfigError) as raised:
        settings_from_text(text, FILE)
    assert str(raised.value).splitlines()[:3] == [
        'config.toml:1: read_only: expected true or false, not "yes"',
        'config.toml:3: ui.clock: expected "local", "utc", not "gmt"',
        "config.toml:5: poll.mine_seconds: expected 3 to 86400 seconds (schedulers must not be "
        "polled more often),"
        " not 1",
    ]


@for_each(
    ("text", "line", "words"),
    [
        ("a = 1\nb =\n", 2, "not TOML: Invalid value (column 4)"),
        ("a = 1\na = 2\n", 2, "duplicate key or table"),
        ("[poll]\n[poll]\n", 2, "duplicate key or table"),
        ('a = """\nx\n', 2, "at the end of the file"),
        ("a = [1,", 1, "at the end of the file"),
        ("a = " + "1" * 5000, None, "not TOML"),
        ("a = " + "[" * 5000, None, "nested too deeply"),
        ("a = 1\x1b", 1, "not TOML"),
        ("b = 1\n" + "a." * 32 + "a = 1\n", 2, "more than 32 parts"),
        ("[poll]\n[[" + '"é".' * 40 + "a]]\n", 2, "more than 32 parts"),
        ("x = [\n{y = {" + "a . " * 40 + "a = 1}}]", 2, "more than 32 parts"),
    ],
)
def test_a_syntax_error_has_its_line(text: str, line: int | None, words: str) -> None:
    found_line, _, message = only_problem_of(text)
    assert found_line == line
    assert words in message
    assert message.isprintable()


@for_each(
    ("text", "key", "words"),
    [
        ("poll = 3", "poll", "expected a table, not 3"),
        ("clusters.a = true", "clusters.a", "expected a table, not true"),
        ("clusters = []", "clusters", "expected a table, not an array"),
        ("[[clusters.a]]", "clusters.a", "expected a table, not an array"),
        ('poll.mine_seconds = "15"', "poll.mine_seconds", 'expected a number of seconds, not "15"'),
        ("poll.mine_seconds = true", "poll.mine_seconds", "not true"),
        ("poll.mine_seconds = nan", "poll.mine_seconds", "not nan"),
        (
            "poll.mine_seconds = 0xffffffffffffffffffffffffffff",
            "poll.mine_seconds",
            "not a very large number",
        ),
        ("poll.commands_per_minute = 2.5", "poll.commands_per_minute", "whole number"),
        ("poll.controller_share = 0.5", "poll.controller_share", "0.001 to 0.1"),
        ("poll.unfocused_factor = 0.5", "poll.unfocused_factor", "1 to 1000"),
        ("theme = 1979-05-27", "theme", "not a date or time"),
        ('theme = ""', "theme", "empty"),
        (r'theme = "a\u001b[2J"', "theme", "non-printable"),
        ('clusters.a.ssh = "-oProxyCommand=x"', "clusters.a.ssh", "cannot start with '-'"),
        ('clusters.a.ssh = "x@-h"', "clusters.a.ssh", "no host name"),
        ('clusters.a.ssh = "h;reboot"', "clusters.a.ssh", "no host name"),
        ('clusters.a.ssh = "h:0"', "clusters.a.ssh", "the port must be a number from 1 to 65535"),
        ('clusters.a = {ssh = "h:22", port = 23}', "clusters.a.port", "also has a port"),
        ('clusters.a = {ssh = ["g", "h:22"], port = 23}', "clusters.a.port", "also has a port"),
        ("clusters.a.ssh = []", "clusters.a.ssh", "at least one login node"),
        ('clusters.a.ssh = ["h", "x@-h"]', "clusters.a.ssh", "no host name"),
        (
            'clusters.a = {ssh = ["g", "h"], transport = "openssh"}',
            "clusters.a.ssh",
            'need transport = "ssh"',
        ),
        ("clusters.a.port = 23", "clusters.a.port", "needs a destination"),
        ('clusters.a.transport = "ssh"', "clusters.a", "needs a destination"),
        (
            'clusters.a = {ssh = "h", transport = "local"}',
            "clusters.a.ssh",
            "has no ssh destination",
        ),
        ('clusters.a.transport = "shh"', "clusters.a.transport", 'did you mean "ssh"?'),
        ('clusters.a.path = "bin"', "clusters.a.path", "absolute"),
        ('clusters.a.ray = "head:8265"', "clusters.a.ray", "is not a server URL such as http://"),
        ('clusters.a.ray = "http://head:0"', "clusters.a.ray", "is not a server URL such as"),
        ('clusters.a.ray = "http://me:secret@head"', "clusters.a.ray", "use token_file"),
        (
            'clusters.a = {ray = "http://h", backend = "slurm"}',
            "clusters.a.backend",
            "already sets the scheduler",
        ),
        (
            'clusters.a = {ray = "http://h", transport = "openssh"}',
            "clusters.a.transport",
            "set ssh = ... to reach it",
        ),
        (
            'clusters.a.token_file = "~/t"',
            "clusters.a.token_file",
            "only for a cluster with a URL",
        ),
        ('clusters.a.user = "-u"', "clusters.a.user", "not a user name"),
        ('[clusters."../x"]', 'clusters."../x"', "a cluster name may contain"),
        ("clusters.a.mine_seconds = 9", "clusters.a.mine_seconds", "it belongs in [poll]"),
        ('[poll]\ntheme = "x"', "poll.theme", "it belongs at the top of the file"),
        ('default_cluster = "jun"\n[clusters.juno]', "default_cluster", 'did you mean "juno"?'),
        ('default_cluster = "juno"', "default_cluster", "no [clusters.juno] in the configuration"),
        ('keys.cancel = "ctrl+"', "keys.cancel", '"ctrl+" is not a key'),
        ('keys.cancel = "x,"', "keys.cancel", 'called "comma"'),
        ('aliases."a b" = "jobs"', 'aliases."a b"', "one word"),
        ('aliases.a = ":"', "aliases.a", "expected a command"),
        (
            'ui.columns.jobs = ["id", "queu"]',
            "ui.columns.jobs",
            '"queu" is not a column; did you mean "queue"?',
        ),
        ('ui.columns.jobs = ["id", "id"]', "ui.columns.jobs", "listed twice"),
        ("ui.columns.nodes = []", "ui.columns.nodes", "empty"),
        ("ui.columns.jobs = [[1]]", "ui.columns.jobs", "an array is not a column"),
        ('ui.columns.job = ["id"]', "ui.columns.job", 'did you mean "jobs"?'),
        ('ui.sort.nodes = "-loda"', "ui.sort.nodes", 'did you mean "load"?'),
        ('ui.sort.jobs = "_number"', "ui.sort.jobs", "is not a column"),
    ],
)
def test_a_wrong_value_is_named_by_its_key(text: str, key: str, words: str) -> None:
    _, found_key, message = only_problem_of(text)
    assert found_key == key
    assert words in message


def test_action_names_are_checked_when_they_are_known() -> None:
    text = '[keys]\ncancle = "x"\n'
    assert settings_from_text(text, FILE).keys == {"cancle": "x"}
    assert only_problem_of(text, action_names={"cancel", "hold"}) == (
        2,
        "keys.cancle",
        'unknown action; did you mean "cancel"?',
    )


def test_an_error_shows_no_control_character_of_the_file() -> None:
    with pytest.raises(ConfigError) as raised:
        settings_from_text(
            '"\\u001b[2J\\u202e" = 1\ntheme = ["\\u0007"]\nui."\\n" = "\\u009b"\n', FILE
        )
    assert all(line.isprintable() for line in str(raised.value).splitlines())


def test_a_hundred_problems_are_not_all_listed() -> None:
    with pytest.raises(ConfigProblems) as raised:
        settings_from_text("\n".join(f"zz{number} = 1" for number in range(100)), FILE)
    assert len(raised.value.problems) == 100
    assert len(str(raised.value).splitlines()) < 25


# Destinations


@for_each(
    ("text", "destination"),
    [
        ("juno", SshDestination("juno")),
        ("ada@juno", SshDestination("juno", "ada")),
        ("a@realm@juno:22", SshDestination("juno", "a@realm", 22)),
        ("10.0.0.1:2222", SshDestination("10.0.0.1", None, 2222)),
        ("::1", SshDestination("::1")),
        ("ada@[fe80::1%eth0]:22", SshDestination("fe80::1%eth0", "ada", 22)),
        ("my cluster", SshDestination("my cluster")),
    ],
)
def test_destinations_read_as_ssh_reads_them_and_print_as_written(
    text: str, destination: SshDestination
) -> None:
    assert parse_ssh_destination(text) == destination
    assert str(destination) == text


@pytest.mark.parametrize("text", ["ssh://ada@juno:22", "ssh://ada@juno:22/"])
def test_a_destination_may_be_a_uri(text: str) -> None:
    assert parse_ssh_destination(text) == SshDestination("juno", "ada", 22)


@for_each(
    "text", ["ssh://", "ssh:///", "ssh://juno/home", "juno/", " juno", "juno ", "my  cluster"]
)
def test_what_ssh_does_not_take_for_a_destination_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host"):
        parse_ssh_destination(text)


@given(st.text(alphabet=st.characters() | st.sampled_from("@:[]-%."), max_size=20))
def test_any_destination_is_read_or_refused_and_what_is_read_is_no_option(text: str) -> None:
    try:
        read = parse_ssh_destination(text)
    except ValueError:
        return
    assert parse_ssh_destination(str(read)) == read
    assert not read.host.startswith("-")
    assert not set(read.host + (read.user or "")) & set("\t\n'\"`$;&<>|(){}")


# Lines of keys

TRICKY = '''\
# theme = "comment"
text = """
[poll]
mine_seconds = 3 \\"""
""""" # two quotes, then the end
raw = \'\'\'
[clusters.no]
\'\'\'
a . "b.c" . 'd' = 1
array = [ # comment ]
  1,
  { x = 1, y = "]" },
  [
    2, "}",
  ],
]
[[table]]
k = 1
[[table]]
k = 2
[table.sub]
z = {p.q = 1, "r" = [ 1 ]}
[ "quo\\"ted" . x ]
v = 07:32:00
'''


@for_each(
    ("path", "line"),
    [
        (("text",), 2),
        (("raw",), 6),
        (("a",), 9),
        (("a", "b.c", "d"), 9),
        (("array",), 10),
        (("array", 0), 11),
        (("array", 1, "y"), 12),
        (("array", 2), 13),
        (("array", 2, 1), 14),
        (("table",), 17),
        (("table", 0, "k"), 18),
        (("table", 1), 19),
        (("table", 1, "k"), 20),
        (("table", 1, "sub"), 21),
        (("table", 1, "sub", "z", "p", "q"), 22),
        (("table", 1, "sub", "z", "r"), 22),
        (('quo"ted', "x"), 23),
        (('quo"ted', "x", "v"), 24),
        (('quo"ted', "x", "missing"), 23),
        (("poll",), None),
        (("clusters",), None),
        (("theme",), None),
    ],
)
def test_a_key_is_found_on_its_line(path: tuple[str | int, ...], line: int | None) -> None:
    assert "quo" in str(tomllib.loads(TRICKY))
    assert find_line(key_lines(TRICKY), path) == line
    assert find_line(key_lines(TRICKY.replace("\n", "\r\n")), path) == line


def test_dots_in_strings_and_comments_are_no_parts_of_a_key() -> None:
    dots = "a." * 100
    key = "a." * 31 + "a"
    text = (
        f'{key} = "{dots}" # {dots}\n"{dots}" = \'{dots}\'\nb = """\n{dots} = 1\n\\"""{dots}"""\n'
    )
    assert parse_document(text, "config.toml")["b"] == f'{dots} = 1\n"""{dots}'


HOSTILE_TEXTS = {
    "a dotted key": "a." * 50_000 + "a = 1",
    "a dotted header": "[" + "a." * 50_000 + "a]",
    "a dotted header of an array": "[[" + "a." * 50_000 + "a]]",
    "a dotted key of an inline table": "x = {" + "a." * 50_000 + "a = 1}",
    "a dotted key in quotes": '"". ' * 25_000 + "a = 1",
    "a dotted key of escapes": '"\\n".' * 20_000 + "a = 1",
    "dotted keys by the thousand": "".join(
        "a." * 31 + f"a{number} = 1\n" for number in range(1500)
    ),
    "dotted headers by the thousand": "".join(
        "[" + "a." * 31 + f"a{number}]\n" for number in range(1500)
    ),
    "tables": "[[a]]\n" * 16_000,
    "open arrays": "x = " + "[" * 100_000,
    "an array": "x = [" + "1," * 50_000 + "]",
    "open inline tables": "x = " + "{a=" * 33_000,
    "comments": "#\n" * 50_000,
    "escapes": 'x = "' + '\\"' * 50_000,
    "escapes in many lines": 'x = """' + '\\"""' * 25_000,
    "quotes in many lines": "x = '''" + "''\n" * 33_000,
    "a key without an end": "a" * 100_000,
    "blanks": " " * 100_000,
}


@for_each("text", HOSTILE_TEXTS.values(), ids=HOSTILE_TEXTS)
def test_a_hostile_text_of_100_kb_is_read_to_its_end(text: str) -> None:
    key_lines(text)
    refusal(text)


KEYS = st.text(alphabet="ab.\"'\\# é[", min_size=1, max_size=4)
STRINGS = st.text(alphabet="a\"'\\#[]{}=,\n é", max_size=8)


def basic(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def multi_line(text: str) -> str:
    return '"""' + text.replace("\\", "\\\\").replace('"', '\\"') + '"""'


VALUES = st.recursive(
    st.one_of(
        st.sampled_from(["1", "-0.5", "true", "1979-05-27 07:32:00Z", "'''a'b''''", "''", "inf"]),
        STRINGS.map(basic),
        STRINGS.map(multi_line),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[ # ]\n" + ",\n".join(items) + "\n]"),
        st.dictionaries(KEYS, inner, max_size=2).map(
            lambda pairs: (
                "{" + ", ".join(f"{basic(key)} = {value}" for key, value in pairs.items()) + "}"
            )
        ),
    ),
    max_leaves=5,
)


@given(st.dictionaries(KEYS, st.dictionaries(KEYS, VALUES, max_size=3), max_size=3))
def test_every_key_is_found_where_it_was_written(tables: dict[str, dict[str, str]]) -> None:
    text, lines = "", {}
    for table, pairs in tables.items():
        text += "# [x]\n\n"
        lines[(table,)] = text.count("\n") + 1
        text += f"[{basic(table)}] # y = 1\n"
        for key, value in pairs.items():
            lines[(table, key)] = text.count("\n") + 1
            text += f"  {basic(key)} = {value} # z = '\n"
    document = tomllib.loads(text)
    found = key_lines(text)
    assert {
        path: line for path, line in found.items() if len(path) <= 2 and isinstance(path[-1], str)
    } == lines
    assert set(found) == set(paths_of(document, ()))


def paths_of(value: object, path: tuple[str | int, ...]) -> list[tuple[str | int, ...]]:
    pairs = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    found: list[tuple[str | int, ...]] = []
    for key, inner in pairs:
        if len(path) < 6:
            found += [(*path, key), *paths_of(inner, (*path, key))]
    return found


@given(st.text(alphabet=st.sampled_from("a.\"'\\#[]{}=,\n \t1é\r"), max_size=40))
def test_the_lines_of_any_text_are_looked_for_without_failing(text: str) -> None:
    assert all(1 <= line <= text.count("\n") + 1 for line in key_lines(text).values())


# Arbitrary texts

EXAMPLE_CONFIG = re.sub("^#(?! )", "", example_text(), flags=re.MULTILINE)
WORDS = st.sampled_from(
    [*re.findall(r"\[.*\]\n|\w+| = |\s|\S", EXAMPLE_CONFIG), "nan", "\\u001b", "\x00"]
)


@given(st.one_of(st.text(max_size=60), st.lists(WORDS, max_size=14).map("".join)))
def test_any_text_gives_settings_or_a_config_error(text: str) -> None:
    error = refusal(text, action_names={"cancel"})
    if error is not None:
        assert error.exit_status == 2
        assert all(line.isprintable() for line in str(error).splitlines())


def every_place(table: dict[str, object], above: str = "") -> Iterator[str]:
    for key, value in table.items():
        yield f"{above}{basic(key)}"
        if isinstance(value, dict):
            yield from every_place(value, f"{above}{basic(key)}.")


PLACES = st.sampled_from([*every_place(tomllib.loads(EXAMPLE_CONFIG)), "zz"])


@given(st.dictionaries(PLACES, VALUES, max_size=4))
def test_any_value_anywhere_is_accepted_or_blamed_on_its_line(pairs: dict[str, str]) -> None:
    text = "".join(f"{key} = {value}\n" for key, value in pairs.items())
    error = refusal(text)
    assert error is None or all(problem.line is not None for problem in error.problems)


@given(raw=st.binary(max_size=60))
def test_any_bytes_give_settings_or_a_config_error(
    raw: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.toml"
    file.write_bytes(raw)
    with contextlib.suppress(ConfigError):
        assert load_settings(file).file == file


# Adding a cluster


def test_a_cluster_is_added_and_every_other_byte_stays(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    before = b"# mine\r\ntheme   =  'a' # odd\r\n[clusters.here]\r\ntitle = 'H'"
    file.write_bytes(before)
    file.chmod(0o640)
    read = write_cluster(
        file, "juno", {"ssh": "ada@juno", "path": None, "poll": {"mine_seconds": 30}}
    )
    assert file.read_bytes() == before + (
        b'\r\n\r\n[clusters.juno]\r\nssh = "ada@juno"\r\npoll = {mine_seconds = 30}\r\n'
    )
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert read == load_settings(file)
    assert list(read.clusters) == ["here", "juno"]
    assert os.listdir(tmp_path) == ["config.toml"]


def test_a_cluster_joins_those_that_are_written_on_one_line(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(
        b"\xef\xbb\xbf# mine\r\nclusters = {a = {title='A'}} # odd\r\nread_only  = true\r\n"
    )
    read = write_cluster(file, "b.c", {"ssh": "ada@juno", "poll": {"mine_seconds": 30}})
    assert file.read_bytes() == (
        b"\xef\xbb\xbf# mine\r\nclusters = {a = {title='A'}, "
        b'"b.c" = {ssh = "ada@juno", poll = {mine_seconds = 30}}} # odd\r\nread_only  = true\r\n'
    )
    assert read == load_settings(file)
    assert list(read.clusters) == ["a", "b.c"]


def test_a_new_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "new" / "hpcdash" / "config.toml"
    write_cluster(file, "a.b", {"title": 'x "y" \\ é'})
    assert file.read_text() == '[clusters."a.b"]\ntitle = "x \\"y\\" \\\\ é"\n'
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert load_settings(file).clusters["a.b"].title == 'x "y" \\ é'


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    link, target = tmp_path / "config.toml", tmp_path / "dotfiles" / "hpcdash.toml"
    target.write_text("read_only = true\n")
    link.symlink_to(target)
    write_cluster(link, "juno", {"ssh": "juno"})
    assert link.is_symlink()
    assert list(load_settings(target).clusters) == ["juno"]


@for_each(
    ("before", "name", "fields", "words"),
    [
        ("\n[clusters.juno]\n", "juno", {}, ":2: clusters.juno: this cluster already exists"),
        ("clusters = {a = {}}\n", "juno", {"ssh": "-x"}, "config.toml: clusters.juno.ssh: "),
        ("", "juno", {"prot": 1}, "clusters.juno.prot: unknown key"),
        ("", "juno", {"ssh": "-x"}, "cannot start with '-'"),
        ("", "../x", {}, "a cluster name may contain"),
        ("", "juno", {"title": "a\nb"}, "non-printable"),
        ("", "juno", {"title": "\udcff"}, "is not UTF-8"),
        ("", "\udcff", {}, "is not UTF-8"),
        ("", "juno", {"title": [1]}, "clusters.juno.title: expected text in quotes, not an array"),
        ("theme = 3\n", "juno", {}, ":1: theme: expected text"),
        ("theme =\n", "juno", {}, ":1: not TOML"),
    ],
)
def test_what_would_not_be_good_is_not_written(
    tmp_path: Path, before: str, name: str, fields: dict[str, object], words: str
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(before)
    with pytest.raises(ConfigError) as raised:
        write_cluster(file, name, fields)
    assert words in str(raised.value)
    assert file.read_text() == before
    assert os.listdir(tmp_path) == ["config.toml"]


def test_a_folder_that_cannot_be_made_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be"):
        write_cluster(tmp_path / "file" / "config.toml", "juno", {})
    with pytest.raises(ConfigError, match="not a valid file name"):
        write_cluster(Path("a\0b"), "juno", {})


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20))
def test_any_text_that_is_written_reads_back_as_it_was(text: str) -> None:
    document = {"clusters": {text: {"title": text, text: 1.5}}, "x": {"y": [text, {text: text}]}}
    assert tomllib.loads(format_toml(document)) == document


def test_a_cluster_may_have_several_login_nodes_with_one_port() -> None:
    text = 'clusters.a = {ssh = ["login1", "ada@login2"], port = 2222}'
    cluster = settings_from_text(text, FILE).clusters["a"]
    assert [str(one) for one in (cluster.ssh, *cluster.other_logins)] == [
        "login1:2222",
        "ada@login2:2222",
    ]
