"""`hpcdash where`: the places where a job could run, the earliest start first."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from hpcdash.assembly import chosen_clusters, split_cluster
from hpcdash.cli.ending import run_async
from hpcdash.cli.jobs import open_sessions
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.submit import REQUEST_ENDING, read_script, read_source
from hpcdash.cli.tables import print_rows
from hpcdash.cli.terminal import print_json, print_notes
from hpcdash.config.read import load_settings
from hpcdash.domain.places import fold, places_table
from hpcdash.domain.rfc3339 import format_utc, table_to_json_rows
from hpcdash.domain.tables import PLACES
from hpcdash.domain.text import counted
from hpcdash.errors import EXIT_REFUSED, EXIT_UNREACHABLE, UsageError
from hpcdash.services.session import ClusterSession
from hpcdash.services.submit.places import PlaceAnswer, search_places
from hpcdash.services.submit.shapes import SIZE_OPTIONS, JobShape, build_shape, job_request


def read_shape(
    common: CommonOptions, source: str, like: str, options: Mapping[str, Any], user: str | None
) -> JobShape:
    """Read the job of a file, '' for none, and of options; of the job `like` only the options.

    Raises UsageError, ConfigError.
    """
    shape = JobShape() if like else None
    if source and like:
        raise UsageError("--like and a file cannot be used together", "Use only one of them.")
    if source.endswith(REQUEST_ENDING):
        site = load_settings(common.config).launch.site
        shape = JobShape(read_source(source, site=site, user=user).request)
    elif source:
        content = read_script(source, is_program=False)
        shape = JobShape(None, content, "stdin" if source == "-" else Path(source).name)
    sizes = [name for name, value in options.items() if value and name in SIZE_OPTIONS]
    if shape is not None and sizes:
        raise UsageError(
            f"--{sizes[0].replace('_', '-')}: {source or f'job {like}'} already has a size",
            "Use a file, a job or the options.",
        )
    return build_shape(options, shape)


def run_where(
    common: CommonOptions,
    *,
    source: str,
    like: str,
    form: str,
    refused: bool,
    options: Mapping[str, Any],
) -> None:
    """Print the places of a job on the chosen cluster, by default on all configured ones.

    Exits with 1 if none takes it, and with 3 if no cluster could be queried.
    """
    settings = load_settings(common.config)
    clusters = chosen_clusters(common, settings)

    async def work() -> tuple[PlaceAnswer, Sequence[ClusterSession]]:
        async with open_sessions(clusters, settings, common) as sessions:
            shape = read_shape(common, source, like, options, clusters[0].user)
            if like:
                job_id, name = split_cluster(like, clusters)
                named = (session for session in sessions if session.name == name)
                session = next(named, sessions[0])
                await session.store.resolve_backend()
                detail = await session.store.fetch_detail(job_id)
                shape = replace(shape, request=job_request(detail.job.to_pylist()[0]))
            return await search_places(shape, sessions), sessions

    answer, sessions = run_async(work())
    _print_answer(answer, sessions, form=form, refused=refused)
    if len(answer.errors) == len(sessions):
        sys.exit(EXIT_UNREACHABLE)
    if not any(place.accepts is not False for place in answer.places):
        sys.exit(EXIT_REFUSED)


def _print_answer(
    answer: PlaceAnswer,
    sessions: Sequence[ClusterSession],
    *,
    form: str,
    refused: bool,
) -> None:
    now = sessions[0].store.clock.now()
    print_notes(*(f"{name}: {error.message}" for name, error in answer.errors.items()))
    notes = []
    for cluster in answer.clusters:
        notes += [{"cluster": cluster.session.name, "text": note} for note in cluster.notes]
    print_notes(*(f"{note['cluster']}: {note['text']}" for note in notes))
    places = answer.places
    if form == "table" and not refused:
        places = tuple(place for place in places if place.accepts is not False) or places
    table = places_table(places if form != "table" else fold(places), now)
    if form == "json":
        rows = table_to_json_rows(table, PLACES.public_names)
        print_json(
            {
                "taken_at": format_utc(now),
                "places": rows,
                "errors": [
                    {"cluster": name, "problem": error.message}
                    for name, error in answer.errors.items()
                ],
                "notes": notes,
                "commands": answer.commands,
                "dry_runs": answer.dry_runs,
            }
        )
        return
    columns = [name for name in PLACES.printed if name != "cluster" or len(sessions) > 1]
    print_rows(PLACES, table, form, utc_now=now, columns=columns)
    if form == "csv":
        return
    hidden = len(answer.places) - len(places)
    if hidden:
        print(f"{counted(hidden, 'place')} would refuse it; --all lists them", file=sys.stderr)
    print(
        f"{counted(answer.commands, 'scheduler command')}, {counted(answer.dry_runs, 'dry run')}",
        file=sys.stderr,
    )
