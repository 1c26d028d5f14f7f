"""The published framework's way from a network to results, on the digits network, by `tpu_framework`.

    python examples/digits/end_to_end.py --enable-tlm --enable-tpu --enable-raw --quantize-method qc

--quantize-method says where the thresholds come from: `qc` calibrates, `qt` loads what an earlier run saved;
`qcf` and `qtf` fine-tune them afterwards. --enable-tlm runs the cycle model, --enable-tpu a device,
--enable-raw a device that takes words; every one of them, and the quantised graph in a session, must give the
same bits.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytpu import Device, convert_to_raw
from tpu_framework import (
    O5,
    GraphDef,
    Network,
    RegularModel,
    TpuProgram,
    compile_,
    get_hw_params,
    model_execute,
    onnx_to_tf,
)
from tpu_framework import tensorflow as tf
from tpuflow.errors import TpuflowError

HERE = Path(__file__).resolve().parent
CALIBRATION, FINE_TUNING, EPOCHS = 2, 50, 10


def run_graph(graph_def: GraphDef, feeds: dict[str, NDArray[Any]], names: list[str]) -> list[NDArray[Any]]:
    """Tensors of a graph by name, in a session."""
    with tf.compat.v1.Session(graph=tf.graph_util.import_graph_def(graph_def)) as session:
        return list(session.run(names, feeds))


def arguments() -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for flag, what in (("tlm", "the cycle model"), ("tpu", "a device"), ("raw", "a device that takes words")):
        parser.add_argument(f"--enable-{flag}", action="store_true", help=f"run {what}")
    parser.add_argument("--save-graph-path", type=Path, help="write the imported network here")
    parser.add_argument("--quantize-method", choices=["qc", "qcf", "qt", "qtf"], default="qc")
    parser.add_argument("--output", type=Path, default=HERE / "out", help="folder of all files")
    return parser.parse_args()


def run(wanted: argparse.Namespace) -> None:
    """Imports, quantises, compiles, runs."""
    wanted.output.mkdir(parents=True, exist_ok=True)
    graph, names = onnx_to_tf(str(HERE / "digits.onnx"), {"image": [1, 1, 8, 8]})
    graph_def = graph.as_graph_def()
    if wanted.save_graph_path is not None:
        wanted.save_graph_path.write_bytes(graph_def.SerializeToString())
    images = np.load(HERE / "calibration.npz")["image"]
    model = RegularModel(graph_def, {"image": [1, 1, 8, 8]}, [names["logits"]])

    saved = wanted.output / "thresholds.json"
    if wanted.quantize_method.startswith("qc"):
        thresholds = model.calibrate([{"image": image[None]} for image in images[:CALIBRATION]])
        RegularModel.dump_thresholds(saved, thresholds)
    else:
        thresholds = RegularModel.load_thresholds(saved)
    if wanted.quantize_method.endswith("f"):
        tuning = {"image": images[:FINE_TUNING]}
        thresholds = model.fine_tune(thresholds, tuning, EPOCHS, wanted.output)
    quantized = model.quantize(thresholds)
    quantized.save(wanted.output)

    network, _ = Network.from_quantized_model(quantized)
    executable, descriptions = compile_(get_hw_params("128x128_asic"), network, O5)
    program = wanted.output / "end_to_end.tpu"
    TpuProgram.from_executable(executable, descriptions).to_file(program)
    print(f"program {program.name}: {program.stat().st_size:,} bytes")

    with np.load(HERE / "digits.npz") as samples:
        image, label = samples["image"][:1], int(samples["labels"][0])
    (floats,) = run_graph(graph_def, {names["image"]: image}, [names["logits"]])
    print(f"{'float':<7} digit {int(floats.argmax())}, the label says {label}")
    quantized_def = quantized.as_graph(1).as_graph_def()
    (codes,) = run_graph(quantized_def, quantized.rescale({names["image"]: image}), [names["logits"]])
    results = {"graph": quantized.rescale({names["logits"]: codes})["logits"]}
    if wanted.enable_tlm:
        done = model_execute(
            executable=executable, tensor_descriptions=descriptions, input_data={"image": image}
        )
        results["tlm"] = done.output_data["logits"]
        print(f"tlm     {done.execution_time_us:.2f} us")
    if wanted.enable_tpu:
        with (
            Device.open(Device.list_devices()[0]) as device,
            device.load(program) as loaded,
            loaded.inference() as inference,
        ):
            results["tpu"] = inference.sync({"image": image})["logits"]
    if wanted.enable_raw:
        raw = wanted.output / "end_to_end.raw.tpu"
        codec = convert_to_raw(program, raw)
        with Device.open() as device, device.load(raw) as loaded, loaded.inference() as inference:
            words = inference.sync(codec.encode({"image": image}))
        results["raw"] = codec.decode(words)["logits"]
    for name, logits in results.items():
        print(f"{name:<7} digit {int(logits.argmax())}, the label says {label}")
    if len({logits.tobytes() for logits in results.values()}) > 1:
        sys.exit("the ways differ: this is a defect of tpuflow")


def main() -> None:
    """Runs the script; a wrong request ends with one line."""
    try:
        run(arguments())
    except TpuflowError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
