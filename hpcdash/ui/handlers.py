"""Handlers of the keys that no view handles, loaded once the first table is on the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hpcdash.config.plugins import SiteCommand
from hpcdash.ui.chains.actions import ChainActions
from hpcdash.ui.cluster.actions import ClusterActions
from hpcdash.ui.inside.actions import InsideActions
from hpcdash.ui.jobs.action_runner import ActionRunner
from hpcdash.ui.jobs.actions import JobActions
from hpcdash.ui.plugins.actions import PluginActions
from hpcdash.ui.screen import DashboardScreen
from hpcdash.ui.screen_actions import ScreenActions
from hpcdash.ui.share.actions import ShareActions
from hpcdash.ui.submit.actions import SubmitActions
from hpcdash.ui.switches.actions import SwitchActions


class Handlers:
    """Handlers in the order in which a do_ACTION is searched.

    `withheld` are variables passed to no plugin, `site_commands` returns the commands that the
    configuration offers to run in jobs.
    """

    def __init__(
        self,
        screen: DashboardScreen,
        withheld: frozenset[str],
        site_commands: Callable[[], Sequence[SiteCommand]],
    ) -> None:
        self.runner = runner = ActionRunner(screen)
        self.submit = SubmitActions(screen, runner)
        self.plugins = PluginActions(screen, withheld)
        self._every = (
            ScreenActions(screen),
            JobActions(screen, runner),
            ClusterActions(screen, runner),
            InsideActions(screen, site_commands),
            ChainActions(screen, runner),
            SwitchActions(screen),
            ShareActions(screen, runner),
            self.submit,
            self.plugins,
        )

    def __iter__(self) -> Iterator[object]:
        return iter(self._every)
