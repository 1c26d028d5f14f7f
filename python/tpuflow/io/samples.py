"""Samples of a network's inputs: read, checked and cut into batches.

One array per network input, by its original name, shaped `[samples, ...]`: the first axis replaces the batch
axis of the network's input, or leads before a whole input of a network without one. Arrays of exactly the
inputs' own shapes are one feed, whether or not there is a batch axis; outputs then have their own shapes too,
except that a single sample keeps its axis. Arrays come from one
`.npz`, from a directory of `.npz` files (and of `.npy` files, for networks with one input), or from memory.
A directory is read file by file, and only one file is held at a time.

Everything is checked when samples are opened, so that a long run never ends at its last sample.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tpuflow.errors import SampleError
from tpuflow.io.arrays import array_headers, read_arrays
from tpuflow.io.memory import bytes_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from concurrent.futures import Future

__all__ = [
    "Batch", "Dataset", "Port", "Samples", "in_turn", "joined_samples", "load_evaluation_samples",
    "load_labeled", "load_samples",
]  # fmt: skip

Array = NDArray[Any]
Dataset = Callable[[], Iterable[Any]] | Iterable[Any]
"""A representative dataset: feeds, or a function that gives them. A feed is the arrays of all inputs, by name
or in the order of the network."""
Item = TypeVar("Item")
Result = TypeVar("Result")
LABELS = "labels"
SHARDS = 16
"""Into so many shards samples are divided at most."""

ANNOUNCED_BYTES = 4 << 30
"""Reading more than this is announced."""

logger = logging.getLogger(__name__)


class Port(Protocol):
    """An input of a network or program, as `tpuflow.frontend.Port` describes it."""

    @property
    def name(self) -> str:
        """Its name in the user's model."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its static shape, with the batch axis if it has one."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its element type."""

    @property
    def finite(self) -> bool:
        """Whether it takes finite numbers alone: NaN and infinity have no code, and no range."""


@dataclass(frozen=True)
class Batch:
    """One feed of the network.

    Attributes:
        arrays: Every input by name, in the network's own shape.
        count: Number of samples in it; what lies beyond repeats the last one and is to be trimmed.
    """

    arrays: dict[str, Array]
    count: int


