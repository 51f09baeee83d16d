"""Base class of views: pages in a cluster's stack, with crumbs, a hint and handlers do_ACTION."""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct
from rich.text import Text
from textual import on
from textual.await_remove import AwaitRemove
from textual.events import DescendantBlur, DescendantFocus
from textual.message import Message
from textual.widget import Widget

from hpcdash.backends.base import Capability
from hpcdash.domain.job_text import state_word
from hpcdash.domain.states import ACTIVE, WAITING, JobState
from hpcdash.domain.tables import Kind
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.store import Changed
from hpcdash.services.session import ClusterSession
from hpcdash.ui.workers import call_after

NOTICE_SECONDS = 5.0
# Negative ranks: keys for the selected row, which precede the keys of the view.
CHART_RANK = -1
# Terminals of this height have room for frames around the parts of a view.
FRAMED_LINES = 30
_FAILED = frozenset(
    {JobState.FAILED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY, JobState.NODE_FAILED}
)


class Targets(Struct, frozen=True):
    """Jobs to act on: IDs for the scheduler (the array's number for a whole array) and their rows.

    `rows` follow domain.schema.JOBS. `missing` are marked IDs that are no longer listed.
    """

    job_ids: tuple[str, ...] = ()
    rows: tuple[Mapping[str, Any], ...] = ()
    missing: tuple[str, ...] = ()


class View(Widget):
    """A page. While it is shown, `store_changed` notifies it of new data."""

    DEFAULT_CSS = """
    View { height: 1fr; width: 1fr; layout: vertical; }
    View .panel, View.panel { border: round $scrollbar; border-title-color: $table-dim; border-title-style: bold; }
    View .panel.-focused, View .panel.-active, View.panel:focus {
        border: round $primary; border-title-color: $primary;
    }
    """

    class CrumbsChanged(Message):
        """Crumbs, hint, marks, counts or key ranks have changed."""

    class Requested(Message):
        """Request for another view: `view` with some arguments, on top of this one."""

        def __init__(self, view: str, **arguments: object) -> None:
            super().__init__()
            self.view = view
            self.arguments = arguments

    # Set by ViewSpec.make.
    view_name: str = ""

    def __init__(self, session: ClusterSession) -> None:
        super().__init__()
        self.session = session
        # A message on a key, in place of the hint.
        self.notice = ""
        self._notice_end: TimerHandle | None = None
        # Of what the view fetches itself, beside the store.
        self._error: HpcdashError | None = None
        self._taken_at: float | None = None
        self._focused_panel: Widget | None = None

    @on(DescendantFocus)
    @on(DescendantBlur)
    def _frame_focus(self) -> None:
        """Mark the focused panel, and restyle only it: :focus-within would restyle all its
        children.
        """
        focused = self.screen.focused
        around = () if focused is None else focused.ancestors_with_self
        panels = (node for node in around if isinstance(node, Widget) and node.has_class("panel"))
        panel = next(panels, None)
        if panel is self._focused_panel:
            return
        for changed, is_focused in ((self._focused_panel, False), (panel, True)):
            if changed is not None:
                changed.set_class(is_focused, "-focused", update=False)
                self.app.stylesheet.update_nodes({changed})
        self._focused_panel = panel

    @property
    def is_live(self) -> bool:
        """Whether its widgets exist; Textual calls a view mounted only after on_mount.

        A view that is being removed loses its innermost widgets first.
        """
        return self.is_attached and not (self._pruning or self._closing) and bool(self.children)

    def remove(self) -> AwaitRemove:
        """Remove the view, and cancel its workers first: Textual would let them run until then."""
        for node in self.walk_children(with_self=True):
            self.workers.cancel_node(node)
        return super().remove()

    def whose(self, *, everyone: bool) -> tuple[str, ...]:
        """Return a crumb for the owners of the shown jobs; () where jobs have no owners."""
        if Capability.OWNERS not in self.session.store.backend.capabilities:
            return ()
        return ("everyone's" if everyone else "mine",)

    def now(self) -> datetime:
        """Return the cluster's time; in a recording it is frozen."""
        return datetime.fromtimestamp(self.session.store.clock.now(), UTC)

    @property
    def kinds(self) -> frozenset[Kind]:
        """Tables to poll while this view is shown."""
        return frozenset()

    @property
    def main_kind(self) -> Kind | None:
        """The table whose age and error the status line shows for this view."""
        return None

    @property
    def own_error(self) -> HpcdashError | None:
        """Error of what the view fetches itself, which has precedence over the store's."""
        return self._error

    def crumbs(self) -> Sequence[str]:
        return ()

    def way_crumb(self) -> str:
        """Return its crumb while another view is on top of it."""
        return " ".join(self.crumbs()[:1])

    def hint(self) -> str:
        return ""

    @property
    def has_hint(self) -> bool:
        """Whether the screen shows its hint in a line; False if the view shows it itself."""
        return True

    def counts(self) -> tuple[str, str]:
        """Return the counts by state of the shown rows: a long text, and a short one with signs."""
        return "", ""

    @property
    def counts_own_jobs(self) -> bool:
        """Whether `counts` cover all of the user's own jobs."""
        return False

    def pointed_job(self) -> str | None:
        """Return the ID of the selected or opened job, if any; the array's number for a whole
        array.
        """
        return None

    def targets(self) -> Targets:
        """Return the targets of an action: the marked rows, else the one under the cursor."""
        return Targets()

    def cluster_targets(self, session: ClusterSession) -> Sequence[tuple[ClusterSession, Targets]]:
        """Return the targets on each cluster; `session` is the shown one, by default the only."""
        return ((session, self.targets()),)

    def clear_marks(self) -> None:
        """Clear the marks after an action on them."""

    def help_moving(self) -> Sequence[tuple[str, str]]:
        """Return the navigation keys and their meaning in this view."""
        return (("↑ ↓ j k", "move"), ("pgup pgdn home end", "further"))

    def help_signs(self) -> Text:
        """Return a line per sign of this view with its meaning; none if they are self-
        explanatory.
        """
        return Text()

    def switch_jobs(self) -> tuple[str, ...]:
        """Return the jobs whose kill or save switch is selected."""
        return self.targets().job_ids or tuple(filter(None, [self.pointed_job()]))

    def against_save(self) -> str:
        """Return why the job of switch_jobs should not save now; '' if it may."""
        return ""

    def key_ranks(self) -> Mapping[str, int | None]:
        """Return ranks in the key line that override Action.shown in the current state; None hides
        one.
        """
        return {}

    def marks(self) -> int:
        return 0

    def taken_at(self) -> float | None:
        """Return the time of the shown data in epoch seconds; None without data."""
        if self.main_kind is None:
            return self._taken_at
        snapshot = self.session.store.snapshots.get(self.main_kind)
        return None if snapshot is None else snapshot.taken_at

    def show_notice(self, text: str) -> None:
        """Show a message on a key in place of the hint for NOTICE_SECONDS; '' clears it."""
        if self._notice_end is not None:
            self._notice_end.cancel()
        self.notice = text
        self.post_message(self.CrumbsChanged())
        end = call_after(self, NOTICE_SECONDS, lambda: self.show_notice("")) if text else None
        self._notice_end = end

    def store_changed(self, changed: Changed) -> None:
        """Called when the store has new data."""

    def notes_changed(self) -> None:
        """Called when a pin, note, bookmark or node finding has changed."""

    def tick(self) -> None:
        """Called once a second."""

    def shown(self) -> None:
        """Called when this view is on top again."""

    def take_focus(self) -> None:
        """Focus the main widget."""

    def chosen(self) -> dict[str, object]:
        """Return the user's choices in this view: fields of services.state.choices.Choices.

        `columns` and `sort` are this view's own.
        """
        return {}

    def keep_typed(self) -> None:
        """Called when the program is terminated: save unfinished input for the next start."""

    def do_escape(self) -> bool:
        """Clear input or filter; return False if there is nothing to clear and the view should
        close.
        """
        return False


