//! Which tensors share storage: concatenations whose operands are produced in place, and reshapes, splits and slices that
//! change nothing physically.
//!
//! A *root* tensor owns storage in its natural layout. Any other tensor may live in a part of a root's storage if that part
//! can be said as a [`View`]: whole rows, whole pixels of a single row, or a range of channels of every pixel.
//!
//! ```text
//!  concat of a (48 channels) and b (16), words of 64 bytes:      | a a a b | a a a b | a a a b | ...   no copy
//! ```
//!
//! Matrices of a stack, the heads of attention, may lie *side by side*: each in a range of channels of the same pixels. Where
//! nothing but products of stacks touches them there, heads need not be copied apart before attention nor together after it:
//!
//! ```text
//!  tokens x (heads x depth)      | q0 q1 q2 k0 k1 k2 v0 v1 v2 | a row for each token; q0: a matrix of the stack q
//! ```
//!
//! A range of channels is used only where it starts on a word or stays inside one, or where the array makes it in as many column
//! tiles of which only the first begins inside a word: a producer's words are then never shared between two of its writes, and
//! a consumer reads no more words than from a tensor of its own. Elements that are moved for a concatenation alone go anywhere in
//! its pixels at once: the concatenation would move them once more.

mod concatenation;
mod stacks;

use std::collections::BTreeSet;

use tpuflow_ir::{Graph, Machine, Op, Space, TensorId, View};

use crate::network::{Linear, Network, Step, is_depthwise};
pub(crate) use stacks::MatricesSideBySide;

/// Cycles of the pooling unit that are worth one of the elementwise unit.
const COPIED_FOR: u64 = 4;

/// Where a tensor lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The tensor whose storage it is.
    pub root: TensorId,
    /// Bytes from the storage's start to row 0.
    pub offset: u64,
    /// Bytes from pixel to pixel.
    pub pixel_bytes: u32,
    /// Bytes into the pixel.
    pub channel_offset: u32,
    /// Matrices of a stack that lie side by side in the pixels of a row; `None` where they lie one below the other.
    pub beside: Option<MatricesSideBySide>,
}

/// The place of every tensor.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    places: Vec<Place>,
    /// By step: the result is already where it belongs.
    free: Vec<bool>,
    /// By tensor: the concatenation it is produced into.
    absorbed: Vec<Option<TensorId>>,
    word: usize,
    /// Rows of the array.
    array_rows: usize,
}

impl Placement {
    /// Decides all places.
    pub fn new(network: &Network, graph: &Graph, machine: &Machine) -> Self {
        let (inputs, word) = (&graph.inputs, machine.word());
        let own = |(index, _)| {
            let root = TensorId::new(index);
            let view = natural(network, root, word);
            Place { root, offset: 0, pixel_bytes: view.pixel_bytes, channel_offset: 0, beside: None }
        };
        let places = network.tensors.iter().enumerate().map(own).collect();
        let absorbed = vec![None; network.tensors.len()];
        let numbers = graph.exchanges.iter().flat_map(|exchange| &exchange.inputs);
        let parts: BTreeSet<TensorId> = numbers.map(|&input| graph.inputs[input as usize]).collect();
        let array_rows = machine.array.rows as usize;
        let mut placement = Self { places, free: vec![false; network.steps.len()], absorbed, word, array_rows };
        for (index, step) in network.steps.iter().enumerate().rev() {
            match &step.op {
                Op::Concat { .. } => placement.concat(network, (inputs, &parts), step, machine),
                Op::Rearrange { .. } => {
                    placement.reshaped(network, inputs, index, machine);
                    placement.joined_stacks(network, &graph.outputs, index);
                }
                _ => {}
            }
        }
        for (index, step) in network.steps.iter().enumerate() {
            if let Op::Rearrange { input, dims, strides, offset } = &step.op
                && placement.absorbed[step.output.index()].is_none()
                && let Some(place) = placement.alias(network, *input, step.output, dims, strides, *offset)
                && !placement.slows(network, step.output, place)
            {
                placement.places[step.output.index()] = place;
                placement.free[index] = true;
            }
            if !placement.free[index] && matches!(step.op, Op::Rearrange { .. }) {
                placement.stack(network, &graph.outputs, index);
            }
            if let Op::Concat { inputs, .. } = &step.op {
                // An input is brought there when its turn comes.
                let is_made = |&t: &TensorId| placement.in_place(t, step.output) && !graph.inputs.contains(&t);
                placement.free[index] = inputs.iter().all(is_made);
            }
        }
        placement
    }

