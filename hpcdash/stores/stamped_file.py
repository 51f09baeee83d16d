"""A log file that notes, as it is read, how far the times in it are behind."""

from __future__ import annotations

from hpcdash.logs.metric_words import newest_stamp, zone_behind_seconds
from hpcdash.stores.log_file import Chunk, LogFile
from hpcdash.transport.base import Transport

# A time stands in one of the last lines.
_TAIL_BYTES = 1 << 14


class StampedFile(LogFile):
    """`behind_seconds` is what is to be added to its stamps that bear no zone: 0 where they bear one, and while nothing
    tells."""

    def __init__(self, transport: Transport, path: str, host: str = "", reader: tuple[str, ...] = ()) -> None:
        super().__init__(transport, path, host, reader)
        self.behind_seconds = 0.0
        self._stamp: tuple[float, bool] | None = None

    async def _read(self, begin: str, length: int) -> Chunk:
        chunk = await super()._read(begin, length)
        if chunk.content and chunk.ends_the_file:
            whole = chunk.content[: chunk.content.rfind(b"\n") + 1]
            stamp = newest_stamp(whole[-_TAIL_BYTES:].decode("utf-8", "replace"))
            # What was written since without a time tells nothing of the zone.
            if stamp is not None and stamp != self._stamp:
                self._stamp = stamp
                at, has_zone = stamp
                self.behind_seconds = 0.0 if has_zone else zone_behind_seconds(at, chunk.look.modified_at)
        return chunk
