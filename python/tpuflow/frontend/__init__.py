"""The frontend: any ONNX model becomes a float model over a closed operator set, with static shapes.

    source.py     reads and validates a file
    interface.py  fixes input shapes
    specialize.py one phase of a decoder: sequence and context fixed
    cut.py        submodel extraction; presets.py: cut points of well-known networks
    convert.py    the import as one call, with the options of other tool chains
    preprocess.py preprocessing of images as operators of the model
    batch.py      changes a batch size that the model fixes
    normalize.py  the stages of normalisation, in order, and rewrites/, the rules they apply
    folding.py    constant folding
    functions.py  inlines what ONNX itself defines by simpler operators
    supported.py  the closed operator set, and a list of unsupported nodes
    session.py    runs a float model in onnxruntime
    samples.py    generated samples

It does not depend on quantisation or hardware.
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
