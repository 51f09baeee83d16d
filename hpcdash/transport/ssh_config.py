"""Reads ~/.ssh/config: the hops to a destination, and the settings of each."""

from __future__ import annotations

import getpass
import itertools
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from asyncssh.config import ConfigParseError, SSHClientConfig, SSHConfig
from msgspec import Struct

from hpcdash.errors import ConfigError
from hpcdash.transport.known_hosts import DEFAULT_PORT, name_in_file

USER_CONFIG = Path("~/.ssh/config")
SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
# ssh_config(5), UserKnownHostsFile, GlobalKnownHostsFile and IdentityFile.
_USER_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
_GLOBAL_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
_IDENTITY_FILES = (
    "~/.ssh/id_ed25519_sk",
    "~/.ssh/id_ecdsa_sk",
    "~/.ssh/id_ed25519",
    "~/.ssh/id_ecdsa",
    "~/.ssh/id_rsa",
)
# Values of StrictHostKeyChecking with the meaning of another.
_STRICT_SYNONYMS = {"true": "yes", "off": "no", "false": "no"}
_MAX_JUMPS = 8
# Below INFO ssh does not show banners.
_QUIET_LEVELS = ("quiet", "fatal", "error")
# Characters used only in patterns: ssh_config(5), PATTERNS.
_PATTERN_SIGNS = frozenset("*?!,")
# Errors of asyncssh, including those for the home of an unknown user (RuntimeError), files that
# include each other (RecursionError), and a pattern that is not a path (ValueError).
_UNREADABLE = (ConfigParseError, OSError, ValueError, RuntimeError)


# ssh_config(5), Match: criteria without a pattern, and those with one that asyncssh evaluates.
_BARE_CRITERIA = frozenset({"all", "canonical", "final"})
_CRITERIA = frozenset({"exec", "host", "originalhost", "user", "localuser", "tagged"})
# Settings whose loss leads to another host, or to none.
_ROUTE_SETTINGS = ("proxyjump", "proxycommand", "hostname", "user", "port")
# ssh_config(5), TIME FORMATS.
_TIME = re.compile(r"(?:[0-9]{1,9}[smhdw]?)+", re.IGNORECASE)
_TIME_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


class ReadConfig(SSHConfig):
    """Options that were read from files, in asyncssh's form."""

    def __init__(self, options: Mapping[str, object]) -> None:
        super().__init__(None, False, False, False)
        self._options = dict(options)
        self.loaded = True

    def get_options(self, reload: bool) -> dict[str, object]:
        return dict(self._options)


_Handlers = dict[str, tuple[str, Callable[..., Any]]]


def _without_comments(handlers: _Handlers) -> _Handlers:
    """Wrap the handlers of settings so that they ignore a comment at the end of a line."""

    def wrap(handler: Callable[..., Any]) -> Callable[..., Any]:
        def read(config: Any, option: str, args: list[str]) -> None:
            for position, word in enumerate(args):
                if word.startswith("#"):
                    config.is_beyond_asyncssh = True
                    del args[position:]
                    break
            if not args:
                config._error(f"Missing {option} value")
            handler(config, option, args)

        return read

    return {
        name: (option, handler if name in SSHClientConfig._no_split else wrap(handler))
        for name, (option, handler) in handlers.items()
    }


