"""The stages before the schedule, each with what a request says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuflow.build.samples import GENERATED, samples_of
from tpuflow.calibrate import Ranges, calibrate
from tpuflow.config import Config, refuse_calibration
from tpuflow.errors import FileError
from tpuflow.frontend import FloatModel, load, verify_import
from tpuflow.likeness import Likeness, likeness
from tpuflow.partition import PartitionedModel
from tpuflow.plugins import with_input_scales
from tpuflow.quantize import quantize
from tpuflow.refine import better_equalized, better_tuned, centred, refined, with_factors

if TYPE_CHECKING:
    from tpuflow.build.request import Listener, Request
    from tpuflow.samples import Samples
    from tpuflow.store import AnyGraph

__all__ = [
    "alike",
    "calibrated",
    "divided",
    "imported",
    "quantized",
    "refined_by_chain",
    "with_errors",
    "with_tuned",
]


def imported(request: Request, listener: Listener) -> FloatModel:
    """The float model of a request, compared with the original on a sample."""
    model = load(
        request.model,
        input_shapes=request.input_shapes,
        batch=request.batch,
        cut_inputs=request.cut_inputs,
        cut_outputs=request.cut_outputs,
        cut_preset=request.cut_preset,
        preprocess=request.config.preprocess,
        host=request.host,
    )
    if request.verify:
        found = verify_import(model, remark=listener.remark, excepts=request.excepts)
        worst = min((result.cosine for _, result in found), default=1.0)
        listener.remark(f"import verified on a sample: least cosine of an output {worst:.3f}")
    return model


def divided(model: FloatModel, request: Request, listener: Listener) -> FloatModel:
    """The model with factors by channel: those of saved ranges, or where samples say that they help."""
    if request.calibration is None and request.saved is not None:
        return with_factors(model, request.saved.factors) if request.saved.factors else model
    if not request.config.calibrate.equalize or not _shows_its_own(request):
        return model
    return better_equalized(model, samples_of(model, request), request.config, listener.remark)


def _shows_its_own(request: Request) -> bool:
    """Whether there are samples of the user's, and ranges are to be those of this very model."""
    settings = request.config.calibrate
    own = not settings.statistic_file and not settings.save_statistic_info and settings.strategy != "in_ir"
    integers = request.config.quantize.dtype == "int8"
    given = request.calibration is not None and request.ranges is None
    return own and integers and given


def calibrated(model: FloatModel | PartitionedModel, request: Request, listener: Listener) -> Ranges:
    """The ranges of a model: saved ones, those of given samples, or those of generated samples."""
    if request.ranges is not None and request.calibration is not None:
        raise FileError(f"{request.calibration}: not needed beside the ranges of {request.ranges}: give one")
    if request.saved is not None:
        refuse_calibration(request.config, f"ranges come from {request.ranges}")
        return request.saved.without_foreign_errors(request.config, listener.remark)
    whole = model.model if isinstance(model, PartitionedModel) else model
    file = request.config.calibrate.statistic_file
    alone = bool(file) and not request.config.calibrate.ignore_missing_statistic
    if request.calibration is None and not alone:
        zeros = request.config.calibrate.no_data == "zeros"
        kind = "a sample of zeros" if zeros else f"{GENERATED} generated samples"
        what = f"ranges of what {file} lacks" if file else "ranges"
        listener.remark(f"no --calib and no --ranges: {what} come from {kind}, accuracy is not calibrated")
    if alone:
        listener.remark(f"ranges come from the statistics in {file}; no sample is read for them")
    samples: Samples | dict[str, Any] = {} if alone else samples_of(whole, request)
    ranges = calibrate(model, samples, request.config, listener.step, listener.counted)
    names = [port.name for port in whole.inputs]
    return with_input_scales(ranges, request.plugins, names, request.config)


def with_tuned(model: FloatModel, ranges: Ranges, request: Request, listener: Listener) -> Ranges:
    """The ranges tuned where samples of the user's say that it helps, and nobody chose how to find them."""
    if not request.config.tunes or not _shows_its_own(request):
        return ranges
    return better_tuned(model, ranges, samples_of(model, request), request.config, listener.remark)


def refined_by_chain(
    model: FloatModel, ranges: Ranges, request: Request, listener: Listener
) -> tuple[FloatModel, Ranges]:
    """The model and its ranges after the methods of global calibration, shown the samples of the request.

    Raises:
        FileError: There are only ranges: methods need samples.
    """
    if request.calibration is None and request.ranges is not None:
        raise FileError(f"{request.ranges}: global_calibration needs samples: give --calib, not --ranges")
    samples = samples_of(model, request)
    return refined(model, ranges, samples, request.config, listener.step, listener.remark)


def with_errors(model: FloatModel, ranges: Ranges, request: Request, listener: Listener) -> Ranges:
    """The ranges with the mean errors of outputs; as they are without samples of the user's."""
    if not _shows_its_own(request):
        return ranges
    found = centred(model, ranges, samples_of(model, request), request.config)
    if found.errors:
        listener.remark(f"biases of {len(found.errors)} last layers take back their mean errors")
    return found


def quantized(model: FloatModel | PartitionedModel, ranges: Ranges | None, config: Config) -> AnyGraph:
    """The graph of a model; in segments only where the host takes part."""
    if isinstance(model, FloatModel):
        return quantize(model, ranges, config)
    parts = quantize(model, ranges, config)
    return parts.whole or parts


def alike(model: FloatModel, graph: AnyGraph, request: Request) -> dict[str, Likeness] | None:
    """Likeness to float of every tensor; None where there are no samples to compare by."""
    count = request.config.evaluate.similarity_data_num
    if count == 0 or (request.calibration is None and request.ranges is not None):
        return None
    return likeness(model, graph, samples_of(model, request), count)
