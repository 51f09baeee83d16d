"""Templates that hpcdash and sites provide: their fields, their scripts, and who may replace them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcdash.config.request import read_request
from hpcdash.domain.request import Site
from hpcdash.errors import UsageError
from hpcdash.services.submit.ready_templates import (
    parse_settings,
    read_ready_template,
    template_names,
)

OWN = ("jupyter", "marimo", "ollama", "tensorboard", "vllm", "vscode")
SITES = 'name = "lab"\ncommand = "true"\n[template]\ndescription = "of the site"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "templates"
    made.mkdir(mode=0o755)
    (made / "lab.toml").write_text(SITES)
    (made / "lab.toml").chmod(0o644)
    return made


@pytest.mark.parametrize("name", OWN)
def test_each_is_a_request_whose_choices_are_valid(name: str) -> None:
    template = read_ready_template(name, "")
    assert template.description
    request = read_request(template.text, name, site=Site(storage_root="/s"))
    assert request.limit_seconds
    for field, values in template.choices.items():
        assert template.value(field) in values
        for value in values:
            read_request(template.text_with({field: value}), name)


@pytest.mark.parametrize("name", sorted(set(OWN) - {"vscode"}))
def test_each_server_listens_on_the_loopback_of_its_node_alone(name: str) -> None:
    command = read_request(read_ready_template(name, "").text, name).command
    assert "127.0.0.1" in command
    assert "0.0.0.0" not in command


def test_a_field_s_value_is_data_and_no_shell_text() -> None:
    odd = 'a\'b "$(touch x)" `c` \\ \n[template]'
    text = read_ready_template("vllm", "").text_with({"MODEL": odd, "slots": "2", "queue": "gpu"})
    request = read_request(text, "vllm")
    assert request.environment["MODEL"] == odd
    assert (request.slots, request.queue) == (2, "gpu")
    assert request.command == read_request(read_ready_template("vllm", "").text, "").command


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"MODEI": "x"}, "has no field 'MODEI'"),
        ({"slots": "two"}, "slots: expected a number"),
        ({"environment": "x"}, "has no field"),
    ],
)
def test_an_unknown_field_and_a_wrong_value_are_refused(
    values: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        read_ready_template("vllm", "").text_with(values)


def test_options_name_a_field_and_a_value() -> None:
    assert parse_settings(["A=b=c", "D="]) == {"A": "b=c", "D": ""}
    with pytest.raises(UsageError, match="not FIELD=VALUE"):
        parse_settings(["A"])


def test_a_site_adds_templates_and_replaces_hpcdash_s(folder: Path) -> None:
    (folder / "jupyter.toml").write_text(SITES)
    assert template_names(str(folder)) == tuple(sorted({*OWN, "lab"}))
    assert read_ready_template("jupyter", str(folder)).description == "of the site"
    with pytest.raises(UsageError, match=r"no template '\.\./lab'"):
        read_ready_template("../lab", str(folder))


def test_a_site_s_template_that_others_can_change_does_not_run(folder: Path) -> None:
    (folder / "lab.toml").chmod(0o666)
    with pytest.raises(UsageError, match="others could change what the template"):
        read_ready_template("lab", str(folder))
    (folder / "lab.toml").chmod(0o644)
    folder.chmod(0o777)
    with pytest.raises(UsageError, match="others could change what the template"):
        read_ready_template("lab", str(folder))
    folder.chmod(0o755)
    assert read_ready_template("lab", str(folder)).text == 'name = "lab"\ncommand = "true"\n'


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to give a file away")
def test_a_site_s_template_of_another_user_does_not_run(folder: Path) -> None:
    os.chown(folder / "lab.toml", 65534, 65534)
    with pytest.raises(UsageError, match=r"lab\.toml belongs to"):
        read_ready_template("lab", str(folder))
