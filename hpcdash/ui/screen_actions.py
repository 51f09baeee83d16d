"""Key actions of the main screen: views, clusters, filters, columns, themes, errors, help."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from rich.text import Text

from hpcdash.domain.query import filter_keys
from hpcdash.domain.text import visible
from hpcdash.ui.actions import actions_while_typing, help_groups, is_form_widget
from hpcdash.ui.dialogs import ChecklistDialog, Choice, ChoiceDialog, TextDialog
from hpcdash.ui.screen import DashboardScreen
from hpcdash.ui.status import explanation
from hpcdash.ui.table_view import TableView
from hpcdash.ui.view import View
from hpcdash.ui.watch.announcer import UNWATCHED
from hpcdash.ui.widgets.command_bar import CommandBar
from hpcdash.ui.widgets.hints import Notice, Tour

if TYPE_CHECKING:
    from hpcdash.ui.screen import DashboardApp


class ScreenActions:
    """Handlers of the registry's actions that do not act on jobs."""

    def __init__(self, screen: DashboardScreen) -> None:
        self.screen = screen

    # -- navigation

    async def do_escape(self) -> None:
        self.screen.query_one(Notice).hide()
        await self.screen.pop()

    async def do_back(self) -> None:
        if not await self.screen.pop():
            self.screen.app.exit()

    async def do_to_shell(self) -> None:
        cast("DashboardApp", self.screen.app).action_to_shell()

    async def do_show_alerts(self) -> None:
        if self.screen.session.watching is None:
            self.screen.notify(UNWATCHED, timeout=5)
        else:
            await self.screen.go("alerts")

    async def do_last_view(self) -> None:
        await self.screen.show_last()

    async def do_next_cluster(self) -> None:
        await self.screen.switch_to_next()

    # -- filters, columns and themes

    def do_filter(self) -> None:
        view = self.screen.view
        if isinstance(view, TableView):
            # Typing refines the applied filter, but replaces the proposed last one.
            text = view.filter_text or self.screen.query_one(CommandBar).last_filter
            self.screen.open_line("/", text, proposed=not view.filter_text)
            view.begin_typing()
            view.try_filter(text)

    def do_columns(self) -> None:
        view = self.screen.view
        if not isinstance(view, TableView):
            return

        def take(names: list[str] | None) -> None:
            if names is not None:
                view.choose_columns(names)

        columns = view.catalogue
        # Shown columns come first, in their order.
        names = [*view.column_names, *(name for name in columns if name not in view.column_names)]
        choices = [(name, f"{name:<12} {columns[name].title.lower()}") for name in names]
        self.screen.app.push_screen(
            ChecklistDialog("Columns", choices, view.column_names, is_ordered=True), take
        )

    def do_choose_sort(self) -> None:
        view = self.screen.view
        if not isinstance(view, TableView):
            return

        def take(key: str) -> None:
            if key:
                view.sort_by_or_reverse(key)
            else:
                view.sort_by(None, descending=False)

        titles = {column.key: column.title.lower() for column in view.columns()}
        choices = [
            Choice("", label="default order"),
            *(Choice(key, label=titles[key]) for key in view.sort_keys()),
        ]
        self.screen.app.push_screen(ChoiceDialog("Sort by", choices, take, view.sort_key or ""))

    def do_theme(self) -> None:
        app = cast("DashboardApp", self.screen.app)
        names = app.theme_names
        position = names.index(app.theme) if app.theme in names else -1
        app.theme = names[(position + 1) % len(names)]
        self.screen.notify(f"theme {app.theme}", timeout=2)

    def do_themes(self) -> None:
        """Choose a theme; the screen shows the one under the cursor."""
        app = cast("DashboardApp", self.screen.app)

        def apply(name: str) -> None:
            app.theme = name

        choices = [Choice(name) for name in app.theme_names]
        app.push_screen(ChoiceDialog("Theme", choices, apply, app.theme, apply))

    def do_refresh(self) -> None:
        store = self.screen.session.store
        if store.connection_error is not None:
            self.screen.notify(f"connecting to {visible(store.title)} …", timeout=3)
        self.screen.session.poller.poll_now(with_passing=True)

    # -- prompts and notifications

    def do_command(self) -> None:
        self.screen.open_line(":")

    def do_palette(self) -> None:
        self.do_help()

    def do_screenshot(self) -> None:
        self.screen.app.action_screenshot()

    def do_explain(self) -> None:
        explained = explanation(self.screen.session, self.screen.view)
        if explained is None:
            self.screen.notify("no errors", timeout=2)
        else:
            title, text = explained
            lines = Text("\n".join(visible(line) for line in text.split("\n")))
            self.screen.app.push_screen(TextDialog(title, lines))

    def do_form_help(self) -> None:
        """Show the help in a form, where `?` is text."""
        self.do_help()

    def do_help(self) -> None:
        from hpcdash.ui.help import HelpDialog

        screen = self.screen
        actions = screen.actions()
        if is_form_widget(screen.focused):
            groups = [("", actions_while_typing(actions))]
        else:
            groups = help_groups(actions, screen.view_name)
        screen.app.push_screen(
            HelpDialog(
                f"Help: {screen.view_name}",
                groups,
                help_notes(screen.view),
                partial(screen.call_later, screen.act),
            )
        )

    def do_tour_next(self) -> None:
        self.screen.query_one(Tour).go_on()

    def do_tour_end(self) -> None:
        self.screen.query_one(Tour).end()


def help_notes(view: View) -> list[tuple[str, Text]]:
    """Return headings and texts of a view's help besides its actions."""
    from hpcdash.ui.help import key_line

    moving = Text("\n").join(key_line(keys, meaning) for keys, meaning in view.help_moving())
    notes = [("move", moving)]
    if isinstance(view, TableView):
        moving.append('\n  "+3" in the header: 3 columns hidden (press , to choose)')
    if (signs := view.help_signs()).plain:
        signs.rstrip()
        notes.append(("signs", signs))
    if isinstance(view, TableView):
        text = Text("  train user:me state:running,pending limit>2h gpus>=8 name~^exp !debug\n")
        text.append("  keys: " + " ".join(filter_keys(view.schema)), "dim")
        notes.append(("filters", text))
    return notes
