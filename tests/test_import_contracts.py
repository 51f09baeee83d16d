"""The layers of the house, held by import-linter; and what the first screen does not wait for."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system
ROOT = Path(__file__).resolve().parent.parent
# numpy is not among them: pyarrow imports it by itself.
HEAVY = (
    *("pandas", "plotext", "asyncssh", "textual_fastdatatable"),
    *("hpcdash.services.metrics.charts.draw", "hpcdash.services.metrics.reader"),
)


def test_every_import_contract_is_kept() -> None:
    program = Path(sys.executable).with_name("lint-imports")
    ended = subprocess.run([program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_contract_that_is_broken_is_seen(tmp_path: Path) -> None:
    """The contracts can fail: an interface that imports a transport's ssh is refused."""
    for path in (ROOT / "hpcdash").rglob("*.py"):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.touch()
    (tmp_path / "hpcdash" / "ui" / "app.py").write_text("import hpcdash.transport.ssh\n")
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    program = Path(sys.executable).with_name("lint-imports")

    ended = subprocess.run(
        [program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode != 0
    assert "hpcdash.ui.app -> hpcdash.transport.ssh" in ended.stdout


def test_the_first_screen_waits_for_no_heavy_import() -> None:
    code = (
        "import sys, hpcdash.cli.main, hpcdash.cli.dashboard, hpcdash.ui.app, "
        "hpcdash.services.watch.board\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "[]"
