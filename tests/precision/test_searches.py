"""Layers at other precisions: what trials say is true, and what searches find is right."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision.networks import chain, images, trials, usual
from tpuflow.calibration import calibrate
from tpuflow.compiler.program import compile as compile_graph
from tpuflow.config import Config, ConfigError
from tpuflow.errors import UnsupportedModelError
from tpuflow.evaluation.fidelity import LOSSES
from tpuflow.evaluation.metrics import MetricError
from tpuflow.execution.levels import graph_level
from tpuflow.execution.simulation import simulate
from tpuflow.frontend import FloatSession, load
from tpuflow.io.samples import Samples
from tpuflow.lowering import lower
from tpuflow.partitioning import Partitioned
from tpuflow.partitioning.storage import AnyGraph
from tpuflow.ptq.precision import (
    PRECISIONS,
    Budget,
    Limits,
    PrecisionError,
    Trials,
    bisect_layers,
    parsed_budget,
    parsed_rule,
    raised_from_the_end,
    sensitivity,
    smallest,
    within_budget,
)
from tpuflow.ptq.precision.automatic import latest
from tpuflow.ptq.precision.budget import path

# Trials


def test_an_assignment_is_its_configuration() -> None:
    """The graph of a trial is, to the letter, the one that its configuration gives from the start."""
    found = usual()
    assignment = {"image": "16", "/relu_1": "4", "/relu_3": "f16", "/gemm_8": "16"}
    assert set(assignment) < {layer.name for layer in found.layers}
    config = found.config(assignment)
    model = load(chain())
    ranges = calibrate(model, Samples.of({"image": images(seed=2)}, model.inputs), config)
    graph = found.graph(assignment)
    assert not isinstance(graph, Partitioned)
    assert lower(model, ranges, config).to_json() == graph.to_json()


@pytest.mark.parametrize(("dtype", "precision"), [("int8", "f32"), ("float32", "8")])
def test_a_layer_between_floats_and_codes_is_its_configuration(dtype: str, precision: str) -> None:
    """Where an image on a grid of 8 bits is in floats and what reads it is not, or the other way round."""
    model = load(chain())
    samples = Samples.of({"image": np.rint(images(seed=2) * 32) / 32}, model.inputs)
    found = Trials(
        model, Config.parse({"quantize": {"dtype": dtype}}), lambda config: calibrate(model, samples, config)
    )
    for layer in found.layers:
        assignment = {layer.name: precision}
        config = found.config(assignment)
        graph = found.graph(assignment)
        assert not isinstance(graph, Partitioned)
        assert lower(model, calibrate(model, samples, config), config).to_json() == graph.to_json()


@pytest.mark.feature("MIX-15")
@pytest.mark.slow
def test_cycles_and_bytes_are_those_of_the_program() -> None:
    found = trials(level=5)
    rows = sensitivity(found, "16")
    for row in rows:
        cycles = [
            simulate(compile_graph(found.graph(each), level=5), values=False).report["cycles"]
            for each in ({row.layer.name: "16"}, {})
        ]
        assert row.cost.cycles == cycles[0] - cycles[1]
    base = found.cost({})
    weights = {"/relu_1": 3 * 8 * 9, "/relu_3": 8 * 8 * 9, "/relu_5": 8 * 8 * 9, "/gemm_8": 80}
    for name, count in weights.items():
        assert (found.cost({name: "4"}) - base).bytes == -count // 2
        graph = found.graph({name: "16"})
        assert not isinstance(graph, Partitioned)
        stored = [graph.constant(i).nbytes for i, tensor in enumerate(graph.tensors) if tensor.is_constant]
        assert found.cost({name: "16"}).bytes == sum(stored) > base.bytes + count


@pytest.mark.feature("MIX-13", "MIX-04")
def test_layers_are_ranked_by_what_they_gain() -> None:
    found = usual(loud="/conv_2")
    rows = sensitivity(found, "16")
    assert rows[0].layer.name == "/relu_3"
    gains = [row.gain for row in rows]
    assert gains == sorted(gains, reverse=True)
    for row in rows:
        assert row.gain == found.loss({}) - found.loss({row.layer.name: "16"})
        assert row.value == found.value({row.layer.name: "16"})


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.feature("MIX-08")
def test_losses_grow_with_the_error(name: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 5))
    loss = LOSSES[name]
    assert loss(x, x) == pytest.approx(0, abs=1e-12)
    near, far = x + 0.01 * rng.standard_normal(x.shape), x + 0.3 * rng.standard_normal(x.shape)
    assert 0 < loss(x, near) < loss(x, far)


@pytest.mark.feature("MIX-12")
def test_noise_sees_a_wrong_gain_and_cosine_does_not() -> None:
    x = np.random.default_rng(0).standard_normal((4, 5))
    assert LOSSES["cosine"](x, 1.5 * x) == pytest.approx(0, abs=1e-12)
    assert LOSSES["sqnr"](x, 1.5 * x) == pytest.approx(0.25)


# From the end of the network


@pytest.mark.parametrize(
    ("text", "base", "value", "holds"),
    [
        ("1,0.02,L", 0.9, 0.89, True),
        ("1,0.02,L", 0.9, 0.87, False),
        ("1,-0.02,G", 0.1, 0.11, True),
        ("1,-0.02,G", 0.1, 0.13, False),
        ("1, 0., L", 0.5, 0.5, True),
        ("1,0.1,L", 0.5, float("nan"), False),
    ],
)
@pytest.mark.feature("MIX-01")
def test_the_rule_of_the_search_is_read_and_applied(
    text: str,
    base: float,
    value: float,
    holds: bool,  # noqa: FBT001 - parametrised
) -> None:
    assert parsed_rule(text).holds(base, value) is holds


@pytest.mark.parametrize("text", ["", "1,0.1", "1,x,L", "1,0.1,M", "1,inf,L", "1.5,0.1,L"])
@pytest.mark.feature("MIX-01")
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write|threshold"):
        parsed_rule(text)


@pytest.mark.feature("MIX-01")
def test_a_sensitive_layer_and_all_behind_it_get_sixteen_bits() -> None:
    found = usual("cosine", "/conv_4")
    raised = raised_from_the_end(found, parsed_rule("1,0.0005,L"))
    assert raised.before < 0.9995 <= raised.after and raised.holds
    assert raised.after == found.value(raised.assignment)
    names = [layer.name for layer in found.layers]
    first = names.index(next(iter(raised.assignment)))
    assert list(raised.assignment) == names[first:]
    assert set(raised.assignment.values()) == {"16"}
    assert "/relu_5" in raised.assignment
    # One layer later the rule does not hold.
    later = dict(list(raised.assignment.items())[1:])
    assert not parsed_rule("1,0.0005,L").holds(1.0, found.value(later))


@pytest.mark.feature("MIX-01")
def test_nothing_is_raised_where_all_is_well() -> None:
    raised = raised_from_the_end(usual(), parsed_rule("1,0.5,L"))
    assert raised.assignment == {} and raised.holds and raised.evaluations == 0


@pytest.mark.feature("MIX-01")
def test_the_nearest_is_kept_where_nothing_suffices() -> None:
    raised = raised_from_the_end(usual("cosine"), parsed_rule("1,-1,L"))
    assert not raised.holds and raised.after > raised.before


@pytest.mark.feature("MIX-01")
def test_floats_where_sixteen_bits_do_not_suffice() -> None:
    found = usual("max_error")
    assert found.evaluator.base == 0
    raised = raised_from_the_end(found, parsed_rule("1,-1e-6,G"))
    assert set(raised.assignment.values()) == {"f32"} and raised.holds
    assert len(raised.assignment) == len(found.layers)


@given(st.integers(0, 40), st.integers(1, 40))
@pytest.mark.feature("MIX-01")
def test_halving_finds_the_last_beginning_that_holds(last: int, more: int) -> None:
    """Of properties that hold up to some beginning, as they do where later layers are raised too."""
    end = last + more
    found = latest(end, lambda first: first <= last)
    assert found is not None and found <= last
    asked: list[int] = []

    def holds(first: int) -> bool:
        asked.append(first)
        return first <= last

    latest(end, holds)
    assert len(asked) <= 4 * max(1, end).bit_length() + 2
    assert latest(end, lambda _: False) is None


# Budgets


@pytest.mark.parametrize("text", ["", "cycles", "cycles=x", "bytes=-1", "time=3", "drop=nan"])
@pytest.mark.feature("MIX-07")
def test_what_is_no_budget(text: str) -> None:
    with pytest.raises(PrecisionError, match="write cycles=N"):
        parsed_budget(text)


@pytest.mark.parametrize("kind", ["cycles", "bytes"])
@pytest.mark.feature("MIX-07")
def test_a_budget_is_obeyed_and_spent_well(kind: str) -> None:
    found = usual(loud="/conv_2")
    every = {layer.name: "16" for layer in found.layers}
    low, high = (getattr(found.cost(each), kind) for each in ({}, every))
    losses = []
    for share in (0.0, 0.3, 0.6, 1.0):
        budget = parsed_budget(f"{kind}={low + share * (high - low)}")
        chosen = within_budget(found, budget)
        assert chosen.within
        assert getattr(chosen.cost, kind) <= budget.limit
        assert chosen.cost == found.cost(chosen.assignment)
        assert chosen.loss == (found.loss({}), found.loss(chosen.assignment))
        losses.append(chosen.loss[1])
    assert losses[-1] < losses[0] / 100
    assert min(losses) == losses[-1]


@pytest.mark.feature("MIX-10")
def test_a_budget_of_activations_changes_nothing_else() -> None:
    found = usual(loud="/conv_2")
    every = {layer.name: "a16" for layer in found.layers}
    low, high = (found.cost(each) for each in ({}, every))
    assert low.bytes < high.bytes < found.cost({layer.name: "16" for layer in found.layers}).bytes
    weights = [_weights(found.graph(each)) for each in ({}, every)]
    assert len(weights[0]) == 4
    assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(*weights, strict=True))
    losses = []
    for share in (0.0, 0.4, 1.0):
        budget = parsed_budget(
            f"activations={low.activations + share * (high.activations - low.activations)}"
        )
        chosen = within_budget(found, budget)
        assert chosen.within and chosen.cost.activations <= budget.limit
        assert set(chosen.assignment.values()) <= {"a8", "a16"}
        own = _weights(found.graph(chosen.assignment))
        assert all(np.array_equal(a, b) for a, b in zip(weights[0], own, strict=True))
        losses.append(chosen.loss[1])
    assert losses[2] < losses[0] and losses[2] == min(losses)


@pytest.mark.feature("MIX-10")
def test_weights_keep_the_width_an_entry_gives_them() -> None:
    found = trials({"layers": [{"match": "/relu_3", "weight_bits": 4}]})
    for assignment in ({}, {"/relu_3": "a16", "/relu_5": "a16"}):
        graph = found.graph(assignment)
        assert not isinstance(graph, Partitioned)
        codes = _weights(graph)
        assert [int(np.abs(each).max()) for each in codes] == [127, 7, 127, 127]


def _weights(graph: AnyGraph) -> list[Any]:
    assert not isinstance(graph, Partitioned)
    layers = [layer for layer in graph.layers if layer.op in {"conv", "mat_mul"}]
    return [graph.constant(layer.operands[1]) for layer in layers]


@pytest.mark.feature("MIX-07")
def test_less_than_everything_costs_is_said_not_to_fit() -> None:
    chosen = within_budget(usual(), Budget("bytes", 10), ("8", "16"))
    assert not chosen.within


@pytest.mark.feature("MIX-06")
def test_four_and_eight_bits() -> None:
    found = usual()
    base = found.cost({}).bytes
    chosen = within_budget(found, Budget("bytes", base - 300), ("4", "8"))
    assert chosen.within and chosen.cost.bytes <= base - 300
    assert set(chosen.assignment.values()) <= {"4", "8"}
    narrow = {name for name, width in chosen.assignment.items() if width == "4"}
    assert narrow and narrow < {layer.name for layer in found.layers if layer.weights}


@pytest.mark.feature("MIX-07")
def test_the_allowed_drop_decides_how_far_to_go() -> None:
    found = usual("cosine", "/conv_2")
    drop = found.evaluator.worse(found.value({}))
    chosen = within_budget(found, Budget("drop", drop / 20))
    assert chosen.within and found.evaluator.worse(found.value(chosen.assignment)) <= drop / 20
    assert 0 < len(chosen.assignment) < len(found.layers)
    assert within_budget(found, Budget("drop", 2 * drop)).cost.cycles <= chosen.cost.cycles


@pytest.mark.feature("MIX-07")
def test_the_path_takes_the_hull() -> None:
    """Against a search through all choices: at the cost of every point of the path nothing is better."""
    found = usual(loud="/conv_2")
    chosen = within_budget(found, Budget("bytes", 10**9), ("4", "8", "16"))
    rows = chosen.rows
    options = {
        layer.name: [(0.0, 0.0), *((row.cost.bytes, -row.gain) for row in rows if row.layer == layer)]
        for layer in found.layers
    }
    choices = [
        (sum(c for c, _ in picks), sum(e for _, e in picks)) for picks in itertools.product(*options.values())
    ]
    held = dict.fromkeys(options, (0.0, 0.0))
    points = {(row.layer.name, row.precision): (row.cost.bytes, -row.gain) for row in rows}
    for step in path(rows, "bytes"):
        held[step.layer] = points.get((step.layer, step.precision), (0.0, 0.0))
        if step.slope != float("inf"):
            cost, error = (sum(each[side] for each in held.values()) for side in (0, 1))
            assert error <= min(e for c, e in choices if c <= cost) + 1e-12


@pytest.mark.feature("MIX-16")
def test_a_search_that_is_cut_short_says_so() -> None:
    found = usual()
    chosen = within_budget(found, Budget("bytes", 10**9), limits=Limits(steps=3))
    assert chosen.partial and len(chosen.rows) == 3
    times = iter(range(100))
    rows = sensitivity(found, "16", Limits(seconds=2.5, clock=lambda: float(next(times))))
    assert len(rows) == 2
    assert raised_from_the_end(found, parsed_rule("1,-1,L"), Limits(steps=0)).evaluations == 0


def test_widths_and_metrics_there_are_not() -> None:
    found = usual()
    with pytest.raises(PrecisionError, match=f"choose of {', '.join(PRECISIONS)}"):
        within_budget(found, Budget("bytes", 1), ("8", "12"))
    with pytest.raises(PrecisionError, match="--metric"):
        within_budget(usual(""), Budget("drop", 0.1))
    with pytest.raises(MetricError, match="no metric is called"):
        trials(metric="nonsense")


# Bisection


@given(st.sets(st.integers(0, 30), min_size=1, max_size=4))
@pytest.mark.feature("CMP-16")
def test_the_smallest_set_is_found(blamed: set[int]) -> None:
    asked: list[tuple[int, ...]] = []

    def restores(items: Sequence[int]) -> bool:
        asked.append(tuple(items))
        return blamed <= set(items)

    assert smallest(range(31), restores) == sorted(blamed)
    assert len(asked) <= 31 * 8


@pytest.mark.feature("CMP-16")
def test_either_of_two_will_do() -> None:
    assert smallest(range(8), lambda items: 2 in items or 6 in items) == [2]


@pytest.mark.feature("CMP-16")
def test_an_injected_bad_layer_is_found() -> None:
    bad = {"layers": [{"names": ["/relu_3"], "weight_bits": 4}]}
    found = trials(bad, metric="cosine")
    good = usual("cosine").value({})
    assert found.value({}) < good
    blamed = bisect_layers(found, 1.05 * (1 - good))
    assert [layer.name for layer in blamed.layers] == ["/relu_3"]
    assert blamed.after >= 1 - 1.05 * (1 - good) > blamed.before
    again = bisect_layers(trials(bad, metric="cosine"), 1.05 * (1 - good))
    assert again == blamed


@pytest.mark.feature("CMP-16")
def test_nothing_to_blame_and_nothing_that_helps() -> None:
    found = usual()
    assert bisect_layers(found, 1.0).layers == ()
    with pytest.raises(PrecisionError, match="even with 6 layers in floats"):
        bisect_layers(usual("max_error"), -1.0)


@pytest.mark.feature("MIX-02")
def test_a_search_needs_a_metric_and_data() -> None:
    with pytest.raises(ConfigError, match="mixed_precision_auto_search needs metric and data"):
        Config.parse({"evaluate": {"mixed_precision_auto_search": "1,0.1,L"}})


@pytest.mark.feature("MIX-14")
def test_layers_in_floats_without_floats_need_the_host() -> None:
    """The search gives them up to the host's CPU; the settings say the same network again."""
    bad = {"names": ["/relu_5"], "multiplier_bits": 2}
    found = trials({"quantize": {"target": "int8"}, "layers": [bad]}, metric="max_error")
    enough = found.value({layer.name: "f32" for layer in found.layers[3:]})
    raised = raised_from_the_end(found, parsed_rule(f"1,{-enough},G"))
    assert set(raised.assignment.values()) == {"f32"} and raised.holds
    hosted = found.host_layers(raised.assignment)
    assert hosted and hosted == tuple(raised.assignment)
    graph = found.graph(raised.assignment)
    assert isinstance(graph, Partitioned)
    reasons = {finding.reason for part in graph.host for finding in part.findings}
    assert reasons == {'float32 asked for, which target "int8" lacks: the CPU of the host has it'}
    assert not usual().host_layers({"/relu_3": "f32"})
    assert [row.layer.name for row in sensitivity(found, "f32")] == ["image"]


