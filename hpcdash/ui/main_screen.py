"""The one screen of the dashboard: breadcrumb, banner, the view one is in, hint, status and keys
around it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, cast

import msgspec
from msgspec.structs import replace
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingsMap
from textual.containers import Container
from textual.widgets import Input

from hpcdash.backends.base import Capability
from hpcdash.domain.job_ids import parse_array_id
from hpcdash.domain.states import ACTIVE, ENDED, JobState
from hpcdash.domain.tables import Kind
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.store import Changed
from hpcdash.services.jobs.tracker import JobEvent
from hpcdash.services.session import ClusterSession
from hpcdash.services.state.choices import Choices
from hpcdash.ui.actions import (
    FORM,
    Action,
    OfferedActions,
    actions_while_typing,
    apply_view_ranks,
    is_form_widget,
)
from hpcdash.ui.cluster.header import MIN_COLUMNS, MIN_LINES, ClusterHeader
from hpcdash.ui.cluster.wall import SlotWall
from hpcdash.ui.command_line import CommandLine
from hpcdash.ui.screen import DashboardScreen
from hpcdash.ui.status import (
    announcements,
    beginning,
    format_left_out,
    format_login,
    format_meanwhile,
    shown_error,
    shown_snapshot,
    status_parts,
)
from hpcdash.ui.view import View
from hpcdash.ui.views import SPECS
from hpcdash.ui.watch.announcer import AlertAnnouncer
from hpcdash.ui.widgets.command_bar import CommandBar
from hpcdash.ui.widgets.hints import Notice, Tour
from hpcdash.ui.widgets.lines import Banner, Breadcrumb, ClickableLine, Hint, KeyLine, StatusLine

if TYPE_CHECKING:
    from hpcdash.config.plugins import SiteCommand
    from hpcdash.services.watch.alerts import AlertEvent
    from hpcdash.ui.handlers import Handlers
    from hpcdash.ui.screen import DashboardApp

_NEWS_SECONDS = 3.0
_BAD_NEWS_SECONDS = 8.0
_NOTICE_LINES = 3
# The wall of slots stands over the jobs on a terminal of this size, in so many lines at most.
_WALL_COLUMNS, _WALL_LINES = 120, 40
_WALL_OVER_JOBS, _WALL_OVER_NODES = 5, 12
# A person's settings for these views also apply where they are pushed.
_CONFIGURED = ("jobs", "history", "chart")


class MainScreen(DashboardScreen, inherit_bindings=False):
    """Keeps a stack of views for each cluster, and what is around them up to date."""

    DEFAULT_CSS = """
    MainScreen { layout: vertical; }
    MainScreen > #views { height: 1fr; }
    """

    def __init__(
        self,
        sessions: list[ClusterSession],
        actions: tuple[Action, ...],
        *,
        read_only: bool = False,
        first: str = "jobs",
        aliases: Mapping[str, str] | None = None,
        filters: Mapping[str, str] | None = None,
        withheld: frozenset[str] = frozenset(),
        site_commands: Callable[[], Sequence[SiteCommand]] = tuple,
        view_arguments: Callable[[str], dict[str, object]] = lambda view: {},
        tour_ended: Callable[[], None] = lambda: None,
        typed: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """`typed` is what was entered in earlier runs after '/' and ':' and to be run in jobs, the
        newest last.
        """
        super().__init__()
        self.sessions = sessions
        self.offered = OfferedActions(actions, read_only)
        self.set_actions(actions)
        self.command_line = CommandLine(self, aliases or {}, filters)
        self._withheld = withheld
        self._site_commands = site_commands
        for mode, lines in (typed or {}).items():
            for line in lines:
                self.command_line.bar.remember(mode, line)
        self._announcer = AlertAnnouncer(self)
        self._first = first
        self._tour = Tour(self.key_label, tour_ended, self._tour_place)
        self._stacks = ViewStacks(sessions, view_arguments)
        # Hosts' output at the login by cluster, once it was shown.
        self._login_texts: dict[str, str] = {}

    def set_actions(self, actions: tuple[Action, ...]) -> None:
        """Set the actions and their keys, which precede those of the focused widget.

        A key is then handled when it arrives and not after a way through the widgets: keys typed
        ahead, in one burst or over a slow connection, do what they would have done one at a time.
        """
        self.offered = replace(self.offered, registry=actions)
        self._bindings = BindingsMap(
            Binding(action.key, f"act({action.name!r})", action.text, show=False, priority=True)
            for action in actions
            if action.key
        )

    def configure(
        self, actions: tuple[Action, ...], aliases: Mapping[str, str], filters: Mapping[str, str]
    ) -> None:
        """Apply the present configuration."""
        self.set_actions(actions)
        self.command_line.configure(aliases, filters)
        self._around()

    # -- sessions and views

    @property
    def session(self) -> ClusterSession:
        return self._stacks.session

    @property
    def stack(self) -> list[View]:
        return self._stacks.stack

    @property
    def view(self) -> View:
        return self._stacks.view

    @property
    def view_name(self) -> str:
        return self._stacks.view_name

    def compose(self) -> ComposeResult:
        yield Breadcrumb()
        yield Banner()
        yield ClusterHeader()
        yield SlotWall()
        yield Container(id="views")
        yield Notice()
        yield self._tour
        yield Hint()
        yield self.command_line.listed
        yield self.command_line.bar
        yield StatusLine()
        yield KeyLine()

    async def on_mount(self) -> None:
        await self.go(self._first)
        for session in self.sessions:
            session.store.listen(partial(self._on_store_change, session))
            if self.offered.read_only:
                continue
            session.launches.follow(partial(self._session_notified, session))
        self.set_interval(1.0, self._tick)
        self.call_after_refresh(self._drawn)

    def _session_notified(self, session: ClusterSession, text: str) -> None:
        """Show a launch's notification, of a removed folder or node findings; refresh the view."""
        self.notice(text)
        if session is self.session:
            self.view.notes_changed()

    def _drawn(self) -> None:
        """The first table is on the screen: now is the time for what it does not need."""
        if not self.offered.read_only:
            for session in self.sessions:
                self.handlers.submit.reconcile_earlier(session)

    @cached_property
    def handlers(self) -> Handlers:
        from hpcdash.ui.handlers import Handlers

        return Handlers(self, self._withheld, self._site_commands)

    def on_resize(self) -> None:
        if self.stack:
            self._poll_shown()
        self.call_after_refresh(self._around)

    def chosen(self, before: Choices) -> Choices:
        """Return the person's choices in the shown cluster's views, and the typed history.

        Views that were not opened keep their choices of `before`.
        """
        by_view = {name: view.chosen() for name, view in self._stacks.root_views().items()}
        job_rules = by_view.get("jobs", {})
        fields = {
            name: value for name, value in job_rules.items() if name not in ("columns", "sort")
        }
        for key, earlier in (("columns", before.columns), ("sort", before.sort)):
            unopened = {name: value for name, value in earlier.items() if name not in by_view}
            fields[key] = unopened | {
                name: chosen[key] for name, chosen in by_view.items() if key in chosen
            }
        from hpcdash.ui.inside.actions import MODE

        fields["typed"] = {
            mode: tuple(self.command_line.bar.mode_history(mode)) for mode in ("/", ":", MODE)
        }
        return msgspec.convert(
            {**msgspec.structs.asdict(before), **fields, "theme": self.app.theme}, Choices
        )

    def keep_typed(self) -> None:
        """Have each view keep what was typed there, for the next time."""
        for view in self.query(View):
            view.keep_typed()

    # -- moving between views

    async def go(self, name: str, /, **arguments: object) -> None:
        """A root view: back to it where it is on the way here, else on top, so that one can go
        back.
        """
        await self._show_stack(self._stacks.to_root(name, arguments))

    async def push(self, name: str, /, **arguments: object) -> None:
        """A view on top of the one that is shown."""
        await self._show_stack(self._stacks.with_new(name, arguments))

    async def pop(self) -> bool:
        """Back one step; False at the first view."""
        if len(self.stack) <= 1:
            return False
        await self._show_stack(self.stack[:-1])
        return True

    async def show_last(self) -> None:
        if (stack := self._stacks.last()) is not None:
            await self._show_stack(stack)

    async def _show_stack(self, stack: list[View]) -> None:
        left_behind = self._stacks.put(stack)
        views = self.query_one("#views", Container)
        for view in left_behind:
            await view.remove()
        for other in views.children:
            other.display = other is stack[-1]
        if stack[-1].is_live:
            stack[-1].shown()
        else:
            # The app may be left before the view is mounted, or while it is.
            if not views.is_attached:
                return
            await views.mount(stack[-1])
            if not stack[-1].is_attached:
                return
            stack[-1].take_focus()
        self._poll_shown()
        self._around()

    def _poll_shown(self) -> None:
        """Make the poller fetch only the shown data."""
        in_passing = {Kind.NODES} if self._wall_lines else set()
        self.session.poller.show(self.view.kinds | self._header_kinds, in_passing)

    @property
    def _header_kinds(self) -> set[Kind]:
        """Tables that the header needs; shares only where the probe found accounting."""
        if not self._has_header:
            return set()
        probe = self.session.store.probe
        has = self.session.store.backend.capabilities
        has_accounting = probe is not None and bool(probe.has_accounting)
        requested = {
            Kind.QUEUES: Capability.QUEUES in has,
            Kind.SHARES: Capability.SHARES in has and has_accounting,
        }
        return {kind for kind, is_requested in requested.items() if is_requested}

    @property
    def _has_header(self) -> bool:
        """Whether the queues' gauges stand over the view."""
        is_large = self.size.width >= MIN_COLUMNS and self.size.height >= MIN_LINES
        return is_large and self.view_name == "jobs"

    @property
    def _wall_lines(self) -> int:
        """Most lines of slots over the view; 0 where there is no room, or nothing to poll yet."""
        store = self.session.store
        if Capability.NODES not in store.backend.capabilities or Kind.MINE not in store.snapshots:
            return 0
        columns, lines = self.size
        if self.view_name == "nodes":
            return _WALL_OVER_NODES if lines >= MIN_LINES else 0
        has_room = columns >= _WALL_COLUMNS and lines >= _WALL_LINES
        return _WALL_OVER_JOBS if has_room and self.view_name == "jobs" else 0

    async def switch(self, position: int) -> None:
        """Switch to another cluster, in its last view.

        Of the one left only one's own jobs are polled.
        """
        self.session.poller.show(())
        self._stacks.switch(position)
        self.session.poller.start()
        if self.stack:
            await self._show_stack(self.stack)
        else:
            # Read before the first answer is there, which is compared with it.
            self.session.store.load_cached((Kind.MINE,))
            await self.go("jobs")

    async def switch_to_next(self) -> None:
        if len(self.sessions) > 1:
            await self.switch(self._stacks.next_position)

    # -- header, status and notifications

    def _on_store_change(self, session: ClusterSession, changed: Changed) -> None:
        """Called by the store's poller: the rest is done in the screen's own turn."""
        self.call_later(self._store_changed, session, changed)

    def _store_changed(self, session: ClusterSession, changed: Changed) -> None:
        if not self.is_running:
            return
        if session is self.session and self.stack:
            self.view.store_changed(changed)
        if any({event.before, event.after} & ACTIVE for event in changed.events):
            session.poller.passing_changed()
        self._announce(session, changed.events)
        self._announcer.judge(session, changed)
        self._around()

    def _announce(self, session: ClusterSession, events: Sequence[JobEvent]) -> None:
        where = f" on {session.store.title}"
        ended = announcements([event for event in events if event.after in ENDED])
        if ended:
            cast("DashboardApp", self.app).notify_desktop(
                "; ".join(text + where for text, _ in ended)
            )
        # The result of a cancellation from here was reported.
        own = self.handlers.runner.cancelled if "handlers" in vars(self) else frozenset()
        events = [
            event
            for event in events
            if event.after != JobState.CANCELLED
            or own.isdisjoint(
                {(session.name, event.job_id), (session.name, parse_array_id(event.job_id))}
            )
        ]
        for text, is_bad in announcements(events):
            self.notify(
                text + where,
                severity="warning" if is_bad else "information",
                timeout=_BAD_NEWS_SECONDS if is_bad else _NEWS_SECONDS,
                markup=False,
            )

    def _tick(self) -> None:
        if self.stack:
            self.view.tick()
            self._show_wall()
            self._status()
            self._show_login_message()

    def _show_wall(self) -> None:
        """Draw the wall; rows get the letters that it gives to jobs."""
        if self.query_one(SlotWall).show(self.session.store, lines=self._wall_lines):
            self.view.notes_changed()

    def _show_login_message(self) -> None:
        """A host's banner, for a while and once, where the login was too quick to read it."""
        health = self.session.store.transport.health
        if health.state == "connected" and health.text != self._login_texts.get(
            self.session.name, ""
        ):
            self._login_texts[self.session.name] = health.text
            self.notice(beginning(health.text, _NOTICE_LINES))

    @on(View.CrumbsChanged)
    def _crumbs_changed(self, event: View.CrumbsChanged) -> None:
        event.stop()
        if self.stack:
            self._poll_shown()
        self._around()

    def _around(self) -> None:
        if not self.stack or not self.is_running:
            return
        view = self.view
        self._tour.update_hint()
        self.query_one(ClusterHeader).show(
            self.session.store, is_requested=self._has_header, has_counts=not view.counts_own_jobs
        )
        self._show_wall()
        actions = self.actions()
        views = [action for action in actions if action.name.startswith("show_")]
        self.query_one(Breadcrumb).show(
            self._stacks.crumbs(), view.marks(), views, f"show_{self.view_name}"
        )
        hint = self.query_one(Hint)
        hint.display = view.has_hint
        hint.show(view.hint())
        is_typing = is_form_widget(self.focused)
        self.query_one(KeyLine).show(
            actions_while_typing(actions) if is_typing else apply_view_ranks(actions, view)
        )
        self._status()

    @property
    def error(self) -> HpcdashError | None:
        """Error of the shown data; None for none."""
        return shown_error(self.session, self.view)

    def _banner(self) -> None:
        banner = self.query_one(Banner)
        error = self.error
        snapshot = shown_snapshot(self.session, self.view)
        if text := format_login(self.session):
            banner.notice(text)
        elif error is not None:
            banner.show(error, format_meanwhile(self.session, self.view.main_kind, snapshot))
        elif text := format_left_out(snapshot):
            banner.notice(text)
        else:
            banner.show(None)

    def _status(self) -> None:
        self.query_one(StatusLine).show(
            status_parts(self.session, self.view, read_only=self.offered.read_only)
        )
        self._banner()

    def actions(self) -> list[Action]:
        """Return the actions available in the current view."""
        return self.offered.here(
            self.session,
            self.view_name,
            has_other_clusters=len(self.sessions) > 1,
            is_touring=self._tour.is_telling,
        )

    def key_label(self, name: str) -> str:
        return self.offered.key_label(self.session, name)

    def open_line(self, mode: str, value: str = "", *, proposed: bool = False) -> None:
        self.command_line.open(mode, value, proposed=proposed)

    @on(CommandBar.Typed)
    def _typed(self, event: CommandBar.Typed) -> None:
        self.command_line.typed(event)

    # -- actions

    @on(View.Requested)
    async def _show_requested(self, event: View.Requested) -> None:
        event.stop()
        if event.view == "cluster":
            names = [session.name for session in self.sessions]
            await self.switch(names.index(str(event.arguments["name"])))
            await self.go("jobs")
            if job_id := event.arguments.get("job_id"):
                await self.push("job", job_id=job_id)
        else:
            await self.push(event.view, **event.arguments)

    @on(ClickableLine.Clicked)
    async def _action_clicked(self, event: ClickableLine.Clicked) -> None:
        event.stop()
        await self.act(event.value)

    async def action_act(self, name: str) -> None:
        """A key of the registry."""
        await self.act(name)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """While one types in a field every key is the field's; else they are those of the view."""
        if action != "act":
            return super().check_action(action, parameters)
        if isinstance(self.focused, Input) and not is_form_widget(self.focused):
            return False
        is_typing = is_form_widget(self.focused)
        return bool(self.stack) and any(
            one.name == parameters[0] and (one.while_typing or not is_typing)
            for one in self.actions()
        )

    def on_key(self, event: events.Key) -> None:
        """Explain a key of this view that had no effect."""
        if self.stack and not isinstance(self.focused, Input) and not is_form_widget(self.focused):
            for action in self.offered.registry:
                is_its_key = event.key in action.key.split(",")
                if is_its_key and (
                    text := self.offered.why_not(self.session, self.view_name, action)
                ):
                    self.notify(text, severity="warning", timeout=3, markup=False)
                    return

    async def act(self, name: str) -> None:
        """Run the action of a key, the palette or ':'; the view's own handler has precedence."""
        if name not in {action.name for action in self.actions()}:
            return
        self._tour.performed(name)
        action = self.offered.named(name)
        if action is not None and action.plugin is not None:
            await self.handlers.plugins.run(action.plugin)
            return
        if action is not None and action.line:
            if complaint := await self.command_line.obey(action.line):
                self.notify(f":{action.line}: {complaint}", severity="warning", markup=False)
            return
        if action is not None and action.opens:
            await self.go(action.opens)
            return
        for owner in (self.view, *self.handlers):
            handler = getattr(owner, f"do_{name}", None)
            if handler is not None:
                result = handler()
                if hasattr(result, "__await__"):
                    result = await result
                # A view that had nothing to clear leaves escape to the screen.
                if result is not False:
                    return

    def notice(self, text: str) -> None:
        """Show a message for a while, off the table."""
        # None where the screen is being closed.
        for notice in self.query(Notice):
            notice.set_text(text)

    def begin_tour(self) -> None:
        """Show the first hint."""
        self._tour.begin()
        self._around()

    def end_tour(self) -> None:
        """No more hints, where any are shown."""
        self._tour.end()

    def _tour_place(self) -> tuple[str, frozenset[str]]:
        """The view one is in, and what keys do there; in a form most are the field's."""
        if not self.stack:
            return "", frozenset()
        is_form = self.view_name in FORM
        return self.view_name, frozenset(
            one.name for one in self.actions() if one.while_typing or not is_form
        )

    def announce_alerts(self, session: ClusterSession, events: Sequence[AlertEvent]) -> None:
        self._announcer.announce(session, events)

    def alerts_changed(self, session: ClusterSession) -> None:
        if self.shows_alerts(session):
            self.view.alerts_changed()  # type: ignore[attr-defined]
        self._around()

    def shows_alerts(self, session: ClusterSession) -> bool:
        return session is self.session and bool(self.stack) and self.view_name == "alerts"


