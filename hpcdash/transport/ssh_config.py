"""Reads ~/.ssh/config: which hops lead to a destination and what each is trusted by.

Opens no connection.
"""

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
_IDENTITY_NAMES = ("id_ed25519_sk", "id_ecdsa_sk", "id_ed25519", "id_ecdsa", "id_rsa")
_LONGEST_CHAIN = 8
# Below INFO ssh shows no banner.
_QUIET_LEVELS = ("quiet", "fatal", "error")
# Characters used only in patterns: ssh_config(5), PATTERNS.
_PATTERN_SIGNS = frozenset("*?!,")
# Errors of asyncssh: also for the home of an unknown user (RuntimeError), files that include one
# another (RecursionError), and a pattern that is no path (ValueError).
_UNREADABLE = (ConfigParseError, OSError, ValueError, RuntimeError)


# ssh_config(5), Match: criteria without a pattern, and those with one that asyncssh evaluates.
_BARE_CRITERIA = frozenset({"all", "canonical", "final"})
_CRITERIA = frozenset({"exec", "host", "originalhost", "user", "localuser", "tagged"})
# Settings without which another host, or none, may be reached.
_WAY_SETTINGS = ("proxyjump", "proxycommand", "hostname", "user", "port")
# ssh_config(5), TIME FORMATS.
_TIME = re.compile(r"(?:[0-9]{1,9}[smhdw]?)+", re.IGNORECASE)
_TIME_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


class ReadConfig(SSHConfig):
    """Options that were read from files, as asyncssh takes them."""

    def __init__(self, options: Mapping[str, object]) -> None:
        super().__init__(None, False, False, False)
        self._options = dict(options)
        self.loaded = True

    def get_options(self, reload: bool) -> dict[str, object]:
        return dict(self._options)


def _before_remarks(
    handlers: Mapping[str, tuple[str, Callable[..., Any]]],
) -> dict[str, tuple[str, Callable[..., Any]]]:
    """Return the handlers of settings, each without the words from a # on."""

    def without(handler: Callable[..., Any]) -> Callable[..., Any]:
        def read(config: Any, option: str, args: list[str]) -> None:
            places = [at for at, word in enumerate(args) if word.startswith("#")]
            if places:
                config.is_beyond_asyncssh = True
                del args[places[0] :]
            if not args:
                config._error(f"Missing {option} value")
            handler(config, option, args)

        return read

    whole = SSHClientConfig._no_split
    return {
        name: (option, handler if name in whole else without(handler))
        for name, (option, handler) in handlers.items()
    }


