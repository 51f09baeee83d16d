"""`hpcdash serve --api` as programs use it, on an embedded queue of its own: one server for all of
the module.
"""

from __future__ import annotations

import base64
import json
import os
import pwd
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="the extra [api] is not installed")

from tests.support.api import OTHER, OWN, TOKEN, Api, write_tokens
from tests.support.program import Program, home_with

# One server for all of them.
pytestmark = [pytest.mark.system, pytest.mark.xdist_group("api-server")]
ACCOUNT = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("api")
    variables = {"HPCDASH_QUEUE": str(folder / "queue"), "HPCDASH_STATE": str(folder / "state")}
    program = Program(home_with(folder / "home"), ("--local", "--backend", "local"), variables)
    write_tokens(program, ACCOUNT, "somebody-else")
    served = Api(program)
    served.start()
    yield served
    served.end()


@pytest.mark.journey
def test_a_launch_from_its_request_to_its_end(api: Api) -> None:
    script = base64.b64encode(
        b'#!/bin/sh\nfor i in 1 2 3; do echo "line $i \xc3\xa9"; done; echo oops >&2; exit 7\n'
    )
    launch = api.launch("one", name="three", script="run.sh", files={"run.sh": script.decode()})
    assert launch["account"] == ACCOUNT
    assert (
        api.launch("one", name="three", script="run.sh", files={"run.sh": script.decode()})["id"]
        == launch["id"]
    )
    again = api("POST", "/launches", {**OWN, "command": "true"}, Idempotency_Key="one")
    assert (again.status, "another request" in again.message) == (409, True)
    # Whoever follows sees all of it, and the end.
    path = f"/launches/{launch['id']}"
    events = re.findall(
        r"^event: (\w+)\n(?:id: (\d+)\n)?data: (.*)$",
        api("GET", f"{path}/logs?follow=true").text,
        re.M,
    )
    assert "".join(json.loads(data)["text"] for name, _, data in events if name == "log") == (
        "line 1 é\nline 2 é\nline 3 é\n"
    )
    assert json.loads(events[-1][2]) == {"status": "FAILED"}
    ended = api.ended(launch["id"])
    assert (ended["status"], ended["exit_code"], ended["tasks"]) == ("FAILED", 7, {"failed": 1})
    page = api("GET", f"{path}/logs?lines=-2").json
    assert (page["text"], page["offset"], page["next_offset"]) == ("line 2 é\nline 3 é\n", 10, 30)
    assert api("GET", f"{path}/logs?offset=10").json["text"] == page["text"]
    assert api("GET", f"{path}/logs?stream=stderr").json["text"].endswith("oops\n")
    assert launch["id"] in {one["id"] for one in api("GET", "/launches").json["launches"]}
    [job] = [
        one for one in api("GET", "/jobs?state=ended").json["jobs"] if one["id"] == launch["job_id"]
    ]
    assert (job["state"], job["name"]) == ("failed", "three")
    metrics = api("GET", "/metrics").text
    assert re.search(r'^hpcdash_launches\{status="FAILED"\} [1-9]', metrics, re.M)
    assert re.search(r"^hpcdash_commands_total [1-9]", metrics, re.M)
    assert api("GET", "/resources").json["slots"][0]["slot_type"] == "cpu"
    # What is deleted is gone, but its key is not to be had again.
    assert Path(launch["folder"]).is_dir()
    assert api("DELETE", path).status == 204
    assert not Path(launch["folder"]).exists()
    assert api("GET", path).status == 404
    again = api("POST", "/launches", {**OWN, "command": "true"}, Idempotency_Key="one")
    assert again.status == 409


