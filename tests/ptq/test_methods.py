"""Methods of global calibration: what each makes better, and that none makes anything worse."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.util import tensor_util

from models.builder import Builder
from ptq.test_gptq import elements, images, network
from tpuflow.calibration import Range, Ranges, calibrate
from tpuflow.config import Config, ConfigError
from tpuflow.config.chain import METHODS, parsed_chain
from tpuflow.evaluation.fidelity import Evaluator, Fidelity
from tpuflow.frontend import FloatSession, load
from tpuflow.io.samples import Samples
from tpuflow.lowering.scheme import Quant
from tpuflow.ptq import apply_chain, chain, held_out, range_tuning
from tpuflow.ptq.adaquant import adaquant, stored_operand
from tpuflow.ptq.confirmation import graph_of
from tpuflow.ptq.easy_quant import cosine, searched_weights, with_variances
from tpuflow.ptq.equalization import activation_aware
from tpuflow.ptq.fine_tuning import fine_tune
from tpuflow.ptq.layers import linear_layers
from tpuflow.ptq.operands import chosen_layers, fake_quantize, operand_grid, operands_of
from tpuflow.ptq.range_tuning import candidates, distance, reader, tune_operand
from tpuflow.ptq.svd_quant import best_factor, denoise, random_operands, spectral_error

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpuflow.frontend import FloatModel


def shown(model: FloatModel, count: int = 12) -> Samples:
    return Samples.of({"x": images(count)}, model.inputs)


def settings(methods: str, bits: int = 4) -> Config:
    return Config.parse({"quantize": {"weight_bits": bits}, "calibrate": {"global_calibration": methods}})


def measured(model: FloatModel, source: FloatModel, ranges: Ranges, config: Config) -> float:
    return Evaluator(source, shown(source)).sqnr_db(graph_of(model, ranges, config))


CHAINS = [
    "easy_quant", "easy_quant[4,2,0.6,1.4,7,0]", "svd_quant", "svd_quant[1]", "svd_quant[2]", "svd_quant[3]",
    "awq", "awq[4]", "second_moment",
    "auto_tune", "auto_tune[2,5]", "adaquant_zy", "smooth_quant", "equalize", "equalize & easy_quant & gptq",
]  # fmt: skip


@pytest.mark.parametrize("methods", CHAINS)
@pytest.mark.feature("GCA-03", "GCA-05", "GCA-06", "GCA-17")
def test_no_method_makes_the_measured_loss_worse(methods: str) -> None:
    model, config = network(), settings(methods)
    ranges = calibrate(model, {"x": images(12)}, config)
    told: list[str] = []
    made, found = apply_chain(model, ranges, shown(model), config, remark=told.append)
    assert measured(made, model, found, config) >= measured(model, model, ranges, config)
    assert len(told) == len(config.calibrate.chain)
    assert all("dB" in line for line in told)
    # The model that was given is as it was.
    fresh = network()
    for name, value in fresh.model.graph.initializers.items():
        np.testing.assert_array_equal(elements(value), elements(model.model.graph.initializers[name]))


@pytest.mark.feature("GCA-09")
def test_activation_aware_factors_keep_the_function_and_round_better() -> None:
    """Channels of very different size: of 4-bit weights the sums come closer than by rounding alone."""
    b = Builder("unequal")
    gains = b.constant(np.geomspace(0.02, 20, 16).astype(np.float32)[:, None, None, None])
    kernel = b.node("Mul", b.weight(16, 3, 3, 3, fan_in=27), gains)
    x = b.node("Relu", b.node("Conv", b.input("x", [1, 3, 8, 8]), kernel))
    b.output(b.conv(x, 8, (1, 1)))
    model, config = load(b.model()), settings("awq")
    samples = Samples.of(
        {"x": np.random.default_rng(0).standard_normal((12, 3, 8, 8)).astype(np.float32)}, model.inputs
    )
    layers = {layer.node: largest for layer, largest in chosen_layers(model, config, parsed_chain("awq")[0])}
    found = activation_aware(model, samples, 20, layers)
    assert found.sets == 1
    off = []
    for batch in samples.batches():
        floats = [FloatSession(each.model).run(batch.arrays) for each in (model, found.model)]
        for port in model.outputs:
            np.testing.assert_allclose(floats[0][port.name], floats[1][port.name], rtol=1e-3, atol=1e-4)
    for each in (model, found.model):
        last = list(linear_layers(each.model.graph))[-1]
        operands = list(operands_of(each.model, [last], samples))
        ((layer, columns),) = operands[0].layers
        steps = np.abs(layer.weights).max(axis=2, keepdims=True) / 7
        rounded = np.rint(layer.weights / steps) * steps - layer.weights
        off.append(float(np.sum((columns @ rounded.transpose(0, 2, 1)) ** 2)))
    assert off[1] < 0.7 * off[0]


@pytest.mark.feature("QMO-31")
def test_sums_of_rounded_weights_get_the_variance_they_have_in_float() -> None:
    rng = np.random.default_rng(1)
    weights, x = rng.standard_normal((2, 5, 30)), rng.standard_normal((2, 200, 30)).astype(np.float32)
    values, steps = with_variances(weights, x, x, 1)
    codes = values / steps[:, :, np.newaxis]
    np.testing.assert_allclose(codes, np.rint(codes), atol=1e-6)
    assert set(np.rint(codes).ravel()) <= {-1, 0, 1}
    wanted, found = ((each @ x.transpose(0, 2, 1)).var(axis=2) for each in (weights, values))
    plain = np.abs(weights).max(axis=2, keepdims=True)
    alone = (np.rint(weights / plain) * plain @ x.transpose(0, 2, 1)).var(axis=2)
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    assert np.abs(alone / wanted - 1).min() > 0.01


@given(st.floats(0.01, 1), st.floats(0.01, 1), st.floats(1, 4), st.integers(2, 20))
@pytest.mark.feature("CAL-13")
def test_candidates_reach_from_one_range_to_the_other(
    low: float, high: float, wider: float, count: int
) -> None:
    cut, whole = Range(-low, high), Range(-low * wider, high * wider)
    found = candidates(cut, whole, count)
    assert len(found) == count
    assert found[0] == cut
    assert found[-1].pairs[0] == pytest.approx(whole.pairs[0])
    reach = [each.pairs[0][1] - each.pairs[0][0] for each in found]
    assert reach == sorted(reach)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.feature("CAL-13")
def test_tuned_ranges_are_no_further_than_those_of_the_divergence(bits: int) -> None:
    """For the furthest reader of every operand, and what is tuned is one of the candidates or was there."""
    model, config = network(), settings("auto_tune", bits)
    layers = dict(chosen_layers(model, config, config.calibrate.chain[0]))
    data = {"x": images(12)}
    cut, whole = (
        calibrate(model, data, Config.parse({"calibrate": {"strategy": strategy}}))
        for strategy in ("kld", "extrema")
    )
    moved = 0
    for operand in operands_of(model.model, list(layers), shown(model)):
        between = candidates(cut.tensors[operand.name], whole.tensors[operand.name], 20)
        found = tune_operand(operand, layers, cut, config, between)
        readers = [reader(layer, x, layers[layer]) for layer, x in operand.layers]
        far = [distance(readers, operand_grid(operand.name, each, config)) for each in (cut, whole, found)]
        assert far[2] <= min(far[:2])
        assert found.tensors[operand.name] in [cut.tensors[operand.name], *between]
        moved += found is not cut
        # By hand, for one reader: the norm of what is missing.
        (layer, x), grid = operand.layers[0], operand_grid(operand.name, found, config)
        steps = np.abs(layer.weights).max(axis=2, keepdims=True) / layers[layer]
        kept = np.rint(layer.weights / steps) * steps
        missing = np.einsum("gck,grk->gcr", fake_quantize(x, grid), kept) - np.einsum(
            "gck,grk->gcr", x, layer.weights
        )
        own = np.linalg.norm(missing) / np.linalg.norm(np.einsum("gck,grk->gcr", x, layer.weights))
        assert distance(readers[:1], grid) == pytest.approx(own, rel=1e-3)
    assert moved


@pytest.mark.parametrize("gains", [(1.0, 1.0), (1.0, 0.4), (0.4, 1.0)])
@pytest.mark.feature("CAL-13")
def test_ranges_are_tuned_where_both_halves_confirm_it(
    gains: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples of one half are never evaluated with ranges they were seen by."""
    model, told = network(), list[str]()
    ranges = calibrate(model, {"x": images(40)}, Config())
    better = Ranges({name: Range(-1.0, 1.0) for name in ranges.tensors})
    seen = iter([each for gain in gains for each in (20.0 + gain, 20.0)])
    made_of = set[bytes]()

    def digests(samples: Samples) -> set[bytes]:
        return {row["x"].tobytes() for row in samples.rows()}

    class Told:
        def __init__(self, _: FloatModel, held: Samples) -> None:
            self.held = digests(held)

        def outputs(self, _: object) -> float:
            assert made_of
            assert self.held.isdisjoint(made_of)
            return next(seen)

        def of_outputs(self, value: float) -> Fidelity:
            return Fidelity({"y": value}, 0.0)

    def stub(_model: FloatModel, _ranges: Ranges, samples: Samples, *_: Any) -> Ranges:
        made_of.clear()
        made_of.update(digests(samples))
        return better

    monkeypatch.setattr(held_out, "Evaluator", Told)
    monkeypatch.setattr(range_tuning, "auto_tuned", stub)
    found = range_tuning.better_tuned(model, ranges, shown(model, 40), Config(), remark=told.append)
    assert (found is better) == (min(gains) > 0.5) == bool(told)
    assert range_tuning.better_tuned(model, ranges, shown(model, 31), Config()) is ranges


