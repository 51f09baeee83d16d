"""Registry of user actions and their availability, the source of keys, palette, help and key line.

A view or the main screen handles an action NAME in its method do_NAME.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.base import Capability
from hpcdash.config.plugins import Plugin
from hpcdash.config.problems import KeyPath, dotted
from hpcdash.config.settings import Settings
from hpcdash.domain import tables
from hpcdash.errors import ConfigError, readable_command
from hpcdash.services.jobs.action_text import format_changeable
from hpcdash.services.session import ClusterSession

# The command line imports the actions without Textual.
if TYPE_CHECKING:
    from textual.widget import Widget

    from hpcdash.ui.view import View

TABLES = frozenset(tables.TABLES) | {
    "clusters",
    "node",
    "journal",
    "triage",
    "chain",
    "alerts",
    "share",
    "where",
    "all",
    "storage",
    "files",
    "data",
}
ROOT_TABLES = frozenset(spec.name for spec in tables.MAIN_TABLES)
JOB_TABLES = frozenset({"jobs", "history", "node"})
# Views with a selected job to which actions apply.
JOB_VIEWS = JOB_TABLES | {"job", "log", "script", "triage", "chain", "chart"}
# Also views that lead to a job, where no action applies to it.
JOB_LINK_VIEWS = JOB_VIEWS | {"alerts", "share"}
# Finished jobs cannot be stopped, held or changed.
LIVE_JOB_VIEWS = JOB_VIEWS - {"triage"}
# Jobs of several clusters, each acted on by its own cluster's commands.
ALL_CLUSTERS = frozenset({"all"})
FILES = frozenset({"files"})
LOG = frozenset({"log"})
FORM = frozenset({"submit"})
OUTPUT = frozenset({"output"})
INSIDE = frozenset({"inside", "stacks", "leftovers", "use"})
CHART = frozenset({"chart"})
TIMELINE = frozenset({"timeline"})
USAGE = frozenset({"usage"})
SHARE = frozenset({"share"})
COPY_VIEWS = TABLES | {"job", "log", "script", "submit", "output", "inside", "stacks", "leftovers"}
# Keys that no action can have: those of the cursor, and Textual's for quitting.
MOVING_KEYS = frozenset(
    {"up", "down", "left", "right", "j", "k", "pageup", "pagedown", "home", "end"}
    | {"shift+up", "shift+down", "ctrl+q", "ctrl+c"}
)
# Rank of configured actions in the key line.
_OWN_RANK = 4
# Ranks in a form, where `?` is text.
_SHOWN_WHILE_TYPING = {"form_help": 0, "escape": 4}


class Action(Struct, frozen=True):
    """Action of a key.

    `views` limits it to some views (None: all), `capability` to schedulers that have it.

    `acts` marks actions that change something on the cluster: read-only mode removes them. `shown`
    is its rank in the key line, lower first; None: only in help and palette. A view may override
    the rank (View.key_ranks). `short` is its text in the key line. `while_typing`: also available
    in the fields of a form, which take all other keys.
    """

    name: str
    key: str
    text: str
    views: frozenset[str] | None = None
    capability: Capability | None = None
    acts: bool = False
    shown: int | None = None
    short: str = ""
    while_typing: bool = False
    # View that the action opens.
    opens: str = ""
    # Of a configured action: the ':' line that it enters, or the command that it runs.
    line: str = ""
    plugin: Plugin | None = None


ACTIONS: tuple[Action, ...] = (
    Action("show_jobs", "1", "jobs", capability=Capability.JOBS, opens="jobs"),
    Action("show_nodes", "2", "nodes", capability=Capability.NODES, opens="nodes"),
    Action("show_queues", "3", "queues", capability=Capability.QUEUES, opens="queues"),
    Action("show_history", "4", "history", capability=Capability.HISTORY, opens="history"),
    Action("show_alerts", "5", "alerts"),
    Action("show_clusters", "6", "clusters and connections", short="clusters", opens="clusters"),
    Action(
        "show_usage",
        "7",
        "usage: hours used, wasted and queued",
        capability=Capability.HISTORY,
        short="usage",
        opens="usage",
    ),
    Action(
        "shares", "8", "fair share of your accounts", capability=Capability.SHARES, opens="shares"
    ),
    Action(
        "limits",
        "9",
        "your limits and usage",
        capability=Capability.LIMITS,
        opens="limits",
    ),
    Action(
        "reservations",
        "0",
        "reservations and your access to them",
        capability=Capability.RESERVATIONS,
        opens="reservations",
    ),
    Action("all", "M", "your jobs on all clusters", short="all clusters", opens="all"),
    Action(
        "share",
        "Z",
        "shared pool: running and waiting tasks, next in turn",
        short="pool",
        opens="share",
    ),
    Action(
        "timeline",
        "L",
        "timeline: job ends and starts, free nodes",
        short="timeline",
        opens="timeline",
    ),
    Action("open", "enter", "open: job, node, queue, array", TABLES, shown=1, short="open"),
    Action("filter", "slash", "filter", TABLES, shown=2),
    Action("bookmark", "B", "bookmark the filter, or remove its bookmark", ROOT_TABLES),
    Action("next_bookmark", "greater_than_sign", "next bookmark", ROOT_TABLES),
    Action("previous_bookmark", "less_than_sign", "previous bookmark", ROOT_TABLES),
    Action("command", "colon", "command: view, filter or action", shown=9, short="command"),
    Action(
        "mine",
        "m",
        "mine / everyone's",
        frozenset({"jobs", "history", "shares", "usage", "timeline"}),
        Capability.OWNERS,
        shown=3,
        short="mine/all",
    ),
    Action(
        "span", "w", "change the time range", frozenset({"history"}) | USAGE, shown=2, short="span"
    ),
    Action(
        "grouping",
        "g",
        "group by: queue, user, account, name, day, week",
        USAGE,
        shown=1,
        short="group by",
    ),
    Action(
        "save_report",
        "s",
        "save the report as HTML in the working directory",
        USAGE,
        shown=4,
        short="save",
    ),
    Action(
        "sooner",
        "w",
        "start sooner: estimates for a shorter limit and fewer nodes",
        frozenset({"job"}),
        Capability.EXPECTED_START,
        short="sooner",
    ),
    Action(
        "overview",
        "v",
        "show or hide the job overview",
        JOB_TABLES | {"job"},
        short="overview",
    ),
    Action(
        "switch_focus",
        "ctrl+w",
        "switch between table and overview",
        JOB_TABLES | {"job"},
        short="overview",
    ),
    Action("larger_overview", "plus", "larger overview", JOB_TABLES),
    Action("smaller_overview", "underscore", "smaller overview", JOB_TABLES),
    Action("fold", "a", "fold or unfold arrays", JOB_TABLES, shown=5, short="fold"),
    Action(
        "detail",
        "d",
        "full details",
        JOB_TABLES | {"job", "alerts", "share"},
        Capability.DETAIL,
        shown=4,
        short="details",
    ),
    Action("mark", "space", "mark", TABLES),
    Action("mark_all", "ctrl+a", "mark all rows shown, or none", TABLES),
    Action("invert_marks", "asterisk", "invert marks", TABLES),
    Action("unmark", "u", "clear all marks", TABLES),
    Action("log", "l", "log: stdout", JOB_LINK_VIEWS, Capability.LOGS, shown=3, short="log"),
    Action("error_log", "e", "log: stderr", JOB_LINK_VIEWS, Capability.ERROR_LOGS, short="stderr"),
    # Views show it in the key line for a job that may have written something.
    Action(
        "chart",
        "g",
        "chart of the metrics in the log",
        JOB_LINK_VIEWS - CHART,
        Capability.LOGS,
        short="chart",
    ),
    Action(
        "files",
        "f",
        "files: the job's folders and checkpoints",
        JOB_TABLES | {"job"},
        Capability.FILES,
        short="files",
    ),
    Action(
        "script",
        "b",
        "batch script",
        JOB_LINK_VIEWS - {"script"},
        Capability.SCRIPT,
        shown=6,
        short="script",
    ),
    Action(
        "triage",
        "t",
        "group an array's failures by cause",
        JOB_TABLES | {"job"},
        Capability.HISTORY,
        short="failures",
    ),
    Action(
        "chain",
        "c",
        "the job's chain: jobs before and after it",
        JOB_TABLES | {"job", "alerts"},
        Capability.CHAINS,
        short="chain",
    ),
    Action(
        "cancel",
        "x",
        "cancel (confirms)",
        LIVE_JOB_VIEWS | ALL_CLUSTERS,
        Capability.CANCEL,
        acts=True,
        shown=3,
        short="cancel",
    ),
    Action(
        "hold",
        "h",
        "hold or release",
        LIVE_JOB_VIEWS | ALL_CLUSTERS,
        Capability.HOLD,
        acts=True,
        shown=7,
    ),
    Action(
        "requeue",
        "r",
        "requeue (confirms)",
        JOB_VIEWS | ALL_CLUSTERS,
        Capability.REQUEUE,
        acts=True,
    ),
    Action(
        "suspend",
        "p",
        "suspend or resume",
        LIVE_JOB_VIEWS | ALL_CLUSTERS,
        Capability.SUSPEND,
        acts=True,
    ),
    Action(
        "delete",
        "delete",
        "delete a finished job's record on the cluster (confirms)",
        JOB_VIEWS,
        Capability.DELETE,
        acts=True,
    ),
    Action(
        "delete_files",
        "delete",
        "delete files of a finished job (confirms)",
        FILES,
        acts=True,
        shown=4,
        short="delete",
    ),
    Action(
        "signal",
        "z",
        "send a signal",
        LIVE_JOB_VIEWS | ALL_CLUSTERS,
        Capability.SIGNAL,
        acts=True,
    ),
    Action(
        "alter",
        "A",
        "change time limit, queue, QoS, nice or throttle",
        LIVE_JOB_VIEWS | ALL_CLUSTERS,
        Capability.ALTER,
        acts=True,
        short="change",
    ),
    Action(
        "move",
        "Q",
        "move to another queue, account or cluster (confirms)",
        JOB_TABLES | {"job"},
        Capability.QUEUES,
        acts=True,
        short="move",
    ),
    Action(
        "kill_switch",
        "K",
        "kill switch: save and stop",
        LIVE_JOB_VIEWS,
        Capability.DETAIL,
        acts=True,
        short="kill switch",
    ),
    Action(
        "save_switch",
        "S",
        "save switch: save and continue",
        LIVE_JOB_VIEWS,
        Capability.DETAIL,
        acts=True,
        short="save switch",
    ),
    Action(
        "submit_again",
        "R",
        "resubmit (an array: its failed tasks)",
        JOB_VIEWS,
        Capability.SUBMIT,
        acts=True,
        short="resubmit",
    ),
    Action("pin", "P", "pin to the top of the table, or unpin", JOB_TABLES | {"job"}),
    Action(
        "note",
        "N",
        "note on the job, kept on this machine",
        JOB_TABLES | {"job"} | ALL_CLUSTERS,
    ),
    Action(
        "open_shell",
        "W",
        "shell in the job's work directory, on the cluster",
        JOB_VIEWS,
        acts=True,
        short="shell",
    ),
    Action(
        "new",
        "n",
        "new submission",
        TABLES | {"job"},
        Capability.FORM,
        acts=True,
        shown=5,
        short="new",
    ),
    Action(
        "where",
        "F",
        "find where a job can run and start first",
        TABLES | {"job"},
        Capability.QUEUES,
        short="where",
    ),
    Action(
        "shape",
        "e",
        "enter the size of a job",
        frozenset({"where"}),
        shown=2,
        short="size",
    ),
    Action(
        "connect",
        "C",
        "shell inside the running job",
        LIVE_JOB_VIEWS - {"history"},
        Capability.CONNECT,
        acts=True,
        short="connect",
    ),
    Action(
        "forward",
        "V",
        "forward a port of the running job: Jupyter, TensorBoard, vLLM",
        LIVE_JOB_VIEWS - {"history"},
        Capability.FORWARD,
        acts=True,
        short="forward",
    ),
    Action(
        "check_nodes",
        "C",
        "submit a job that checks the nodes: GPUs, disks, clock (confirms)",
        frozenset({"nodes", "queues"}),
        Capability.NODE_CHECKS,
        acts=True,
        shown=4,
        short="check",
    ),
    Action(
        "use",
        "U",
        "live usage: CPU, memory, GPUs by node",
        LIVE_JOB_VIEWS | INSIDE,
        Capability.LIVE_USE,
        short="use",
    ),
    Action(
        "stacks",
        "i",
        "Python stacks on the job's nodes",
        LIVE_JOB_VIEWS | INSIDE,
        Capability.INSIDE,
    ),
    Action(
        "exec",
        "X",
        "run a command on the job's nodes",
        LIVE_JOB_VIEWS | INSIDE,
        Capability.INSIDE,
        acts=True,
        short="run",
    ),
    Action(
        "submit_form",
        "ctrl+j",
        "review and submit",
        FORM,
        Capability.SUBMIT,
        acts=True,
        shown=1,
        short="submit",
        while_typing=True,
    ),
    Action(
        "preview",
        "ctrl+o",
        "cycle script, full script, changes, form",
        FORM,
        shown=2,
        short="script",
        while_typing=True,
    ),
    Action(
        "start_from",
        "ctrl+l",
        "start from a recent submission, a template or an empty form",
        FORM,
        shown=3,
        short="recent",
        while_typing=True,
    ),
    Action(
        "other_way",
        "ctrl+n",
        "existing batch script, or back to a command",
        FORM,
        shown=5,
        short="batch script",
        while_typing=True,
    ),
    Action("form_help", "f1", "help for this form", FORM, short="help", while_typing=True),
    Action(
        "keep",
        "ctrl+g",
        "save as a template",
        FORM,
        shown=5,
        short="save template",
        while_typing=True,
    ),
    Action(
        "append",
        "plus",
        "append to the chain",
        frozenset({"chain"}),
        Capability.SUBMIT,
        acts=True,
        shown=2,
        short="append",
    ),
    Action(
        "edit_next",
        "E",
        "edit the script of the chain's next job (stubs only)",
        frozenset({"chain"}),
        Capability.SCRIPT,
        acts=True,
        shown=8,
        short="edit next",
    ),
    Action(
        "raise_task",
        "greater_than_sign",
        "raise the task's priority (confirms)",
        SHARE,
        acts=True,
        shown=2,
        short="raise",
    ),
    Action(
        "lower_task",
        "less_than_sign",
        "lower the task's priority (confirms)",
        SHARE,
        acts=True,
        shown=2,
        short="lower",
    ),
    Action(
        "suspend_task",
        "p",
        "suspend the task, or resume it (confirms)",
        SHARE,
        acts=True,
        shown=2,
        short="suspend",
    ),
    Action(
        "stop_task",
        "x",
        "stop the task for good (confirms)",
        SHARE,
        acts=True,
        shown=3,
        short="stop",
    ),
    Action(
        "interruptions",
        "t",
        "runs, interruptions and saves",
        SHARE,
        shown=4,
        short="interrupted",
    ),
    Action("next_pool", "right_square_bracket", "next pool", SHARE),
    Action(
        "mark_failed", "f", "mark failed tasks", frozenset({"triage"}), shown=1, short="mark failed"
    ),
    Action(
        "snooze",
        "z",
        "snooze an alert, or end its snooze",
        frozenset({"alerts"}),
        shown=3,
        short="snooze",
    ),
    Action(
        "whole_alert",
        "w",
        "full alert: problem, next step, key",
        frozenset({"alerts"}),
        shown=2,
        short="in full",
    ),
    Action("stop", "x", "end the command", OUTPUT, shown=1, short="end it"),
    Action(
        "run_again",
        "r",
        "run it again",
        OUTPUT | {"inside", "leftovers"},
        acts=True,
        shown=2,
        short="run again",
    ),
    Action("search", "slash", "search", LOG | {"script"}, shown=1),
    Action("next_match", "n", "next match", LOG | {"script"}),
    Action("previous_match", "N", "previous match", LOG | {"script"}),
    Action("follow", "f", "follow the end, or pause", LOG | CHART, shown=2, short="follow"),
    Action(
        "wrap", "w", "wrap long lines", LOG | OUTPUT | INSIDE | {"script"}, shown=5, short="wrap"
    ),
    Action("to_percent", "percent_sign", "jump by percent", LOG, shown=5, short="jump"),
    Action("to_time", "at", "jump to a time", LOG),
    Action("line_number", "number_sign", "show this line's number", LOG),
    Action("other_stream", "tab", "other stream", LOG, shown=3, short="other stream"),
    Action(
        "other_logs",
        "o",
        "logs of workers, tasks and ranks",
        LOG,
        Capability.OTHER_LOGS,
        short="other logs",
    ),
    Action("side_by_side", "s", "stdout and stderr side by side", LOG),
    Action(
        "previous_task",
        "left_square_bracket",
        "previous array task, allocation run or part of the job",
        LOG,
    ),
    Action(
        "next_task",
        "right_square_bracket",
        "next array task, allocation run or part of the job",
        LOG,
    ),
    Action(
        "diff",
        "D",
        "compare the script with another job's",
        frozenset({"job", "script"}),
        Capability.SCRIPT,
        shown=3,
        short="diff",
    ),
    Action("open_outside", "E", "open in $PAGER", LOG, shown=8, short="$PAGER"),
    Action("fold", "enter", "open or fold hpcdash's own lines", frozenset({"script"})),
    Action("edit", "E", "open a copy in $EDITOR", frozenset({"script"}), shown=8, short="$EDITOR"),
    Action("metrics", "v", "choose metrics", CHART, shown=1, short="metrics"),
    Action(
        "smoothing", "s", "smoothing: none, averages, mean, median", CHART, shown=2, short="smooth"
    ),
    Action("log_scale", "y", "logarithmic y", CHART, shown=2, short="log y"),
    Action("x_axis", "a", "x axis: step, tokens, epoch, time", CHART, shown=5, short="x axis"),
    Action("overlay", "space", "overlay other runs", CHART, shown=2, short="overlay"),
    Action("zoom_in", "plus", "zoom in", CHART | TIMELINE, shown=3, short="zoom"),
    Action("zoom_out", "minus", "zoom out", CHART | TIMELINE),
    Action("timeline_rows", "v", "rows: jobs or nodes", TIMELINE, shown=2, short="jobs/nodes"),
    Action("outliers", "o", "hide or show outliers", CHART, shown=5, short="outliers"),
    Action("point", "c", "cursor with values, moved by ← →", CHART, shown=4, short="cursor"),
    Action(
        "next_found", "n", "next anomaly (spike, NaN, stall)", CHART, shown=6, short="next anomaly"
    ),
    Action("previous_found", "N", "previous anomaly", CHART),
    Action("found", "enter", "all anomalies and the run's pace", CHART, shown=6, short="findings"),
    Action("next_panel", "tab", "next metric (for ↑ ↓)", CHART),
    Action(
        "write_chart",
        "w",
        "save the chart as CSV and SVG in the working directory",
        CHART,
        shown=6,
        short="save",
    ),
    Action("journal", "J", "journal of actions"),
    Action("sort", "o", "sort by the next column", TABLES, shown=6, short="sort"),
    Action("reverse", "O", "reverse sort", TABLES),
    Action("choose_sort", "ctrl+o", "choose the sort column", TABLES),
    Action("columns", "comma", "choose columns", TABLES, shown=7, short="columns"),
    Action(
        "copy",
        "y",
        "copy: ID, name, log, work directory, nodes, command",
        COPY_VIEWS,
        shown=11,
        short="copy",
    ),
    Action("refresh", "ctrl+r", "refresh now", shown=8, short="refresh", while_typing=True),
    Action("next_cluster", "tab", "next cluster", TABLES | USAGE | {"job", "script"}),
    Action("theme", "T", "next theme"),
    Action("themes", "f9", "choose a theme"),
    Action("to_shell", "ctrl+z", "suspend to the shell (fg returns)", while_typing=True),
    Action("tour_next", "ctrl+t", "next tour hint"),
    Action("tour_end", "ctrl+e", "end the tour"),
    Action("explain", "exclamation_mark", "full error: command, exit status, output"),
    Action(
        "palette", "ctrl+p", "command palette: all keys and commands", shown=9, short="commands"
    ),
    Action("screenshot", "f12", "save a screenshot (SVG)"),
    Action("help", "question_mark", "help for this view", shown=0, short="help"),
    Action("last_view", "minus", "last view", TABLES | USAGE | {"job", "log", "script"}),
    Action("escape", "escape", "clear input or filter, then back", short="back", while_typing=True),
    Action("back", "q", "back; quit from the first view", shown=10, short="back"),
)

ACTION_NAMES = frozenset(action.name for action in ACTIONS)


# Displayed keys by Textual's names.
_KEY_SIGNS = {
    "slash": "/",
    "colon": ":",
    "comma": ",",
    "question_mark": "?",
    "exclamation_mark": "!",
    "escape": "esc",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "percent_sign": "%",
    "number_sign": "#",
    "at": "@",
    "plus": "+",
    "minus": "-",
    "asterisk": "*",
    "greater_than_sign": ">",
    "less_than_sign": "<",
    "underscore": "_",
    "delete": "del",
}
_SIGN_KEYS = {sign: name for name, sign in _KEY_SIGNS.items()}


def key_sign(keys: str) -> str:
    """Return the display names of keys: '/ f' for 'slash,f'."""
    return " ".join(_KEY_SIGNS.get(key, key) for key in keys.split(","))


def textual_keys(written: str) -> str:
    """Translate a configured key to Textual's names ('/' is 'slash'); several join with commas."""
    if written == ",":
        return "comma"
    return ",".join(_SIGN_KEYS.get(key.strip(), key.strip()) for key in written.split(","))


