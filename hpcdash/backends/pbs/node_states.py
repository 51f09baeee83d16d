"""PBS's and Torque's words for the state of a node, and ours for them. Knows no table.

Sources: pbsnodes(8B) and pbs_node_attributes(7B), Torque's pbs_nodes.h, Slurm's contribs/torque/pbsnodes.
"""

from __future__ import annotations

import re

from hpcdash.domain.states import NodeState

# In the order in which they decide, where a node has several.
_STATES: tuple[tuple[str, NodeState], ...] = (
    ("down", NodeState.DOWN),
    # Its daemon does not report this vnode any more.
    ("stale", NodeState.DOWN),
    ("unresolvable", NodeState.DOWN),
    ("fail", NodeState.DOWN),
    ("error", NodeState.DOWN),
    ("offline", NodeState.DRAINED),
    ("offline-by-mom", NodeState.DRAINED),
    ("drained", NodeState.DRAINED),
    ("draining", NodeState.DRAINING),
    ("state-unknown", NodeState.UNKNOWN),
    ("maintenance", NodeState.RESERVED),
    ("maint", NodeState.RESERVED),
    ("job-busy", NodeState.ALLOCATED),
    ("job-exclusive", NodeState.ALLOCATED),
    ("allocated", NodeState.ALLOCATED),
    # Its load is over the limit: it takes no more, whoever makes the load.
    ("busy", NodeState.ALLOCATED),
    ("resv-exclusive", NodeState.RESERVED),
    ("reserve", NodeState.RESERVED),
    ("reserved", NodeState.RESERVED),
    # An image is being installed for the job that waits for it.
    ("provisioning", NodeState.PLANNED),
    ("wait-provisioning", NodeState.PLANNED),
    ("planned", NodeState.PLANNED),
    ("mixed", NodeState.MIXED),
    ("completing", NodeState.MIXED),
    ("free", NodeState.IDLE),
    ("idle", NodeState.IDLE),
    ("job-sharing", NodeState.IDLE),
    ("time-shared", NodeState.IDLE),
    # Switched off to save power, and on again for a job.
    ("sleep", NodeState.IDLE),
)
_STATE_OF = dict(_STATES)
_PLACE_OF = {word: place for place, (word, _) in enumerate(_STATES)}
# Of these the state says all.
_SAID_BY_STATE = frozenset({"free", "idle", "mixed", "allocated", "job-busy", "job-exclusive", "job-sharing"})
_FLAG_NAMES = {"maintenance": "maint"}
_BAD = frozenset({NodeState.DOWN, NodeState.DRAINED, NodeState.DRAINING, NodeState.UNKNOWN})


def node_state(native: str, *, has_jobs: bool) -> tuple[NodeState, list[str]]:
    """Our state and the flags of `free`, `down,offline` or `<various>`; unknown where no word of it is known.

    A flag is a word beside the one that made the state, or one that says more than the state does.
    """
    words = list(dict.fromkeys(re.findall(r"[a-z][a-z0-9_-]*", native.lower().replace("_", "-"))))
    known = sorted((word for word in words if word in _STATE_OF), key=_PLACE_OF.__getitem__)
    if not known:
        return NodeState.UNKNOWN, [word.replace("-", "_") for word in words]
    state = _STATE_OF[known[0]]
    if has_jobs and state is NodeState.IDLE:
        state = NodeState.MIXED
    elif has_jobs and state is NodeState.DRAINED:
        state = NodeState.DRAINING
    told = _SAID_BY_STATE | {str(state)}
    flags = [_FLAG_NAMES.get(word, word.replace("-", "_")) for word in words if word not in told]
    return state, flags


def is_bad(state: NodeState) -> bool:
    """Whether no job can start there for now, for a reason that somebody has to see to."""
    return state in _BAD
