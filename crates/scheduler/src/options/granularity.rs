//! How finely layers are cut, stage by stage ([`STAGES`]).

use crate::network::stages::STAGES;

/// Size of the pieces units work on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TileGranularity {
    /// Start-ups are lost in the noise.
    Coarse,
    /// As small as start-ups can be hidden behind the instruction before.
    Fine,
    /// So many times as long.
    Longer(u8),
    /// Smaller still, even where a unit is held for nothing: so many pieces for twice the time a unit takes to begin.
    Finest(u8),
    /// As small as `Finest(2)`; tokens are halved evenly, and images that a single tile of the array takes as well.
    Halves,
    /// As small as `Finest(4)`; tokens even in pieces shorter than a start-up, for sequences that wait more than they work.
    Shortest,
}

impl TileGranularity {
    /// Pieces for `cycles` of work of a unit that takes `start` cycles to begin.
    pub fn pieces(self, cycles: u64, start: u64) -> u64 {
        let start = start.max(1);
        match self {
            Self::Coarse => (cycles / (6 * start)).clamp(1, 8),
            Self::Fine => (cycles / (2 * start)).clamp(1, 64),
            Self::Longer(times) => (cycles / (2 * u64::from(times) * start)).clamp(1, 64),
            Self::Finest(halves) => (u64::from(halves) * cycles / (2 * start)).clamp(1, 64),
            Self::Halves => Self::Finest(2).pieces(cycles, start),
            Self::Shortest => Self::Finest(4).pieces(cycles, start),
        }
    }
}

/// By stage, the size of pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StageGranularities([TileGranularity; STAGES]);

impl StageGranularities {
    /// The same everywhere.
    pub const fn even(granularity: TileGranularity) -> Self {
        Self([granularity; STAGES])
    }

    pub fn of(&self, stage: u8) -> TileGranularity {
        self.0[usize::from(stage).min(STAGES - 1)]
    }

    /// With one stage as in `other`.
    pub fn with(mut self, stage: u8, other: &Self) -> Self {
        self.0[usize::from(stage)] = other.of(stage);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_stage_may_differ() {
        let (fine, longer) =
            (StageGranularities::even(TileGranularity::Fine), StageGranularities::even(TileGranularity::Longer(4)));
        let mixed = fine.with(3, &longer);
        for stage in 0..=u8::MAX {
            assert_eq!(mixed.of(stage), if stage == 3 { TileGranularity::Longer(4) } else { TileGranularity::Fine });
        }
        assert_eq!(fine.of(u8::MAX), fine.with(STAGES as u8 - 1, &fine).of(STAGES as u8 - 1));
    }
}