@pytest.mark.parametrize(
    ("content", "tunes"),
    [
        ({}, True),
        ({"quantize": {"weight_bits": 4}}, True),
        ({"calibrate": {"tune": False}}, False),
        ({"calibrate": {"strategy": "mse"}}, False),
        ({"calibrate": {"global_calibration": "gptq"}}, False),
        ({"layers": [{"names": ["conv1"], "strategy": "extrema"}]}, False),
        ({"layers": [{"names": ["conv1"], "weight_bits": 4}]}, True),
    ],
)
@pytest.mark.feature("CAL-13")
def test_nobody_who_chose_a_strategy_gets_tuned_ranges(content: dict[str, Any], tunes: bool) -> None:  # noqa: FBT001 - parametrised
    assert Config.parse(content).tunes is tunes


@pytest.mark.parametrize("kind", ["no layers", "input alone", "decisions"])
@pytest.mark.feature("CAL-13")
def test_networks_with_nothing_to_tune(kind: str) -> None:
    """No linear layers; one that reads the input; outputs that are integers, which have no decibels."""
    b = Builder("plain")
    x = b.input("x", [1, 6])
    if kind != "no layers":
        x = b.gemm(x, 4)
    b.output(b.node("ArgMax", x, axis=1) if kind == "decisions" else b.node("Tanh", x))
    model = load(b.model())
    array = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)
    samples = Samples.of({"x": array}, model.inputs)
    ranges, told = calibrate(model, samples, Config()), list[str]()
    found = range_tuning.better_tuned(model, ranges, samples, Config(), remark=told.append)
    assert kind == "input alone" or (found is ranges and not told)
    tuned_all = range_tuning.auto_tuned(model, ranges, samples, Config(), parsed_chain("auto_tune")[0])
    assert tuned_all.tensors.keys() == ranges.tensors.keys()


