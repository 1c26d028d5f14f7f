//! How a plan is made: how its layers overlap, and what it does otherwise than usual.

use crate::lowering::{Grain, Grains};

/// How instructions are cut and ordered in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// One at a time.
    Sequential,
    /// All units at the same time, layer after layer, loads ahead.
    Layers {
        /// Layers are cut so that two pieces of one fit the cache at a time, one loaded while the other is at work.
        paired: bool,
    },
    /// Instructions of different layers interleaved.
    Woven {
        /// How finely layers are cut.
        grains: Grains,
    },
}

impl Mode {
    pub fn paired(self) -> bool {
        matches!(self, Self::Layers { paired: true } | Self::Woven { .. })
    }

    pub fn grains(self) -> Grains {
        if let Self::Woven { grains } = self { grains } else { Grains::even(Grain::Coarse) }
    }
}

/// What a plan does otherwise than usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Manner {
    /// Bundles are so many times as large.
    pub bundles: u64,
    /// Weights that take much of the cache come in narrower tiles.
    pub narrow: bool,
    /// Large results of the network only pass through the cache.
    pub passing: bool,
    /// Loads are placed in many ways.
    pub searched: bool,
    /// The first rows of an input come in short transfers.
    pub prompt: bool,
}

impl Default for Manner {
    fn default() -> Self {
        Self { bundles: 1, narrow: false, passing: false, searched: false, prompt: false }
    }
}