@dataclass(frozen=True)
class Samples:
    """Checked samples, opened by `load_samples`, `Samples.of` or `Samples.of_feeds`.

    Attributes:
        ports: The network inputs they belong to.
        count: Number of samples.
        batch: Number of samples in a feed.
        workers: Threads that read files ahead.
        one_feed: Whether they were given as one feed, in the inputs' own shapes.
    """

    ports: tuple[Port, ...]
    count: int
    batch: int
    _sources: tuple[Path | Mapping[str, Array], ...]
    workers: int = 0
    one_feed: bool = False
    _seed: int | None = None
    _counts: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, arrays: Mapping[str, Array] | Dataset, ports: Sequence[Port], source: str = "samples"
    ) -> Samples:
        """Samples in memory; `source` names them in errors.

        Args:
            arrays: Arrays by input name, `[samples, ...]`, or a representative dataset, see `Dataset`.
            ports: The network inputs they belong to.
            source: What errors call them.

        Raises:
            SampleError: A name, shape, dtype or value is wrong, or there are no samples.
        """
        if not isinstance(arrays, Mapping):
            return cls._of_dataset(arrays, ports, source)
        sizes = {port.shape[:1] for port in ports}
        one_feed = bool(sizes - {(1,)}) and _is_feed(arrays, ports)
        if one_feed and (len(sizes) > 1 or () in sizes):  # no axis they all share: the whole is one sample
            arrays = {name: np.asarray(array)[np.newaxis] for name, array in arrays.items()}
        count, batch = _check(arrays, ports, source)
        contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        return cls(tuple(ports), count, batch, (contiguous,), one_feed=one_feed)

    @classmethod
    def _of_dataset(cls, dataset: Dataset, ports: Sequence[Port], source: str) -> Samples:
        """Feed after feed, of one sample each or of several."""
        feeds = []
        for feed in dataset() if callable(dataset) else dataset:
            values = list(feed.values()) if isinstance(feed, Mapping) else list(feed)
            names = list(feed) if isinstance(feed, Mapping) else [port.name for port in ports]
            if len(values) != len(names):
                raise SampleError(
                    f"{source}: a feed has {len(values)} arrays, the network {len(names)} inputs"
                )
            feeds.append(dict(zip(names, map(np.asarray, values), strict=True)))
        if any(feed.keys() != feeds[0].keys() for feed in feeds):
            raise SampleError(f"{source}: feeds have different inputs")
        shapes = {port.name: port.shape for port in ports}
        single = all(shape[:1] == (1,) for shape in shapes.values())
        if not feeds or (
            not single
            and all(array.shape == shapes.get(name) for feed in feeds for name, array in feed.items())
        ):
            return cls.of_feeds(feeds, ports)
        try:
            return cls.of(
                {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}, ports, source
            )
        except ValueError as error:
            raise SampleError(f"{source}: feeds of different shapes: {error}") from None

    @classmethod
    def of_feeds(cls, feeds: Sequence[Mapping[str, Array]], ports: Sequence[Port]) -> Samples:
        """Samples each of which is a whole feed: every input in the network's own shape.

        Raises:
            SampleError: As for `of`.
        """
        if not feeds:
            raise SampleError("samples: there are none")
        return cls.of({name: np.stack([feed[name] for feed in feeds]) for name in feeds[0]}, ports)

    def rows(self) -> Iterator[dict[str, Array]]:
        """Sample after sample, every input by name; batched inputs without their batch axis."""
        generator = None if self._seed is None else np.random.default_rng(self._seed)

        def arrays_of(source: Path | Mapping[str, Array]) -> Mapping[str, Array]:
            return _read(source, self.ports) if isinstance(source, Path) else source

        for arrays in in_turn(arrays_of, self._sources, self.workers):
            count = next(iter(arrays.values())).shape[0]
            order = range(count) if generator is None else generator.permutation(count)
            for index in order:
                yield {port.name: arrays[port.name][index] for port in self.ports}

    def first(self, count: int) -> Samples:
        """The first samples, in memory, at most `count` of them, `count > 0`."""
        return self if count >= self.count else self.of_rows(list(islice(self.rows(), count)))

    def spread(self, count: int) -> Samples:
        """At most `count` samples at even distances, `count > 0`."""
        if count >= self.count:
            return self
        wanted = {at * self.count // count for at in range(count)}
        return self.of_rows([row for at, row in enumerate(self.rows()) if at in wanted])

    def shuffle(self, seed: int) -> Samples:
        """The samples in another order: files among each other, and the samples within each of them."""
        generator = np.random.default_rng(seed)
        if not all(isinstance(source, Path) for source in self._sources):
            rows = list(self.rows())
            return self.of_rows([rows[at] for at in generator.permutation(len(rows))])
        order = generator.permutation(len(self._sources))
        return replace(self, _sources=tuple(self._sources[at] for at in order), _seed=seed, _counts=())

    def shards(self, size: int | None = None) -> list[Samples]:
        """The samples divided in their order: whole feeds, at least `size` samples in each but the last.

        Without a size there are at most `SHARDS`, however many processes are to run them.
        Those of files stay in their files, which are not divided; of shuffled files there is one shard.
        """
        size = -(-(size or -(-self.count // SHARDS)) // self.batch) * self.batch
        if len(self._sources) == 1 and not isinstance(self._sources[0], Path) and self._seed is None:
            arrays = self._sources[0]
            cuts = range(0, self.count, size)
            parts = [{name: array[at : at + size] for name, array in arrays.items()} for at in cuts]
            counts = [min(size, self.count - at) for at in cuts]
            return [
                replace(self, count=count, _sources=(part,))
                for count, part in zip(counts, parts, strict=True)
            ]
        if self._seed is not None or not self._counts:
            return [self]
        found, first, held = [], 0, 0
        for at, count in enumerate(self._counts, 1):
            held += count
            if (held >= size and held % self.batch == 0) or at == len(self._counts):
                own, known = self._sources[first:at], self._counts[first:at]
                found.append(replace(self, count=held, _sources=own, _counts=known))
                first, held = at, 0
        return found

    def of_rows(self, rows: Sequence[Mapping[str, Array]]) -> Samples:
        """Some of the samples, by the name of their port.

        Those in memory stay where they are; of those of files nothing but these is kept.
        """
        if any(isinstance(source, Path) for source in self._sources):
            arrays = {port.name: np.stack([row[port.name] for row in rows]) for port in self.ports}
            return Samples(self.ports, len(rows), self.batch, (arrays,))
        own = tuple(
            {port.name: np.asarray(row[port.name])[np.newaxis] for port in self.ports} for row in rows
        )
        return Samples(self.ports, len(rows), self.batch, own, _counts=(1,) * len(rows))

    def batches(self) -> Iterator[Batch]:
        """Feeds of `batch` samples each; a last partial one is filled up with its last sample."""
        rows: list[dict[str, Array]] = []
        for row in self.rows():
            rows.append(row)
            if len(rows) == self.batch:
                yield self._feed(rows)
                rows = []
        if rows:
            yield self._feed(rows)

    def _feed(self, rows: list[dict[str, Array]]) -> Batch:
        count = len(rows)
        if self.batch == 1:  # a sample as it lies in memory
            return Batch({port.name: rows[0][port.name].reshape(port.shape) for port in self.ports}, count)
        rows = rows + [rows[-1]] * (self.batch - count)
        # Rows of a batched input get their axis by stacking; the row of a whole input has all its axes.
        arrays = {
            port.name: np.stack([row[port.name] for row in rows]).reshape(port.shape) for port in self.ports
        }
        return Batch(arrays, count)


def in_turn(work: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """Results of `work` for every item, in order; with workers as many items ahead are under way."""
    if workers < 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(workers) as pool:
        under_way: deque[Future[Result]] = deque()
        for item in items:
            under_way.append(pool.submit(work, item))
            if len(under_way) > workers:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()


def load_samples(path: str | Path, ports: Sequence[Port], workers: int = 0) -> Samples:
    """Opens an `.npz` file, or a directory of `.npz` and `.npy` files in the order of their names.

    A file of a directory may hold one sample without the leading axis.

    Args:
        path: The file or directory.
        ports: The network's inputs.
        workers: Threads that read the files of a directory ahead; what they give does not depend on it.

    Raises:
        SampleError: A file cannot be read; a name, shape, dtype or value is wrong; there are no samples.
    """
    path = Path(path)
    if not path.is_dir():
        return Samples.of(read_arrays(path), ports, str(path))
    files = sorted(file for file in path.iterdir() if file.suffix in (".npz", ".npy") and file.is_file())
    if not files:
        raise SampleError(f"{path}: the directory holds no .npz or .npy file")
    _announce(path, files)
    checked = list(in_turn(lambda file: _check(_read(file, ports), ports, str(file)), files, workers))
    for file, (_, batch) in zip(files, checked, strict=True):
        if batch != checked[0][1]:
            raise SampleError(
                f"{file}: its samples are whole inputs, those of {files[0]} are not, or vice versa"
            )
    counts = tuple(count for count, _ in checked)
    return Samples(tuple(ports), sum(counts), checked[0][1], tuple(files), workers, _counts=counts)


def _announce(path: Path, files: Sequence[Path]) -> None:
    """Says how much a directory holds where reading it takes long: its files may be far smaller."""
    total = sum(header.nbytes for file in files for header in array_headers(file).values())
    if total > ANNOUNCED_BYTES:
        logger.warning("%s: reading %s of samples in %d files", path, bytes_text(total), len(files))


def load_labeled(path: str | Path, ports: Sequence[Port]) -> tuple[Samples, Array]:
    """Opens an `.npz` with the inputs and an array `labels`, one entry or row per sample.

    Raises:
        SampleError: As for `load_samples`; labels are missing or their number differs.
    """
    arrays = read_arrays(Path(path))
    labels = arrays.pop(LABELS, None)
    if labels is None:
        raise SampleError(f'{path}: array "{LABELS}" is missing, it has {_list_names(arrays)}')
    samples = Samples.of(arrays, ports, str(path))
    if labels.ndim == 0 or labels.shape[0] != samples.count:
        raise SampleError(
            f'{path}: array "{LABELS}" has shape {_shape(labels.shape)} for {samples.count} samples'
        )
    return samples, labels


def load_evaluation_samples(
    path: str | Path, ports: Sequence[Port], workers: int = 0
) -> tuple[Samples, Array | None]:
    """As `load_samples`, with the labels of an `.npz` that has some.

    Raises:
        SampleError: As for `load_samples`; the number of labels is not that of samples.
    """
    path = Path(path)
    if path.is_dir() or LABELS not in array_headers(path):
        return load_samples(path, ports, workers), None
    return load_labeled(path, ports)


def joined_samples(
    feeds: Mapping[str, Sequence[Array]], samples: Samples, dynamic: Collection[str] = ()
) -> dict[str, Array]:
    """Outputs of a network feed by feed, joined along the axis of samples.

    The first axis takes the place of a tensor's batch axis, which leads where the network's inputs have one
    of the same length; a tensor without it belongs to the whole feed and is given to each of its samples,
    whole. What a partial feed was filled up with is cut off. Of samples given as one feed every tensor
    stays as it is. Arrays whose sizes differ from feed to feed are filled up at their ends, with zeros or
    empty text, and `NAME/shape` beside them has their own shapes, one row a sample.

    Args:
        feeds: By name, one array per feed.
        samples: What the feeds were made of.
        dynamic: Names of tensors whose shape depends on values: they never have a batch axis.

    Raises:
        SampleError: Arrays of one name differ in the number of axes.
    """
    if samples.one_feed:
        return {name: array for name, (array,) in feeds.items()}
    found: dict[str, Array] = {}
    for name, arrays in feeds.items():
        shapes = [array.shape for array in arrays]
        if len(set(shapes)) > 1:
            found |= _filled_up(name, arrays, samples)
            continue
        rows = [_by_sample(array, samples, whole=name in dynamic) for array in arrays]
        found[name] = np.concatenate(rows)[: samples.count]
    return found


def _by_sample(array: Array, samples: Samples, *, whole: bool) -> Array:
    batched = any(port.shape and port.shape[0] == samples.batch for port in samples.ports)
    if batched and not whole and array.ndim > 0 and array.shape[0] == samples.batch:
        return array
    return np.broadcast_to(array, (samples.batch, *array.shape))


def _filled_up(name: str, arrays: Sequence[Array], samples: Samples) -> dict[str, Array]:
    ranks = {array.ndim for array in arrays}
    if len(ranks) > 1:
        raise SampleError(f'tensor "{name}" has {min(ranks)} to {max(ranks)} axes: run one sample at a time')
    sizes = np.max([array.shape for array in arrays], axis=0)
    filler = "" if arrays[0].dtype.kind in "OU" else 0
    whole = np.full((len(arrays), *sizes), filler, arrays[0].dtype)
    for row, array in zip(whole, arrays, strict=True):
        row[tuple(slice(size) for size in array.shape)] = array
    shapes = np.array([array.shape for array in arrays], np.int64)
    return {
        name: np.repeat(whole, samples.batch, axis=0)[: samples.count],
        f"{name}/shape": np.repeat(shapes, samples.batch, axis=0)[: samples.count],
    }


def _is_feed(arrays: Mapping[str, Array], ports: Sequence[Port]) -> bool:
    """Whether every array has its input's own shape."""
    return bool(ports) and all(
        port.name in arrays and np.shape(arrays[port.name]) == port.shape for port in ports
    )


def _check(arrays: Mapping[str, Array], ports: Sequence[Port], source: str) -> tuple[int, int]:
    """Number of samples, and of samples in a feed."""
    names = [port.name for port in ports]
    for name in arrays:
        if name not in names:
            raise SampleError(
                f'{source}: unknown input "{name}" (inputs: {_list_names(names)}): leave it out'
            )
    counts: dict[str, int] = {}
    batches: dict[str, int] = {}
    for port in ports:
        if port.name not in arrays:
            raise SampleError(f'{source}: input "{port.name}" is missing, there is {_list_names(arrays)}')
        array, where = arrays[port.name], f'{source}: input "{port.name}"'
        batches[port.name] = _check_array(array, port, where)
        counts[port.name] = array.shape[0]
    for label, numbers in (("samples", counts), ("samples in a feed", batches)):
        if len(set(numbers.values())) > 1:
            listed = ", ".join(f'"{name}" {number}' for name, number in numbers.items())
            hint = ""
            if len({port.shape[:1] for port in ports}) > 1:  # no axis all of them could have for a batch
                rows = (f'"{port.name}" ({", ".join(["samples", *map(str, port.shape)])})' for port in ports)
                hint = f"; give whole inputs: {', '.join(rows)}"
            raise SampleError(f"{source}: inputs differ in the number of {label}: {listed}{hint}")
    return next(iter(counts.values()), 0), next(iter(batches.values()), 1)


def _check_array(array: Array, port: Port, where: str) -> int:
    """Number of samples in a feed of this input."""
    text = port.dtype == object and array.dtype.kind in "OU"
    if array.dtype != port.dtype and not text:
        raise SampleError(
            f"{where}: dtype {array.dtype}, the network wants {port.dtype} (convert with .astype)"
        )
    whole = array.ndim == len(port.shape) + 1
    wanted = port.shape if whole else port.shape[1:]
    if array.ndim < max(1, len(port.shape)) or array.shape[1:] != wanted:
        row = ", ".join(["samples", *map(str, port.shape[1:] if port.shape else ())])
        raise SampleError(f"{where}: shape {_shape(array.shape)}, the network wants ({row})")
    if array.shape[0] == 0:
        raise SampleError(f"{where}: there are no samples")
    # Minus infinity is a mask: it saturates like any number further down than a grid reaches.
    if port.finite and array.dtype.kind == "f" and not (held := array < np.inf).all():
        first = int(np.argmin(held.reshape(array.shape[0], -1).all(axis=1)))
        raise SampleError(f"{where}: NaN or infinite values, first in sample {first}")
    return 1 if whole else port.shape[0]


def _read(path: Path, ports: Sequence[Port]) -> dict[str, Array]:
    """A file of a directory, single samples given their leading axis."""
    arrays = read_arrays(path)
    if path.suffix == ".npy":
        if len(ports) != 1:
            raise SampleError(
                f"{path}: a .npy file has no names, the network has {len(ports)} inputs: use .npz"
            )
        arrays = {ports[0].name: next(iter(arrays.values()))}
    ranks = {port.name: len(port.shape) for port in ports}
    return {
        name: array[np.newaxis] if array.ndim == ranks.get(name, 0) - 1 else array
        for name, array in arrays.items()
    }


def _list_names(names: Sequence[str] | Mapping[str, Any]) -> str:
    return ", ".join(f'"{name}"' for name in names) or "none"


def _shape(shape: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