def remapped(keys: Mapping[str, str], file: str = "") -> tuple[Action, ...]:
    """Apply a configuration's [keys] to the registry.

    Raises ConfigError if two actions of one view share a key.
    """
    actions, problems = _with_keys(keys, {})
    for path, text, step in problems:
        raise ConfigError(text, step, file=file, key=dotted(path))
    return actions


def configured(settings: Settings) -> tuple[Action, ...]:
    """Return the registry with a configuration's [keys], plugins, and aliases that have a key."""
    return _with_keys(settings.keys, _own_actions(settings))[0]


def key_problems(settings: Settings) -> list[tuple[KeyPath, str]]:
    """Return the problems of a configuration's keys and names, each with the path of its value."""
    _, key_clashes = _with_keys(settings.keys, _own_actions(settings))
    problems = [(path, f"{text}. {step}") for path, text, step in key_clashes]
    taken = {*ACTION_NAMES, "q", "quit"}.union(*(action.views or () for action in ACTIONS))
    for index, plugin in enumerate(settings.plugins):
        path: KeyPath = ("plugins", index, "name")
        if plugin.name in taken:
            problems.append((path, f"{plugin.name!r} is already in use"))
        elif plugin.name in settings.aliases:
            problems.append((path, f"{plugin.name!r} is already an alias"))
        taken.add(plugin.name)
    return problems


