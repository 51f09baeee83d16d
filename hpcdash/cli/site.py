"""What the configuration says of the cluster a script is for, before anything is asked of it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from hpcdash.backends.base import Backend
from hpcdash.backends.embedded.backend import EmbeddedBackend
from hpcdash.backends.registry import BACKENDS
from hpcdash.cli.build import EMBEDDED, chosen_clusters
from hpcdash.cli.options import CommonOptions
from hpcdash.config import ClusterSettings, load_settings
from hpcdash.config.settings import LaunchSettings
from hpcdash.errors import UsageError

_NEXT_STEP = (
    f"Write {' or '.join(f'--for {name}' for name in BACKENDS)}, or set backend = "
    f"{' or '.join(json.dumps(name) for name in BACKENDS)} in its table."
)


@dataclass(frozen=True, slots=True)
class ChosenSite:
    """The cluster, its [launch], and whether nothing is to be changed on it."""

    cluster: ClusterSettings
    launch: LaunchSettings
    is_read_only: bool


def chosen_site(common: CommonOptions) -> ChosenSite:
    """The cluster that is named, else the configuration's first, else this machine; nothing is asked of it."""
    settings = load_settings(common.config)
    cluster = chosen_clusters(common, settings)[0]
    return ChosenSite(cluster, cluster.launch, common.read_only or settings.read_only)


def scheduler_for(said: str | None, cluster: ClusterSettings) -> Backend:
    """The one that is said, else the cluster's configured one; raises UsageError where neither tells."""
    # A class attribute: the queue itself need not be there.
    name = said or (EmbeddedBackend.scripts_of if cluster.backend == EMBEDDED else cluster.backend)
    if name:
        return BACKENDS[name]
    raise UsageError(
        f"which scheduler is it for? The configuration does not say what {cluster.name} has",
        _NEXT_STEP,
    )