class _Config(SSHClientConfig):
    """asyncssh's reader, with StrictHostKeyChecking, and the first of ProxyJump and ProxyCommand.

    It also accepts what OpenSSH does and asyncssh rejects: times with units, comments at the end of
    a line, and unknown criteria of Match, whose blocks are ignored and noted in `warnings`.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.warnings: list[str] = []
        # Settings that asyncssh rejects.
        self.is_beyond_asyncssh = False

    def _match(self, option: str, args: list[str]) -> None:
        known, unknown = _split_criteria(args)
        args.clear()
        super()._match(option, known)
        if unknown:
            self.is_beyond_asyncssh = True
            if self._matching:
                self._warn_unknown(unknown)
            self._matching = False

    def _warn_unknown(self, criterion: str) -> None:
        """Add a warning about an ignored block, with its settings that are not set before it."""
        names = {name.lower() for name in self._options}
        lost = [
            text
            for text in _route_settings(self._path, self._line_no)
            if text.partition(" ")[0].lower() not in names
        ]
        warning = (
            f"{self._path} line {self._line_no}: hpcdash cannot evaluate Match {criterion}: the "
            "block is ignored"
        )
        if lost:
            warning += f", with its {', '.join(lost)}"
        if warning not in self.warnings:
            self.warnings.append(warning)

    def _set_seconds(self, option: str, args: list[str]) -> None:
        text = args.pop(0)
        if text.isdecimal():
            args.insert(0, text)
            self._set_int(option, args)
            return
        self.is_beyond_asyncssh = True
        if text.lower() != "none" and not _TIME.fullmatch(text):
            self._error(f"Invalid {option} time value: {text}")
        seconds = 0
        for count, unit in re.findall("([0-9]+)([a-z]?)", text.lower()):
            seconds += int(count) * _TIME_UNITS[unit or "s"]
        self._options.setdefault(option, seconds)

    def _set_authentication(self, option: str, args: list[str]) -> None:
        """Read `PubkeyAuthentication unbound` and `host-bound` as yes."""
        if args[0].lower() in ("unbound", "host-bound"):
            self.is_beyond_asyncssh = True
            args[0] = "yes"
        self._set_bool(option, args)

    def _set_first_proxy(self, option: str, args: list[str]) -> None:
        if "ProxyJump" in self._options or "ProxyCommand" in self._options:
            args.clear()
        else:
            self._set_string(option, args)

    def expanded(self, value: str) -> str:
        """Expand the %-tokens and ${VARIABLES} of a value."""
        self._set_tokens()
        self._tokens["%"] = "%"
        self._tokens["k"] = cast("str", self.get("HostKeyAlias") or self._tokens["n"])
        return self._expand_val(value)

    _handlers = _without_comments(
        {
            **SSHClientConfig._handlers,
            "loglevel": ("LogLevel", SSHConfig._set_string),
            "stricthostkeychecking": ("StrictHostKeyChecking", SSHConfig._set_string),
            "proxyjump": ("ProxyJump", _set_first_proxy),
            "proxycommand": ("ProxyCommand", _set_first_proxy),
            "match": ("Match", _match),
            "connecttimeout": ("ConnectTimeout", _set_seconds),
            "serveraliveinterval": ("ServerAliveInterval", _set_seconds),
            "pubkeyauthentication": ("PubkeyAuthentication", _set_authentication),
        }
    )


def _split_criteria(arguments: Sequence[str]) -> tuple[list[str], str]:
    """Return the criteria of a Match line that can be evaluated, and the first unknown one or ''.

    With an unknown criterion, `exec` is not among the others: commands are not run for a block that
    does not match.
    """
    known: list[list[str]] = []
    unknown = ""
    remaining = iter(arguments)
    for word in remaining:
        name = word.lower().removeprefix("!")
        if name in _BARE_CRITERIA:
            known.append([word])
            continue
        pattern = list(itertools.islice(remaining, 1))
        if name in _CRITERIA or (name == "localnetwork" and find_spec("ifaddr")):
            known.append([word, *pattern])
        elif not unknown:
            unknown = " ".join((word, *pattern))
    if unknown:
        known = [part for part in known if part[0].lower().removeprefix("!") != "exec"]
    return list(itertools.chain.from_iterable(known)), unknown


def _route_settings(path: Path, line_number: int) -> list[str]:
    """Return the settings, as `ProxyJump gate`, of the block that starts on a line."""
    found = []
    for line in path.read_text().splitlines()[line_number:]:
        name, _, value = re.sub(r"[ \t]*=[ \t]*|[ \t]+", " ", line.strip(), count=1).partition(" ")
        if name.lower() in ("host", "match"):
            break
        if name.lower() in _ROUTE_SETTINGS:
            found.append(f"{name} {value}")
    return found


class _HostLines(SSHConfig):
    """Collects the names of Host lines in all files and blocks, without running commands."""

    is_beyond_asyncssh = False

    def __init__(self) -> None:
        super().__init__(None, False, False, False)
        # Name → HostName of its block, '' if that has none.
        self.addresses: dict[str, str] = {}
        self._block: list[str] = []
        self._read: set[Path] = set()

    def parse(self, path: Path) -> None:
        """Parse each file once: files may include each other."""
        if path not in self._read:
            self._read.add(path)
            super().parse(path)

    def _set_tokens(self) -> None:
        """Do nothing, as values are not expanded."""

    def _begin_block(self, option: str, args: list[str]) -> None:
        self._block = []
        if option == "Host":
            self._block = [name for name in args if not _PATTERN_SIGNS & set(name)]
        for name in self._block:
            self.addresses.setdefault(name, "")
        args.clear()

    def _set_address(self, option: str, args: list[str]) -> None:
        for name in self._block:
            self.addresses[name] = self.addresses[name] or args[0]
        args.clear()

    def _follow(self, option: str, args: list[str]) -> None:
        block = self._block
        self._include(option, args)
        self._block = block

    _handlers = _without_comments(
        {
            "host": ("Host", _begin_block),
            "match": ("Match", _begin_block),
            "hostname": ("Hostname", _set_address),
            "include": ("Include", _follow),
        }
    )


def named_hosts(config_path: Path | None = None) -> dict[str, str]:
    """Return the hosts that the configuration names (no patterns) → their HostName or ''.

    In the files' order, and without expansion. Raises ConfigError.
    """
    lines = _HostLines()
    try:
        for path in default_config_paths(config_path):
            lines.parse(path)
    except _UNREADABLE as error:
        raise _unreadable(error) from error
    return lines.addresses


class Destination(Struct, frozen=True):
    """A [user@]host[:port] as a person writes it; None for absent parts."""

    host: str
    user: str | None = None
    port: int | None = None

    @property
    def command_line(self) -> str:
        """The ssh command that logs in to it."""
        port = () if self.port is None else ("-p", str(self.port))
        place = self.host if self.user is None else f"{self.user}@{self.host}"
        return shlex.join(("ssh", *port, place))


class Hop(Struct, frozen=True):
    """One host on the way to a destination, with its settings.

    `alias` is its name in the configuration. `user_known_hosts` are read, and the first of them is
    written. `strict` is StrictHostKeyChecking (yes, ask, accept-new, no), `login_seconds` is
    ConnectTimeout, `authentications` is PreferredAuthentications (() if unset), `agent_path` is the
    agent's socket or ''. `is_quiet` hides the host's banner. `options` are all options that were
    read. `config_paths` are the files if asyncssh must read them again, after it has completed the
    host's name. `warnings` are about lines for this host that hpcdash cannot evaluate.
    """

    alias: Destination
    host: str
    port: int
    user: str
    key_name: str
    key_port: int
    strict: str
    user_known_hosts: tuple[Path, ...]
    global_known_hosts: tuple[Path, ...]
    proxy_command: str | None
    identity_files: tuple[Path, ...]
    certificate_files: tuple[Path, ...]
    identities_only: bool
    agent_path: str
    uses_gssapi: bool
    authentications: tuple[str, ...]
    is_quiet: bool
    has_host_key_algorithms: bool
    login_seconds: float | None
    keepalive_seconds: float | None
    compresses: bool
    config_paths: tuple[Path, ...]
    options: Mapping[str, object]
    warnings: tuple[str, ...]

    @property
    def label(self) -> str:
        """user@host[:port]"""
        return f"{self.user}@{self.host}" + ("" if self.port == DEFAULT_PORT else f":{self.port}")

    @property
    def name_in_known_hosts(self) -> str:
        return name_in_file(self.key_name, self.key_port)


def parse_destination(text: str) -> Destination:
    """Parse [user@]host[:port], [user@][v6::address]:port or ssh://…; raises ConfigError."""
    user, at, rest = text.strip().removeprefix("ssh://").rstrip("/").rpartition("@")
    if rest.startswith("["):
        host, _, after = rest[1:].partition("]")
        port = after.removeprefix(":")
    elif rest.count(":") == 1:
        host, _, port = rest.partition(":")
    else:
        host = rest
        port = ""
    is_host = bool(host) and not host.startswith("-")
    is_user = bool(user) or not at
    is_port = not port or port.isdecimal()
    if not (is_host and is_user and is_port):
        raise ConfigError(
            f"{text!r} is not a valid host.",
            "Use [user@]host[:port] or a Host in ~/.ssh/config.",
        )
    return Destination(host, user or None, int(port) if port else None)


