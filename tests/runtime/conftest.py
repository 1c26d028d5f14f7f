"""A decoder whose caches stay on the device, in several phases and contexts."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from frontend.decoders import VOCABULARY, decoder
from tpuflow.pipeline import Request
from tpuflow.pipeline.decoders import BuiltDecoder, build_decoder, phases_of


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltDecoder:
    folder = tmp_path_factory.mktemp("decoder")
    onnx.save(decoder("exported"), folder / "d.onnx")
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (6, 16))
    np.savez(folder / "ids.npz", ids=ids)
    request = Request(folder / "d.onnx", calibration=folder / "ids.npz")
    return build_decoder(request, phases_of(4, 1, [4, 8, 16]))