    /// The place of a tensor.
    pub fn of(&self, tensor: TensorId) -> Place {
        self.places[tensor.index()]
    }

    /// Whether step `index` needs no instruction.
    pub fn is_free(&self, index: usize) -> bool {
        self.free[index]
    }

    /// Whether operand `tensor` of a concatenation into `output` is produced in place.
    pub fn in_place(&self, tensor: TensorId, output: TensorId) -> bool {
        self.absorbed[tensor.index()] == Some(output)
    }

    /// The tensor as a view of storage at `address`.
    pub fn view(&self, network: &Network, tensor: TensorId, space: Space, address: u64) -> View {
        let place = self.of(tensor);
        debug_assert!(place.beside.is_none(), "matrices side by side are no single view");
        View {
            space,
            address: address + place.offset,
            pixel_bytes: place.pixel_bytes,
            channel_offset: place.channel_offset,
            ..natural(network, tensor, self.word)
        }
    }

    /// Bytes of a root's storage.
    pub fn bytes(&self, network: &Network, root: TensorId) -> u64 {
        natural(network, root, self.word).bytes(self.word)
    }

    /// Whether the array would take more steps to read `tensor` there than from storage of its own: larger pixels put fewer taps
    /// of a window into a word. A copy costs less.
    fn slows(&self, network: &Network, tensor: TensorId, place: Place) -> bool {
        let own = natural(network, tensor, self.word).pixel_bytes;
        network.readers(tensor).filter(|step| !is_depthwise(network, &step.op)).any(|step| {
            Linear::of(&step.op, network).filter(|linear| linear.input == tensor).is_some_and(|linear| {
                let taps = linear.window.kernel[0] * linear.window.kernel[1];
                let blocks = |pixel: u32| taps.div_ceil((self.word as u32 / pixel).max(1));
                blocks(place.pixel_bytes) > blocks(own)
            })
        })
    }

    /// Whether the pooling unit would take that much longer to write a result there, word by word of a wider pixel, that a copy by
    /// the elementwise unit, a word a cycle, costs little beside it.
    fn slows_pooling(&self, network: &Network, step: &Step, place: Place, machine: &Machine) -> bool {
        let window = match &step.op {
            Op::Conv { window, .. } if is_depthwise(network, &step.op) => window,
            Op::MaxPool { window, .. } | Op::AveragePool { window, .. } => window,
            _ => return false,
        };
        let own = natural(network, step.output, self.word);
        let there = own.payload().next_multiple_of(self.word) as u64;
        let taps = u64::from(window.kernel[0] * window.kernel[1]).div_ceil(machine.pdp.taps.into());
        let more = there.saturating_sub(own.pixel_bytes.into());
        place.pixel_bytes > own.pixel_bytes && more * taps > COPIED_FOR * there
    }

    fn fits_channels(&self, offset: usize, payload: usize) -> bool {
        offset.is_multiple_of(self.word) || offset % self.word + payload <= self.word
    }

