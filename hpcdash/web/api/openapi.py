"""Requests and answers of the API, as an OpenAPI document and as an HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from html import escape
from typing import Any

import msgspec
import pyarrow as pa

from hpcdash import __version__
from hpcdash.config.request import FIELD_OF_KEY, REQUEST_KEYS, TABLES
from hpcdash.domain.request import Call, Container, Request, Site
from hpcdash.domain.schema import JOBS, NODES, public_names
from hpcdash.services.jobs.account_jobs import STATES
from hpcdash.web.api.answers import ANSWERS
from hpcdash.web.api.logs import DEFAULT_LINES, MAX_LINES
from hpcdash.web.api.results import MAX_RESULT_BYTES

Json = dict[str, Any]
_REF = "#/components/schemas/{name}"
_TEXT: Json = {"type": "string"}
_TEXTS: Json = {"type": "array", "items": _TEXT}
# JSON form of a key by its field's annotation; for others by the key's reader.
_BY_TYPE: Mapping[str, Json] = {
    "str": _TEXT,
    "bool": {"type": "boolean"},
    "int": {"type": "integer"},
    "int | None": {"type": "integer"},
    "tuple[str, ...]": _TEXTS,
    "SlotType | None": _TEXT,
    "ArrayTasks | None": _TEXT,
    "EarlySignal | None": _TEXT,
    "Launcher": _TEXT,
    "Runtime | None": _TEXT,
}
_EXAMPLES: Mapping[str, Any] = {
    "command": "python train.py --lr 0.001",
    "slots": 8,
    "slots_per_node": 4,
    "time": "2h",
    "memory": "64G",
    "array": "1-10%2",
    "signal": "USR1@600",
    "work_dir": "/home/alice/run",
}
_EVENT: Json = {
    "type": "object",
    "properties": {
        "event": {"type": "string", "enum": ["log", "restart", "problem", "end"]},
        "id": {"type": "string", "description": "For a log event: its end offset."},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "description": "For a log event: a LogPage.",
        },
    },
}
_ID: Json = {
    "name": "id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
}
_TASK: Json = {
    "name": "task",
    "in": "query",
    "schema": {"type": "integer", "minimum": 0},
    "description": "The task of an array.",
}
_KEY: Json = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "A request with the same key is launched only once, however often it is sent.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"},
}


@cache
def openapi_document() -> Json:
    """Return the OpenAPI 3.1 document."""
    _, schemas = msgspec.json.schema_components(ANSWERS, ref_template=_REF)
    schemas["Job"] = _row_schema(JOBS)
    schemas["Node"] = _row_schema(NODES)
    for answer, key, row in (
        ("JobsAnswer", "jobs", "Job"),
        ("LaunchAnswer", "jobs", "Job"),
        ("ResourcesAnswer", "nodes", "Node"),
    ):
        schemas[answer]["properties"][key]["items"] = {"$ref": _REF.format(name=row)}
    schemas["Request"] = _request_schema()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "hpcdash",
            "version": __version__,
            "description": "Launches, logs and jobs of one cluster. Each token sees only its "
            "own accounts; anything else returns 404. Errors have the fields "
            "that the command line shows.",
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": _paths(),
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _paths() -> Json:
    launch = "/launches/{id}"
    logs = "/launches/{id}/logs"
    return {
        "/launches": {
            "get": _operation(
                "List the launches of the token's accounts, newest first.", "LaunchesAnswer"
            ),
            "post": _operation(
                "Launch a request with the keys of REQUEST.toml. 202: outcome not known yet; "
                "the server searches for the job and never submits it twice.",
                "LaunchAnswer",
                statuses=("201", "202"),
                parameters=[_KEY],
                body="Request",
            ),
        },
        launch: {
            "get": _operation("Show a launch and its jobs.", "LaunchAnswer", parameters=[_ID]),
            "delete": _operation(
                "Remove the folder of a launch that has ended, with everything in it, and forget "
                "the launch.",
                "",
                statuses=("204",),
                parameters=[_ID],
            ),
        },
        logs: {
            "get": _operation(
                "Read a log: its last lines, or everything from a byte offset. With follow, "
                "server-sent events: log, restart, problem, end.",
                "LogPage",
                parameters=[
                    _ID,
                    _parameter(
                        "stream",
                        {"type": "string", "enum": ["stdout", "stderr"], "default": "stdout"},
                    ),
                    _parameter(
                        "lines",
                        {
                            "type": "integer",
                            "minimum": -MAX_LINES,
                            "maximum": MAX_LINES,
                            "default": DEFAULT_LINES,
                        },
                        "The last lines; -20 and 20 are the same.",
                    ),
                    _parameter(
                        "offset",
                        {"type": "integer", "minimum": 0},
                        "Byte offset to read from, instead of lines.",
                    ),
                    _parameter("follow", {"type": "boolean", "default": False}),
                    _TASK,
                ],
            ),
        },
        f"{launch}/result": {
            "get": _operation(
                "Return the result of the launch's function, if its result_format is json, or "
                "its error. 404: no result yet. 409: the result is a pickle, which the API does "
                f"not read. 413: larger than {MAX_RESULT_BYTES >> 20} MiB.",
                "ResultAnswer",
                parameters=[
                    _ID,
                    _TASK,
                ],
            )
        },
        f"{launch}/terminate": {
            "post": _operation(
                "Cancel the launch's job. 202: the scheduler's answer was lost. 409: the "
                "scheduler refused.",
                "TerminationAnswer",
                statuses=("200", "202", "409"),
                parameters=[_ID],
            )
        },
        "/jobs": {
            "get": _operation(
                "List the jobs of the token's accounts, however submitted; without state, only "
                "pending and running jobs.",
                "JobsAnswer",
                parameters=[_parameter("state", {"type": "string", "enum": [*STATES]})],
            )
        },
        "/resources": {
            "get": _operation(
                "Show nodes, and slots by type; at most a minute old.", "ResourcesAnswer"
            )
        },
        "/metrics": {
            "get": {
                "summary": "Show commands sent and launches by status, for Prometheus.",
                "responses": {
                    "200": {"description": "Metrics", "content": {"text/plain": {"schema": _TEXT}}},
                    "default": _answer("Error"),
                },
            }
        },
        "/health": {
            "get": {
                **_operation(
                    "Report whether the server is running; no token needed.", "ServerHealth"
                ),
                "security": [],
            }
        },
    }


def _operation(
    summary: str,
    answer: str,
    *,
    statuses: tuple[str, ...] = ("200",),
    parameters: list[Json] | None = None,
    body: str = "",
) -> Json:
    operation: Json = {"summary": summary, "responses": {}}
    if parameters:
        operation["parameters"] = parameters
    if body:
        operation["requestBody"] = {"required": True, "content": _content(body)}
    for status in statuses:
        operation["responses"][status] = _answer(answer) if answer else {"description": "Done"}
    operation["responses"]["default"] = _answer("Error")
    if answer == "TerminationAnswer":
        both = [{"$ref": _REF.format(name=name)} for name in (answer, "Error")]
        operation["responses"]["409"]["content"] = {"application/json": {"schema": {"anyOf": both}}}
    if answer == "LogPage":
        operation["responses"]["200"]["content"]["text/event-stream"] = {"schema": _EVENT}
    return operation


def _answer(name: str) -> Json:
    return {"description": name, "content": _content(name)}


def _content(name: str) -> Json:
    return {"application/json": {"schema": {"$ref": _REF.format(name=name)}}}


def _parameter(name: str, schema: Json, description: str = "") -> Json:
    return {
        "name": name,
        "in": "query",
        "schema": schema,
        **({"description": description} if description else {}),
    }


def _row_schema(schema: pa.Schema) -> Json:
    properties = {name: _column_schema(schema.field(name).type) for name in public_names(schema)}
    return {"type": "object", "properties": properties, "required": [*properties]}


def _column_schema(kind: pa.DataType) -> Json:
    if pa.types.is_integer(kind):
        return {"type": ["integer", "null"]}
    if pa.types.is_floating(kind):
        return {"type": ["number", "null"]}
    if pa.types.is_timestamp(kind):
        return {"type": ["string", "null"], "format": "date-time"}
    if pa.types.is_list(kind):
        return {"type": ["array", "null"], "items": _TEXT}
    return {"type": ["string", "null"]}


def _request_schema() -> Json:
    properties = _properties(Request, REQUEST_KEYS)
    for key, example in _EXAMPLES.items():
        properties[key] = {**properties[key], "examples": [example]}
    for name, record in (("container", Container), ("site", Site), ("call", Call)):
        inner = _properties(record, TABLES[name])
        properties[name] = {"type": "object", "properties": inner, "additionalProperties": False}
    properties["environment"] = {
        "type": "object",
        "additionalProperties": {"type": ["string", "integer"]},
    }
    properties["node_probe"] = {}
    properties["files"] = {
        "type": "object",
        "additionalProperties": {"type": "string", "contentEncoding": "base64"},
        "description": "Files by name, staged with the launch; a relative script must be among "
        "them.",
    }
    return {
        "type": "object",
        "description": "A request as in REQUEST.toml, with one of command, script and call.",
        "properties": properties,
        "additionalProperties": False,
        "oneOf": [{"required": [key]} for key in ("command", "script", "call")],
    }


def _properties(record: type, keys: Mapping[str, object]) -> Json:
    """Return a schema for each key, by the annotation of its field."""
    kinds = {name: str(kind) for name, kind in record.__annotations__.items()}
    properties = {}
    for key in keys:
        # Durations and amounts are text with their unit.
        is_text = key in FIELD_OF_KEY
        properties[key] = dict(_TEXT if is_text else _BY_TYPE.get(kinds.get(key, ""), {}))
    return properties


def openapi_page(document: Json) -> str:
    """Format the operations and a request's keys as HTML without scripts or external content."""
    rows = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            names = [
                parameter["name"]
                for parameter in operation.get("parameters", [])
                if parameter["in"] != "path"
            ]
            taken = f"<br><small>{escape(', '.join(names))}</small>" if names else ""
            rows.append(
                f"<tr><td><code>{method.upper()} {escape(path)}</code>{taken}</td>"
                f"<td>{escape(operation['summary'])}</td></tr>"
            )
    keys = ", ".join(
        f"<code>{escape(key)}</code>"
        for key in document["components"]["schemas"]["Request"]["properties"]
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>hpcdash API</title>'
        "<style>body{font:16px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
        "td{vertical-align:top;padding:.3rem 1rem .3rem 0}</style>"
        f"<h1>hpcdash {escape(document['info']['version'])}</h1>"
        f"<p>{escape(document['info']['description'])}</p>"
        f"<table>{''.join(rows)}</table><h2>Keys of a request</h2><p>{keys}</p>"
        '<p>The whole contract: <a href="/openapi.json">openapi.json</a>. '
        "Send each request with <code>Authorization: Bearer TOKEN</code>.</p></html>\n"
    )
