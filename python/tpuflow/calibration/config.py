"""The choices of calibration: a section of the configuration file."""

from tpuflow.config import CalibrationConfig

__all__ = ["CalibrationConfig"]