def default_config_paths(config_path: Path | None) -> tuple[Path, ...]:
    """Return the readable files: `config_path`, or the person's own and then the machine's."""
    paths = (config_path,) if config_path else (USER_CONFIG.expanduser(), SYSTEM_CONFIG)
    return tuple(path for path in paths if os.access(path, os.R_OK))


def hops_to(
    destination: str, config_path: Path | None = None, known_hosts: Path | None = None
) -> tuple[Hop, ...]:
    """Return all hosts on the way to a destination, which is last, including the jumps of jumps.

    `known_hosts` replaces all known_hosts files. Raises ConfigError.
    """
    paths = default_config_paths(config_path)
    return _hops(parse_destination(destination), paths, known_hosts, ())


def _hops(
    destination: Destination,
    paths: tuple[Path, ...],
    known_hosts: Path | None,
    towards: tuple[Destination, ...],
) -> tuple[Hop, ...]:
    hop, jumps = _resolve(destination, paths, known_hosts)
    # A ProxyJump of `Host *` applies to the jump host too, which does not jump through itself.
    jumps = [jump for jump in jumps if not _is_same(jump, destination, hop)]
    if not jumps:
        return (hop,)
    if len(towards) >= _MAX_JUMPS or destination in towards:
        way = " → ".join(step.host for step in (*towards, destination))
        raise ConfigError(f"ProxyJump is circular: {way}", "Fix ProxyJump in ~/.ssh/config.")
    # As in ssh, only the first jump may have jumps of its own.
    first = _hops(jumps[0], paths, known_hosts, (*towards, destination))
    later = [_resolve(jump, paths, known_hosts)[0] for jump in jumps[1:]]
    return (*first, *later, hop)


