"""A real sshd with a PAM stack of its own, in which a login waits for an approval on a phone.

For tests.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from tests.support.sshd import Sshd, sshd_program, why_no_sshd

# As Duo's module with autopush: it tells, and then does not return until the phone has answered.
PUSH_WORDS = "Autopushing login request to phone..."
_PUSH = f"""\
#!/bin/sh
echo "{PUSH_WORDS}"
echo pushed >>"$0.sent"
until [ -e "$0.approved" ]; do
    if [ -e "$0.declined" ]; then exit 1; fi
    sleep 0.05
done
"""
_PASSWORD = """\
#!/bin/sh
test "$(tr -d '\\0')" = {password}
"""
_CONFIG = """\
UsePAM yes
KbdInteractiveAuthentication yes
"""


def why_no_pam_sshd() -> str | None:
    """Why none can be started here, or None when it can."""
    if reason := why_no_sshd():
        return reason
    if os.getuid() != 0 or not Path("/etc/pam.d").is_dir():
        return "only root gives an sshd a PAM stack"
    return None


@dataclass
class PamSshd(Sshd):
    """`approve` and `decline` are the phone; `pushes` is how often it rang."""

    @property
    def _service(self) -> Path:
        # sshd asks PAM under the name of its own program.
        return Path("/etc/pam.d") / f"hpcdash-test-{self.port}"

    def program(self) -> str:
        link = self.folder / self._service.name
        if not link.is_symlink():
            link.symlink_to(sshd_program() or "")
        return str(link)

    def start_with(self, stack: str, more_config: str = "") -> None:
        """Start with a PAM stack in the form of pam.d(5)."""
        self._service.write_text(stack)
        self.start(more_config + _CONFIG)

    def start_pushing(self, more_config: str = "", *, password: str | None = None) -> None:
        """Whoever knows the `password` (None: none is asked for) has to be approved."""
        stack = []
        if password is not None:
            self._script("password", _PASSWORD.format(password=password))
            stack.append(f"auth requisite pam_exec.so expose_authtok quiet {self.folder}/password")
        self._script("push", _PUSH)
        stack.append(f"auth required pam_exec.so stdout quiet {self.folder}/push")
        stack += [f"{kind} required pam_permit.so" for kind in ("auth", "account", "session")]
        self.start_with("\n".join(stack) + "\n", more_config)

    def _script(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)

    @property
    def pushes(self) -> int:
        with contextlib.suppress(FileNotFoundError):
            return len((self.folder / "push.sent").read_text().splitlines())
        return 0

    def approve(self) -> None:
        (self.folder / "push.approved").touch()

    def decline(self) -> None:
        (self.folder / "push.declined").touch()

    def forget_answers(self) -> None:
        """The next push waits again."""
        for name in ("push.approved", "push.declined"):
            (self.folder / name).unlink(missing_ok=True)

    def stop(self) -> None:
        super().stop()
        self._service.unlink(missing_ok=True)
