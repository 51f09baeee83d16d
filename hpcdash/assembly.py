"""Assembly of sessions: the chosen clusters, their transports and their backends.

The only place that knows all three.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, tzinfo
from functools import partial
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import asdict, replace

from hpcdash.backends.base import Backend
from hpcdash.backends.registry import NAMES, ON_LOGIN_NODES, load_backend
from hpcdash.config.destination import ClusterChoice, parse_ssh_destination
from hpcdash.config.local_schedulers import local_schedulers, no_scheduler_reason
from hpcdash.config.problems import did_you_mean
from hpcdash.config.read import load_settings
from hpcdash.config.settings import (
    ClusterSettings,
    EmbeddedSettings,
    LaunchSettings,
    PollSettings,
    PoolSettings,
    Settings,
)
from hpcdash.config.site_rules import SiteRules
from hpcdash.config.values import http_url
from hpcdash.domain.request import Site
from hpcdash.domain.tables import TABLES, Kind
from hpcdash.embedded.start import open_folder, wake
from hpcdash.errors import ConfigError, UsageError
from hpcdash.private_files import atomic_write, close_to_others
from hpcdash.services.cluster.clock import ClusterClock, FrozenClock
from hpcdash.services.cluster.poller import Pace, Poller
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.site_rules import FILE as RULES_FILE
from hpcdash.services.cluster.site_rules import load_site_rules
from hpcdash.services.cluster.snapshots import SnapshotCache
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.session import ClusterSession
from hpcdash.services.state.folders import (
    cache_root,
    journal,
    queue_folder,
    queue_program,
    state_root,
    with_state_file,
)
from hpcdash.services.state.journal import Journal
from hpcdash.services.state.submitted_scripts import ScriptStore
from hpcdash.services.submit.launches import LAUNCHES_BELOW_HOME, Launches
from hpcdash.transport.base import BrokerUse, Prompter, Transport
from hpcdash.transport.pool import ConnectionPool

# RFC 9110, field names and values; what a request itself depends on is ours.
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([!-~](?:[ -~\t]*[!-~])?)")
_OWN_HEADERS = ("host", "connection", "content-length", "content-type", "transfer-encoding")
# The embedded queue is of this machine alone.
EMBEDDED = "local"
# It queries only this machine: as often as a person notices, for little of one core.
_QUEUE_SECONDS = 2.0
_QUEUE_COMMANDS_PER_MINUTE = 600
# How long a connection waits for the next program.
_KEEP_SECONDS = 600.0
_NEXT_STEP = (
    f"Use {' or '.join(f'--for {name}' for name in ON_LOGIN_NODES)}, or set backend = "
    f"{' or '.join(json.dumps(name) for name in ON_LOGIN_NODES)} in the cluster's table."
)


def set_slots(folder: Path, requested: EmbeddedSettings) -> None:
    """Apply [embedded] to the queue in a folder; absent keys change nothing.

    Raises ConfigError where it cannot be written, NotPrivate where the folder is another user's.
    """
    slots = {name: value for name, value in asdict(requested).items() if value is not None}
    if not slots:
        return
    file = folder / "slots.json"
    text = json.dumps(slots).encode()
    open_folder(folder, takes_jobs=False)
    close_to_others(file)
    try:
        with contextlib.suppress(FileNotFoundError):
            if file.read_bytes() == text:
                return
        atomic_write(file, text)
        # Jobs that wait may fit now.
        wake(folder)
    except OSError as error:
        raise ConfigError(
            f"cannot save the [embedded] settings: {error.strerror}", "", file=str(file)
        ) from error


def split_cluster(job_id: str, clusters: Iterable[ClusterSettings]) -> tuple[str, str]:
    """Split 15@NAME into the ID on a cluster and the cluster's name in the configuration, '' for
    none of `clusters`.

    NAME is its name there, or at its site: then it is a part of the ID.
    """
    plain, _, name = job_id.rpartition("@")
    if plain:
        for cluster in clusters:
            if name == cluster.site_cluster:
                return job_id, cluster.name
            if name == cluster.name:
                return plain, cluster.name
    return job_id, ""


def chosen_clusters(choice: ClusterChoice, settings: Settings) -> list[ClusterSettings]:
    """The clusters to show, the first one first; raises UsageError with what to do where there is
    none.
    """
    if choice.url:
        try:
            url = http_url(choice.url)
            through = parse_ssh_destination(choice.ssh) if choice.ssh else None
        except ValueError as error:
            raise UsageError(str(error)) from error
        name = urlsplit(url).netloc
        chosen = [
            ClusterSettings(
                name, name, "http", through, url, backend=choice.backend, poll=settings.poll
            )
        ]
    elif choice.ssh:
        try:
            destination = parse_ssh_destination(choice.ssh)
        except ValueError as error:
            raise UsageError(f"--ssh {choice.ssh!r}: {error}") from error
        name = str(destination)
        chosen = [
            ClusterSettings(
                name, name, "ssh", destination, poll=settings.poll, launch=settings.launch
            )
        ]
    elif choice.local:
        chosen = [_this_machine(settings)]
    elif choice.cluster:
        if choice.cluster not in settings.clusters:
            known = ", ".join(settings.clusters) or "none"
            near = did_you_mean(choice.cluster, settings.clusters)
            raise UsageError(
                f"no cluster {choice.cluster!r} in the configuration{near}", f"Configured: {known}."
            )
        chosen = [settings.clusters[choice.cluster]]
    elif settings.clusters:
        first = settings.default_cluster or next(iter(settings.clusters))
        chosen = [
            settings.clusters[first],
            *(one for name, one in settings.clusters.items() if name != first),
        ]
    else:
        chosen = [_this_machine(settings)]
    return [replace(one, backend=choice.backend) if choice.backend else one for one in chosen]


def _this_machine(settings: Settings) -> ClusterSettings:
    return ClusterSettings(
        "local", "local", poll=settings.poll, embedded=settings.embedded, launch=settings.launch
    )


def cluster_backends(cluster: ClusterSettings) -> Sequence[Backend]:
    """Return the backends to try, in order: on this machine those configured for it, elsewhere all.

    The embedded queue is used if there is none at all: a configured scheduler that does not respond
    is an error later.
    """
    is_here = cluster.transport == "local"
    names = (
        [cluster.backend]
        if cluster.backend
        else list(local_schedulers() if is_here else ON_LOGIN_NODES)
    )
    if names in ([], [EMBEDDED]):
        if not is_here:
            raise UsageError(
                f"cluster {cluster.name}: the embedded queue runs on this machine, not over "
                f"{cluster.transport}",
                "Run hpcdash there, or remove backend to detect the scheduler.",
            )
        return (_embedded_backend(queue_folder()),)
    if unknown := [name for name in names if name not in NAMES]:
        raise UsageError(
            f"cluster {cluster.name}: this version has no backend {unknown[0]!r}",
            f"Backends: {', '.join((*NAMES, EMBEDDED))}.",
        )
    backends = [load_backend(name) for name in names]
    if not cluster.site_cluster:
        return tuple(backends)
    return tuple(
        backend.on_cluster(cluster.site_cluster) for backend in backends if backend.on_cluster
    )


def _embedded_backend(folder: Path, *, ended_seconds: int = 0) -> Backend:
    from hpcdash.backends.embedded.backend import embedded_backend

    return embedded_backend(queue_program(folder), ended_seconds=ended_seconds)


def is_first_start(choice: ClusterChoice, settings: Settings) -> bool:
    """Whether no option and no setting selects a cluster; never in a browser's dashboard."""
    is_set = (
        choice.ssh
        or choice.local
        or choice.cluster
        or choice.backend
        or choice.url
        or settings.clusters
    )
    return not (is_set or os.environ.get("TEXTUAL_DRIVER") or local_schedulers())


