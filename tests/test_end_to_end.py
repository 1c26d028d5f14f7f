"""Networks through the whole pipeline: reference, interpreter and programs of both levels agree in every bit.

On two presets and on a machine so small that layers are cut and tensors spill. `TPUFLOW_HYPOTHESIS=deep`
draws many more random networks.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from conftest import slow_except
from end_to_end.levels import (
    MACHINES,
    SMALL,
    DType,
    Network,
    assert_same,
    check,
    check_programs,
    config,
)
from models.make_models import MODELS, random_model, samples
from tpuflow import _core
from tpuflow.calibration import calibrate
from tpuflow.errors import MachineError
from tpuflow.execution.simulation import simulate
from tpuflow.frontend import load
from tpuflow.lowering import lower

DTYPES: tuple[DType, ...] = ("int8", "int16", "float16", "bfloat16", "float32")
DATA = ("lenet5_mnist", "kws_dscnn", "vit_mnist", "resnet8_cifar10")


def named(name: str, dtype: DType) -> Network:
    proto = MODELS[name]()
    return Network.of(proto, samples(proto, 4), dtype)


@pytest.mark.parametrize("dtype", slow_except(["int8", "float16"], DTYPES))
@pytest.mark.parametrize("name", MODELS)
def test_small_networks(name: str, dtype: DType) -> None:
    # Three rows of float32 under a window are more than the small machine's whole cache.
    check(named(name, dtype), MACHINES[:2] if dtype == "float32" else MACHINES)


# A seed has no smaller seed that resembles it: nothing to shrink.
@settings(max_examples=max(1, settings().max_examples // 10), phases=[Phase.explicit, Phase.generate])
@example(seed=228926, dtype="int16", machine=SMALL)  # a dilated 1x1 convolution, on rows cut anywhere
@example(seed=6507, dtype="int16", machine=SMALL)  # a joined tensor in what would be another's padding
@given(seed=st.integers(0, 2**31 - 1), dtype=st.sampled_from(DTYPES), machine=st.sampled_from(MACHINES))
@pytest.mark.slow
def test_random_networks(seed: int, dtype: DType, machine: str | Path) -> None:
    proto = random_model(seed)
    network = Network.of(proto, samples(proto, 4, seed), dtype)
    try:
        check(network, [machine])
    except MachineError as error:
        # Some layers cannot be cut small enough for the small machine; they have to say so.
        if machine != SMALL or "does not fit" not in str(error):
            raise


def test_the_small_machine_cuts_and_spills() -> None:
    network = named("residual", "int16")
    small, roomy = (network.compile(machine, 1) for machine in (SMALL, "32x32_fpga"))
    assert json.loads(roomy.metadata())["spill_bytes"] == 0
    assert json.loads(small.metadata())["spill_bytes"] > 0
    assert len(small) > 2 * len(roomy)


@pytest.mark.parametrize("dtype", slow_except(["int8"], DTYPES))
@pytest.mark.feature("SCH-36")
def test_samples_of_a_batch_do_not_meet(dtype: DType) -> None:
    """A sample gives the same codes alone, in any place of a batch, and whatever its neighbours are."""
    proto = MODELS["plain"]()
    inputs = samples(proto, 5)
    single = load(proto)
    ranges = calibrate(single, inputs, config(dtype).calibrate)
    alone = Network(lower(single, ranges, config(dtype)), inputs)
    batched = Network(lower(load(proto, batch=3), ranges, config(dtype)), inputs)
    tensor = alone.graph.tensors[alone.graph.inputs[0]].name
    one = alone.compile(MACHINES[0], 1)
    feeds = alone.feeds(one, range(5))
    wanted = [alone.expected(feed)[0] for feed in feeds]
    groups = ([0, 1, 2], [5, 3, 0], [4, 5, 1])
    joined = [{tensor: np.concatenate([feeds[i][tensor] for i in group])} for group in groups]
    expected = [[np.concatenate([wanted[i] for i in group])] for group in groups]
    for feed, rows in zip(joined, expected, strict=True):
        assert_same(batched.expected(feed)[0], rows[0], "interpreter")
    check_programs(batched, MACHINES, joined, expected)


def test_the_array_register_by_register() -> None:
    network = named("plain", "int8")
    program = network.compile(SMALL, 5)
    for feed in network.feeds(program, (0,)):
        run = _core.simulate(program, list(feed.values()), array="register")
        for name, found, wanted in zip(network.outputs, run.outputs, network.expected(feed), strict=True):
            assert_same(found, wanted, name)


def test_stepping_through_every_cycle_changes_nothing() -> None:
    network = named("several", "int16")
    program = network.compile(SMALL, 5)
    skipped, stepped = (_core.simulate(program, [], values=False, stepped=slow) for slow in (False, True))
    assert skipped.to_json() == stepped.to_json()


def test_real_numbers_in_and_out() -> None:
    """`simulate` on samples of the model gives the decoded integers of the graph, sample by sample."""
    network = named("attention", "int8")
    program = network.compile("32x32_fpga", 5)
    run = simulate(program, network.float_samples)
    (name,) = run.outputs
    (output,) = (network.graph.tensors[tensor] for tensor in network.graph.outputs)
    assert output.scale is not None
    for sample, feed in enumerate(network.feeds(program, range(4))[:-1]):
        codes = network.interpreted(feed)[0].astype(np.float64) - output.zero_point
        wanted = (codes * np.float32(output.scale[0])).astype(np.float32)
        np.testing.assert_array_equal(run.outputs[name][sample], wanted.reshape(run.outputs[name].shape[1:]))


def evaluation_networks(shared: Path) -> Any:
    """The loader that comes with the networks."""
    spec = importlib.util.spec_from_file_location("evalnets", shared / "data" / "evalnets.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", DATA)
def test_trained_networks(name: str, shared: Path) -> None:
    """Programs of trained networks on real samples; the interpreter stands for the slow reference."""
    model = load(shared / "data" / name / "model.onnx")
    images, _ = evaluation_networks(shared).load(name, "calib")
    network = Network.of(model, {model.inputs[0].name: images[:6]}, "int8")
    machine = "32x32_fpga"
    feeds = network.feeds(network.compile(machine, 1), (0, 5))
    check_programs(network, [machine], feeds, [network.interpreted(feed) for feed in feeds])
