"""The few names of TensorFlow that published scripts run graphs with, over onnxruntime.

    python -m tpu_framework script.py        # `import tensorflow` in the script gives this module

Graphs are those of `graphs.py`. Everything else of TensorFlow is missing on purpose: a script that trains, or
builds graphs, needs TensorFlow itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import IO, Any, Self

import onnxruntime
from numpy.typing import NDArray

from tpu_framework.graphs import GraphDef, TfGraph
from tpuflow.errors import ModelError, SampleError
from tpuflow.frontend import get_sub_model
from tpuflow.io.files import make_folder, replace_atomically

__all__ = ["compat", "graph_util", "io"]

Array = NDArray[Any]


def import_graph_def(graph_def: GraphDef, *_: Any, **__: Any) -> TfGraph:
    """A graph a session can run."""
    return TfGraph(graph_def.model)


class Session:
    """Runs a graph.

    Args:
        graph: What `import_graph_def` gave.

    Raises:
        ModelError: There is no graph.
    """

    def __init__(self, target: str = "", graph: TfGraph | None = None) -> None:
        del target  # there is one place to run: here
        if graph is None:
            raise ModelError("Session: give it the graph, Session(graph=graph): there is no default one")
        self._model = graph.model

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def run(self, fetches: str | Sequence[str], feed_dict: Mapping[str, Array] | None = None) -> Any:
        """The value of a tensor by name, or of several.

        Raises:
            ModelError: There is no such tensor.
            SampleError: An input is missing, or its data do not fit.
        """
        names = [fetches] if isinstance(fetches, str) else list(fetches)
        feeds = dict(feed_dict or {})
        outputs = {value.name for value in self._model.graph.output}
        model = self._model
        if not outputs.issuperset(names):
            model = get_sub_model(model, [value.name for value in model.graph.input], names)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        try:
            found = session.run(names, feeds)
        except Exception as error:
            raise SampleError(f"Session.run: {' '.join(str(error).split())[:300]}") from error
        return found[0] if isinstance(fetches, str) else found


class GFile:
    """A file, opened as `open` does."""

    def __init__(self, name: str, mode: str = "r") -> None:
        self._path, self._mode = Path(name), mode
        self._file: IO[Any] | None = None

    def __enter__(self) -> IO[Any]:
        self._file = self._path.open(self._mode)
        return self._file

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()


def write_graph(
    graph_or_graph_def: TfGraph | GraphDef,
    logdir: str,
    name: str,
    as_text: bool = True,  # noqa: FBT001, FBT002 - the published signature
) -> str:
    """Writes a graph, and gives the file's name.

    Raises:
        FileError: It cannot be written.
    """
    path = Path(logdir) / name
    make_folder(path.parent)
    model = graph_or_graph_def.model
    with replace_atomically(path) as file:
        file.write_bytes(str(model).encode() if as_text else model.SerializeToString())
    return str(path)


def reset_default_graph() -> None:
    """Nothing: there is no default graph."""


def _module(name: str, **members: Any) -> ModuleType:
    made = ModuleType(f"{__name__}.{name}")
    vars(made).update(members)
    return made


_gfile = _module("gfile", GFile=GFile)
graph_util = _module("graph_util", import_graph_def=import_graph_def)
io = _module("io", write_graph=write_graph, gfile=_gfile)
compat = _module(
    "compat",
    v1=_module(
        "compat.v1",
        GraphDef=GraphDef,
        Session=Session,
        import_graph_def=import_graph_def,
        reset_default_graph=reset_default_graph,
        io=_module("io", gfile=_gfile, write_graph=write_graph),
    ),
)