def default_cluster_note(choice: ClusterChoice, settings: Settings) -> str:
    """Return which scheduler was chosen by default and how to choose another; '' if it was not."""
    if choice.ssh or choice.local or choice.cluster or choice.backend or settings.clusters:
        return ""
    here = local_schedulers()
    if here:
        chosen = f"this machine's {load_backend(next(iter(here))).title}"
    else:
        chosen = f"this machine's embedded queue ({no_scheduler_reason()})"
    return (
        f"No cluster is configured; using {chosen}. Add one: hpcdash clusters add NAME --ssh "
        "USER@HOST"
    )


def broker_use(choice: ClusterChoice, settings: Settings) -> BrokerUse | None:
    """Return the use of the broker by a program; None where it connects by itself."""
    if choice.no_broker or not settings.connection.broker:
        return None
    is_read_only = choice.read_only or settings.read_only
    program = choice.program or Path(sys.argv[0]).name
    return BrokerUse(program, is_read_only, broker_keep_seconds(settings))


def broker_keep_seconds(settings: Settings) -> float:
    """Return how long the broker lives after its last client."""
    if settings.connection.keep is not None:
        return settings.connection.keep
    # A login node is no place for processes that nobody uses.
    return 0.0 if "SSH_CONNECTION" in os.environ or local_schedulers() else _KEEP_SECONDS