def _is_same(jump: Destination, destination: Destination, hop: Hop) -> bool:
    if jump.host == destination.host:
        return jump.port in (None, hop.port)
    return jump.host == hop.host and (jump.port or DEFAULT_PORT) == hop.port


def _resolve(
    destination: Destination, paths: tuple[Path, ...], known_hosts: Path | None
) -> tuple[Hop, list[Destination]]:
    try:
        config, used_paths = _load(destination, paths)
        host = str(config.get("Hostname") or destination.host)
        port = cast("int", config.get("Port") or DEFAULT_PORT)
        alias = config.get("HostKeyAlias")
        # ssh's own default is ask.
        strict = str(config.get("StrictHostKeyChecking") or "ask").lower()
        jump = config.get("ProxyJump")
        command = config.get("ProxyCommand")
        jumps = []
        if jump:
            jumps = [parse_destination(part) for part in config.expanded(str(jump)).split(",")]
        if known_hosts:
            user_files: tuple[Path, ...] = (known_hosts,)
            global_files: tuple[Path, ...] = ()
        else:
            user_files = _paths(config, "UserKnownHostsFile", _USER_KNOWN_HOSTS)
            global_files = _paths(config, "GlobalKnownHostsFile", _GLOBAL_KNOWN_HOSTS)
        authentications = str(config.get("PreferredAuthentications") or "").split(",")
        identity_files = _paths(config, "IdentityFile", _IDENTITY_FILES)
        is_name_completed = config.get("CanonicalizeHostname") and not config.is_beyond_asyncssh
        hop = Hop(
            alias=destination,
            host=host,
            port=port,
            user=str(config.get("User") or _local_user()),
            key_name=str(alias or host),
            key_port=DEFAULT_PORT if alias else port,
            strict=_STRICT_SYNONYMS.get(strict, strict),
            user_known_hosts=user_files,
            global_known_hosts=global_files,
            proxy_command=config.expanded(str(command)) if command else None,
            identity_files=tuple(path for path in identity_files if os.access(path, os.R_OK)),
            certificate_files=_paths(config, "CertificateFile", ()),
            identities_only=bool(config.get("IdentitiesOnly")),
            agent_path=_agent_path(config),
            # Off by default: ssh_config(5).
            uses_gssapi=bool(config.get("GSSAPIAuthentication")),
            authentications=tuple(filter(None, authentications)),
            is_quiet=str(config.get("LogLevel")).lower() in _QUIET_LEVELS,
            has_host_key_algorithms=config.get("HostKeyAlgorithms") is not None,
            login_seconds=cast("float | None", config.get("ConnectTimeout")) or None,
            keepalive_seconds=cast("float | None", config.get("ServerAliveInterval")) or None,
            # Lists are text that shrinks to a seventh; ssh's own default is no.
            compresses=config.get("Compression") is not False,
            config_paths=used_paths if is_name_completed else (),
            options=config.get_options(False),
            warnings=tuple(config.warnings),
        )
    except _UNREADABLE as error:
        raise _unreadable(error) from error
    return hop, jumps


