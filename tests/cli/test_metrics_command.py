"""`hpcdash metrics` on an embedded queue: the chart and its words, JSON, CSV, Parquet, and what is
refused.
"""

from __future__ import annotations

import io
import os
import pty
import subprocess
from pathlib import Path

import pyarrow.parquet
import pytest

from hpcdash.cli.metrics import run_metrics
from hpcdash.cli.options import CommonOptions
from hpcdash.errors import HpcdashError
from tests.support.program import Program, home_with

# 200 steps, of which one is no number and four are a spike; stderr has another metric at every
# tenth.
LINE = '"step %d/1000 | train loss: %s | time per step (ms): 250\\n", s, l'
TRAIN = f"""#!/bin/bash
#SBATCH -J gpt -o out.log -e err.log -t 10
awk 'BEGIN {{ for (s = 1; s <= 1000; s++) {{
  l = sprintf("%.4f", 9 / sqrt(s) + (s % 7) / 1000); if (s == 600) l = "nan"; if (s == 700) l = "inf"
  if (s > 300 && s < 305) l = 40
  printf {LINE} }} }}'
for s in $(seq 10 10 1000); do echo "step $s, val_loss: 2.$s" >&2; done
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """On an embedded queue of its own."""
    folder = tmp_path_factory.mktemp("metrics")
    return Program(
        home_with(folder / "home"),
        ("--local", "--backend", "local"),
        {"HPCDASH_QUEUE": str(folder / "queue"), "HPCDASH_STATE": str(folder / "state")},
    )


def submit(program: Program, script: str, *options: str) -> str:
    file = program.home / "job.sh"
    file.write_text(script)
    return program("submit", str(file), *options).text.strip()


@pytest.fixture(scope="module")
def trained(program: Program) -> str:
    """A job that has ended."""
    job = submit(program, TRAIN)
    # It follows until the job has ended.
    assert program("metrics", job, "-f", "--format", "csv").status == 0
    return job


def test_json_is_the_contracts_object_and_says_where_nan_and_inf_stood(
    program: Program, trained: str
) -> None:
    run = program(
        "metrics", trained, "--format", "json", "--metric", "train loss", "--metric", "val_loss"
    )
    answer = run.json
    assert {key: answer[key] for key in ("schema", "cluster", "backend")} == {
        "schema": 1,
        "cluster": "local",
        "backend": "local",
    }
    assert answer["taken_at"].endswith("Z")
    loss, val = answer["series"]
    assert (loss["name"], loss["axis"], loss["exact"]) == ("train loss", "step", True)
    assert loss["source"] == str(program.home / "out.log")
    assert loss["x"] == [*range(1, 1001)]
    assert (loss["y"][0], loss["y"][599], loss["y"][699]) == (9.001, None, None)
    assert (loss["nan"], loss["inf"]) == ([600], [700])
    assert (val["source"], val["x"]) == (str(program.home / "err.log"), [*range(10, 1001, 10)])
    assert b"NaN" not in run.stdout


def test_csv_is_a_row_a_step_and_empty_where_a_metric_has_no_value(
    program: Program, trained: str
) -> None:
    lines = program("metrics", trained, "--format", "csv").text.splitlines()
    assert lines[0] == '"step","time per step (ms)","train loss","val_loss"'
    assert lines[1] == "1,250,9.001,"
    assert lines[600].split(",")[2] == "nan"
    assert lines[700].split(",")[2] == "inf"
    assert lines[1000] == "1000,250,0.2906,2.1"
    assert len(lines) == 1001


def test_parquet_has_the_same_table(program: Program, trained: str) -> None:
    written = program("metrics", trained, "--format", "parquet").stdout
    table = pyarrow.parquet.read_table(io.BytesIO(written))
    assert table.column_names == ["step", "time per step (ms)", "train loss", "val_loss"]
    assert table["step"].to_pylist() == [*range(1, 1001)]
    assert table["val_loss"].null_count == 900
    out = program.home / "curve.parquet"
    precious = program.home / ".bash_aliases"
    precious.write_text("precious")
    out.symlink_to(precious)
    assert program("metrics", trained, "--format", "parquet", "--out", str(out)).stdout == b""
    assert out.read_bytes() == written
    assert precious.read_text() == "precious"


def test_the_chart_fits_its_width_has_no_colours_in_a_pipe_and_says_what_it_means(
    program: Program, trained: str
) -> None:
    run = program("metrics", trained, COLUMNS="72")
    assert (run.status, run.stderr) == (0, "")
    assert "\x1b" not in run.text
    lines = run.text.splitlines()
    assert lines[0] == f"{trained} gpt"
    feet = [at for at, line in enumerate(lines) if "└" in line]
    assert [len(lines[at]) for at in feet] == [72, 72]
    assert max(len(line) for line in lines[: feet[1] + 1]) == 72
    titles = [line.split("  ")[0].strip() for line in lines if "newest" in line]
    assert titles == ["val_loss", "train loss"]
    # The spike, and under it where no number stood.
    drawn = lines[feet[0] + 2 : feet[1]]
    assert [sum(line.count(sign) for line in drawn) for sign in "▲✗"] == [1, 2]
    meaning = "\n".join(lines[-4:])
    assert "train loss 0.2906 at step 1 000; spike at 301" in meaning
    assert "nan first at 600 (once); finite again since 601" in meaning
    assert "0.25 s/step, steady" in meaning


def test_a_wide_chart_has_two_metrics_beside_each_other_and_a_log_scale_says_so(
    program: Program, trained: str
) -> None:
    run = program("metrics", trained, "--log", COLUMNS="140")
    (titles,) = [line for line in run.text.splitlines() if "newest" in line]
    assert titles.startswith(" val_loss (log)  newest 2.1")
    assert "train loss (log)  newest 0.2906" in titles
    (foot,) = [line for line in run.text.splitlines() if "└" in line]
    assert (len(foot), foot.count("└")) == (140, 2)


def test_a_terminal_without_braille_letters_has_plain_ones(program: Program, trained: str) -> None:
    run = program("metrics", trained, COLUMNS="80", PYTHONIOENCODING="ascii")
    assert run.stdout.isascii()
    assert "|" in run.text
    assert "0.5249 -> 40, recovered after 4 points" in run.text


def test_a_metric_is_found_by_its_only_likely_name_and_an_unknown_one_is_told_with_those_there_are(
    program: Program, trained: str
) -> None:
    assert " train loss  newest 0.2906" in program("metrics", trained, "--metric", "TRAIN").text
    words = program("metrics", trained, "--metric", "acc").refused(1)
    assert "no metric 'acc'" in words
    assert "Available: time per step (ms), train loss, val_loss." in words
    assert "no metric 'loss'" in program("metrics", trained, "--metric", "loss").refused(1)


def test_what_has_no_metric_is_refused_with_a_next_step(program: Program) -> None:
    quiet = submit(program, "#!/bin/sh\n#SBATCH -o quiet.log\necho hello\n")
    words = program("metrics", quiet, "-f").refused(1)
    assert f"no metrics found in {program.home}/quiet.log" in words
    assert "--file reads a metrics file" in words
    held = submit(
        program, TRAIN.replace("out.log", "held.log").replace("err.log", "held.err"), "--hold"
    )
    words = program("metrics", held).refused(1)
    assert "held.log: no such file" in words
    assert "The job is held" in words
    assert "999" in program("metrics", "999").refused(1)
    program("metrics", held, "--format", "yaml").refused(2)


def test_a_metrics_file_and_expressions_of_the_configuration_are_read(
    program: Program, trained: str
) -> None:
    (program.home / "own.txt").write_text("@1 energy -1.5\n@2 energy -2.5\n")
    program.config.parent.mkdir(parents=True, exist_ok=True)
    program.config.write_text(
        "[metrics]\npatterns = ['@(?P<step>[0-9]+) energy (?P<energy>[-0-9.]+)']\n"
    )
    try:
        words = ("metrics", trained, "--file", "own.txt", "--format", "csv")
        assert program(*words).text == '"step","energy"\n1,-1.5\n2,-2.5\n'
        program.config.write_text("[metrics]\npatterns = [\n'@(?P<energy>'\n]\n")
        error_text = program(*words).refused(2)
        assert f"{program.config}:" in error_text
        assert "metrics.patterns[0]: the pattern" in error_text
    finally:
        program.config.unlink()


def test_a_file_is_read_without_a_job(program: Program) -> None:
    # The last line has no end.
    (program.home / "train.log").write_text(
        "".join(f"step {n} loss 2.{n}\n" for n in range(1, 6)) + "step 6 loss 1.5"
    )
    assert program("metrics", "--file", "train.log", "--format", "csv").text.splitlines()[-2:] == [
        "5,2.5",
        "6,1.5",
    ]
    (loss,) = program("metrics", "--file", "~/train.log", "--format", "json").json["series"]
    assert (loss["source"], loss["x"]) == (str(program.home / "train.log"), [1, 2, 3, 4, 5, 6])
    chart = program("metrics", "--file", "train.log")
    assert (chart.status, chart.text.splitlines()[0]) == (0, str(program.home / "train.log"))
    absent = program("metrics", "--file", "none.log").refused(1)
    assert "none.log: no such file" in absent
    assert "Check the path: hpcdash looks for it on" in absent
    assert "[metrics]" not in absent, "no expression finds a file"
    assert "hpcdash metrics --file train.log" in program("metrics", "train.log").refused(2)
    assert "hpcdash metrics --file" in program("metrics").refused(2)


def test_csv_is_written_as_it_comes(program: Program) -> None:
    go = program.home / "go"
    lines = [f"echo 'step {n} loss 2.{n}'" for n in range(1, 4)]
    held = f"until [ -e {go} ]; do sleep 0.1; done"
    later = ["echo 'step 4 loss 2.4 val_loss 7'", "echo 'step 5 loss 2.5'"]
    job = submit(program, "\n".join(["#!/bin/sh", "#SBATCH -o live.log", *lines, held, *later, ""]))
    argv = program.argv("metrics", job, "-f", "--format", "csv")
    with subprocess.Popen(
        argv,
        env=program.environment,
        cwd=program.home,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert [process.stdout.readline() for _ in range(3)] == [
            b'"step","loss"\n',
            b"1,2.1\n",
            b"2,2.2\n",
        ]
        go.touch()
        assert process.stdout.read().splitlines() == [b"3,2.3", b"4,2.4", b"5,2.5"]
        assert b"val_loss appeared later and has no column" in process.stderr.read()
    assert process.returncode == 0


def test_in_a_terminal_the_chart_has_colours_and_parquet_is_refused(
    program: Program, trained: str
) -> None:
    def seen(*words: str, **variables: str) -> tuple[int, bytes]:
        keyboard, screen = pty.openpty()
        environment = {**program.environment, "COLUMNS": "60", **variables}
        argv = program.argv("metrics", trained, *words)
        process = subprocess.Popen(
            argv, env=environment, stdin=screen, stdout=screen, stderr=screen, cwd=program.home
        )
        os.close(screen)
        shown = b""
        try:
            while part := os.read(keyboard, 4096):
                shown += part
        except OSError:
            # Linux says so when the last who had the terminal open is gone.
            pass
        os.close(keyboard)
        return process.wait(), shown

    status, shown = seen()
    assert status == 0
    assert b"\x1b[" in shown
    assert b"\x1b[" not in seen(NO_COLOR="1")[1]
    status, shown = seen("--format", "parquet")
    assert (status, b"--out FILE" in shown) == (2, True)


def test_what_goes_wrong_within_hpcdash_ends_with_a_status_and_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(*_: object) -> None:
        raise ValueError("of no sense")

    (tmp_path / "train.log").write_text("step 1 loss 2\n")
    monkeypatch.setenv("HPCDASH_QUEUE", str(tmp_path / "queue"))
    monkeypatch.setattr("hpcdash.services.metrics.reader.MetricReader.feed", fails)
    with pytest.raises(
        HpcdashError, match="hpcdash could not read this: ValueError: of no sense"
    ) as raised:
        run_metrics(
            CommonOptions(local=True, backend="local"),
            job="",
            form="csv",
            requested=(),
            file=str(tmp_path / "train.log"),
            follow=False,
            out=None,
        )
    assert raised.value.exit_status == 1