def connection_pool(prompter: Prompter, use: BrokerUse | None = None) -> ConnectionPool:
    """The transports of one run; clusters behind one login node share its connection.

    Imported when first used. With `use`, connections over ssh are the broker's.
    """

    def local(_destination: str, path: str) -> Transport:
        from hpcdash.transport.local import LocalTransport

        return LocalTransport(path=path)

    def ssh(destination: str, path: str) -> Transport:
        import logging

        from hpcdash.transport.ssh import SshTransport

        # asyncio warns of each write to a connection that was lost; the error that is raised
        # reports it once.
        logging.getLogger("asyncio").setLevel(logging.ERROR)
        first, *others = destination.split("\n")
        return SshTransport(first, prompter, path=path, other_logins=others)

    def broker(destination: str, path: str) -> Transport:
        from hpcdash.transport.broker import BrokerTransport

        assert use is not None
        alone = partial(ssh, destination, "")
        return BrokerTransport(destination.split("\n"), prompter, use, alone, path=path)

    def openssh(destination: str, path: str) -> Transport:
        from hpcdash.transport.openssh import OpenSshTransport

        return OpenSshTransport(destination, path=path)

    shared = ssh if use is None else broker
    return ConnectionPool({"local": local, "ssh": shared, "own ssh": ssh, "openssh": openssh})


def _transport(
    cluster: ClusterSettings,
    pool: ConnectionPool,
    backends: Sequence[Backend],
    *,
    is_shared: bool,
) -> Transport:
    """The transport to a cluster; to a URL behind a login node through that node's connection.

    Without `is_shared` the broker is not used.
    """
    if not cluster.url:
        logins = [cluster.ssh, *cluster.other_logins] if cluster.ssh else []
        kind = cluster.transport if is_shared or cluster.transport != "ssh" else "own ssh"
        return pool.transport(kind, "\n".join(map(str, logins)), cluster.path)
    from hpcdash.services.logs.file import file_readers
    from hpcdash.services.watch.facts import facts_log_positions, facts_script
    from hpcdash.transport.http import HttpTransport
    from hpcdash.transport.ssh import SshTransport

    # Requests need more than commands of the connection.
    login = pool.transport("own ssh", str(cluster.ssh)) if cluster.ssh else None
    return HttpTransport(
        cluster.url,
        headers=_headers(cluster),
        login=login if isinstance(login, SshTransport) else None,
        log_request=backends[0].logs.request,
        file_readers={**file_readers(), facts_script(): facts_log_positions},
        shell=login,
    )


def _headers(cluster: ClusterSettings) -> dict[str, str]:
    """The headers of a cluster's files, with its token; {} where it has none.

    Raises ConfigError.
    """
    found = {}
    for number, line in enumerate(_private_lines(cluster.headers_file), 1):
        header = _HEADER.fullmatch(line)
        if line and (header is None or header[1].lower() in _OWN_HEADERS):
            what = f"line {number}: expected a header such as Name: value"
            raise ConfigError(what, f"Not: {', '.join(_OWN_HEADERS)}", file=cluster.headers_file)
        if header is not None:
            found[header[1]] = header[2]
    if cluster.token_file:
        token = "\n".join(_private_lines(cluster.token_file)).strip()
        if not token or not token.isprintable() or " " in token:
            step = "It must contain only the token, on one line."
            raise ConfigError("the file has no token", step, file=cluster.token_file)
        found["Authorization"] = f"Bearer {token}"
    return found


