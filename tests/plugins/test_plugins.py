"""Plugins: found in every place, by version, and at work; written with arrays, so torch is not needed."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowering.quantized import Array
from models.builder import Builder
from tpuflow.config import Config, ConfigError
from tpuflow.errors import SampleError
from tpuflow.evaluation.metrics import metric
from tpuflow.evaluation.scores import evaluate_level
from tpuflow.execution.levels import graph_level
from tpuflow.pipeline import Request, build
from tpuflow.plugins import (
    PluginError,
    PyNode,
    PyTensor,
    Registry,
    configure_layers,
    dataset_samples,
    load_plugins,
    logs,
    plugin_metrics,
    run_operator,
)
from tpuflow.plugins.formats import plugin_formats
from tpuflow.plugins.load import PREFIX
from tpuflow.plugins.nodes import onnx_form

HEAD = "from AIPUBuilder.Optimizer.framework import *\nfrom AIPUBuilder.Optimizer.utils import *\n"

DATASET = (
    HEAD
    + """
import numpy as np

@register_plugin(PluginType.Dataset, '1.0')
class Pairs:
    def __init__(self, data_file, label_file=None):
        self.data = np.load(data_file, mmap_mode='c')
        self.label = None if label_file is None else np.load(label_file)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return [[self.data[index]], float('-inf') if self.label is None else self.label[index]]
"""
)

METRIC = (
    HEAD
    + """
import numpy as np

@register_plugin(PluginType.Metric, '1.0')
class HitsMetric(OptBaseMetric):
    def __init__(self, K='1'):
        self.K = int(K)
        self.reset()

    def reset(self):
        self.right = self.total = 0

    def __call__(self, pred, target):
        rows = np.asarray(pred[0]).reshape(len(target), -1)
        for row, label in zip(rows, np.asarray(target)):
            self.right += int(label in np.argsort(-row, kind='stable')[:self.K])
            self.total += 1

    def compute(self):
        return self.right / self.total

    def report(self):
        return 'top-%d is %f' % (self.K, self.compute())
"""
)

OPERATOR = (
    HEAD
    + """
import numpy as np

register_optype('Halved')

@op_register(OpType.Halved, '{version}')
def forward(self, *args):
    OPT_INFO('layer_type=%s, layer_name=%s' % (str(self.type), self.name))
    inp, out = self.inputs[0], self.outputs[0]
    weight = self.constants['weights'].betensor if 'weights' in self.constants else 1
    calls = self.get_attrs('calls', optional=True, default_value=[])
    self.attrs['calls'] = [*calls, 'codes' if self.quantized else 'floats']
    if self.quantized:
        out.betensor = (np.asarray(inp.betensor) * self.get_param('multiplier')) // 2
    else:
        out.betensor = np.asarray(inp.betensor) * weight / 2 * {factor}
    if not self.placeholders:
        values = np.asarray(inp.betensor).astype(dtype2nptype(Dtype.FP32))
        self.placeholders.append(Tensor(self.name + '/inner', values))

@quant_register(OpType.Halved, '{version}')
def quantise(self, *args):
    assert self.attrs['calls'] == ['floats'] and self.placeholders
    inp, out = self.inputs[0], self.outputs[0]
    out.clone_qinfo(inp)
    inner = self.placeholders[0]
    inner.qbits, inner.qinvariant = self.get_attrs('q_bits_activation'), False
    inner.scale, inner.zerop, inner.qmin, inner.qmax, inner.dtype = get_linear_quant_params_from_tensor(
        inner, self.get_attrs('q_mode_activation'), inner.qbits, is_signed=True)
    self.params['multiplier'] = 1
    self.constants['lut'] = PyTensor(self.name + '/lut', np.zeros(256).astype(dtype2nptype(Dtype.UINT16)))
