"""Networks nobody listed: exports architectures of other packages with random weights, for `tpuflow zoo`.

    python benches/architectures.py DIR [NAME ...] [--list]
    tpuflow zoo DIR --dtypes int8,int16

Needs torch, torchvision, timm and transformers, which the package itself does not; nothing is downloaded.
Weights are those of the architectures' own initialisation, drawn from a fixed seed, and the statistics of
normalisation layers are measured on noise, so that activations keep their scale as in trained ones.
`torch.onnx.export` writes every file as it does by default; one it cannot export does not stop the
others.
"""

# mypy: disable-error-code="misc, untyped-decorator"

from __future__ import annotations

import argparse
import itertools
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
import transformers
from torch import nn

Shapes = Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class Architecture:
    """How to make a network and what to feed it.

    Attributes:
        make: Makes it.
        shapes: Shapes of its inputs, each with a batch axis of 1.
        ids: Inputs are token numbers below this; 0 if they are real.
    """

    make: Callable[[], nn.Module]
    shapes: Shapes = ((1, 3, 224, 224),)
    ids: int = 0


class Named(nn.Module):
    """Picks tensors out of what a module returns in a dictionary or an object."""

    def __init__(self, module: nn.Module, *keys: str) -> None:
        super().__init__()
        self.module = module
        self.keys = keys

    def forward(self, *inputs: torch.Tensor) -> Any:
        """The tensors named."""
        found = self.module(*inputs)
        picked = [found[key] if isinstance(found, dict) else getattr(found, key) for key in self.keys]
        return picked[0] if len(picked) == 1 else tuple(picked)


class UNet(nn.Module):
    """Two levels down, two up, with skips."""

    def __init__(self) -> None:
        super().__init__()
        widths = (16, 32, 64)
        self.down = nn.ModuleList([self._double(3, 16), self._double(16, 32), self._double(32, 64)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)])
        self.join = nn.ModuleList([self._double(64, 32), self._double(32, 16)])
        self.last = nn.Conv2d(widths[0], 2, 1)

    @staticmethod
    def _double(before: int, after: int) -> nn.Sequential:
        layers = [
            nn.Conv2d(before, after, 3, padding=1),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1),
            nn.BatchNorm2d(after),
            nn.ReLU(),
        ]
        return nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Image to scores per pixel."""
        skips = []
        for index, block in enumerate(self.down):
            x = block(x if index == 0 else nn.functional.max_pool2d(x, 2))
            skips.append(x)
        for up, join, skip in zip(self.up, self.join, skips[-2::-1], strict=True):
            x = join(torch.cat([up(x), skip], 1))
        return self.last(x)


class Recurrent(nn.Module):
    """A language model of a recurrent layer between an embedding and a classifier."""

    def __init__(self, layer: type[nn.RNNBase], *, both_ways: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(500, 64)
        self.layer = layer(64, 64, 2, batch_first=True, bidirectional=both_ways)
        self.classifier = nn.Linear(128 if both_ways else 64, 500)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Token numbers to scores of the next one."""
        return self.classifier(self.layer(self.embedding(ids))[0])


class Temporal(nn.Module):
    """A temporal convolutional network: dilated causal convolutions with residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(8, 32, 1)
        self.layers = nn.ModuleList(nn.Conv1d(32, 32, 3, dilation=2**level) for level in range(5))
        self.last = nn.Conv1d(32, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Series to series."""
        x = self.first(x)
        for level, layer in enumerate(self.layers):
            x = x + torch.relu(layer(nn.functional.pad(x, (2 * 2**level, 0))))
        return self.last(x)


class PointNet(nn.Module):
    """Classification of point clouds with the input transform."""

    def __init__(self) -> None:
        super().__init__()
        self.transform = nn.Sequential(*self._shared(3, 64, 128, 256))
        self.matrix = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 9))
        self.features = nn.Sequential(*self._shared(3, 64, 128, 512))
        self.classifier = nn.Sequential(nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10))

    @staticmethod
    def _shared(*widths: int) -> list[nn.Module]:
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Conv1d(before, after, 1), nn.BatchNorm1d(after), nn.ReLU()]
        return layers

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        """Points `[1, 3, n]` to scores."""
        matrix = self.matrix(self.transform(points).max(2).values).view(-1, 3, 3) + torch.eye(3)
        turned = torch.bmm(points.transpose(1, 2), matrix).transpose(1, 2)
        return self.classifier(self.features(turned).max(2).values)


