"""Nodes of onnxruntime's own operators whose inputs do not fit: one line each, and no rewrite sees them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from frontend.graphs import array, graph, integers
from tpuflow.frontend import check_model

TOKENS = [1, 4, 16]
BYTES = np.zeros((8, 1, 8), np.uint8)
PACKED = {"K": 16, "N": 8, "bits": 4, "block_size": 16}
HEADS = {"num_heads": 4, "kv_num_heads": 2}
LENGTHS = {"n": np.array([3], np.int32), "t": np.array(4, np.int32)}
ANGLES = {"c": array(8, 2), "s": array(8, 2)}
STEPS = {"s": array(1), "z": np.zeros(1, np.int8)}


@pytest.mark.parametrize(
    ("node", "constants", "expected"),
    [
        (("MatMulNBits", "x w k", "z", PACKED | {"K": 12}), {"w": BYTES, "k": array(8)},
         "K): is not valid: 12"),
        (("MatMulNBits", "x w k", "z", PACKED | {"N": 0}), {"w": BYTES, "k": array(8)},
         "N): is not valid: 0"),
        (("MatMulNBits", "x w k", "z", PACKED), {"w": BYTES[:3], "k": array(8)},
         "64 bytes of codes are needed"),
        (("MatMulNBits", "x w k", "z", PACKED), {"w": BYTES, "k": array(3)}, "8 scales are needed"),
        (("MatMulNBits", "x w k", "z", PACKED | {"bits": 3}), {"w": BYTES, "k": array(8)}, "3 is not one of"),
        (("MatMulNBits", "x w k _ g", "z", PACKED),
         {"w": BYTES, "k": array(8), "g": np.full(16, 5, np.int32)}, "names a block outside the 1 there are"),
        (("GatherBlockQuantized", "w i k", "z", {"quantize_axis": 5}),
         {"w": BYTES, "i": integers(0), "k": array(8, 1, 1)},
         "quantize_axis): is not valid: 5 is not an axis"),
        (("GatherBlockQuantized", "w i k", "z", {"block_size": 0}),
         {"w": BYTES, "i": integers(0), "k": array(8, 1, 1)}, "block_size): is not valid: 0 is out of range"),
        (("GatherBlockQuantized", "w i k", "z"),
         {"w": BYTES, "i": integers(0), "k": array(8)}, "scales of the shape [8] do not fit"),
        (("RotaryEmbedding", "x p c s", "z", {"num_heads": 3}),
         {"p": integers(0), **ANGLES}, "num_heads): is not valid: 3 heads do not divide"),
        (("RotaryEmbedding", "x p c s", "z", {"num_heads": 4}),
         {"p": integers(9), **ANGLES}, "names a position outside the 8 there are"),
        (("RotaryEmbedding", "x p c s", "z", {"num_heads": 4}),
         {"p": integers(0, 1), **ANGLES}, "positions of the shape [2] do not fit"),
        (("RotaryEmbedding", "x p c s", "z", {"num_heads": 4}),
         {"p": integers(0), "c": array(8, 2), "s": array(7, 2)}, "sines of the shape"),
        (("RotaryEmbedding", "x p c s", "z", {"num_heads": 4}),
         {"p": integers(0), "c": array(8, 3), "s": array(8, 3)}, "does not fit 4 features"),
        (("GroupQueryAttention", "x x x _ _ n t", "z u v", HEADS | {"kv_num_heads": 3}), LENGTHS,
         "kv_num_heads): is not valid: 3 heads of keys do not divide 4"),
        (("GroupQueryAttention", "x x x _ _ n t", "z u v", HEADS), LENGTHS, "[1, 4, 8] is needed"),
        (("GroupQueryAttention", "x k k p p n t", "z u v", HEADS),
         LENGTHS | {"k": array(1, 4, 8), "p": array(1, 3, 2, 4)},
         "a past of the shape [1, 3, 2, 4] does not"),
        (("GroupQueryAttention", "x _ _ _ _ n t", "z u v", HEADS | {"num_heads": 1,
         "kv_num_heads": 1}), LENGTHS,
         "which 3 heads do not divide"),
        (("MoE", "x r w _ v", "z", {"k": 4}),
         {"r": array(4, 3), "w": array(3, 8, 16), "v": array(3, 16, 8)},
         "k): is not valid: 4 of 3 experts cannot be chosen"),
        (("MoE", "x r w _ v", "z"), {"r": array(2, 3), "w": array(3, 8, 16), "v": array(3, 16, 8)},
         "shares of the shape [2, 3] do not"),
        (("MoE", "x r w _ v", "z"), {"r": array(4, 3), "w": array(2, 8, 16), "v": array(3, 16, 8)},
         "do not fit 3 experts"),
        (("QMoE", "x r w s b w s", "z"),
         {"r": array(4, 3), "w": np.zeros((3, 8, 8), np.uint8), "s": array(3, 8), "b": array(3, 7)},
         "[3, 8] is needed"),
        (("SkipLayerNormalization", "x x g", "z"), {"g": array(3)}, "16 numbers are needed"),
        (("SkipLayerNormalization", "x k g", "z"), {"k": array(3, 5), "g": array(16)},
         "[3, 5], does not fit"),
        (("QLinearSigmoid", "q s z s z", "y"), STEPS | {"s": array(3)},
         "must be one number, has the shape [3]"),
        (("QLinearConcat", "s z q s", "y", {"axis": 0}), STEPS, "4 are no operands with a scale"),
        (("QLinearConcat", "s z q s z", "y", {"axis": 7}), STEPS, "7 is not an axis of an input"),
        (("QGemm", "q s z q s z", "y"), STEPS, "rows and columns are needed"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_listed(node: tuple[Any, ...], constants: dict[str, Any], expected: str) -> None:
    inputs = {"x": TOKENS} if "x" in node[1].split() else {}
    if "q" in node[1].split():
        constants = constants | {"q": np.zeros(TOKENS, np.int8)}
        inputs = {"x": [1]}
    whole = (f"com.microsoft:{node[0]}", *node[1:])
    proto = graph([whole], inputs, [node[2].split()[0]], constants, opset=21, domains=["com.microsoft"])
    found = [str(each) for each in check_model(proto)]
    assert any(expected in each for each in found), found
