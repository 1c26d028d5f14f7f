"""The section `preprocess`: what is done to images inside the program."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from tpuflow.config.section import Section

__all__ = ["PreprocessConfig"]

Pixels = Literal["rgb", "bgr", "gray", "rgba", "bgra"]


class PreprocessConfig(Section):
    """Preparation of images in front of the network, inside the program: its input is the raw image, bytes.

    In this order: centre crop, resize, pad, centre crop to the network's size, channels, (x - mean) * scale.
    """

    input: str = ""
    """Input of the network that takes the image; unset: its only image."""
    image_size: tuple[int, int] | None = None
    """Height and width of the raw image; unset: what needs no resizing."""
    image_format: Pixels = "rgb"
    """Channels of the raw image."""
    channel_format: Literal["nhwc", "nchw"] = "nhwc"
    """Layout of the raw image."""
    pixel_format: Pixels | None = None
    """Channels the network takes; unset: those of the raw image."""
    mean: tuple[float, ...] = (0.0,)
    """Subtracted from the pixels: one number, or one per channel the network takes."""
    scale: tuple[float, ...] = (1.0,)
    """Factor of the rest: one number, or one per channel."""
    std: tuple[float, ...] | None = None
    """Its inverse, instead of `scale`."""
    crop_ratio: float = Field(default=1.0, gt=0, le=1)
    """Only the square in the middle of the raw image, of this share of its shorter side; 1: all of it."""
    resize_dims: tuple[int, int] | None = None
    """Height and width the image is resized to, cropped to the network's if larger; unset: the network's."""
    keep_aspect_ratio: bool = False
    """Resize both sides by the same factor and pad the rest."""
    pad_value: float = Field(default=0.0, ge=0, le=255)
    """Pixel the rest is filled with, before mean and scale."""
    pad_type: Literal["normal", "center"] = "normal"
    """Where the rest lies: below and to the right, or on all sides."""

    @model_validator(mode="after")
    def _makes_sense(self) -> PreprocessConfig:
        if self.std is not None and "scale" in self.model_fields_set:
            raise ValueError("scale and std are given: give one of them")
        if self.std is not None and not all(self.std):
            raise ValueError("std holds 0, by which nothing can be divided")
        for name, sizes in (("image_size", self.image_size), ("resize_dims", self.resize_dims)):
            if sizes is not None and min(sizes) < 1:
                raise ValueError(f"{name} {list(sizes)} holds a size below 1")
        return self

    @property
    def factors(self) -> tuple[float, ...]:
        """Factors that pixels are multiplied with once the mean is subtracted."""
        return self.scale if self.std is None else tuple(1 / value for value in self.std)