class ViewStacks:
    """A stack of views for each of `sessions`; `view_arguments` gives what a person configured for
    a view.
    """

    def __init__(
        self, sessions: Sequence[ClusterSession], view_arguments: Callable[[str], dict[str, object]]
    ) -> None:
        self._sessions = sessions
        self._arguments = view_arguments
        self._at = 0
        self._stacks: list[list[View]] = [[] for _ in sessions]
        # By cluster the stack before this one.
        self._before: list[list[View]] = [[] for _ in sessions]
        # A root view keeps its cursor, filter and marks while one is elsewhere.
        self._roots: dict[tuple[int, str], View] = {}

    @property
    def session(self) -> ClusterSession:
        return self._sessions[self._at]

    @property
    def stack(self) -> list[View]:
        return self._stacks[self._at]

    @property
    def view(self) -> View:
        return self.stack[-1]

    @property
    def view_name(self) -> str:
        return self.view.view_name

    @property
    def next_position(self) -> int:
        """Position of the cluster after the shown one."""
        return self._at + 1

    def switch(self, position: int) -> None:
        """To another cluster, counted round."""
        self._at = position % len(self._sessions)

    def to_root(self, name: str, arguments: dict[str, object]) -> list[View]:
        """The stack for a root view: back to it where it is on the way here, else on top, so that
        one can go back.
        """
        key = (self._at, name)
        view = self._roots.get(key)
        if view is None:
            view = self._roots[key] = SPECS[name].make(
                self.session, **self._arguments(name), **arguments
            )
        stack = self.stack
        return stack[: stack.index(view) + 1] if view in stack else [*stack, view]

    def with_new(self, name: str, arguments: dict[str, object]) -> list[View]:
        """The stack with a new view on top."""
        configured = self._arguments(name) if name in _CONFIGURED else {}
        return [*self.stack, SPECS[name].make(self.session, **{**configured, **arguments})]

    def put(self, stack: list[View]) -> list[View]:
        """Have this stack from now on; gives the views of the one before that are to be taken
        away.
        """
        before, self._stacks[self._at] = self.stack, stack
        if before and before[-1] is not stack[-1]:
            self._before[self._at] = before
        return [view for view in before if view not in stack and view not in self._roots.values()]

    def root_views(self) -> dict[str, View]:
        """Return the shown cluster's root views, by name."""
        return {name: view for (at, name), view in self._roots.items() if at == self._at}

    def last(self) -> list[View] | None:
        """Stack before this one, as far as its views remain; None where it is the shown one."""
        before = self._before[self._at]
        while before and before[-1] not in self._roots.values():
            before = before[:-1]
        return before if before and before[-1] is not self.view else None

    def crumbs(self) -> list[str]:
        """The cluster, the views opened since the last root view, and where one is in the one on
        top.
        """
        stack = self.stack
        roots = [at for at, view in enumerate(stack) if view in self._roots.values()]
        on_the_way = stack[max(roots, default=0) : -1]
        return [
            self.session.store.title,
            *(view.way_crumb() for view in on_the_way),
            *self.view.crumbs(),
        ]
