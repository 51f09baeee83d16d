"""What checks of a node found is told in the view of nodes."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from hpcdash.services.submit.launches import Launches
from hpcdash.services.submit.node_checks import NodeCheckRecords
from hpcdash.ui.app import HpcdashApp
from hpcdash.ui.cluster.nodes import NodesView
from tests.ui.stage import replayed


async def test_the_pointed_node_tells_what_a_check_found_last(tmp_path: Path) -> None:
    session = replayed()
    session = replace(session, launches=Launches(session.store, state_folder=tmp_path))
    app = HpcdashApp([session])
    async with app.run_test(size=(140, 40)):
        view = NodesView(session)
        row = {"name": "g1", "native_state": "idle", "reason": None, "features": ["[bold]"]}
        assert view.row_hint(row) == "g1 idle  ·  [bold]"
        records = NodeCheckRecords(tmp_path, session.name)
        records.note_lines(["g1: hpcdash: the disk check failed: /tmp \x1b[2J full"], view.now().timestamp() - 7200)
        assert view.row_hint(row) == "g1 idle  ·  [bold]  ·  disk check failed 2 h ago: /tmp ␛[2J full"
