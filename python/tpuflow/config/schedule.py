"""The section `schedule`: what a schedule may do, in place of what its level allows."""

from __future__ import annotations

import ast
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from tpuflow.config.section import Section

__all__ = ["ScheduleConfig"]


SliceAxis = Literal["batch", "height", "width", "channel"]


def _runs(value: Any) -> Any:
    """A list of tuples, or such a list as text: `[(0,3,2,2)]`."""
    if not isinstance(value, str):
        return value
    try:
        return ast.literal_eval(value) if value.strip() else ()
    except (ValueError, SyntaxError):
        raise ValueError("write a list of layers and parts such as [(0,3,2,2)]") from None


class ScheduleConfig(Section):
    """Fields of a schedule; unset ones are those of the level, see `tpuflow.compiler.parameters`."""

    data_transfer_optimization: bool | None = None
    """Tensors stay in the cache from their producer to their readers; otherwise all pass through DDR."""
    dependency_resolution: Literal["sequential", "parallel"] | None = None
    """One instruction after the other, or units side by side."""
    ram_io_balancing: Literal["none", "mirror"] | None = None
    """Constants in the first DDR alone, or in all."""
    layer_fusion: int | None = Field(default=None, ge=-1)
    """How many further layers may run while one does; -1: as many as are looked at together."""
    insertion_depth: int | None = Field(default=None, ge=-1)
    """Over how many layers loads may move ahead; -1: any number."""
    insertion_time_limit: int | None = Field(default=None, ge=-1)
    """Seconds of search, 20 steps each; 0: none, and no load moves; -1: the budget of the whole."""
    grouping_depth: int | None = Field(default=None, ge=-1)
    """Most layers whose small constants share one transfer; 0 and -1: no limit but memory."""
    grouping_time_limit: int | None = Field(default=None, ge=-1)
    """0: every constant travels alone."""
    shared_round_robin: bool | None = None
    """Loads follow each other round the shared cache; otherwise each takes the lowest hole."""
    shared_fallthrough_patch: bool | None = None
    """Loads that find no room in the shared cache move less far ahead; otherwise none moves."""
    ewp_round_robin: bool | None = None
    """As for the shared cache, in the parameter cache."""
    ewp_fallthrough_patch: bool | None = None
    """As for the shared cache, in the parameter cache."""
    analysis_depth: int | None = Field(default=None, ge=1)
    """Layers along a chain that are looked at together."""
    analysis_depth_branch: int | None = Field(default=None, ge=1)
    """Branches side by side that are."""
    spatial_limit: int | None = Field(default=None, ge=0)
    """How many times a plane may be cut in four where it need not be."""
    max_cache_utilization: float | None = Field(default=None, ge=0.01, le=1)
    """Share of the free cache a piece may take."""
    layer_groups: Literal["greedy", "dynamic", "exact"] = "dynamic"
    """How layers are divided into groups that are computed tile by tile where tensors do not fit the cache:
    each of the three is at least as cheap by the cost model as the one before it, and takes longer."""
    search_steps: int | None = Field(default=None, ge=0)
    """Most steps of every search, each of a thousand instructions placed; unset: 200. Without any (0) level 5
    takes a tenth of the time, for programs 0 to 4 % slower."""
    pipeline: bool = False
    """Plan for a stream of inferences as well, of which each begins before the one before has ended."""
    io_memory: Literal["separate", "shared", "contiguous"] = "separate"
    """Inputs and outputs in pages of DDR of their own, large ones in parts in all address spaces
    (`separate`), in pages shared with other tensors, or each in one stretch of the first address space
    (`contiguous`)."""
    slicing_scheme: dict[str, tuple[dict[SliceAxis, tuple[int, int]], ...]] = Field(default={})
    """By name of a layer, the slices it is computed in: by axis, first element and end; together they are all
    of the layer's result."""
    featuremap_tiling_param: Annotated[tuple[tuple[int, int, int, int], ...], BeforeValidator(_runs)] = ()
    """Runs of layers computed in parts, as `[(i,j,h,w)]`: layers number i to j in h parts from top to bottom
    by w from left to right."""
    featuremap_splits_item_x: int = Field(default=1, ge=1)
    """Parts from left to right of all layers that can be computed so."""
    featuremap_splits_item_y: int = Field(default=1, ge=1)
    """Parts from top to bottom of all layers that can be computed so."""
    featuremap_splits_overlap_rate: int = Field(default=50, ge=0, lt=100)
    """Layers of which the parts of `featuremap_splits_item_x` and `_y` compute or read more than this share
    twice, in per cent, stay whole."""
