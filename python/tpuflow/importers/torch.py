"""PyTorch modules, through torch.onnx: the extra `torch`, imported when it is needed."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import warnings
from typing import TYPE_CHECKING, Any

import onnx

from tpuflow.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["from_torch"]

OPSET = 18


def from_torch(
    module: Any,
    example_inputs: Any,
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_batch: bool = False,
) -> onnx.ModelProto:
    """Exports a PyTorch module in evaluation mode; its own mode is restored.

    Args:
        module: A `torch.nn.Module`.
        example_inputs: A tensor, or a tuple of tensors: the module is traced with them, their shapes hold.
        input_names: Names of the inputs.
        output_names: Names of the outputs.
        dynamic_batch: Leave the first axis of every input open.

    Raises:
        ModelError: If PyTorch is not installed, or cannot export the module.
    """
    if importlib.util.find_spec("torch") is None:
        raise ModelError('PyTorch is not installed, which exports modules: pip install "tpuflow[torch]"')
    torch = importlib.import_module("torch")
    examples = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    names = list(input_names) if input_names else [f"input{index or ''}" for index in range(len(examples))]
    axes = {name: {0: "batch"} for name in names} if dynamic_batch else None
    buffer, training = io.BytesIO(), module.training
    module.eval()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
            warnings.simplefilter("ignore")  # of the exporter, about itself
            torch.onnx.export(
                module,
                examples,
                buffer,
                input_names=names,
                output_names=list(output_names) if output_names else None,
                dynamic_axes=axes,
                opset_version=OPSET,
                dynamo=False,
            )
    except Exception as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        raise ModelError(f"torch.onnx cannot export {type(module).__name__}: {reason}") from error
    finally:
        module.train(training)
    return onnx.load_from_string(buffer.getvalue())
