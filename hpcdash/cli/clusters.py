"""`hpcdash clusters`: what is configured and found, adding one; `hpcdash config check`."""

from __future__ import annotations

import contextlib
import csv
import io
import sys
from typing import Any

from msgspec.structs import replace

from hpcdash.assembly import EMBEDDED, chosen_clusters, snapshot_cache
from hpcdash.backends.registry import NAMES
from hpcdash.cli.ending import run_async
from hpcdash.cli.jobs import open_sessions
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.terminal import print_json, print_notes, print_text
from hpcdash.config.local_schedulers import local_schedulers
from hpcdash.config.read import config_path, load_settings
from hpcdash.config.settings import ClusterSettings, Settings
from hpcdash.config.write import write_cluster
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import align_cells, counted, visible
from hpcdash.errors import EXIT_USAGE, HpcdashError, UsageError
from hpcdash.services.cluster.site import FILE as SITE_FILE
from hpcdash.services.cluster.site import (
    ProposedCluster,
    format_proposals,
    propose_clusters,
    read_site_clusters,
)
from hpcdash.ui.actions import ACTION_NAMES, key_problems

_COLUMNS = ("name", "title", "transport", "ssh", "backend", "user", "default", "origin")


def cluster_rows(settings: Settings) -> list[dict[str, Any]]:
    """Return an entry per cluster: the configured ones, then this machine's own schedulers."""
    first = settings.default_cluster or next(iter(settings.clusters), None)
    rows: list[dict[str, Any]] = [
        {
            "name": cluster.name,
            "title": cluster.title,
            "transport": cluster.transport,
            "ssh": None if cluster.ssh is None else str(cluster.ssh),
            "backend": cluster.backend,
            "user": cluster.user,
            "default": cluster.name == first,
            "origin": "configured",
        }
        for cluster in settings.clusters.values()
    ]
    rows += [
        {
            "name": "local",
            "title": "local",
            "transport": "local",
            "ssh": None,
            "backend": backend,
            "user": None,
            "default": not settings.clusters,
            "origin": "found on this machine",
        }
        for backend in (*local_schedulers(), EMBEDDED)
    ]
    return rows


def proposed_clusters(
    common: CommonOptions, settings: Settings
) -> tuple[list[ProposedCluster], str]:
    """Return the known clusters of the sites that are not configured, without a query, and the
    configuration file.
    """
    chosen = replace(common, cluster=None) if common.cluster else common
    clusters = {one.name: one for one in chosen_clusters(chosen, settings)}
    known = []
    for cluster in {**clusters, **settings.clusters}.values():
        with contextlib.suppress(UsageError):
            file = snapshot_cache(cluster).folder / SITE_FILE
            known.append((cluster, read_site_clusters(file)))
    path, _ = config_path(common.config)
    return propose_clusters(known), str(path)


def run_clusters(common: CommonOptions, form: str) -> None:
    """Print the clusters without querying any."""
    settings = load_settings(common.config)
    rows = cluster_rows(settings)
    proposed, file = proposed_clusters(common, settings)
    if form == "json":
        print_json({"clusters": rows, "proposed": proposed})
        return
    if form == "csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, _COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
        print_text(text.getvalue())
        return
    if not rows:
        path, _ = config_path(common.config)
        print(
            f"No cluster is configured in {path}, and this machine has no scheduler.\n"
            "Add one: hpcdash clusters add NAME --ssh USER@HOST",
            file=sys.stderr,
        )
        return
    cells = [["NAME", "CONNECTION", "SCHEDULER", "USER", "FROM"]]
    cells += [
        [
            f"{row['name']}{' *' if row['default'] else ''}",
            f"{row['transport']} {row['ssh'] or ''}".strip(),
            row["backend"] or "detected",
            row["user"] or "",
            row["origin"],
        ]
        for row in rows
    ]
    print(*align_cells(cells), sep="\n")
    if lines := format_proposals(proposed, file):
        print("", *lines, sep="\n")


def run_add(common: CommonOptions, name: str, fields: dict[str, str], *, force: bool) -> None:
    """Try a cluster and write it into the configuration; after a failed trial only with `force`.

    The scheduler that was found is written as well, which saves the next search.
    """
    if common.ssh:
        fields = {"ssh": common.ssh, **fields}
    if common.backend:
        fields["backend"] = common.backend
    if not common.ssh:
        if not common.local:
            raise UsageError(
                "no machine given", "Use --ssh [USER@]HOST[:PORT], or --local for this machine."
            )
        fields["transport"] = "local"
    path, _ = config_path(common.config)
    # Check that the file is writable before prompting for a password.
    settings = write_cluster(path, name, fields, only_check=True)
    try:
        backend, text = run_async(_try_cluster(settings.clusters[name], settings, common))
        print(visible(text))
    except HpcdashError as error:
        if not force:
            stored = f"Nothing was written to {path}; --force adds it anyway."
            error.next_step = f"{error.next_step}\n{stored}" if error.next_step else stored
            raise
        print_notes(f"{error.message.rstrip('.')}; added anyway")
    else:
        if backend in NAMES:
            fields.setdefault("backend", backend)
    write_cluster(path, name, fields)
    print(f"added {name} to {path}")
    print(f"open it:  hpcdash --cluster {name}      test it:  hpcdash doctor --cluster {name}")


async def _try_cluster(
    cluster: ClusterSettings, settings: Settings, common: CommonOptions
) -> tuple[str, str]:
    """Return the backend found, and a description of the cluster: user and number of nodes.

    Raises the error of the trial.
    """
    async with open_sessions([cluster], settings, common) as [session]:
        probe = await session.store.open()
        nodes = (await session.store.fetch(Kind.NODES)).table.num_rows
    backend = session.store.backend
    title = f"{backend.title[:1].upper()}{backend.title[1:]}"
    # `slurm-wlm 22.05.8`, `OpenPBS 23.06.06`.
    version = probe.version.rpartition(" ")[2]
    if version[:1].isdigit():
        title = f"{title} {version}"
    return backend.name, f"{title} as {probe.user}, {counted(nodes, 'node')}"


def run_config_check(common: CommonOptions) -> None:
    """Check the configuration and the recipients' secrets; errors name file, line and key."""
    settings = load_settings(common.config, action_names=ACTION_NAMES, check=key_problems)
    if settings.file is None:
        path, _ = config_path(common.config)
        print(
            f"{path} does not exist; using defaults (`hpcdash config example` shows every setting)"
        )
        return
    from hpcdash.services.watch.secrets import build_notifiers, unready

    clusters = counted(len(settings.clusters), "cluster")
    notifiers, warnings = build_notifiers(settings.watch.notices, str(settings.file))
    print_notes(*warnings)
    mute = unready(notifiers)
    if not mute:
        print(f"{settings.file}: valid, {clusters}")
        return
    print(f"{settings.file}: {clusters}, but {len(mute)} recipients cannot be notified")
    errors = [notifier.error for notifier in mute]
    print_notes(*(f"{error.message}. {error.next_step}" for error in errors))
    sys.exit(EXIT_USAGE)
