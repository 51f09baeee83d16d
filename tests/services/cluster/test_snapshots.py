from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as pa_ipc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcdash.domain import schema
from hpcdash.domain.schema import SCHEMAS
from hpcdash.domain.tables import Kind
from hpcdash.services.cluster.snapshots import Snapshot, SnapshotCache
from tests.support.job_rows import build_table, job_row
from tests.support.real_files import as_somebody_else
from tests.support.records import for_each
from tests.support.scripted_transport import ScriptedTransport


def jobs(*ids: str, kind: Kind = Kind.MINE, taken_at: float = 12.5) -> Snapshot:
    rows = [job_row(job_id, "running", name="épreuve\n\x1b", cpus=3) for job_id in ids]
    return Snapshot(kind, build_table(*rows), taken_at, rejected=("a row",))


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def image_file(cache: SnapshotCache, kind: Kind = Kind.MINE) -> Path:
    return cache.folder / f"{kind}.arrow"


def test_a_snapshot_comes_back_as_it_was_and_marked_as_cached(tmp_path: Path) -> None:
    cache = SnapshotCache(tmp_path, "lab")
    saved = jobs("1", "2_[3-9%1]")
    assert cache.save(saved)
    loaded = SnapshotCache(tmp_path, "lab").load(Kind.MINE)
    assert loaded is not None
    assert loaded.table.equals(saved.table)
    assert loaded.table.schema == SCHEMAS[Kind.MINE]
    assert (loaded.taken_at, loaded.cached, loaded.rejected) == (12.5, True, ())


@for_each("kind", list(Kind))
def test_every_kind_can_be_kept_even_empty(tmp_path: Path, kind: Kind) -> None:
    cache = SnapshotCache(tmp_path, "lab")
    assert cache.load(kind) is None
    assert cache.save(Snapshot(kind, schema.empty(SCHEMAS[kind]), 1.0))
    loaded = cache.load(kind)
    assert loaded is not None
    assert loaded.table.num_rows == 0


def test_a_table_of_many_chunks_and_dictionaries_is_kept(tmp_path: Path) -> None:
    table = pa.concat_tables([jobs("1").table, Snapshot(Kind.MINE, jobs("2").table, 1.0).table])
    cache = SnapshotCache(tmp_path, "lab")
    assert cache.save(Snapshot(Kind.MINE, table, 1.0))
    loaded = cache.load(Kind.MINE)
    assert loaded is not None
    assert loaded.table["id"].to_pylist() == ["1", "2"]


def test_only_their_owner_can_read_the_files_whatever_the_umask(tmp_path: Path) -> None:
    cache = SnapshotCache(tmp_path / "cache" / "hpcdash", "lab")
    with umask(0):
        assert cache.save(jobs("1"))
    assert stat.S_IMODE(image_file(cache).stat().st_mode) == 0o600
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(cache.folder.parent.stat().st_mode) == 0o700


def test_a_folder_left_open_is_closed(tmp_path: Path) -> None:
    cache = SnapshotCache(tmp_path, "lab")
    cache.folder.mkdir()
    cache.folder.chmod(0o777)
    assert cache.save(jobs("1"))
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edits=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.integers(0, 400),
)
def test_a_damaged_file_is_none(tmp_path: Path, edits: list[tuple[int, int]], cut: int) -> None:
    cache = SnapshotCache(tmp_path, "lab")
    cache.save(jobs("1", "2", "3"))
    whole = image_file(cache).read_bytes()
    damaged = bytearray(whole)
    for position, value in edits:
        damaged[position % len(damaged)] = value
    del damaged[len(damaged) - cut % len(damaged) :]
    image_file(cache).write_bytes(damaged)
    assert (cache.load(Kind.MINE) is None) == (bytes(damaged) != whole)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_a_foreign_file_is_none(tmp_path: Path, foreign: bytes) -> None:
    cache = SnapshotCache(tmp_path, "lab")
    cache.folder.mkdir(exist_ok=True)
    image_file(cache).write_bytes(foreign)
    assert cache.load(Kind.MINE) is None


def test_an_arrow_file_of_somebody_else_is_none(tmp_path: Path) -> None:
    cache = SnapshotCache(tmp_path, "lab")
    cache.folder.mkdir()
    with pa_ipc.new_file(str(image_file(cache)), schema.JOBS) as writer:
        writer.write_table(jobs("1").table)
    assert cache.load(Kind.MINE) is None


def test_another_schema_and_another_format_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = SnapshotCache(tmp_path, "lab")
    cache.save(jobs("1"))
    image_file(cache).rename(image_file(cache, Kind.NODES))
    assert cache.load(Kind.NODES) is None
    cache.save(jobs("1"))
    assert cache.load(Kind.MINE) is not None
    monkeypatch.setattr("hpcdash.services.cluster.snapshots.FORMAT_VERSION", b"2")
    assert cache.load(Kind.MINE) is None