def row_ranks(row: Mapping[str, Any] | None, *, is_training: bool = False) -> Mapping[str, int]:
    """Return negative ranks for the actions that matter for a job in its state, most useful
    first.
    """
    names = () if row is None else _row_actions(row, is_training)
    return {name: place - len(names) for place, name in enumerate(names)}


def _row_actions(row: Mapping[str, Any], is_training: bool) -> tuple[str, ...]:
    state = str(row["state"])
    if states := row.get("_states"):
        has_failed = any(state_word(failed) in states for failed in _FAILED)
        return ("triage", "submit_again", "fold") if has_failed else ("fold", "cancel", "detail")
    if state == JobState.HELD:
        return ("hold", "detail", "cancel", "alter")
    if state in WAITING:
        return ("detail", *(("chain",) if row["dependency"] else ()), "cancel", "hold", "alter")
    if state in ACTIVE:
        switches = ("kill_switch", "save_switch") if is_training else ()
        return ("log", "chart", *switches, "cancel", "detail")
    has_begun = row["started_at"] is not None or row["elapsed_seconds"]
    # Usually several tasks of an array fail.
    failures = ("triage",) if row["array_id"] and state in _FAILED else ()
    charts = ("chart",) if has_begun else ()
    if state in _FAILED:
        return ("log", "error_log", *failures, "submit_again", *charts)
    return ("log", *charts, "detail", "submit_again")
