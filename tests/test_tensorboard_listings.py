"""The published flow of the visualisation: a log folder is set, a network quantised, three views are there.

The two calls are read from the shared material, and stand here in our own words as well.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tpuflow
from event_log.test_event_log import events
from listings import document
from models.builder import Builder
from tpuflow.report.tensorboard import log_folder

# Their logs take some seconds to write.
pytestmark = pytest.mark.slow


def network() -> onnx.ModelProto:
    """Its file states no shapes but those of inputs and outputs."""
    b = Builder("net")
    x = b.node("Relu", b.conv(b.input("x", [1, 3, 8, 8]), 6, pads=(1, 1, 1, 1)))
    b.output(b.gemm(b.node("GlobalAveragePool", x), 4))
    model = b.model()
    del model.graph.value_info[:]
    return model


def by_its_flow(folder: Path) -> None:
    """Sets the folder, then calibrates and quantises, with no call about TensorBoard beside."""
    tpuflow.set_log_folder(folder)
    try:
        model = tpuflow.load(network())
        data = np.random.default_rng(0).standard_normal((24, 3, 8, 8)).astype(np.float32)
        tpuflow.quantize(model, samples={"x": data})
    finally:
        tpuflow.set_log_folder(None)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    by_its_flow(folder)
    return folder


def test_the_listing_sets_the_folder(shared: Path, tmp_path: Path) -> None:
    (line,) = re.findall(r"^ +mct\.(set_log_folder\(.+\))$", document(shared, "tensorboard"), re.MULTILINE)
    try:
        exec(line.replace("/logger", str(tmp_path)), {"set_log_folder": tpuflow.set_log_folder})
        assert log_folder() == tmp_path / "dir" / "path"
    finally:
        tpuflow.set_log_folder(None)


@pytest.mark.feature("VIS-01", "VIS-03")
@pytest.mark.parametrize("run", ["original", "normalised", "calibrated", "quantised"])
def test_there_is_a_graph_of_every_stage_with_bytes_of_activations(logs: Path, run: str) -> None:
    """Even of the imported model, whose file says nothing of shapes within."""
    found = events(logs / run)
    assert len(found.Graph().node) >= 4
    metadata: Any = found.RunMetadata("Resources")
    sizes = {
        node.node_name: sum(each.total_bytes for each in node.memory)
        for device in metadata.step_stats.dev_stats
        for node in device.node_stats
    }
    bytes_of_one = 1 if run == "quantised" else 4
    assert len(sizes) == len(found.Graph().node)
    assert max(sizes.values()) >= 6 * 8 * 8 * bytes_of_one and min(sizes.values()) > 0


@pytest.mark.feature("VIS-05", "VIS-06")
def test_there_are_histograms_and_scalars_by_channel(logs: Path) -> None:
    assert len(events(logs / "statistics").Tags()["histograms"]) >= 4
    for kind in ("min", "max", "mean"):
        found = events(logs / "statistics" / f"{kind}_per_channel")
        tags = [*found.Tags()["scalars"], *found.Tags()["tensors"]]
        assert len(tags) >= 4


@pytest.mark.feature("VIS-07")
def test_there_are_twenty_pictures_of_similarity(logs: Path) -> None:
    found = events(logs / "similarity")
    tags = found.Tags()["images"]
    assert len(tags) == 20
    (image,) = found.Images(tags[0])
    assert image.encoded_image_string.startswith(b"\x89PNG") and min(image.width, image.height) >= 200


@pytest.mark.feature("VIS-01")
def test_calibrating_and_quantizing_one_after_the_other_leaves_the_graphs(tmp_path: Path) -> None:
    """Ranges hold no samples: what is drawn of samples is missing, graphs and widths are there."""
    model = tpuflow.load(network())
    data = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float32)
    tpuflow.set_log_folder(tmp_path)
    try:
        tpuflow.quantize(model, tpuflow.calibrate(model, lambda: ([each[np.newaxis]] for each in data)))
    finally:
        tpuflow.set_log_folder(None)
    runs = {path.parent.name for path in tmp_path.rglob("events.out.tfevents.*")}
    assert runs == {"original", "normalised", "quantised", "configuration"}
