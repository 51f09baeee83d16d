"""What a new submission can start from: nothing, templates, what was submitted lately; and how those are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from hpcdash.domain.units import format_age
from hpcdash.errors import HpcdashError
from hpcdash.services.submit.form import Draft, draft_of, read_form
from hpcdash.services.submit.form_fields import HERE, THERE
from hpcdash.ui.widgets.form_choice import Choice

if TYPE_CHECKING:
    from hpcdash.ui.views.submit import SubmitView
    from hpcdash.ui.views.submit_look import Look

_MOST_RECENT = 40
# How the recent ones tell a script on the cluster from one of this machine.
_THERE = f"{THERE}:"


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """One of them: how it is listed, and what taking it does."""

    choice: Choice
    take: Callable[[], None]


def starting_points(view: SubmitView) -> list[StartingPoint]:
    """All there are, the empty form first; their values are their places in the list."""
    found: list[tuple[str, str, Callable[[], None]]] = [("an empty form", "", lambda: view.put(Draft()))]
    if view.put_away is not None:
        before = view.put_away
        found.append(("what stood there before", _said(before), lambda: view.put(before)))
    templates = view.templates
    for name in templates.names() if templates is not None else ():
        found.append((name, "a template", partial(_take_template, view, name)))
    now = view.session.store.clock.now()
    for recent in view.recents.recent(view.session.store.name)[:_MOST_RECENT]:
        age = f"submitted {format_age(now - recent.at)} ago"
        if recent.kind == "script":
            is_there = recent.name.startswith(_THERE)
            texts = {"file": recent.name.removeprefix(_THERE), "file_where": THERE if is_there else HERE}
            words = f"{age}, a batch script as it is"
            found.append((recent.name, words, partial(view.put, Draft(texts), as_it_is=True)))
        else:
            words = ": ".join(part for part in (age, _command_of(recent.text)) if part)
            found.append((recent.name or "without a name", words, partial(_take, view, recent.text)))
    return [StartingPoint(Choice(str(at), words, label), take) for at, (label, words, take) in enumerate(found)]


def name_of(looked: Look) -> str:
    """What a submission is called among the recent ones."""
    over = looked.as_it_is
    if over is not None:
        return over.file if over.is_here else f"{_THERE}{over.file}"
    return looked.request.name if looked.request is not None else ""


async def remember(view: SubmitView, looked: Look) -> None:
    """Keep what was submitted among the recent ones."""
    store = view.session.store
    kind: Literal["request", "script"] = "request" if looked.as_it_is is None else "script"
    view.last.forget()
    try:
        await asyncio.to_thread(
            view.recents.remember, store.name, name_of(looked), looked.text, kind, store.clock.now()
        )
    except OSError as error:
        view.notify(f"it is not among the recent ones: {error.strerror}", severity="warning", markup=False)


def keep_as(view: SubmitView, name: str) -> str:
    """Keep what stands there as a template; a complaint, '' where that was done."""
    if view.templates is None:
        return "templates are not kept here"
    content = view.batch_file.content
    if view.seen.as_it_is is None:
        text = read_form(view.draft()).text
    elif isinstance(content, bytes):
        text = content.decode("utf-8", "surrogateescape")
    else:
        return "there is no script yet to keep"
    name = name.strip()
    try:
        if name != view.replaces and name in view.templates.names() and view.templates.read(name) != text:
            view.replaces = name
            return f"there is another template {name}: enter once more puts this in its place"
        file = view.templates.save(name, text)
    except HpcdashError as error:
        return error.message
    except OSError as error:
        return f"it could not be written: {error.strerror}"
    view.notify(f"kept as {file}", timeout=4, markup=False)
    return ""


def _take_template(view: SubmitView, name: str) -> None:
    assert view.templates is not None
    script = view.templates.folder / f"{name}.sh"
    if script.exists():
        view.put(Draft({"file": str(script), "file_where": HERE}), as_it_is=True)
        return
    try:
        _take(view, view.templates.read(name))
    except HpcdashError as error:
        view.notify(error.message, severity="warning", markup=False)


def _take(view: SubmitView, text: str) -> None:
    try:
        view.put(draft_of(text))
    except HpcdashError as error:
        view.notify(f"it cannot be read: {error.message}", severity="warning", markup=False)


def _command_of(text: str) -> str:
    """What a request runs, on one line; '' where it cannot be read."""
    try:
        draft = draft_of(text)
    except HpcdashError:
        return ""
    call = draft.rest.get("call")
    function = call.get("function") if isinstance(call, dict) else ""
    return " ".join((draft.texts.get("command") or draft.texts.get("script") or str(function or "")).split())


def _said(draft: Draft) -> str:
    texts = draft.texts
    return " ".join((texts.get("name") or texts.get("command") or texts.get("file") or "").split())
