"""config.toml but for [watch]: the records that its tables become, with defaults and units, and how
they are read.
"""

import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from msgspec import Struct, field
from msgspec.structs import replace

from hpcdash.backends.registry import NAMES, OVER_HTTP
from hpcdash.config import values
from hpcdash.config.destination import SshDestination
from hpcdash.config.exec import SiteCommand, read_commands
from hpcdash.config.model import Key, TableReader, ValidationError, build, record_keys
from hpcdash.config.plugins import Plugin, read_filters, read_plugins
from hpcdash.config.problems import KeyPath, did_you_mean, quoted, shown
from hpcdash.config.values import Flag, Text, in_range, whole_in_range
from hpcdash.config.watch_settings import WatchSettings, read_watch
from hpcdash.domain.nodelist import expand
from hpcdash.domain.request import Site
from hpcdash.domain.share import EVERYONE, Priority, parse_priority
from hpcdash.domain.tables import MAIN_TABLES, TABLES

DEFAULT_THEME = "hpcdash-dark"
PLAIN_PATH = re.compile(r"(/(?!\.{1,2}(?:/|$))[A-Za-z0-9._@+-]+)+")
_MAX_SLOTS = 100_000
# Largest code folder: more than this is data, which is better copied once.
MOST_CODE_BYTES = 200 << 20
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SITE_FIELDS = frozenset(Site.__struct_fields__)
_VIEWS = tuple(spec.name for spec in MAIN_TABLES)
# Sites require users to poll no more often than every 3 to 5 seconds.
PollSeconds = Annotated[
    float, in_range(3, 86_400, "seconds", " (schedulers must not be asked more often)")
]


def _backend(value: object) -> str:
    return values.one_of(*NAMES, "local")(value)


def _launch_program(value: object) -> str:
    text = values.parse_line_text(value)
    if not PLAIN_PATH.fullmatch(text):
        raise ValidationError(
            f"{shown(text)} is not a program's path: write it from the root, of letters, digits "
            f"and ._@+- alone"
        )
    return text


class PollSettings(Struct, frozen=True):
    """Polling intervals of a cluster; [poll] for all clusters, [clusters.NAME.poll] for one.

    mine_seconds: one's own jobs. everyone_seconds: the whole queue, while shown. nodes_seconds:
    nodes and queues, while shown. history_seconds: finished jobs, while shown. All at least 3
    seconds and at most a day. unfocused_factor: all of these times this (1 or more) while the
    terminal has no focus. commands_per_minute: the ceiling on commands sent to a cluster, whatever
    the intervals. controller_share: the most of the controller's time spent on us, as a fraction;
    it can be lowered, never raised.
    """

    mine_seconds: PollSeconds = 15.0
    everyone_seconds: PollSeconds = 60.0
    nodes_seconds: PollSeconds = 60.0
    history_seconds: PollSeconds = 120.0
    unfocused_factor: Annotated[float, in_range(1, 1000)] = 4.0
    commands_per_minute: Annotated[int, whole_in_range(1, 600, "commands a minute")] = 30
    controller_share: Annotated[
        float,
        in_range(0.001, 0.1, why=" (a tenth of the controller's time is the most hpcdash takes)"),
    ] = 0.1


class EmbeddedSettings(Struct, frozen=True):
    """[embedded]: what this machine's embedded queue gives to jobs; None where it finds out by
    itself.

    cpus, gpus: how many slots. grace_seconds: how long a job that is ended has from TERM to KILL.
    """

    cpus: Annotated[int | None, whole_in_range(1, _MAX_SLOTS, "CPUs")] = None
    gpus: Annotated[int | None, whole_in_range(0, _MAX_SLOTS, "GPUs")] = None
    grace_seconds: Annotated[float | None, in_range(0, 3600, "seconds")] = None


