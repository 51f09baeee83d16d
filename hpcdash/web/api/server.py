"""HTTP API: launches, their logs, jobs and resources, for clients with a token.

Requests and answers are JSON only; nothing that a job wrote is run, imported or unpickled.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import socket
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web

from hpcdash import __version__
from hpcdash.backends.script.body import has_interpreter
from hpcdash.config.problems import did_you_mean
from hpcdash.config.request import build_request
from hpcdash.domain.request import Request
from hpcdash.domain.rfc3339 import table_to_json_rows
from hpcdash.domain.schema import JOBS, NODES, public_names
from hpcdash.domain.tables import Kind
from hpcdash.errors import (
    EXIT_REFUSED,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    ConfigError,
    HpcdashError,
    UsageError,
)
from hpcdash.services.cluster.snapshots import Snapshot
from hpcdash.services.jobs.account_jobs import STATES, AccountJobs
from hpcdash.services.session import ClusterSession
from hpcdash.services.shared_answers import SharedAnswers
from hpcdash.services.submit.launch_service import LaunchService, LaunchState, NoLog, NotAllowed
from hpcdash.services.submit.served_launches import ServedLaunch, Stage
from hpcdash.web.api import answers
from hpcdash.web.api.logs import DEFAULT_LINES, MAX_LINES, LogReader, follow
from hpcdash.web.api.openapi import openapi_document, openapi_page
from hpcdash.web.api.results import read_result
from hpcdash.web.api.tokens import Client, Tokens
from hpcdash.web.local_server import LocalServer, refuse_request

MAX_CONNECTIONS = 512
# Time limit of a connection that has sent no whole request.
CONNECTION_SECONDS = 30.0
# The files of a request are base64, a third longer than their content.
MAX_BODY_BYTES = 8 << 20
# Limits of one client, so that none blocks another: bodies held at once, results read at once, logs
# followed.
_MAX_BODIES = 2
_MAX_RESULTS = 2
MAX_FOLLOWERS = 64
_SHUTDOWN_SECONDS = 4.0
_RESOURCES_SECONDS = 60.0
_RETRY_SECONDS = "15"
_KEY_LETTERS = 200
_LARGEST_OFFSET = 2**63 - 1
_JSON = "application/json"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors "
    "'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Server": "hpcdash",
}
# Paths without private information.
_OPEN = frozenset({"/", "/openapi.json", "/health"})
_LAUNCH = "/launches/{id:[0-9a-f]{32}}"
_CLIENT: web.RequestKey[Client] = web.RequestKey("client", Client)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ApiServer:
    """Serves a cluster to the clients of `tokens`.

    `is_read_only`: nothing is launched, cancelled or deleted. `report` receives internal errors,
    and why the tokens cannot be read.
    """

    def __init__(
        self,
        session: ClusterSession,
        tokens: Tokens,
        *,
        is_read_only: bool = False,
        report: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self._session = session
        self._tokens = tokens
        self._is_read_only = is_read_only
        self._report = report
        self._launches = LaunchService(session)
        self._jobs = AccountJobs(session)
        self._nodes: SharedAnswers[str, Snapshot] = SharedAnswers(_RESOURCES_SECONDS)
        self._bodies = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(_MAX_BODIES))
        self._results = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(_MAX_RESULTS))
        self._followers = defaultdict[str, set[asyncio.Task[Any]]](set)
        self._answered: Counter[tuple[str, str, int]] = Counter()
        self._tokens_problem = ""
        app = web.Application(middlewares=[self._guard], client_max_size=MAX_BODY_BYTES)
        app.on_response_prepare.append(_add_headers)
        app.on_shutdown.append(self._end_followers)
        for method, path, handler in (
            ("GET", "/", self._get_page),
            ("GET", "/openapi.json", self._get_openapi),
            ("GET", "/health", self._get_health),
            ("POST", "/launches", self._post_launch),
            ("GET", "/launches", self._get_launches),
            ("GET", _LAUNCH, self._get_launch),
            ("GET", f"{_LAUNCH}/logs", self._get_logs),
            ("GET", f"{_LAUNCH}/result", self._get_result),
            ("POST", f"{_LAUNCH}/terminate", self._terminate),
            ("DELETE", _LAUNCH, self._delete),
            ("GET", "/jobs", self._get_jobs),
            ("GET", "/resources", self._get_resources),
            ("GET", "/metrics", self._get_metrics),
        ):
            app.router.add_route(method, path, handler)
        self._server = LocalServer(
            app,
            _protocol_error,
            max_connections=MAX_CONNECTIONS,
            connection_seconds=CONNECTION_SECONDS,
            shutdown_seconds=_SHUTDOWN_SECONDS,
        )

    async def start(self, listening: socket.socket) -> None:
        """Serve the clients of a listening socket."""
        if not self._is_read_only:
            self._launches.start()
        await self._server.start(listening)

    async def stop(self) -> None:
        """End all connections, and wait for the submissions that have started."""
        await self._server.stop()
        await self._launches.stop()

    async def _end_followers(self, _: web.Application) -> None:
        for task in [task for tasks in self._followers.values() for task in tasks]:
            task.cancel()

    # -- authentication and errors

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            answer = await self._answer(request, handler)
        except HpcdashError as error:
            answer = _error(answers.http_status(error), answers.build_error(error))
        except web.HTTPException as error:
            answer = _plain_error(error.status, error.reason, headers={**_allowed(error)})
        except web.RequestPayloadError:
            why = "the body does not match its Content-Encoding or Transfer-Encoding"
            answer = _plain_error(400, why)
        except ConnectionError:
            # The client is gone, or was too slow.
            raise
        except Exception as error:
            # The traceback is not for the client.
            self._report(error)
            answer = _plain_error(500, "internal error of hpcdash")
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else ""
        method = request.method if resource is not None else ""
        self._answered[method, route, answer.status] += 1
        return answer

    async def _answer(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        if why := refuse_request(request):
            return _plain_error(403, why)
        if request.path in _OPEN:
            return await handler(request)
        try:
            client = self._client(request)
        except ConfigError as error:
            # The client is not identified yet: only the terminal shows the file and its problem.
            if error.message != self._tokens_problem:
                self._report(error)
            self._tokens_problem = error.message
            return _plain_error(
                503, "the server cannot read its tokens", "The server's terminal shows the reason."
            )
        self._tokens_problem = ""
        if client is None:
            step = "Send the header: Authorization: Bearer TOKEN"
            return _plain_error(401, "no valid token", step, headers={"WWW-Authenticate": "Bearer"})
        request[_CLIENT] = client
        if request.method == "POST":
            # Read before it counts as busy: a slow one is closed in time. A few at once are held in
            # memory.
            async with self._bodies[client.name]:
                await request.read()
        with self._server.busy(request):
            return await handler(request)

    def _client(self, request: web.Request) -> Client | None:
        given = request.headers.getall("Authorization", [])
        scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        return self._tokens.find(token.strip()) if scheme.lower() == "bearer" else None

    def _refuse_changes(self) -> None:
        if self._is_read_only:
            raise NotAllowed(
                "refused: hpcdash is read-only",
                "Start hpcdash serve --api without --read-only.",
            )

    async def _launch(self, request: web.Request) -> ServedLaunch:
        return await self._launches.find(request.match_info["id"], request[_CLIENT].accounts)

    # -- description of the API

    async def _get_page(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text=openapi_page(openapi_document()), content_type="text/html")

    async def _get_openapi(self, request: web.Request) -> web.StreamResponse:
        return _json(openapi_document())

    async def _get_health(self, request: web.Request) -> web.StreamResponse:
        status = "ok" if self._session.store.connection_error is None else "degraded"
        return _json(answers.ServerHealth(status=status, version=__version__))

    # -- launches

    async def _post_launch(self, request: web.Request) -> web.StreamResponse:
        self._refuse_changes()
        _query(request)
        key = _idempotency_key(request)
        body = await request.read()
        if request.content_type != _JSON:
            raise web.HTTPUnsupportedMediaType(reason=f"the body must be {_JSON}")
        requested, files = await asyncio.to_thread(self._read_request, body)
        client = request[_CLIENT]
        launch = await self._launches.submit(client.name, client.accounts, requested, files, key)
        state = LaunchState(launch)
        status = 202 if launch.stage is Stage.SUBMITTING else 201
        return self._launch_answer(
            state, status, headers={"Location": f"/launches/{launch.launch_id}"}
        )

    def _read_request(self, body: bytes) -> tuple[Request, Mapping[str, bytes]]:
        try:
            document = msgspec.json.decode(body)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise web.HTTPBadRequest(reason=_one_line(f"not JSON: {error}")) from None
        if not isinstance(document, dict):
            raise UsageError("the body must be an object with the keys of a request")
        files = _read_files(document.pop("files", {}))
        document = {key: value for key, value in document.items() if value is not None}
        site = self._session.launches.settings.site
        request = build_request(document, "the request", site=site)
        name = request.script.rpartition("/")[2]
        if (
            request.script
            and not request.script.startswith("/")
            and (name != request.script or name not in files)
        ):
            step = (
                "Send its content as files: {NAME: base64}, or name a file of the cluster by "
                "its absolute path."
            )
            raise UsageError(f"script: the request has no file {request.script!r}", step)
        if name in files and not files[name].startswith(b"#!") and not has_interpreter(request):
            raise UsageError(
                "script: its first line does not begin with #!", "Start it with #!/bin/bash."
            )
        return request, files

    async def _get_launches(self, request: web.Request) -> web.StreamResponse:
        _query(request)
        states = await self._states(request)
        launches = [answers.summarize_launch(state) for state in states]
        return _json(answers.LaunchesAnswer(**self._session.envelope(), launches=launches))

    async def _states(self, request: web.Request) -> list[LaunchState]:
        return await self._launches.states(
            await self._launches.account_launches(request[_CLIENT].accounts)
        )

    async def _get_launch(self, request: web.Request) -> web.StreamResponse:
        _query(request)
        return self._launch_answer(await self._launches.state(await self._launch(request)))

    def _launch_answer(
        self, state: LaunchState, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> web.Response:
        answer = answers.LaunchAnswer(
            **self._session.envelope(),
            launch=answers.summarize_launch(state),
            jobs=answers.job_rows(state.rows),
        )
        return _json(answer, status, headers)

    async def _terminate(self, request: web.Request) -> web.StreamResponse:
        self._refuse_changes()
        _query(request)
        launch = await self._launch(request)
        outcome = await self._launches.terminate(launch)
        answer = answers.TerminationAnswer(
            **self._session.envelope(),
            id=launch.launch_id,
            done=outcome.done,
            text=outcome.text,
        )
        return _json(answer, {True: 200, False: 409, None: 202}[outcome.done])

    async def _delete(self, request: web.Request) -> web.StreamResponse:
        self._refuse_changes()
        _query(request)
        await self._launches.delete(await self._launch(request))
        return web.Response(status=204)

    async def _get_result(self, request: web.Request) -> web.StreamResponse:
        task = _query(request, task=_offset).get("task")
        launch = await self._launch(request)
        files = await self._launches.call_files(launch, task)
        async with self._results[request[_CLIENT].name]:
            result = await read_result(files, self._session.name)
            failure = result if isinstance(result, answers.CallFailure) else None
            answer = answers.ResultAnswer(
                id=launch.launch_id,
                task=task,
                path=(files.result if failure is None else files.failure).place,
                value=result if failure is None else None,
                failure=failure,
            )
            return _json(answer)

    # -- logs

    async def _get_logs(self, request: web.Request) -> web.StreamResponse:
        readers = {
            "stream": _stream,
            "lines": _lines,
            "offset": _offset,
            "follow": _flag,
            "task": _offset,
        }
        requested = _query(request, **readers)
        launch = await self._launch(request)
        offset = requested.get("offset")
        follows = requested.get("follow", False)
        if follows and (last := request.headers.get("Last-Event-ID")):
            # A browser's EventSource continues where its connection broke.
            offset = _offset(last)
        if offset is not None and "lines" in requested:
            raise UsageError("both lines and offset are given", "Remove one of them.")
        stream = requested.get("stream", "stdout")
        file = await self._launches.log_file(
            launch, is_stderr=stream == "stderr", task=requested.get("task")
        )
        reader = LogReader(file, stream)
        if follows:
            return await self._follow(
                request, reader, requested.get("lines", DEFAULT_LINES), offset
            )
        page = await (
            reader.read_last(requested.get("lines", DEFAULT_LINES))
            if offset is None
            else reader.read(offset)
        )
        return _json(page)

    async def _follow(
        self, request: web.Request, reader: LogReader, lines: int, offset: int | None
    ) -> web.StreamResponse:
        followers = self._followers[request[_CLIENT].name]
        if len(followers) >= MAX_FOLLOWERS:
            return _plain_error(503, f"you already follow {MAX_FOLLOWERS} logs")
        task = asyncio.current_task()
        assert task is not None
        followers.add(task)
        try:
            return await self._send_events(request, reader, lines, offset)
        finally:
            followers.discard(task)

    async def _send_events(
        self, request: web.Request, reader: LogReader, lines: int, offset: int | None
    ) -> web.StreamResponse:
        try:
            first = await (reader.read_last(lines) if offset is None else reader.read(offset))
        except NoLog:
            first = None
        accounts = request[_CLIENT].accounts
        launch_id = request.match_info["id"]

        async def state() -> LaunchState:
            return await self._launches.state(await self._launches.find(launch_id, accounts))

        events = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        try:
            await events.prepare(request)
            async for event in follow(reader, first, self._session.store.budget, state):
                await events.write(event)
        except ConnectionError:
            # The client has gone.
            pass
        except Exception as error:
            if not events.prepared:
                raise
            # No other answer can follow the sent part: without `end` the client reconnects.
            self._report(error)
        return events

    # -- cluster

    async def _get_jobs(self, request: web.Request) -> web.StreamResponse:
        state = _query(request, state=_state).get("state")
        found = await self._jobs.fetch(request[_CLIENT].accounts, state)
        rows = await asyncio.to_thread(table_to_json_rows, found.table, public_names(JOBS))
        common = self._session.envelope(found.taken_at)
        return _json(answers.JobsAnswer(**common, rejected_rows=found.rejected_rows, jobs=rows))

    async def _get_resources(self, request: web.Request) -> web.StreamResponse:
        _query(request)
        snapshot = await self._nodes.get("", self._fetch_nodes)
        nodes = snapshot.table
        states = Counter(map(str, nodes["state"].to_pylist()))
        answer = answers.ResourcesAnswer(
            **self._session.envelope(snapshot.taken_at),
            node_states=dict(sorted(states.items())),
            slots=answers.summarize_slots(nodes),
            nodes=table_to_json_rows(nodes, public_names(NODES)),
        )
        return _json(answer)

    async def _fetch_nodes(self) -> Snapshot:
        await self._session.store.open()
        return await self._session.store.fetch(Kind.NODES)

    async def _get_metrics(self, request: web.Request) -> web.StreamResponse:
        _query(request)
        try:
            states = await self._states(request)
        except HpcdashError:
            states = None
        text = answers.format_metrics(self._session, states, self._answered)
        return web.Response(
            text=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )


# -- parameters


def _query(request: web.Request, **readers: Callable[[str], Any]) -> dict[str, Any]:
    """Parse the parameters of a request's URL, each with the reader of its name.

    Raises UsageError for an unknown, repeated or invalid parameter.
    """
    parameters: dict[str, Any] = {}
    for name, value in request.query.items():
        if name not in readers:
            raise UsageError(f"unknown parameter {name[:80]!r}{did_you_mean(name, readers)}")
        if name in parameters:
            raise UsageError(f"{name} is given twice")
        try:
            parameters[name] = readers[name](value)
        except ValueError as error:
            raise UsageError(f"{name}: {error}, not {value[:80]!r}") from None
    return parameters


def _stream(text: str) -> str:
    if text not in ("stdout", "stderr"):
        raise ValueError("expected stdout or stderr")
    return text


def _state(text: str) -> str:
    if text not in STATES:
        raise ValueError(f"expected {', '.join(STATES)}")
    return text


def _flag(text: str) -> bool:
    if text not in ("true", "false", "1", "0"):
        raise ValueError("expected true or false")
    return text in ("true", "1")


def _offset(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 19 or int(text) > _LARGEST_OFFSET:
        raise ValueError("expected a whole number, 0 or more")
    return int(text)


def _lines(text: str) -> int:
    """Parse a number of last lines: `-20` and `20` are the last 20."""
    count = text.removeprefix("-")
    if (
        not count.isascii()
        or not count.isdecimal()
        or len(count) > 6
        or not 1 <= int(count) <= MAX_LINES
    ):
        raise ValueError(f"expected the number of last lines, 1 to {MAX_LINES}")
    return int(count)


def _idempotency_key(request: web.Request) -> str | None:
    given = request.headers.getall("Idempotency-Key", [])
    if not given:
        return None
    if (
        len(given) > 1
        or not 1 <= len(given[0]) <= _KEY_LETTERS
        or not (given[0].isascii() and given[0].isprintable())
    ):
        raise UsageError(
            f"Idempotency-Key: expected 1 to {_KEY_LETTERS} printable ASCII characters, once"
        )
    return given[0]


def _read_files(given: object) -> dict[str, bytes]:
    if not isinstance(given, dict):
        raise UsageError("files: expected an object of file names and base64 contents")
    files: dict[str, bytes] = {}
    for name, content in given.items():
        try:
            files[name] = base64.b64decode(
                content if isinstance(content, str) else "?", validate=True
            )
        except (binascii.Error, ValueError):
            raise UsageError(f"files: the content of {name[:80]!r} is not base64") from None
    return files


# -- answers

_RETRY = {"Retry-After": _RETRY_SECONDS}
_EXIT_OF_STATUS = {429: EXIT_UNREACHABLE, 503: EXIT_UNREACHABLE}


def _json(
    answer: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(answer), status=status, content_type=_JSON, headers=headers
    )


def _error(
    status: int, error: answers.Error, headers: Mapping[str, str] | None = None
) -> web.Response:
    return _json(
        error, status, {**(headers or {}), **(_RETRY if status in _EXIT_OF_STATUS else {})}
    )


def _plain_error(
    status: int,
    message: str,
    next_step: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> web.Response:
    """Build the answer to an error that hpcdash did not raise."""
    exit_status = _EXIT_OF_STATUS.get(status, EXIT_REFUSED if status >= 500 else EXIT_USAGE)
    detail = answers.ErrorDetail(message=message, next_step=next_step, exit_status=exit_status)
    return _error(status, answers.Error(error=detail), headers)


def _protocol_error(status: int) -> web.Response:
    if status == 400:
        step = "Send HTTP/1.1, and an uncompressed body or one with Content-Encoding: gzip."
        return _plain_error(status, "the request is not valid HTTP", step, _HEADERS)
    return _plain_error(status, HTTPStatus(status).phrase, headers=_HEADERS)


def _allowed(error: web.HTTPException) -> dict[str, str]:
    return {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}


def _one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:200]


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
