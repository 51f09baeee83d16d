"""Records of config.toml except [watch], and their reader; example.toml explains their keys."""

import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.registry import NAMES, OVER_HTTP, SITE_CLUSTERS
from hpcdash.config import values
from hpcdash.config.destination import SshDestination
from hpcdash.config.model import Key, Table, build, record_keys
from hpcdash.config.plugins import ExecSettings, Filter, FilterName, Plugin
from hpcdash.config.problems import KeyPath, did_you_mean, quoted
from hpcdash.config.values import THE_USER, Flag, Text, in_range, whole_in_range
from hpcdash.config.watch_settings import WatchSettings, read_watch
from hpcdash.domain.nodelist import expand
from hpcdash.domain.request import Site
from hpcdash.domain.share import EVERYONE, Priority, parse_priority
from hpcdash.domain.tables import MAIN_TABLES, TABLES

DEFAULT_THEME = "hpcdash-dark"
PLAIN_PATH = re.compile(r"(/(?!\.{1,2}(?:/|$))[A-Za-z0-9._@+-]+)+")
# Largest code folder; more is data, which is better copied once.
MAX_CODE_BYTES = 200 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NAME_RULE = "letters, digits, '.', '_' and '-', at most 64"
_SITE_FIELDS = frozenset(Site.__struct_fields__)
_VIEWS = tuple(spec.name for spec in MAIN_TABLES)
# Sites require users to poll no more often than every 3 to 5 seconds.
PollSeconds = Annotated[
    float, in_range(3, 86_400, "seconds", " (schedulers must not be polled more often)")
]
UpToAnHour = Annotated[float, in_range(0, 3600, "seconds")]
UpToADay = Annotated[float, in_range(1, 86_400, "seconds")]
_MAX_SLOTS = 100_000
_cpus = whole_in_range(1, _MAX_SLOTS, "CPUs")
_gpus = whole_in_range(0, _MAX_SLOTS, "GPUs")
_launch_program = values.line_like(
    PLAIN_PATH.fullmatch,
    "{} is not a program path: use an absolute path with only letters, digits and ._@+-",
)


class PollSettings(Struct, frozen=True):
    """[poll], and [clusters.NAME.poll] over it: polling intervals and ceilings of a cluster."""

    mine_seconds: PollSeconds = 15.0
    everyone_seconds: PollSeconds = 60.0
    nodes_seconds: PollSeconds = 60.0
    history_seconds: PollSeconds = 120.0
    unfocused_factor: Annotated[float, in_range(1, 1000)] = 4.0
    commands_per_minute: Annotated[int, whole_in_range(1, 600, "commands a minute")] = 30
    controller_share: Annotated[
        float,
        in_range(0.001, 0.1, note=" (hpcdash takes at most a tenth of the controller's time)"),
    ] = 0.1


class ConnectionSettings(Struct, frozen=True):
    """[connection]: the broker of ssh connections; `keep` None: ten minutes, or 0 on a cluster."""

    broker: Flag = False
    keep: Annotated[float | None, values.seconds_in_range(0, 86_400)] = None


class EmbeddedSettings(Struct, frozen=True):
    """[embedded]: resources of this machine's embedded queue; None: detected."""

    cpus: Annotated[int | None, _cpus] = None
    gpus: Annotated[int | None, _gpus] = None
    grace_seconds: Annotated[float | None, in_range(0, 3600, "seconds")] = None


class LaunchSettings(Struct, frozen=True):
    """[launch], and [clusters.NAME.launch] over it: facts about a site for generated scripts.

    queues: settings by queue ([launch.queues.NAME], whatever the case of the name), by the fields
    of Request and Site, as `with_queue_defaults` applies them. templates: folder of a site's own
    templates on this machine. is_sites: the site wrote the file,
    which is root's and not the user's own.
    """

    site: Annotated[Site, Key.NONE] = Site()
    queues: Mapping[str, Mapping[str, object]] = {}
    launch_program: Annotated[str, _launch_program] = "/usr/local/libexec/hpcdash-launch"
    files_limit: Annotated[int, values.amount_bytes] = MAX_CODE_BYTES
    templates: Annotated[str, values.path_here] = ""
    is_sites: bool = False


