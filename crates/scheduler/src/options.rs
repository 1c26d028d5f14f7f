//! How a plan is made: how its layers overlap, and what it does otherwise than usual.

use crate::lowering::{StageGranularities, TileGranularity};

/// How instructions are cut and ordered in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PipelineMode {
    /// One at a time.
    Sequential,
    /// All units at the same time, layer after layer, loads ahead.
    Layers {
        /// Layers are cut so that two pieces of one fit the cache at a time, one loaded while the other is at work.
        paired: bool,
    },
    /// Instructions of different layers interleaved.
    Interleaved {
        /// How finely layers are cut.
        granularities: StageGranularities,
    },
}

impl PipelineMode {
    pub fn paired(self) -> bool {
        matches!(self, Self::Layers { paired: true } | Self::Interleaved { .. })
    }

    pub fn granularities(self) -> StageGranularities {
        if let Self::Interleaved { granularities } = self {
            granularities
        } else {
            StageGranularities::even(TileGranularity::Coarse)
        }
    }
}

/// What a plan does otherwise than usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlanVariant {
    /// Bundles are so many times as large.
    pub group_scale: u64,
    /// Weights that take much of the cache come in narrower tiles.
    pub narrow_weight_tiles: bool,
    /// Large results of the network only pass through the cache.
    pub write_through: bool,
    /// Loads are placed in many ways.
    pub search_load_order: bool,
    /// The first rows of an input come in short transfers.
    pub early_first_rows: bool,
}

impl Default for PlanVariant {
    fn default() -> Self {
        Self {
            group_scale: 1,
            narrow_weight_tiles: false,
            write_through: false,
            search_load_order: false,
            early_first_rows: false,
        }
    }
}