def autoencoder() -> nn.Module:
    """Convolutions down to a code, transposed ones up again."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1),
        nn.ELU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.ELU(),
        nn.Flatten(),
        nn.Linear(32 * 49, 32),
        nn.Linear(32, 32 * 49),
        nn.Unflatten(1, (32, 7, 7)),
        nn.ConvTranspose2d(32, 16, 3, 2, 1, output_padding=1),
        nn.ELU(),
        nn.ConvTranspose2d(16, 1, 3, 2, 1, output_padding=1),
        nn.Sigmoid(),
    )


def super_resolution() -> nn.Module:
    """Sub-pixel convolution."""
    return nn.Sequential(
        nn.Conv2d(1, 64, 5, padding=2),
        nn.Tanh(),
        nn.Conv2d(64, 32, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(32, 9, 3, padding=1),
        nn.PixelShuffle(3),
    )


def vision(name: str, **options: Any) -> Callable[[], nn.Module]:
    """A model of torchvision."""

    def make() -> nn.Module:
        return torchvision.models.get_model(name, weights=None, **options)

    return make


def dense(name: str) -> Callable[[], nn.Module]:
    """A segmentation model of torchvision, its main output."""
    return lambda: Named(vision(name, weights_backbone=None)(), "out")


def image(name: str) -> Callable[[], nn.Module]:
    """A model of timm."""

    def make() -> nn.Module:
        return timm.create_model(name, pretrained=False)

    return make


def language(kind: str, output: str, **options: Any) -> Callable[[], nn.Module]:
    """A model of transformers by its kind, small unless `options` say otherwise."""

    def make() -> nn.Module:
        config = transformers.AutoConfig.for_model(kind, **options)
        config._attn_implementation = "eager"  # noqa: SLF001 - the documented way is a download
        config.use_cache = False
        return Named(transformers.AutoModel.from_config(config), output)

    return make


def encoder(kind: str, **options: Any) -> Callable[[], nn.Module]:
    """The encoder of a model of transformers that has two halves."""

    def make() -> nn.Module:
        config = transformers.AutoConfig.for_model(kind, **options)
        config._attn_implementation = "eager"  # noqa: SLF001 - as above
        return Named(transformers.AutoModel.from_config(config).get_encoder(), "last_hidden_state")

    return make


SMALL = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "vocab_size": 1000,
}
TOKENS: Shapes = ((1, 32),)

ARCHITECTURES: dict[str, Architecture] = {
    "alexnet": Architecture(vision("alexnet")),
    "vgg11_bn": Architecture(vision("vgg11_bn")),
    "shufflenet_v2_x1_0": Architecture(vision("shufflenet_v2_x1_0")),
    "mnasnet1_0": Architecture(vision("mnasnet1_0")),
    "googlenet": Architecture(vision("googlenet", aux_logits=False, init_weights=False)),
    "wide_resnet50_2": Architecture(vision("wide_resnet50_2")),
    "convnext_tiny": Architecture(vision("convnext_tiny")),
    "swin_t": Architecture(vision("swin_t")),
    "swin_v2_t": Architecture(vision("swin_v2_t"), ((1, 3, 256, 256),)),
    "vit_b_32": Architecture(vision("vit_b_32")),
    "maxvit_t": Architecture(vision("maxvit_t")),
    "efficientnet_v2_s": Architecture(vision("efficientnet_v2_s")),
    "regnet_x_400mf": Architecture(vision("regnet_x_400mf")),
    "mobilenet_v3_small": Architecture(vision("mobilenet_v3_small")),
    "deeplabv3_mobilenet_v3": Architecture(dense("deeplabv3_mobilenet_v3_large")),
    "fcn_resnet50": Architecture(dense("fcn_resnet50"), ((1, 3, 128, 128),)),
    "r3d_18": Architecture(vision("r3d_18"), ((1, 3, 8, 56, 56),)),
    "s3d": Architecture(vision("s3d"), ((1, 3, 16, 112, 112),)),
    "raft_small": Architecture(
        vision("raft_small"),
        ((1, 3, 128, 128), (1, 3, 128, 128)),
    ),
    "retinanet_resnet50_fpn": Architecture(
        vision("retinanet_resnet50_fpn", weights_backbone=None), ((1, 3, 128, 128),)
    ),
    "deit_tiny": Architecture(image("deit_tiny_patch16_224")),
    "ghostnet_100": Architecture(image("ghostnet_100")),
    "mobilevit_xs": Architecture(image("mobilevit_xs"), ((1, 3, 256, 256),)),
    "mobilevitv2_050": Architecture(image("mobilevitv2_050"), ((1, 3, 256, 256),)),
    "mobilenetv4_conv_small": Architecture(image("mobilenetv4_conv_small")),
    "mobileone_s0": Architecture(image("mobileone_s0")),
    "hrnet_w18_small": Architecture(image("hrnet_w18_small")),
    "repvgg_a0": Architecture(image("repvgg_a0")),
    "dpn68": Architecture(image("dpn68")),
    "coatnet_nano_rw": Architecture(image("coatnet_nano_rw_224")),
    "mixer_s32": Architecture(image("mixer_s32_224")),
    "poolformer_s12": Architecture(image("poolformer_s12")),
    "resnest14d": Architecture(image("resnest14d")),
    "resmlp_12": Architecture(image("resmlp_12_224")),
    "gmlp_ti16": Architecture(image("gmlp_ti16_224")),
    "xcit_nano_12": Architecture(image("xcit_nano_12_p16_224")),
    "edgenext_xx_small": Architecture(image("edgenext_xx_small"), ((1, 3, 256, 256),)),
    "efficientformer_l1": Architecture(image("efficientformer_l1")),
    "levit_128s": Architecture(image("levit_128s")),
    "pit_ti": Architecture(image("pit_ti_224")),
    "skresnet18": Architecture(image("skresnet18")),
    "ese_vovnet19b_dw": Architecture(image("ese_vovnet19b_dw")),
    "cspdarknet53": Architecture(image("cspdarknet53")),
    "eca_nfnet_l0": Architecture(image("eca_nfnet_l0")),
    "fastvit_t8": Architecture(image("fastvit_t8"), ((1, 3, 256, 256),)),
    "focalnet_tiny_srf": Architecture(image("focalnet_tiny_srf")),
    "rexnet_100": Architecture(image("rexnet_100")),
    "bert": Architecture(language("bert", "last_hidden_state", **SMALL), TOKENS, 1000),
    "distilbert": Architecture(
        language(
            "distilbert", "last_hidden_state", dim=128, n_layers=2, n_heads=4, hidden_dim=256, vocab_size=1000
        ),
        TOKENS,
        1000,
    ),
    "roberta": Architecture(language("roberta", "last_hidden_state", **SMALL), TOKENS, 1000),
    "albert": Architecture(language("albert", "last_hidden_state", **SMALL), TOKENS, 1000),
    "llama": Architecture(
        language("llama", "last_hidden_state", num_key_value_heads=2, **SMALL), TOKENS, 1000
    ),
    "qwen2": Architecture(
        language("qwen2", "last_hidden_state", num_key_value_heads=2, **SMALL), TOKENS, 1000
    ),
    "t5_encoder": Architecture(
        encoder("t5", d_model=128, d_kv=32, d_ff=256, num_layers=2, num_heads=4, vocab_size=1000),
        TOKENS,
        1000,
    ),
    "whisper_encoder": Architecture(
        encoder(
            "whisper", d_model=128, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=256,
            max_source_positions=200, decoder_layers=1, decoder_attention_heads=4, num_mel_bins=80,
        ),
        ((1, 80, 400),),
    ),
    "wav2vec2": Architecture(
        language(
            "wav2vec2", "last_hidden_state", hidden_size=96, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=192, conv_dim=[32] * 7, num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=4,
        ),
        ((1, 8000),),
    ),
    "segformer": Architecture(language("segformer", "last_hidden_state"), ((1, 3, 128, 128),)),
    "unet": Architecture(UNet, ((1, 3, 96, 96),)),
    "lstm_language_model": Architecture(lambda: Recurrent(nn.LSTM), ((1, 24),), 500),
    "gru_language_model": Architecture(lambda: Recurrent(nn.GRU), ((1, 24),), 500),
    "bilstm_tagger": Architecture(lambda: Recurrent(nn.LSTM, both_ways=True), ((1, 16),), 500),
    "tcn": Architecture(Temporal, ((1, 8, 100),)),
    "pointnet": Architecture(PointNet, ((1, 3, 256),)),
    "autoencoder": Architecture(autoencoder, ((1, 1, 28, 28),)),
    "super_resolution": Architecture(super_resolution, ((1, 1, 64, 64),)),
    "transformer_encoder": Architecture(
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2),
        ((1, 20, 64),),
    ),
}  # fmt: skip


def inputs(architecture: Architecture) -> tuple[torch.Tensor, ...]:
    """One sample."""
    if architecture.ids:
        return tuple(torch.randint(architecture.ids, shape) for shape in architecture.shapes)
    return tuple(torch.randn(shape) for shape in architecture.shapes)


@torch.no_grad()
def settle(model: nn.Module, architecture: Architecture) -> None:
    """Measures the statistics of batch normalisation on noise."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]  # noqa: SLF001
    if not layers:
        return
    for layer in layers:
        layer.momentum = None
        layer.train()
    try:
        pairs = zip(inputs(architecture), inputs(architecture), strict=True)
        model(*(torch.cat(pair) for pair in pairs))
    except (RuntimeError, ValueError, TypeError):
        pass  # a model that takes no batch of two keeps the statistics it was made with
    model.eval()


def export(name: str, folder: Path) -> None:
    """Writes `folder/name.onnx`."""
    architecture = ARCHITECTURES[name]
    torch.manual_seed(0)
    model = architecture.make().eval()
    settle(model, architecture)
    path = folder / f"{name}.onnx"
    torch.onnx.export(model, inputs(architecture), str(path), external_data=False)


def main() -> None:
    """Exports what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("names", nargs="*", metavar="NAME", help="architectures, all by default")
    parser.add_argument("--list", action="store_true", help="print their names and do nothing")
    asked = parser.parse_args()
    names = asked.names or list(ARCHITECTURES)
    if asked.list:
        print(*names, sep="\n")
        return
    asked.folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in names:
        try:
            export(name, asked.folder)
            print(f"{name}: written", flush=True)
        except Exception as error:  # noqa: BLE001 - whatever an exporter does not manage
            failed += 1
            reason = traceback.format_exception_only(error)[-1].strip().splitlines()[0]
            print(f"{name}: not exported: {reason[:300]}", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
