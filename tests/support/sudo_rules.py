"""A site where one account submits as others: accounts, sudo's rules and root's program, all gone
when it is left.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hpcdash.services.submit.sudoers import program_text, sudoers_text
from tests.support import suite

SUDOERS = Path("/etc/sudoers.d")


def why_no_sudo() -> str:
    """Why no rules can be tried here, '' where they can."""
    if os.geteuid() != 0:
        return "only root installs sudo rules"
    missing = [name for name in ("sudo", "useradd", "setpriv") if shutil.which(name) is None]
    return f"{', '.join(missing)} not installed" if missing else ""


def install_rules(file: Path, text: str) -> None:
    """Write a file of /etc/sudoers.d, whole or not at all for whoever asks sudo meanwhile.

    Its name has no dot.
    """
    unfinished = file.with_name(f"{file.name}.unfinished")
    unfinished.touch(0o440)
    unfinished.write_text(text)
    unfinished.rename(file)


@dataclass(frozen=True, slots=True)
class SudoSite:
    """`launcher` submits as the members of `group`: `alice`, and `bob`, whose primary group it is.

    `outsider` is in no group; `system` (a system account) and `second_root` (of uid 0) are members
    too. `top` is root's alone: below it are `bin`, root's program and the storage root.
    """

    prefix: str
    top: Path

    @property
    def launcher(self) -> str:
        return f"{self.prefix}-l"

    @property
    def group(self) -> str:
        return f"{self.prefix}-g"

    @property
    def alice(self) -> str:
        return f"{self.prefix}-a.li"

    @property
    def bob(self) -> str:
        return f"{self.prefix}-b"

    @property
    def outsider(self) -> str:
        return f"{self.prefix}-o"

    @property
    def system(self) -> str:
        return f"{self.prefix}-s"

    @property
    def second_root(self) -> str:
        return f"{self.prefix}-z"

    @property
    def bin(self) -> Path:
        return self.top / "bin"

    @property
    def program(self) -> Path:
        return self.top / "libexec" / "hpcdash-launch"

    @property
    def root(self) -> Path:
        return self.top / "launches"

    @property
    def rules(self) -> Path:
        return SUDOERS / self.launcher

    def home(self, account: str) -> Path:
        return self.top / "home" / account

    def install(
        self,
        *,
        commands: tuple[str, ...] = ("id",),
        bin_folder: str = "/usr/bin",
        env_file: str = "",
    ) -> None:
        """The rules, and root's program with the storage root it keeps."""
        self.install_program()
        text = sudoers_text(
            self.launcher,
            self.group,
            bin_folder=bin_folder,
            commands=commands,
            storage_root=str(self.root),
            launch_program=str(self.program),
            env_file=env_file,
        )
        install_rules(self.rules, text)

    def install_program(self, shell: str = "/bin/sh") -> None:
        """Root's program, run by one shell or another."""
        self.program.parent.mkdir(exist_ok=True)
        self.program.write_text(program_text(str(self.root)).replace("#!/bin/sh", f"#!{shell}", 1))
        self.program.chmod(0o755)
        self.root.mkdir(exist_ok=True)
        self.root.chmod(0o1777)

    def run_as(
        self,
        account: str,
        *argv: str,
        stdin: bytes = b"",
        variables: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """A command as an account, from its home."""
        return subprocess.run(
            [
                *self.argv_as(account),
                *(f"{name}={value}" for name, value in (variables or {}).items()),
                *argv,
            ],
            input=stdin,
            capture_output=True,
            check=False,
            cwd=self.home(account),
        )

    def argv_as(self, account: str) -> tuple[str, ...]:
        """What is to stand before a command to run it as an account."""
        identity = (f"--reuid={account}", f"--regid={account}", "--init-groups")
        if account == self.bob:
            identity = (f"--reuid={account}", f"--regid={self.group}", "--init-groups")
        home = self.home(account)
        return (
            "setpriv",
            *identity,
            "env",
            "-i",
            "PATH=/usr/bin:/bin",
            f"HOME={home}",
            f"USER={account}",
        )

    def sudo(
        self, *words: str, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """What sudo does for the launcher, asking nobody."""
        return self.run_as(self.launcher, "sudo", "-n", *words, variables=variables)

    def launch(
        self, account: str, *words: str, stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        """What the launcher gets of root's program as an account."""
        argv = ("sudo", "-n", "-u", account, str(self.program), *words)
        return self.run_as(self.launcher, *argv, stdin=stdin)


@contextmanager
def sudo_site() -> Iterator[SudoSite]:
    """The accounts and folders; `install` is still to be called."""
    prefix = suite.name(secrets.token_hex(4))
    # Every folder above is root's alone, which /tmp is not.
    site = SudoSite(prefix, Path(tempfile.mkdtemp(prefix=f"{prefix}-", dir=suite.ROOTS_FOLDER)))
    try:
        site.top.chmod(0o755)
        _admin("groupadd", site.group)
        for account in (site.launcher, site.alice, site.outsider):
            _admin(
                "useradd",
                "-M",
                "-U",
                "-s",
                "/bin/sh",
                "-p",
                "*",
                "-d",
                str(site.home(account)),
                account,
            )
        _admin(
            "useradd",
            "-M",
            "-g",
            site.group,
            "-s",
            "/bin/sh",
            "-d",
            str(site.home(site.bob)),
            site.bob,
        )
        _admin(
            "useradd", "-M", "-r", "-s", "/bin/sh", "-d", str(site.home(site.system)), site.system
        )
        _admin(
            "useradd", "-M", "-o", "-u", "0", "-g", site.group, "-s", "/bin/sh", site.second_root
        )
        for account in (site.alice, site.system):
            _admin("usermod", "-a", "-G", site.group, account)
        for folder in (site.top / "home", site.bin):
            folder.mkdir()
        for account in (site.launcher, site.alice, site.bob, site.outsider, site.system):
            site.home(account).mkdir()
            shutil.chown(site.home(account), account)
        yield site
    finally:
        site.rules.unlink(missing_ok=True)
        for account in (
            site.launcher,
            site.alice,
            site.bob,
            site.outsider,
            site.system,
            site.second_root,
        ):
            # -f: an account of uid 0 always has processes.
            _admin("userdel", "-f", account, check=False)
        _admin("groupdel", site.group, check=False)
        shutil.rmtree(site.top)


def _admin(*argv: str, check: bool = True) -> None:
    with suite.locked_accounts():
        subprocess.run(argv, check=check, capture_output=True)