def test_the_example_for_a_shell_follows_its_launch_and_ends_as_it_does(
    api: Api, tmp_path: Path
) -> None:
    script = tmp_path / "work.sh"
    script.write_text("#!/bin/sh\necho working\nexit 5\n")
    rest = Path(__file__).parents[3] / "examples" / "rest.sh"
    variables = {
        **os.environ,
        "HPCDASH_URL": f"http://127.0.0.1:{api.port}",
        "HPCDASH_TOKEN": TOKEN,
    }
    for _ in range(2):
        done = subprocess.run(
            [rest, script], env=variables, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (5, "working\n"), done
        assert "FAILED (exit status 5)" in done.stderr
    assert (
        len(
            {one["id"] for one in api("GET", "/launches").json["launches"] if one["name"] == "work"}
        )
        == 1
    )


def test_what_runs_is_terminated_and_until_then_not_deleted(api: Api) -> None:
    launch = api.launch(command="sleep 600")
    path = f"/launches/{launch['id']}"
    assert api("DELETE", path).status == 409
    assert api("POST", f"{path}/terminate").json["done"] is True
    assert api.ended(launch["id"])["status"] == "TERMINATED"


def test_many_who_send_one_key_at_once_launch_once(api: Api) -> None:
    with ThreadPoolExecutor(20) as pool:
        found = list(
            pool.map(lambda _: api.launch("many", name="many", command="true")["id"], range(20))
        )
    assert len(set(found)) == 1
    jobs = [*api.program.rows("jobs"), *api.program.rows("history")]
    assert len({job["id"] for job in jobs if job["name"] == "many"}) == 1


def test_a_launch_of_another_account_does_not_exist(api: Api) -> None:
    launch = api.launch(command="echo mine")
    path = f"/launches/{launch['id']}"
    missing = api("GET", f"/launches/{'0' * 32}", token=OTHER)
    for method, asked in (
        ("GET", path),
        ("GET", f"{path}/logs"),
        ("GET", f"{path}/logs?follow=true"),
        ("POST", f"{path}/terminate"),
        ("DELETE", path),
    ):
        answer = api(method, asked, token=OTHER)
        assert (answer.status, answer.text) == (404, missing.text)
    assert api("GET", "/launches", token=OTHER).json["launches"] == []
    assert api("GET", "/jobs", token=OTHER).json["jobs"] == []
    assert api("GET", "/jobs?state=ended", token=OTHER).json["jobs"] == []
    assert 'status="PENDING"} 0' in api("GET", "/metrics", token=OTHER).text
    other = api(
        "POST", "/launches", {**OWN, "command": "id", "site": {"run_as": "third"}}, token=OTHER
    )
    assert (other.status, "may not run as" in other.message) == (403, True)
    assert api("GET", path).status == 200


FUNCTIONS = b"""\
def found(size):
    return {"size": size, "text": "x" * size}

def of(value):
    return float(value)

def planted(job):
    import os
    os.symlink("/etc/passwd", os.path.join(job.output_dir, "result.json"))
    os._exit(0)
"""


def test_what_functions_return(api: Api, tmp_path: Path) -> None:
    """As JSON alone, and how they failed; a pickle stays where it is."""

    def launch(function: str, result_format: str = "json", **call: Any) -> str:
        call |= {
            "function": f"served_functions:{function}",
            "result_format": result_format,
            "sys_path": [str(folder)],
        }
        return f"/launches/{api.launch(call=call)['id']}"

    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "served_functions.py").write_bytes(FUNCTIONS)
    each = launch("of", items=[1, "two", "nan"])
    small, large = launch("found", args=[3]), launch("found", args=[9 << 20])
    pickled, failed = launch("of", "pickle", args=[1]), launch("of", "pickle", args=["no"])
    planted = launch("planted")
    none = f"/launches/{api.launch(command='true')['id']}"
    for path in (each, small, large, pickled, failed, planted, none):
        api.ended(path.rpartition("/")[2])

    answer = api("GET", f"{small}/result").json
    assert (answer["value"], answer["failure"], answer["task"]) == (
        {"size": 3, "text": "xxx"},
        None,
        None,
    )
    assert api("GET", f"{each}/result?task=0").json["value"] == 1.0
    two = api("GET", f"{each}/result?task=1").json
    assert (two["value"], two["failure"]["type"], "in of" in two["failure"]["traceback"]) == (
        None,
        "ValueError",
        True,
    )
    assert (
        api("GET", f"{failed}/result").json["failure"]["message"]
        == "could not convert string to float: 'no'"
    )
    for asked, status, words in (
        (f"{pickled}/result", 409, "a Python pickle, which the API does not read"),
        (f"{large}/result", 413, "larger than 8 MiB"),
        (f"{planted}/result", 409, "is not JSON"),
        (f"{none}/result", 404, "calls no function"),
        (f"{each}/result?task=2", 409, "is not JSON"),
        (f"{each}/result?task=3", 404, "no task 3"),
        (f"{each}/result", 422, "is an array"),
        (f"{small}/result?task=0", 422, "not an array"),
        (f"{each}/result?task=..%2f..%2fetc", 422, "task"),
        (f"{each}/result?task=-1", 422, "task"),
        (f"{each}/result/../../x", 404, "Not Found"),
    ):
        refused = api("GET", asked)
        assert (refused.status, words in refused.message) == (status, True), (asked, refused)
    assert api("GET", f"{small}/result", token=OTHER).status == 404
    assert "attach" in api("GET", f"{pickled}/result").json["error"]["next_step"]


