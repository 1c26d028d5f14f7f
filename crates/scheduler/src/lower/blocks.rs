//! Results in blocks of channels: a convolution's column tiles in buffers of their own.
//!
//! What touches some channels of a pixel of several words counts as touching all of it, so a reader of one column tile would
//! wait for the last. Where every reader takes channels one by one, each tile gets a buffer, and readers (depthwise convolutions,
//! averages of the whole image, elementwise operators) follow tile by tile:
//!
//! ```text
//!  expand      |t0|t1|t2|t3|
//!  depthwise       |t0|t1|t2|t3|
//! ```

use tpuflow_ir::isa::ChannelParameters;
use tpuflow_ir::{Op, TensorId, View, timing};

use super::pool::{channels_of, whole_average};
use super::{Grain, Home, Linear, Lowering, is_depthwise};
use crate::sketch::{BufferId, Content, Memory};

impl Lowering<'_> {
    /// The views of `tensor`'s blocks, `whole` being the view of all of it in the cache; `None` where it is not in blocks.
    pub(super) fn blocks(&mut self, tensor: TensorId, whole: &View) -> Option<Vec<View>> {
        if !self.is_in_blocks(tensor) {
            return None;
        }
        let (columns, size) = (self.setting.machine.array.columns, whole.dtype.bytes() as u32);
        let firsts: Vec<u32> = (0..whole.channels).step_by(columns as usize).collect();
        let bytes = u64::from(whole.rows) * u64::from(whole.width) * u64::from(columns * size);
        if !self.blocks.contains_key(&tensor) {
            let name = self.setting.network.tensor(tensor).name.clone();
            let mut buffer = || self.sketch.buffer(name.clone(), bytes, Memory::Cache, Content::Computed);
            let buffers: Vec<BufferId> = firsts.iter().map(|_| buffer()).collect();
            self.blocks.insert(tensor, buffers);
        }
        let view = |(&first, buffer): (&u32, &BufferId)| View {
            address: buffer.at(0),
            pixel_bytes: columns * size,
            channels: columns.min(whole.channels - first),
            channel_offset: 0,
            origin: [whole.origin[0], whole.origin[1] + first],
            ..*whole
        };
        Some(firsts.iter().zip(&self.blocks[&tensor]).map(view).collect())
    }

    /// Views of operands and result (the last of `views`), a list for each block; one list where none of `tensors` is in blocks.
    pub(super) fn by_block(&mut self, tensors: &[TensorId], views: &[View]) -> Vec<Vec<View>> {
        let blocks: Vec<Option<Vec<View>>> = tensors.iter().zip(views).map(|(&t, view)| self.blocks(t, view)).collect();
        let Some(model) = blocks.iter().flatten().next() else { return vec![views.to_vec()] };
        let part = |block: usize, index: usize| match blocks.get(index).and_then(Option::as_ref) {
            Some(blocks) => blocks[block],
            None if views[index].channels == 1 => views[index],
            None => channels_of(&views[index], model[block].origin[1], model[block].channels),
        };
        (0..model.len()).map(|block| (0..views.len()).map(|index| part(block, index)).collect()).collect()
    }

    /// Whether a tensor of several column tiles is made by the array and read by nothing but what takes channels one by one.
    fn is_in_blocks(&self, tensor: TensorId) -> bool {
        let (network, machine) = (self.setting.network, self.setting.machine);
        let (columns, word) = (machine.array.columns as usize, machine.word());
        let info = network.tensor(tensor);
        let wide = info.shape.last().is_some_and(|&channels| channels > columns);
        if self.setting.grain == Grain::Coarse || !wide || !(columns * info.dtype.bytes()).is_multiple_of(word) {
            return false;
        }
        let root = self.setting.placement.of(tensor).root;
        let tensors = || (0..network.tensors.len()).map(TensorId::new);
        let shared = root != tensor || tensors().any(|t| t != tensor && self.setting.placement.of(t).root == tensor);
        if shared || self.home(root) != Home::Cache || self.setting.outputs.contains(&tensor) {
            return false;
        }
        let made = network.steps.iter().filter(|step| step.output == tensor).all(|step| {
            let tiles = |linear: Linear| linear.groups == 1 && linear.leads == 1;
            Linear::of(&step.op, network).is_some_and(tiles) && !is_depthwise(network, &step.op)
        });
        let read = |op: &Op, output: TensorId| match op {
            Op::Conv { input, weights, window, .. } if *input == tensor && is_depthwise(network, op) => {
                let w = network.tensor(*weights);
                let taps = (window.kernel[0] * window.kernel[1]) as usize * w.dtype.bytes();
                let entry = ChannelParameters::bytes(timing::wide(info.dtype, w.dtype));
                // Its parameters fit with a table beside them.
                (taps + entry) as u64 * columns as u64 * 2 <= self.parameter_space() / 2
            }
            Op::AveragePool { input, .. } if *input == tensor => whole_average(op, &info.shape).is_some(),
            Op::Binary { .. } | Op::Unary { .. } | Op::Rescale { .. } if op.operands().contains(&tensor) => {
                let channels = |t: &TensorId| network.tensor(*t).shape.last().copied().unwrap_or(1);
                let alike = |t: &TensorId| channels(t) == 1 || Some(&channels(t)) == info.shape.last();
                network.tensor(output).shape == info.shape && network.streams(op).iter().all(alike)
            }
            _ => !op.operands().contains(&tensor),
        };
        made && !self.setting.inputs.contains(&tensor) && network.steps.iter().all(|step| read(&step.op, step.output))
    }
}
