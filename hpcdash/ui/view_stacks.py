"""Which views are open on each cluster, one on top of the other, and where one is among them. Mounts and shows none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpcdash.ui.session import ClusterSession
from hpcdash.ui.views.base import View
from hpcdash.ui.views.registry import SPECS

# What a person configured for these is theirs where they are pushed, too.
_CONFIGURED = ("jobs", "history", "chart")


class ViewStacks:
    """A stack of views for each of `sessions`; `view_arguments` gives what a person configured for a view."""

    def __init__(self, sessions: Sequence[ClusterSession], view_arguments: Callable[[str], dict[str, object]]) -> None:
        self._sessions = sessions
        self._arguments = view_arguments
        self._at = 0
        self._stacks: list[list[View]] = [[] for _ in sessions]
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
        return next(name for name, spec in SPECS.items() if type(self.view) is spec.make)

    @property
    def next_position(self) -> int:
        """That of the cluster after the one that is shown."""
        return self._at + 1

    def switch(self, position: int) -> None:
        """To another cluster, counted round."""
        self._at = position % len(self._sessions)

    def to_root(self, name: str, arguments: dict[str, object]) -> list[View]:
        """The stack for a root view: back to it where it is on the way here, else on top, so that one can go back."""
        key = (self._at, name)
        view = self._roots.get(key)
        if view is None:
            view = self._roots[key] = SPECS[name].make(self.session, **self._arguments(name), **arguments)
        stack = self.stack
        return stack[: stack.index(view) + 1] if view in stack else [*stack, view]

    def with_new(self, name: str, arguments: dict[str, object]) -> list[View]:
        """The stack with a new view on top."""
        configured = self._arguments(name) if name in _CONFIGURED else {}
        return [*self.stack, SPECS[name].make(self.session, **{**configured, **arguments})]

    def put(self, stack: list[View]) -> list[View]:
        """Have this stack from now on; gives the views of the one before that are to be taken away."""
        before, self._stacks[self._at] = self.stack, stack
        return [view for view in before if view not in stack and view not in self._roots.values()]

    def crumbs(self) -> list[str]:
        """The cluster, the views opened since the last root view, and where one is in the one on top."""
        stack = self.stack
        roots = [at for at, view in enumerate(stack) if view in self._roots.values()]
        on_the_way = stack[max(roots, default=0) : -1]
        return [self.session.store.title, *(view.way_crumb() for view in on_the_way), *self.view.crumbs()]
