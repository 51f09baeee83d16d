"""Job ids as a table shows them: without the PBS server that all of them name. Slurm's ids are short as they are."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.domain.columns import Column, as_array
from hpcdash.domain.job_ids import server_of


def shared_ending(ids: Column) -> str:
    """What all ids of a column end with from the first dot on: `.server`; '' where they do not, or there is none."""
    array = as_array(ids)
    if not len(array) or array.null_count:
        return ""
    server = server_of(array[0].as_py())
    ending = f".{server}"
    if not server or not pc.all(pc.ends_with(array, ending)).as_py():
        return ""
    begins = pc.subtract(pc.binary_length(array), len(ending))
    return ending if pc.all(pc.equal(pc.find_substring(array, "."), begins)).as_py() else ""


def shortened(ids: Column) -> pa.Array:
    """The ids without the ending that all share."""
    array = as_array(ids)
    ending = shared_ending(array)
    return pc.utf8_slice_codeunits(array, 0, -len(ending)) if ending else array
