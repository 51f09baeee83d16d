"""State of a training in files of its ranks: tensors by torch, the rest as pickles of plain values.

Reading them runs no code: the pickles may name no class, and torch loads only weights.
"""

from __future__ import annotations

import os
import pickle
import stat
import sys
from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, BinaryIO

    Tensor = Any

FORMAT = 1
# Rank 0 writes a smaller model alone: that takes two seconds, and a single file is easier to copy.
SMALL_BYTES = 2 << 30
_PLAIN: tuple[Any, ...] = (bool, int, float, str, bytes)
# Keys of the placeholder of a tensor among plain values: its number, and a mark for a part of a
# DTensor.
_TENSOR = "__tensor__"
_LOCAL = "__local__"


class Parts:
    """State in parts: `plain` values with placeholders for the `tensors`, which are at `paths`."""

    def __init__(self, state: object) -> None:
        self.tensors: list[Tensor] = []
        self.paths: list[tuple[str, ...]] = []
        self.plain = self._plain(state, ())

    def _plain(self, value: Any, path: tuple[str, ...]) -> Any:
        """Return the plain values of a value; raises TypeError for an unsupported type."""
        if value is None or type(value) in _PLAIN:
            return value
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return self._placeholder(value, path)
        if isinstance(value, Mapping):
            if _TENSOR in value:
                raise TypeError(f"{_path(path)}: a key {_TENSOR!r} cannot be saved")
            return {
                self._plain(key, path): self._plain(item, (*path, str(key)))
                for key, item in value.items()
            }
        for kind in (list, tuple, set, frozenset):
            if isinstance(value, kind):
                return kind(
                    self._plain(item, (*path, str(index))) for index, item in enumerate(value)
                )
        for kind in _PLAIN:
            # Types of numpy and enumerations.
            if isinstance(value, kind):
                return kind(value)
        if getattr(value, "shape", None) == () and hasattr(value, "item"):
            return self._plain(value.item(), path)
        raise _unsavable(value, path)

    def _placeholder(self, tensor: Tensor, path: tuple[str, ...]) -> dict[str, int]:
        """Store a tensor, and return its placeholder."""
        placeholder = {_TENSOR: len(self.tensors)}
        if hasattr(tensor, "to_local"):
            tensor = tensor.to_local()
            placeholder[_LOCAL] = 1
        tensor = tensor.detach()
        if type(tensor) is not sys.modules["torch"].Tensor:
            raise _unsavable(tensor, path)
        self.tensors.append(tensor)
        self.paths.append(path)
        return placeholder

    @property
    def has_local(self) -> bool:
        """Whether there are parts of tensors that are spread over ranks."""
        return _has_local(self.plain)

    def layout(self) -> int:
        """Return a checksum of the tensors' names, types and shapes, to compare between ranks."""
        from zlib import crc32

        shapes = [
            (path, str(tensor.dtype), tuple(tensor.shape))
            for path, tensor in zip(self.paths, self.tensors)
        ]
        return crc32(repr(shapes).encode())

    def owners(self, ranks: int, is_same: Callable[[tuple[str, ...]], bool]) -> list[int]:
        """Return the rank that writes each tensor, with about equal bytes for each rank.

        `is_same` returns whether the tensor at a path is the same in all ranks; rank 0 writes the
        other tensors.
        """
        sizes = [tensor.numel() * tensor.element_size() for tensor in self.tensors]
        owners = [0] * len(sizes)
        if ranks == 1 or sum(sizes) < SMALL_BYTES:
            return owners
        loads = [0] * ranks
        loads[0] = sum(size for size, path in zip(sizes, self.paths) if not is_same(path))
        for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
            if is_same(self.paths[number]):
                owners[number] = loads.index(min(loads))
                loads[owners[number]] += sizes[number]
        return owners


def put_together(
    plain: Any, tensors: Mapping[int, Tensor], like: Callable[[tuple[str, ...]], Tensor]
) -> Any:
    """Return the state of its parts.

    `like` returns this rank's current DTensor at a path, which a part belongs to.
    """

    def restore(value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, dict):
            if _TENSOR not in value:
                return {key: restore(item, (*path, str(key))) for key, item in value.items()}
            tensor = tensors[value[_TENSOR]]
            return _spread(tensor, like(path), path) if _LOCAL in value else tensor
        if isinstance(value, (list, tuple)):
            return type(value)(
                restore(item, (*path, str(index))) for index, item in enumerate(value)
            )
        return value

    return restore(plain, ())


