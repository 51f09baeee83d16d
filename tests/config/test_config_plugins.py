"""[[plugins]], [filters] and keys of aliases: what they say, where they are wrong, and who may
write the file.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcdash.config.plugins import Plugin
from hpcdash.config.problems import ConfigProblems
from hpcdash.config.read import load_settings, settings_from_text
from hpcdash.errors import ConfigError
from hpcdash.ui.actions import ACTION_NAMES, configured, key_problems
from tests.support.records import for_each

FILE = Path("config.toml")
LOGIN = '[[plugins]]\nname = "login"\ncommand = ["ssh", "{node}"]\n'


def problems_of(text: str) -> list[tuple[int | None, str, str]]:
    with pytest.raises(ConfigProblems) as raised:
        settings_from_text(text, FILE, action_names=ACTION_NAMES, check=key_problems)
    return [(problem.line, problem.key, problem.message) for problem in raised.value.problems]


def plugin_with(line: str) -> str:
    return f'[[plugins]]\nname = "mine"\n{line}\n' + (
        "" if "command" in line else 'command = ["true"]\n'
    )


def test_a_plugin_says_what_is_run_where_and_how() -> None:
    text = LOGIN + (
        'key = "f7"\nviews = ["jobs", "nodes"]\ndescription = "log in"\ndangerous = true\noutput = '
        '"terminal"\n'
        'limit_seconds = "1h"\nsecrets = ["LAB_TOKEN"]\n'
    )
    (plugin,) = settings_from_text(text, FILE).plugins
    assert plugin == Plugin(
        "login",
        ("ssh", "{node}"),
        "f7",
        ("jobs", "nodes"),
        "log in",
        dangerous=True,
        output="terminal",
        limit_seconds=3600,
        secrets=("LAB_TOKEN",),
    )


@for_each(
    ("line", "at", "words"),
    [
        ('command = "ssh {node}"', "command", "not split by a shell"),
        ("command = []", "command", "the program and its arguments"),
        ('command = ["{name}"]', "command", "the program cannot be a field"),
        ('command = ["-x"]', "command", "is not a program"),
        ('command = ["./tool"]', "command", "a path that starts with /"),
        ('command = ["sh", "-c", "echo {name}"]', "command", 'in the text that "sh" runs'),
        (
            'command = ["ssh", "{node}", "bash", "-lc", "cd {work_dir}"]',
            "command",
            "a field in the text",
        ),
        ('command = ["python3.11", "-c", "print({id})"]', "command", "a field in the text"),
        ('command = ["sh", "-c", "--", "{name}"]', "command", "a field in the text"),
        ('command = ["perl", "-eprint {id}"]', "command", "a field in the text"),
        ('command = ["awk", "/{name}/", "file"]', "command", "a field in the text"),
        ('command = ["julia", "-e", "f({name})"]', "command", "a field in the text"),
        ('command = ["env", "-S", "prog {name}"]', "command", "a field in the text"),
        ('command = ["mine", "--eval=f({name})"]', "command", "a field in the text"),
        (
            'command = ["x", "{nmae}"]',
            "command[1]",
            'rows of "jobs" have no field "nmae"; did you mean "name"?',
        ),
        ('views = ["jos"]', "views", 'did you mean "jobs"?'),
        (
            'command = ["x", "{work_dir}"]\nviews = ["jobs", "nodes"]',
            "command[1]",
            'rows of "nodes" have no field',
        ),
        ('output = "pan"', "output", 'did you mean "pane"?'),
        ('output = "terminal"\nwhere = "cluster"', "output", "the login node has no terminal"),
        ('keey = "x"', "keey", 'unknown key; did you mean "key"?'),
        ("limit_seconds = 0", "limit_seconds", "1 to 86400 seconds"),
        ('secrets = ["a b"]', "secrets", "the name of an environment variable"),
    ],
)
def test_what_is_wrong_with_a_plugin_is_told_with_its_line(line: str, at: str, words: str) -> None:
    problems = problems_of(plugin_with(line))
    assert any(key == f"plugins[0].{at}" and words in message for _, key, message in problems), (
        problems
    )
    assert all(number in (3, 4) for number, _, _ in problems)


def test_a_shell_s_own_arguments_may_be_fields() -> None:
    text = plugin_with('command = ["sh", "-c", \'grep -- "$1" ~/notes\', "sh", "{id}"]')
    assert settings_from_text(text, FILE).plugins[0].command[-1] == "{id}"


def test_a_plugin_s_key_that_is_taken_in_its_view_is_told_with_its_line() -> None:
    (problem,) = problems_of(LOGIN + 'key = "x"\n')
    assert problem == (
        4,
        "plugins[0].key",
        "'x' is already bound to 'cancel (confirms)' there. Remap cancel too.",
    )
    # Elsewhere it is free.
    free = LOGIN + 'key = "x"\nviews = ["nodes"]\n'
    assert settings_from_text(free, FILE, action_names=ACTION_NAMES, check=key_problems).plugins
    second = LOGIN.replace("login", "other") + 'key = "f7"\n'
    assert problems_of(LOGIN + 'key = "f7"\n' + second)[0][:2] == (8, "plugins[1].key")
    assert problems_of(LOGIN + 'key = "j"\n')[0][2].startswith("'j' is reserved")


@for_each("name", ["cancel", "jobs", "quit", "gpu"])
def test_a_plugin_s_name_is_no_other_s(name: str) -> None:
    text = f'[aliases]\ngpu = "jobs queue:gpu"\n[[plugins]]\nname = "{name}"\ncommand = ["true"]\n'
    assert problems_of(text)[0][:2] == (4, "plugins[0].name")


def test_an_alias_has_a_key_by_its_name_and_a_clash_is_told_with_its_line() -> None:
    text = '[aliases]\ngpu = "jobs queue:gpu"\n[keys]\ngpu = "f6"\n'
    action = configured(
        settings_from_text(text, FILE, action_names=ACTION_NAMES, check=key_problems)
    )[-1]
    assert (action.name, action.key, action.line, action.views) == (
        "gpu",
        "f6",
        "jobs queue:gpu",
        None,
    )
    assert problems_of(text.replace("f6", "m"))[0][:2] == (4, "keys.gpu")
    assert problems_of('[keys]\ngpu = "f6"\n')[0][2].startswith("unknown action")


def test_two_actions_on_one_key_are_told_with_file_and_line() -> None:
    assert problems_of('theme = "x"\n[keys]\nfilter = "m"\n')[0][:2] == (3, "keys.filter")


def test_a_saved_filter_that_is_none_is_told_with_its_line() -> None:
    assert (
        settings_from_text('[filters]\nbad = "state:failed"\nfree = "gpus>0"\n', FILE).filters[
            "bad"
        ]
        == "state:failed"
    )
    (line, key, message), *_ = problems_of('[filters]\nok = "state:failed"\nbad = "state:"\n')
    assert (line, key) == (3, "filters.bad")
    assert "is not a filter" in message


# Permissions of the file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir(mode=0o700)
    file = folder / "config.toml"
    file.write_text('theme = "a"')
    file.chmod(0o644)
    return file


def test_a_configuration_that_others_can_write_is_refused_and_says_chmod(file: Path) -> None:
    assert load_settings(file).theme == "a"
    file.chmod(0o666)
    with pytest.raises(ConfigError) as raised:
        load_settings(file)
    assert f"{file}: others can write to it" in raised.value.message
    assert (raised.value.next_step, raised.value.file) == (f"Run: chmod go-w {file}", str(file))


def test_a_folder_that_others_can_write_is_refused_unless_each_keeps_what_is_theirs(
    file: Path,
) -> None:
    file.parent.chmod(0o777)
    with pytest.raises(ConfigError, match=f"others can write to {file.parent}"):
        load_settings(file)
    file.parent.chmod(0o1777)
    assert load_settings(file).theme == "a"


def test_a_folder_further_up_that_others_can_write_is_refused(file: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(
        ConfigError, match=f"others may write to {tmp_path}, so others could replace it"
    ):
        load_settings(file)
    tmp_path.chmod(0o1777)
    assert load_settings(file).theme == "a"


def test_a_link_to_what_others_can_write_is_refused(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.toml"
    link.symlink_to(file)
    assert load_settings(link).theme == "a"
    file.chmod(0o646)
    with pytest.raises(ConfigError, match="others can write"):
        load_settings(link)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize(("owner", "group", "mode"), [(12345, 0, 0o600), (0, 12345, 0o660)])
def test_a_file_of_somebody_else_s_or_of_a_group_is_refused(
    file: Path, owner: int, group: int, mode: int
) -> None:
    os.chown(file, owner, group)
    file.chmod(mode)
    with pytest.raises(ConfigError, match=r"controls? what hpcdash runs|could control"):
        load_settings(file)
