"""The records a configuration becomes, with their defaults and units."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpcdash.config.destination import SshDestination
from hpcdash.config.watch_settings import WatchSettings
from hpcdash.domain.request import Site

DEFAULT_THEME = "hpcdash-dark"


@dataclass(frozen=True, slots=True)
class PollSettings:
    """How often a cluster is asked; [poll] for all clusters, [clusters.NAME.poll] for one.

    mine_seconds: one's own jobs. everyone_seconds: the whole queue, while shown. nodes_seconds: nodes and queues, while
    shown. history_seconds: ended jobs, while shown. All at least 3 seconds and at most a day.
    unfocused_factor: all of these times this (1 or more) while the terminal has no focus.
    commands_per_minute: the ceiling on commands a cluster is sent, whatever the intervals say.
    controller_share: the most of the controller's time spent on us, as a fraction; it can be lowered, never raised.
    """

    mine_seconds: float = 15.0
    everyone_seconds: float = 60.0
    nodes_seconds: float = 60.0
    history_seconds: float = 120.0
    unfocused_factor: float = 4.0
    commands_per_minute: int = 30
    controller_share: float = 0.1


@dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    """[embedded]: what this machine's embedded queue gives to jobs; None where it finds out by itself.

    cpus, gpus: how many slots. grace_seconds: how long a job that is ended has from TERM to KILL.
    """

    cpus: int | None = None
    gpus: int | None = None
    grace_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class LaunchSettings:
    """[launch], and [clusters.NAME.launch] over it: what generated scripts are to know of a site.

    queues: by queue, in upper and lower case alike, what holds there ([launch.queues.NAME]), by the fields of Request
    and Site: scalars take the place of the request's unsaid ones and of the site's, lists go before the request's own.
    launch_program: root's program there (`hpcdash sudoers --program`) that keeps the launches of `run_as`.
    """

    site: Site = field(default_factory=Site)
    queues: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    launch_program: str = "/usr/local/libexec/hpcdash-launch"


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """One [clusters.NAME].

    name: ASCII letters, digits, '.', '_' and '-', safe as a file's name. title: how it is shown; the name by default.
    transport: "local", "ssh" or "openssh"; "ssh" where `ssh` is given, else "local".
    ssh: where to; None exactly when transport is "local".
    backend: "slurm", "pbs" or "local" (the embedded queue); None: found out by asking.
    path: directories there, absolute and joined with ':', looked in before the PATH; '' for none.
    user: whose jobs are mine; None: who one is there.
    poll: [poll] with this cluster's own values over it. launch: [launch] likewise.
    embedded: [embedded], where its backend is the embedded queue.
    """

    name: str
    title: str
    transport: str = "local"
    ssh: SshDestination | None = None
    backend: str | None = None
    path: str = ""
    user: str | None = None
    poll: PollSettings = field(default_factory=PollSettings)
    embedded: EmbeddedSettings = field(default_factory=EmbeddedSettings)
    launch: LaunchSettings = field(default_factory=LaunchSettings)


@dataclass(frozen=True, slots=True)
class UiSettings:
    """[ui].

    columns: by view (jobs, nodes, queues, history) the names of the columns shown, in order; a view left out has
    its own.
    sort: by view a column's name, with '-' in front for the largest first.
    fold_arrays: whether an array is one line until unfolded. clock: "local" or "utc", for the times shown.
    """

    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sort: Mapping[str, str] = field(default_factory=dict)
    fold_arrays: bool = True
    clock: str = "local"


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """[metrics].

    patterns: a person's own regular expressions for lines of logs, tried before what is known; their named groups are
    metrics, and `step`, `epoch` and `tokens`.
    """

    patterns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Settings:
    """All of a configuration.

    file: what was read; None when there was nothing to read and all is by default.
    default_cluster: the cluster shown first, a key of `clusters`; None: the first one.
    keys: action name → keys as written, several joined with ',' (`"x,ctrl+x"`); a key is a name (`space`, `ctrl+x`) or
    a single character (`?`). aliases: word → what the ':' command line makes of it. clusters: in the file's order.
    """

    file: Path | None = None
    default_cluster: str | None = None
    theme: str = DEFAULT_THEME
    read_only: bool = False
    poll: PollSettings = field(default_factory=PollSettings)
    keys: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    clusters: Mapping[str, ClusterSettings] = field(default_factory=dict)
    ui: UiSettings = field(default_factory=UiSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    embedded: EmbeddedSettings = field(default_factory=EmbeddedSettings)
    launch: LaunchSettings = field(default_factory=LaunchSettings)
    watch: WatchSettings = field(default_factory=WatchSettings)


PLAIN_PATH = re.compile(r"(/(?!\.{1,2}(?:/|$))[A-Za-z0-9._@+-]+)+")
