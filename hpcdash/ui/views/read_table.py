"""A table of one thing that a reader reads whole, and again where the job lists show it in another state."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.snapshots import Kind
from hpcdash.services.cluster.store import Changed
from hpcdash.ui.session import ClusterSession
from hpcdash.ui.views.table import TableView


class Reader(Protocol):
    """Reads the thing as it is now; what it finds is its own to tell."""

    async def read(self) -> object: ...


class ReadTableView(TableView):
    """Give `reader` and `states_in_lists`; `show_read` is called whenever there is more to show."""

    reader: Reader
    # Changes that are looked at; None is one of the whole store.
    LISTS: ClassVar[frozenset[Kind | None]] = frozenset({Kind.MINE, Kind.EVERYONE, Kind.HISTORY})

    def __init__(self, session: ClusterSession, **rest: Any) -> None:
        self._error: HpcdashError | None = None
        self._read_at: float | None = None
        self._reading = False
        self._again_wanted = False
        self._states: object = None
        super().__init__(session, **rest)

    @property
    def kinds(self) -> frozenset[Kind]:
        return frozenset({Kind.MINE})

    @property
    def main_kind(self) -> Kind | None:
        return None

    @property
    def own_error(self) -> HpcdashError | None:
        return self._error

    def taken_at(self) -> float | None:
        return self._read_at

    def states_in_lists(self) -> object:
        """What the lists say of it, comparable with what they said before."""
        raise NotImplementedError

    def show_read(self) -> None:
        """Put what the reader knows on the screen."""
        self.reload()

    def do_ask_now(self) -> None:
        self.session.poller.ask_now()
        self.read()

    def store_changed(self, changed: Changed) -> None:
        """Read again only where a list shows other states: each reading is several commands."""
        if changed.kind in self.LISTS and (states := self.states_in_lists()) != self._states:
            self._states = states
            self.read()

    def read(self) -> None:
        """Read it now, or once more after what is being read."""
        if self._reading:
            self._again_wanted = True
            return
        self._reading = True
        self.run_worker(self._read(), group="read")

    async def _read(self) -> None:
        try:
            while True:
                self._again_wanted = False
                try:
                    await self.reader.read()
                except HpcdashError as error:
                    self._error = error.with_traceback(None)
                else:
                    self._error = None
                    self._read_at = self.session.store.clock.now()
                if not self._again_wanted:
                    return
        finally:
            self._reading = False
            self.show_read()