def _own_actions(settings: Settings) -> dict[KeyPath, Action]:
    """Return the configured actions by the configuration value that sets their key."""
    own: dict[KeyPath, Action] = {}
    for index, plugin in enumerate(settings.plugins):
        own["plugins", index, "key"] = Action(
            plugin.name,
            textual_keys(plugin.key),
            plugin.description or readable_command(plugin.command),
            frozenset(plugin.views),
            acts=True,
            shown=_OWN_RANK if plugin.key else None,
            short=plugin.name,
            plugin=plugin,
        )
    for name, line in settings.aliases.items():
        if name in settings.keys and name not in ACTION_NAMES:
            own["keys", name] = Action(
                name,
                textual_keys(settings.keys[name]),
                f":{line}",
                shown=_OWN_RANK,
                short=name,
                line=line,
            )
    return own


def _with_keys(
    keys: Mapping[str, str], own: Mapping[KeyPath, Action]
) -> tuple[tuple[Action, ...], list[tuple[KeyPath, str, str]]]:
    """Return the registry with these keys and the configured actions `own`, and its problems.

    A problem is the path of a value, a message, and the next step.
    """
    known = {action.name: action for action in ACTIONS}
    own_names = {action.name for action in own.values()}
    keys = {name: key for name, key in keys.items() if name not in own_names}
    problems: list[tuple[KeyPath, str, str]] = [
        (("keys", name), "no such action", f"Actions: {', '.join(known)}.")
        for name in keys
        if name not in known
    ]
    actions = tuple(
        replace(action, key=textual_keys(keys[action.name])) if action.name in keys else action
        for action in ACTIONS
    )
    # Path of the value that sets a key, its action, and the actions with which it may clash.
    set_keys: list[tuple[KeyPath, Action, Sequence[Action]]] = [
        (("keys", action.name), action, actions) for action in actions if action.name in keys
    ]
    registry = actions
    for path, action in own.items():
        set_keys.append((path, action, registry))
        registry = (*registry, action)
    for path, action, others in set_keys:
        if reserved := MOVING_KEYS & set(action.key.split(",")):
            problems.append((path, f"{min(reserved)!r} is reserved", "Choose another key."))
            continue
        clashing = [other for other in others if other is not action and _clash(other, action)]
        if clashing:
            other = clashing[0]
            text = f"{key_sign(action.key)!r} is already bound to {other.text!r} there"
            is_own = other.plugin or other.line
            step = "Choose another key." if is_own else f"Remap {other.name} too."
            problems.append((path, text, step))
    return registry, problems