"""
)


def folder(path: Path, **files: str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / f"{name}.py").write_text(text, encoding="utf-8")
    return path


def loaded(path: Path, **files: str) -> Registry:
    found = load_plugins([folder(path, **files)])
    assert not found.failures, found.failures
    return found


def network() -> Builder:
    b = Builder("plugged")
    b.output(b.gemm(b.node("Relu", b.conv(b.input("x", [1, 3, 6, 6]), 4)), 5))
    return b


def save(builder: Builder, path: Path) -> Path:
    path.write_bytes(builder.model().SerializeToString())
    return path


def arrays(path: Path, count: int = 6) -> tuple[Path, Path, Array, Array]:
    rng = np.random.default_rng(1)
    data, labels = rng.normal(size=(count, 3, 6, 6)).astype(np.float32), rng.integers(0, 5, count)
    np.save(path / "data.npy", data)
    np.save(path / "labels.npy", labels)
    return path / "data.npy", path / "labels.npy", data, labels


@pytest.mark.feature("PLG-01")
def test_a_dataset_gives_samples_and_labels(tmp_path: Path) -> None:
    registry = loaded(tmp_path / "p", aipubt_dataset_pairs=DATASET)
    data, labels, values, wanted = arrays(tmp_path)
    model = build(Request(save(network(), tmp_path / "m.onnx"), verify=False))
    level = graph_level(model.graph)
    samples, found = dataset_samples(registry, f"Pairs({data},{labels})", level.ports)
    assert found is not None and found.tolist() == wanted.tolist()
    assert np.array_equal(np.stack([row["x"] for row in samples.rows()]), values)
    _, none = dataset_samples(registry, f"Pairs({data})", level.ports)
    assert none is None
    with pytest.raises(PluginError, match='no dataset plugin is called "Other", there is Pairs'):
        dataset_samples(registry, "Other(x)", level.ports)
    with pytest.raises(PluginError, match="plugin Pairs failed: FileNotFoundError"):
        dataset_samples(registry, "Pairs(absent.npy)", level.ports)


@pytest.mark.feature("PLG-01")
def test_a_dataset_calibrates_as_its_file_does(tmp_path: Path) -> None:
    registry = loaded(tmp_path / "p", aipubt_opt_dataset_pairs=DATASET)
    data, _, values, _ = arrays(tmp_path)
    np.savez(tmp_path / "x.npz", x=values)
    model = save(network(), tmp_path / "m.onnx")
    named = Request(model, calibration=Path(f"Pairs({data})"), plugins=registry, verify=False)
    plain = Request(model, calibration=tmp_path / "x.npz", verify=False)
    ranges = [build(request).ranges for request in (named, plain)]
    assert ranges[0] is not None and ranges[1] is not None
    assert ranges[0].tensors == ranges[1].tensors


def test_a_dataset_that_does_not_fit(tmp_path: Path) -> None:
    two = DATASET.replace("[[self.data[index]]", "[[self.data[index], self.data[index]]")
    registry = loaded(tmp_path / "p", aipubt_dataset_pairs=two)
    data, *_ = arrays(tmp_path)
    level = graph_level(build(Request(save(network(), tmp_path / "m.onnx"), verify=False)).graph)
    with pytest.raises(SampleError, match="sample 0 has 2 inputs, the network 1"):
        dataset_samples(registry, f"Pairs({data})", level.ports)


@pytest.mark.feature("PLG-02")
def test_a_metric_of_a_plugin_scores_as_ours_does(tmp_path: Path) -> None:
    registry = loaded(tmp_path / "p", aipubt_metric_hits=METRIC, aipubt_dataset_pairs=DATASET)
    data, labels, *_ = arrays(tmp_path, 20)
    level = graph_level(build(Request(save(network(), tmp_path / "m.onnx"), verify=False)).graph)
    given = dataset_samples(registry, f"Pairs({data},{labels})", level.ports)
    own = evaluate_level(level, given, "top1,top(3)")
    theirs = evaluate_level(
        level, given, "HitsMetric,HitsMetric(3)", plugins=plugin_metrics(registry), reference=level
    )
    assert [each.value for each in theirs] == pytest.approx([each.value for each in own])
    assert [each.metric for each in theirs] == ["HitsMetric", "HitsMetric(3)"]
    assert theirs[0].reference == theirs[0].value


@pytest.mark.feature("PLG-02")
def test_a_metric_that_fails_is_one_sentence(tmp_path: Path) -> None:
    registry = loaded(tmp_path / "p", aipubt_metric_hits=METRIC)
    scorer = metric("HitsMetric", ("x",), plugin_metrics(registry))
    with pytest.raises(PluginError, match=r"plugin HitsMetric failed: ValueError") as caught:
        scorer.value([np.zeros((1, 2))], np.zeros(1, np.int64))
    assert "\n" not in str(caught.value)


def halved() -> PyNode:
    node = PyNode("layer", "Halved")
    node.outputs = [PyTensor("y")]
    node.constants["weights"] = PyTensor("w", np.float32(1))
    return node


def operator(version: str, factor: int = 1) -> str:
    return OPERATOR.replace("{version}", version).replace("{factor}", str(factor))


@pytest.mark.feature("PLG-04", "PLG-09")
def test_forward_runs_before_quantize_and_then_on_codes(tmp_path: Path) -> None:
    registry = loaded(tmp_path / "p", aipubt_op_halved=operator("1024"))
    node = halved()
    feed = np.array([[-1.0, 0.5, 1.0]], np.float32)
    (codes,) = run_operator(registry, node, [feed])
    assert node.attrs["calls"] == ["floats", "codes"]
    assert codes.tolist() == [[-64, 32, 63]]
    assert node.quantized and node.current_batch_size == 1


@pytest.mark.parametrize("order", [("1.0", "1024"), ("1024", "1.0"), ("9.9", "10.0")])
@pytest.mark.feature("PLG-04")
def test_the_higher_version_wins(tmp_path: Path, order: tuple[str, str]) -> None:
    high = max(order, key=lambda text: [int(part) for part in text.split(".")])
    files = {
        f"aipubt_op_{i}": operator(version, 3 if version == high else 1) for i, version in enumerate(order)
    }
    registry = loaded(tmp_path / "p", **files)
    node = halved()
    node.inputs = [PyTensor("x", np.array([2.0], np.float32))]
    registry.get("forward", "Halved")(node)
    assert np.asarray(node.outputs[0].betensor).tolist() == [3.0]


@pytest.mark.feature("PLG-04")
def test_what_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match='no forward plugin is called "Other", there is none'):
        run_operator(Registry(), PyNode("a", "Other"), [])
    lazy = HEAD + "@op_register('Lazy')\ndef f(self): pass\n@quant_register('Lazy')\ndef q(self): pass\n"
    registry = loaded(tmp_path / "p", aipubt_op_lazy=lazy)
    node = PyNode("a", "Lazy")
    node.outputs = [PyTensor("y")]
    with pytest.raises(PluginError, match=r'layer "a" .Lazy.: forward leaves output "y" without values'):
        run_operator(registry, node, [])


@pytest.mark.feature("PLG-05")
def test_every_place_is_searched_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = folder(tmp_path / "one", aipubt_dataset_a=DATASET)
    second = folder(tmp_path / "two", aipubt_dataset_b=DATASET, aipubt_metric_b=METRIC)
    folder(tmp_path / "plugin", tpuflow_c=DATASET.replace("Pairs", "Local"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AIPUPLUGIN_PATH", os.pathsep.join(map(str, (first, second, tmp_path / "absent"))))
    assert load_plugins().names("dataset") == ["Pairs"]
    registry = load_plugins(named=[Path("plugin")])
    assert registry.names("dataset") == ["Local", "Pairs"]
    assert registry.names("metric") == ["HitsMetric"]
    assert registry.entries["dataset", "Pairs"].source == str(first / "aipubt_dataset_a.py")
    monkeypatch.delenv("AIPUPLUGIN_PATH")
    assert load_plugins().names("dataset") == []
    monkeypatch.setenv("TPUFLOW_PLUGINS", "plugin")
    assert load_plugins().names("dataset") == ["Local"]


def test_nothing_in_the_current_folder_is_executed_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder(tmp_path / "plugin", tpuflow_c="import pathlib; pathlib.Path('ran').touch()\n")
    monkeypatch.chdir(tmp_path)
    load_plugins()
    assert not Path("ran").exists()
    assert "plugin: holds plugins, which are executed with --plugins plugin alone" in caplog.text
    caplog.clear()
    load_plugins(named=[Path("plugin")])
    assert Path("ran").exists()
    assert caplog.messages == ["plugin plugin/tpuflow_c.py: executed"]
    caplog.clear()
    Path("bare").mkdir()
    load_plugins(named=[Path("bare")])
    assert "bare: holds no plugins: names of files begin with tpuflow_" in caplog.text
    with pytest.raises(PluginError, match="absent: is not a directory of plugins"):
        load_plugins(named=[Path("absent")])


@pytest.mark.parametrize("prefix", [PREFIX, *(name for each in plugin_formats() for name in each.prefixes)])
@pytest.mark.feature("PLG-06")
def test_files_are_known_by_their_names(tmp_path: Path, prefix: str) -> None:
    registry = loaded(tmp_path, **{f"{prefix}x": DATASET, f"x{prefix}": METRIC, "other": METRIC})
    assert registry.names("dataset") == ["Pairs"]
    assert registry.names("metric") == []


QCONFIG = (
    HEAD
    + """