class ClusterSettings(Struct, frozen=True):
    """[clusters.NAME]: a cluster and the way to reach it.

    name: safe as a file name. transport: by default "http" with a URL, "ssh" with `ssh`, else
    "local". ssh: None if transport is "local" or a URL is reached directly; other_logins: tried in
    turn where that host cannot be reached. site_cluster: one of the clusters of the scheduler's
    site, from a key of registry.SITE_CLUSTERS; '' for its default. is_configured: it has a table.
    quota_command: argv of the site's quota command on the login node, () for none. url: URL of a
    scheduler over HTTP, from the key named after its backend; '' for any other. backend: None:
    detected. user: None: the login name.
    """

    name: str
    title: Text
    transport: Annotated[str, values.one_of("local", "ssh", "openssh")] = "local"
    ssh: Annotated[SshDestination | None, Key.NONE] = None
    url: str = ""
    token_file: Annotated[str, values.path_here] = ""
    headers_file: Annotated[str, values.path_here] = ""
    backend: Annotated[str | None, values.one_of(*NAMES, "local")] = None
    path: Annotated[str, values.search_path] = ""
    user: Annotated[str | None, values.user_name] = None
    poll: Annotated[PollSettings, Key.APART] = PollSettings()
    embedded: Annotated[EmbeddedSettings, Key.NONE] = EmbeddedSettings()
    launch: Annotated[LaunchSettings, Key.APART] = LaunchSettings()
    other_logins: Annotated[tuple[SshDestination, ...], Key.NONE] = ()
    site_cluster: Annotated[str, Key.NONE] = ""
    is_configured: Annotated[bool, Key.NONE] = False
    quota_command: Annotated[tuple[str, ...], values.argv] = ()


class UiSettings(Struct, frozen=True):
    """[ui]: columns and sort by view, for views that have their own; times and notifications."""

    columns: Annotated[Mapping[str, tuple[str, ...]], Key.APART] = {}
    sort: Annotated[Mapping[str, str], Key.APART] = {}
    fold_arrays: Flag = True
    clock: Annotated[str, values.one_of("local", "utc")] = "local"
    notify: Annotated[str, values.one_of("bell", "osc9", "osc777", "none")] = "osc9"

    @staticmethod
    def check(table: Table, fit: dict[str, Any]) -> None:
        for key, read in (("columns", values.column_list), ("sort", values.sort_column)):
            readers = {view: partial(read, known=TABLES[view].names) for view in _VIEWS}
            fit[key] = table.table(key).fields(readers)


class MetricsSettings(Struct, frozen=True):
    """[metrics]: a user's own regular expressions for lines of logs."""

    patterns: Annotated[tuple[str, ...], Key.APART] = ()

    @staticmethod
    def check(table: Table, fit: dict[str, Any]) -> None:
        patterns = table.items("patterns", "regular expressions").mapping(values.metric_pattern)
        fit["patterns"] = tuple(patterns.values())


def _node_list(text: str) -> str:
    expand(text)
    return text


class QuotaSettings(Struct, frozen=True):
    """[[share.POOL.quotas]]: most nodes of each user ("*": everyone) at once at a priority."""

    priority: Annotated[Priority, values.line(parse_priority)]
    nodes: Annotated[int, whole_in_range(0, _MAX_SLOTS, "nodes")]
    users: Annotated[tuple[str, ...], values.texts] = (EVERYONE,)


class PoolSettings(Struct, frozen=True):
    """[share.POOL]: a pool of at most `nodes` nodes that tasks use in turns.

    queue, qos, reservation, node_list: '' for any. cluster: None: any. coordinator: '' for the
    user's own account. state_file: '' for the coordinator's state folder, which no other account
    can read.
    """

    name: str
    nodes: Annotated[int, whole_in_range(1, _MAX_SLOTS, "nodes")]
    cluster: Annotated[str | None, values.parse_line_text] = None
    coordinator: Text = ""
    state_file: Annotated[str, values.absolute_path] = ""
    queue: Text = ""
    qos: Text = ""
    reservation: Text = ""
    node_list: Annotated[str, values.line(_node_list, "{} is not a list of nodes: ")] = ""
    as_owners: Flag = False
    cpus_per_node: Annotated[int, _cpus] = 1
    gpus_per_node: Annotated[int, _gpus] = 0
    choosers: Annotated[tuple[str, ...], values.texts] = ()
    least_gpus: Annotated[int, _gpus] = 0
    grace_seconds: UpToAnHour = 5.0
    demote_after_seconds: Annotated[float, in_range(1, 30 * 86_400, "seconds")] = 1800.0
    start_seconds: UpToADay = 120.0
    retry_seconds: UpToADay = 600.0
    no_log_seconds: Annotated[float, in_range(0, 30 * 86_400, "seconds")] = 1800.0
    poll_seconds: UpToAnHour = 0.0
    quotas: tuple[QuotaSettings, ...] = ()


def _alias(text: str) -> str:
    command = text.strip().removeprefix(":").strip()
    if not command:
        raise ValueError('expected a command, as in "jobs queue:gpu"')
    return command


_alias_name = values.line_like(re.compile(r"\S+").fullmatch, "an alias must be one word")


