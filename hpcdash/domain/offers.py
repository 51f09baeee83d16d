"""Offers of a cluster to a person who submits there: queues, accounts, QoS."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field


class QueueAccess(Struct, frozen=True):
    """Accounts and QoS that a queue admits, and the sizes of jobs that it takes.

    `accounts` and `qos` are the only ones admitted, None: all but the denied ones.
    `admits_subaccounts`: accounts below an admitted one are admitted, too. Sizes of None: no limit.
    """

    accounts: tuple[str, ...] | None = None
    denied_accounts: tuple[str, ...] = ()
    qos: tuple[str, ...] | None = None
    denied_qos: tuple[str, ...] = ()
    admits_subaccounts: bool = False
    min_nodes: int | None = None
    max_nodes: int | None = None
    max_cpus_per_node: int | None = None
    # The limit of a job that requests none.
    default_limit_seconds: int | None = None


class AccessRules(Struct, frozen=True):
    """Access to queues by their names, and the QoS that override a queue's time limit, or its
    numbers of nodes.
    """

    queues: Mapping[str, QueueAccess] = field(default_factory=dict)
    over_time: frozenset[str] = frozenset()
    over_nodes: frozenset[str] = frozenset()


class QueueOffer(Struct, frozen=True):
    """A queue (Slurm: partition).

    `nodes`, `cpus` and `gpus` are all it has, `*_idle` what is free now, `gpu_nodes` the nodes that
    have GPUs (0: not known).

    `limit_seconds` is the longest time a job may ask for, None: no limit, or not told. `*_per_node`
    are those of its largest node, None where its nodes are not known; `gpu_types` are sorted.
    `note` says what it does with jobs besides starting them (`disabled: …`, `routes jobs to …`),
    `server_note` what keeps all jobs from starting, '' for nothing; one that `refuses` does not
    even take the job. One that is not `is_listed` is hidden, or closed to whoever submits: nobody
    is pointed to it.
    """

    name: str
    is_default: bool = False
    is_available: bool = True
    limit_seconds: int | None = None
    nodes: int = 0
    nodes_idle: int = 0
    cpus: int = 0
    cpus_idle: int = 0
    gpus: int = 0
    gpus_idle: int = 0
    gpu_types: tuple[str, ...] = ()
    cpus_per_node: int | None = None
    gpus_per_node: int | None = None
    memory_per_node_bytes: int | None = None
    gpu_nodes: int = 0
    note: str = ""
    server_note: str = ""
    refuses: bool = False
    is_listed: bool = True

    @property
    def closed_reason(self) -> str:
        """Reason that it starts no job now, as far as known; of an open one its server's note."""
        if self.is_available:
            return self.server_note
        reasons = [self.server_note] if self.server_note else []
        if self.note:
            reasons.insert(0, f"queue {self.name} is {self.note}")
        return "; ".join(reasons) or f"queue {self.name} is not starting jobs now"


class QueueLimits(Struct, frozen=True):
    """Limits of a queue: CPUs per chunk of a job (`chunk_cpus`), CPUs and GPUs of a job.

    None: unknown. `destinations` are the queues that a routing queue passes its jobs on to.
    """

    chunk_cpus: int | None = None
    most_cpus: int | None = None
    most_gpus: int | None = None
    destinations: tuple[str, ...] = ()


class CpuShare(Struct, frozen=True):
    """The CPUs that go with each GPU where a request does not say, None where the queue decides;
    `text` says so.
    """

    per_gpu: int | None
    text: str


class AccountOffer(Struct, frozen=True):
    """An account that one may charge, and the QoS it may request, its default first.

    No `qos`: unknown. `queues` are the only ones that it may be charged in, () for all.
    """

    name: str
    is_default: bool = False
    qos: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()


class QosOffer(Struct, frozen=True):
    """Limits of a QoS: a job's longest time, a user's running jobs, CPUs and GPUs at once.

    None: no limit. `note` is text on anything else, '' for none.
    """

    name: str
    limit_seconds: int | None = None
    most_jobs: int | None = None
    most_cpus: int | None = None
    most_gpus: int | None = None
    note: str = ""


class Offers(Struct, frozen=True):
    """All of it; `accounts` and `qos` are empty where there are none, or they cannot be asked: then
    a note says so.
    """

    queues: tuple[QueueOffer, ...] = ()
    accounts: tuple[AccountOffer, ...] = ()
    qos: tuple[QosOffer, ...] = ()
    gpu_types: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    # None: unknown, or no queue has such rules.
    access: AccessRules | None = None

    def queue_access(self, name: str) -> QueueAccess:
        """Return the access to a queue; by default anyone may submit any job."""
        rules = self.access
        return QueueAccess() if rules is None else rules.queues.get(name, QueueAccess())

    @property
    def listed(self) -> tuple[QueueOffer, ...]:
        """The queues that people may be pointed to."""
        return tuple(queue for queue in self.queues if queue.is_listed)

    def queue(self, name: str) -> QueueOffer | None:
        """The queue of that name; for '' the default one. None where there is none."""
        if name:
            return next((queue for queue in self.queues if queue.name == name), None)
        return next((queue for queue in self.queues if queue.is_default), None)
