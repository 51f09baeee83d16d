"""Turns a parsed TOML document into settings, collecting every problem on the way. Pure; reads no file."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from hpcdash.config import values
from hpcdash.config.problems import KeyPath, did_you_mean, quoted, shown
from hpcdash.config.settings import (
    ClusterSettings,
    EmbeddedSettings,
    LaunchSettings,
    MetricsSettings,
    PollSettings,
    Settings,
    UiSettings,
)
from hpcdash.config.values import Reader, ValidationError
from hpcdash.config.watch_settings import WatchSettings
from hpcdash.domain.request import Site

_CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TABLES = ("poll", "keys", "aliases", "clusters", "ui", "embedded", "launch", "metrics", "watch")
_TOP: Mapping[str, Reader] = {
    "default_cluster": values.line_of_text,
    "theme": values.line_of_text,
    "read_only": values.flag,
}
_POLL: Mapping[str, Reader] = {
    "mine_seconds": values.poll_seconds,
    "everyone_seconds": values.poll_seconds,
    "nodes_seconds": values.poll_seconds,
    "history_seconds": values.poll_seconds,
    "unfocused_factor": values.unfocused_factor,
    "commands_per_minute": values.commands_per_minute,
    "controller_share": values.controller_share,
}


def _backend(value: object) -> str:
    from hpcdash.backends.registry import BACKENDS

    return values.one_of(*BACKENDS, "local")(value)


_CLUSTER: Mapping[str, Reader] = {
    "title": values.line_of_text,
    "transport": values.one_of("local", "ssh", "openssh"),
    "ssh": values.ssh_destination,
    "port": values.port,
    "backend": _backend,
    "path": values.search_path,
    "user": values.user_name,
}
_EMBEDDED: Mapping[str, Reader] = {
    "cpus": values.cpu_slots,
    "gpus": values.gpu_slots,
    "grace_seconds": values.grace_seconds,
}
_UI: Mapping[str, Reader] = {"fold_arrays": values.flag, "clock": values.one_of("local", "utc")}
_SITE_KEYS = frozenset(field.name for field in fields(Site))
_VIEWS = ("jobs", "nodes", "queues", "history")
# Columns the dashboard makes of several, or of logs.
_MADE_COLUMNS = {"jobs": ("left", "where", "starts", "loss"), "history": ("exit",)}


def check_document(
    document: Mapping[str, object], file: Path, action_names: Collection[str] | None
) -> tuple[Settings, list[tuple[KeyPath, str]]]:
    """Settings, and what is wrong as (key path, words); the settings are good only when nothing is wrong."""
    checking = _Checking()
    top = checking.fields(document, (), _TOP, inner=_TABLES)
    poll = PollSettings(**checking.fields(checking.table(document, (), "poll"), ("poll",), _POLL))
    embedded = EmbeddedSettings(**checking.fields(checking.table(document, (), "embedded"), ("embedded",), _EMBEDDED))
    launch = checking.launch(document, (), LaunchSettings())
    clusters = {
        name: replace(cluster, embedded=embedded)
        for name in checking.table(document, (), "clusters")
        if (cluster := checking.cluster(document, name, poll, launch)) is not None
    }
    metrics = checking.metrics(document)
    settings = Settings(
        file=file,
        poll=poll,
        keys=checking.keys(document, action_names),
        aliases=checking.aliases(document),
        clusters=clusters,
        ui=checking.ui(document),
        metrics=metrics,
        embedded=embedded,
        launch=_of_user(launch, None),
        watch=replace(checking.watch(document, clusters), metric_patterns=metrics.patterns),
        **top,
    )
    checking.default_cluster(document, settings.default_cluster)
    return settings, checking.problems


class _Checking:
    def __init__(self) -> None:
        self.problems: list[tuple[KeyPath, str]] = []

    def problem(self, path: KeyPath, message: str) -> None:
        self.problems.append((path, message))

    def table(self, parent: Mapping[str, object], path: KeyPath, key: str) -> Mapping[str, Any]:
        """The table under a key; an empty one where it is missing or no table."""
        table = parent.get(key, {})
        if isinstance(table, dict):
            return table
        self.problem((*path, key), f"expected a table, not {shown(table)}")
        return {}

    def value(self, path: KeyPath, reader: Callable[[object], Any], value: object) -> Any:
        """What a reader makes of a value; None, and a problem, where it does not fit."""
        try:
            return reader(value)
        except ValidationError as error:
            self.problem(path, str(error))
            return None

    def fields(
        self, table: Mapping[str, object], path: KeyPath, readers: Mapping[str, Reader], inner: Iterable[str] = ()
    ) -> dict[str, Any]:
        """The values that are there and fit; `inner` names the tables read elsewhere."""
        known = (*readers, *inner)
        fit: dict[str, Any] = {}
        for key, value in table.items():
            if key in readers:
                read = self.value((*path, key), readers[key], value)
                if read is not None:
                    fit[key] = read
            elif key not in known:
                self.problem((*path, key), _unknown_key(key, path, known))
        return fit

    def launch(self, parent: Mapping[str, object], path: KeyPath, inherited: LaunchSettings) -> LaunchSettings:
        """`launch` of a table over what is inherited."""
        if "launch" not in parent:
            return inherited
        # Its readers are of REQUEST.toml, and a configuration without this table need not wait for them.
        from hpcdash.config.launch import launch_settings

        return launch_settings(self, parent, path, inherited)

    def watch(self, document: Mapping[str, object], clusters: Collection[str]) -> WatchSettings:
        """`watch` of the document, whose readers are loaded for it alone."""
        if "watch" not in document:
            return WatchSettings()
        from hpcdash.config.watch import watch_settings

        return watch_settings(self, document, clusters)

    def cluster(
        self, document: Mapping[str, object], name: str, poll: PollSettings, launch: LaunchSettings
    ) -> ClusterSettings | None:
        path: KeyPath = ("clusters", name)
        if not _CLUSTER_NAME.fullmatch(name):
            self.problem(path, "a cluster's name is letters, digits, '.', '_' and '-', at most 64 (use title for more)")
        before = len(self.problems)
        table = self.table(self.table(document, (), "clusters"), ("clusters",), name)
        found = self.fields(table, path, _CLUSTER, inner=("poll", "launch"))
        overrides = self.fields(self.table(table, path, "poll"), (*path, "poll"), _POLL)
        asks_for_user = isinstance(own := table.get("launch"), dict) and "run_as" in own
        found["launch"] = _of_user(
            self.launch(table, path, launch),
            found.get("user"),
            partial(self.problem, (*path, "launch", "run_as")) if asks_for_user else None,
        )
        if len(self.problems) > before:
            return None
        ssh = found.get("ssh")
        port = found.pop("port", None)
        transport = found.setdefault("transport", "local" if ssh is None else "ssh")
        if transport == "local" and ssh is not None:
            self.problem((*path, "ssh"), 'a cluster with transport = "local" has no ssh destination')
        elif transport != "local" and ssh is None:
            self.problem(path, f'transport = {quoted(transport)} needs a destination: ssh = "[user@]host[:port]"')
        if port is not None:
            if ssh is None:
                self.problem((*path, "port"), "a port needs a destination: ssh = ...")
            elif ssh.port is not None:
                self.problem((*path, "port"), "the port stands in ssh = ... already")
            else:
                found["ssh"] = replace(ssh, port=port)
        return ClusterSettings(name=name, poll=replace(poll, **overrides), **{"title": name, **found})

    def default_cluster(self, document: Mapping[str, object], name: str | None) -> None:
        clusters = document.get("clusters", {})
        if name is None or (isinstance(clusters, dict) and name in clusters):
            return
        hint = did_you_mean(name, clusters) if isinstance(clusters, dict) else ""
        self.problem(("default_cluster",), f"there is no [clusters.{name}]{hint}")

    def keys(self, document: Mapping[str, object], action_names: Collection[str] | None) -> dict[str, str]:
        keys: dict[str, str] = {}
        for action, presses in self.table(document, (), "keys").items():
            path = ("keys", action)
            if action_names is not None and action not in action_names:
                self.problem(path, f"unknown action{did_you_mean(action, action_names)}")
            read = self.value(path, values.key_presses, presses)
            if read is not None:
                keys[action] = read
        return keys

    def aliases(self, document: Mapping[str, object]) -> dict[str, str]:
        aliases: dict[str, str] = {}
        for word, command in self.table(document, (), "aliases").items():
            path = ("aliases", word)
            if not word or any(char.isspace() or not char.isprintable() for char in word):
                self.problem(path, "an alias is one word")
            read = self.value(path, values.line_of_text, command)
            if read is not None:
                aliases[word] = read.strip().removeprefix(":").strip()
                if not aliases[word]:
                    self.problem(path, "expected a command, as in " + quoted("jobs queue:gpu"))
        return aliases

    def ui(self, document: Mapping[str, object]) -> UiSettings:
        table = self.table(document, (), "ui")
        columns: dict[str, tuple[str, ...]] = self._by_view(table, "columns", values.column_list)
        sort: dict[str, str] = self._by_view(table, "sort", values.sort_column)
        return UiSettings(columns=columns, sort=sort, **self.fields(table, ("ui",), _UI, inner=("columns", "sort")))

    def metrics(self, document: Mapping[str, object]) -> MetricsSettings:
        table = self.table(document, (), "metrics")
        self.fields(table, ("metrics",), {}, inner=("patterns",))
        listed = table.get("patterns", [])
        if not isinstance(listed, list):
            self.problem(("metrics", "patterns"), f"expected an array of regular expressions, not {shown(listed)}")
            return MetricsSettings()
        read = [self.value(("metrics", "patterns", at), values.metric_pattern, one) for at, one in enumerate(listed)]
        return MetricsSettings(tuple(pattern for pattern in read if pattern is not None))

    def _by_view(self, ui: Mapping[str, object], key: str, reader: Callable[..., Any]) -> dict[str, Any]:
        path = ("ui", key)
        table = self.table(ui, ("ui",), key)
        readers = {view: partial(reader, known=_column_names(view)) for view in _VIEWS if view in table}
        return self.fields(table, path, readers, inner=_VIEWS)


def _of_user(launch: LaunchSettings, user: str | None, complain: Callable[[str], None] | None = None) -> LaunchSettings:
    """Without a user the word "user" of run_as is oneself, or a complaint where the cluster itself asks for it."""
    if not launch.site.run_as:
        return launch
    from hpcdash.config.launch import settled

    return settled(launch, user, complain)


def _unknown_key(key: str, path: KeyPath, known: Iterable[str]) -> str:
    hint = did_you_mean(key, known)
    if not hint and path and key in _TOP:
        hint = "; it stands at the top of the file, before the first [table]"
    elif not hint and path != ("poll",) and key in _POLL:
        hint = "; it belongs in [poll]"
    elif not hint and "launch" not in path and key in _SITE_KEYS:
        hint = "; it belongs in [launch]"
    return f"unknown key{hint}"


def _column_names(view: str) -> list[str]:
    # Arrow takes 0.1 s to import, which a configuration without columns need not wait for.
    from hpcdash.domain import schema

    by_view = {"nodes": schema.NODES, "queues": schema.QUEUES}
    return [*schema.public_names(by_view.get(view, schema.JOBS)), *_MADE_COLUMNS.get(view, ())]