class LaunchSettings(Struct, frozen=True):
    """[launch], and [clusters.NAME.launch] over it: what generated scripts are to know of a site.

    queues: by queue, in upper and lower case alike, what holds there ([launch.queues.NAME]), by the
    fields of Request and Site: scalars take the place of the request's unsaid ones and of the
    site's, lists go before the request's own. launch_program: root's program there (`hpcdash
    sudoers --program`) that keeps the launches of `run_as`. files_limit: the most bytes that a
    request's `files` may come to. is_sites: the file is root's and not one's own: the site wrote
    it.
    """

    site: Site = field(default_factory=Site)
    queues: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    launch_program: Annotated[str, _launch_program] = "/usr/local/libexec/hpcdash-launch"
    files_limit: Annotated[int, values.amount_bytes] = MOST_CODE_BYTES
    is_sites: bool = False


class ClusterSettings(Struct, frozen=True):
    """One [clusters.NAME].

    name: ASCII letters, digits, '.', '_' and '-', safe as a file's name. title: how it is shown;
    the name by default. transport: "local", "ssh", "openssh" or "http"; "http" where a URL is
    given, "ssh" where `ssh` is, else "local". ssh: where to; None when transport is "local", and
    where a URL is asked directly. url: of a scheduler that is asked over HTTP, under the backend's
    name (NAME = "URL"); '' for any other. token_file: a file of this machine that holds the token
    sent with each request to `url`; '' for none. headers_file: likewise of more headers, one `Name:
    value` a line. backend: "slurm", "pbs" or "local" (the embedded queue); None: found out by
    asking. path: directories there, absolute and joined with ':', looked in before the PATH; '' for
    none. user: whose jobs are mine; None: who one is there. poll: [poll] with this cluster's own
    values over it. launch: [launch] likewise. embedded: [embedded], where its backend is the
    embedded queue.
    """

    name: str
    title: Text
    transport: Annotated[str, values.one_of("local", "ssh", "openssh")] = "local"
    ssh: Annotated[SshDestination | None, values.ssh_destination] = None
    url: Annotated[str, Key.APART] = ""
    token_file: Annotated[str, values.path_here] = ""
    headers_file: Annotated[str, values.path_here] = ""
    backend: Annotated[str | None, _backend] = None
    path: Annotated[str, values.search_path] = ""
    user: Annotated[str | None, values.user_name] = None
    poll: Annotated[PollSettings, Key.APART] = field(default_factory=PollSettings)
    embedded: EmbeddedSettings = field(default_factory=EmbeddedSettings)
    launch: Annotated[LaunchSettings, Key.APART] = field(default_factory=LaunchSettings)


class UiSettings(Struct, frozen=True):
    """[ui].

    columns: by view (jobs, nodes, queues, history) the names of the columns shown, in order; a view
    left out has its own. sort: by view a column's name, with '-' in front for the largest first.
    fold_arrays: whether an array is one line until unfolded. clock: "local" or "utc", for the times
    shown. notify: what a terminal without focus is sent when jobs of one's own end: "bell", "osc9",
    "osc777" or "none".
    """

    columns: Annotated[Mapping[str, tuple[str, ...]], Key.APART] = field(default_factory=dict)
    sort: Annotated[Mapping[str, str], Key.APART] = field(default_factory=dict)
    fold_arrays: Flag = True
    clock: Annotated[str, values.one_of("local", "utc")] = "local"
    notify: Annotated[str, values.one_of("bell", "osc9", "osc777", "none")] = "osc9"


class MetricsSettings(Struct, frozen=True):
    """[metrics].

    patterns: a person's own regular expressions for lines of logs, tried before what is known;
    their named groups are metrics, and `step`, `last_step`, `epoch` and `tokens`.
    """

    patterns: Annotated[tuple[str, ...], Key.APART] = ()


def _priority(value: object) -> Priority:
    try:
        return parse_priority(values.parse_line_text(value))
    except ValueError as error:
        raise ValidationError(str(error)) from None


def _node_list(value: object) -> str:
    text = values.parse_line_text(value)
    try:
        expand(text)
    except ValueError as error:
        raise ValidationError(f"{shown(text)} is no list of nodes: {error}") from None
    return text


