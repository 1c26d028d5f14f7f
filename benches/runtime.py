"""What an application pays beside the machine: packing, unpacking, and a call of `sync`.

python benches/runtime.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import tpuflow
from tpuflow.config import Config
from tpuflow.runtime import Codec, Device

SHAPES: tuple[tuple[int, ...], ...] = ((8, 3, 224, 224), (1, 3, 224, 224), (8, 64, 56, 56))


def codec(dtype: str, shape: tuple[int, ...], *, pooled: bool = False) -> tuple[Codec, Any]:
    """The codec of a 1x1 convolution of images (and a mean), and its program.

    Args:
        dtype: Of the user's arrays.
        shape: Of the images.
        pooled: Give the mean of every image alone, as classifiers give little.
    """
    stated = dtype != "float32"
    weights = numpy_helper.from_array(np.eye(shape[1], dtype=np.float32)[..., None, None], "w")
    nodes = [helper.make_node("Conv", ["image", "w"], ["out"], name="conv", kernel_shape=[1, 1])]
    if pooled:
        nodes[0].output[0] = "large"
        nodes.append(helper.make_node("GlobalAveragePool", ["large"], ["out"], name="pool"))
    sizes = {"image": shape, "out": (*shape[:2], 1, 1) if pooled else shape}
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in sizes.items()]
    graph = helper.make_graph(nodes, "bench", ports[:1], ports[1:], [weights])
    model = tpuflow.load(helper.make_model(graph))
    config = Config.parse(
        {"quantize": {"quant_input": stated, "quant_output": stated, "output_dtype": "int8"}}
    )
    ranges = tpuflow.calibrate(
        model, {"image": np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)}
    )
    program = tpuflow.compile(tpuflow.quantize(model, ranges, config))
    return Codec(program.metadata()), program


def seconds(call: Callable[[], object], repeats: int = 50) -> float:
    """Median of the seconds a call takes of this thread's time."""
    times = []
    for _ in range(repeats):
        start = time.thread_time()
        call()
        times.append(time.thread_time() - start)
    return median(times)


def show(label: str, arrays: dict[str, NDArray[Any]], packer: Codec) -> None:
    """Prints what packing and unpacking move per second, in the user's bytes and in words."""
    words = packer.encode(arrays)["input0"]
    outputs = {"output0": np.resize(words, (packer.outputs[0].words, words.shape[1]))}
    user = sum(array.nbytes for array in arrays.values())
    pack = seconds(lambda: packer.encode(arrays))
    unpack = seconds(lambda: packer.decode(outputs))
    given = sum(array.nbytes for array in packer.decode(outputs).values())
    print(
        f"{label:<28} pack {user / pack / 1e9:5.2f} GB/s of arrays, "
        f"{words.nbytes / pack / 1e9:5.2f} of words; "
        f"unpack {given / unpack / 1e9:5.2f}, {outputs['output0'].nbytes / unpack / 1e9:5.2f}"
    )


def main() -> None:
    """Prints the table."""
    generator = np.random.default_rng(1)
    for dtype in ("int8", "float32"):
        for shape in SHAPES:
            packer, _ = codec(dtype, shape)
            port = packer.inputs[0]
            image = generator.normal(0, 30, port.shape)
            show(f"{port.dtype} {list(shape)}", {"image": image.astype(port.dtype)}, packer)
            if shape[0] == 1:
                program = codec(dtype, shape, pooled=True)[1]
                with Device.open() as device, device.load(program) as loaded, loaded.inference() as inference:
                    arrays = {"image": image.astype(port.dtype)}
                    beside = []
                    for _ in range(20):
                        start = time.perf_counter()
                        found = inference.sync(arrays)
                        beside.append(time.perf_counter() - start - found.simulation_seconds)
                print(f"{'':<28} sync beside the simulation {median(beside) * 1e3:.3f} ms")


if __name__ == "__main__":
    main()
