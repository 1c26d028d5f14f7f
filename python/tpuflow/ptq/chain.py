"""The methods of global calibration in a row, each kept only where it brings outputs closer to float.

    model, ranges = apply_chain(model, ranges, samples, config)

A method takes a float model and its ranges and gives others; what is measured before and after is the signal
to noise of the quantised network's outputs on some of the samples.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tpuflow.calibration import Range, Ranges, calibrate
from tpuflow.evaluation.fidelity import Evaluator
from tpuflow.ptq.adaquant import adaquant
from tpuflow.ptq.confirmation import HELD_OUT_COUNT, SHOWN, graph_of, parts_of
from tpuflow.ptq.easy_quant import cosine, searched_operand, searched_weights, with_range, with_variances
from tpuflow.ptq.equalization import SCALED, activation_aware, equalize_channels, smooth_channels
from tpuflow.ptq.layers import LinearLayer, copy_model
from tpuflow.ptq.operands import chosen_layers, fake_quantize, operand_grid, operands_of
from tpuflow.ptq.range_tuning import auto_tuned
from tpuflow.ptq.seen_channels import SeenChannels
from tpuflow.ptq.svd_quant import best_factor, denoise, random_operands, spectral_error
from tpuflow.ptq.weights import ROUNDINGS, refine_weights

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpuflow.config import Config
    from tpuflow.config.chain import GlobalMethod
    from tpuflow.frontend import FloatModel
    from tpuflow.io.samples import Samples

__all__ = ["apply_chain"]

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
Made = tuple["FloatModel", Ranges, str]
"""A model, its ranges, and what was done in a few words."""


def apply_chain(
    model: FloatModel,
    ranges: Ranges,
    samples: Samples,
    config: Config,
    progress: Progress | None = None,
    remark: Callable[[str], None] = logger.info,
) -> tuple[FloatModel, Ranges]:
    """The model and its ranges after all methods of the configuration's chain; neither is changed itself.

    Args:
        model: A float model; nodes the machine cannot compute stay with the host.
        ranges: Of its values, by local calibration.
        samples: What the methods are shown, but for some that they are evaluated with.
        config: The chain, and how everything is stored.
        progress: Told after every layer of methods that go layer by layer.
        remark: Told what became of every method.
    """
    if samples.count < 2:
        remark("global_calibration: a single sample leaves none to evaluate with: not done, give more")
        return model, ranges
    samples, held = _split_samples(samples)
    evaluator = Evaluator(model, held)
    before = evaluator.sqnr_db(graph_of(model, ranges, config))
    for method in config.calibrate.chain:
        made, found, told = _apply_method(model, ranges, samples, config, method, progress)
        after = evaluator.sqnr_db(graph_of(made, found, config))
        if after < before:
            remark(f"{method.name}: {told}; {after:.2f} dB is worse than {before:.2f} dB: undone")
            continue
        remark(f"{method.name}: {told}; {after:.2f} dB, was {before:.2f} dB")
        model, ranges, before = made, found, after
    return model, ranges


def _split_samples(samples: Samples) -> tuple[Samples, Samples]:
    """Samples for the methods and for their evaluation: `HELD_OUT_COUNT` at even distances, or a quarter."""
    rows = list(samples.rows())
    count = min(HELD_OUT_COUNT, max(1, len(rows) // 4))
    held = {(at + 1) * len(rows) // count - 1 for at in range(count)}
    return (
        samples.of_rows([row for at, row in enumerate(rows) if at not in held]),
        samples.of_rows([row for at, row in enumerate(rows) if at in held]),
    )


def _apply_method(
    model: FloatModel,
    ranges: Ranges,
    samples: Samples,
    config: Config,
    method: GlobalMethod,
    progress: Progress | None,
) -> Made:
    if method.name in ROUNDINGS:
        made, report = refine_weights(model, samples, config, progress, method)
        kept = sum(layer.kept for layer in report)
        return made, ranges, f"weights of {kept} of {len(report)} layers refined"
    return OTHERS[method.name](model, ranges, samples, config, method)


def _equalize(
    model: FloatModel, ranges: Ranges, samples: Samples, config: Config, _method: GlobalMethod
) -> Made:
    seen = SeenChannels.of(model, samples.spread(SCALED))
    found = equalize_channels(seen, min(config.quantize.weight_bits or 8, 8))
    if found.sets:
        ranges = calibrate(parts_of(found.model), samples, config)
    return found.model, ranges, f"{found.sets} sets of channels scaled"


def _smooth_quant(
    model: FloatModel, ranges: Ranges, samples: Samples, config: Config, method: GlobalMethod
) -> Made:
    numbers = {node: at for at, node in enumerate(model.model.graph, len(model.model.graph.inputs))}
    found = smooth_channels(
        model,
        samples.spread(SHOWN),
        method.numbers["alpha"],
        lambda node: method.fits(
            node.op_type,
            *(name for name in (node.name, *(value.name for value in node.outputs)) if name),
            number=numbers[node],
        ),
    )
    if found.sets:
        ranges = calibrate(parts_of(found.model), samples, config)
    return found.model, ranges, f"{found.sets} operands behind norms scaled"


def _awq(model: FloatModel, ranges: Ranges, samples: Samples, config: Config, method: GlobalMethod) -> Made:
    largest = {layer.node: codes for layer, codes in chosen_layers(model, config, method)}
    found = activation_aware(model, samples.spread(SHOWN), int(method.numbers["n_grid"]), largest)
    if found.sets:
        ranges = calibrate(parts_of(found.model), samples, config)
    return found.model, ranges, f"{found.sets} operands scaled by their magnitudes"


def _second_moment(
    model: FloatModel, ranges: Ranges, samples: Samples, config: Config, method: GlobalMethod
) -> Made:
    made = replace(model, model=copy_model(model.model))
    layers = dict(chosen_layers(made, config, method))
    for operand in operands_of(made.model, list(layers), samples.spread(SHOWN)):
        grid = operand_grid(operand.name, ranges, config)
        for layer, x in operand.layers:
            values, steps = with_variances(layer.weights, x, fake_quantize(x, grid), layers[layer])
            _put(layer, values, steps, x)
    return made, ranges, f"variances of {len(layers)} layers corrected"


def _easy_quant(
    model: FloatModel, ranges: Ranges, samples: Samples, config: Config, method: GlobalMethod
) -> Made:
    made = replace(model, model=copy_model(model.model))
    layers = dict(chosen_layers(made, config, method))
    numbers = method.numbers
    operands = list(operands_of(made.model, list(layers), samples.spread(int(numbers["batches"]))))
    changed = moved = 0
    chosen: dict[LinearLayer, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
    for _ in range(int(numbers["epochs"])):
        for operand in operands:
            grid = operand_grid(operand.name, ranges, config)
            quantized = {}
            for layer, x in operand.layers:
                found = searched_weights(layer.weights, x, fake_quantize(x, grid), layers[layer], numbers)
                quantized[layer] = found.codes * found.steps[:, :, np.newaxis]
                if found.after > found.before:
                    chosen[layer] = quantized[layer], found.steps
            factor = searched_operand(operand, quantized, ranges, config, numbers)
            moved += factor != 1
            ranges = with_range(ranges, operand.name, factor)
    for operand in operands:
        for layer, x in operand.layers:
            if layer in chosen:
                _put(layer, *chosen[layer], x)
                changed += 1
    return made, ranges, f"steps of {changed} of {len(layers)} layers, ranges of {moved} operands searched"


def _auto_tune(
    model: FloatModel, ranges: Ranges, samples: Samples, config: Config, method: GlobalMethod
) -> Made:
    found = auto_tuned(model, ranges, samples, config, method)
    changed = sum(found.tensors[name] != each for name, each in ranges.tensors.items())
    return model, found, f"ranges of {changed} operands tuned"


def _svd_quant(
    model: FloatModel, ranges: Ranges, samples: Samples, config: Config, method: GlobalMethod
) -> Made:
    made = replace(model, model=copy_model(model.model))
    layers = dict(chosen_layers(made, config, method))
    numbers, changed = method.numbers, 0
    for at, operand in enumerate(operands_of(made.model, list(layers), samples.spread(8))):
        if numbers["mode"] >= 3:
            for layer, x in operand.layers:
                changed += layer.node.op_type == "MatMul" and _band_limited(
                    layer, x, layers[layer], numbers, at
                )
            continue
        grid = operand_grid(operand.name, ranges, config)
        if grid is None:
            continue
        x = operand.layers[0][1][0].astype(np.float64)
        start = ranges
        if numbers["mode"] >= 1:
            clean = denoise(x, numbers["thresh"])
            low, high = min(0.0, float(clean.min())), max(0.0, float(clean.max()))
            tensors = {**ranges.tensors, operand.name: Range(low, high)}
            ranges = Ranges(tensors, ranges.samples, ranges.strategy, ranges.means)
        if numbers["mode"] <= 1:
            now = ranges

            def error(
                factor: float, now: Ranges = now, name: str = operand.name, x: NDArray[np.float64] = x
            ) -> float:
                own = operand_grid(name, with_range(now, name, factor), config)
                return spectral_error(x, fake_quantize(x.astype(np.float32), own).astype(np.float64))

            ranges = with_range(ranges, operand.name, best_factor(error, numbers))
        changed += ranges.tensors[operand.name] != start.tensors[operand.name]
    what = "layers" if numbers["mode"] >= 3 else "operands"
    return made, ranges, f"{changed} {what} changed"


def _band_limited(
    layer: LinearLayer, x: NDArray[np.float32], largest: int, numbers: dict[str, float], seed: int
) -> bool:
    """Steps of a product's weights by one factor, evaluated by random operands; whether they changed."""
    weights = layer.weights
    operands = random_operands(weights.shape[2], 256, float(x.std()), seed)
    reach = np.abs(weights).max(axis=2)
    own = np.where(reach > 0, reach, 1.0) / largest
    expected = operands @ weights[0].T

    def fake_quantized_rows(factor: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        steps = (own * factor).astype(np.float32).astype(np.float64)
        codes = np.clip(np.rint(weights / steps[:, :, np.newaxis]), -largest, largest)
        return codes * steps[:, :, np.newaxis], steps

    def error(factor: float) -> float:
        found = operands @ fake_quantized_rows(factor)[0][0].T
        alike = cosine(np.abs(np.fft.rfft(expected)), np.abs(np.fft.rfft(found)))
        return float(np.mean((found - expected) ** 2)) * (2 - alike)

    factor = best_factor(error, numbers)
    if factor == 1:
        return False
    _put(layer, *fake_quantized_rows(factor), x)
    return True


def _adaquant(
    model: FloatModel, ranges: Ranges, samples: Samples, config: Config, method: GlobalMethod
) -> Made:
    made = replace(model, model=copy_model(model.model))
    layers = dict(chosen_layers(made, config, method))
    numbers, changed = method.numbers, 0
    for operand in operands_of(made.model, list(layers), samples.spread(int(numbers["batches"]))):
        grid = operand_grid(operand.name, ranges, config)
        factors = []
        for layer, x in operand.layers:
            groups = [
                adaquant(matrix, columns.astype(np.float64), layers[layer], grid, numbers)
                for matrix, columns in zip(layer.weights, x, strict=True)
            ]
            start, end = (sum(min(group.losses[:last]) for group in groups) for last in (1, None))
            if end >= start:
                continue
            steps = np.stack([group.steps for group in groups])
            values = np.stack([group.codes for group in groups]) * steps[:, :, np.newaxis]
            bias = np.stack([group.bias for group in groups]) if layer.has_bias else np.zeros_like(steps)
            layer.replace(values, steps, bias)
            factors += [group.scale for group in groups]
            changed += 1
        if grid is not None and factors:
            # Of several readers the widest range, which cuts off nothing that one of them needs.
            ranges = with_range(ranges, operand.name, float(max(factors)))
    return made, ranges, f"{changed} of {len(layers)} layers learned"


def _put(
    layer: LinearLayer, values: NDArray[np.float64], steps: NDArray[np.float64], x: NDArray[np.float32]
) -> None:
    """Weights on a grid in a layer, whose bias corrects their mean error."""
    mean = x.mean(axis=1, dtype=np.float64)
    layer.replace(values, steps, np.einsum("grk,gk->gr", layer.weights - values, mean))


OTHERS: dict[str, Callable[[FloatModel, Ranges, Samples, Config, GlobalMethod], Made]] = {
    "equalize": _equalize,
    "smooth_quant": _smooth_quant,
    "awq": _awq,
    "second_moment": _second_moment,
    "easy_quant": _easy_quant,
    "auto_tune": _auto_tune,
    "svd_quant": _svd_quant,
    "adaquant_zy": _adaquant,
}
"""Methods but for those that only round weights."""