@register_plugin(PluginType.QConfig, '1.0')
class Products:
    def __call__(self, layers):
        return {layer['name']: {'q_bits_weight': 16} for layer in layers if layer['type'] == 'MatMul'}

@register_plugin(PluginType.QConfig, '1.0')
class Wrong:
    def __call__(self, layers):
        return {layers[0]['name']: {'weight_bit': 16}}
"""
)


@pytest.mark.feature("PLG-07")
def test_settings_by_layer_from_code(tmp_path: Path) -> None:
    registry = loaded(tmp_path / "p", aipubt_qconfig_products=QCONFIG)
    model = save(network(), tmp_path / "m.onnx")
    made = build(Request(model, plugins=registry, qconfig="Products", verify=False))
    wide = {
        layer.op: made.graph.tensors[layer.operands[1]].dtype  # type: ignore[union-attr]
        for layer in made.graph.layers  # type: ignore[union-attr]
        if len(layer.operands) > 1
    }
    assert made.layers is not None
    assert sorted(each["weight_bits"] or 0 for each in made.layers.values()) == [0, 0, 16], wide
    with pytest.raises(ConfigError, match='did you mean "weight_bits"'):
        build(Request(model, plugins=registry, qconfig="Wrong", verify=False))
    with pytest.raises(PluginError, match='no qconfig plugin is called "None"'):
        configure_layers(Config(), registry, "None", None)  # type: ignore[arg-type]


@pytest.mark.feature("PLG-09")
def test_what_a_node_offers(caplog: pytest.LogCaptureFixture) -> None:
    node = PyNode("layer", "Halved")
    node.params["a"], node.attrs["b"], node.constants["c"] = 1, 2, PyTensor("c", np.zeros(3))
    assert (node.get_param("a"), node.get_attrs("b"), node.get_attr("b")) == (1, 2, 2)
    assert node.get_constant("c").ir_shape == (3,)
    assert node.get_param("x", optional=True, default_value=5) == 5
    for call, kind in ((node.get_param, "params"), (node.get_attrs, "attrs")):
        assert call("x") is None
        assert f'layer "layer" (Halved) has no "x" among its {kind}' in caplog.text
    with pytest.raises(PluginError, match="among its constants"):
        node.get_constant("x")
    assert (node.name, node.type, node.quantized, node.current_batch_size) == ("layer", "Halved", False, 1)
    assert node.placeholders == []
    assert node.get_attrs("q_bits_activation") == 8


@pytest.mark.feature("PLG-10")
def test_what_a_tensor_offers(tmp_path: Path) -> None:
    registry = loaded(tmp_path / "p", aipubt_op_halved=operator("1.0"))
    node = halved()
    node.attrs["q_mode_activation"] = "per_tensor_asymmetric"
    feed = np.array([[-1.0, 0.5, 3.0]], np.float32)
    run_operator(registry, node, [feed])
    (tensor,) = node.inputs
    assert (tensor.min, tensor.max, tensor.qbits, tensor.dtype) == (-1.0, 3.0, 8, "int8")
    assert (tensor.qmin, tensor.qmax, tensor.qinvariant, tensor.key_axis) == (-128, 127, False, None)
    assert tensor.scale == pytest.approx(255 / 4)
    # x = (q + zerop) / scale, and by ONNX x = scale * (q - zero_point).
    scale, zero = onnx_form(tensor)
    codes = np.asarray(tensor.betensor)
    assert np.allclose((codes + tensor.zerop) / tensor.scale, scale * (codes - zero))
    assert np.abs(scale * (codes - zero) - feed).max() <= scale * 0.51
    inner = node.placeholders[0]
    assert inner.dtype == "int8" and inner.scale is not None
    assert node.outputs[0].scale == tensor.scale


@pytest.mark.feature("PLG-11")
def test_only_the_last_level_ends_the_run(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "tpuflow.plugins")
    for name, level in (("DEBUG", 10), ("INFO", 20), ("WARN", 30), ("ERROR", 40)):
        getattr(logs, f"OPT_{name}")(f"said {name}", log_once=True)
        assert caplog.records[-1].levelno == level
        assert caplog.records[-1].getMessage() == f"said {name}"
    with pytest.raises(PluginError, match="said FATAL"):
        logs.OPT_FATAL("said\nFATAL")


INPUT = (
    HEAD
    + """