class QuotaSettings(Struct, frozen=True):
    """One [[share.POOL.quotas]]: the most nodes that each of `users` ("*": everyone) has at once at
    a priority.
    """

    priority: Annotated[Priority, _priority]
    nodes: Annotated[int, whole_in_range(0, _MAX_SLOTS, "nodes")]
    users: Annotated[tuple[str, ...], values.texts] = (EVERYONE,)


class PoolSettings(Struct, frozen=True):
    """One [share.POOL]: a pool of at most `nodes` nodes that tasks use in turns.

    queue, qos, reservation: which jobs and nodes belong to the pool; '' for any. node_list: the
    only nodes its tasks start on, as `n[01-16]`; '' for any of these. as_owners: run scontrol as
    each task's owner through sudo, not as the coordinator. cpus_per_node, gpus_per_node: the size
    of a node if the scheduler does not count nodes, like the embedded queue. choosers: the users
    who may choose a priority ("*": everyone); others get AUTO. least_gpus: the minimum for a task.
    grace_seconds: how long a task has to see the suspend command, and then to save.
    demote_after_seconds: running time until ABOVE_NORMAL becomes NORMAL. start_seconds: how long
    the scheduler has to start a task before others take its turn, for retry_seconds.
    no_log_seconds: a task that writes no log for this long has failed; 0: never. poll_seconds: how
    often the queue is checked; 0: every second on the embedded queue, every 5 s on any other.
    cluster: the cluster it is on, a key of `clusters`; None: any. coordinator: the account that
    coordinates it, whose state_file is trusted ('': one's own). state_file: where that account
    publishes the pool's state ('': in its own state folder, which no other account can read).
    """

    name: str
    nodes: Annotated[int, whole_in_range(1, _MAX_SLOTS, "nodes")]
    cluster: Annotated[str | None, values.parse_line_text] = None
    coordinator: Text = ""
    state_file: Annotated[str, values.absolute_path] = ""
    queue: Text = ""
    qos: Text = ""
    reservation: Text = ""
    node_list: Annotated[str, _node_list] = ""
    as_owners: Flag = False
    cpus_per_node: Annotated[int, whole_in_range(1, _MAX_SLOTS, "CPUs")] = 1
    gpus_per_node: Annotated[int, whole_in_range(0, _MAX_SLOTS, "GPUs")] = 0
    choosers: Annotated[tuple[str, ...], values.texts] = ()
    least_gpus: Annotated[int, whole_in_range(0, _MAX_SLOTS, "GPUs")] = 0
    grace_seconds: Annotated[float, in_range(0, 3600, "seconds")] = 5.0
    demote_after_seconds: Annotated[float, in_range(1, 30 * 86_400, "seconds")] = 1800.0
    start_seconds: Annotated[float, in_range(1, 86_400, "seconds")] = 120.0
    retry_seconds: Annotated[float, in_range(1, 86_400, "seconds")] = 600.0
    no_log_seconds: Annotated[float, in_range(0, 30 * 86_400, "seconds")] = 1800.0
    poll_seconds: Annotated[float, in_range(0, 3600, "seconds")] = 0.0
    quotas: Annotated[tuple[QuotaSettings, ...], Key.APART] = ()


