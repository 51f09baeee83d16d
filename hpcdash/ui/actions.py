"""The one registry of what a person can do, and which of it is on offer: keys, palette, help and key line follow it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from textual.widget import Widget

from hpcdash.backends.base import Capability
from hpcdash.errors import ConfigError
from hpcdash.services.jobs.action_text import format_changeable
from hpcdash.services.session import ClusterSession
from hpcdash.ui.view import View

TABLES = frozenset({"jobs", "nodes", "queues", "history", "clusters", "node", "journal", "triage", "chain", "alerts"})
ROOT_TABLES = frozenset({"jobs", "nodes", "queues", "history"})
JOB_TABLES = frozenset({"jobs", "history", "node"})
# Where one job is pointed at, or shown; and where something is done to it.
OF_A_JOB = JOB_TABLES | {"job", "log", "script", "triage", "chain", "chart"}
# What is wrong with a job leads to it; nothing is done to it from there.
LEADS_TO_A_JOB = OF_A_JOB | {"alerts"}
# What ended cannot be stopped, held or changed.
OF_A_LIVING_JOB = OF_A_JOB - {"triage"}
LOG = frozenset({"log"})
FORM = frozenset({"submit"})
CHART = frozenset({"chart"})
COPIED_FROM = TABLES | {"job", "log", "script", "submit"}
# Those that move the cursor, and Textual's own for palette and quitting: no action can have them.
MOVING_KEYS = frozenset(
    {"up", "down", "left", "right", "j", "k", "pageup", "pagedown", "home", "end"}
    | {"shift+up", "shift+down", "ctrl+p", "ctrl+q", "ctrl+c"}
)
# Where `?` is typed there has to be another way to the help, and a way out.
_SHOWN_WHILE_TYPING = {"form_help": 0, "escape": 4}


@dataclass(frozen=True, slots=True)
class Action:
    """Something a key does. `views` None: everywhere; `capability`: only where the scheduler has it.

    `acts` marks what changes something on the cluster: read-only mode takes it away. `shown` ranks it for the key
    line, lower first; None keeps it to help and palette. `short` is
    what the key line says. `while_typing`: in a field of a form too, where other keys are the field's.
    """

    name: str
    key: str
    words: str
    views: frozenset[str] | None = None
    capability: Capability | None = None
    acts: bool = False
    shown: int | None = None
    short: str = ""
    while_typing: bool = False


ACTIONS: tuple[Action, ...] = (
    Action("show_jobs", "1", "jobs", capability=Capability.JOBS),
    Action("show_nodes", "2", "nodes", capability=Capability.NODES),
    Action("show_queues", "3", "queues", capability=Capability.QUEUES),
    Action("show_history", "4", "history", capability=Capability.HISTORY),
    Action("show_alerts", "5", "alerts: what the watchdogs find wrong", short="alerts"),
    Action("show_clusters", "6", "clusters and their connections", short="clusters"),
    Action("open", "enter", "open: job, node, queue, array", TABLES, shown=1, short="open"),
    Action("filter", "slash", "filter", TABLES, shown=2),
    Action("bookmark", "B", "bookmark the filter, or no more", ROOT_TABLES),
    Action("next_bookmark", "greater_than_sign", "the next bookmarked filter", ROOT_TABLES),
    Action("previous_bookmark", "less_than_sign", "the bookmarked filter before", ROOT_TABLES),
    Action("command", "colon", "command: a view, a filter, an action", shown=9, short="command"),
    Action("mine", "m", "mine / everyone's", frozenset({"jobs", "history"}), shown=3, short="mine/all"),
    Action("fold", "a", "fold or unfold arrays", JOB_TABLES, shown=5, short="fold"),
    Action(
        "detail",
        "d",
        "everything the scheduler says of it",
        JOB_TABLES | {"job", "alerts"},
        Capability.DETAIL,
        shown=4,
        short="details",
    ),
    Action("mark", "space", "mark", TABLES),
    Action("mark_all", "ctrl+a", "mark all rows shown, or none of them", TABLES),
    Action("invert_marks", "asterisk", "invert the marks of the rows shown", TABLES),
    Action("unmark", "u", "clear all marks", TABLES),
    Action("log", "l", "log: stdout", LEADS_TO_A_JOB, Capability.LOGS, shown=3, short="log"),
    Action("error_log", "e", "log: stderr", LEADS_TO_A_JOB, Capability.LOGS),
    # Views show it in the key line for a job that may have written something.
    Action("chart", "g", "chart of the metrics in the log", LEADS_TO_A_JOB - CHART, Capability.LOGS, short="chart"),
    Action("script", "b", "batch script", LEADS_TO_A_JOB - {"script"}, Capability.SCRIPT, shown=6, short="script"),
    Action("triage", "t", "an array's ended tasks by how they ended", JOB_TABLES | {"job"}, Capability.HISTORY),
    Action(
        "chain",
        "c",
        "the chain a job is in: those before and after it",
        JOB_TABLES | {"job", "alerts"},
        Capability.JOBS,
    ),
    Action("cancel", "x", "cancel (asks)", OF_A_LIVING_JOB, Capability.CANCEL, acts=True, shown=3, short="cancel"),
    Action(
        "hold", "h", "hold, or release what is held", OF_A_LIVING_JOB, Capability.HOLD, acts=True, shown=7, short="hold"
    ),
    Action("requeue", "r", "requeue (asks)", OF_A_JOB, Capability.REQUEUE, acts=True),
    Action("suspend", "p", "suspend, or resume what is suspended", OF_A_LIVING_JOB, Capability.SUSPEND, acts=True),
    Action("signal", "z", "send a signal", OF_A_LIVING_JOB, Capability.SIGNAL, acts=True),
    Action(
        "alter", "A", "change time limit, queue, QoS, nice or throttle", OF_A_LIVING_JOB, Capability.ALTER, acts=True
    ),
    Action("kill_switch", "K", "kill switch: save and end", OF_A_LIVING_JOB, Capability.DETAIL, acts=True),
    Action(
        "save_switch",
        "S",
        "save switch: save and go on",
        OF_A_LIVING_JOB,
        Capability.DETAIL,
        acts=True,
        short="save switch",
    ),
    Action("submit_again", "R", "submit again (an array: its failed tasks)", OF_A_JOB, Capability.SUBMIT, acts=True),
    Action("pin", "P", "pin to the top of the table, or no more", JOB_TABLES | {"job"}),
    Action("note", "N", "note on the job, kept on this machine", JOB_TABLES | {"job"}),
    Action("open_shell", "W", "shell in the job's work dir, on the cluster", OF_A_JOB, acts=True, short="shell"),
    Action("new", "n", "new submission", TABLES | {"job"}, Capability.SUBMIT, acts=True, shown=5, short="new"),
    Action(
        "submit_form",
        "ctrl+j",
        "look once more, and submit (asks)",
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
        "the script, what changed since the last, the form",
        FORM,
        shown=2,
        short="script",
        while_typing=True,
    ),
    Action(
        "start_from",
        "ctrl+l",
        "start from a recent one, a template, an empty form",
        FORM,
        shown=3,
        short="recent",
        while_typing=True,
    ),
    Action(
        "other_way",
        "ctrl+n",
        "a batch script as it is, or back to a command",
        FORM,
        shown=5,
        short="batch script",
        while_typing=True,
    ),
    Action("form_help", "f1", "help for this form", FORM, short="help", while_typing=True),
    Action("keep", "ctrl+g", "keep as a template", FORM, shown=5, short="keep", while_typing=True),
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
        "edit what the next element runs, where it is a stub",
        frozenset({"chain"}),
        Capability.SCRIPT,
        acts=True,
        shown=8,
        short="edit next",
    ),
    Action("mark_failed", "f", "mark the failed", frozenset({"triage"}), shown=1, short="mark failed"),
    Action("snooze", "z", "silence an alert for a while, or no more", frozenset({"alerts"}), shown=3, short="silence"),
    Action(
        "whole_alert",
        "w",
        "the whole alert: what is wrong, what to do, its key",
        frozenset({"alerts"}),
        shown=2,
        short="in full",
    ),
    Action("search", "slash", "search", LOG | {"script"}, shown=1),
    Action("next_match", "n", "next match", LOG | {"script"}),
    Action("previous_match", "N", "previous match", LOG | {"script"}),
    Action("follow", "f", "follow the end, or stay", LOG | CHART, shown=2, short="follow"),
    Action("wrap", "w", "wrap long lines", LOG | {"script"}, shown=5, short="wrap"),
    Action("to_percent", "percent_sign", "jump by percent", LOG, shown=5, short="jump"),
    Action("to_time", "at", "jump to a time", LOG),
    Action("line_number", "number_sign", "count which line of the file this is", LOG),
    Action("other_stream", "tab", "the other stream", LOG, shown=3, short="other stream"),
    Action("side_by_side", "s", "both streams side by side", LOG),
    Action("previous_task", "left_square_bracket", "the previous array task", LOG),
    Action("next_task", "right_square_bracket", "the next array task", LOG),
    Action(
        "diff",
        "D",
        "how the script differs from another job's",
        frozenset({"job", "script"}),
        Capability.SCRIPT,
        shown=3,
        short="diff",
    ),
    Action("open_outside", "E", "open in $PAGER", LOG, shown=8, short="$PAGER"),
    Action("edit", "E", "open a copy in $EDITOR", frozenset({"script"}), shown=8, short="$EDITOR"),
    Action("metrics", "v", "choose metrics", CHART, shown=1, short="metrics"),
    Action("smoothing", "s", "smoothing: none, averages, mean, median", CHART, shown=2, short="smooth"),
    Action("log_scale", "y", "logarithmic y", CHART, shown=2, short="log y"),
    Action("x_axis", "a", "x axis: step, tokens, epoch, time", CHART, shown=5, short="x axis"),
    Action("overlay", "space", "other runs over this one", CHART, shown=2, short="overlay"),
    Action("zoom_in", "plus", "zoom in", CHART, shown=3, short="zoom"),
    Action("zoom_out", "minus", "zoom out", CHART),
    Action("outliers", "o", "leave outliers out, or show them", CHART, shown=5, short="outliers"),
    Action("point", "c", "values at a cursor, moved by ← →", CHART, shown=4, short="cursor"),
    Action("next_found", "n", "to the next that stands out: spike, nan, stall", CHART, shown=6, short="next sign"),
    Action("previous_found", "N", "to the one before", CHART),
    Action("found", "enter", "all that stands out, and how the run goes", CHART, shown=6, short="findings"),
    Action("next_panel", "tab", "the next metric, for ↑ ↓", CHART),
    Action(
        "write_chart", "w", "write what is shown: CSV and SVG, into the working folder", CHART, shown=6, short="write"
    ),
    Action("journal", "J", "journal: what was done from here"),
    Action("sort", "o", "sort by the next column", TABLES, shown=6, short="sort"),
    Action("reverse", "O", "reverse the order", TABLES),
    Action("columns", "comma", "choose columns", TABLES, shown=7, short="columns"),
    Action("copy", "y", "copy: id, name, log, work dir, nodes, command", COPIED_FROM, shown=11, short="copy"),
    Action("ask_now", "ctrl+r", "ask the scheduler now", shown=8, short="ask now", while_typing=True),
    Action("next_cluster", "tab", "next cluster", TABLES | {"job", "script"}),
    Action("theme", "T", "next theme"),
    Action("to_shell", "ctrl+z", "to the shell; fg comes back", while_typing=True),
    Action("tour_next", "ctrl+t", "the tour's next hint"),
    Action("tour_end", "ctrl+e", "end the tour"),
    Action("explain", "exclamation_mark", "the whole error: command, status, its own words"),
    Action("help", "question_mark", "help for this view", shown=0, short="help"),
    Action("escape", "escape", "clear what is typed or filtered, then back", short="back", while_typing=True),
    Action("back", "q", "back; quit from the first view", shown=10, short="back"),
)

ACTION_NAMES = frozenset(action.name for action in ACTIONS)


# How keys are written on the screen; the names are Textual's.
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
}
_SIGN_KEYS = {sign: name for name, sign in _KEY_SIGNS.items()}


def key_sign(keys: str) -> str:
    """Keys as a person would name them: 'slash,f' is '/ f'."""
    return " ".join(_KEY_SIGNS.get(key, key) for key in keys.split(","))


def textual_keys(written: str) -> str:
    """What a configuration calls a key, in Textual's names: '/' is 'slash'; several are joined with commas."""
    if written == ",":
        return "comma"
    return ",".join(_SIGN_KEYS.get(key.strip(), key.strip()) for key in written.split(","))