def _private_lines(name: str) -> list[str]:
    """The lines of a file that only its owner reads, [] for ''; raises ConfigError."""
    if not name:
        return []
    file = Path(name).expanduser()
    try:
        if file.stat().st_mode & 0o077:
            raise ConfigError(
                "other users can read this secret", f"chmod 600 {file}", file=str(file)
            )
        return [line.strip() for line in file.read_text(encoding="ascii").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not ASCII"
        raise ConfigError(f"the file cannot be read: {reason}", file=str(file)) from error


def cluster_pace(cluster: ClusterSettings) -> Pace:
    poll = cluster.poll
    seconds = {
        kind: getattr(poll, pace) if isinstance(pace, str) else pace
        for spec in TABLES.values()
        for kind, pace in spec.paces.items()
    }
    return Pace(seconds, poll.unfocused_factor, poll.controller_share)


def cluster_queue_pace(cluster: ClusterSettings) -> Pace:
    """The embedded queue's: quicker than a shared controller's, but where the configuration sets
    another.
    """
    usual = PollSettings()
    pace = cluster_pace(cluster)
    requested = pace.seconds
    default = cluster_pace(replace(cluster, poll=usual)).seconds
    seconds = {
        kind: _QUEUE_SECONDS if requested[kind] == default[kind] else requested[kind]
        for kind in Kind
    }
    # A command takes a core for as long as it runs: a twentieth of its time.
    return replace(pace, seconds=seconds, controller_share=min(pace.controller_share, 0.05))


def build_session(
    cluster: ClusterSettings,
    pool: ConnectionPool,
    *,
    zone: tzinfo | None = None,
    share: Mapping[str, PoolSettings] = MappingProxyType({}),
) -> ClusterSession:
    """Build a cluster's store and poller, without a query."""
    backends = cluster_backends(cluster)
    is_queue = backends[0].name == EMBEDDED
    cache = snapshot_cache(cluster, backends)
    rules = None
    if not is_queue and not cluster.url:
        known = load_site_rules(cache.folder / RULES_FILE)
        rules = known.rules if known is not None else SiteRules()
    transport = _transport(cluster, pool, backends, is_shared=rules is None or rules.broker)
    if is_queue:
        set_slots(queue_folder(), cluster.embedded)
    pace = cluster_queue_pace(cluster) if is_queue else cluster_pace(cluster)
    ceiling = cluster.poll.commands_per_minute
    if is_queue and ceiling == PollSettings().commands_per_minute:
        ceiling = _QUEUE_COMMANDS_PER_MINUTE
    store = ClusterStore(
        cluster.name,
        transport,
        backends,
        clock=ClusterClock(),
        budget=CommandBudget(ceiling),
        cache=cache,
        scripts=ScriptStore(state_root() / "scripts"),
        state_folder=state_root(),
        user=cluster.user or "",
        title=cluster.title,
        site=rules,
    )
    poller = Poller(store, pace)
    if rules is not None:
        store.on_site_rules = partial(_apply_site_rules, store, poller, cluster)
        store.on_site_rules()
    origin = (
        f"{_origin(cluster)}, polled every {pace.seconds[Kind.MINE]:g} s"
        if is_queue
        else _origin(cluster)
    )
    launch = _here(cluster.launch) if is_queue else cluster.launch
    pools = tuple(
        with_state_file(one) for one in share.values() if one.cluster in (None, cluster.name)
    )
    launches = Launches(store, launch, state_root(), pools)
    return ClusterSession(
        store,
        poller,
        Actions(store, journal()),
        launches,
        origin,
        zone,
        pools=pools,
        settings=cluster,
    )


def _apply_site_rules(store: ClusterStore, poller: Poller, cluster: ClusterSettings) -> None:
    poll = store.site.limit(cluster.poll)
    poller.pace = cluster_pace(replace(cluster, poll=poll))
    store.budget.ceiling = poll.commands_per_minute


def snapshot_cache(
    cluster: ClusterSettings, backends: Sequence[Backend] | None = None
) -> SnapshotCache:
    """The tables that earlier runs had of a cluster."""
    names = [backend.name for backend in backends or cluster_backends(cluster)]
    return SnapshotCache(cache_root(), _cache_name(cluster, names))


def _cache_name(cluster: ClusterSettings, backends: Sequence[str]) -> str:
    """Return the name under which a cluster's tables are cached.

    No two schedulers or servers share it, as far as they are known here.
    """
    place = " ".join(filter(None, (str(cluster.ssh or ""), cluster.url))) or "local"
    if place == "local":
        here = local_schedulers()
        place = " ".join(here.get(name, "") for name in backends)
        if backends == [EMBEDDED]:
            place = str(queue_folder().resolve())
    parts = (cluster.name, *backends, place, cluster.site_cluster, cluster.user)
    return " ".join(filter(None, parts))


def _here(launch: LaunchSettings) -> LaunchSettings:
    """With this machine's home, root's too, which no other machine has to see."""
    if launch.site.storage_root:
        return launch
    return replace(
        launch, site=replace(launch.site, storage_root=str(Path.home() / LAUNCHES_BELOW_HOME))
    )


def build_queue_session(folder: Path, *, name: str, state_folder: Path) -> ClusterSession:
    """The embedded queue in a folder as a cluster that keeps nothing; what ended within the hour is
    in its list.
    """
    from hpcdash.transport.local import LocalTransport

    store = ClusterStore(
        name,
        LocalTransport(),
        (_embedded_backend(folder, ended_seconds=3600),),
        clock=ClusterClock(),
        budget=CommandBudget(_QUEUE_COMMANDS_PER_MINUTE),
        state_folder=state_folder,
    )
    poller = Poller(
        store, Pace(dict.fromkeys(Kind, 1.0), unfocused_factor=5.0, controller_share=0.2)
    )
    actions = Actions(store, Journal(state_folder / "journal.jsonl"))
    launch = LaunchSettings(Site(storage_root=str(state_folder / "launches")))
    return ClusterSession(
        store, poller, actions, Launches(store, launch, state_folder), "this machine"
    )


def _origin(cluster: ClusterSettings) -> str:
    if cluster.url:
        return f"{cluster.url} through {cluster.ssh}" if cluster.ssh else cluster.url
    if cluster.ssh is not None:
        return f"{cluster.transport} {cluster.ssh}"
    return "this machine"


def build_replay(case_directory: Path) -> ClusterSession:
    """A recorded case as a cluster; its clock stands still."""
    from hpcdash.services.logs.file import file_readers
    from hpcdash.transport.replay import FILES_FOLDER, ReplayTransport

    transport = ReplayTransport(case_directory, file_readers=file_readers())
    backend = load_backend(transport.backend if transport.backend in NAMES else NAMES[0])
    store = ClusterStore(
        transport.name,
        transport,
        (backend,),
        clock=FrozenClock(transport.clock),
        budget=CommandBudget(600),
        user=transport.user,
        title=f"{transport.name} (recorded)",
    )
    poller = Poller(store, cluster_pace(ClusterSettings("replay", "replay")))
    # Publications of coordinators, by the names of their folders.
    published = sorted((case_directory / FILES_FOLDER / "shared").glob("*/pool.json"))
    pools = tuple(
        PoolSettings(one.parent.name, 1, state_file=f"/shared/{one.parent.name}/pool.json")
        for one in published
    )
    return ClusterSession(
        store,
        poller,
        Actions(store, journal()),
        Launches(store),
        str(case_directory),
        UTC,
        pools=pools,
    )


class ChosenSite(Struct, frozen=True):
    """A cluster, its [launch], and whether nothing may be changed on it."""

    cluster: ClusterSettings
    launch: LaunchSettings
    is_read_only: bool


def chosen_site(choice: ClusterChoice) -> ChosenSite:
    """Return the named cluster, else the configuration's first, else this machine.

    Queries nothing.
    """
    settings = load_settings(choice.config)
    cluster = chosen_clusters(choice, settings)[0]
    return ChosenSite(cluster, cluster.launch, choice.read_only or settings.read_only)


def scheduler_for(scheduler: str | None, cluster: ClusterSettings) -> Backend:
    """Return the given scheduler, else the cluster's configured one; raises UsageError for none."""
    from hpcdash.backends.embedded.backend import SCRIPTS_OF

    name = scheduler or (SCRIPTS_OF if cluster.backend == EMBEDDED else cluster.backend)
    if name:
        return load_backend(name)
    raise UsageError(
        f"no scheduler given, and the configuration sets none for {cluster.name}",
        _NEXT_STEP,
    )
