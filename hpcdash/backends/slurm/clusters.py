"""Jobs of clusters beside Slurm's default one: their IDs are 15@NAME, and commands have -M NAME."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.job_detail import JobDetail
from hpcdash.backends.queries import Answer, AnswerPart, ParsedTable, Query, Row
from hpcdash.backends.slurm.commands import LAST_SETTING
from hpcdash.backends.slurm.rows import Columns
from hpcdash.domain.columns import with_columns
from hpcdash.domain.job_ids import plain_id
from hpcdash.errors import UsageError

T = TypeVar("T")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_PROGRAMS = (
    "squeue",
    "sinfo",
    "sacct",
    "scontrol",
    "scancel",
    "sbatch",
    "sprio",
    "sshare",
    "srun",
    "salloc",
)
# A call in a script of ours, not a name in a list of programs.
_CALL = re.compile(rf"(?<![\w./-])({'|'.join(_PROGRAMS)})(?= +(?:-|show |write ))")


class Clusters(Struct, frozen=True):
    """`named` are those of SLURM_CLUSTERS, which no command sees; `own` is the default one, ''
    where it is unknown.

    `counts_gpus`: the site's TRES count GPUs, so that a record that names none has none.
    `has_exclusive`: squeue is of 26.05 or later, whose field `exclusive` reports of a job that it
    has whole nodes; before, `oversubscribe` does.
    """

    named: tuple[str, ...] = ()
    own: str = ""
    counts_gpus: bool = True
    has_exclusive: bool = False

    def __post_init__(self) -> None:
        for name in self.named:
            if not NAME.fullmatch(name):
                raise UsageError(
                    f"SLURM_CLUSTERS contains {name!r}, which is not a cluster",
                    "Fix or unset it.",
                )

    @property
    def default(self) -> str:
        """The cluster to name where a job does not; '' for Slurm's own choice."""
        return self.named[0] if len(self.named) == 1 and self.named != ("all",) else ""

    @property
    def several(self) -> str:
        """Clusters that reads query, as -M takes them; '' where there is only one."""
        return "" if self.default else ",".join(self.named)

    def split_cluster(self, job_id: str) -> tuple[str, str]:
        """(the id there, its cluster or ''); raises UsageError for an id that several clusters may
        have.
        """
        plain, cluster = plain_id(job_id)
        if cluster and not NAME.fullmatch(cluster):
            raise UsageError(f"{cluster!r} is not a cluster name", "Use 12@CLUSTER.")
        if not cluster and self.several:
            raise UsageError(
                f"job {job_id} is ambiguous: SLURM_CLUSTERS contains several clusters: "
                f"{self.several}",
                f"Use {job_id}@CLUSTER.",
            )
        if cluster == self.own and not self.named:
            return plain, ""
        return plain, cluster or self.default

    def select(self, job_ids: Sequence[str]) -> tuple[tuple[str, ...], str, bool]:
        """(the IDs there, the clusters to query as -M takes them, whether these are several).

        Raises UsageError for IDs of several clusters where the own cluster's name is unknown.
        """
        if not job_ids and self.several:
            return (), self.several, True
        named = [self.split_cluster(job_id) for job_id in job_ids]
        plain_ids = tuple(dict.fromkeys(plain for plain, _ in named))
        requested = dict.fromkeys(cluster for _, cluster in named)
        if len(requested) <= 1:
            return plain_ids, next(iter(requested), self.default), False
        if "" in requested and not self.own:
            raise UsageError("the jobs are on several clusters", "Use one cluster at a time.")
        return plain_ids, ",".join(cluster or self.own for cluster in requested), True

    def plain_row(self, row: Row) -> tuple[Row, str]:
        """Return a job's row with its id there, and its cluster or ''."""
        plain, cluster = self.split_cluster(str(row["id"]))
        return {**row, "id": plain}, cluster

    def plain_detail(self, detail: JobDetail) -> JobDetail:
        """Return a detail with the ids that the job has on its cluster."""
        row = detail.row
        plain, _ = self.split_cluster(str(row["id"]))
        array_id = None if row["array_id"] is None else plain_id(str(row["array_id"]))[0]
        ids = {"id": pa.array([plain], pa.string()), "array_id": pa.array([array_id], pa.string())}
        return replace(detail, job=with_columns(detail.job, ids))

    def require_one(self) -> str:
        """The cluster for what no job names; raises UsageError where there are several."""
        if self.several:
            raise UsageError(
                f"this needs one cluster, but SLURM_CLUSTERS contains several: {self.several}",
                "Set SLURM_CLUSTERS to one of them, or unset it.",
            )
        return self.default


NO_OTHERS = Clusters()


class ClusterPart:
    """A part of the backend: its commands are for clusters."""

    def __init__(self, clusters: Clusters = NO_OTHERS) -> None:
        self.clusters = clusters


def on_cluster(argv: Sequence[str], cluster: str) -> tuple[str, ...]:
    """A command of Slurm's, or a script that runs some, for a cluster; as it is for ''."""
    if not cluster:
        return tuple(argv)
    # Arguments after the environment that most commands of ours have; a person's own arguments
    # follow.
    start = argv.index(LAST_SETTING) + 1 if LAST_SETTING in argv else 0
    if argv[start] == "sh":
        script = _CALL.sub(rf"\1 -M {cluster}", argv[start + 2])
        return (*argv[: start + 2], script, *argv[start + 3 :])
    at = next(place for place, word in enumerate(argv) if place >= start and word in _PROGRAMS) + 1
    return (*argv[:at], "-M", cluster, *argv[at:])


def query_on(query: Query[T], cluster: str) -> Query[T]:
    return replace(query, argv=on_cluster(query.argv, cluster)) if cluster else query


def with_clusters(parsed: ParsedTable, cluster: str | pa.Array) -> ParsedTable:
    """Rows whose ids name a cluster: one for all, or one a row."""
    if isinstance(cluster, str) and not cluster:
        return parsed
    table = parsed.table
    changed = {
        name: pc.binary_join_element_wise(table[name].combine_chunks(), cluster, "@")
        for name in ("id", "array_id")
        if name in table.column_names
    }
    return replace(parsed, table=with_columns(table, changed).combine_chunks())


def named_on_clusters(columns: Columns, *names: str) -> Columns:
    """Rows of several clusters, each with its cluster's name behind those columns."""
    table = columns.table
    changed = {}
    for name in names:
        text = pc.replace_substring_regex(table[name].combine_chunks(), r"\*$", "")
        changed[name] = pc.binary_join_element_wise(text, table["cluster"].combine_chunks(), "@")
    return Columns(with_columns(table, changed), columns.rejected)


def named_rows(query: Query[ParsedTable], cluster: str) -> Query[ParsedTable]:
    """A list of jobs of a cluster, whose ids name it."""
    if not cluster:
        return query
    parse = query.parse
    return replace(
        query_on(query, cluster), parse=lambda answer: with_clusters(parse(answer), cluster)
    )


def known_in_part(answer: Answer) -> Answer:
    """Return an answer of which some clusters know nothing without their failure."""
    if answer.status == 0 or not answer.stdout:
        return answer
    return AnswerPart(answer.argv, answer.stdout, answer.stderr, answer.truncated)