# What actions were called before, still taken where a person types or configures them.
OLD_NAMES = {"train": "chain"}


def remapped(keys: Mapping[str, str], file: str = "") -> tuple[Action, ...]:
    """The registry with a configuration's [keys]; raises ConfigError where two actions of one view share a key."""
    known = {action.name: action for action in ACTIONS}
    keys = {OLD_NAMES.get(name, name): key for name, key in keys.items()}
    for name in keys:
        if name not in known:
            raise ConfigError(
                "no action has this name", f"The actions: {', '.join(known)}.", file=file, key=f"keys.{name}"
            )
    actions = tuple(
        replace(action, key=textual_keys(keys[action.name])) if action.name in keys else action for action in ACTIONS
    )
    for name in keys:
        if kept := MOVING_KEYS & set(textual_keys(keys[name]).split(",")):
            raise ConfigError(
                f"{min(kept)!r} moves the cursor, or is the program's own",
                "Take another key.",
                file=file,
                key=f"keys.{name}",
            )
        taken = next(
            (
                other
                for other in actions
                if other.name != name and _clash(other, next(a for a in actions if a.name == name))
            ),
            None,
        )
        if taken is not None:
            raise ConfigError(
                f"{keys[name]!r} already means {taken.words!r} there",
                f"Remap {taken.name} too.",
                file=file,
                key=f"keys.{name}",
            )
    return actions


