"""Main screen of the dashboard: the present view, with breadcrumb, banner, status and keys."""

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
# Terminals of this size have the wall of slots above the jobs.
_WALL_COLUMNS = 120
_WALL_LINES = 40
# Most lines of the wall.
_WALL_OVER_JOBS = 5
_WALL_OVER_NODES = 12
# Settings of these views also apply if they are pushed.
_CONFIGURED = ("jobs", "history", "chart")


class MainScreen(DashboardScreen, inherit_bindings=False):
    """Screen with a stack of views for each cluster, and the lines around the present view."""

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
        """`typed` are earlier filters ('/'), commands (':') and commands for jobs, newest last."""
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
        # Shown output of logins by cluster.
        self._login_texts: dict[str, str] = {}

    def set_actions(self, actions: tuple[Action, ...]) -> None:
        """Set the actions and their keys, which precede those of the focused widget.

        A key is then handled when it arrives, before any widget: keys typed ahead, in a burst or
        over a slow connection, act in order.
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
            if not self.offered.read_only:
                session.launches.follow(partial(self._session_notified, session))
        self.set_interval(1.0, self._tick)
        self.call_after_refresh(self._reconcile)

    def _session_notified(self, session: ClusterSession, text: str) -> None:
        """Show a launch's notification, of a removed folder or node findings; refresh the view."""
        self.notice(text)
        if session is self.session:
            self.view.notes_changed()

    def _reconcile(self) -> None:
        """Reconcile earlier submissions once the first table is on the screen."""
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
        """Return the user's choices in the shown cluster's views, and the typed history.

        Views that were not opened keep their choices of `before`.
        """
        from hpcdash.ui.inside.actions import MODE

        by_view = {name: view.chosen() for name, view in self._stacks.root_views().items()}
        fields = {**msgspec.structs.asdict(before), **by_view.get("jobs", {})}
        for key, earlier in (("columns", before.columns), ("sort", before.sort)):
            fields[key] = {name: value for name, value in earlier.items() if name not in by_view}
            fields[key] |= {name: chosen[key] for name, chosen in by_view.items() if key in chosen}
        fields["typed"] = {
            mode: tuple(self.command_line.bar.mode_history(mode)) for mode in ("/", ":", MODE)
        }
        fields["theme"] = self.app.theme
        return msgspec.convert(fields, Choices)

    def keep_typed(self) -> None:
        """Store unfinished input of each view for the next start."""
        for view in self.query(View):
            view.keep_typed()

    # -- moving between views

    async def go(self, name: str, /, **arguments: object) -> None:
        """Show a root view: go back to it if it is on the stack, else put it on top."""
        await self._show_stack(self._stacks.to_root(name, arguments))

    async def push(self, name: str, /, **arguments: object) -> None:
        """Show a view on top of the present one."""
        await self._show_stack(self._stacks.with_new(name, arguments))

    async def pop(self) -> bool:
        """Go back one step; return False at the first view."""
        if len(self.stack) <= 1:
            return False
        await self._show_stack(self.stack[:-1])
        return True

    async def show_last(self) -> None:
        if (stack := self._stacks.last()) is not None:
            await self._show_stack(stack)

    async def _show_stack(self, stack: list[View]) -> None:
        view = stack[-1]
        # A widget being removed is no longer styled, and Textual fails to draw it.
        with self.app.batch_update():
            for removed in self._stacks.put(stack):
                await removed.remove()
        container = self.query_one("#views", Container)
        for child in container.children:
            child.display = child is view
        if view.is_live:
            view.shown()
        else:
            # The app may end before the view is mounted, or meanwhile.
            if not container.is_attached:
                return
            await container.mount(view)
            if not view.is_attached:
                return
            view.take_focus()
        self._poll_shown()
        self._around()

    def _poll_shown(self) -> None:
        """Make the poller fetch only the shown data."""
        in_passing = {Kind.NODES} if self._wall_lines else set()
        self.session.poller.show(self.view.kinds | self._header_kinds, in_passing)

    @property
    def _header_kinds(self) -> set[Kind]:
        """Tables of the header; shares only if the probe found accounting."""
        kinds: set[Kind] = set()
        if self._has_header:
            probe = self.session.store.probe
            capabilities = self.session.store.backend.capabilities
            if Capability.QUEUES in capabilities:
                kinds.add(Kind.QUEUES)
            if Capability.SHARES in capabilities and probe is not None and probe.has_accounting:
                kinds.add(Kind.SHARES)
        return kinds

    @property
    def _has_header(self) -> bool:
        """Whether the queues' gauges are above the view."""
        is_large = self.size.width >= MIN_COLUMNS and self.size.height >= MIN_LINES
        return is_large and self.view_name == "jobs"

    @property
    def _wall_lines(self) -> int:
        """Most lines of the wall above the view; 0 without room, or before the first jobs."""
        store = self.session.store
        if Capability.NODES not in store.backend.capabilities or Kind.MINE not in store.snapshots:
            return 0
        columns, lines = self.size
        if self.view_name == "nodes":
            return _WALL_OVER_NODES if lines >= MIN_LINES else 0
        has_room = columns >= _WALL_COLUMNS and lines >= _WALL_LINES
        return _WALL_OVER_JOBS if has_room and self.view_name == "jobs" else 0

    async def switch(self, position: int) -> None:
        """Switch to another cluster and its last view; of the previous one, poll only own jobs."""
        self.session.poller.show(())
        self._stacks.switch(position)
        self.session.poller.start()
        if self.stack:
            await self._show_stack(self.stack)
        else:
            # Read it before the first answer, which is compared with it.
            self.session.store.load_cached((Kind.MINE,))
            await self.go("jobs")

    async def switch_to_next(self) -> None:
        if len(self.sessions) > 1:
            await self.switch(self._stacks.next_position)

    # -- header, status and notifications

    def _on_store_change(self, session: ClusterSession, changed: Changed) -> None:
        """Called by the store's poller: handle the change in the screen's own turn."""
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
        # The result of a cancellation by this screen was reported.
        cancelled = self.handlers.runner.cancelled if "handlers" in vars(self) else frozenset()

        def is_known(event: JobEvent) -> bool:
            ids = (event.job_id, parse_array_id(event.job_id))
            return event.after == JobState.CANCELLED and any(
                (session.name, job_id) in cancelled for job_id in ids
            )

        for text, is_bad in announcements([event for event in events if not is_known(event)]):
            self.notify(
                text + where,
                severity="warning" if is_bad else "information",
                timeout=_BAD_NEWS_SECONDS if is_bad else _NEWS_SECONDS,
            )

    def _tick(self) -> None:
        if self.stack:
            self.view.tick()
            self._show_wall()
            self._status()
            self._show_login_message()

    def _show_wall(self) -> None:
        """Draw the wall; redraw rows if it changed the letters of jobs."""
        if self.query_one(SlotWall).show(self.session.store, lines=self._wall_lines):
            self.view.notes_changed()

    def _show_login_message(self) -> None:
        """Show a host's banner once, for a while: the login was too quick to read it.

        So are problems of the site's rules.
        """
        name = self.session.name
        store = self.session.store
        text = "\n".join(filter(None, (store.site_problem, store.transport.health.text)))
        is_connected = store.transport.health.state == "connected"
        if is_connected and text != self._login_texts.get(name, ""):
            self._login_texts[name] = text
            self.notice(beginning(text, _NOTICE_LINES))

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
        """Error of the shown data, if any."""
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
            is_touring=self._tour.has_hint,
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
        """Handle a key of the registry."""
        await self.act(name)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave the keys to a focused field, except those available while typing."""
        if action != "act":
            return super().check_action(action, parameters)
        is_typing = is_form_widget(self.focused)
        if not self.stack or (isinstance(self.focused, Input) and not is_typing):
            return False
        actions = actions_while_typing(self.actions()) if is_typing else self.actions()
        return any(action.name == parameters[0] for action in actions)

    def on_key(self, event: events.Key) -> None:
        """Explain a key of this view that had no effect."""
        if not self.stack or isinstance(self.focused, Input) or is_form_widget(self.focused):
            return
        for action in self.offered.registry:
            if event.key not in action.key.split(","):
                continue
            if text := self.offered.why_not(self.session, self.view_name, action):
                self.notify(text, severity="warning", timeout=3)
                return

    async def act(self, name: str) -> None:
        """Run the action of a key, the palette or ':'; the view's own handler has precedence."""
        action = next((action for action in self.actions() if action.name == name), None)
        if action is None:
            return
        self._tour.performed(name)
        if action.plugin is not None:
            await self.handlers.plugins.run(action.plugin)
            return
        if action.line:
            if error := await self.command_line.run(action.line):
                self.notify(f":{action.line}: {error}", severity="warning")
            return
        if action.opens:
            await self.go(action.opens)
            return
        for owner in (self.view, *self.handlers):
            handler = getattr(owner, f"do_{name}", None)
            if handler is not None:
                result = handler()
                if hasattr(result, "__await__"):
                    result = await result
                # A view with nothing to clear leaves escape to the screen.
                if result is not False:
                    return

    def notice(self, text: str) -> None:
        """Show a message for a while, off the table."""
        # There is none while the screen is being closed.
        for notice in self.query(Notice):
            notice.set_text(text)

    def begin_tour(self) -> None:
        """Show the first hint."""
        self._tour.begin()
        self._around()

    def end_tour(self) -> None:
        """End the tour, if it is shown."""
        self._tour.end()

    def _tour_place(self) -> tuple[str, frozenset[str]]:
        """Return the present view and its actions; a form's fields take most keys."""
        if not self.stack:
            return "", frozenset()
        actions = self.actions()
        if self.view_name in FORM:
            actions = actions_while_typing(actions)
        return self.view_name, frozenset(action.name for action in actions)

    def announce_alerts(self, session: ClusterSession, events: Sequence[AlertEvent]) -> None:
        self._announcer.announce(session, events)

    def alerts_changed(self, session: ClusterSession) -> None:
        if self.shows_alerts(session):
            self.view.alerts_changed()  # type: ignore[attr-defined]
        self._around()

    def shows_alerts(self, session: ClusterSession) -> bool:
        return session is self.session and bool(self.stack) and self.view_name == "alerts"


