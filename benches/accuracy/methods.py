"""Ways to quantise a network: ours and those of other toolkits, each giving a forward function.

The others are needed by the bench alone: onnxruntime's `quantize_static` and, where they are installed,
nncf and aimet-onnx.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from material import Array, Network

from tpuflow import quantize
from tpuflow.config import Config
from tpuflow.execution.levels import GraphLevel
from tpuflow.io.samples import Samples
from tpuflow.ptq import search

__all__ = ["METHODS", "Forward", "Method"]

Forward = Callable[[dict[str, Array]], dict[str, Array]]
Method = Callable[[Network], Forward]


def _samples(network: Network) -> Samples:
    return Samples.of({network.port: network.calibration}, network.model.inputs)


def configured(content: dict[str, Any]) -> Method:
    """Our stages with a configuration."""

    def forward(network: Network) -> Forward:
        config = Config.parse(content)
        return GraphLevel(quantize(network.model, config=config, samples=_samples(network))).run

    return forward


def searched(growth: float) -> Method:
    """What `tpuflow search` finds, where a network may take so many times as many multiplications."""

    def forward(network: Network) -> Forward:
        found = search(network.model, _samples(network), remark=lambda _: None, growth=growth)
        assert not hasattr(found.graph, "device")
        return GraphLevel(found.graph).run

    return forward


class _Reader:
    """Calibration samples as onnxruntime's quantiser reads them."""

    def __init__(self, network: Network) -> None:
        self._feeds: Iterator[dict[str, Array]] = iter(
            [{network.port: image[np.newaxis]} for image in network.calibration]
        )

    def get_next(self) -> dict[str, Array] | None:
        return next(self._feeds, None)


def _session(path: Path) -> Forward:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda feed: dict(zip(names, session.run(None, feed), strict=True))


def onnxruntime_static(method: str) -> Method:
    """Onnxruntime's static quantisation: QDQ, int8 weights per channel, all calibration samples."""

    def forward(network: Network) -> Forward:
        from onnxruntime.quantization import (  # noqa: PLC0415 - only for this peer
            CalibrationMethod,
            QuantFormat,
            QuantType,
            quant_pre_process,
            quantize_static,
        )  # fmt: skip

        with tempfile.TemporaryDirectory() as folder:
            ready, made = Path(folder) / "ready.onnx", Path(folder) / "made.onnx"
            model = onnx.version_converter.convert_version(onnx.load(network.path), 17)
            onnx.save(model, ready)
            quant_pre_process(str(ready), str(ready), skip_symbolic_shape=True)
            quantize_static(
                str(ready),
                str(made),
                _Reader(network),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                weight_type=QuantType.QInt8,
                activation_type=QuantType.QInt8,
                calibrate_method=CalibrationMethod[method],
            )
            return _session(made)

    return forward


def nncf_static(preset: str) -> Method:
    """NNCF's post-training quantisation of ONNX with min-max ranges and all integers in use.

    Its default of averaged extrema cuts off much more; `mixed` makes activations asymmetric.
    """

    def forward(network: Network) -> Forward:
        import nncf  # noqa: PLC0415 - only for this peer
        from nncf.quantization.range_estimator import RangeEstimatorParametersSet  # noqa: PLC0415

        model = onnx.version_converter.convert_version(onnx.load(network.path), 17)
        dataset = nncf.Dataset([{network.port: image[np.newaxis]} for image in network.calibration])
        made = nncf.quantize(
            model,
            dataset,
            preset=nncf.QuantizationPreset(preset),
            subset_size=len(network.calibration),
            advanced_parameters=nncf.AdvancedQuantizationParameters(
                overflow_fix=nncf.OverflowFix.DISABLE,
                activations_range_estimator_params=RangeEstimatorParametersSet.MINMAX,
            ),
        )
        with tempfile.TemporaryDirectory() as folder:
            onnx.save(made, Path(folder) / "made.onnx")
            return _session(Path(folder) / "made.onnx")

    return forward


def aimet_static(scheme: str, *, adaround: bool = False) -> Method:
    """AIMET's simulation of int8 in onnxruntime, ranges by a scheme of its own.

    With `adaround` weights have 4 bits and are rounded together, in a thousand steps a layer.
    """

    def forward(network: Network) -> Forward:
        import aimet_onnx  # noqa: PLC0415 - only for this peer

        model = onnx.version_converter.convert_version(onnx.load(network.path), 17)
        feeds = [{network.port: image[np.newaxis]} for image in network.calibration]
        simulated = aimet_onnx.QuantizationSimModel(
            model,
            param_type=aimet_onnx.int4 if adaround else aimet_onnx.int8,
            activation_type=aimet_onnx.int8,
            quant_scheme=scheme,
            dummy_input=feeds[0],
            providers=["CPUExecutionProvider"],
        )
        if adaround:
            aimet_onnx.apply_adaround(simulated, feeds, num_iterations=1000)
        simulated.compute_encodings(feeds)
        # It names outputs in its own way, in the model's order.
        return lambda feed: dict(zip(network.outputs, simulated.session.run(None, feed), strict=True))

    return forward


METHODS: dict[str, Method] = {
    "default": configured({}),
    "int16": configured({"quantize": {"dtype": "int16"}}),
    "gptq": configured({"calibrate": {"global_calibration": "gptq"}}),
    "search": searched(2.0),
    "search-same-size": searched(1.0),
    "w4": configured({"quantize": {"weight_bits": 4}}),
    "w4-gptq": configured({"quantize": {"weight_bits": 4}, "calibrate": {"global_calibration": "gptq"}}),
    "w4-adaround": configured(
        {"quantize": {"weight_bits": 4}, "calibrate": {"global_calibration": "adaround"}}
    ),
    "w4-adaround-10000": configured(
        {"quantize": {"weight_bits": 4}, "calibrate": {"global_calibration": "adaround[0,10000]"}}
    ),
    "onnxruntime-minmax": onnxruntime_static("MinMax"),
    "onnxruntime-percentile": onnxruntime_static("Percentile"),
    "onnxruntime-entropy": onnxruntime_static("Entropy"),
}
if importlib.util.find_spec("nncf") is not None:
    METHODS |= {f"nncf-{preset}": nncf_static(preset) for preset in ("performance", "mixed")}
if importlib.util.find_spec("aimet_onnx") is not None:
    METHODS |= {
        "aimet-minmax": aimet_static("min_max"),
        "aimet-enhanced": aimet_static("tf_enhanced"),
        "aimet-w4-adaround": aimet_static("min_max", adaround=True),
    }