    /// The place of `output` inside the storage of `input` if moving nothing gives the same elements.
    fn alias(
        &self,
        network: &Network,
        input: TensorId,
        output: TensorId,
        dims: &[u32],
        strides: &[i64],
        offset: i64,
    ) -> Option<Place> {
        let host = self.of(input);
        if host.beside.is_some() {
            return None;
        }
        let from = self.view(network, input, Space::Cache, 0);
        let to = natural(network, output, self.word);
        let (word, size) = (self.word as u64, from.dtype.bytes() as u64);
        if from.dtype != to.dtype || to.rows == 0 || offset < 0 {
            return None;
        }
        let channels = i64::from(from.channels);
        let pixel = u64::from(from.pixel_bytes);
        let loops = coalesced(dims, strides);
        if let [(_, 1)] = loops[..] {
            let row = channels * i64::from(from.width);
            let (at_row, within) = (offset / row, offset % row);
            let base = host.offset + at_row as u64 * from.row_bytes(self.word);
            if to.channels == from.channels && within % channels == 0 {
                let shift = (within / channels) as u64 * pixel;
                let dense = |view: &View| view.rows == 1 || (u64::from(view.width) * pixel).is_multiple_of(word);
                let same_rows = to.width == from.width && within == 0;
                let one_row = to.rows == 1 && within / channels + i64::from(to.width) <= i64::from(from.width);
                if shift.is_multiple_of(word) && (same_rows || one_row || (dense(&from) && dense(&to))) {
                    return Some(Place { offset: base + shift, ..host });
                }
            }
            let full = |view: &View| {
                view.payload() as u64 == u64::from(view.pixel_bytes)
                    && (view.rows == 1 || (u64::from(view.width) * u64::from(view.pixel_bytes)).is_multiple_of(word))
            };
            let shift = offset as u64 * size;
            if full(&from) && full(&to) && from.channel_offset == 0 && shift.is_multiple_of(word) {
                return Some(Place { offset: host.offset + shift, pixel_bytes: to.pixel_bytes, ..host });
            }
        }
        // A range of channels of every pixel.
        let pixels = i64::from(from.rows) * i64::from(from.width);
        let count = i64::from(to.channels);
        let channel_range = match loops[..] {
            [(n, s), (c, 1)] => n == pixels && s == channels && c == count,
            [(c, 1)] if pixels == 1 => c == count,
            [(n, s)] => count == 1 && n == pixels && s == channels,
            _ => false,
        };
        let place = host.channel_offset as usize + (offset as u64 * size) as usize;
        // Pixels that fill words may be counted in other rows.
        let same_pixels = u64::from(to.rows) * u64::from(to.width) == pixels as u64
            && [&from, &to].iter().all(|view| view.rows == 1 || (u64::from(view.width) * pixel).is_multiple_of(word));
        if channel_range
            && ((to.rows, to.width) == (from.rows, from.width) || same_pixels)
            && offset + count <= channels
            && self.fits_channels(place, to.payload())
        {
            return Some(Place { channel_offset: place as u32, ..host });
        }
        None
    }
}

/// Whether an operator's unit can write its result anywhere a view describes.
fn writes_anywhere(op: &Op) -> bool {
    !matches!(op, Op::Embedding { .. })
}

/// The tensor in storage of its own.
pub(crate) fn natural(network: &Network, tensor: TensorId, word: usize) -> View {
    let tensor = network.tensor(tensor);
    View::whole(&tensor.shape, tensor.dtype, word, Space::Cache, 0)
}

/// Loops of extent over one, neighbours joined where they walk one stretch; at least one loop.
pub(crate) fn coalesced(dims: &[u32], strides: &[i64]) -> Vec<(i64, i64)> {
    let mut loops: Vec<(i64, i64)> = Vec::new();
    for (&extent, &stride) in dims.iter().zip(strides) {
        let extent = i64::from(extent);
        match loops.last_mut() {
            _ if extent == 1 => {}
            Some((n, s)) if *s == stride * extent => (*n, *s) = (*n * extent, stride),
            _ => loops.push((extent, stride)),
        }
    }
    if loops.is_empty() {
        loops.push((1, 1));
    }
    loops
}

#[cfg(test)]
mod tests {
    use tpuflow_ir::{Graph, Machine};

    use crate::budget::SearchBudget;
    use crate::common::{Net, window};
    use crate::context::PlanningContext;
    use crate::parameters::Parameters;

    fn placed<T>(graph: &Graph, look: impl Fn(&PlanningContext) -> T) -> T {
        let (machine, parameters) = (Machine::preset("128x128_asic").expect("known"), Parameters::o5());
        let budget = SearchBudget { seed: 0, steps: 1, deadline: None };
        look(&PlanningContext::new(graph, &machine, budget, &parameters).expect("a sound graph"))
    }

