"""The frontend: any ONNX model becomes a float model over a closed operator set, with static shapes.

    source.py     reads a file and makes sure it is whole
    interface.py  fixes input shapes
    specialize.py one phase of a decoder: sequence and context fixed
    cut.py        parts of a model; presets.py knows where well-known networks are cut
    convert.py    the import as one call, with the options of other tool chains
    preprocess.py preparation of images, put in front
    batch.py      another batch for a model that fixes one
    normalize.py  the stages of normalisation, in order; rewrites/ holds what they apply
    folding.py    what is known beforehand is evaluated
    functions.py  inlines what ONNX itself defines by simpler operators
    supported.py  the closed set, and the listing of what lies outside
    session.py    runs a float model in onnxruntime
    samples.py    generated samples

It knows nothing of quantisation or hardware.
"""

from tpuflow.errors import Finding
from tpuflow.frontend.convert import onnx_to_tf
from tpuflow.frontend.cut import get_sub_model
from tpuflow.frontend.load import FloatModel, Port, check_model, load
from tpuflow.frontend.outside import operators, provide
from tpuflow.frontend.presets import PRESETS
from tpuflow.frontend.samples import generate_samples, generated
from tpuflow.frontend.session import FloatSession, run_float
from tpuflow.frontend.source import is_model_file, model_digest
from tpuflow.frontend.specialize import Cache, Phase, caches_of, specialize

__all__ = [
    "PRESETS",
    "Cache",
    "Finding",
    "FloatModel",
    "FloatSession",
    "Phase",
    "Port",
    "caches_of",
    "check_model",
    "generate_samples",
    "generated",
    "get_sub_model",
    "is_model_file",
    "load",
    "model_digest",
    "onnx_to_tf",
    "operators",
    "provide",
    "run_float",
    "specialize",
]