def test_what_is_refused(api: Api) -> None:
    launch = {**OWN, "command": "true"}
    too_large = b'{"command": "' + b"x" * (9 << 20) + b'"}'
    for method, path, body, token, headers, status, words in (
        ("GET", "/launches", None, "", {}, 401, "no valid token"),
        ("GET", "/launches", None, "wrong", {}, 401, "no valid token"),
        ("GET", "/launches", None, TOKEN[:-1], {}, 401, "no valid token"),
        ("GET", "/launches", None, "x" * 7000, {}, 401, "no valid token"),
        ("POST", "/launches", too_large, "", {}, 401, "no valid token"),
        ("GET", "/launches", None, TOKEN, {"Host": "evil.example"}, 403, "127.0.0.1 and localhost"),
        ("GET", "/", None, "", {"Host": "evil.example"}, 403, "127.0.0.1 and localhost"),
        (
            "POST",
            "/launches",
            launch,
            TOKEN,
            {"Origin": "http://evil.example"},
            403,
            "not from other sites",
        ),
        (
            "POST",
            "/launches",
            launch,
            TOKEN,
            {"Content_Type": "text/plain"},
            415,
            "application/json",
        ),
        ("POST", "/launches", b"{", TOKEN, {}, 400, "not JSON"),
        ("POST", "/launches", b"[" * 100_000, TOKEN, {}, 400, "not JSON"),
        ("POST", "/launches", b"{}", TOKEN, {"Content_Encoding": "gzip"}, 400, "Content-Encoding"),
        ("POST", "/launches", [], TOKEN, {}, 422, "an object"),
        ("POST", "/launches", too_large, TOKEN, {}, 413, "Large"),
        ("POST", "/launches", {"comand": "true"}, TOKEN, {}, 422, 'did you mean "command"'),
        ("POST", "/launches", {**launch, "files": ["/etc/passwd"]}, TOKEN, {}, 422, "files"),
        ("POST", "/launches", {**launch, "files": {"a": "?"}}, TOKEN, {}, 422, "base64"),
        ("POST", "/launches", {**launch, "files": {"../a": ""}}, TOKEN, {}, 422, "plain name"),
        (
            "POST",
            "/launches",
            {**OWN, "script": "config.toml"},
            TOKEN,
            {},
            422,
            "the request has no file",
        ),
        ("POST", "/launches", {**OWN, "script": "a", "files": {"a": "eA=="}}, TOKEN, {}, 422, "#!"),
        (
            "POST",
            "/launches",
            {**launch, "environment": {"A\n": "1"}},
            TOKEN,
            {},
            422,
            "variable name",
        ),
        (
            "POST",
            "/launches",
            launch,
            TOKEN,
            {"Idempotency_Key": "k" * 300},
            422,
            "Idempotency-Key",
        ),
        ("PUT", "/launches", launch, TOKEN, {}, 405, "Not Allowed"),
        ("GET", "/launches/..%2f..%2fetc%2fpasswd", None, TOKEN, {}, 404, "Not Found"),
        ("GET", "/launches/%00", None, TOKEN, {}, 404, "Not Found"),
        ("GET", f"/launches/{'0' * 32}%0d%0aX: y", None, TOKEN, {}, 404, "Not Found"),
        ("GET", f"/launches/{'0' * 32}/logs?lines=1&line=2", None, TOKEN, {}, 422, "line"),
        ("GET", f"/launches/{'0' * 32}/logs?offset=-1", None, TOKEN, {}, 422, "offset"),
        ("GET", f"/launches/{'0' * 32}/logs?stream=/etc/passwd", None, TOKEN, {}, 422, "stream"),
        ("GET", "/jobs?state=running&state=ended", None, TOKEN, {}, 422, "twice"),
    ):
        path = path.replace(" ", "%20")
        answer = api(method, path, body, token, **headers)
        assert answer.status == status, (method, path, headers, answer)
        shown = (
            answer.text
            if status != 422
            else answer.message + str(answer.json["error"]["next_step"])
        )
        assert words in shown, (method, path, answer)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert api("GET", "/launches", token="").headers["WWW-Authenticate"] == "Bearer"
    # A token for an account that no job here can be of.
    foreign = api("POST", "/launches", launch, OTHER)
    assert (foreign.status, "runs jobs as the user who submits them" in foreign.message) == (
        403,
        True,
    )
    # Whoever asks is not told what is wrong with the file of tokens.
    tokens = api.program.config.parent / "api-tokens.toml"
    tokens.chmod(0o644)
    unread = api("GET", "/launches")
    tokens.chmod(0o600)
    assert (unread.status, unread.message) == (503, "the server cannot read its tokens")
    assert "tokens.toml" not in unread.text
    assert api("GET", "/launches").status == 200


