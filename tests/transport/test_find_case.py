"""A case is named by its folder, or a shipped one by its name alone."""

from pathlib import Path

from hpcdash.recorded import find_case


def test_a_shipped_case_is_found_by_its_name() -> None:
    found = find_case(Path("everyday"))
    assert found.name == "everyday"
    assert found.parent.parent.name == "slurm"
    assert (found / "case.toml").is_file()


def test_a_shipped_case_of_another_backend_is_found_by_the_backend_s_name_and_its_own() -> None:
    found = find_case(Path("pbs/everyday"))
    assert found.parts[-3:] == ("pbs", "23.06", "everyday")
    assert (found / "case.toml").is_file()
    assert find_case(Path("pbs/no-such-case")) == Path("pbs/no-such-case")
    assert find_case(Path("*/..")) == Path("*/..")


def test_a_folder_is_taken_as_it_is_named(tmp_path: Path) -> None:
    assert find_case(tmp_path) == tmp_path
    assert find_case(tmp_path / "none" / "everyday") == tmp_path / "none" / "everyday"
    assert find_case(Path("no-such-case")) == Path("no-such-case")