@quant_register(OpType.Input, '2.0')
def quantise(self, *args):
    out = self.outputs[0]
    out.scale, out.zerop, out.qbits, out.dtype, out.qinvariant = {scale}, {zero}, 8, 'int8', False
"""
)


@pytest.mark.parametrize(
    ("mode", "scale", "zero"),
    [
        ("asymmetric", 32.0, 100),
        ("asymmetric", 16.0, -7),
        ("symmetric_full", 10.0, 0),
        ("symmetric_restricted", 64.0, 0),
    ],
)
@pytest.mark.feature("PLG-12")
def test_a_plugin_sets_the_scale_of_inputs(tmp_path: Path, mode: str, scale: float, zero: int) -> None:
    text = INPUT.replace("{scale}", str(scale)).replace("{zero}", str(zero))
    registry = loaded(tmp_path / "p", aipubt_op_input=text)
    config = Config.parse({"quantize": {"activation_mode": mode}})
    model = save(network(), tmp_path / "m.onnx")
    graph: Any = build(Request(model, plugins=registry, config=config, verify=False)).graph
    tensor = graph.tensors[graph.inputs[0]]
    assert tensor.scale == pytest.approx([1 / scale], rel=1e-6)
    assert tensor.zero_point == -zero


@pytest.mark.feature("PLG-12")
def test_an_input_without_a_scale_is_an_error(tmp_path: Path) -> None:
    registry = loaded(tmp_path / "p", aipubt_op_input=HEAD + "@quant_register('Input')\ndef q(self): pass\n")
    with pytest.raises(PluginError, match='sets no scale and zero point of "x"'):
        build(Request(save(network(), tmp_path / "m.onnx"), plugins=registry, verify=False))


@pytest.mark.feature("PLG-13")
def test_a_broken_file_is_told_and_hides_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = folder(tmp_path, aipubt_dataset_a="import nothing_of_that_name\n", aipubt_dataset_b=DATASET)
    registry = load_plugins([path])
    assert registry.names("dataset") == ["Pairs"]
    ((source, reason),) = registry.failures.items()
    assert source == str(path / "aipubt_dataset_a.py")
    assert "ModuleNotFoundError" in reason and "aipubt_dataset_a.py:1" in reason
    assert source in caplog.text
    with pytest.raises(PluginError, match=r"not loaded: .*aipubt_dataset_a\.py"):
        registry.get("dataset", "Other")


TORCH = (
    HEAD
    + """
import torch

@register_plugin(PluginType.Metric, '1.0')
class TorchMetric(OptBaseMetric):
    def __init__(self, K='1'):
        self.K, self.right, self.total = int(K), 0, 0

    def reset(self):
        self.right = self.total = 0

    def __call__(self, pred, target):
        _, best = torch.topk(pred[0].reshape([pred[0].shape[0], -1]), self.K, dim=-1)
        self.right += sum(int(target[i] in best[i]) for i in range(target.numel()))
        self.total += target.numel()

    def compute(self):
        return self.right / self.total
"""
)


@pytest.mark.feature("PLG-02")
def test_tensors_of_torch_where_it_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the extra torch is absent")
    registry = loaded(tmp_path, aipubt_metric_torch=TORCH)
    scorer = metric("TorchMetric", ("2",), plugin_metrics(registry))
    outputs = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    labels = np.arange(9) % 5
    assert scorer.value([outputs], labels) == metric("top", ("2",)).value([outputs], labels)


def test_versions_that_are_none(tmp_path: Path) -> None:
    registry = load_plugins([folder(tmp_path, aipubt_op_a=HEAD + "op_register('A', 'x')(print)\n")])
    assert 'version "x" is not of the form 1.0' in next(iter(registry.failures.values()))