def _unreadable(error: Exception) -> ConfigError:
    message = "its files include each other" if isinstance(error, RecursionError) else str(error)
    return ConfigError(f"Cannot read the ssh configuration: {message}", "Fix the line shown above.")


def _load(destination: Destination, paths: tuple[Path, ...]) -> tuple[_Config, tuple[Path, ...]]:
    try:
        return _load_all(destination, paths), paths
    except ConfigParseError:
        # asyncssh may be unable to read the machine's file, which the person cannot fix.
        own = tuple(path for path in paths if path != SYSTEM_CONFIG)
        if own == paths:
            raise
        return _load_all(destination, own), own


def _load_all(destination: Destination, paths: Sequence[Path]) -> _Config:
    user: object = () if destination.user is None else destination.user
    port: object = () if destination.port is None else destination.port
    names = (_local_user(), user, destination.host, port)
    config = cast("_Config", _Config.load(None, list(paths), False, False, False, *names))
    if config.has_match_final():
        config = cast("_Config", _Config.load(config, list(paths), True, False, True, *names))
    return config


def _local_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:
        raise ConfigError(
            "The user name is unknown.", "Set USER, or specify the user: user@host."
        ) from error


def _paths(config: _Config, option: str, default: Sequence[str]) -> tuple[Path, ...]:
    names = cast("Sequence[str]", config.get(option, default))
    return tuple(
        Path(config.expanded(name)).expanduser() for name in names if name.lower() != "none"
    )


def _agent_path(config: _Config) -> str:
    """Return the agent's socket, '' for none.

    IdentityAgent is a path, none, SSH_AUTH_SOCK (the default), or a $VARIABLE with a path.
    """
    named = config.get("IdentityAgent", "SSH_AUTH_SOCK")
    if named is None:
        return ""
    name = str(named)
    if name == "SSH_AUTH_SOCK":
        return os.environ.get(name, "")
    if name.startswith("$"):
        # If the variable is not set, its name is reported as the missing path.
        name = os.environ.get(name[1:], name)
    return str(Path(name).expanduser())