def _clash(one: Action, other: Action) -> bool:
    same_view = one.views is None or other.views is None or bool(one.views & other.views)
    return same_view and bool(set(one.key.split(",")) & set(other.key.split(",")))


def help_groups(actions: Iterable[Action], view: str) -> list[tuple[str, list[Action]]]:
    """A view's actions under their headings: its own first, then those of its job, then those of every view."""
    own, of_a_job, everywhere = [], [], []
    for action in actions:
        if action.views is None:
            everywhere.append(action)
        elif view != "job" and "job" in action.views and "jobs" in action.views and action.views <= LEADS_TO_A_JOB:
            of_a_job.append(action)
        else:
            own.append(action)
    # What few views have says most of the view; the rest stays in the order of the registry.
    own.sort(key=lambda action: action.views is not None and action.views >= TABLES and view not in JOB_TABLES)
    groups = [("", own), ("the job", of_a_job), ("everywhere", everywhere)]
    return [(heading, group) for heading, group in groups if group]


def available(
    actions: Iterable[Action], view: str, capabilities: frozenset[Capability], read_only: bool
) -> list[Action]:
    """The actions a person has in a view."""
    return [
        action
        for action in actions
        if (action.views is None or view in action.views)
        and (action.capability is None or action.capability in capabilities)
        and not (read_only and action.acts)
    ]


