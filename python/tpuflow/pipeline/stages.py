"""The arguments of the stages before and after the recipe, from a request."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tpuflow.compiler.program import compile as compile_graph
from tpuflow.compiler.schedule import Schedule
from tpuflow.errors import NoKernelError
from tpuflow.evaluation.by_tensor import TensorSimilarity, tensor_similarities
from tpuflow.evaluation.import_check import verify_import
from tpuflow.frontend import FloatModel, load, specialize
from tpuflow.pipeline.samples import calibration_data
from tpuflow.plugins import with_input_scales, with_operator_scales
from tpuflow.ptq import CalibratedModel, Recipe

if TYPE_CHECKING:
    from tpuflow.calibration import Ranges
    from tpuflow.partitioning.storage import AnyGraph, AnyProgram
    from tpuflow.pipeline.request import Request
    from tpuflow.ptq import CalibrationData, Listener

__all__ = ["alike", "calibrate_model", "import_model", "schedule_graph", "starting"]


def import_model(request: Request, listener: Listener) -> FloatModel:
    """The float model of a request, compared with the original on a sample."""
    phase = request.phase
    opened = request.model if phase is None else specialize(request.model, phase.sequence, phase.context)
    model = load(
        opened,
        input_shapes=request.input_shapes,
        batch=request.batch,
        cut_inputs=request.cut_inputs,
        cut_outputs=request.cut_outputs,
        cut_preset=request.cut_preset,
        **request.config.loading,
        host=request.host,
    )
    model = model if phase is None else replace(model, source=request.model)
    if request.verify:
        try:
            found = verify_import(model, remark=listener.remark, excepts=request.excepts)
        except NoKernelError as error:
            listener.remark(f"import not verified on a sample, as the model cannot be run itself: {error}")
            return model
        worst = min((result.cosine for _, result in found), default=1.0)
        listener.remark(f"import verified on a sample: lowest cosine similarity of an output {worst:.3f}")
    return model


def starting(model: FloatModel, request: Request) -> CalibratedModel:
    """A model before the recipe: all of it for the machine, or what the machine can do of it."""
    return CalibratedModel(model, hosted=frozenset() if request.host else None)


def calibrate_model(
    state: CalibratedModel,
    request: Request,
    listener: Listener,
    recipe: Recipe | None = None,
    data: CalibrationData | None = None,
) -> CalibratedModel:
    """A model after the stages of a recipe that stand before lowering, shown what a request calibrates with.

    Args:
        state: The model.
        request: Says what to calibrate with, and which plugins there are.
        listener: Told what is done.
        recipe: All stages by default.
        data: Samples or ranges of the request, where they have been opened before.
    """
    names = [port.name for port in state.model.inputs]
    config = (recipe or request).config

    def set_inputs(ranges: Ranges, model: FloatModel) -> Ranges:
        known = {name: each for name, each in request.set_ranges.items() if name in ranges.tensors}
        found = replace(ranges, tensors={**ranges.tensors, **known})
        found = with_input_scales(found, request.plugins, names, config)
        return with_operator_scales(found, request.plugins, model.model, config)

    data = data or calibration_data(state.model, request)
    return (recipe or Recipe(config)).calibrate(state, data, listener, set_inputs)


def alike(
    model: FloatModel, graph: AnyGraph, request: Request, data: CalibrationData
) -> dict[str, TensorSimilarity] | None:
    """TensorSimilarity to float of every tensor; None where there are no samples to compare by."""
    count = request.config.evaluate.similarity_data_num
    if count == 0 or (request.calibration is None and request.ranges is not None):
        return None
    return tensor_similarities(model, graph, data.samples, count)


def schedule_graph(graph: AnyGraph, request: Request) -> AnyProgram:
    """The program of a graph, which the checker has followed through every instruction."""
    return compile_graph(
        graph,
        machine=request.machine,
        level=request.level,
        schedule=Schedule.of(request.level, request.config.schedule),
        time_limit=request.time_limit,
        seed=request.seed,
        strict=request.strict,
        cache=request.cache,
    )
