"""The cycle model as published examples import it."""

from tpu_framework.programs import ExecutionResult, model_execute

__all__ = ["ExecutionResult", "model_execute"]
