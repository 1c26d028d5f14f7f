//! Stretches of pixels for the array's instructions.
//!
//! Small images are cut in two where each half still costs the array a tile. Halves move up by a row with every window on the
//! way, so that the first half of a layer finds all it needs in the first half of the layer before:
//!
//! ```text
//!  rows   expand      depthwise 3x3   project   expand      depthwise 3x3   project
//!  0..    ########    #######         #######   #######     ######          ######
//!  ..14   ......      .......         .......   .......     ........        ........
//! ```

use std::ops::Range;

use tpuflow_ir::{Op, TensorId, layout, timing};

use super::{Grain, Lowering, slices};
use crate::network::Network;

impl Lowering<'_> {
    /// The pixels `all`, `line` to an image row, in stretches for an instruction each: as many as the accumulators take, or, finely cut, the fewest
    /// image rows that hide the next instruction's weights and waste no slots.
    pub(super) fn chunks(&self, line: u32, wide: bool, all: Range<u32>) -> Vec<Range<u32>> {
        let (machine, pixels) = (self.setting.machine, all.end - all.start);
        let most = machine.matrix_rows(wide) as u32;
        let by = |chunk: u32| -> Vec<Range<u32>> { slices(all.clone(), chunk).collect() };
        let even = pixels.div_ceil(pixels.div_ceil(most));
        if !self.setting.parallel || self.setting.grain == Grain::Coarse {
            return by(even);
        }
        let least = (machine.array.rows + machine.control.issue as u32).div_ceil(line);
        let least = least.max((u64::from(pixels / line) / self.setting.pieces) as u32);
        if matches!(self.setting.grain, Grain::Finest(_)) && pixels < 2 * least * line && pixels >= machine.array.rows {
            if let Some(first) = self.shrunk(pixels / line, line).filter(|_| self.setting.pieces > 1) {
                let middle = all.start + first * line;
                return vec![all.start..middle, middle..all.end];
            }
            return by(((pixels / line).div_ceil(2).max(1) * line).min(even));
        }
        let slots = |chunk: u32| {
            let rest = u64::from(pixels % chunk);
            let last = if rest > 0 { timing::tile_slots(rest, machine) } else { 0 };
            u64::from(pixels / chunk) * timing::tile_slots(chunk.into(), machine) + last
        };
        let rows = (least..=most / line).map(|lines| lines * line);
        by(rows.chain([even]).min_by_key(|&chunk| (slots(chunk), chunk)).unwrap_or(even))
    }

    /// Of `rows` image rows that two tiles just take, those of the first: fewer with every window on the way, so that what is
    /// needed of them for the same part of the next layer is there.
    fn shrunk(&self, rows: u32, line: u32) -> Option<u32> {
        let most = (self.setting.machine.array.rows / line).min(rows);
        let least = rows - most;
        (2 * most >= rows && least > 0).then(|| most - self.halos[self.output().index()] % (most - least + 1))
    }
}

/// By tensor, the rows below a row of it that it needs of the first tensor of its size upstream.
pub(super) fn halos(network: &Network) -> Vec<u32> {
    let mut halos = vec![0; network.tensors.len()];
    let image = |tensor: TensorId| {
        let (_, height, width, _) = layout::image(&network.tensor(tensor).shape);
        (height, width)
    };
    for step in &network.steps {
        let own = match &step.op {
            Op::Conv { window, .. } | Op::MaxPool { window, .. } | Op::AveragePool { window, .. } => {
                ((window.kernel[0] - 1) * window.dilation[0]).saturating_sub(window.pads[0])
            }
            _ => 0,
        };
        let alike = network.streams(&step.op).into_iter().filter(|&t| image(t) == image(step.output));
        halos[step.output.index()] = alike.map(|t| halos[t.index()] + own).max().unwrap_or(0);
    }
    halos
}
