"""Machines by name, where the published framework keeps them."""

from tpu_framework.hardware import ModelParameters, get_hw_params

__all__ = ["ModelParameters", "get_hw_params"]