class Settings(Struct, frozen=True):
    """All of a configuration.

    file: what was read; None when there was nothing to read and all is by default. default_cluster:
    the cluster shown first, a key of `clusters`; None: the first one. keys: action name → keys as
    written, several joined with ',' (`"x,ctrl+x"`); a key is a name (`space`, `ctrl+x`) or a single
    character (`?`); the name of an alias too. aliases: word → what the ':' command line makes of
    it. filters: name → the expression that `@name` stands for in a filter. clusters, plugins: in
    the file's order.
    """

    file: Path | None = None
    default_cluster: Annotated[str | None, values.parse_line_text] = None
    theme: Text = DEFAULT_THEME
    read_only: Flag = False
    poll: Annotated[PollSettings, Key.TABLE] = field(default_factory=PollSettings)
    keys: Annotated[Mapping[str, str], Key.APART] = field(default_factory=dict)
    aliases: Annotated[Mapping[str, str], Key.APART] = field(default_factory=dict)
    filters: Annotated[Mapping[str, str], Key.APART] = field(default_factory=dict)
    plugins: Annotated[tuple[Plugin, ...], Key.APART] = ()
    exec: Annotated[tuple[SiteCommand, ...], Key.APART] = ()
    clusters: Annotated[Mapping[str, ClusterSettings], Key.APART] = field(default_factory=dict)
    ui: Annotated[UiSettings, Key.APART] = field(default_factory=UiSettings)
    metrics: Annotated[MetricsSettings, Key.APART] = field(default_factory=MetricsSettings)
    embedded: Annotated[EmbeddedSettings, Key.TABLE] = field(default_factory=EmbeddedSettings)
    launch: Annotated[LaunchSettings, Key.APART] = field(default_factory=LaunchSettings)
    watch: Annotated[WatchSettings, Key.APART] = field(default_factory=WatchSettings)
    share: Annotated[Mapping[str, PoolSettings], Key.APART] = field(default_factory=dict)


def read_settings(
    document: Mapping[str, object], file: Path, action_names: Collection[str] | None
) -> tuple[Settings, list[tuple[KeyPath, str]]]:
    """Read the settings, and problems as (key path, message).

    The settings are only valid without problems.
    """
    reader = TableReader(_hint)
    fit = reader.fit(Settings, document, ())
    poll, embedded = fit.get("poll", PollSettings()), fit.get("embedded", EmbeddedSettings())
    launch = _launch(reader, document, (), LaunchSettings())
    clusters = {
        name: replace(cluster, embedded=embedded)
        for name in reader.table(document, (), "clusters")
        if (cluster := _cluster(reader, document, name, poll, launch)) is not None
    }
    metrics = _metrics(reader, document)
    settings = build(
        Settings,
        fit,
        file=file,
        keys=_keys(reader, document, action_names),
        aliases=_aliases(reader, document),
        filters=read_filters(reader, document),
        plugins=read_plugins(reader, document),
        exec=read_commands(reader, document),
        clusters=clusters,
        ui=_ui(reader, document),
        metrics=metrics,
        launch=_user_values(launch, None),
        share=_pools(reader, document),
        watch=replace(read_watch(reader, document, clusters), metric_patterns=metrics.patterns),
    )
    _check_default_cluster(reader, document, settings.default_cluster)
    return settings, reader.problems


def _launch(
    reader: TableReader, parent: Mapping[str, object], path: KeyPath, inherited: LaunchSettings
) -> LaunchSettings:
    """Read `launch` of a table over the inherited settings: scalars override, lists append.

    run_as may still be the word that `_user_values` replaces.
    """
    if "launch" not in parent:
        return inherited
    # The readers of REQUEST.toml load the backends, and a configuration without this table need not
    # wait for them.
    from hpcdash.config.queue_defaults import overridden
    from hpcdash.config.request import QUEUE_KEYS, SITE_KEYS, read_keys
    from hpcdash.config.request import variable as read_variable

    table, here = reader.table(parent, path, "launch"), (*path, "launch")
    readers = {**SITE_KEYS, **record_keys(LaunchSettings).readers}
    own = read_keys(reader, table, here, readers, apart=("queues",))
    settings = {key: own.pop(key) for key in record_keys(LaunchSettings).readers if key in own}
    queues: dict[str, Mapping[str, object]] = dict(inherited.queues)
    named: dict[str, str] = {}
    given = reader.table(table, here, "queues")
    for name in given:
        at = (*here, "queues", name)
        if not name.strip():
            reader.problem(at, "a queue has a name")
        if name.casefold() in named:
            reader.problem(
                at, f"the same queue as {named[name.casefold()]}: upper and lower case are alike"
            )
        named[name.casefold()] = name
        queue = reader.table(given, at[:-1], name)
        found = read_keys(reader, queue, at, QUEUE_KEYS, apart=("environment",))
        variables = reader.table(queue, at, "environment")
        if variables:
            found["environment"] = reader.mapping(variables, (*at, "environment"), read_variable)
        before = next((one for one in queues if one.casefold() == name.casefold()), name)
        queues[before] = overridden(queues.get(before, {}), {name: found}, name)
    return replace(inherited, site=replace(inherited.site, **own), queues=queues, **settings)


