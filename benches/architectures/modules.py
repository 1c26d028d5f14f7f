"""Networks that no package has, as they are commonly written."""

# mypy: disable-error-code="misc, untyped-decorator"

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional


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
            x = block(x if index == 0 else functional.max_pool2d(x, 2))
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
            x = x + torch.relu(layer(functional.pad(x, (2 * 2**level, 0))))
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


class TextReader(nn.Module):
    """Reads lines of text: convolutions, a bidirectional recurrent layer, scores per column."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d((2, 1)),
            nn.Conv2d(64, 64, (8, 1)),
            nn.ReLU(),
        )
        self.layer = nn.LSTM(64, 48, bidirectional=True, batch_first=True)
        self.classifier = nn.Linear(96, 37)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Image to logarithms of the shares of characters, by column."""
        columns = self.features(x).squeeze(2).transpose(1, 2)
        return functional.log_softmax(self.classifier(self.layer(columns)[0]), -1)


class WaveNet(nn.Module):
    """Gated dilated convolutions of sound, with a sum of skips."""

    def __init__(self, channels: int = 32, levels: int = 6) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, channels, 1)
        self.gated = nn.ModuleList(
            nn.Conv1d(channels, 2 * channels, 2, dilation=2**level) for level in range(levels)
        )
        self.residual = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in range(levels))
        self.skip = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in range(levels))
        self.last = nn.Conv1d(channels, 64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Samples to scores of the next ones."""
        x = self.first(x)
        total: torch.Tensor | int = 0
        for level, (gated, residual, skip) in enumerate(
            zip(self.gated, self.residual, self.skip, strict=True)
        ):
            values, gates = gated(functional.pad(x, (2**level, 0))).chunk(2, 1)
            hidden = torch.tanh(values) * torch.sigmoid(gates)
            total = total + skip(hidden)
            x = x + residual(hidden)
        return self.last(functional.relu(total))


class Denoiser(nn.Module):
    """A step of a diffusion model: a residual block told the time, and attention over pixels."""

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, channels, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(32, channels), nn.SiLU(), nn.Linear(channels, channels))
        self.norms = nn.ModuleList(nn.GroupNorm(8, channels) for _ in range(3))
        self.convolutions = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.joint = nn.Conv2d(channels, 3 * channels, 1)
        self.project = nn.Conv2d(channels, channels, 1)
        self.last = nn.Conv2d(channels, 4, 3, padding=1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """A noisy image and its time to the noise."""
        x = self.first(x)
        angles = torch.exp(-torch.arange(16) * 0.5) * time[:, None]
        told = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        hidden = self.convolutions[0](functional.silu(self.norms[0](x))) + told[:, :, None, None]
        x = x + self.convolutions[1](functional.silu(self.norms[1](hidden)))
        batch, channels, height, width = x.shape
        joint = self.joint(self.norms[2](x)).reshape(batch, 3, 4, channels // 4, height * width)
        queries, keys, values = joint.unbind(1)
        shares = (queries.transpose(-1, -2) @ keys / (channels // 4) ** 0.5).softmax(-1)
        sums = (values @ shares.transpose(-1, -2)).reshape(batch, channels, height, width)
        return self.last(x + self.project(sums))


class ConformerBlock(nn.Module):
    """Half a perceptron, attention, a depthwise convolution along time, the other half."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.after = self._perceptron(width), self._perceptron(width)
        self.attention_norm, self.norm, self.last_norm = (nn.LayerNorm(width) for _ in range(3))
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.gated = nn.Conv1d(width, 2 * width, 1)
        self.depthwise = nn.Conv1d(width, width, 15, padding=7, groups=width)
        self.batch_norm = nn.BatchNorm1d(width)
        self.pointwise = nn.Conv1d(width, width, 1)

    @staticmethod
    def _perceptron(width: int) -> nn.Sequential:
        return nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Frames to frames."""
        x = x + 0.5 * self.before(x)
        y = self.attention_norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        y = functional.glu(self.gated(self.norm(x).transpose(1, 2)), 1)
        x = x + self.pointwise(functional.silu(self.batch_norm(self.depthwise(y)))).transpose(1, 2)
        return self.last_norm(x + 0.5 * self.after(x))


class Conformer(nn.Module):
    """An encoder of speech."""

    def __init__(self, width: int = 96, blocks: int = 2) -> None:
        super().__init__()
        self.thin = nn.Sequential(nn.Conv2d(1, 32, 3, 2), nn.ReLU(), nn.Conv2d(32, 32, 3, 2), nn.ReLU())
        self.project = nn.Linear(32 * 19, width)
        self.blocks = nn.ModuleList(ConformerBlock(width) for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Spectra to frames."""
        x = self.thin(x[:, None])
        batch, channels, frames, bands = x.shape
        x = self.project(x.transpose(1, 2).reshape(batch, frames, channels * bands))
        for block in self.blocks:
            x = block(x)
        return x


class GraphNetwork(nn.Module):
    """Graph convolutions over an adjacency matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 64), nn.Linear(64, 64)])
        self.classifier = nn.Linear(64, 7)

    def forward(self, x: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        """Features of nodes to scores of the graph."""
        near = adjacency / (adjacency.sum(-1, keepdim=True).abs() + 1)
        for layer in self.layers:
            x = functional.relu(layer(near @ x))
        return self.classifier(x.mean(1))


class VariationalAutoencoder(nn.Module):
    """Convolutions to a mean and a variance, a decoder of what is drawn from them."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 32, 4, 2, 1),
            nn.LeakyReLU(0.1),
            nn.Conv2d(32, 64, 4, 2, 1),
            nn.GroupNorm(4, 64),
            nn.Mish(),
            nn.Flatten(),
        )
        self.mean, self.variance = nn.Linear(64 * 64, 16), nn.Linear(64 * 64, 16)
        self.decoder = nn.Sequential(
            nn.Linear(16, 64 * 64),
            nn.Unflatten(1, (64, 8, 8)),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(64, 32, 3, padding=1),
            nn.Hardswish(),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.Conv2d(32, 3, 3, padding=1),
            nn.Tanh(),
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Image to another, and the mean."""
        hidden = self.encoder(x)
        mean = self.mean(hidden)
        return self.decoder(mean + 0.01 * torch.exp(0.5 * self.variance(hidden))), mean


class ResidualSuperResolution(nn.Module):
    """Residual blocks with PReLU, and a sub-pixel convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 9, padding=4)
        self.blocks = nn.ModuleList(self._block() for _ in range(4))
        self.larger = nn.Sequential(nn.Conv2d(32, 128, 3, padding=1), nn.PixelShuffle(2), nn.PReLU())
        self.last = nn.Conv2d(32, 3, 9, padding=4)

    @staticmethod
    def _block() -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(32, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.PReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.BatchNorm2d(32),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Image to one of twice the size."""
        x = self.first(x)
        y = x
        for block in self.blocks:
            y = y + block(y)
        return self.last(self.larger(x + y))


class RadianceField(nn.Module):
    """A perceptron of places and their sines, with a skip."""

    def __init__(self) -> None:
        super().__init__()
        widths = [(39, 128), (128, 128), (128 + 39, 128), (128, 4)]
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in widths)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Places to color and density."""
        waves: list[Callable[[torch.Tensor], torch.Tensor]] = [torch.sin, torch.cos]
        x = torch.cat([x] + [wave(x * 2.0**octave) for octave in range(6) for wave in waves], -1)
        hidden = functional.relu(self.layers[1](functional.relu(self.layers[0](x))))
        return self.layers[3](functional.relu(self.layers[2](torch.cat([hidden, x], -1))))
