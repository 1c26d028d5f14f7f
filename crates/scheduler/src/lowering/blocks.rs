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
//!
//! The last tile often has few channels. In a buffer of its own its pixels are as small as that, several to a word, and the
//! units take words ([`Lowering::tail`]). Where all channels of a pixel must lie together again, the elementwise unit copies
//! those of the last tile there.

use tpuflow_ir::isa::ChannelParameters;
use tpuflow_ir::layout::{image, pixel_bytes};
use tpuflow_ir::{Op, Space, TensorId, View, timing};

use super::movement::Part;
use super::pool::{channels_of, whole_average};
use super::{Linear, Lowering, Shortage, TensorSpace, is_depthwise};
use crate::options::granularity::TileGranularity;
use crate::virtual_program::{BufferId, Content, Memory};

/// Words that small pixels of the last channels must save.
const WORTH: u64 = 128;

impl Lowering<'_> {
    /// The views of `tensor`'s blocks, `whole` being the view of all of it in the cache; `None` where it is not in blocks.
    pub(super) fn blocks(&mut self, tensor: TensorId, whole: &View) -> Option<Vec<View>> {
        if !self.is_in_blocks(tensor) {
            return None;
        }
        let (columns, word) = (self.context.machine.array.columns, self.context.machine.word());
        let firsts: Vec<u32> = (0..whole.channels).step_by(columns as usize).collect();
        let tail = self.tail(tensor);
        let view = |first: u32| {
            let view = View {
                address: 0,
                pixel_bytes: columns * whole.dtype.bytes() as u32,
                channels: columns.min(whole.channels - first),
                channel_offset: 0,
                origin: [whole.origin[0], whole.origin[1] + first],
                ..*whole
            };
            if view.channels == columns { view } else { View { pixel_bytes: tail.unwrap_or(view.pixel_bytes), ..view } }
        };
        let views: Vec<View> = firsts.into_iter().map(view).collect();
        if !self.blocks.contains_key(&tensor) {
            let name = self.context.network.tensor(tensor).name.clone();
            let mut buffer = |bytes| self.code.buffer(name.clone(), bytes, Memory::Cache, Content::Computed);
            let buffers: Vec<BufferId> = views.iter().map(|view| buffer(view.bytes(word))).collect();
            self.blocks.insert(tensor, buffers);
        }
        let placed = |(view, buffer): (View, &BufferId)| View { address: buffer.at(0), ..view };
        Some(views.into_iter().zip(&self.blocks[&tensor]).map(placed).collect())
    }

    /// Bytes of a pixel with the channels of the last column tile alone, where taking them in words of such pixels saves the
    /// pooling unit enough: at the operand and the result of a depthwise convolution of several cycles a word, and at what
    /// is computed element by element of such.
    pub(super) fn tail(&self, tensor: TensorId) -> Option<u32> {
        let (machine, info) = (self.context.machine, self.context.network.tensor(tensor));
        let (rows, _, width, channels) = image(&info.shape);
        let (columns, word) = (machine.array.columns as usize, machine.word());
        let pixel = pixel_bytes(channels % columns * info.dtype.bytes(), word);
        let alone = channels > columns && !channels.is_multiple_of(columns) && pixel < word;
        let saved = rows * width.saturating_sub((width * pixel).div_ceil(word));
        (alone && saved as u64 >= WORTH && self.is_slow(tensor)).then_some(pixel as u32)
    }

    fn is_slow(&self, tensor: TensorId) -> bool {
        let (network, taps) = (&self.context.network, self.context.machine.pdp.taps);
        network.producer(tensor).into_iter().chain(network.readers(tensor)).any(|step| match &step.op {
            Op::Conv { input, window, .. } if *input == tensor || step.output == tensor => {
                is_depthwise(network, &step.op) && window.kernel[0] * window.kernel[1] > taps
            }
            Op::Binary { .. } | Op::Unary { .. } | Op::Rescale { .. } if step.output == tensor => {
                network.streams(&step.op).into_iter().any(|operand| self.tail(operand).is_some())
            }
            _ => false,
        })
    }

    /// A buffer for the channels of the last tile of a result, `to`, in pixels of their own, if its operand has such.
    pub(super) fn packed(&mut self, output: TensorId, from: &View, to: &View) -> Option<View> {
        let word = self.context.machine.word();
        let pixel = self.tail(output).filter(|&pixel| from.pixel_bytes < word as u32 && to.pixel_bytes > pixel)?;
        if to.space != Space::Cache || pixel_bytes(to.payload(), word) != pixel as usize {
            return None;
        }
        let view = View { pixel_bytes: pixel, channel_offset: 0, ..*to };
        let name = self.context.network.tensor(output).name.clone();
        let buffer = self.code.buffer(name, view.bytes(word), Memory::Cache, Content::Computed);
        Some(View { address: buffer.at(0), ..view })
    }

    /// Puts channels that were computed in pixels of their own to the others.
    pub(super) fn unpack(&mut self, output: TensorId, from: &View, to: &View) -> Result<(), Shortage> {
        let line = from.width * from.channels;
        let steps = i64::from(line);
        let loops = vec![(from.rows, steps, steps), (line, 1, 1)];
        self.copy(&Part { input: output, loops, from: 0, to: 0, rescale: None }, from, to, u64::MAX)
    }

    /// Views of operands and result (the last of `views`), a list for each block; one list where none of `tensors` is in blocks.
    /// Rows are those of the image.
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
    pub(super) fn is_in_blocks(&self, tensor: TensorId) -> bool {
        let (network, machine) = (&self.context.network, self.context.machine);
        let (columns, word) = (machine.array.columns as usize, machine.word());
        let info = network.tensor(tensor);
        let wide = info.shape.last().is_some_and(|&channels| channels > columns);
        if self.granularity() == TileGranularity::Coarse
            || !wide
            || !(columns * info.dtype.bytes()).is_multiple_of(word)
        {
            return false;
        }
        let root = self.context.placement.of(tensor).root;
        let tensors = || (0..network.tensors.len()).map(TensorId::new);
        let shared = root != tensor || tensors().any(|t| t != tensor && self.context.placement.of(t).root == tensor);
        if shared || self.memory_space(root) != TensorSpace::Cache || self.context.graph.outputs.contains(&tensor) {
            return false;
        }
        let made = network.producer(tensor).is_none_or(|step| {
            let tiles = |linear: Linear| linear.groups == 1 && linear.leads == 1;
            match &step.op {
                Op::Conv { input, .. } if is_depthwise(network, &step.op) => {
                    self.tail(tensor).is_some() && self.tail(*input).is_some() && self.is_in_blocks(*input)
                }
                // What is copied can go anywhere.
                Op::Concat { axis, .. } => *axis as usize + 1 == info.shape.len(),
                op => Linear::of(op, network).is_some_and(tiles),
            }
        });
        let read = |op: &Op, output: TensorId| match op {
            Op::Conv { input, weights, window, .. } if *input == tensor && is_depthwise(network, op) => {
                let w = network.tensor(*weights);
                let taps = (window.kernel[0] * window.kernel[1]) as usize * w.dtype.bytes();
                let entry = ChannelParameters::bytes(timing::has_wide_sums(info.dtype, w.dtype));
                // Its parameters fit with a table beside them.
                (taps + entry) as u64 * columns as u64 * 2 <= self.parameter_space() / 2
            }
            Op::AveragePool { input, .. } if *input == tensor => whole_average(op, &info.shape).is_some(),
            Op::Binary { .. } | Op::Unary { .. } | Op::Rescale { .. } if op.operands().contains(&tensor) => {
                let channels = |t: &TensorId| network.tensor(*t).shape.last().copied().unwrap_or(1);
                let alike = |t: &TensorId| channels(t) == 1 || Some(&channels(t)) == info.shape.last();
                let result = &network.tensor(output).shape;
                // A single pixel may stand for all of the result's.
                let single = info.shape.last() == Some(&info.elements()) && result.last() == info.shape.last();
                (single || *result == info.shape) && network.streams(op).iter().all(alike)
            }
            _ => !op.operands().contains(&tensor),
        };
        made && !self.context.graph.inputs.contains(&tensor)
            && network.readers(tensor).all(|step| read(&step.op, step.output))
    }
}