def _spread(tensor: Tensor, like: Tensor, path: tuple[str, ...]) -> Tensor:
    """Return a DTensor with this rank's part, which is spread over ranks like another DTensor."""
    if not hasattr(like, "to_local") or like.to_local().shape != tensor.shape:
        raise RuntimeError(
            f"{_path(path)} was saved in shards of different sizes, by ranks with a different "
            "layout"
        )
    return type(like).from_local(
        tensor.to(like.to_local().device),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def _has_local(plain: Any) -> bool:
    if isinstance(plain, dict):
        return _LOCAL in plain or any(map(_has_local, plain.values()))
    return isinstance(plain, (list, tuple)) and any(map(_has_local, plain))


def _unsavable(value: object, path: tuple[str, ...]) -> TypeError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return TypeError(
        f"{_path(path)} is a {kind}, which cannot be saved: use tensors, numbers, strings, and "
        "lists, tuples, dicts and sets of them"
    )


def _path(path: Iterable[str]) -> str:
    return ".".join(path) or "the state"


def write_plain(folder: str | os.PathLike[str], rank: int, value: Mapping[str, Any]) -> None:
    """Write the plain values of a rank."""
    with open(_file(folder, rank, "state"), "wb") as file:
        pickle.dump({**value, "format": FORMAT}, file, protocol=4)


def write_tensors(folder: str | os.PathLike[str], rank: int, tensors: Mapping[int, Tensor]) -> None:
    """Write the tensors of a rank by number; no file if there are none."""
    if tensors:
        compact = {number: _compact(tensor) for number, tensor in tensors.items()}
        sys.modules["torch"].save(compact, _file(folder, rank, "pt"))


def read_plain(folder: str | os.PathLike[str], rank: int) -> dict[str, Any]:
    """Read the plain values of a rank.

    Raises RuntimeError for a file that is missing, of another user, or of another kind.
    """
    path = _file(folder, rank, "state")
    with _own_file(path) as file:
        try:
            value = _NoClasses(file).load()
        # Arbitrary bytes may raise any error of pickle.
        except Exception as error:
            raise RuntimeError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise RuntimeError(f"{path} was not saved by this version of hpcdash.job")
    return value


def read_tensors(folder: str | os.PathLike[str], ranks: Sequence[int]) -> dict[int, Tensor]:
    """Read the tensors of ranks by number, into host memory.

    Raises RuntimeError as `read_plain` does.
    """
    found: dict[int, Tensor] = {}
    for rank in ranks:
        path = _file(folder, rank, "pt")
        torch = sys.modules.get("torch")
        if torch is None:
            raise RuntimeError(f"{path} contains tensors: import torch first")
        with _own_file(path) as file:
            try:
                found.update(torch.load(file, map_location="cpu", weights_only=True))
            # Errors of torch, zipfile and pickle, which are not documented.
            except Exception as error:
                raise RuntimeError(f"{path} cannot be read: {error}") from error
    return found


class _NoClasses(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(
            f"it refers to {module}.{name}, but a checkpoint may contain only plain values"
        )


def _own_file(path: str) -> BinaryIO:
    """Open a file of this user or root; raises RuntimeError for other users' files, because a
    checkpoint decides what is trained.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise RuntimeError(f"{path} cannot be read: {error.strerror}") from error
    status = os.fstat(file)
    owners = {status.st_uid, os.stat(os.path.dirname(path)).st_uid}
    if not stat.S_ISREG(status.st_mode) or owners - {os.geteuid(), 0}:
        os.close(file)
        raise RuntimeError(
            f"{path} is not loaded: it belongs to another user. If you trust it, resume from a "
            f"copy of your own: cp -r {os.path.dirname(os.path.dirname(path))} FOLDER"
        )
    return os.fdopen(file, "rb")


def _file(folder: str | os.PathLike[str], rank: int, ending: str) -> str:
    return os.path.join(folder, f"rank-{rank:05d}.{ending}")


def _compact(tensor: Tensor) -> Tensor:
    """Return a tensor with memory of its own: torch would write all that it is a view of."""
    if tensor.layout is not sys.modules["torch"].strided:
        return tensor
    storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
    return tensor.clone() if storage.nbytes() > tensor.numel() * tensor.element_size() else tensor
