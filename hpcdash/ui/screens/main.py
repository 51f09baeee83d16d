"""The one screen of the dashboard: breadcrumb, banner, the view one is in, hint, status and keys around it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

from hpcdash.domain import query
from hpcdash.domain.job_ids import array_of
from hpcdash.domain.states import ENDED_BADLY
from hpcdash.domain.text import clip, visible
from hpcdash.domain.words import state_word
from hpcdash.errors import CommandError, HpcdashError
from hpcdash.stores.cluster import Changed
from hpcdash.stores.departures import JobEvent
from hpcdash.stores.snapshots import Kind
from hpcdash.ui.actions import FORM, Action, available, help_groups, key_sign, textual_keys
from hpcdash.ui.screens.action_words import changeable_words
from hpcdash.ui.screens.alerting import UNWATCHED, Alerting
from hpcdash.ui.screens.dialogs import ColumnsDialog, WordsDialog
from hpcdash.ui.screens.submitting import Submitting
from hpcdash.ui.screens.switch_actions import SwitchActions
from hpcdash.ui.screens.train_actions import TrainActions
from hpcdash.ui.session import ClusterSession
from hpcdash.ui.surroundings import meanwhile_words, shown_error, shown_snapshot, status_parts
from hpcdash.ui.views import (
    alerts,
    chart,
    clusters,
    history,
    job,
    jobs,
    journal,
    log,
    node,
    nodes,
    queues,
    script,
    submit,
    train,
    triage,
)
from hpcdash.ui.views.base import View, ViewSpec
from hpcdash.ui.views.table import TableView
from hpcdash.ui.widgets.command_bar import CommandBar
from hpcdash.ui.widgets.lines import ActionLine, Banner, Breadcrumb, Hint, KeyLine, StatusLine
from hpcdash.ui.widgets.notice import Notice
from hpcdash.ui.widgets.tour import Tour

SPECS: dict[str, ViewSpec] = {
    spec.name: spec
    for spec in (
        jobs.VIEW,
        nodes.VIEW,
        queues.VIEW,
        history.VIEW,
        alerts.VIEW,
        clusters.VIEW,
        job.VIEW,
        node.VIEW,
        log.VIEW,
        chart.VIEW,
        script.VIEW,
        triage.VIEW,
        train.VIEW,
        journal.VIEW,
        submit.VIEW,
    )
}
# More events than these at once are told in one line.
_ANNOUNCED_ONE_BY_ONE = 4
_NAME_CELLS = 40
_NEWS_SECONDS = 3.0
# Where `?` is typed there has to be another way to the help, and a way out.
_SHOWN_WHILE_TYPING = {"form_help": 0, "escape": 4}
_BAD_NEWS_SECONDS = 8.0


class MainScreen(TrainActions, SwitchActions, Submitting, Alerting, Screen[None], inherit_bindings=False):
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
        view_arguments: Callable[[str], dict[str, object]] = lambda view: {},
        tour_ended: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self.sessions = sessions
        self.registry = actions
        self.read_only = read_only
        self._arguments = view_arguments
        self._first = first
        self._tour = Tour(self._key_sign_of, tour_ended, self._tour_place)
        self.aliases = dict(aliases or {})
        self._at = 0
        self._stacks: list[list[View]] = [[] for _ in sessions]
        # A root view keeps its cursor, filter and marks while one is elsewhere.
        self._roots: dict[tuple[int, str], View] = {}

    # -- what is where

    @property
    def session(self) -> ClusterSession:
        return self.sessions[self._at]

    @property
    def stack(self) -> list[View]:
        return self._stacks[self._at]

    @property
    def view(self) -> View:
        return self.stack[-1]

    @property
    def view_name(self) -> str:
        return next(name for name, spec in SPECS.items() if type(self.view) is spec.make)

    def compose(self) -> ComposeResult:
        yield Breadcrumb()
        yield Banner()
        yield Container(id="views")
        yield Notice()
        yield self._tour
        yield Hint()
        yield CommandBar(self._completions, self._entered, self._left)
        yield StatusLine()
        yield KeyLine()

    async def on_mount(self) -> None:
        await self.go(self._first)
        for session in self.sessions:
            session.store.listen(partial(self._heard, session))
            if session.launches is not None and not self.read_only:
                session.launches.follow(self.notice)
        self.set_interval(1.0, self._tick)

    def on_resize(self) -> None:
        self.call_after_refresh(self._around)

    # -- moving between views

    async def go(self, name: str, /, **arguments: object) -> None:
        """A root view: back to it where it is on the way here, else on top, so that one can go back."""
        key = (self._at, name)
        view = self._roots.get(key)
        if view is None:
            view = self._roots[key] = SPECS[name].make(self.session, **self._arguments(name), **arguments)
        stack = self.stack
        await self._show_stack(stack[: stack.index(view) + 1] if view in stack else [*stack, view])

    async def push(self, name: str, /, **arguments: object) -> None:
        """A view on top of the one that is shown."""
        extra = self._arguments(name) if name in ("jobs", "history", "chart") else {}
        await self._show_stack([*self.stack, SPECS[name].make(self.session, **{**extra, **arguments})])

    async def pop(self) -> bool:
        """Back one step; False at the first view."""
        if len(self.stack) <= 1:
            return False
        await self._show_stack(self.stack[:-1])
        return True

    async def _show_stack(self, stack: list[View]) -> None:
        before = self.stack[:]
        self._stacks[self._at] = stack
        views = self.query_one("#views", Container)
        for view in before:
            if view not in stack and view not in self._roots.values():
                await view.remove()
        for other in views.children:
            other.display = other is stack[-1]
        if stack[-1].is_live:
            stack[-1].shown()
        else:
            await views.mount(stack[-1])
            stack[-1].take_focus()
        self.session.poller.show(stack[-1].kinds)
        self._around()

    async def switch(self, position: int) -> None:
        """Another cluster, where one left it; of the one left behind only one's own jobs are asked for."""
        self.session.poller.show(())
        self._at = position % len(self.sessions)
        self.session.poller.start()
        if self.stack:
            await self._show_stack(self.stack)
        else:
            # Read before the first answer is there, which is compared with it.
            self.session.store.load_cached((Kind.MINE,))
            await self.go("jobs")

    # -- what is around the view

    def _heard(self, session: ClusterSession, changed: Changed) -> None:
        """Called by the store's poller: the rest is done in the screen's own turn."""
        self.call_later(self._store_changed, session, changed)

    def _store_changed(self, session: ClusterSession, changed: Changed) -> None:
        if not self.is_running:
            return
        if session is self.session and self.stack:
            self.view.store_changed(changed)
        self._announce(session, changed.events)
        self.judge_alerts(session, changed)
        self._around()

    def _announce(self, session: ClusterSession, events: Sequence[JobEvent]) -> None:
        """Say what happened to one's own jobs: tasks of one array in one line, and so many at once (an absence)."""
        where = f" on {session.store.title}" if len(self.sessions) > 1 else ""
        groups: dict[str, list[JobEvent]] = {}
        for event in events:
            groups.setdefault(array_of(event.job_id), []).append(event)
        if len(groups) > _ANNOUNCED_ONE_BY_ONE:
            groups = {"": list(events)}
        for number, happened in groups.items():
            first = happened[0]
            name = clip(visible(first.name), _NAME_CELLS)
            if len(happened) == 1:
                words = f"{first.job_id} {name} {state_word(first.after)}"
            else:
                counts = Counter(state_word(event.after) for event in happened)
                who = f"array {number} {name}" if number else f"{len(happened)} of your jobs"
                words = f"{who}: {', '.join(f'{count} {word}' for word, count in counts.most_common())}"
            bad = any(event.after in ENDED_BADLY for event in happened)
            self.notify(
                words + where,
                severity="warning" if bad else "information",
                timeout=_BAD_NEWS_SECONDS if bad else _NEWS_SECONDS,
                markup=False,
            )

    def _tick(self) -> None:
        if self.stack:
            self._status()

    @on(View.CrumbsChanged)
    def _crumbs_changed(self, event: View.CrumbsChanged) -> None:
        event.stop()
        if self.stack:
            self.session.poller.show(self.view.kinds)
        self._around()

    def _around(self) -> None:
        if not self.stack or not self.is_running:
            return
        view = self.view
        self._tour.look()
        actions = self.actions()
        views = [action for action in actions if action.name.startswith("show_")]
        self.query_one(Breadcrumb).show(self._crumbs(), view.marks(), views, f"show_{self.view_name}")
        self.query_one(Hint).show(view.hint())
        self.query_one(KeyLine).show(
            _obeyed_while_typing(actions) if _is_of_a_form(self.focused) else _ranked(actions, view)
        )
        self._banner()
        self._status()

    def _crumbs(self) -> list[str]:
        """The cluster, the views opened since the last root view, and where one is in the one on top."""
        stack = self.stack
        roots = [at for at, view in enumerate(stack) if view in self._roots.values()]
        on_the_way = stack[max(roots, default=0) : -1]
        return [self.session.store.title, *(view.way_crumb() for view in on_the_way), *self.view.crumbs()]

    @property
    def error(self) -> HpcdashError | None:
        """What is wrong with what is shown."""
        return shown_error(self.session, self.view)

    def _banner(self) -> None:
        banner = self.query_one(Banner)
        error = self.error
        snapshot = shown_snapshot(self.session, self.view)
        if error is not None:
            banner.show(error, meanwhile_words(self.session, self.view.main_kind, snapshot))
        elif snapshot is not None and snapshot.rejected:
            count = len(snapshot.rejected)
            left_out = "1 row" if count == 1 else f"{count} rows"
            banner.notice(f"{left_out} of the answer could not be read and left out; ! shows what came")
        else:
            banner.show(None)

    def _status(self) -> None:
        self.query_one(StatusLine).show(status_parts(self.session, self.view, read_only=self.read_only))
        if self.error is not None:
            self._banner()

    def actions(self) -> list[Action]:
        """What a person can do in the view they are in."""
        actions = available(self.registry, self.view_name, self.session.store.backend.capabilities, self.read_only)
        hidden = set() if self._tour.is_telling else {"tour_next", "tour_end"}
        if len(self.sessions) <= 1:
            hidden.add("next_cluster")
        if self.session.watching is None:
            hidden.add("show_alerts")
        alterable = self.session.store.backend.alterable
        return [
            replace(action, words=changeable_words(alterable)) if action.name == "alter" and alterable else action
            for action in actions
            if action.name not in hidden
        ]

    def _key_sign_of(self, name: str) -> str:
        """An action's keys; '' for what no view of this cluster can do."""
        has = self.session.store.backend.capabilities
        for action in self.registry:
            if action.name == name:
                is_absent = action.capability is not None and action.capability not in has
                return "" if is_absent or (self.read_only and action.acts) else key_sign(action.key)
        return ""

    # -- typing

    def _completions(self, mode: str, value: str) -> list[str]:
        view = self.view
        if mode == "/" and isinstance(view, TableView):
            return query.completions(value, view.schema, view.source())
        if mode != ":":
            return []
        words = value.split(" ", 1)
        if len(words) == 1:
            names = [name for name, spec in SPECS.items() if spec.root]
            names += [action.name for action in self.actions()]
            return [name for name in names if name.startswith(value) and name != value]
        spec = SPECS.get(words[0])
        if spec is None or not spec.root:
            return []
        from hpcdash.domain import schema as tables

        wanted = {"nodes": tables.NODES, "queues": tables.QUEUES}.get(words[0], tables.JOBS)
        return [f"{words[0]} {found}" for found in query.completions(words[1], wanted)]

    @on(CommandBar.Typed)
    def _typed(self, event: CommandBar.Typed) -> None:
        bar = self.query_one(CommandBar)
        if bar.is_open and event.mode == "/" and isinstance(self.view, TableView):
            error = self.view.preview_filter(event.value)
            bar.complain(error.short if error else "")

    async def _entered(self, mode: str, value: str) -> None:
        bar = self.query_one(CommandBar)
        if mode == "/":
            if isinstance(self.view, TableView) and (error := self.view.try_filter(value)) is not None:
                bar.complain(error.short)
                return
        elif (complaint := await self._obey(value.strip())) is not None:
            bar.complain(complaint)
            return
        self._leave_bar()

    async def _left(self, mode: str) -> None:
        if mode == "/" and isinstance(self.view, TableView):
            self.view.set_filter("")
        self._leave_bar()

    async def _obey(self, line: str) -> str | None:
        """A command after ':'; the complaint where it is none."""
        name, _, rest = line.partition(" ")
        if name in self.aliases:
            name, _, rest = f"{self.aliases[name]} {rest}".strip().partition(" ")
        if not name:
            return None
        if name in SPECS and SPECS[name].root:
            await self.go(name)
            if rest.strip() and isinstance(self.view, TableView):
                error = self.view.try_filter(rest)
                return error.short if error else None
            return None
        action = next((one for one in self.actions() if one.name == name), None)
        if action is not None:
            await self.act(name)
            return None
        if name in ("q", "quit"):
            self.app.exit()
            return None
        known = next((one for one in self.registry if one.name == name), None)
        if known is not None:
            return self._why_not(known) or f"{name} is for another view"
        return f"no view or action is called {name!r}"

    def _leave_bar(self) -> None:
        self.query_one(CommandBar).shut()
        self.view.take_focus()

    # -- actions

    @on(View.Wanted)
    async def _wanted(self, event: View.Wanted) -> None:
        event.stop()
        if event.view == "cluster":
            names = [session.name for session in self.sessions]
            await self.switch(names.index(str(event.arguments["name"])))
            await self.go("jobs")
        else:
            await self.push(event.view, **event.arguments)

    @on(ActionLine.Clicked)
    async def _clicked(self, event: ActionLine.Clicked) -> None:
        event.stop()
        await self.act(event.name)

    async def action_act(self, name: str) -> None:
        """A key of the registry."""
        await self.act(name)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """While one types in a field every key is the field's; else they are those of the view."""
        if action != "act":
            return super().check_action(action, parameters)
        if isinstance(self.focused, Input) and not _is_of_a_form(self.focused):
            return False
        is_typing = _is_of_a_form(self.focused)
        return bool(self.stack) and any(
            one.name == parameters[0] and (one.while_typing or not is_typing) for one in self.actions()
        )

    def _why_not(self, action: Action) -> str:
        """Why an action of this view cannot be done at all; '' where that is not so."""
        if action.views is not None and self.view_name not in action.views:
            return ""
        if self.read_only and action.acts:
            return f"read-only: {action.name.replace('_', ' ')} is taken away"
        backend = self.session.store.backend
        if action.capability is not None and action.capability not in backend.capabilities:
            return f"{backend.name} has no {action.name.replace('_', ' ')}"
        return ""

    def on_key(self, event: events.Key) -> None:
        """A key of this view that nobody took says why."""
        if self.stack and not isinstance(self.focused, Input) and not _is_of_a_form(self.focused):
            for action in self.registry:
                if event.key in action.key.split(",") and (words := self._why_not(action)):
                    self.notify(words, severity="warning", timeout=3, markup=False)
                    return

    async def act(self, name: str) -> None:
        """What a key, the palette or ':' asks for: the view's own handler first, then the screen's."""
        if name not in {action.name for action in self.actions()}:
            return
        self._tour.performed(name)
        for owner in (self.view, self):
            handler = getattr(owner, f"do_{name}", None)
            if handler is not None:
                result = handler()
                if hasattr(result, "__await__"):
                    result = await result
                # A view that had nothing to clear leaves escape to the screen.
                if result is not False:
                    return

    def notice(self, words: str) -> None:
        """Say something for a while, off the table."""
        self.query_one(Notice).say(words)

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
        return self.view_name, frozenset(one.name for one in self.actions() if one.while_typing or not is_form)

    def do_tour_next(self) -> None:
        self._tour.go_on()

    def do_tour_end(self) -> None:
        self.end_tour()

    async def do_escape(self) -> None:
        if not self.query_one(Notice).put_away():
            await self.pop()

    async def do_back(self) -> None:
        if not await self.pop():
            self.app.exit()

    async def do_show_jobs(self) -> None:
        await self.go("jobs")

    async def do_show_nodes(self) -> None:
        await self.go("nodes")

    async def do_show_queues(self) -> None:
        await self.go("queues")

    async def do_show_history(self) -> None:
        await self.go("history")

    async def do_show_alerts(self) -> None:
        if self.session.watching is None:
            self.notify(UNWATCHED, timeout=5)
            return
        await self.go("alerts")

    def alerts_changed(self, session: ClusterSession) -> None:
        """What is wrong was judged anew."""
        if self.shows_alerts(session):
            self.view.alerts_changed()  # type: ignore[attr-defined]
        self._around()

    def shows_alerts(self, session: ClusterSession) -> bool:
        return session is self.session and bool(self.stack) and self.view_name == "alerts"

    async def do_show_clusters(self) -> None:
        await self.go("clusters")

    def do_filter(self) -> None:
        view = self.view
        if isinstance(view, TableView):
            bar = self.query_one(CommandBar)
            # One that stands is refined; the last one, recalled, makes way for what is typed.
            bar.ask("/", view.filter_text or bar.last_filter, proposed=not view.filter_text)
            view.try_filter(view.filter_text or bar.last_filter)

    async def do_chart(self) -> None:
        """The metrics of the job one points at; of several marked ones each other's over the first's."""
        targets = self.view.targets()
        job_ids = targets.job_ids if self.view.marks() else ()
        first = next(iter(job_ids), None) or self.view.pointed_job()
        if first is None:
            self.notify("no job is pointed at", severity="warning", timeout=3)
        else:
            await self.push("chart", job_id=first, others=tuple(job_ids[1:]))

    def do_command(self) -> None:
        self.query_one(CommandBar).ask(":")

    def do_ask_now(self) -> None:
        self.session.poller.ask_now()

    async def do_next_cluster(self) -> None:
        if len(self.sessions) > 1:
            await self.switch(self._at + 1)

    def do_columns(self) -> None:
        view = self.view
        if not isinstance(view, TableView):
            return

        def take(names: list[str] | None) -> None:
            if names is not None:
                view.choose_columns(names)

        titles = {name: column.title.lower() for name, column in view.catalogue().items()}
        self.app.push_screen(ColumnsDialog(titles, view.column_names), take)

    def do_theme(self) -> None:
        names = sorted(name for name in self.app.available_themes if not name.startswith("textual"))
        ours = [name for name in getattr(self.app, "theme_names", names) if name in names]
        self.app.theme = ours[(ours.index(self.app.theme) + 1) % len(ours)] if self.app.theme in ours else ours[0]
        self.notify(f"theme {self.app.theme}", timeout=2, markup=False)

    def do_explain(self) -> None:
        error = self.error
        snapshot = shown_snapshot(self.session, self.view)
        if error is not None:
            evidence = error.evidence if isinstance(error, CommandError) else ""
            words = "\n\n".join(part for part in (error.message, evidence, error.next_step) if part)
            self.app.push_screen(WordsDialog("what went wrong", _visible_lines(words)))
        elif snapshot is not None and snapshot.rejected:
            self.app.push_screen(
                WordsDialog("rows that could not be read", _visible_lines("\n".join(snapshot.rejected)))
            )
        else:
            self.notify("nothing is wrong", timeout=2)

    def do_form_help(self) -> None:
        """In a field `?` is typed."""
        self.do_help()

    def do_help(self) -> None:
        words = Text()
        actions = self.actions()
        is_typing = _is_of_a_form(self.focused)
        groups = [("", _obeyed_while_typing(actions))] if is_typing else help_groups(actions, self.view_name)
        for number, (heading, group) in enumerate(groups):
            if heading:
                words.append(f"\n{heading}\n" if number else f"{heading}\n", "bold")
            for action in group:
                words.append_text(_help_line(key_sign(action.key), action.words))
            if number == 0:
                words.append("\n")
                for keys, meaning in self.view.help_moving():
                    words.append_text(_help_line(keys, meaning))
                if isinstance(self.view, TableView):
                    words.append("\n  +3 after the titles: three columns do not fit; , chooses others\n")
                if (signs := self.view.help_signs()).plain:
                    words.append("\nsigns\n", "bold").append_text(signs)
        if isinstance(self.view, TableView):
            words.append("\nfilters\n", "bold")
            words.append("  train user:me state:running,pending limit>2h gpus>=8 name~^exp !debug\n")
            words.append("  keys: " + " ".join(query.keys_of(self.view.schema)) + "\n", "dim")
        self.app.push_screen(WordsDialog(f"help: {self.view_name}", words))