def _user_values(
    launch: LaunchSettings, user: str | None, complain: Callable[[str], None] | None = None
) -> LaunchSettings:
    """Return the values with the login name that run_as means.

    Without a user the word "user" means oneself, or a complaint where the cluster itself requires
    it.
    """
    if not launch.site.run_as:
        return launch
    from hpcdash.config.request import whose

    try:
        run_as = whose(launch.site.run_as, user)
    except ValidationError as error:
        run_as = ""
        if complain:
            complain(str(error))
    return replace(launch, site=replace(launch.site, run_as=run_as))


def _cluster(
    reader: TableReader,
    document: Mapping[str, object],
    name: str,
    poll: PollSettings,
    launch: LaunchSettings,
) -> ClusterSettings | None:
    path: KeyPath = ("clusters", name)
    if not _CLUSTER_NAME.fullmatch(name):
        reader.problem(
            path,
            "a cluster's name is letters, digits, '.', '_' and '-', at most 64 (use title for "
            "more)",
        )
    before = len(reader.problems)
    table = reader.table(reader.table(document, (), "clusters"), ("clusters",), name)
    urls = dict.fromkeys(OVER_HTTP, values.http_url)
    found = reader.fit(ClusterSettings, table, path, {"port": values.port, **urls})
    overrides = reader.fit(PollSettings, reader.table(table, path, "poll"), (*path, "poll"))
    has_user_key = isinstance(own := table.get("launch"), dict) and "run_as" in own
    found["launch"] = _user_values(
        _launch(reader, table, path, launch),
        found.get("user"),
        partial(reader.problem, (*path, "launch", "run_as")) if has_user_key else None,
    )
    if len(reader.problems) > before:
        return None
    ssh = found.get("ssh")
    port = found.pop("port", None)
    by_url = {name: found.pop(name) for name in OVER_HTTP if name in found}
    if by_url:
        return _over_http(reader, name, path, found, by_url, replace(poll, **overrides))
    for key in {"token_file", "headers_file"} & found.keys():
        reader.problem(
            (*path, key), f"only a cluster with a URL has one: {' or '.join(OVER_HTTP)} = ..."
        )
    transport = found.setdefault("transport", "local" if ssh is None else "ssh")
    if transport == "local" and ssh is not None:
        reader.problem((*path, "ssh"), 'a cluster with transport = "local" has no ssh destination')
    elif transport != "local" and ssh is None:
        reader.problem(
            path, f'transport = {quoted(transport)} needs a destination: ssh = "[user@]host[:port]"'
        )
    if port is not None:
        if ssh is None:
            reader.problem((*path, "port"), "a port needs a destination: ssh = ...")
        elif ssh.port is not None:
            reader.problem((*path, "port"), "the port stands in ssh = ... already")
        else:
            found["ssh"] = replace(ssh, port=port)
    return ClusterSettings(name=name, poll=replace(poll, **overrides), **{"title": name, **found})


def _over_http(
    reader: TableReader,
    name: str,
    path: KeyPath,
    found: Mapping[str, Any],
    by_url: Mapping[str, str],
    poll: PollSettings,
) -> ClusterSettings | None:
    """Return a cluster with a scheduler over HTTP, through a login node if `ssh` names one."""
    backend, url = next(iter(by_url.items()))
    if len(by_url) > 1 or found.get("backend", backend) != backend:
        reader.problem((*path, "backend"), f"{backend} = {quoted(url)} says which scheduler it is")
        return None
    if found.get("transport", "ssh") != "ssh" or "port" in found:
        key = "port" if "port" in found else "transport"
        reader.problem(
            (*path, key),
            f"a cluster with {backend} = {quoted(url)} has none; ssh = ... may lead there",
        )
        return None
    given = {**found, "transport": "http", "backend": backend, "url": url, "poll": poll}
    return ClusterSettings(**{"name": name, "title": name, **given})


