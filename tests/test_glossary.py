"""The glossary explains every term a user of such a machine meets."""

from __future__ import annotations

import re

import pytest

from conftest import REPOSITORY

TERMS = (
    "Cache word length", "Casting", "Decoding", "Encoding", "LibTpu", "Mask", "Metadata", "Packing",
    "Padding", "Program", "Quantisation", "Raw mode", "Raw TPU program", "Scaling", "Smoke test",
    "tensor processing unit", "Tensor2Words", "Test", "TPU device", "Unpacking", "Words2Tensor", "Accuracy",
    "Activation function", "Attention mechanism", "Batch normalisation", "Bias", "Classifier",
    "Convolutional neural network", "Dataset", "Detector", "GPU", "Inference", "IoU", "Layer", "LLM", "mAP",
    "Mean pixel accuracy", "Metric", "mIoU", "Model", "ONNX", "Pixel accuracy", "Postprocessing",
    "Preprocessing", "PyTorch", "Segmentor", "Tensor", "TensorFlow", "Test dataset", "Train dataset",
    "Transformer", "Validation dataset", "Weight",
    # What reports and messages say of the machine and the compiler.
    "Array", "Bank", "Bound", "Binding bound", "Cache", "Checker", "Cycle", "DDR", "DTL", "EWP", "Gap",
    "Graph", "Instruction", "ME", "PDP", "Range", "Requantisation", "Saturation", "Segment", "SQNR",
    "Stall", "Token", "Zero point",
)  # fmt: skip


def entries() -> dict[str, str]:
    """Explanations by term; an entry may name several, separated by commas."""
    text = (REPOSITORY / "docs" / "glossary.md").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for names, meaning in re.findall(r"(?m)^\*\*(.+?)\.\*\* ((?:.+\n)+)", text):
        found |= dict.fromkeys(names.split(", "), " ".join(meaning.split()))
    return found


@pytest.mark.parametrize("term", TERMS)
@pytest.mark.feature("MSC-03")
def test_every_term_is_explained(term: str) -> None:
    assert len(entries()[term]) > 15


@pytest.mark.feature("MSC-03")
def test_terms_stand_in_alphabetical_order() -> None:
    text = (REPOSITORY / "docs" / "glossary.md").read_text(encoding="utf-8")
    for part in text.split("\n## ")[1:]:
        terms = [term.lower() for term in re.findall(r"(?m)^\*\*(.+?)[,.]", part)]
        assert terms == sorted(terms)
