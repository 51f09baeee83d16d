"""The view of clusters names those of a Slurm site that are not configured."""

from __future__ import annotations

from msgspec.structs import replace

from hpcdash.config.destination import SshDestination
from hpcdash.config.settings import ClusterSettings
from hpcdash.ui.app import HpcdashApp
from tests.ui.stage import answering, answering_transport, press, screen_text, settled, until


async def test_clusters_that_are_not_configured_are_below_with_their_lines() -> None:
    transport = answering_transport()
    settings = ClusterSettings(
        "juno", "juno", "ssh", SshDestination("login"), backend="slurm", is_configured=True
    )
    app = HpcdashApp([replace(answering(transport, name="juno"), settings=settings)])
    async with app.run_test(size=(120, 30)) as pilot:
        await settled(pilot)
        probe = app.main.session.store.probe
        assert probe is not None
        transport.answers["sacctmgr"] = f"{probe.cluster}\nlab2\n"
        await press(pilot, "6")
        await until(pilot, lambda: "Not configured: lab2" in screen_text(app))
        assert "[clusters.lab2]" in screen_text(app)
        assert 'slurm_cluster = "lab2"' in screen_text(app)
        assert transport.count("sacctmgr") == 1