@dataclass(frozen=True, slots=True)
class OfferedActions:
    """A registry with a person's keys; `read_only` takes away all that acts on the cluster."""

    registry: tuple[Action, ...]
    read_only: bool

    def named(self, name: str) -> Action | None:
        """An action of any view."""
        return next((action for action in self.registry if action.name == name), None)

    def here(
        self, session: ClusterSession, view_name: str, *, has_other_clusters: bool, is_touring: bool
    ) -> list[Action]:
        """What a person can do in a view."""
        backend = session.store.backend
        hidden = set() if is_touring else {"tour_next", "tour_end"}
        if not has_other_clusters:
            hidden.add("next_cluster")
        if session.watching is None:
            hidden.add("show_alerts")
        alterable = backend.actions.alterable
        return [
            replace(action, words=format_changeable(alterable)) if action.name == "alter" and alterable else action
            for action in available(self.registry, view_name, backend.capabilities, self.read_only)
            if action.name not in hidden
        ]

    def key_sign_of(self, session: ClusterSession, name: str) -> str:
        """An action's keys; '' for what no view of this cluster can do."""
        action = self.named(name)
        if action is None or (self.read_only and action.acts) or _is_absent(session, action):
            return ""
        return key_sign(action.key)

    def why_not(self, session: ClusterSession, view_name: str, action: Action) -> str:
        """Why an action of this view cannot be done at all; '' where that is not so."""
        if action.views is not None and view_name not in action.views:
            return ""
        if self.read_only and action.acts:
            return f"read-only: {action.name.replace('_', ' ')} is taken away"
        if _is_absent(session, action):
            return f"{session.store.backend.name} has no {action.name.replace('_', ' ')}"
        return ""


def _is_absent(session: ClusterSession, action: Action) -> bool:
    return action.capability is not None and action.capability not in session.store.backend.capabilities


def is_of_a_form(widget: Widget | None) -> bool:
    """Whether keys are a field's of a view's form, all but those that are meant for it while one types."""
    return bool(getattr(widget, "takes_typing", False))


def ranked(actions: Sequence[Action], view: View) -> list[Action]:
    """With the ranks that a view gives some as things stand."""
    ranks = view.key_ranks()
    return [replace(one, shown=ranks.get(one.name, one.shown)) for one in actions]


def obeyed_while_typing(actions: Sequence[Action]) -> list[Action]:
    """What the line of keys tells in a field."""
    return [replace(one, shown=_SHOWN_WHILE_TYPING.get(one.name, one.shown)) for one in actions if one.while_typing]