def _help_line(keys: str, words: str) -> Text:
    gap = " " * max(2, 12 - cell_len(keys))
    return Text.assemble(("  ", ""), (keys, "bold"), f"{gap}{words}\n")


def _is_of_a_form(widget: Widget | None) -> bool:
    """Whether keys are a field's of a view's form, all but those that are meant for it while one types."""
    return bool(getattr(widget, "takes_typing", False))


def _ranked(actions: Sequence[Action], view: View) -> list[Action]:
    """With the ranks that a view gives some as things stand."""
    ranks = view.key_ranks()
    return [replace(one, shown=ranks.get(one.name, one.shown)) for one in actions]


def _obeyed_while_typing(actions: Sequence[Action]) -> list[Action]:
    """What the line of keys tells in a field."""
    return [replace(one, shown=_SHOWN_WHILE_TYPING.get(one.name, one.shown)) for one in actions if one.while_typing]


def _visible_lines(words: str) -> Text:
    return Text("\n".join(visible(line) for line in words.split("\n")))


def main_screen_with(actions: tuple[Action, ...]) -> type[MainScreen]:
    """The main screen with these actions' keys, which come before those of what has the focus.

    A key is then obeyed when it arrives and not after a way through the widgets: what is typed ahead, in one burst or
    over a slow line, does what it would have done one key at a time.
    """

    class MainScreenWithKeys(MainScreen, inherit_bindings=False):
        BINDINGS: ClassVar[list[BindingType]] = [
            Binding(textual_keys(action.key), f"act({action.name!r})", action.words, show=False, priority=True)
            for action in actions
        ]

    return MainScreenWithKeys