class Settings(Struct, frozen=True):
    """Whole configuration.

    file: None without a file. default_cluster: None: the first. keys: keys by the name of an action
    or alias, several joined with ','; a key is a name (`space`, `ctrl+x`) or a single character
    (`?`). clusters, plugins: in the file's order.
    """

    file: Path | None = None
    default_cluster: Annotated[str | None, values.parse_line_text] = None
    theme: Text = DEFAULT_THEME
    read_only: Flag = False
    poll: PollSettings = PollSettings()
    connection: ConnectionSettings = ConnectionSettings()
    keys: Mapping[str, Annotated[str, values.key_presses]] = {}
    aliases: Mapping[Annotated[str, _alias_name], Annotated[str, values.line(_alias)]] = {}
    filters: Mapping[FilterName, Filter] = {}
    plugins: tuple[Plugin, ...] = ()
    exec: ExecSettings = ExecSettings()
    clusters: Annotated[Mapping[str, ClusterSettings], Key.APART] = {}
    ui: UiSettings = UiSettings()
    metrics: MetricsSettings = MetricsSettings()
    embedded: EmbeddedSettings = EmbeddedSettings()
    launch: Annotated[LaunchSettings, Key.APART] = LaunchSettings()
    watch: Annotated[WatchSettings, Key.APART] = WatchSettings()
    share: Annotated[Mapping[str, PoolSettings], Key.APART] = {}


def read_settings(
    document: Mapping[str, object],
    file: Path,
    action_names: Collection[str] | None,
    *,
    is_sites: bool,
) -> tuple[Settings, list[tuple[KeyPath, str]]]:
    """Read the settings, and the problems as (key path, message).

    The settings are valid only without problems.
    """
    root = Table(document, _hint)
    settings = build(Settings, root.fit(Settings), file=file)
    if action_names is not None:
        names = {*action_names, *settings.aliases}
        for name in settings.keys:
            if name not in names:
                root.add_problem(f"unknown action{did_you_mean(name, names)}", "keys", name)
    launch = _launch(root, LaunchSettings(is_sites=is_sites))
    clusters = _named_tables(
        root, "clusters", f"a cluster name may contain {_NAME_RULE} (use title for more)"
    )
    default = settings.default_cluster
    if default is not None and default not in clusters:
        hint = did_you_mean(default, clusters)
        root.add_problem(f"no [clusters.{default}] in the configuration{hint}", "default_cluster")
    pools = _named_tables(root, "share", f"a pool name may contain {_NAME_RULE}")
    share = {name: table.record(PoolSettings, name=name) for name, table in pools.items()}
    settings = replace(
        settings,
        launch=_with_user(launch, None),
        clusters={
            name: _cluster(table, name, settings, launch) for name, table in clusters.items()
        },
        share={name: pool for name, pool in share.items() if pool is not None},
        watch=replace(read_watch(root), metric_patterns=settings.metrics.patterns),
    )
    return settings, root.problems


def _named_tables(root: Table, key: str, rule: str) -> dict[str, Table]:
    """Return the tables in a table by their names, which must be safe as file names."""
    tables = root.table(key)
    for name in tables.values:
        if not _NAME.fullmatch(name):
            tables.add_problem(rule, name)
    return {name: tables.table(name) for name in tables.values}


def _launch(parent: Table, inherited: LaunchSettings, user: str | None = None) -> LaunchSettings:
    """Read `launch` of a table over the inherited settings: scalars override, lists append.

    `user` is the cluster's user, which run_as = "user" stands for.
    """
    if "launch" not in parent.values:
        return inherited
    # The readers of REQUEST.toml load the backends, which few configurations need.
    from hpcdash.config.queue_defaults import merged
    from hpcdash.config.request import QUEUE_KEYS, SITE_KEYS, read_keys, site_readers, variable

    table = parent.table("launch")
    own_keys = record_keys(LaunchSettings).readers
    site_keys = site_readers(user) if parent.path else SITE_KEYS
    site = read_keys(table, {**site_keys, **own_keys}, apart=("queues",))
    own = {key: site.pop(key) for key in own_keys if key in site}
    queues = {name.casefold(): (name, queue) for name, queue in inherited.queues.items()}
    names: dict[str, str] = {}
    queue_tables = table.table("queues")
    for name in queue_tables.values:
        queue = queue_tables.table(name)
        folded = name.casefold()
        if not name.strip():
            queue.add_problem("the name of a queue is missing")
        if folded in names:
            queue.add_problem(f"the same queue as {names[folded]}: case does not matter")
        names[folded] = name
        found = read_keys(queue, QUEUE_KEYS, apart=("environment",))
        if variables := queue.table("environment").mapping(variable):
            found["environment"] = variables
        first_name, common = queues.get(folded, (name, {}))
        queues[folded] = (first_name, merged(common, found))
    return replace(
        inherited, site=replace(inherited.site, **site), queues=dict(queues.values()), **own
    )


