"""The networks of a folder, their samples, and the published names they stand for.

A folder holds ONNX files. Where it also holds `materialize.py`, the files are skeletons without weights and
that module completes them; it is part of the folder and is executed. It has to define

    load(name) -> onnx.ModelProto                        the complete model
    sample_inputs(name, index) -> {input: array}         sample number `index`, in the model's own shapes

Otherwise a file `NAME.npz` beside `NAME.onnx` holds samples as `tpuflow build --calib` takes them, and
networks without one get generated samples.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from tpuflow.errors import FileError, SampleError
from tpuflow.frontend import FloatSession, generated
from tpuflow.io.files import replace_atomically
from tpuflow.io.samples import Samples, load_samples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tpuflow.frontend import FloatModel

__all__ = ["MODELS", "Network", "PublishedNetwork", "networks", "published_networks"]

HOOK = "materialize.py"
MANIFEST = "zoo.json"
MODELS = "models"
"""Where in a work folder completed models lie."""


@dataclass(frozen=True)
class Network:
    """A network of a folder.

    Attributes:
        name: Of its file, without the suffix; that of a cut one says so.
        file: The file as it lies in the folder.
        preset: Named cut of it; None for the whole.
    """

    name: str
    file: Path
    preset: str | None = None

    @property
    def hook(self) -> Path | None:
        """The module that completes the file and makes samples; None if the file is complete."""
        path = self.file.with_name(HOOK)
        return path if path.is_file() else None

    def digest(self) -> str:
        """Hexadecimal hash of what the network depends on: file, samples, or skeleton and hook."""
        beside = (self.file, self.file.with_suffix(".npz"), *map(self.file.with_name, (HOOK, MANIFEST)))
        digest = hashlib.sha256((self.preset or "").encode())
        for path in beside:
            if path.is_file():
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def complete(self, folder: Path) -> Path:
        """A file with weights; one made from a skeleton is kept in `folder`.

        Raises:
            FileError: The hook does not make the model.
        """
        if self.hook is None:
            return self.file
        made = folder / self.file.name
        if not made.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            with replace_atomically(made) as beside:
                onnx.save(_call(self.hook, "load", self.file.stem), str(beside))
        return made

    def feeds(
        self, model: FloatModel, folder: Path, count: int, held_out: int
    ) -> list[dict[str, NDArray[Any]]]:
        """Samples to calibrate with, then `held_out` further ones to evaluate with.

        Args:
            model: The network, imported.
            folder: As for `complete`.
            count: Samples to calibrate with.
            held_out: Further samples.

        Raises:
            SampleError: Samples beside the file do not fit, or there are too few.
        """
        total = count + held_out
        if self.hook is not None:
            feeds = [_call(self.hook, "sample_inputs", self.file.stem, index) for index in range(total)]
            return _at_the_cut(model, self.complete(folder), feeds)
        path = self.file.with_suffix(".npz")
        if not path.is_file():
            return _first(generated(model, total, seed=0), total)
        samples = load_samples(path, model.inputs)
        if samples.count < total * samples.batch:
            raise SampleError(f"{path}: {samples.count} samples, {total * samples.batch} are needed")
        return _first(samples, total)


def _at_the_cut(
    model: FloatModel, whole: Path, feeds: list[dict[str, NDArray[Any]]]
) -> list[dict[str, NDArray[Any]]]:
    """Samples of the whole network as samples of the part that was cut out of it."""
    wanted = [port.name for port in model.inputs]
    computed = [name for name in wanted if name not in feeds[0]]
    if computed:
        session = FloatSession(onnx.load(whole), computed)
        feeds = [feed | session.run(feed) for feed in feeds]
    return [{name: feed[name] for name in wanted} for feed in feeds]


def _first(samples: Samples, count: int) -> list[dict[str, NDArray[Any]]]:
    return [batch.arrays for batch, _ in zip(samples.batches(), range(count), strict=False)]


def networks(
    folder: Path, only: Sequence[str] = (), *, cuts: bool = False, hooks: bool = False
) -> list[Network]:
    """The networks of a folder by name.

    Args:
        folder: Where ONNX files lie.
        only: Names of those wanted; all by default.
        cuts: Add the published forms of those that are published cut.
        hooks: Whether the folder's module may be executed.

    Raises:
        FileError: There is no such folder, it lacks a network asked for, or its networks need its module.
    """
    if not folder.is_dir():
        raise FileError(f"{folder}: is not a folder")
    found = {path.stem: Network(path.stem, path) for path in sorted(folder.glob("*.onnx"))}
    if not found:
        raise FileError(f"{folder}: holds no .onnx file")
    if not hooks and (folder / HOOK).is_file():
        raise FileError(
            f"{folder / HOOK}: completes the networks of this folder, and is executed with --hooks alone"
        )
    if cuts:
        for entry in published_networks():
            name = entry.cut
            if name is not None and entry.files[0] in found:
                found[name] = Network(name, found[entry.files[0]].file, entry.preset)
        found = dict(sorted(found.items()))
    for name in only:
        if name not in found:
            raise FileError(f'{folder}: holds no network "{name}", but {", ".join(found)}')
    return [network for name, network in found.items() if not only or name in only]


@dataclass(frozen=True)
class PublishedNetwork:
    """A network of the published list of supported models.

    Attributes:
        name: As published.
        files: Networks that stand for it, the closest first.
        preset: The named cut that makes its published form; None if that is whole.
    """

    name: str
    files: tuple[str, ...]
    preset: str | None

    @property
    def cut(self) -> str | None:
        """Name of the network in its published form, if that is not whole."""
        return None if self.preset is None else f"{self.files[0]} (cut)"


@cache
def published_networks() -> tuple[PublishedNetwork, ...]:
    """The published list, in its order."""
    text = files("tpuflow.pipeline.zoo").joinpath("published.toml").read_text(encoding="utf-8")
    return tuple(
        PublishedNetwork(name, tuple(entry.get("files", [name])), entry.get("preset"))
        for name, entry in tomllib.loads(text).items()
    )


@cache
def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"tpuflow_zoo_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise FileError(f"{path}: cannot be loaded as a module")
    module = importlib.util.module_from_spec(spec)
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
    return module


def _call(hook: Path, function: str, *arguments: object) -> Any:
    """Calls a function of the hook; whatever goes wrong in it is reported as the folder's mistake."""
    try:
        return getattr(_module(hook), function)(*arguments)
    except FileError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise FileError(f"{hook}: {function}: {type(error).__name__}: {reason}") from error