@pytest.mark.feature("GCA-17")
def test_a_method_that_does_harm_is_undone_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model, config = network(), settings("easy_quant")
    ranges = calibrate(model, {"x": images(12)}, config)

    def harmful(model: FloatModel, ranges: Ranges, *_: Any) -> tuple[FloatModel, Ranges, str]:
        tiny = {name: Range(0.0, 1e-3) for name in ranges.tensors}
        return model, Ranges(tiny), "ranges ruined"

    monkeypatch.setitem(chain.OTHERS, "easy_quant", harmful)
    told: list[str] = []
    made, found = apply_chain(model, ranges, shown(model), config, remark=told.append)
    assert made is model
    assert found is ranges
    assert "is worse than" in told[0]
    assert told[0].endswith("undone")


@given(st.integers(0, 10_000), st.sampled_from([0, 1, 3]))
@pytest.mark.feature("GCA-03")
def test_the_cosine_of_a_layer_is_never_lower(seed: int, groups: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((2, 5, 6)) * rng.uniform(0.1, 4, (2, 5, 1))
    x = rng.standard_normal((2, 40, 6)).astype(np.float32)
    z = np.round(x * 8) / np.float32(8)
    numbers = {**METHODS["easy_quant"], "ngroups": groups}
    found = searched_weights(weights, x, z, 7, numbers)
    made = found.codes * found.steps[:, :, np.newaxis]
    sums = [np.einsum("gnk,grk->gnr", a, b) for a, b in ((x, weights), (z, made))]
    assert found.after >= found.before
    assert cosine(*sums) == pytest.approx(found.after, abs=1e-5)
    assert np.abs(found.codes).max() <= 7


@given(st.integers(0, 10_000))
@pytest.mark.feature("GCA-05")
def test_the_loss_of_a_layer_falls(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights, columns = rng.standard_normal((4, 8)), rng.standard_normal((64, 8)) + 0.5
    numbers = {**METHODS["adaquant_zy"], "lr_weight": 1e-2, "epochs": 8}
    found = adaquant(weights, columns, 7, None, numbers)
    assert len(found.losses) == 9
    made = columns @ (found.codes * found.steps[:, np.newaxis]).T + found.bias
    expected = columns @ weights.T
    loss = float(np.mean((made - expected) ** 2) / np.mean(expected**2))
    assert loss == pytest.approx(min(found.losses), rel=1e-9)
    assert loss <= found.losses[0]


@pytest.mark.feature("GCA-05")
def test_weights_biases_and_scales_learn_together() -> None:
    rng = np.random.default_rng(0)
    weights, columns = rng.standard_normal((8, 16)), rng.standard_normal((256, 16)) + 1
    numbers = {**METHODS["adaquant_zy"], "lr_weight": 1e-3, "epochs": 60}
    found = adaquant(weights, columns, 7, None, numbers)
    assert min(found.losses) < 0.8 * found.losses[0]
    assert np.any(found.bias)


@given(st.integers(0, 10_000), st.floats(0.3, 3))
@pytest.mark.feature("GCA-05")
def test_gradients_of_a_step_are_those_of_what_does_not_round(seed: int, factor: float) -> None:
    columns = np.random.default_rng(seed).standard_normal((20, 3)) * 2
    grid = Quant("int8", 0.02, 5, -128, 127)
    values, slope = stored_operand(columns, grid, factor)
    step = 0.02 * factor
    codes = np.rint(columns / step)
    inside = (codes >= -133) & (codes <= 122)
    np.testing.assert_allclose(values, np.clip(codes, -133, 122) * step)
    np.testing.assert_allclose(slope[~inside], values[~inside])
    np.testing.assert_allclose(slope[inside], (values - columns)[inside], atol=1e-12)


@pytest.mark.feature("GCA-06")
def test_spectra_and_singular_values() -> None:
    rng = np.random.default_rng(0)
    signal = np.outer(rng.standard_normal(40), rng.standard_normal(12))
    noisy = signal + 1e-3 * rng.standard_normal(signal.shape)
    assert np.linalg.norm(denoise(noisy, 0.9) - signal) < np.linalg.norm(noisy - signal)
    assert spectral_error(noisy, noisy) == 0
    numbers = METHODS["svd_quant"]
    assert best_factor(lambda factor: (factor - 0.8) ** 2, numbers) == pytest.approx(5 / 6, abs=0.04)
    assert best_factor(lambda factor: abs(factor - 1), numbers) == 1.0
    spectrum = np.abs(np.fft.rfft(random_operands(32, 8, 2.0, 1)))
    assert spectrum[:, 8:].max() < 1e-9 < spectrum[:, :8].max()


@pytest.mark.feature("GCA-01", "GCA-02")
def test_numbers_and_scopes_of_a_chain() -> None:
    first, second = parsed_chain(r"easy_quant[2,1][(0,3),(5,9)] & adaround[Conv, MatMul]{b.*}")
    assert first.numbers == {**METHODS["easy_quant"], "batches": 2, "epochs": 1}
    assert first.ids == ((0, 3), (5, 9))
    assert second.operators == ("Conv", "MatMul")
    assert first.fits("Conv", "a", number=5)
    assert not first.fits("Conv", "a", number=4)
    assert second.fits("Conv", "bb")
    assert not second.fits("Conv", "a")
    assert parsed_chain("smooth_quant[0.7]")[0].numbers == {"alpha": 0.7}


@pytest.mark.parametrize(
    ("methods", "told"),
    [
        ("gptq & easy_quant", "cannot stand behind gptq"),
        ("easy_quant[1,2,3,4,5,6,7]", "there are 7 numbers"),
        ("easy_quant[(3,1)]", "ranges of layers"),
        ("easy_quant[1,x]", "numbers or operator types"),
        ("easy_quant[0]", "batches must be at least 1, it is 0"),
        ("auto_tune[4,1]", "candidates must be at least 2, it is 1"),
        ("adaround[-3]", "batches must be at least 0, it is -3"),
        ("smooth_quant[1e999]", "alpha must be a finite number, it is inf"),
        ("gptq[1e999]", "sweeps must be a finite number, it is inf"),
        ("gptq[2.5]", "sweeps must be a whole number, it is 2.5"),
    ],
)
@pytest.mark.feature("GCA-01")
def test_orders_and_numbers_that_make_no_sense(methods: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        settings(methods)


@pytest.mark.feature("GCA-02")
def test_layers_by_number() -> None:
    model = network()
    numbers = {node.name: at for at, node in enumerate(model.model.graph, 1)}
    config = settings(f"easy_quant[({numbers['conv2']},{numbers['conv2']})]")
    ranges = calibrate(model, {"x": images(12)}, config)
    made, found = apply_chain(model, ranges, shown(model), config)
    changed = {name for name in ranges.tensors if found.tensors[name] != ranges.tensors[name]}
    assert changed <= {"r1"}
    for node, twin in zip(model.model.graph, made.model.graph, strict=True):
        if node.op_type in {"Conv", "MatMul"} and node.name != "conv2":
            np.testing.assert_array_equal(elements(node.inputs[1]), elements(twin.inputs[1]))


def curves(folder: Path) -> dict[str, NDArray[np.float64]]:
    read: Any = event_accumulator.EventAccumulator(str(folder), {"tensors": 0})
    read.Reload()
    return {
        tag: np.array([float(tensor_util.make_ndarray(event.tensor_proto)) for event in read.Tensors(tag)])
        for tag in read.Tags()["tensors"]
    }


@pytest.mark.parametrize("width", [0.2, 1.0, 5.0])
@pytest.mark.feature("QMO-15", "GCA-15", "VIS-12")
def test_fine_tuning_keeps_the_best_and_draws_curves(width: float, tmp_path: Path) -> None:
    model, config = network(), Config()
    ranges = calibrate(model, {"x": images(12)}, config)
    start = Ranges(
        {
            name: Range(found.pairs[0][0] * width, found.pairs[0][1] * width)
            for name, found in ranges.tensors.items()
        },
        means=ranges.means,
    )
    told: list[str] = []
    found = fine_tune(model, start, shown(model), epochs=4, folder=tmp_path, remark=told.append)
    assert len(told) == 5
    losses = curves(tmp_path / "logs")
    assert len(losses["loss"]) == len(losses["layer_loss"]) == 5
    assert len(losses["thresholds/r1"]) == 5
    assert losses["thresholds/r1"][0] == pytest.approx(start.thresholds["r1"], rel=1e-6)
    now = 10 ** (-measured(model, model, found, config) / 10)
    assert now == pytest.approx(float(losses["loss"].min()), rel=1e-4)
    assert now <= float(losses["loss"][0]) * (1 + 1e-6)
    if width != 1:
        assert losses["layer_loss"][-1] < losses["layer_loss"][0]
    assert Ranges.load(tmp_path / "checkpoints" / "best.json").tensors == found.tensors
    assert len(list((tmp_path / "checkpoints").glob("epoch_*.json"))) == 5


@pytest.mark.feature("GCA-15")
def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = network()
    ranges = calibrate(model, {"x": images(4)})
    found = fine_tune(model, ranges, shown(model, 4), epochs=1)
    assert math.isfinite(found.thresholds["r1"])
    assert list(tmp_path.iterdir()) == []
