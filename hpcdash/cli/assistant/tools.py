"""Tools that read: each is a command with its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from hpcdash.errors import UsageError

_MOST_LINES = 1000
_MOST_LETTERS = 2000
_MOST_ITEMS = 100


class Parameter(Struct, frozen=True):
    """Parameter of a tool; `option` is that of the command, '' for its positional arguments."""

    name: str
    option: str
    text: str
    type: str = "string"
    maximum: int | None = None
    is_required: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """JSON Schema of the value."""
        schema: dict[str, Any] = {"type": self.type, "description": self.text}
        if self.type == "string":
            schema["maxLength"] = _MOST_LETTERS
        elif self.type == "integer":
            schema |= {"minimum": 1, "maximum": self.maximum or 1_000_000}
        elif self.type == "array":
            items = {"type": "string", "maxLength": _MOST_LETTERS}
            schema |= {"items": items, "maxItems": _MOST_ITEMS}
        return schema

    def read(self, value: object) -> list[str]:
        """Return the command's arguments for a value. Raises UsageError."""
        match self.type, value:
            case "boolean", bool():
                return [self.option] if value else []
            case "integer", int() if not isinstance(value, bool):
                values = [str(value)]
                if not 1 <= value <= self.schema["maximum"]:
                    raise UsageError(f"{self.name}: expected 1 to {self.schema['maximum']}")
            case "string", str():
                values = [value]
            case "array", list() if all(isinstance(one, str) for one in value):
                values = value[: _MOST_ITEMS + 1]
            case _:
                raise UsageError(f"{self.name}: expected a value of type {self.type}")
        if len(values) > _MOST_ITEMS or max(map(len, values), default=0) > _MOST_LETTERS:
            raise UsageError(f"{self.name} is too long")
        return [f"{self.option}={one}" if self.option else one for one in values]


class ToolSpec(Struct, frozen=True):
    """Tool of an assistant, and its command; `keys` are those of the answer, () for all.

    `text_key` holds the output of a command that prints text.
    """

    name: str
    text: str
    command: tuple[str, ...]
    parameters: tuple[Parameter, ...] = ()
    keys: tuple[str, ...] = ()
    text_key: str = ""

    @property
    def schema(self) -> dict[str, Any]:
        """JSON Schema of the arguments."""
        return {
            "type": "object",
            "properties": {one.name: one.schema for one in self.parameters},
            "required": [one.name for one in self.parameters if one.is_required],
            "additionalProperties": False,
        }

    def argv(self, given: Mapping[str, object]) -> list[str]:
        """Return the command's arguments. Raises UsageError for invalid ones."""
        known = {one.name: one for one in self.parameters}
        if unknown := [name for name in given if name not in known]:
            raise UsageError(f"{self.name} has no parameter {unknown[0][:80]!r}")
        options: list[str] = []
        positional: list[str] = []
        for name, parameter in known.items():
            value = given.get(name)
            if value is None:
                if parameter.is_required:
                    raise UsageError(f"{self.name} needs {name}")
                continue
            (options if parameter.option else positional).extend(parameter.read(value))
        return [*self.command, *options, "--", *positional]


