"""Constants stored as floats of 4 or 8 bits, or with such scales: every code stands for its own number."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tpuflow import load
from tpuflow.errors import TpuflowError

CODES = {
    "FLOAT4E2M1": ml_dtypes.float4_e2m1fn,
    "FLOAT8E4M3FN": ml_dtypes.float8_e4m3fn,
    "FLOAT8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "FLOAT8E5M2": ml_dtypes.float8_e5m2,
    "FLOAT8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}


def _all(kind: Any) -> np.ndarray:
    """Every finite number of a type."""
    count = 16 if kind is ml_dtypes.float4_e2m1fn else 256
    numbers = np.arange(count, dtype=np.uint8).view(kind)
    return np.asarray(numbers[np.isfinite(numbers.astype(np.float32))])


def _product(codes: np.ndarray, scales: np.ndarray, more: np.ndarray | None = None, **attributes: Any) -> Any:
    """What a product's right operand `[rows, columns]` is once the model is loaded."""
    constants = [numpy_helper.from_array(codes, "codes"), numpy_helper.from_array(scales, "scales")]
    nodes, scale = [], "scales"
    if more is not None:
        constants.append(numpy_helper.from_array(more, "scale_of_scales"))
        nodes.append(helper.make_node("DequantizeLinear", ["scales", "scale_of_scales"], ["all_scales"]))
        scale = "all_scales"
    nodes.append(
        helper.make_node(
            "DequantizeLinear", ["codes", scale], ["w"], output_dtype=TensorProto.FLOAT, **attributes
        )
    )
    nodes.append(helper.make_node("MatMul", ["x", "w"], ["y"]))
    rows, columns = codes.shape
    graph = helper.make_graph(
        nodes,
        "small_floats",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, rows])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, columns])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=12)
    onnx.checker.check_model(model, full_check=True)
    found = [value.const_value for value in load(model).model.graph.initializers.values()]
    return next(array.numpy() for array in found if array is not None and array.numpy().shape == codes.shape)


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.feature("QMO-22")
def test_every_code_is_its_own_number(kind: str) -> None:
    codes = _all(CODES[kind])[:, np.newaxis].repeat(2, 1)
    found = _product(codes, np.array([0.75, 3], np.float32), axis=1)
    np.testing.assert_array_equal(found, codes.astype(np.float32) * np.array([0.75, 3], np.float32))


@pytest.mark.parametrize("codes", ["FLOAT4E2M1", "INT8", "INT4"])
@pytest.mark.feature("QMO-22")
def test_blocks_with_scales_that_are_powers_of_two(codes: str) -> None:
    """MXFP4 and MXINT8: every scale of the type, with every code."""
    if codes == "FLOAT4E2M1":
        numbers = _all(CODES[codes])
    else:
        numbers = (
            np.arange(-128, 128, dtype=np.int8) if codes == "INT8" else np.arange(-8, 8, dtype=ml_dtypes.int4)
        )
    # The largest would leave the range of float32.
    scales = np.arange(246, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu)
    block = numbers.repeat(-(-32 // len(numbers)))
    rows = np.tile(block, len(scales))[:, np.newaxis]
    found = _product(rows, scales[:, np.newaxis], axis=0, block_size=len(block))
    exact = rows.astype(np.float64) * scales.astype(np.float64).repeat(len(block))[:, np.newaxis]
    np.testing.assert_array_equal(found, exact.astype(np.float32))


@pytest.mark.feature("QMO-22")
def test_blocks_with_scales_of_8_bits_and_one_for_all() -> None:
    """NVFP4: every scale of the type, with every code, in blocks of 16."""
    scales = _all(ml_dtypes.float8_e4m3fn)
    scales = scales[scales.astype(np.float32) > 0]
    rows = np.tile(_all(ml_dtypes.float4_e2m1fn), len(scales))[:, np.newaxis]
    found = _product(rows, scales[:, np.newaxis], np.array(0.013, np.float32), axis=0, block_size=16)
    steps = (scales.astype(np.float32) * np.float32(0.013)).repeat(16)[:, np.newaxis]
    np.testing.assert_array_equal(found, rows.astype(np.float32) * steps)


@pytest.mark.feature("QMO-22")
def test_activations_in_floats_of_8_bits_are_refused() -> None:
    """The machine has no such grid, and onnxruntime gives the host no such arrays."""
    zero = np.zeros((), ml_dtypes.float8_e4m3fn)
    constants = [numpy_helper.from_array(np.array(0.05, np.float32), "s"), numpy_helper.from_array(zero, "z")]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in "xy"]
    graph = helper.make_graph(nodes, "activations", ports[:1], ports[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    for host in (False, True):
        with pytest.raises(TpuflowError, match="float8e4m3fn"):
            load(model, host=host)