def _clash(first: Action, second: Action) -> bool:
    share_view = first.views is None or second.views is None or bool(first.views & second.views)
    return share_view and bool(set(first.key.split(",")) & set(second.key.split(",")) - {""})


def help_groups(actions: Iterable[Action], view: str) -> list[tuple[str, list[Action]]]:
    """Return a view's actions by heading: of the view, of the user, of the job, of all views."""
    own = []
    configured_actions = []
    job_actions = []
    general_actions = []
    for action in actions:
        if action.plugin is not None or action.line:
            configured_actions.append(action)
        elif action.views is None:
            general_actions.append(action)
        elif (
            view != "job"
            and {"job", "jobs"} <= action.views <= JOB_LINK_VIEWS | INSIDE | ALL_CLUSTERS
        ):
            job_actions.append(action)
        else:
            own.append(action)
    if view not in JOB_TABLES:
        # Actions of all tables follow the view's own.
        own.sort(key=lambda action: action.views is not None and action.views >= TABLES)
    groups = [
        ("", own),
        ("Your own", configured_actions),
        ("Job", job_actions),
        ("Everywhere", general_actions),
    ]
    return [(heading, group) for heading, group in groups if group]


def available(
    actions: Iterable[Action], view: str, capabilities: frozenset[Capability], read_only: bool
) -> list[Action]:
    """Return the actions available in a view."""
    return [
        action
        for action in actions
        if (action.views is None or view in action.views)
        and (action.capability is None or action.capability in capabilities)
        and not (read_only and action.acts)
    ]