class _Config(SSHClientConfig):
    """asyncssh's reader, with StrictHostKeyChecking, and with the first of ProxyJump and
    ProxyCommand winning.

    It also reads what OpenSSH does and asyncssh refuses: criteria of Match that are unknown, whose
    blocks do not match and are noted in `warnings`, times with units, remarks at the end of a line.
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

    def _warn_unknown(self, unknown: str) -> None:
        """Note a block that would match, and the settings that are lost with it: the first value of
        each counts.
        """
        lost = _way_settings(self._path, self._line_no)
        lost = [
            text
            for text in lost
            if not any(text.lower().startswith(f"{name.lower()} ") for name in self._options)
        ]
        end = f"; left out with it: {', '.join(lost)}" if lost else ""
        text = (
            f"{self._path} line {self._line_no}: hpcdash cannot evaluate Match {unknown}: the "
            f"block is ignored{end}"
        )
        if text not in self.warnings:
            self.warnings.append(text)

    def _set_seconds(self, option: str, args: list[str]) -> None:
        text = args.pop(0)
        if text.isdecimal():
            args.insert(0, text)
            self._set_int(option, args)
            return
        self.is_beyond_asyncssh = True
        if text.lower() != "none" and not _TIME.fullmatch(text):
            self._error(f"Invalid {option} time value: {text}")
        parts = re.findall("([0-9]+)([a-z]?)", text.lower())
        self._options.setdefault(
            option, sum(int(count) * _TIME_UNITS[unit or "s"] for count, unit in parts)
        )

    def _set_authentication(self, option: str, args: list[str]) -> None:
        """`PubkeyAuthentication unbound` is one of yes."""
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
        """A value with its %-tokens and ${VARIABLES} filled in."""
        self._set_tokens()
        self._tokens["%"] = "%"
        self._tokens["k"] = cast("str", self.get("HostKeyAlias") or self._tokens["n"])
        return self._expand_val(value)

    _handlers = _before_remarks(
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


def _split_criteria(parts: Sequence[str]) -> tuple[list[str], str]:
    """(the criteria of a Match line that can be evaluated, the first that cannot, '' for none).

    With one that cannot, no `exec` is among the others: nothing is run for a block that does not
    match.
    """
    known: list[str] = []
    unknown = ""
    criteria = iter(parts)
    for word in criteria:
        name = word.lower().removeprefix("!")
        if name in _BARE_CRITERIA:
            known.append(word)
            continue
        pattern = list(itertools.islice(criteria, 1))
        if name in _CRITERIA or (name == "localnetwork" and find_spec("ifaddr")):
            known += [word, *pattern]
        elif not unknown:
            unknown = " ".join((word, *pattern))
    return (_without_exec(known) if unknown else known), unknown


def _without_exec(parts: Sequence[str]) -> list[str]:
    places = [at for at, word in enumerate(parts) if word.lower().removeprefix("!") == "exec"]
    return [word for at, word in enumerate(parts) if at not in places and at - 1 not in places]


def _way_settings(path: Path, line_number: int) -> list[str]:
    """`ProxyJump gate` and the like, of the block that begins on a line."""
    found = []
    for line in path.read_text().splitlines()[line_number:]:
        name, _, value = re.sub(r"[ \t]*=[ \t]*|[ \t]+", " ", line.strip(), count=1).partition(" ")
        if name.lower() in ("host", "match"):
            break
        if name.lower() in _WAY_SETTINGS:
            found.append(f"{name} {value}")
    return found


class _HostLines(SSHConfig):
    """Collects what Host lines name, in whichever file and block; runs and resolves nothing."""

    is_beyond_asyncssh = False

    def __init__(self) -> None:
        super().__init__(None, False, False, False)
        # The name → HostName of its block, '' where there is none.
        self.addresses: dict[str, str] = {}
        self._block: list[str] = []
        self._read: set[Path] = set()

    def parse(self, path: Path) -> None:
        """Each file once: they may include one another."""
        if path not in self._read:
            self._read.add(path)
            super().parse(path)

    def _set_tokens(self) -> None:
        """None: nothing is expanded."""

    def _begin_block(self, option: str, args: list[str]) -> None:
        self._block = (
            [name for name in args if not _PATTERN_SIGNS & set(name)] if option == "Host" else []
        )
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

    _handlers = _before_remarks(
        {
            "host": ("Host", _begin_block),
            "match": ("Match", _begin_block),
            "hostname": ("Hostname", _set_address),
            "include": ("Include", _follow),
        }
    )


def named_hosts(config_path: Path | None = None) -> dict[str, str]:
    """The hosts that the configuration names (no patterns) → their HostName, '' where their block
    has none; pure text.

    In the files' order. Raises ConfigError.
    """
    lines = _HostLines()
    try:
        for path in default_config_paths(config_path):
            lines.parse(path)
    except _UNREADABLE as error:
        raise _unreadable(error) from error
    return lines.addresses


class Destination(Struct, frozen=True):
    """[user@]host[:port] as a person writes it; None for absent parts."""

    host: str
    user: str | None = None
    port: int | None = None

    @property
    def command_line(self) -> str:
        """The ssh command that logs in there."""
        port = () if self.port is None else ("-p", str(self.port))
        return shlex.join(
            ("ssh", *port, self.host if self.user is None else f"{self.user}@{self.host}")
        )


class Hop(Struct, frozen=True):
    """One host on the way: where it is, who we are there, by what it is trusted.

    `alias` is the name the configuration knows it by. `user_known_hosts` are read and the first of
    them is written; `strict` is StrictHostKeyChecking (yes, ask, accept-new, no). `login_seconds`
    is ConnectTimeout, None where not set. `agent_path` is the agent's socket, '' for none;
    `authentications` is PreferredAuthentications, () where not set. `is_quiet` hides the host's
    banner. `options` are all that was read, by their names; `config_paths` are the files where
    asyncssh has to read them once more, after it has completed the host's name. `warnings` name
    lines that count for this host, and that hpcdash cannot evaluate.
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
    """[user@]host[:port], [user@][v6::address]:port or ssh://…; raises ConfigError."""
    user, at, rest = text.strip().removeprefix("ssh://").rstrip("/").rpartition("@")
    if rest.startswith("["):
        host, _, after = rest[1:].partition("]")
        port = after.removeprefix(":")
    elif rest.count(":") == 1:
        host, _, port = rest.partition(":")
    else:
        host = rest
        port = ""
    if not host or host.startswith("-") or (at and not user) or (port and not port.isdecimal()):
        raise ConfigError(
            f"{text!r} is not a host to connect to.",
            "Write [user@]host[:port] or a Host of ~/.ssh/config.",
        )
    return Destination(host, user or None, int(port) if port else None)


def default_config_paths(config_path: Path | None) -> tuple[Path, ...]:
    """The files read: the one given, else the person's own and then the machine's, where they are
    readable.
    """
    paths = (config_path,) if config_path else (USER_CONFIG.expanduser(), SYSTEM_CONFIG)
    return tuple(path for path in paths if os.access(path, os.R_OK))


def hops_to(
    destination: str, config_path: Path | None = None, known_hosts: Path | None = None
) -> tuple[Hop, ...]:
    """All hosts on the way to a destination, it last; ProxyJump is followed through aliases that
    jump themselves.

    `known_hosts` stands for all known_hosts files where given. Raises ConfigError.
    """
    paths = default_config_paths(config_path)
    return _chain(parse_destination(destination), paths, known_hosts, ())


