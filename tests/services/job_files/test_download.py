"""Files that change between their listing and their copy, names that lead elsewhere, and tables in
files.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.errors import UnreadableOutput
from hpcdash.services.cluster.clock import SystemClock
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.job_files.data_table import parse_data_table
from hpcdash.services.job_files.download import Download, RemoteFile, Transfer
from hpcdash.services.job_files.listing import folder_query
from hpcdash.transport.local import LocalTransport

pytestmark = pytest.mark.system


@pytest.fixture
def store() -> ClusterStore:
    transport = LocalTransport()
    budget = CommandBudget(600)
    return ClusterStore("here", transport, (BACKEND,), clock=SystemClock(), budget=budget, user="x")


@pytest.fixture
def there(tmp_path: Path) -> Path:
    folder = tmp_path / "there"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / name).write_text(f"{name} as listed\n")
    return folder


async def listed(store: ClusterStore, folder: Path) -> list[RemoteFile]:
    found = await store.run_query(folder_query(os.fsencode(folder)))
    files = [RemoteFile(found.path, entry, entry.name) for entry in found.entries]
    return sorted(files, key=lambda file: file.entry.name)


def everything(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


async def copied(store: ClusterStore, files: list[RemoteFile], here: Path) -> list[Transfer]:
    return await Download(store, here).run(files)


async def test_what_took_the_place_of_a_listed_file_is_not_read(
    store: ClusterStore, there: Path, tmp_path: Path
) -> None:
    files = await listed(store, there)
    (tmp_path / "secret").write_text("secret\n")
    (there / "a").unlink()
    (there / "a").symlink_to(tmp_path / "secret")
    os.rename(there / "b", there / "moved")
    (there / "b").write_text("another\n")
    found = await copied(store, files, tmp_path / "here")
    assert [(one.result, one.problem) for one in found] == [
        ("failed", "no longer a file there"),
        ("failed", "another file has its name now; copy it again"),
    ]
    assert os.listdir(tmp_path / "here") == []


async def test_a_file_that_grew_or_was_cut_is_copied_as_it_is_now(
    store: ClusterStore, there: Path, tmp_path: Path
) -> None:
    files = await listed(store, there)
    (there / "a").write_text("a as listed\nmore\n")
    os.truncate(there / "b", 1)
    found = await copied(store, files, tmp_path / "here")
    assert [one.result for one in found] == ["copied", "copied"]
    assert (tmp_path / "here" / "a").read_text() == "a as listed\nmore\n"
    assert (tmp_path / "here" / "b").read_text() == "b"


@pytest.mark.parametrize("name", [b"../x", b"/tmp/x", b"a/../../x", b"a//x", b".", b"", b"x\0"])
async def test_a_name_that_leads_elsewhere_is_refused(
    name: bytes, store: ClusterStore, there: Path, tmp_path: Path
) -> None:
    before = everything(tmp_path)
    (file, _) = await listed(store, there)
    (result,) = await copied(store, [replace(file, to=name)], tmp_path / "here")
    assert (result.result, result.problem) == ("failed", "its name leads out of the folder")
    assert everything(tmp_path) == sorted([*before, tmp_path / "here"])


async def test_a_folder_that_is_gone_fails_once_for_all_its_files(
    store: ClusterStore, there: Path, tmp_path: Path
) -> None:
    files = await listed(store, there)
    os.rename(there, tmp_path / "elsewhere")
    found = await copied(store, files, tmp_path / "here")
    assert {(one.result, one.problem) for one in found} == {("failed", "its folder is gone")}
    assert store.budget.sent == 2


def test_columns_of_numbers_are_numbers_and_hostile_headings_are_text() -> None:
    text = b"step,loss,\x1b[31m,_x,state,step\n1,0.5,a,1,up,9\n2,,b,x\n3,1e999,\xff,2,down,7\n"
    rows = parse_data_table(b"a.csv", text)
    assert dict(rows.spec.fields) == {
        "row": "count",
        "_row": "text",
        "step": "count",
        "loss": "real",
        "␛[31m": "text",
        "x": "text",
        "state'": "text",
    }
    assert rows.table["loss"].to_pylist() == [0.5, None, None]


@pytest.mark.parametrize("text", [b"", b"\n", b"a,b\n", b'"' * 200_000])
def test_a_file_without_rows_is_no_table(text: bytes) -> None:
    with pytest.raises(UnreadableOutput):
        parse_data_table(b"a.csv", text)
    with pytest.raises(UnreadableOutput):
        parse_data_table(b"a.jsonl", text)
