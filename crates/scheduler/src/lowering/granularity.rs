//! How finely layers are cut, stage by stage.
//!
//! A *stage* is a stretch of the network whose images are of one size, or that ends in a single pixel all of the rest waits for.
//! Large images take few start-ups a row, small ones are over before a second piece has begun, so what is best for one stage is
//! rarely best for the next.

use tpuflow_ir::{TensorId, layout};

use crate::network::Network;

/// Stages that can differ; those behind them are cut like the last of these.
pub(crate) const STAGES: usize = 32;

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
        }
    }
}

/// By stage, the size of pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StageGranularities([TileGranularity; STAGES]);

impl StageGranularities {
    /// The same everywhere.
    pub fn even(granularity: TileGranularity) -> Self {
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

/// The stage of every step.
pub(crate) fn stages(network: &Network) -> Vec<u8> {
    let pixels = |tensor: TensorId| {
        let (_, height, width, _) = layout::image(&network.tensor(tensor).shape);
        height * width
    };
    let (mut stage, mut size, mut ended) = (0, None, false);
    let mut stages = Vec::with_capacity(network.steps.len());
    for step in &network.steps {
        let own = pixels(step.output);
        let resized = own > 1 && size.is_some_and(|size| size != own);
        if ended || resized {
            stage = (stage + 1).min(STAGES as u8 - 1);
        }
        stages.push(stage);
        size = if own > 1 {
            Some(own)
        } else if ended {
            None
        } else {
            size
        };
        ended = own == 1 && network.streams(&step.op).iter().any(|&t| pixels(t) > 1);
        if ended {
            size = None;
        }
    }
    stages
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{common, network::prepare};

    #[test]
    fn stages_end_where_images_change_size_or_all_of_one_is_awaited() {
        let mut net = common::Net::new(1);
        let x = net.input(&[1, 8, 8, 16]);
        let y = net.conv(x, 16, common::window(3, 1, 1), 1);
        let y = net.conv(y, 16, common::window(3, 2, 1), 1);
        let y = net.conv(y, 32, common::window(1, 1, 0), 1);
        let y = net.average_pool(y, common::window(4, 1, 0), false);
        let y = net.conv(y, 32, common::window(1, 1, 0), 1);
        let y = net.conv(y, 32, common::window(1, 1, 0), 1);
        let network = prepare(&net.finish(&[y])).expect("a sound graph");
        assert_eq!(stages(&network), [0, 1, 1, 1, 2, 2]);
    }

    #[test]
    fn one_stage_may_differ() {
        let (fine, lengthen_transfers) =
            (StageGranularities::even(TileGranularity::Fine), StageGranularities::even(TileGranularity::Longer(4)));
        let search_stage_granularities = fine.with(3, &lengthen_transfers);
        for stage in 0..=u8::MAX {
            assert_eq!(
                search_stage_granularities.of(stage),
                if stage == 3 { TileGranularity::Longer(4) } else { TileGranularity::Fine }
            );
        }
        assert_eq!(fine.of(u8::MAX), fine.with(STAGES as u8 - 1, &fine).of(STAGES as u8 - 1));
    }
}
