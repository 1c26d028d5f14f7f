"""Messages of plugins: all but the last go to the log, the last ends the run."""

from __future__ import annotations

import logging
from typing import Any, NoReturn

from tpuflow.plugins.registry import PluginError

__all__ = ["OPT_DEBUG", "OPT_ERROR", "OPT_FATAL", "OPT_INFO", "OPT_WARN"]

logger = logging.getLogger("tpuflow.plugins")


def OPT_DEBUG(message: object, **_more: Any) -> None:  # noqa: N802 - what plugins call it
    """For whoever looks for a mistake."""
    logger.debug("%s", message)


def OPT_INFO(message: object, **_more: Any) -> None:  # noqa: N802
    """Logs what happens."""
    logger.info("%s", message)


def OPT_WARN(message: object, **_more: Any) -> None:  # noqa: N802
    """Logs what may be wrong."""
    logger.warning("%s", message)


def OPT_ERROR(message: object, **_more: Any) -> None:  # noqa: N802
    """Logs an error; the run goes on."""
    logger.error("%s", message)


def OPT_FATAL(message: object, **_more: Any) -> NoReturn:  # noqa: N802
    """Ends the run with an error.

    Raises:
        PluginError: Always.
    """
    raise PluginError(" ".join(str(message).split()))