class OfferedActions(Struct, frozen=True):
    """Registry with the user's keys; `read_only` removes actions that change the cluster."""

    registry: tuple[Action, ...]
    read_only: bool

    def named(self, name: str) -> Action | None:
        """Return an action by name."""
        return next((action for action in self.registry if action.name == name), None)

    def here(
        self, session: ClusterSession, view_name: str, *, has_other_clusters: bool, is_touring: bool
    ) -> list[Action]:
        """Return the actions available in a view."""
        backend = session.store.backend
        hidden = set() if is_touring else {"tour_next", "tour_end"}
        if not has_other_clusters:
            hidden.add("next_cluster")
        if session.watching is None:
            hidden.add("show_alerts")
        if not session.pools:
            hidden.add("share")
        alterable = backend.actions.alterable
        return [
            replace(action, text=format_changeable(alterable))
            if action.name == "alter" and alterable
            else action
            for action in available(self.registry, view_name, backend.capabilities, self.read_only)
            if action.name not in hidden
        ]

    def key_label(self, session: ClusterSession, name: str) -> str:
        """Return an action's keys; '' if no view of this cluster has it."""
        action = self.named(name)
        if action is None or (self.read_only and action.acts) or _is_absent(session, action):
            return ""
        return key_sign(action.key)

    def why_not(self, session: ClusterSession, view_name: str, action: Action) -> str:
        """Return why an action is unavailable in a view; '' if it is available."""
        if action.views is not None and view_name not in action.views:
            return ""
        if self.read_only and action.acts:
            return f"read-only: {action.name.replace('_', ' ')} is disabled"
        if _is_absent(session, action):
            return f"{session.store.backend.name} has no {action.name.replace('_', ' ')}"
        return ""


def _is_absent(session: ClusterSession, action: Action) -> bool:
    return (
        action.capability is not None
        and action.capability not in session.store.backend.capabilities
    )


def is_form_widget(widget: Widget | None) -> bool:
    """Whether the widget is a form field, which takes all keys except those of `while_typing`."""
    return bool(getattr(widget, "takes_typing", False))


def apply_view_ranks(actions: Sequence[Action], view: View) -> list[Action]:
    """Override the actions' ranks in the key line with those of the view's current state."""
    ranks = view.key_ranks()
    return [replace(action, shown=ranks.get(action.name, action.shown)) for action in actions]


def actions_while_typing(actions: Sequence[Action]) -> list[Action]:
    """Return the actions that the key line shows while a field has the focus."""
    return [
        replace(action, shown=_SHOWN_WHILE_TYPING.get(action.name, action.shown))
        for action in actions
        if action.while_typing
    ]
