"""Requests and scripts kept by name, and what was submitted last."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcdash.errors import UsageError
from hpcdash.services.state.database import StateUnusable
from hpcdash.services.state.recents import MAX_RECENT, Recents
from hpcdash.services.state.templates import Templates, difference
from tests.support.records import for_each

REQUEST = 'command = "x"\nslots = 8\n'
SCRIPT = "#!/bin/bash\n#SBATCH -n 1\ncommand=x\n"


@pytest.fixture
def templates(tmp_path: Path) -> Templates:
    return Templates(tmp_path / "config" / "templates")


def test_without_a_folder_there_are_no_templates(templates: Templates) -> None:
    assert templates.names() == ()
    with pytest.raises(UsageError, match="no template 'x'"):
        templates.read("x")


def test_a_template_is_kept_for_its_owner_alone(templates: Templates) -> None:
    path = templates.save("llm-8", REQUEST)
    assert path.name == "llm-8.toml"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert templates.read("llm-8") == REQUEST


def test_a_script_is_kept_as_one_and_takes_the_place_of_a_request_of_its_name(
    templates: Templates,
) -> None:
    templates.save("llm", REQUEST)
    assert templates.save("llm", SCRIPT).name == "llm.sh"
    assert templates.names() == ("llm",)
    assert templates.read("llm") == SCRIPT
    templates.save("llm", REQUEST)
    assert templates.read("llm") == REQUEST


def test_a_request_whose_command_writes_directives_is_no_script(templates: Templates) -> None:
    text = 'command = """\ncat > job <<E\n#SBATCH -n 1\nE\n"""\n'
    assert templates.save("writer", text).suffix == ".toml"


def test_bytes_of_a_script_that_are_no_utf_8_stay(templates: Templates) -> None:
    text = b"#!/bin/sh\necho caf\xe9\r\n".decode("utf-8", "surrogateescape")
    assert templates.save("old", text).read_bytes() == b"#!/bin/sh\necho caf\xe9\r\n"
    assert templates.read("old") == text


@for_each(
    "name", ["", ".", "..", "../x", "a/b", ".hidden", "-x", "a b", "a\nb", "é", "x" * 81, "a.toml"]
)
def test_a_name_that_is_no_safe_file_s_is_refused(templates: Templates, name: str) -> None:
    with pytest.raises(UsageError, match="name"):
        templates.save(name, REQUEST)
    with pytest.raises(UsageError, match="no template"):
        templates.read(name)
    assert not templates.folder.exists()


def test_a_name_that_is_not_there_suggests_the_nearest(templates: Templates) -> None:
    templates.save("llm-8", REQUEST)
    with pytest.raises(UsageError) as error:
        templates.read("llm8")
    assert error.value.next_step == "Did you mean 'llm-8'?"


def test_names_are_sorted_and_other_files_are_none(templates: Templates) -> None:
    for name in ("b", "a"):
        templates.save(name, REQUEST)
    (templates.folder / "notes.txt").touch()
    (templates.folder / ".new-x.toml").touch()
    assert templates.names() == ("a", "b")
    templates.remove("a")
    assert templates.names() == ("b",)


def test_a_template_that_is_a_link_stays_one(templates: Templates, tmp_path: Path) -> None:
    templates.save("llm", REQUEST)
    kept = tmp_path / "dotfiles.toml"
    (templates.folder / "llm.toml").rename(kept)
    (templates.folder / "llm.toml").symlink_to(kept)
    templates.save("llm", REQUEST * 2)
    assert (templates.folder / "llm.toml").is_symlink()
    assert kept.read_text() == REQUEST * 2


# -- what was submitted last


def test_the_newest_of_a_cluster_is_first(tmp_path: Path) -> None:
    recents = Recents(tmp_path)
    for at, cluster, name in (
        (30.0, "juno", "a"),
        (10.0, "juno", "b"),
        (20.0, "ceres", "c"),
        (20.5, "juno", "a"),
    ):
        recents.remember(cluster, name, f"{name} at {at}", "request", at)
    assert [one.text for one in Recents(tmp_path).recent("juno")] == [
        "a at 30.0",
        "a at 20.5",
        "b at 10.0",
    ]
    last = recents.newest_recent("juno", "a")
    assert last is not None
    assert last.text == "a at 30.0"
    assert recents.newest_recent("juno", "c") is None


def test_no_more_than_a_few_hundred_are_kept(tmp_path: Path) -> None:
    recents = Recents(tmp_path)
    for at in range(MAX_RECENT + 5):
        recents.remember("juno", "a", str(at), "script", float(at))
    texts = [one.text for one in recents.recent("juno")]
    assert len(texts) == MAX_RECENT
    assert (texts[0], texts[-1]) == (str(MAX_RECENT + 4), "5")


def test_names_and_texts_may_hold_anything(tmp_path: Path) -> None:
    recents = Recents(tmp_path)
    name, cluster = "../../x\n\x1b[31m", "a/b"
    recents.remember(cluster, name, "\x00\udce9é", "script", 1.0)
    (one,) = recents.recent(cluster)
    assert (one.name, one.text) == (name, "\x00\ufffdé")


def test_without_a_folder_they_are_those_of_this_run() -> None:
    recents = Recents(None)
    recents.remember("juno", "a", "text", "request", 1.0)
    assert recents.newest_recent("juno", "a") is not None


def test_where_the_folder_cannot_be_it_is_said_and_the_run_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    recents = Recents(tmp_path / "state")
    with pytest.raises(StateUnusable, match=r"state\.db cannot be written: File exists"):
        recents.remember("juno", "a", "text", "request", 1.0)
    assert [one.text for one in recents.recent("juno")] == ["text"]


def test_what_changed_since_the_last_submission_is_a_difference(tmp_path: Path) -> None:
    recents = Recents(tmp_path)
    recents.remember("juno", "llm", REQUEST, "request", 1.0)
    last = recents.newest_recent("juno", "llm")
    assert last is not None
    assert difference(last, REQUEST) == []
    assert difference(last, REQUEST.replace("8", "16"))[-2:] == ["-slots = 8", "+slots = 16"]
