"""State of a training in its ranks' files: tensors by torch, the rest as pickles of plain values.

Reading them runs no code of their writer: the pickle may name no class, and torch loads weights
only.
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
# Rank 0 writes a smaller model alone: it takes two seconds, and one file is easier to carry about.
SMALL_BYTES = 2 << 30
_PLAIN: tuple[Any, ...] = (bool, int, float, str, bytes)
# Placeholder of a tensor among plain values, with its number; and the mark of a part of a DTensor.
_TENSOR, _LOCAL = "__tensor__", "__local__"


class Parts:
    """A state taken apart: `plain` values, in which numbers stand for the `tensors`, each with its
    `paths` there.
    """

    def __init__(self, state: object) -> None:
        self.tensors: list[Tensor] = []
        self.paths: list[tuple[str, ...]] = []
        self.plain = self._plain(state, ())

    def _plain(self, value: Any, path: tuple[str, ...]) -> Any:
        """Raises TypeError for what is neither a tensor nor plain."""
        if value is None or type(value) in _PLAIN:
            return value
        if _is_tensor(value):
            return self._tensor(value, path)
        if isinstance(value, Mapping):
            if _TENSOR in value:
                raise TypeError(f"{_path(path)}: a key {_TENSOR!r} cannot be saved")
            return {
                self._plain(key, path): self._plain(one, (*path, str(key)))
                for key, one in value.items()
            }
        for kind in (list, tuple, set, frozenset):
            if isinstance(value, kind):
                return kind(
                    self._plain(one, (*path, str(number))) for number, one in enumerate(value)
                )
        for simple in _PLAIN:
            # Of numpy, an enumeration.
            if isinstance(value, simple):
                return simple(value)
        if getattr(value, "shape", None) == () and hasattr(value, "item"):
            return self._plain(value.item(), path)
        raise _unsavable(value, path)

    def _tensor(self, value: Tensor, path: tuple[str, ...]) -> dict[str, int]:
        stands = {_TENSOR: len(self.tensors)}
        if hasattr(value, "to_local"):
            value = value.to_local()
            stands[_LOCAL] = 1
        value = value.detach()
        if type(value) is not sys.modules["torch"].Tensor:
            raise _unsavable(value, path)
        self.tensors.append(value)
        self.paths.append(path)
        return stands

    @property
    def has_local(self) -> bool:
        """Whether it has parts of tensors that are spread over ranks."""
        return _has_local(self.plain)

    def layout(self) -> int:
        """A number that is the same in all ranks whose tensors have the same names, types and
        shapes.
        """
        from zlib import crc32

        shapes = [
            (path, str(one.dtype), tuple(one.shape)) for path, one in zip(self.paths, self.tensors)
        ]
        return crc32(repr(shapes).encode())

    def owners(self, ranks: int, is_same: Callable[[tuple[str, ...]], bool]) -> list[int]:
        """Return the rank that writes each tensor, with about equal bytes per rank.

        Rank 0 writes the tensors that may differ between ranks.
        """
        sizes = [one.numel() * one.element_size() for one in self.tensors]
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
    """The state that was taken apart.

    `like` gives the DTensor of this rank that a part belongs to, by its path.
    """

    def whole(value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, dict):
            if _TENSOR not in value:
                return {key: whole(one, (*path, str(key))) for key, one in value.items()}
            tensor = tensors[value[_TENSOR]]
            return _spread(tensor, like(path), path) if _LOCAL in value else tensor
        if isinstance(value, (list, tuple)):
            return type(value)(whole(one, (*path, str(number))) for number, one in enumerate(value))
        return value

    return whole(plain, ())


def _spread(tensor: Tensor, like: Tensor, path: tuple[str, ...]) -> Tensor:
    """A DTensor of which this rank has a part."""
    if not hasattr(like, "to_local") or like.to_local().shape != tensor.shape:
        raise RuntimeError(
            f"{_path(path)} was saved in shards of different sizes, by ranks with a different "
            "layout"
        )
    mesh, spread = like.device_mesh, like.placements
    local = tensor.to(like.to_local().device)
    return type(like).from_local(
        local, mesh, spread, run_check=False, shape=like.shape, stride=like.stride()
    )


def _has_local(plain: Any) -> bool:
    if isinstance(plain, dict):
        return _LOCAL in plain or any(map(_has_local, plain.values()))
    return isinstance(plain, (list, tuple)) and any(map(_has_local, plain))


def _is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _unsavable(value: object, path: tuple[str, ...]) -> TypeError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return TypeError(
        f"{_path(path)} is a {kind}, which cannot be saved: use tensors, numbers, strings, and "
        "lists, tuples, dicts and sets of them"
    )


def _path(path: Iterable[str]) -> str:
    return ".".join(path) or "the state"


# -- files


def write_plain(folder: str | os.PathLike[str], rank: int, value: Mapping[str, Any]) -> None:
    """Writes what `read_plain` reads."""
    with open(_file(folder, rank, "state"), "wb") as file:
        pickle.dump({**value, "format": FORMAT}, file, protocol=4)


def write_tensors(folder: str | os.PathLike[str], rank: int, tensors: Mapping[int, Tensor]) -> None:
    """Writes what `read_tensors` reads; nothing for none."""
    if tensors:
        sys.modules["torch"].save(
            {number: _alone(one) for number, one in tensors.items()}, _file(folder, rank, "pt")
        )


def read_plain(folder: str | os.PathLike[str], rank: int) -> dict[str, Any]:
    """The plain values of a rank.

    Raises RuntimeError for a file that is not there, not own, or no such file.
    """
    path = _file(folder, rank, "state")
    with _own_file(path) as file:
        try:
            value = _NoClasses(file).load()
        # For arbitrary bytes pickle's errors are unpredictable.
        except Exception as error:
            raise RuntimeError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise RuntimeError(f"{path} was not saved by this version of hpcdash.job")
    return value


def read_tensors(folder: str | os.PathLike[str], ranks: Sequence[int]) -> dict[int, Tensor]:
    """The tensors that ranks have written, by number, in host memory.

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
            # Errors of torch, zipfile and pickle, of which no list exists.
            except Exception as error:
                raise RuntimeError(f"{path} cannot be read: {error}") from error
    return found


class _NoClasses(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(
            f"it names {module}.{name}, and a checkpoint may contain only plain values"
        )


def _own_file(path: str) -> BinaryIO:
    """Open a file that no other user has made.

    Raises RuntimeError for others: a checkpoint decides what is trained.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise RuntimeError(f"{path} cannot be read: {error.strerror}") from error
    found, folder = os.fstat(file), os.stat(os.path.dirname(path))
    if not stat.S_ISREG(found.st_mode) or {found.st_uid, folder.st_uid} - {os.geteuid(), 0}:
        os.close(file)
        raise RuntimeError(
            f"{path} is not loaded: it belongs to another user. If you trust it, resume from a "
            f"copy of your own: cp -r {os.path.dirname(os.path.dirname(path))} FOLDER"
        )
    return os.fdopen(file, "rb")


def _file(folder: str | os.PathLike[str], rank: int, ending: str) -> str:
    return os.path.join(folder, f"rank-{rank:05d}.{ending}")


def _alone(tensor: Tensor) -> Tensor:
    """A tensor that has its memory for itself: torch writes all of the memory that a tensor is a
    view of.
    """
    if tensor.layout is not sys.modules["torch"].strided:
        return tensor
    storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
    return tensor.clone() if storage.nbytes() > tensor.numel() * tensor.element_size() else tensor
