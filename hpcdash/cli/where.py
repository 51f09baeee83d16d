"""`hpcdash where`: the places where a job could run, the earliest start first."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.assembly import build_session, chosen_clusters, connection_pool
from hpcdash.cli.ending import run_async
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.submit import REQUEST_ENDING, read_script, read_source
from hpcdash.cli.tables import write_csv, write_table
from hpcdash.cli.terminal import print_json, stdout
from hpcdash.config.read import load_settings
from hpcdash.config.request import build_request
from hpcdash.domain.accelerators import FORMATS
from hpcdash.domain.places import fold, places_table
from hpcdash.domain.rfc3339 import format_utc, table_to_json_rows
from hpcdash.domain.tables import PLACES
from hpcdash.domain.text import counted, visible
from hpcdash.domain.units import parse_memory
from hpcdash.errors import EXIT_REFUSED, EXIT_UNREACHABLE, UsageError
from hpcdash.services.session import ClusterSession
from hpcdash.services.submit.places import (
    JobShape,
    PlaceAnswer,
    request_of_job,
    search_places,
)
from hpcdash.transport.prompter import TerminalPrompter


class ShapeOptions(Struct, frozen=True):
    """Options that describe a job; '' and None where they were not given."""

    source: str = ""
    like: str = ""
    gpus: int | None = None
    gpu_type: str = ""
    gpu_mem: str = ""
    needs: str = ""
    cpus: int | None = None
    cpus_per_gpu: int | None = None
    nodes: int | None = None
    mem: str = ""
    time: str = ""
    queue: str = ""
    account: str = ""
    qos: str = ""

    def shape(self, common: CommonOptions, user: str | None = None) -> JobShape:
        """Return the job of a file or of the options. Raises UsageError."""
        formats = tuple(filter(None, self.needs.casefold().replace(",", " ").split()))
        if unknown := [name for name in formats if name not in FORMATS]:
            raise UsageError(
                f"--needs {unknown[0]}: no such number format", f"Known: {', '.join(FORMATS)}."
            )
        sized = self._request_keys()
        if self.source.endswith(REQUEST_ENDING):
            site = load_settings(common.config).launch.site
            request = read_source(self.source, site=site, user=user).request
            shape = JobShape(request)
        elif self.source:
            if sized:
                raise UsageError(
                    f"--{next(iter(sized))}: the script says its size itself",
                    "Give a script or options.",
                )
            path = "" if self.source == "-" else str(Path(self.source).absolute())
            content = read_script(self.source, is_program=False)
            name = Path(self.source).name if path else "stdin"
            shape = JobShape(None, content, name, file=path)
        else:
            shape = JobShape(
                build_request({"command": "true", "plain": True, **sized}, "the options")
            )
        return replace(
            shape,
            gpu_memory_bytes=_memory("--gpu-mem", self.gpu_mem),
            gpu_formats=formats,
            queue=self.queue,
            account=self.account,
            qos=self.qos,
        )

    def _request_keys(self) -> dict[str, object]:
        """Return the options as keys of REQUEST.toml."""
        if self.gpus and self.cpus:
            raise UsageError("--cpus is for jobs without GPUs", "Use --cpus-per-gpu.")
        keys: dict[str, object] = {}
        slots = self.gpus or self.cpus
        if slots:
            keys |= {"slots": slots, "slot_type": "cuda" if self.gpus else "cpu"}
        elif self.nodes:
            keys |= {"slots": self.nodes, "slot_type": "cpu"}
        if self.nodes:
            keys["slots_per_node"] = -(-int(keys["slots"]) // self.nodes)  # type: ignore[call-overload]
        named = {
            "gpu_type": self.gpu_type,
            "cpus_per_gpu": self.cpus_per_gpu,
            "memory": self.mem,
            "time": self.time,
        }
        return keys | {name: value for name, value in named.items() if value}


def _memory(option: str, text: str) -> int | None:
    if not text:
        return None
    try:
        return parse_memory(text)
    except ValueError as error:
        raise UsageError(f"{option} {text!r}: {error}", "For example: 40G.") from None


def run_where(common: CommonOptions, options: ShapeOptions, *, form: str, refused: bool) -> None:
    """Print the places of a job on the chosen cluster, by default on all configured ones.

    Exits with 1 if none takes it, and with 3 if no cluster could be queried.
    """
    settings = load_settings(common.config)
    clusters = chosen_clusters(common, settings)

    async def work() -> tuple[PlaceAnswer, JobShape, Sequence[ClusterSession]]:
        pool = connection_pool(TerminalPrompter())
        sessions = [build_session(one, pool, share=settings.share) for one in clusters]
        try:
            shape = options.shape(common, clusters[0].user)
            if options.like:
                detail = await sessions[0].store.fetch_detail(options.like)
                shape = replace(shape, request=request_of_job(detail.job.to_pylist()[0]))
            return await search_places(shape, sessions), shape, sessions
        finally:
            await asyncio.gather(*(session.store.close() for session in sessions))

    answer, shape, sessions = run_async(work())
    _print_answer(answer, shape, sessions, form=form, refused=refused)
    if len(answer.errors) == len(sessions):
        sys.exit(EXIT_UNREACHABLE)
    if not any(place.accepts is not False for place in answer.places):
        sys.exit(EXIT_REFUSED)


def _print_answer(
    answer: PlaceAnswer,
    shape: JobShape,
    sessions: Sequence[ClusterSession],
    *,
    form: str,
    refused: bool,
) -> None:
    now = sessions[0].store.clock.now()
    for name, error in answer.errors.items():
        print(f"hpcdash: {visible(name)}: {visible(error.message)}", file=sys.stderr)
    for cluster in answer.clusters:
        for note in cluster.notes:
            print(f"hpcdash: {visible(cluster.session.name)}: {visible(note)}", file=sys.stderr)
    places = answer.places
    if form == "table" and not refused:
        places = tuple(place for place in places if place.accepts is not False) or places
    table = places_table(places if form != "table" else fold(places), now)
    if form == "json":
        rows = table_to_json_rows(table, PLACES.public_names)
        print_json(
            {
                "schema": 1,
                "taken_at": format_utc(now),
                "places": rows,
                "errors": [
                    {"cluster": name, "problem": error.message}
                    for name, error in answer.errors.items()
                ],
                "notes": [
                    {"cluster": one.session.name, "text": note}
                    for one in answer.clusters
                    for note in one.notes
                ],
                "commands": answer.commands,
                "dry_runs": answer.dry_runs,
            }
        )
        return
    if form == "csv":
        write_csv(PLACES.public_names, table, stdout())
        return
    columns = [name for name in PLACES.printed if name != "cluster" or len(sessions) > 1]
    width = shutil.get_terminal_size().columns if os.isatty(sys.stdout.fileno()) else None
    write_table(
        PLACES,
        table,
        sys.stdout.buffer,
        utc_now=now,
        width=width,
        encoding=sys.stdout.encoding,
        columns=columns,
    )
    hidden = len(answer.places) - len(places)
    if hidden:
        print(f"{counted(hidden, 'place')} would refuse it; --all lists them", file=sys.stderr)
    print(
        f"{counted(answer.commands, 'scheduler command')}, {counted(answer.dry_runs, 'dry run')}",
        file=sys.stderr,
    )
