"""How close a quantised network is to float, and which of two is closer."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.builder import Builder
from tpuflow.config import Config
from tpuflow.evaluation.fidelity import Evaluator, Fidelity, expected_flips
from tpuflow.execution.levels import GraphLevel
from tpuflow.frontend import FloatModel, FloatSession, load
from tpuflow.io.samples import Samples
from tpuflow.ptq.confirmation import calibrated_graph


def two_heads(*, softmax: bool) -> FloatModel:
    """Scores of places and the boxes beside them, or scores alone without a softmax."""
    b = Builder("heads")
    x = b.node("Relu", b.conv(b.input("x", [1, 3, 6, 6]), 8))
    rows = b.node("Transpose", b.node("Reshape", b.conv(x, 4), b.integers(1, 4, 4)), perm=[0, 2, 1])
    if softmax:
        b.output(b.node("Softmax", rows, axis=-1), b.conv(x, 5))
    else:
        b.output(b.gemm(b.node("Reshape", x, b.integers(1, 128)), 4))
    return load(b.model())


@pytest.mark.parametrize("softmax", [True, False])
def test_decisions_and_noise_of_every_output(softmax: bool) -> None:  # noqa: FBT001 - parametrised
    model = two_heads(softmax=softmax)
    x = np.random.default_rng(2).standard_normal((12, 3, 6, 6)).astype(np.float32)
    config = Config.parse({"quantize": {"weight_bits": 4, "output_dtype": "int16"}})
    graph, _ = calibrated_graph(model, Samples.of({"x": x}, model.inputs), config)
    seen = Evaluator(model, Samples.of({"x": x}, model.inputs)).fidelity(graph)
    session, level = FloatSession(model.model), GraphLevel(graph)  # type: ignore[arg-type]
    differ, classes = 0, []
    for image in x:
        expected = next(iter(session.run({"x": image[np.newaxis]}).values()))
        found = level.run({"x": image[np.newaxis]})[session.outputs[0]]
        differ += int((expected.argmax(-1) != found.argmax(-1)).sum())
        classes.append(expected.argmax(-1).ravel())
    decided = np.bincount(np.concatenate(classes))
    # Of many places those of the commonest class are background.
    decisions = int(decided.sum() - (decided.max() if softmax else 0))
    assert seen.decisions == decisions
    assert len(seen.sqnr_db) == (2 if softmax else 1)
    assert all(5 < each < 60 for each in seen.sqnr_db.values())
    # Of a softmax the scores are compared: equal shares of 8 bits may have had a largest score.
    assert seen.flips == pytest.approx(differ / decisions, abs=0.05 if softmax else 1e-12)
    assert differ > 0


def heads(*, concatenated: bool) -> FloatModel:
    """A detector: objectness, boxes and classes of places, in one output or in three."""
    b = Builder("detector")
    x = b.node("Relu", b.conv(b.input("x", [1, 3, 6, 6]), 8))
    shares = b.node("Softmax", b.node("Transpose", b.conv(x, 5), perm=[0, 2, 3, 1]), axis=-1)
    shares = b.node("Transpose", shares, perm=[0, 3, 1, 2])
    factors = b.constant(np.float32(50))
    parts = [b.node("Sigmoid", b.conv(x, 1)), b.node("Mul", b.conv(x, 4), factors), shares]
    b.output(*([b.node("Concat", *parts, axis=1)] if concatenated else parts))
    return load(b.model())


def test_boxes_do_not_hide_scores_they_are_concatenated_with() -> None:
    x = np.random.default_rng(2).standard_normal((12, 3, 6, 6)).astype(np.float32)
    seen = {}
    for concatenated in (False, True):
        model = heads(concatenated=concatenated)
        samples = Samples.of({"x": x}, model.inputs)
        config = Config.parse({"quantize": {"weight_bits": 4}, "calibrate": {"headroom": 0}})
        graph, _ = calibrated_graph(model, samples, config)
        seen[concatenated] = Evaluator(model, samples).fidelity(graph)
    (together,) = seen[True].sqnr_db.values()
    assert together == pytest.approx(np.mean(list(seen[False].sqnr_db.values())), abs=0.1)
    assert seen[True].decisions == seen[False].decisions > 0
    assert seen[True].expected_flips == pytest.approx(seen[False].expected_flips, abs=0.01)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 1000), st.integers(65, 300), st.floats(0.0, 0.2))
def test_noise_is_measured_where_decisions_may_turn(seed: int, places: int, noise: float) -> None:
    """Beside a slow search for the set of near decisions that its own noise describes."""
    rng = np.random.default_rng(seed)
    margins = rng.exponential(1.0, places)
    margins[places // 2 :] += 20
    errors = noise * rng.standard_normal(places) * np.where(margins < 20, 1.0, 10.0)
    floating = np.stack([margins, np.zeros(places)], -1)
    made = np.stack([margins + errors, np.zeros(places)], -1)
    errors = made[:, 0] - margins
    near, deviation = list(range(places)), 0.0
    for _ in range(8):
        deviation = math.sqrt(sum(errors[at] ** 2 for at in near) / len(near))
        reach = max(4 * deviation, sorted(margins)[63])
        again = [at for at in range(places) if margins[at] <= reach]
        if again == near:
            break
        near = again
    chances = [math.erfc(m / deviation / math.sqrt(2)) / 2 if deviation else 0.0 for m in margins]
    assert expected_flips(floating, made) == pytest.approx(sum(chances) / places, abs=2e-6)


seen = st.builds(
    lambda a, b, flips: Fidelity({"a": a, "b": b}, 0.0, 100, flips),
    st.floats(0, 60),
    st.floats(0, 60),
    st.integers(0, 5).map(lambda each: each / 100),
)


@given(seen, seen)
def test_the_better_of_two(one: Fidelity, other: Fidelity) -> None:
    assert not (one.beats(other, 0.25) and other.beats(one, 0.25))
    assert not one.beats(one, 0.25)
    if one.beats(other, 0.25):
        gained = sum(one.sqnr_db.values()) / 2 - sum(other.sqnr_db.values()) / 2
        assert gained > 0.25 + 100 * (one.expected_flips - other.expected_flips) - 1e-9
        assert min(one.sqnr_db[name] - other.sqnr_db[name] for name in "ab") >= -0.5


def test_no_noise_is_best() -> None:
    exact, near = Fidelity({"a": math.inf}, 0.0), Fidelity({"a": 50.0}, 0.0)
    assert exact.beats(near, 0.25)
    assert not near.beats(exact, 0.25)
    assert not exact.beats(exact, 0.25)


@pytest.mark.parametrize("noise", [0.05, 0.4])
def test_flips_expected_are_those_of_many_draws(noise: float) -> None:
    rng = np.random.default_rng(4)
    floating = rng.standard_normal((400, 1, 2))
    found = expected_flips(floating, floating + noise * rng.standard_normal(floating.shape))
    drawn = floating + noise * rng.standard_normal((500, *floating.shape))
    assert found == pytest.approx(np.mean(drawn.argmax(-1) != floating.argmax(-1)), rel=0.1)
    assert expected_flips(floating, floating) == 0.0
    assert expected_flips(floating, floating + 3.0) == pytest.approx(0.0, abs=1e-12)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 1000), st.integers(1, 6), st.integers(2, 5), st.sampled_from([0.01, 0.3, 2.0]))
@pytest.mark.feature("GCA-13")
def test_expected_flips_are_those_of_sorted_scores(
    seed: int, samples: int, classes: int, noise: float
) -> None:
    rng = np.random.default_rng(seed)
    floating = rng.integers(-3, 4, (samples, 2, classes)) / 2.0  # with ties
    made = floating + noise * rng.standard_normal(floating.shape)
    margins, errors = [], []
    for scores, others in zip(floating.reshape(-1, classes), made.reshape(-1, classes), strict=True):
        first, second = sorted(range(classes), key=lambda at: (-scores[at], at))[:2]
        margins.append(scores[first] - scores[second])
        errors.append(others[first] - others[second] - margins[-1])
    deviation = math.sqrt(sum(error**2 for error in errors) / len(errors))
    chances = [math.erfc(margin / deviation / math.sqrt(2)) / 2 for margin in margins]
    assert expected_flips(floating, made) == pytest.approx(sum(chances) / len(chances), abs=2e-6)


@pytest.mark.parametrize("kind", ["softmax", "concatenation", "moved"])
def test_outputs_made_of_inputs_alone_are_compared_themselves(kind: str) -> None:
    b = Builder("of inputs")
    x, y = b.input("x", [1, 4, 6]), b.input("y", [1, 4, 6])
    if kind == "softmax":
        b.output(b.node("Softmax", x, axis=-1), b.node("Relu", y))
    elif kind == "concatenation":
        moved = (b.node("Transpose", each, perm=[0, 2, 1]) for each in (x, y))
        b.output(b.node("Concat", *moved, axis=1))
    else:
        b.output(b.node("Softmax", b.node("Transpose", x, perm=[0, 2, 1]), axis=1), b.node("Relu", y))
    model = load(b.model())
    generator = np.random.default_rng(2)
    given = {name: generator.standard_normal((12, 4, 6)).astype(np.float32) for name in "xy"}
    samples = Samples.of(given, model.inputs)
    graph, _ = calibrated_graph(model, samples, Config())
    assert min(Evaluator(model, samples).fidelity(graph).sqnr_db.values()) > 30
