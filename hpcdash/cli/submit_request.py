"""A request's file as something to submit: its script is staged with it, what the command line says beats it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcdash.backends.actions import Outcome
from hpcdash.backends.script.body import Place, command_of
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.request_source import RequestSource, read_source
from hpcdash.cli.site import chosen_site
from hpcdash.cli.submit import Kept, finding_words, read_script
from hpcdash.config.request import RequestProblems
from hpcdash.config.request_text import request_text
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.request import Launcher, Request
from hpcdash.errors import UsageError
from hpcdash.services.session import ClusterSession
from hpcdash.services.submit.launches import Launches, PlannedLaunch, WantedLaunch
from hpcdash.services.submit.plan import Again

# They run Python's files themselves.
_READING = (Launcher.TORCHRUN, Launcher.ACCELERATE)


@dataclass(slots=True)
class RequestSubmitting:
    """Implements hpcdash.cli.submit.Submitting; `asides` are sentences for the person."""

    wanted: WantedLaunch
    asides: tuple[str, ...] = ()
    # None where the command line says some of it.
    source: RequestSource | None = None
    planned: PlannedLaunch | None = None

    @classmethod
    def read(
        cls,
        common: CommonOptions,
        path: str,
        *,
        options: Sequence[str],
        array: str,
        after: tuple[str, ...],
        held: bool,
    ) -> RequestSubmitting:
        """From a file *.toml; raises ConfigError and UsageError for what is wrong with it."""
        site = chosen_site(common)
        try:
            source = read_source(path, site=site.launch.site, user=site.cluster.user)
        except RequestProblems as error:
            error.next_step += " Nothing was submitted."
            raise
        request, files = source.request, {}
        asides: tuple[str, ...] = ()
        script = source.script or (Path(request.script) if request.script else None)
        if script is not None and script.is_file():
            files[script.name] = read_script(str(script), is_program=not _has_interpreter(request))
        elif script is not None:
            asides = (f"{script} is not on this machine: it is taken for a file of the cluster's",)
        changes: dict[str, Any] = {}
        if array:
            changes["array"] = parse_tasks(array)
        if after:
            changes["after"] = after
        if held:
            changes["hold"] = True
        if options:
            changes["extra_args"] = (*request.extra_args, *_one_each(options))
        text = source.text
        if changes:
            request = replace(request, **changes, said=request.said | changes.keys())
            text = request_text(request, site=site.launch.site)
        return cls(WantedLaunch(request, text, files), asides, None if options else source)

    async def plan(self, session: ClusterSession, after: tuple[str, ...]) -> Again:
        # What is not planned after all is not to be taken for the one before it.
        before, self.planned = self.planned, None
        wanted = self.wanted
        if after:
            # The links of a chain have one name, by which a train is found whole.
            name = wanted.request.name or (before.script.job_name if before is not None else "")
            request = replace(wanted.request, after=after, name=name)
            wanted = replace(wanted, request=request, text=request_text(request, site=_launches(session).settings.site))
        try:
            self.planned = await _launches(session).plan(wanted)
        except UsageError as error:
            raise error if self.source is None else self.source.placed(error) from None
        found = await _launches(session).findings(self.planned)
        asides = (*self.asides, *map(finding_words, found), *self.planned.again.asides)
        return replace(self.planned.again, asides=asides)

    async def conclude(self, session: ClusterSession, outcome: Outcome) -> str:
        return "" if self.planned is None else await _launches(session).conclude(self.planned, outcome)

    def shown(self) -> dict[str, Any]:
        if self.planned is None:
            return {}
        return {"script": self.planned.script.text, "folder": self.planned.place.folder}

    def kept(self) -> Kept | None:
        return Kept(self.wanted.request.name, self.wanted.text, "request")


def _has_interpreter(request: Request) -> bool:
    """Whether its script is not run as a program of its own."""
    path = f"/{request.script.rpartition('/')[2]}"
    return request.launcher in _READING or command_of(replace(request, script=path), Place("")) != shlex.quote(path)


def _launches(session: ClusterSession) -> Launches:
    if session.launches is None:
        raise UsageError("requests are not launched here", "Name a cluster: --cluster NAME or --ssh HOST")
    return session.launches


def _one_each(words: Sequence[str]) -> list[str]:
    """Options with the values that follow them: `--nice 3` is one."""
    options: list[list[str]] = []
    for word in words:
        if word.startswith("-") or not options:
            options.append([word])
        else:
            options[-1].append(word)
    return [shlex.join(option) for option in options]
