"""Which actions of the registry a person has where they are, why they lack another, and which obey while one types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from textual.widget import Widget

from hpcdash.ui.actions import Action, available, key_sign
from hpcdash.ui.screens.action_words import changeable_words
from hpcdash.ui.session import ClusterSession
from hpcdash.ui.views.base import View

# Where `?` is typed there has to be another way to the help, and a way out.
_SHOWN_WHILE_TYPING = {"form_help": 0, "escape": 4}


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
        alterable = backend.alterable
        return [
            replace(action, words=changeable_words(alterable)) if action.name == "alter" and alterable else action
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