@pytest.mark.parametrize("host", [True, False])
@pytest.mark.feature("MIX-14")
def test_without_the_host_it_is_an_error(host: bool) -> None:  # noqa: FBT001 - parametrised
    config = {"quantize": {"target": "int8"}, "layers": [{"names": ["/relu_3"], "dtype": "float32"}]}
    if host:
        graph = trials(config).graph({})
        assert isinstance(graph, Partitioned)
        assert [part.nodes for part in graph.host] == [("/conv_2", "/relu_3")]
    else:
        with pytest.raises(UnsupportedModelError, match='target "int8" lacks'):
            trials(config, host=False)


# Floats for debugging


@pytest.mark.feature("CMP-15")
def test_all_scopes_in_floats_are_the_float_network() -> None:
    last = 2 * 3 + 3
    everything = {"fake_quant_scopes_for_debug": [(0, last)]}
    found = trials({"quantize": everything}).graph({})
    whole = trials({"quantize": {"dtype": "float32"}}).graph({})
    assert not isinstance(found, Partitioned) and not isinstance(whole, Partitioned)
    assert {tensor.dtype for tensor in found.tensors} == {"float32"}
    assert found.to_json() == whole.to_json()
    # onnxruntime adds in another order: float32 networks agree to its rounding.
    model = load(chain())
    session = FloatSession(model.original)
    for row in images():
        feed = {"image": row[np.newaxis]}
        exact, ours = session.run(feed)["gemm_8"], graph_level(found).run(feed)["gemm_8"]
        assert np.allclose(exact, ours, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "floats"),
    [
        ({"fake_quant_operators_for_debug": ["Conv"]}, ["/relu_1", "/relu_3", "/relu_5"]),
        ({"fake_quant_operators": ["GlobalAveragePool"]}, ["/globalaveragepool_6"]),
        ({"fake_quant_scopes": [(3, 4)]}, ["/relu_3"]),
        ({"fake_quant_scopes": [(1, 2)], "fake_quant_operators": ["GlobalAveragePool"]},
         ["/relu_1", "/globalaveragepool_6"]),
    ],
)  # fmt: skip
@pytest.mark.feature("CMP-15")
def test_chosen_layers_compute_in_floats(fields: dict[str, object], floats: list[str]) -> None:
    graph = trials({"quantize": fields}).graph({})
    assert not isinstance(graph, Partitioned)
    found = [
        layer.nodes[-1]
        for layer in graph.layers
        if layer.nodes and graph.tensors[layer.output].dtype == "float32" and layer.op != "dequantize"
    ]
    assert set(floats) <= set(found)
    kinds = {layer.nodes[-1] for layer in graph.layers if layer.op in {"conv", "average_pool", "reduce"}}
    assert set(found) & kinds == set(floats) & kinds


@pytest.mark.feature("CMP-15")
def test_what_there_is_not() -> None:
    with pytest.raises(ConfigError, match="unknown layer 99"):
        trials({"quantize": {"fake_quant_scopes": [(0, 99)]}})
    with pytest.raises(ConfigError, match='no operator "Convv", did you mean "Conv"'):
        trials({"quantize": {"fake_quant_operators": ["Convv"]}})