def test_an_invalid_request_is_refused_without_naming_the_software_of_the_server(api: Api) -> None:
    host = b"Host: 127.0.0.1\r\n"
    chunked = b"Authorization: Bearer " + TOKEN.encode() + b"\r\nTransfer-Encoding: chunked\r\n"
    for asked in (
        b"no HTTP at all\r\n\r\n",
        b"GET / HTTP/9.9\r\n" + host + b"\r\n",
        b"GET / HTTP/1.1\r\n" + host + b"no header\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + host + b"X: " + b"x" * 20_000 + b"\r\n\r\n",
        b"GET http://[::1/ HTTP/1.1\r\n" + host + b"\r\n",
        b"POST /launches HTTP/1.1\r\n" + host + b"Content-Length: -1\r\n\r\n",
        b"POST /launches HTTP/1.1\r\n" + host + chunked + b"\r\nzz\r\n",
    ):
        with socket.create_connection(("127.0.0.1", api.port)) as connection:
            connection.sendall(asked)
            answer = HTTPResponse(connection)
            answer.begin()
            content = answer.read().decode()
        assert answer.status == 400, (asked, content)
        assert json.loads(content)["error"]["message"] == "the request is not valid HTTP"
        assert "aiohttp" not in f"{answer.headers}{content}".lower()
        assert (answer.headers["Server"], answer.headers["X-Content-Type-Options"]) == (
            "hpcdash",
            "nosniff",
        )


def test_one_client_that_sends_slowly_does_not_hold_up_another(api: Api) -> None:
    head = f"POST /launches HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    with ExitStack() as slow:
        for _ in range(40):
            connection = slow.enter_context(socket.create_connection(("127.0.0.1", api.port), 30))
            connection.sendall(head.encode())
        assert api("POST", "/launches", b"{", OTHER).status == 400


def test_the_document_has_every_operation_and_says_nothing_of_the_cluster(api: Api) -> None:
    document = api("GET", "/openapi.json", token="").json
    names = {
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method in methods
    }
    assert names == {
        "POST /launches",
        "GET /launches",
        "GET /launches/{id}",
        "GET /launches/{id}/result",
        "DELETE /launches/{id}",
        "GET /launches/{id}/logs",
        "POST /launches/{id}/terminate",
        "GET /jobs",
        "GET /resources",
        "GET /health",
        "GET /metrics",
    }
    defined = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert {*re.findall(r'"(#/[^"]+)"', json.dumps(document))} <= defined
    shown = document["components"]["schemas"]["Request"]["properties"]
    assert {"command", "time", "files", "container", "site"} <= {*shown}
    page = api("GET", "/", token="")
    assert "POST /launches" in page.text
    assert "<script" not in page.text
    assert api("GET", "/health", token="").json["status"] == "ok"


def test_killed_and_started_again_it_knows_its_launches_and_keys(api: Api) -> None:
    launch = api.launch("kept", command="sleep 600", environment={"API_PASSWORD": "hunter2-secret"})
    api.end(signal.SIGKILL)
    api.start()
    assert (
        api.launch("kept", command="sleep 600", environment={"API_PASSWORD": "hunter2-secret"})[
            "id"
        ]
        == launch["id"]
    )
    assert api("POST", f"/launches/{launch['id']}/terminate").json["done"] is True
    assert api.ended(launch["id"])["status"] == "TERMINATED"
    said = "".join(api.said)
    assert not [secret for secret in (TOKEN, OTHER, "hunter2") if secret in said]
    state = Path(api.program.variables["HPCDASH_STATE"])
    for path in (state / "journal.jsonl", state / "state.db"):
        assert not [
            secret for secret in (TOKEN, OTHER, "hunter2") if secret.encode() in path.read_bytes()
        ], path
    modes = {path.name: path.stat().st_mode & 0o777 for path in state.iterdir()}
    assert (modes["state.db"], modes["journal.jsonl"]) == (0o600, 0o600)


def test_it_does_not_start_without_tokens_that_are_ones_own(tmp_path: Path) -> None:
    program = Program(home_with(tmp_path / "home"), ("--local", "--backend", "local"))
    for words, options in (
        ("cannot read the tokens", ()),
        ("cannot be used together", ("--allow-actions",)),
        ("cannot be used together", ("--port", "8080", "--socket", str(tmp_path / "s"))),
    ):
        assert words in program("serve", "--api", *options).refused(2)
    assert "--api" in program("serve", "--tokens", os.devnull).refused(2)