@pytest.mark.parametrize("taken_at", [float("nan"), float("inf")])
def test_a_snapshot_of_no_time_is_none(tmp_path: Path, taken_at: float) -> None:
    cache = SnapshotCache(tmp_path, "lab")
    cache.save(jobs("1", taken_at=taken_at))
    assert cache.load(Kind.MINE) is None


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for root in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nowhere")):
        cache = SnapshotCache(root, "lab")
        assert cache.save(jobs("1")) is False
        assert cache.load(Kind.MINE) is None


def test_a_folder_that_may_not_be_written_is_no_error() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        with as_somebody_else():
            assert SnapshotCache(Path(folder), "lab").save(jobs("1")) is False
            assert SnapshotCache(Path(folder), "lab").load(Kind.MINE) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_somebody_else_is_not_read(tmp_path: Path) -> None:
    cache = SnapshotCache(tmp_path, "lab")
    cache.save(jobs("1"))
    os.chown(image_file(cache), 65534, 65534)
    assert cache.load(Kind.MINE) is None


def test_a_save_that_fails_leaves_the_last_snapshot_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = SnapshotCache(tmp_path, "lab")
    cache.save(jobs("1"))

    def refuse(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        assert cache.save(jobs("2")) is False
    loaded = cache.load(Kind.MINE)
    assert loaded is not None
    assert loaded.table["id"].to_pylist() == ["1"]
    assert [path.name for path in cache.folder.iterdir()] == ["mine.arrow"]


@for_each(
    "cluster",
    [
        "../../etc",
        "..",
        ".",
        "",
        "/etc/passwd",
        "a/b",
        "x" * 5000,
        "\x00\n\x1b[31m",
        "é\udc80\ud800",
        "~root",
        "-rf",
    ],
)
def test_a_hostile_name_stays_inside_the_root(tmp_path: Path, cluster: str) -> None:
    root = tmp_path / "root"
    cache = SnapshotCache(root, cluster)
    assert cache.save(jobs("1"))
    assert cache.load(Kind.MINE) is not None
    assert cache.folder.resolve().parent == root
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


def test_clusters_of_like_names_are_kept_apart(tmp_path: Path) -> None:
    folders = {
        SnapshotCache(tmp_path, name).folder for name in ("a b", "a_b", "a/b", "x" * 100, "x" * 101)
    }
    assert len(folders) == 5


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    linked_folder = SnapshotCache(tmp_path / "root", "lab")
    linked_folder.folder.parent.mkdir()
    linked_folder.folder.symlink_to(outside)
    assert linked_folder.save(jobs("1")) is False
    assert list(outside.iterdir()) == []

    linked_file = SnapshotCache(tmp_path / "root", "other")
    linked_file.save(jobs("1"))
    image_file(linked_file).rename(outside / "kept")
    image_file(linked_file).symlink_to(outside / "kept")
    assert linked_file.load(Kind.MINE) is None
    kept = (outside / "kept").read_bytes()
    assert linked_file.save(jobs("2"))
    assert (outside / "kept").read_bytes() == kept


def test_a_pipe_in_place_of_a_file_holds_nothing_up(tmp_path: Path) -> None:
    cache = SnapshotCache(tmp_path, "lab")
    cache.folder.mkdir()
    os.mkfifo(image_file(cache))
    assert cache.load(Kind.MINE) is None


def test_saves_at_the_same_time_leave_one_whole_snapshot(tmp_path: Path) -> None:
    cache = SnapshotCache(tmp_path, "lab")
    results: list[bool] = []

    def save(number: int) -> None:
        for _ in range(10):
            results.append(SnapshotCache(tmp_path, "lab").save(jobs(*[str(number)] * number)))

    threads = [threading.Thread(target=save, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if (loaded := cache.load(Kind.MINE)) is not None:
            ids = loaded.table["id"].to_pylist()
            assert ids == [str(len(ids))] * len(ids)
    assert all(results)
    assert [path.name for path in cache.folder.iterdir()] == ["mine.arrow"]


async def test_a_large_table_is_written_once_a_minute_and_a_small_one_each_time(
    tmp_path: Path,
) -> None:
    from tests.support.scripted_cluster import Cluster

    cluster = Cluster(tmp_path, transport=ScriptedTransport())
    cluster.transport.everyone = [{"jobarrayid": str(number)} for number in range(1, 2002)]
    written = []
    for seconds in (0, 30, 40):
        cluster.clock.seconds += seconds
        for kind in (Kind.MINE, Kind.EVERYONE):
            await cluster.store.fetch(kind)
        for kind in (Kind.MINE, Kind.EVERYONE):
            loaded = cluster.cache.load(kind)
            assert loaded is not None
            written.append(loaded.taken_at == cluster.clock.now())
    assert written == [True, True, True, False, True, True]