_JOB = Parameter("job", "", "Job ID: 4711, 88_3, 4711@CLUSTER", is_required=True)
_FILTER = Parameter("filter", "--filter", "Filter of rows: state:pending gpus>=4 name:sweep")
_EVERYONE = Parameter("everyone", "--all", "Jobs of all users", "boolean")
_RUNS = (
    Parameter("since", "--since", "Start: 30d, yesterday, 2026-01-01 (default 7d)"),
    Parameter("until", "--until", "End (default: now)"),
    Parameter("user", "--user", "Jobs of these users: ada,bob"),
    Parameter("queue", "--queue", "Queues (partitions): gpu,cpu"),
    Parameter("state", "--state", "End states: failed,timeout"),
    _FILTER,
    _EVERYONE,
)
# Keys of `show` that are about all of its parts.
_ENVELOPE = ("schema", "cluster", "backend", "taken_at", "job")
FILE = Parameter(
    "file",
    "",
    "Absolute path on this machine of a batch script or a request (*.toml)",
    is_required=True,
)
READ_TOOLS = (
    ToolSpec(
        "list_jobs",
        "List the person's queued and running jobs, or everyone's.",
        ("jobs", "--format=json"),
        (
            _FILTER,
            _EVERYONE,
            Parameter("all_clusters", "--all-clusters", "All configured clusters", "boolean"),
        ),
    ),
    ToolSpec("show_job", "Show all that is known of a job.", ("show", "--format=json"), (_JOB,)),
    ToolSpec(
        "why_pending",
        "Explain why a job waits (`waits`), with estimates of its start where they exist.",
        ("show", "--format=json"),
        (_JOB,),
        (*_ENVELOPE, "waits"),
    ),
    ToolSpec(
        "why_failed",
        "Explain why a job failed (`failure`): the log line behind it and the end of the log.",
        ("show", "--format=json"),
        (_JOB,),
        (*_ENVELOPE, "failure", "activity"),
    ),
    ToolSpec(
        "tail_log",
        "Read the last lines of a job's log. To follow one, call it at most once a minute.",
        ("log", "--format=json"),
        (
            _JOB,
            Parameter(
                "lines", "--lines", "Lines from the end (default 100)", "integer", _MOST_LINES
            ),
            Parameter("stderr", "--err", "Standard error instead of standard output", "boolean"),
            Parameter("of", "--of", "Log of a rank, worker, task or actor"),
        ),
    ),
    ToolSpec(
        "metrics",
        "Read the metrics of a training from its log: losses and others, by step.",
        ("metrics", "--format=json"),
        (_JOB, Parameter("metric", "--metric", "Only this metric: loss")),
    ),
    ToolSpec(
        "nodes",
        "List nodes with free CPUs, memory and GPUs. On a large cluster, use a filter.",
        ("nodes", "--format=json"),
        (_FILTER,),
    ),
    ToolSpec("queues", "List the queues (partitions).", ("queues", "--format=json"), (_FILTER,)),
    ToolSpec(
        "where_can_it_run",
        "List the queues and accounts that take a job, the earliest estimated start first.",
        ("where", "--format=json"),
        (
            Parameter("file", "", FILE.text),
            Parameter("like", "--like", "Size of this job"),
            Parameter("gpus", "--gpus", "GPUs in total", "integer"),
            Parameter("gpu_type", "--gpu-type", "GPU type: a100"),
            Parameter("gpu_mem", "--gpu-mem", "Memory of each GPU: 40G"),
            Parameter("cpus", "--cpus", "CPUs in total, without GPUs", "integer"),
            Parameter("nodes", "--nodes", "Nodes", "integer"),
            Parameter("mem", "--mem", "Memory of each node: 64G"),
            Parameter("time", "--time", "Time limit: 2d, 4h"),
            Parameter("queue", "--queue", "Only this queue"),
            Parameter("refused", "--all", "Also places that would refuse it", "boolean"),
        ),
    ),
    ToolSpec("history", "List ended jobs.", ("history", "--format=json"), _RUNS),
    ToolSpec(
        "efficiency",
        "Compare what ended jobs used with what they requested, with advice.",
        ("efficiency", "--format=json"),
        (
            Parameter("jobs", "", "Job IDs; none for all in the time span", "array"),
            *_RUNS,
            Parameter("by", "--by", "Group by run, array or name"),
        ),
    ),
    ToolSpec(
        "render_script",
        "Render the batch script of a request file (*.toml). Nothing is submitted.",
        ("render",),
        (FILE, Parameter("scheduler", "--for", "Scheduler (default: the cluster's)")),
        text_key="script",
    ),
)
