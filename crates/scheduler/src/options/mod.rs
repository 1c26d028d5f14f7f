//! How a plan is made: how its layers overlap, and what it does otherwise than usual.

pub(crate) mod granularity;

use granularity::{StageGranularities, TileGranularity};

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

/// How a plan is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlanOptions {
    /// How layers overlap.
    pub mode: PipelineMode,
    /// Groups of constants that are loaded together are so many times as large as usual.
    pub group_scale: u64,
    /// Constants are loaded together of one layer only, so that the next layer's do not delay it.
    pub group_by_layer: bool,
    /// Weights that take much of the cache come in narrower tiles.
    pub narrow_weight_tiles: bool,
    /// Large results of the network are written through to DDR instead of being kept in the cache.
    pub write_through: bool,
    /// The order in which loads are placed is searched.
    pub search_load_order: bool,
    /// The first rows of an input come in short transfers.
    pub early_first_rows: bool,
    /// Share of the cache that tensors take layer after layer, in per cent: what is left is for layers that overlap.
    pub cache_share: u64,
    /// Layers further ahead leave space for the next buffer of those before them.
    pub reserves_space: bool,
}

impl PlanOptions {
    /// The usual options of a mode.
    pub const fn new(mode: PipelineMode) -> Self {
        Self {
            mode,
            group_scale: 1,
            group_by_layer: false,
            narrow_weight_tiles: false,
            write_through: false,
            search_load_order: false,
            early_first_rows: false,
            cache_share: 100,
            reserves_space: false,
        }
    }

    /// The same with the first rows of inputs in short transfers.
    pub const fn with_early_first_rows(self) -> Self {
        Self { early_first_rows: true, ..self }
    }

    /// Whether nothing but the mode differs from what is usual.
    pub fn is_usual(&self) -> bool {
        *self == Self::new(self.mode)
    }
}
