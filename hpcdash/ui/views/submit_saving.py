"""What the checkpoints of the job in the form cost it, by what is typed there or by what is watched. Draws nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from hpcdash.domain.checkpoints import CheckpointPlan
from hpcdash.domain.units import DAY, HOUR, parse_duration
from hpcdash.errors import UsageError

if TYPE_CHECKING:
    from hpcdash.config.watch_settings import SavesRule
    from hpcdash.ui.views.submit_look import Look

EVERY, TAKES = "saves_every", "save_takes"
# What a number without a unit counts in, as for `hpcdash checkpoints`.
_UNITS = {EVERY: HOUR, TAKES: 1}


def with_saving(looked: Look, texts: Mapping[str, str], rules: Iterable[SavesRule] = ()) -> Look:
    """The look with a sentence on what saving costs in the time that is asked for.

    How often it saves and for how long is what is typed, else what [[watch.saves]] says of a job of its name. What
    cannot be read is a warning beside its field: nothing of it is submitted.
    """
    warnings = dict(looked.warnings)
    figures: dict[str, float] = {}
    for name, unit in _UNITS.items():
        if not (text := texts.get(name, "").strip()):
            continue
        try:
            seconds = parse_duration(text, bare_unit_seconds=unit)
        except ValueError as error:
            warnings[name] = str(error)
            continue
        if seconds is None:
            warnings[name] = f"{text} never ends"
        else:
            figures[name] = float(seconds)
    title = texts.get("name", "").strip()
    rule = next((rule for rule in rules if title and rule.meant.name in ("", title)), None)
    if rule is not None and not any(texts.get(name, "").strip() for name in _UNITS):
        figures = {EVERY: rule.watch.interval_seconds, TAKES: rule.watch.save_seconds}
    words = ""
    if looked.run_seconds and figures.keys() == _UNITS.keys():
        try:
            words = CheckpointPlan(looked.run_seconds / DAY, figures[EVERY], figures[TAKES]).words
        except UsageError as error:
            warnings[TAKES] = error.message
    return replace(looked, warnings=warnings, saving=words)
