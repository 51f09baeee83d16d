"""`hpcdash serve --api` in a process of its own, and requests to it as programs send them."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from tests.support.program import Program
from tests.support.waiting import deadline

TOKEN, OTHER = "own" + "0" * 40, "other" + "1" * 40
OWN = {"slot_type": "cpu", "slots": 1}


def write_tokens(program: Program, account: str, other: str) -> None:
    """TOKEN is the account's, OTHER the other's."""
    tokens = program.config.parent / "api-tokens.toml"
    tokens.parent.mkdir(parents=True, exist_ok=True)
    tokens.write_text(
        f'[own]\ntoken = "{TOKEN}"\naccounts = ["{account}"]\n[other]\ntoken = "{OTHER}"\naccounts '
        f'= ["{other}"]\n'
    )
    tokens.chmod(0o600)


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> dict[str, Any]:
        found = json.loads(self.text)
        assert isinstance(found, dict)
        return found

    @property
    def message(self) -> str:
        """Of an error, which has the fields of the command line."""
        error = self.json["error"]
        assert {"message", "next_step", "exit_status", "command", "status", "words"} <= {*error}
        assert isinstance(error["message"], str)
        return error["message"]


@dataclass
class Api:
    """A server, and requests to it."""

    program: Program
    running: subprocess.Popen[bytes] | None = None
    port: int = 0
    said: list[str] = field(default_factory=list)

    def start(self) -> None:
        self.running = subprocess.Popen(
            self.program.argv("serve", "--api"),
            env=self.program.environment,
            cwd=self.program.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self.running.stdout is not None
        for line in self.running.stdout:
            self.said.append(line.decode())
            if found := re.search(r"http://127\.0\.0\.1:(\d+)$", self.said[-1].strip()):
                self.port = int(found[1])
                return
        raise AssertionError(self.said)

    def end(self, number: int = signal.SIGKILL) -> None:
        assert self.running is not None
        self.running.send_signal(number)
        rest, _ = self.running.communicate()
        self.said.append(rest.decode())

    def __call__(
        self, method: str, path: str, body: object = None, token: str = TOKEN, **headers: str
    ) -> Answer:
        sent = {"Authorization": f"Bearer {token}"} if token else {}
        content = None
        if body is not None:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent["Content-Type"] = "application/json"
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port)) as connection:
            connection.request(method, path, content, sent)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read().decode())

    def launch(self, key: str = "", **request: Any) -> dict[str, Any]:
        headers = {"Idempotency_Key": key} if key else {}
        answer = self("POST", "/launches", {**OWN, **request}, **headers)
        assert answer.status == 201, answer
        found: dict[str, Any] = answer.json["launch"]
        assert answer.headers["Location"] == f"/launches/{found['id']}"
        return found

    def ended(self, launch_id: str) -> dict[str, Any]:
        """A launch once it has ended."""
        over = deadline()
        while True:
            found: dict[str, Any] = self("GET", f"/launches/{launch_id}").json["launch"]
            if found["status"] not in ("PENDING", "RUNNING", "TERMINATING"):
                return found
            assert time.monotonic() < over, found
            time.sleep(0.2)
