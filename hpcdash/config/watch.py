"""Turns [watch] into settings. Pure; reads no file, no secret."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from hpcdash.config import values
from hpcdash.config import watch_values as of_watch
from hpcdash.config.problems import KeyPath, dotted, quoted
from hpcdash.config.values import Reader
from hpcdash.config.watch_settings import (
    ANYONE,
    LOSS_KINDS,
    QUOTA_TOOLS,
    AlertSettings,
    AppriseSettings,
    ChainRule,
    ChainWatch,
    CheckpointWatch,
    CommandSettings,
    FailuresRule,
    FailuresWatch,
    HangingRule,
    HangingWatch,
    JobSelector,
    LossesRule,
    LossWatch,
    MailSettings,
    NodesRule,
    NodesWatch,
    Notice,
    QuietHours,
    RunningRule,
    SavesRule,
    Secret,
    StorageRule,
    StorageWatch,
    TerminalSettings,
    WatchSettings,
    WebhookSettings,
)

T = TypeVar("T")
_TOP: Mapping[str, Reader] = {
    "every_seconds": of_watch.round_seconds,
    "pulse_file": of_watch.path_here,
    "unreachable_rounds": of_watch.counted,
    "never_starts": values.flag,
    "snooze_seconds": of_watch.some_seconds,
}
_ALERTS: Mapping[str, Reader] = {
    "least": of_watch.severity,
    "remind_seconds": of_watch.seconds_or_never,
    "settle_seconds": of_watch.seconds,
    "tells_recovery": values.flag,
}
_QUIET: Mapping[str, Reader] = {
    "start": of_watch.clock,
    "end": of_watch.clock,
    "zone": of_watch.zone,
    "lets_through": of_watch.severity,
}
_MEANT: Mapping[str, Reader] = {"name": values.line_of_text, "users": of_watch.texts, "clusters": of_watch.texts}
_WHERE: Mapping[str, Reader] = {"clusters": of_watch.texts}
_STORAGE: Mapping[str, Reader] = {
    "path": of_watch.absolute_path,
    "share": of_watch.share,
    "is_scratch": values.flag,
    "full_at": of_watch.share,
    "floor_bytes": of_watch.amount_bytes,
    "floor_inodes": of_watch.count,
    "forecast_seconds": of_watch.seconds_or_never,
    "critical_seconds": of_watch.seconds,
    "limit_bytes": of_watch.amount_bytes,
    "limit_inodes": of_watch.counted,
    "planned_bytes_a_day": of_watch.amount_bytes,
}
_QUOTA: Mapping[str, Reader] = {"quota": values.one_of(*QUOTA_TOOLS), "quota_of": of_watch.quota_owner}
_CHECKPOINT: Mapping[str, Reader] = {
    "interval_seconds": of_watch.some_seconds,
    "save_seconds": of_watch.some_seconds,
    "spare_seconds": of_watch.seconds,
}
_SAVED: Mapping[str, Reader] = {"checkpoints": of_watch.absolute_path, "saved": of_watch.absolute_path}
_MAIL: Mapping[str, Reader] = {
    "recipients": of_watch.texts,
    "sender": values.line_of_text,
    "host": values.line_of_text,
    "port": values.port,
    "security": values.one_of("starttls", "tls", "none"),
    "user": values.line_of_text,
    "ca_file": of_watch.absolute_path,
    "timeout_seconds": of_watch.some_seconds,
}
_WEBHOOK: Mapping[str, Reader] = {
    "form": values.one_of("json", "slack"),
    "ca_file": of_watch.absolute_path,
    "timeout_seconds": of_watch.some_seconds,
}
_TABLES = (
    *("quiet", "snoozed", "running", "hanging", "losses", "storage", "nodes", "chains", "saves", "failures"),
    *("mail", "webhook", "command", "apprise", "terminal"),
)
# What [[watch.chains]] was called before.
_OLD_CHAINS = "trains"
_HEADERS = ("headers", "headers_file", "headers_env")


class Checking(Protocol):
    """Collects problems while it reads tables."""

    def problem(self, path: KeyPath, message: str) -> None: ...

    def table(self, parent: Mapping[str, object], path: KeyPath, key: str) -> Mapping[str, Any]: ...

    def fields(
        self, table: Mapping[str, object], path: KeyPath, readers: Mapping[str, Reader], inner: Iterable[str] = ()
    ) -> dict[str, Any]: ...


def watch_settings(checking: Checking, document: Mapping[str, object], clusters: Collection[str]) -> WatchSettings:
    """What `watch` of a document says; `clusters` are those that it configures."""
    return _Watch(checking, checking.table(document, (), "watch"), clusters).settings()


class _Watch:
    def __init__(self, checking: Checking, table: Mapping[str, Any], clusters: Collection[str]) -> None:
        self._checking = checking
        self._table = table
        self._clusters = clusters

    def settings(self) -> WatchSettings:
        checking, table = self._checking, self._table
        given = checking.fields(table, ("watch",), {**_TOP, **_ALERTS}, inner=(*_TABLES, _OLD_CHAINS))
        alerts = {name: _never(given.pop(name)) for name in _ALERTS if name in given}
        quiet = checking.fields(checking.table(table, ("watch",), "quiet"), ("watch", "quiet"), _QUIET)
        kept = checking.table(table, ("watch",), "snoozed")
        snoozed = checking.fields(kept, ("watch", "snoozed"), dict.fromkeys(kept, of_watch.moment))
        terminal = {"bell": values.flag, "notification": values.flag}
        rings = checking.fields(checking.table(table, ("watch",), "terminal"), ("watch", "terminal"), terminal)
        notices = (*self._mail(), *self._webhooks(), *self._commands(), *self._apprise())
        return WatchSettings(
            alerts=AlertSettings(**alerts, quiet=QuietHours(**quiet)),
            snoozed=snoozed,
            running=tuple(self._each("running", self._running)),
            hanging=tuple(self._each("hanging", self._hanging)),
            losses=tuple(self._each("losses", self._losses)),
            storage=tuple(self._each("storage", self._storage)),
            nodes=tuple(self._each("nodes", self._nodes)),
            chains=(*self._each("chains", self._chains), *self._each(_OLD_CHAINS, self._chains)),
            saves=tuple(self._each("saves", self._saves)),
            failures=tuple(self._each("failures", self._failures)),
            notices=notices,
            terminal=TerminalSettings(**rings) if "terminal" in table else None,
            is_configured=True,
            **given,
        )

    def _each(self, key: str, read: Callable[[Mapping[str, object], KeyPath], T | None]) -> Iterable[T]:
        """Of each table under a key, which may be one or an array of them; what cannot be used is left out."""
        given = self._table.get(key, [])
        found: list[tuple[KeyPath, Mapping[str, object]]]
        if isinstance(given, dict):
            found = [(("watch", key), given)]
        elif isinstance(given, list) and all(isinstance(one, dict) for one in given):
            found = [(("watch", key, at), one) for at, one in enumerate(given)]
        else:
            self._checking.problem(("watch", key), f"expected tables: [[watch.{key}]]")
            return
        for path, table in found:
            if (record := read(table, path)) is not None:
                yield record

    def _split(
        self, table: Mapping[str, object], path: KeyPath, meant: Mapping[str, Reader], own: Mapping[str, Reader]
    ) -> tuple[JobSelector, dict[str, Any]]:
        fit = self._checking.fields(table, path, {**meant, **own})
        found = JobSelector(**{name: fit.pop(name) for name in meant if name in fit})
        for at, name in enumerate(found.clusters):
            if self._clusters and name not in self._clusters:
                self._checking.problem((*path, "clusters", at), f"there is no [clusters.{name}]")
        if ANYONE in found.users and len(found.users) > 1:
            self._checking.problem((*path, "users"), f"{quoted(ANYONE)} is anyone: no other name belongs beside it")
        return found, fit

    def _needs(self, table: Mapping[str, object], path: KeyPath, *keys: str) -> bool:
        missing = [key for key in keys if key not in table]
        for key in missing:
            self._checking.problem(path, f"{key} = … is missing")
        return not missing

    def _is_placed(self, meant: JobSelector, path: KeyPath) -> None:
        if len(self._clusters) > 1 and not meant.clusters:
            named = quoted(next(iter(self._clusters)))
            self._checking.problem(path, f"there are several clusters: say which it is on, as in clusters = [{named}]")

    def _running(self, table: Mapping[str, object], path: KeyPath) -> RunningRule | None:
        meant, fit = self._split(table, path, _MEANT, {"severity": of_watch.severity})
        self._is_placed(meant, path)
        return RunningRule(meant, **fit) if self._needs(table, path, "name") else None

    def _hanging(self, table: Mapping[str, object], path: KeyPath) -> HangingRule | None:
        own = {"limit_seconds": of_watch.some_seconds, "severity": of_watch.severity, "log": of_watch.absolute_path}
        meant, fit = self._split(table, path, _MEANT, own)
        return HangingRule(meant, log=fit.pop("log", ""), watch=HangingWatch(**fit))

    def _losses(self, table: Mapping[str, object], path: KeyPath) -> LossesRule | None:
        own = {"kinds": of_watch.some_of(*LOSS_KINDS), "severity": of_watch.severity, "log": of_watch.absolute_path}
        meant, fit = self._split(table, path, _MEANT, own)
        return LossesRule(meant, log=fit.pop("log", ""), watch=LossWatch(**fit))

    def _storage(self, table: Mapping[str, object], path: KeyPath) -> StorageRule | None:
        meant, fit = self._split(table, path, _WHERE, {**_STORAGE, **_QUOTA})
        self._is_placed(meant, path)
        quota = {name: fit.pop(name) for name in _QUOTA if name in fit}
        fit = {name: _never(value) for name, value in fit.items()}
        if not self._needs(table, path, "path") or "path" not in fit:
            return None
        return StorageRule(StorageWatch(**fit), meant, **quota)

    def _nodes(self, table: Mapping[str, object], path: KeyPath) -> NodesRule | None:
        meant, fit = self._split(table, path, _WHERE, {"queues": of_watch.texts, "least_spare_share": of_watch.share})
        return NodesRule(meant, NodesWatch(**fit))

    def _chains(self, table: Mapping[str, object], path: KeyPath) -> ChainRule | None:
        meant, fit = self._split(table, path, _MEANT, {"fewest_waiting": of_watch.counted})
        return ChainRule(meant, ChainWatch(**fit))

    def _saves(self, table: Mapping[str, object], path: KeyPath) -> SavesRule | None:
        meant, fit = self._split(table, path, _MEANT, {**_CHECKPOINT, **_SAVED})
        told = {name: fit.pop(name) for name in _SAVED if name in fit}
        if len(told) == 2:
            self._checking.problem((*path, "saved"), "checkpoints or saved tells the last save: one of the two")
        is_whole = self._needs(table, path, "interval_seconds", "save_seconds")
        if not is_whole or not {"interval_seconds", "save_seconds"} <= fit.keys():
            return None
        return SavesRule(meant, CheckpointWatch(**fit), **told)

    def _failures(self, table: Mapping[str, object], path: KeyPath) -> FailuresRule | None:
        meant, fit = self._split(table, path, _WHERE, {"in_a_row": of_watch.counted, "most_nodes": of_watch.counted})
        return FailuresRule(meant, FailuresWatch(**fit))

    # -- who is told

    def _mail(self) -> Iterable[Notice]:
        def read(table: Mapping[str, object], path: KeyPath) -> Notice | None:
            if "password" in table:
                words = "a password does not stand here: password_file or password_env says where it is"
                self._checking.problem((*path, "password"), words)
                table = {key: value for key, value in table.items() if key != "password"}
            fit, secret = self._with_secret(table, path, _MAIL, "password", None)
            if not self._needs(table, path, "recipients", "sender") or not {"recipients", "sender"} <= fit.keys():
                return None
            return Notice(MailSettings(**fit), {"password": secret} if secret else {}, dotted(path))

        return self._each("mail", read)

    def _webhooks(self) -> Iterable[Notice]:
        def read(table: Mapping[str, object], path: KeyPath) -> Notice | None:
            own = {key: value for key, value in table.items() if key not in _HEADERS}
            fit, secret = self._with_secret(own, path, _WEBHOOK, "url", of_watch.secret_text)
            headers = self._headers(table, path)
            if secret is None:
                self._checking.problem(path, "url_file, url_env or url is missing: where to post")
                return None
            secrets = {"url": secret, **{f"headers.{name}": one for name, one in headers.items()}}
            return Notice(WebhookSettings(url="", **fit), secrets, dotted(path))

        return self._each("webhook", read)

    def _headers(self, table: Mapping[str, object], path: KeyPath) -> dict[str, Secret]:
        found: dict[str, Secret] = {}
        for key, field, reader in (
            ("headers", "text", of_watch.secret_text),
            ("headers_file", "file", of_watch.path_here),
            ("headers_env", "variable", of_watch.variable_name),
        ):
            named = self._checking.table(table, path, key)
            fit = self._checking.fields(named, (*path, key), dict.fromkeys(named, reader))
            found |= {name: Secret(**{field: value}) for name, value in fit.items()}
        return found

    def _commands(self) -> Iterable[Notice]:
        def read(table: Mapping[str, object], path: KeyPath) -> Notice | None:
            fit = self._checking.fields(table, path, {"argv": of_watch.texts, "limit_seconds": of_watch.some_seconds})
            if not self._needs(table, path, "argv") or "argv" not in fit:
                return None
            return Notice(CommandSettings(**fit), key=dotted(path))

        return self._each("command", read)

    def _apprise(self) -> Iterable[Notice]:
        def read(table: Mapping[str, object], path: KeyPath) -> Notice | None:
            fit, secret = self._with_secret(table, path, {"limit_seconds": of_watch.some_seconds}, "urls", None)
            if secret is None:
                self._checking.problem(path, "urls_file or urls_env is missing: where apprise's addresses are")
                return None
            return Notice(AppriseSettings(urls=(), **fit), {"urls": secret}, dotted(path))

        return self._each("apprise", read)

    def _with_secret(
        self,
        table: Mapping[str, object],
        path: KeyPath,
        readers: Mapping[str, Reader],
        name: str,
        in_the_file: Reader | None,
    ) -> tuple[dict[str, Any], Secret | None]:
        ways: dict[str, tuple[str, Reader]] = {
            f"{name}_file": ("file", of_watch.path_here),
            f"{name}_env": ("variable", of_watch.variable_name),
        }
        if in_the_file is not None:
            ways[name] = ("text", in_the_file)
        fit = self._checking.fields(table, path, {**readers, **{key: reader for key, (_, reader) in ways.items()}})
        told = [key for key in table if key in ways]
        for key in told[1:]:
            self._checking.problem((*path, key), f"{told[0]} says it already")
        found = {ways[key][0]: fit.pop(key) for key in ways if key in fit}
        return fit, Secret(**found) if found else None


def _never(value: Any) -> Any:
    return None if value == "never" else value
