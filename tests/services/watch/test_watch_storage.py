"""How full places are: what df, du and the quota tools print, and what is told of it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.config.watch_settings import StorageRule
from hpcdash.domain.alerts import Finding, Severity
from hpcdash.domain.units import DAY, HOUR
from hpcdash.errors import UnreadableOutput
from hpcdash.services.watch.disks import (
    PARSERS,
    DiskUsage,
    find_usage,
    joined,
    parse_beegfs_quota,
    parse_df,
    parse_df_inodes,
    parse_du,
    parse_lfs_quota,
    parse_mmlsquota,
    parse_quota,
)
from hpcdash.services.watch.rules.places import (
    BYTES,
    INODES,
    Sample,
    daily_growth,
    find_full,
)
from tests.support.records import for_each

KIB, GIB, TIB = 1024, 1 << 30, 1 << 40
DF = b"Filesystem     1024-blocks      Used Available Capacity Mounted on\n"
LFS = b"     Filesystem  kbytes   quota   limit   grace   files   quota   limit   grace\n"
QUOTA = b"     Filesystem   space   quota   limit   grace   files   quota   limit   grace\n"
GPFS = (
    b"mmlsquota::HEADER:version:reserved:reserved:filesystemName:quotaType:id:name:blockUsage:blockQuota:blockLimit:"
    b"blockInDoubt:blockGrace:filesUsage:filesQuota:filesLimit:filesInDoubt:filesGrace:remarks:quota:defQuota:fid:"
    b"filesetname:\n"
)


def run(*argv: str) -> bytes:
    return subprocess.run(
        argv, env={**os.environ, "LC_ALL": "C"}, capture_output=True, check=False
    ).stdout


@pytest.mark.system
def test_df_counts_of_this_machine(tmp_path: Path) -> None:
    found = parse_df(run("df", "-P", "-k", "--", str(tmp_path)), str(tmp_path))
    there = os.statvfs(tmp_path)
    assert len(found) == 1
    assert str(tmp_path).startswith(found[0].name)
    limit = found[0].bytes_limit
    assert limit is not None
    assert limit <= there.f_blocks * there.f_frsize


@pytest.mark.system
def test_df_inodes_of_this_machine(tmp_path: Path) -> None:
    (found,) = parse_df_inodes(run("df", "-P", "-i", "--", str(tmp_path)), str(tmp_path))
    assert found.bytes_used is None
    assert found.inodes_used is None or found.inodes_used >= 0


@pytest.mark.system
def test_du_of_this_machine_counts_what_it_may_read(tmp_path: Path) -> None:
    (tmp_path / "checkpoint\n5\t").write_bytes(b"x" * 300_000)
    used = parse_du(run("du", "-s", "-k", "--", str(tmp_path)), str(tmp_path)).bytes_used
    assert used is not None
    assert used >= 300_000 - KIB
    assert (
        parse_du(
            run("du", "-s", "--inodes", "--", str(tmp_path)), str(tmp_path), inodes=True
        ).inodes_used
        == 2
    )


def test_what_is_kept_for_root_is_not_free() -> None:
    (root,) = parse_df(DF + b"/dev/vda        264212084 24716876  81674036      24% /\n")
    assert root.bytes_limit == (24716876 + 81674036) * KIB


def test_blocks_have_the_size_of_the_heading() -> None:
    (root,) = parse_df(
        b"Filesystem 512-blocks Used Available Capacity Mounted on\n/dev/a 8 2 6 25% /\n"
    )
    assert root.bytes_used == 1024


def test_a_device_and_a_mount_point_may_hold_blanks_and_figures() -> None:
    printed = DF + b"//server/my share 9 9 9 99% /x 1000 900 100 90% /mnt/a 5 6 7 8% /real\n"
    (found,) = parse_df(printed, "/mnt/a 5 6 7 8% /real/ckpt")
    assert (found.name, found.bytes_used, found.bytes_limit) == (
        "/mnt/a 5 6 7 8% /real",
        900 * KIB,
        1000 * KIB,
    )


def test_a_mount_point_cannot_forge_its_figures_where_the_path_is_not_known() -> None:
    (found,) = parse_df(DF + b"/dev/sdb 1000 900 100 90% /mnt/a 5 1 4 8% /real\n")
    assert (found.name, found.bytes_used) == ("/mnt/a 5 1 4 8% /real", 900 * KIB)


def test_a_device_whose_name_looks_like_figures_does_not_fit_its_share() -> None:
    (found,) = parse_df(DF + b"//server/a 9 1 2 99% /x 1000 900 100 90% /mnt\n")
    assert (found.name, found.bytes_used) == ("/mnt", 900 * KIB)


def test_a_file_system_without_figures_is_left_out() -> None:
    found = parse_df(DF + b"proc 0 0 0 - /proc\nfuse - - - - /f\n/dev/a 10 5 5 50% /\n")
    assert [usage.name for usage in found] == ["/proc", "/"]
    assert found[0].bytes_limit is None


def test_btrfs_has_no_limit_of_inodes() -> None:
    (found,) = parse_df_inodes(
        b"Filesystem Inodes IUsed IFree IUse% Mounted on\n/dev/a 0 0 0 - /data\n"
    )
    assert found.inodes_limit is None


def test_lustre_wraps_long_names_and_marks_what_is_over_and_what_is_inexact() -> None:
    printed = (
        b"Disk quotas for prj 1483801647 (pid 1483801647):\n"
        + LFS
        + b"/lus/lfs1aip2/projects/b5ak\n"
        + (
            b"                78173842908       0 214748364800       - 4044325       0 51200000  "
            b"    "
            b" -\n"
        )
        + b"Disk quotas for usr alice (uid 500):\n"
        + LFS
        + b"   /mnt/lustre 30720* 30000 30920 6d23h56m44s 10101* 10000 11000 6d23h59m50s\n"
        + (
            b"lustre-OST0000_UUID\n                  100*      -     100       -       -       - "
            b"    "
            b"  -       -\n"
        )
        + b"Disk quotas for user root (uid 0):\n"
        + LFS
        + b"        /univ_1 [10200224]       0       0       -   17724       0       0       -\n"
        + b'Some errors happened when getting quota info. The data in "[]" is inaccurate.\n'
        + b"uid 0 is using default block quota setting\n"
    )
    project, alice, root = parse_lfs_quota(printed)
    assert project == DiskUsage(
        "lfs quota",
        "/lus/lfs1aip2/projects/b5ak",
        "prj 1483801647",
        78173842908 * KIB,
        214748364800 * KIB,
        4044325,
        51200000,
    )
    assert (alice.owner, alice.bytes_limit, alice.inodes_limit) == ("usr alice", 30000 * KIB, 10000)
    assert (root.is_inexact, root.bytes_used, root.bytes_limit) == (True, 10200224 * KIB, None)


def test_lustre_counts_in_units_with_h_and_names_hold_blanks() -> None:
    (found,) = parse_lfs_quota(
        LFS + b" /lustre/my 5 7  1.5T   0k     10T       -      10        0   1000000       -\n"
    )
    assert (found.name, found.bytes_used, found.bytes_limit) == (
        "/lustre/my 5 7",
        1.5 * TIB,
        10 * TIB,
    )


@for_each(
    ("line", "name", "used", "limit", "files", "files_limit"),
    [
        (
            b"      /home  14339M  16384M  20480M        160k       0       0        ",
            "/home",
            14339,
            16384,
            160_000,
            None,
        ),
        (
            b"/dev/mapper/home\n        7876M      0K  10240M      105k  0  0 ",
            "/dev/mapper/home",
            7876,
            10240,
            105_000,
            None,
        ),
        (
            b"10.1.1.1:/home 116M*   100M    200M   6days      12  0   0        ",
            "10.1.1.1:/home",
            116,
            100,
            12,
            None,
        ),
        (
            b"10.1.1.8:/ucl\n   13423M  0K  20480M   437k   0   1000k",
            "10.1.1.8:/ucl",
            13423,
            20480,
            437_000,
            1_000_000,
        ),
        (b"s:/a 100M 200M 0K 12* 10 20 23:15", "s:/a", 100, 200, 12, 10),
        (b"s:/a 3 4 5 7M 8M 9M none 12 10 20 none", "s:/a 3 4 5", 7, 8, 12, 10),
    ],
)
def test_quota_of_linux(
    line: bytes, name: str, used: int, limit: int, files: int, files_limit: int | None
) -> None:
    (found,) = parse_quota(b"Disk quotas for user alice (uid 1001): \n" + QUOTA + line)
    assert (found.name, found.owner) == (name, "user alice")
    assert (found.bytes_used, found.bytes_limit) == (used << 20, limit << 20)
    assert (found.inodes_used, found.inodes_limit) == (files, files_limit)


def test_quota_without_letters_counts_in_kib_and_none_is_none() -> None:
    (found,) = parse_quota(
        QUOTA.replace(b" space", b"blocks") + b" /dev/sda1 62743228 0 0 137561 0 0\n"
    )
    assert (found.bytes_used, found.inodes_used, found.bytes_limit) == (
        62743228 * KIB,
        137561,
        None,
    )
    assert parse_quota(b"Disk quotas for user alice (uid 1001): none\n") == ()


def test_beegfs_as_a_table_and_as_csv() -> None:
    table = (
        b"\nQuota information for storage pool Default (ID: 1):\n\n"
        b"      user/group     ||           size          ||    chunk files    \n"
        b"     name     |  id  ||    used    |    hard    ||  used   |  hard   \n"
        b"--------------|------||------------|------------||---------|---------\n"
        b"       support|  1000|| 325.48 GiB |   2.00 TiB ||   119758|unlimited\n"
        b"        a | b |158537||      0 Byte|      1 Byte||        0|        1\n"
    )
    support, other = parse_beegfs_quota(table)
    assert support == DiskUsage(
        "beegfs-ctl", "Default", "support", round(325.48 * GIB), 2 * TIB, 119758, None
    )
    assert (other.owner, other.bytes_used, other.bytes_limit, other.inodes_limit) == (
        "a | b",
        0,
        1,
        1,
    )
    (csv,) = parse_beegfs_quota(
        b"name,id,size,hard,files,hard\nfoo,1000,1073741824,unlimited,100,0\n"
    )
    assert (csv.bytes_used, csv.bytes_limit, csv.inodes_used, csv.inodes_limit) == (
        GIB,
        None,
        100,
        None,
    )


def test_gpfs_columns_go_by_name_and_values_are_unquoted() -> None:
    rows = (
        b"mmlsquota::0:1:::gpfs01:USR:1234:m%3Ae:2097152:10485760:12582912:0:none:4000:0:500000:0:none:e:on:off:::\n"
        b"mmlsquota::0:1:::gpfs01:FILESET:7:lab:9999999:0:0:0:none:1:0:0:0:none:e:on:off::proj:\n"
    )
    user, fileset = parse_mmlsquota(GPFS + rows)
    assert user == DiskUsage(
        "mmlsquota", "gpfs01", "USR m:e", 2097152 * KIB, 10485760 * KIB, 4000, 500000
    )
    assert (fileset.name, fileset.bytes_limit) == ("gpfs01:proj", None)


@pytest.mark.parametrize("program", PARSERS)
@given(printed=st.binary(max_size=300))
def test_no_output_breaks_a_parser(program: str, printed: bytes) -> None:
    for text in (printed, LFS + printed, GPFS + printed, b"name,id,size\n" + printed):
        with contextlib.suppress(UnreadableOutput):
            PARSERS[program](text)


@for_each("program", PARSERS)
def test_what_another_program_printed_is_refused_by_name(program: str) -> None:
    with pytest.raises(UnreadableOutput, match=program):
        PARSERS[program](b"Last login: Thu Jul 21 16:56:39 2022 from 145.90.36.181\n")


def test_a_line_of_a_hundred_thousand_blanks_is_read_at_once() -> None:
    parse_quota(QUOTA + b"x" + b" " * 100_000 + b"y\n" + b"1 " * 50_000 + b"y\n")
    parse_lfs_quota(LFS + b"x" + b" " * 100_000 + b"y\n" + b"1 " * 50_000 + b"y\n")


@pytest.mark.parametrize("parse", [parse_df, parse_df_inodes])
@given(printed=st.binary(max_size=300))
def test_no_output_breaks_df(parse: object, printed: bytes) -> None:
    for text in (printed, DF + printed, b"Filesystem Inodes\n" + printed):
        with contextlib.suppress(UnreadableOutput):
            parse(text, "/x")  # type: ignore[operator]


def test_a_path_has_the_longest_mount_point_it_lies_under() -> None:
    usages = [DiskUsage("df", "/"), DiskUsage("df", "/work"), DiskUsage("df", "/workshop")]
    assert find_usage(usages, "/work/alice") == usages[1]
    assert find_usage([DiskUsage("beegfs-ctl", "Default")], "/work") is not None
    assert find_usage([DiskUsage("quota", "/dev/a"), DiskUsage("quota", "/dev/b")], "/work") is None


def test_the_quota_tool_comes_before_df_where_it_tells_a_limit() -> None:
    quota = DiskUsage("lfs quota", "/w", bytes_used=5, bytes_limit=10, inodes_used=7)
    df = DiskUsage("df", "/w", bytes_used=50, bytes_limit=100, inodes_used=70, inodes_limit=700)
    both = joined([None, quota, df])
    assert both is not None
    assert (both.bytes_used, both.inodes_used, both.inodes_limit, both.source) == (
        5,
        70,
        700,
        "lfs quota, df",
    )


def full(share: float, **more: object) -> DiskUsage:
    return DiskUsage("df", "/work", bytes_used=round(share * TIB), bytes_limit=TIB, **more)  # type: ignore[arg-type]


def storage(usage: DiskUsage, rule: StorageRule, history: Sequence[Sample] = ()) -> list[Finding]:
    return [*find_full(rule, BYTES, usage, history), *find_full(rule, INODES, usage)]


@for_each(
    ("share", "watch", "severity"),
    [
        (0.84, StorageRule("/work"), None),
        (0.851, StorageRule("/work"), Severity.WARNING),
        (0.96, StorageRule("/work"), Severity.CRITICAL),
        (0.76, StorageRule("/work", is_scratch=True), Severity.WARNING),
        (0.74, StorageRule("/work", is_scratch=True), None),
        (0.67, StorageRule("/work", full_at=0.8), None),
        (0.69, StorageRule("/work", full_at=0.8), Severity.WARNING),
        (0.5, StorageRule("/work", floor_bytes=TIB), Severity.CRITICAL),
        (0.5, StorageRule("/work", share=0.4), Severity.WARNING),
    ],
)
def test_a_share_or_a_floor(share: float, watch: StorageRule, severity: Severity | None) -> None:
    found = storage(full(share), watch)
    assert [finding.severity for finding in found] == ([severity] if severity else [])


def test_bytes_and_inodes_are_told_apart() -> None:
    found = storage(full(0.9, inodes_used=990, inodes_limit=1000), StorageRule("/work"))
    assert [(finding.aspect, finding.severity) for finding in found] == [
        ("bytes", Severity.WARNING),
        ("inodes", Severity.CRITICAL),
    ]
    assert found[1].text == "/work: 99% of 1000 inodes used, 10 free"


def test_growth_against_what_is_left_forecasts_the_end() -> None:
    history = [(hour * HOUR, round(0.5 * TIB + hour * TIB / 96)) for hour in range(13)]
    used = history[-1][1]
    (finding,) = storage(
        DiskUsage("df", "/work", bytes_used=used, bytes_limit=TIB), StorageRule("/work"), history
    )
    # A quarter of a TiB a day, three eighths left.
    assert finding.severity is Severity.WARNING
    assert "full in 1 d 12 h at 256G a day" in finding.text
    assert storage(full(0.5), StorageRule("/work", forecast_seconds=None), history) == []


def test_what_the_checkpoints_are_known_to_write_counts_before_anything_was_measured() -> None:
    (finding,) = storage(full(0.5), StorageRule("/work", planned_bytes_a_day=2.0 * TIB))
    assert (finding.severity, "full in 6 h" in finding.text) == (Severity.CRITICAL, True)


def test_growth_needs_an_hour_and_does_not_mind_order() -> None:
    assert daily_growth([(0, 0), (HOUR - 1, 10**9)]) == 0
    assert daily_growth([(DAY, 30), (0, 10)]) == pytest.approx(20)
    assert daily_growth([]) == 0


def test_what_du_counted_has_the_limit_of_the_settings() -> None:
    (finding,) = storage(
        DiskUsage("du", "/work", bytes_used=90), StorageRule("/work", limit_bytes=100)
    )
    assert finding.severity is Severity.WARNING
    assert storage(DiskUsage("du", "/work", bytes_used=90), StorageRule("/work")) == []


LONG = b"9" * 5000


@for_each(
    ("parse", "printed"),
    [
        (parse_df, DF + b"/dev/a 10 5 5 50%% /\n/dev/b %b 5 5 50%% /b\n" % LONG),
        (
            parse_df_inodes,
            b"Filesystem Inodes IUsed IFree Mounted on\n/a 9 4 5 45%% /\n/b 9 %b 5 1%% /b\n" % LONG,
        ),
        (parse_lfs_quota, LFS + b"/a 1 2 3 - 4 5 6 -\n/b %b 2 3 - 4 5 6 -\n" % LONG),
        (parse_quota, QUOTA + b"/a 1M 2M 3M 4 5 6\n/b 1M 2M 3M %b 5 6\n" % LONG),
        (parse_beegfs_quota, b"name,id,size,hard,files,hard\na,1,2,3,4,5\na,1,%b,3,4,5\n" % LONG),
        (
            parse_mmlsquota,
            GPFS + b"mmlsquota::0:1:::a:USR:5:a:1:2:3\nmmlsquota::0:1:::b:USR:5:a:%b:2:3\n" % LONG,
        ),
    ],
)
def test_a_figure_of_thousands_of_digits_is_none_and_the_other_rows_stand(
    parse: Callable[[bytes], tuple[DiskUsage, ...]], printed: bytes
) -> None:
    assert len(parse(printed)) == 1


def test_a_sum_of_thousands_of_digits_is_refused() -> None:
    for parse, printed in (
        (parse_du, LONG + b"\t/a\n"),
        (parse_df, DF.replace(b"1024", LONG) + b"/a 10 5 5 50% /\n"),
    ):
        with pytest.raises(UnreadableOutput):
            parse(printed, "/")
