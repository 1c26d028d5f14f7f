"""Preparation of images inside the program: each parameter against a NumPy twin, fused against unfused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from end_to_end.levels import config as settings_of
from frontend.graphs import array, graph, integers
from tpuflow.calibration import calibrate
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.config import Config, ConfigError, PreprocessConfig
from tpuflow.errors import ModelError
from tpuflow.evaluation.import_check import verify_import
from tpuflow.execution.levels import GraphLevel
from tpuflow.execution.simulation import program_ports, simulate
from tpuflow.frontend import FloatSession, load
from tpuflow.lowering import lower

Array = NDArray[Any]
LUMA = np.array([0.299, 0.587, 0.114])


def network(channels: int = 3, height: int = 8, width: int = 6, *, last: bool = False) -> onnx.ModelProto:
    """A convolution of the prepared image, which is also an output."""
    shape = [1, height, width, channels] if last else [1, channels, height, width]
    nodes: list[tuple[Any, ...]] = [("Relu", "c", "z"), ("Identity", "x", "seen")]
    if last:
        nodes.insert(0, ("Transpose", "x", "t", {"perm": [0, 3, 1, 2]}))
    nodes.insert(-2, ("Conv", "t w" if last else "x w", "c"))
    return graph(nodes, {"x": shape}, ["z", "seen"], {"w": array(4, channels, 3, 3, scale=0.2)})


def bytes_of(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def resized(x: Array, height: int, width: int) -> Array:
    """Bilinear, one pixel after the other; `x` is `[h, w, c]`."""
    out = np.zeros((height, width, x.shape[2]))
    for i in range(height):
        for j in range(width):
            y = np.clip((i + 0.5) * x.shape[0] / height - 0.5, 0, x.shape[0] - 1)
            z = np.clip((j + 0.5) * x.shape[1] / width - 0.5, 0, x.shape[1] - 1)
            a, b = int(y), int(z)
            c, d = min(a + 1, x.shape[0] - 1), min(b + 1, x.shape[1] - 1)
            p, q = y - a, z - b
            out[i, j] = (x[a, b] * (1 - q) + x[a, d] * q) * (1 - p) + (x[c, b] * (1 - q) + x[c, d] * q) * p
    return out


def centered(x: Array, height: int, width: int) -> Array:
    top, left = (x.shape[0] - height) // 2, (x.shape[1] - width) // 2
    return x[top : top + height, left : left + width]


# Parameters, shape of the raw image, and what becomes of it, `[h, w, c]`.
GOLDEN: dict[str, tuple[dict[str, Any], tuple[int, ...], Any]] = {
    "nothing": ({}, (8, 6, 3), lambda x: x),
    "mean": ({"mean": (10, 20, 30)}, (8, 6, 3), lambda x: x - [10, 20, 30]),
    "scale": (
        {"mean": (128,), "scale": (0.5, 0.25, 0.125)},
        (8, 6, 3),
        lambda x: (x - 128) * [0.5, 0.25, 0.125],
    ),
    "std": ({"mean": (128,), "std": (64.0,)}, (8, 6, 3), lambda x: (x - 128) / 64),
    "bgr": ({"pixel_format": "bgr", "mean": (1, 2, 3)}, (8, 6, 3), lambda x: x[..., ::-1] - [1, 2, 3]),
    "from bgr": ({"image_format": "bgr", "pixel_format": "rgb"}, (8, 6, 3), lambda x: x[..., ::-1]),
    "from rgba": ({"image_format": "rgba", "pixel_format": "rgb"}, (8, 6, 4), lambda x: x[..., :3]),
    "from gray": ({"image_format": "gray", "pixel_format": "rgb"}, (8, 6, 1), lambda x: x.repeat(3, -1)),
    "nchw": ({"channel_format": "nchw"}, (3, 8, 6), lambda x: x.transpose(1, 2, 0)),
    "resize": ({"image_size": (5, 9)}, (5, 9, 3), lambda x: resized(x, 8, 6)),
    "resize, crop": (
        {"image_size": (20, 20), "resize_dims": (10, 11)},
        (20, 20, 3),
        lambda x: centered(resized(x, 10, 11), 8, 6),
    ),
    "crop": ({"image_size": (11, 9), "resize_dims": (11, 9)}, (11, 9, 3), lambda x: centered(x, 8, 6)),
    "crop ratio": (
        {"image_size": (20, 30), "crop_ratio": 0.85},
        (20, 30, 3),
        lambda x: resized(centered(x, 17, 17), 8, 6),
    ),
    "aspect": (
        {"image_size": (4, 6), "keep_aspect_ratio": True, "pad_value": 114},
        (4, 6, 3),
        lambda x: np.pad(x, [(0, 4), (0, 0), (0, 0)], constant_values=114),
    ),
    "aspect centred": (
        {
            "image_size": (12, 6),
            "keep_aspect_ratio": True,
            "pad_value": 7,
            "pad_type": "center",
            "mean": (7,),
        },
        (12, 6, 3),
        lambda x: np.pad(resized(x, 8, 4) - 7, [(0, 0), (1, 1), (0, 0)]),
    ),
}


@pytest.mark.parametrize("last", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.feature("IMP-20")
def test_every_parameter_of_preprocessing_equals_its_formula(name: str, *, last: bool) -> None:
    values, shape, twin = GOLDEN[name]
    model = load(network(last=last), preprocess=PreprocessConfig.model_validate(values))
    (port,) = model.inputs
    assert (port.name, port.shape, port.dtype.name) == ("x", (1, *shape), "uint8")
    image = bytes_of(1, *shape)
    expected = twin(image[0].astype(np.float64))
    for form in (model.original, model.model):
        seen = FloatSession(form).run({"x": image})["seen"][0]
        np.testing.assert_allclose(seen if last else seen.transpose(1, 2, 0), expected, atol=1e-3)


@pytest.mark.parametrize("given", ["rgb", "bgr", "rgba", "bgra"])
@pytest.mark.feature("IMP-20")
def test_gray_and_alpha(given: str) -> None:
    image = bytes_of(1, 8, 6, len(given))
    rgb = image[0].astype(np.float64)[..., [given.index(letter) for letter in "rgb"]]
    shades = PreprocessConfig(image_format=given, pixel_format="gray")  # type: ignore[arg-type]
    model = load(network(1), preprocess=shades)
    seen = FloatSession(model.model).run({"x": image})["seen"][0, 0]
    np.testing.assert_allclose(seen, rgb @ LUMA, atol=1e-3)
    opaque = PreprocessConfig(image_format=given, pixel_format="rgba")  # type: ignore[arg-type]
    model = load(network(4), preprocess=opaque)
    seen = FloatSession(model.model).run({"x": image})["seen"][0]
    np.testing.assert_allclose(seen[:3], rgb.transpose(2, 0, 1))
    np.testing.assert_allclose(seen[3], image[0, ..., 3] if "a" in given else 255)


IMAGENET: dict[str, Any] = {
    "mean": (123.675, 116.28, 103.53),
    "std": (58.395, 57.12, 57.375),
    "pixel_format": "bgr",
}


@pytest.mark.parametrize(
    "values", [IMAGENET, IMAGENET | {"image_size": (8, 9), "keep_aspect_ratio": True, "pad_value": 114}]
)
@pytest.mark.feature("IMP-19")
def test_fused_equals_unfused_within_one_step(values: dict[str, Any]) -> None:
    """Raw bytes through the program, and prepared floats through the program of the bare network."""
    proto = network()
    fused = load(proto, preprocess=PreprocessConfig.model_validate(values))
    bare = load(proto)
    images = bytes_of(16, *fused.inputs[0].shape[1:])
    verify_import(fused, [{"x": images[:1]}])
    session = FloatSession(fused.model)
    prepared = np.concatenate([session.run({"x": images[i : i + 1]})["seen"] for i in range(16)])
    settings = settings_of("int8")
    graphs = [
        lower(model, calibrate(model, {"x": samples}, settings), settings)
        for model, samples in ((fused, images), (bare, prepared))
    ]
    program = compile_graph(graphs[0])
    ours = simulate(program, {"x": images}).outputs
    level = GraphLevel(graphs[1])
    theirs = [level.run({"x": prepared[i : i + 1]}) for i in range(16)]
    # Resized bytes are bytes again; what a layer makes of twice rounded pixels is no longer one step.
    for name in ("seen",) if "image_size" in values else ("seen", "z"):
        wanted = np.concatenate([result[name] for result in theirs])
        step = np.ptp(wanted) / 255
        assert np.abs(ours[name] - wanted).max() <= 1.01 * step, name
    ports, _ = program_ports(program)
    port = ports[0]
    assert port.code.itemsize == 1  # bytes cross the border, as many as the raw image has
    assert np.prod(port.stored) == images[0].size


@pytest.mark.feature("IMP-19")
def test_batches_and_other_inputs() -> None:
    proto = graph(
        [("Conv", "a w", "c"), ("GlobalAveragePool", "c", "p"), ("Flatten", "p", "f"), ("Add", "f b", "z")],
        {"a": [1, 3, 4, 4], "b": [1, 5]},
        ["z"],
        {"w": array(5, 3, 1, 1)},
    )
    model = load(proto, batch=2, preprocess=PreprocessConfig(image_size=(6, 6), mean=(128.0,)))
    assert [(port.name, port.shape) for port in model.inputs] == [("a", (2, 6, 6, 3)), ("b", (2, 5))]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"mean": (1, 2)}, "mean has 2 numbers for 3 channels"),
        ({"pixel_format": "gray"}, "no axis of 1 channels"),
        ({"input": "y"}, 'no image input is called "y", there is "x"'),
        ({"resize_dims": (4, 4)}, r"resize_dims \[4, 4\] are smaller than the network's \[8, 6\]"),
    ],
)
@pytest.mark.feature("IMP-20")
def test_numbers_that_do_not_fit(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        load(network(), preprocess=PreprocessConfig.model_validate(values))


@pytest.mark.feature("IMP-20")
def test_as_a_section_of_the_configuration() -> None:
    found = Config.parse({"preprocess": {"mean": [1.0, 2.0, 3.0], "pixel_format": "bgr"}})
    assert found.preprocess == PreprocessConfig(mean=(1, 2, 3), pixel_format="bgr")
    for values, words in (
        ({"meen": [1.0]}, 'unknown key "preprocess.meen", did you mean "mean"'),
        ({"scale": [1.0], "std": [1.0]}, "scale and std are given: give one of them"),
        ({"std": [0.0]}, "std holds 0"),
        ({"crop_ratio": 0}, "crop_ratio"),
    ):
        with pytest.raises(ConfigError) as raised:
            Config.parse({"preprocess": values})
        assert words in str(raised.value)


@pytest.mark.feature("IMP-19")
def test_a_network_of_several_images_needs_a_name() -> None:
    proto = graph(
        [("Add", "a b", "s"), ("Reshape", "s k", "z")],
        {"a": [1, 3, 4, 4], "b": [1, 3, 4, 4]},
        ["z"],
        {"k": integers(1, -1)},
    )
    with pytest.raises(ModelError, match="2 inputs with four axes: name one"):
        load(proto, preprocess=PreprocessConfig())
    model = load(proto, preprocess=PreprocessConfig(input="b"))
    assert [port.dtype.name for port in model.inputs] == ["float32", "uint8"]