def _pools(reader: TableReader, document: Mapping[str, object]) -> dict[str, PoolSettings]:
    pools = {}
    table = reader.table(document, (), "share")
    for name in table:
        path: KeyPath = ("share", name)
        if not _CLUSTER_NAME.fullmatch(name):
            reader.problem(path, "a pool's name is letters, digits, '.', '_' and '-', at most 64")
        pool = reader.table(table, ("share",), name)
        quotas = [
            reader.record(QuotaSettings, one, at) for one, at in reader.tables(pool, path, "quotas")
        ]
        fit = reader.fit(PoolSettings, pool, path)
        if reader.has(pool, path, fit, record_keys(PoolSettings).required):
            pools[name] = build(PoolSettings, fit, name=name, quotas=tuple(filter(None, quotas)))
    return pools


def _check_default_cluster(
    reader: TableReader, document: Mapping[str, object], name: str | None
) -> None:
    clusters = document.get("clusters", {})
    if name is None or (isinstance(clusters, dict) and name in clusters):
        return
    hint = did_you_mean(name, clusters) if isinstance(clusters, dict) else ""
    reader.problem(("default_cluster",), f"there is no [clusters.{name}]{hint}")


def _keys(
    reader: TableReader, document: Mapping[str, object], action_names: Collection[str] | None
) -> dict[str, str]:
    table = reader.table(document, (), "keys")
    aliases = document.get("aliases")
    names = {*(action_names or ()), *(aliases if isinstance(aliases, dict) else ())}
    for action in table:
        if action_names is not None and action not in names:
            reader.problem(("keys", action), f"unknown action{did_you_mean(action, names)}")
    return reader.mapping(table, ("keys",), values.key_presses)


def _aliases(reader: TableReader, document: Mapping[str, object]) -> dict[str, str]:
    table = reader.table(document, (), "aliases")
    for word in table:
        if not word or any(char.isspace() or not char.isprintable() for char in word):
            reader.problem(("aliases", word), "an alias is one word")
    return reader.mapping(table, ("aliases",), _alias)


def _alias(value: object) -> str:
    command = values.parse_line_text(value).strip().removeprefix(":").strip()
    if not command:
        raise ValidationError("expected a command, as in " + quoted("jobs queue:gpu"))
    return command


def _ui(reader: TableReader, document: Mapping[str, object]) -> UiSettings:
    table = reader.table(document, (), "ui")
    by_view: dict[str, Any] = {}
    for key, read in (("columns", values.column_list), ("sort", values.sort_column)):
        views = reader.table(table, ("ui",), key)
        readers = {
            view: partial(read, known=TABLES[view].names) for view in _VIEWS if view in views
        }
        by_view[key] = reader.fields(views, ("ui", key), readers, apart=_VIEWS)
    return build(UiSettings, reader.fit(UiSettings, table, ("ui",)), **by_view)


def _metrics(reader: TableReader, document: Mapping[str, object]) -> MetricsSettings:
    table = reader.table(document, (), "metrics")
    reader.fit(MetricsSettings, table, ("metrics",))
    listed = table.get("patterns", [])
    if not isinstance(listed, list):
        reader.problem(
            ("metrics", "patterns"),
            f"expected an array of regular expressions, not {shown(listed)}",
        )
        return MetricsSettings()
    read = [
        reader.value(("metrics", "patterns", at), values.metric_pattern, one)
        for at, one in enumerate(listed)
    ]
    return MetricsSettings(tuple(pattern for pattern in read if pattern is not None))


def _hint(key: str, path: KeyPath, known: Collection[str]) -> str:
    """Return the hint that follows "unknown key"."""
    hint = did_you_mean(key, known)
    if not hint and path and key in record_keys(Settings).readers:
        hint = "; it stands at the top of the file, before the first [table]"
    elif not hint and path != ("poll",) and key in record_keys(PollSettings).readers:
        hint = "; it belongs in [poll]"
    elif not hint and "launch" not in path and key in _SITE_FIELDS:
        hint = "; it belongs in [launch]"
    return hint