def _with_user(launch: LaunchSettings, user: str | None) -> LaunchSettings:
    """Return the settings with `user` for run_as = "user"; None: the login name."""
    if launch.site.run_as != THE_USER:
        return launch
    return replace(launch, site=replace(launch.site, run_as=user or ""))


def _cluster(table: Table, name: str, common: Settings, launch: LaunchSettings) -> ClusterSettings:
    """Read [clusters.NAME] over the settings that all clusters share."""
    before = len(table.problems)
    readers: dict[str, Callable[[Any], Any]] = {
        "ssh": values.ssh_destinations,
        "port": values.port,
        **dict.fromkeys(OVER_HTTP, values.http_url),
        **dict.fromkeys(SITE_CLUSTERS, values.site_cluster),
    }
    found = table.fit(ClusterSettings, readers)
    urls = {backend: found.pop(backend) for backend in OVER_HTTP if backend in found}
    port = found.pop("port", None)
    for key in SITE_CLUSTERS.keys() & found.keys():
        backend = found.setdefault("backend", SITE_CLUSTERS[key])
        if backend != SITE_CLUSTERS[key]:
            table.add_problem(f"a cluster with backend = {quoted(backend)} has none", key)
        found["site_cluster"] = found.pop(key)
    user = found.get("user")
    found["poll"] = replace(common.poll, **table.table("poll").fit(PollSettings))
    found["launch"] = _with_user(_launch(table, launch, user), user)
    if len(table.problems) == before:
        found |= _url_fields(table, found, urls, port) if urls else _ssh_fields(table, found, port)
    known = {"name": name, "title": name, "embedded": common.embedded, "is_configured": True}
    return ClusterSettings(**{**known, **found})


def _url_fields(
    table: Table, found: Mapping[str, Any], urls: Mapping[str, str], port: int | None
) -> dict[str, Any]:
    """Return the fields of a cluster over HTTP, perhaps through an ssh destination."""
    backend, url = next(iter(urls.items()))
    given = f"{backend} = {quoted(url)}"
    if len(urls) > 1 or found.get("backend", backend) != backend:
        table.add_problem(f"{given} already sets the scheduler", "backend")
    elif port is not None or found.get("transport", "ssh") != "ssh":
        key = "transport" if port is None else "port"
        table.add_problem(
            f"a cluster with {given} has none; set ssh = ... to reach it through a host", key
        )
    if found.get("quota_command"):
        table.add_problem(f"a cluster with {given} has no login node", "quota_command")
    logins = found.get("ssh", ())
    if len(logins) > 1:
        table.add_problem("a URL can be reached through only one host", "ssh")
    ssh = logins[0] if logins else None
    return {"transport": "http", "backend": backend, "url": url, "ssh": ssh}


def _ssh_fields(table: Table, found: Mapping[str, Any], port: int | None) -> dict[str, Any]:
    """Return the fields of a cluster on this machine or behind a login node."""
    for key in {"token_file", "headers_file"} & found.keys():
        names = " or ".join(OVER_HTTP)
        table.add_problem(f"only for a cluster with a URL: {names} = ...", key)
    logins = list(found.get("ssh", ()))
    transport = found.get("transport", "ssh" if logins else "local")
    ssh = logins[0] if logins else None
    if len(logins) > 1 and transport == "openssh":
        table.add_problem('several login nodes need transport = "ssh"', "ssh")
    if transport == "local" and ssh:
        table.add_problem('a cluster with transport = "local" has no ssh destination', "ssh")
    elif transport != "local" and not ssh:
        table.add_problem(
            f'transport = {quoted(transport)} needs a destination: ssh = "[user@]host[:port]"'
        )
    if port is not None:
        if not ssh:
            table.add_problem("a port needs a destination: ssh = ...", "port")
        elif any(login.port is not None for login in logins):
            table.add_problem("ssh = ... also has a port: set only one of them", "port")
        else:
            logins = [replace(login, port=port) for login in logins]
            ssh = logins[0]
    return {"transport": transport, "ssh": ssh, "other_logins": tuple(logins[1:])}


def _hint(key: str, path: KeyPath, known: Collection[str]) -> str:
    """Return the hint that follows "unknown key"."""
    if hint := did_you_mean(key, known):
        return hint
    if path and key in record_keys(Settings).readers:
        return "; it belongs at the top of the file, before the first [table]"
    if path != ("poll",) and key in record_keys(PollSettings).readers:
        return "; it belongs in [poll]"
    return "; it belongs in [launch]" if "launch" not in path and key in _SITE_FIELDS else ""