    /// A move writes anywhere, the array not in the middle of words that others write.
    #[test]
    fn moves_go_where_a_concatenation_wants_them() {
        let mut net = Net::new(3);
        let x = net.input(&[1, 14, 14, 150]);
        let parts = [net.slice(x, 3, 3, 2), net.slice(x, 3, 5, 81), net.slice(x, 3, 90, 60)];
        let read_twice = net.slice(x, 3, 7, 121);
        let made = net.conv(x, 121, window(1, 1, 0), 1);
        let y = net.concat(&[parts[0], parts[1], parts[2], made, read_twice], 3, usize::MAX);
        let z = net.unary(read_twice);
        let graph = net.finish(&[y, z]);
        let found = placed(&graph, |context| {
            [parts[0], parts[1], parts[2], made, read_twice].map(|tensor| context.placement.in_place(tensor, y))
        });
        assert_eq!(found, [true, true, true, false, false]);
    }

    #[test]
    fn what_is_only_reshaped_is_made_in_the_concatenation_behind() {
        let free = |width: usize, channels: usize, reshaped: &[usize]| {
            let mut net = Net::new(3);
            let x = net.input(&[1, 16, width, 48]);
            let made = net.conv(x, channels, window(1, 1, 0), 1);
            let flat = net.reshape(made, reshaped);
            let other = net.constant_like(flat, reshaped);
            let other = net.unary(other);
            let y = net.concat(&[flat, other], 1, usize::MAX);
            let graph = net.finish(&[y]);
            placed(&graph, |context| {
                let step = context.network.steps.iter().position(|step| step.output == flat);
                context.placement.in_place(flat, y) && context.placement.is_free(step.expect("a step"))
            })
        };
        assert!(free(16, 64, &[1, 256, 64]));
        // Rows of 15 pixels end inside a word.
        assert!(!free(15, 64, &[1, 240, 64]));
        // Other channels are other pixels of the same bytes, unless these have padding.
        assert!(free(16, 64, &[1, 512, 32]));
        assert!(!free(16, 48, &[1, 512, 24]));
    }

    /// Rows of a cache are loaded in front of the new ones, if these are as many, begin on a word, and nothing else reads them.
    #[test]
    fn inputs_are_loaded_to_their_place_in_a_concatenation() {
        let in_place = |past: usize, new: usize, channels: usize, is_read: bool| {
            let mut net = Net::new(3);
            let rows = net.input(&[1, 1, past, channels]);
            let x = net.input(&[1, 1, new, 24]);
            let made = net.conv(x, channels, window(1, 1, 0), 1);
            let y = net.concat(&[rows, made], 2, usize::MAX);
            let outputs = if is_read { vec![y, net.unary(rows)] } else { vec![y] };
            let graph = net.finish(&outputs);
            placed(&graph, |context| [rows, made].map(|tensor| context.placement.in_place(tensor, y)))
        };
        assert_eq!(in_place(16, 16, 256, false), [true, true]);
        assert_eq!(in_place(17, 16, 256, false), [false, true]);
        assert_eq!(in_place(16, 16, 256, true), [false, true]);
        // Two pixels are a word: of odd numbers of rows one word has both.
        assert_eq!(in_place(16, 16, 64, false), [true, true]);
        assert_eq!(in_place(15, 16, 64, false), [false, false]);
    }

    /// 48 channels are half a word by themselves, and a word of their own in pixels of 128.
    #[test]
    fn large_windows_are_not_pooled_into_wider_pixels() {
        let in_place = |kernel: u32| {
            let mut net = Net::new(3);
            let x = net.input(&[1, 14, 14, 48]);
            let beside = net.conv(x, 80, window(1, 1, 0), 1);
            let pooled = net.conv(x, 48, window(kernel, 1, kernel / 2), 48);
            let y = net.concat(&[beside, pooled], 3, 0);
            let graph = net.finish(&[y]);
            placed(&graph, |context| context.placement.in_place(pooled, y))
        };
        assert!(in_place(3));
        assert!(!in_place(7));
    }
}