def _chain(
    destination: Destination,
    paths: tuple[Path, ...],
    known_hosts: Path | None,
    towards: tuple[Destination, ...],
) -> tuple[Hop, ...]:
    hop, jumps = _resolve(destination, paths, known_hosts)
    # `Host *` with a ProxyJump speaks of the jump host too: it does not jump through itself.
    jumps = [jump for jump in jumps if not _is_same(jump, destination, hop)]
    if not jumps:
        return (hop,)
    if len(towards) >= _LONGEST_CHAIN or destination in towards:
        way = " → ".join(step.host for step in (*towards, destination))
        raise ConfigError(
            f"ProxyJump goes in a circle: {way}", "Correct ProxyJump in ~/.ssh/config."
        )
    # Like ssh: the first jump may have jumps of its own, the later ones are reached through the one
    # before.
    first = _chain(jumps[0], paths, known_hosts, (*towards, destination))
    return (*first, *(_resolve(jump, paths, known_hosts)[0] for jump in jumps[1:]), hop)


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
        jump = config.get("ProxyJump")
        command = config.get("ProxyCommand")
        identities = cast("list[str] | None", config.get("IdentityFile"))
        user_files = config.get("UserKnownHostsFile", list(_USER_KNOWN_HOSTS))
        global_files = config.get("GlobalKnownHostsFile", list(_GLOBAL_KNOWN_HOSTS))
        hop = Hop(
            alias=destination,
            host=host,
            port=port,
            user=str(config.get("User") or _local_user()),
            key_name=str(alias or host),
            key_port=DEFAULT_PORT if alias else port,
            strict=_strict(config.get("StrictHostKeyChecking")),
            user_known_hosts=(known_hosts,)
            if known_hosts
            else _paths(config, cast("list[str]", user_files)),
            global_known_hosts=()
            if known_hosts
            else _paths(config, cast("list[str]", global_files)),
            proxy_command=config.expanded(str(command)) if command else None,
            identity_files=_identity_files(config, identities),
            certificate_files=_paths(config, cast("list[str]", config.get("CertificateFile", []))),
            identities_only=bool(config.get("IdentitiesOnly")),
            agent_path=_agent_path(config),
            # Off where it is not set: ssh_config(5).
            uses_gssapi=bool(config.get("GSSAPIAuthentication")),
            authentications=tuple(
                filter(None, str(config.get("PreferredAuthentications") or "").split(","))
            ),
            is_quiet=str(config.get("LogLevel")).lower() in _QUIET_LEVELS,
            has_host_key_algorithms=config.get("HostKeyAlgorithms") is not None,
            login_seconds=cast("float | None", config.get("ConnectTimeout")) or None,
            keepalive_seconds=cast("float | None", config.get("ServerAliveInterval")) or None,
            # Lists are text that shrinks to a seventh; ssh's own default is no.
            compresses=config.get("Compression") is not False,
            config_paths=used_paths
            if config.get("CanonicalizeHostname") and not config.is_beyond_asyncssh
            else (),
            options=config.get_options(False),
            warnings=tuple(config.warnings),
        )
        jumps = (
            [parse_destination(part) for part in config.expanded(str(jump)).split(",")]
            if jump
            else []
        )
    except _UNREADABLE as error:
        raise _unreadable(error) from error
    return hop, jumps


def _unreadable(error: Exception) -> ConfigError:
    message = "its files include one another" if isinstance(error, RecursionError) else str(error)
    return ConfigError(
        f"The ssh configuration cannot be read: {message}", "Correct the line it names."
    )


def _load(destination: Destination, paths: tuple[Path, ...]) -> tuple[_Config, tuple[Path, ...]]:
    try:
        return _load_all(destination, paths), paths
    except ConfigParseError:
        # The machine's file may use what asyncssh cannot read; a person cannot mend that one.
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
            "The user is unknown.", "Set USER, or name the user: user@host."
        ) from error


def _strict(word: object) -> str:
    """Return yes, ask, accept-new or no; ssh's own default is ask."""
    text = str(word or "ask").lower()
    return {"true": "yes", "off": "no", "false": "no"}.get(text, text)


def _paths(config: _Config, names: Sequence[str]) -> tuple[Path, ...]:
    return tuple(
        Path(config.expanded(name)).expanduser() for name in names if name.lower() != "none"
    )


def _agent_path(config: _Config) -> str:
    """IdentityAgent: a path, none, SSH_AUTH_SOCK, or $VARIABLE that holds a path; else what
    SSH_AUTH_SOCK holds.
    """
    named = config.get("IdentityAgent", "SSH_AUTH_SOCK")
    if named is None:
        return ""
    name = str(named)
    if name == "SSH_AUTH_SOCK":
        return os.environ.get(name, "")
    if name.startswith("$"):
        # A variable that is not set is named as the path where no agent is.
        name = os.environ.get(name[1:], name)
    return str(Path(name).expanduser())


def _identity_files(config: _Config, names: Sequence[str] | None) -> tuple[Path, ...]:
    """The key files to try: those named, else ssh's default names; only those that are there."""
    if names is None:
        candidates = tuple(Path("~/.ssh", name).expanduser() for name in _IDENTITY_NAMES)
    else:
        candidates = _paths(config, names)
    return tuple(path for path in candidates if os.access(path, os.R_OK))