class ViewStacks:
    """Stack of views for each of `sessions`; `view_arguments` returns the settings of a view."""

    def __init__(
        self, sessions: Sequence[ClusterSession], view_arguments: Callable[[str], dict[str, object]]
    ) -> None:
        self._sessions = sessions
        self._arguments = view_arguments
        self._at = 0
        self._stacks: list[list[View]] = [[] for _ in sessions]
        # Previous stack by cluster.
        self._before: list[list[View]] = [[] for _ in sessions]
        # Root views stay, with their cursor, filter and marks.
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
        """Switch to the cluster at a position, cyclically."""
        self._at = position % len(self._sessions)

    def to_root(self, name: str, arguments: dict[str, object]) -> list[View]:
        """Return the stack for a root view: up to it if it is on the stack, else with it on top."""
        key = (self._at, name)
        view = self._roots.get(key)
        if view is None:
            view = self._roots[key] = SPECS[name].make(
                self.session, **self._arguments(name), **arguments
            )
        stack = self.stack
        return stack[: stack.index(view) + 1] if view in stack else [*stack, view]

    def with_new(self, name: str, arguments: dict[str, object]) -> list[View]:
        """Return the stack with a new view on top."""
        configured = self._arguments(name) if name in _CONFIGURED else {}
        return [*self.stack, SPECS[name].make(self.session, **{**configured, **arguments})]

    def put(self, stack: list[View]) -> list[View]:
        """Replace the stack; return the views that are no longer used."""
        before = self.stack
        self._stacks[self._at] = stack
        if before and before[-1] is not stack[-1]:
            self._before[self._at] = before
        return [view for view in before if view not in stack and view not in self._roots.values()]

    def root_views(self) -> dict[str, View]:
        """Return the shown cluster's root views, by name."""
        return {name: view for (at, name), view in self._roots.items() if at == self._at}

    def last(self) -> list[View] | None:
        """Return the previous stack up to its last remaining view; None if that is shown."""
        before = self._before[self._at]
        while before and before[-1] not in self._roots.values():
            before = before[:-1]
        return before if before and before[-1] is not self.view else None

    def crumbs(self) -> list[str]:
        """Return the cluster, the views since the last root view, and the present view's crumbs."""
        stack = self.stack
        roots = [at for at, view in enumerate(stack) if view in self._roots.values()]
        views = stack[max(roots, default=0) : -1]
        crumbs = [view.way_crumb() for view in views]
        return [self.session.store.title, *crumbs, *self.view.crumbs()]
