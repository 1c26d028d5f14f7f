//! The work that every program must do for a layer, counted from the operator, for the needed elements of its result alone.

use tpuflow_ir::Arithmetic::Float;
use tpuflow_ir::{Graph, Layer, Machine, Op, TensorId, View, layout, timing};

use crate::feed;
use crate::linear::{Linear, is_depthwise, is_plain, natural_view, streams};
use crate::live::{Elements, Live};
use crate::zeros::{Sparse, sparse};
use crate::{covers, moves};

/// Least work of a layer in every program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    pub array: u64,
    /// Of these, slots in which a pixel enters: what is left of them may pass while the feeder waits.
    pub entries: u64,
    /// Slots at the end of a tile of few pixels, which nobody needs to wait for.
    pub tail: u64,
    /// Slots of any of its instructions before those of the last K block.
    pub first: u64,
    /// Pixels of a layer whose columns differ in their weights alone, and K blocks of all of its tiles; else nothing.
    pub pixels: u64,
    pub rounds: u64,
    pub ewp: u64,
    pub pdp: u64,
    /// Words through the weight port.
    pub weights: u64,
    /// Cycles for all channels of one pixel: slots of the array, or of the pooling unit for one word.
    pub least: u64,
    /// Slots of the array behind that pixel in which none enters.
    pub empty: u64,
    /// Words read and written in the shared cache.
    pub words: u64,
}

/// A graph, and what is needed of it.
pub(super) struct LiveGraph<'a> {
    pub graph: &'a Graph,
    pub machine: &'a Machine,
    pub live: &'a Live,
    /// By tensor, the layer that makes it.
    pub producer: &'a [Option<usize>],
}

impl LiveGraph<'_> {
    /// The work of a layer.
    pub fn work(&self, layer: &Layer) -> Work {
        if *self.live.needed(layer.output) == Elements::None {
            return Work::default();
        }
        match Linear::of(&layer.op, self.graph).filter(|_| !is_depthwise(self.graph, &layer.op)) {
            Some(linear) => self.on_array(layer, &linear),
            None => self.beside_array(layer),
        }
    }

    fn bytes(&self, tensor: TensorId) -> u64 {
        let (elements, dtype) = (self.graph.tensor(tensor).elements(), self.graph.tensor(tensor).dtype);
        self.live.needed(tensor).count(elements) * dtype.bytes() as u64
    }

    /// Bytes of an operand of which none is left out.
    fn all_read(&self, layer: &Layer, operand: TensorId) -> u64 {
        if self.live.whole(layer.output) && reads_all(self.graph, &layer.op) {
            self.graph.tensor(operand).bytes() as u64
        } else {
            0
        }
    }

    fn on_array(&self, layer: &Layer, linear: &Linear) -> Work {
        let (graph, machine, op, output) = (self.graph, self.machine, &layer.op, layer.output);
        let (word, rows) = (machine.word() as u64, u64::from(machine.array.rows));
        let input = natural_view(graph, linear.input, machine.word());
        let right = graph.tensor(linear.right);
        let pixels = graph.tensor(output).elements() as u64 / u64::from(linear.columns() * linear.leads).max(1);
        let passes = timing::passes(input.dtype, right.dtype);
        let phases = timing::phases(input.dtype, right.dtype);
        let whole = self.live.whole(output);
        let mut work = Work::default();
        if whole {
            work.weights = (right.bytes() as u64).div_ceil(word);
        }
        work.words = work.weights + (self.all_read(layer, linear.input) + self.bytes(output)) / word;
        if let Some(Sparse { products, elements }) = sparse(graph, self.producer, layer) {
            let array = rows * u64::from(machine.array.columns);
            work.array = if whole { products.div_ceil(array).max(1) * passes } else { 1 };
            work.entries = work.array;
            work.words = work.weights + (elements.min(self.all_read(layer, linear.input)) + self.bytes(output)) / word;
            work.least = 1;
            return work;
        }
        let slots = timing::tile_slots(pixels, machine);
        let tiles = linear.blocks(&input, right.dtype, machine);
        let (count, blocks) = (tiles.len() as u64, tiles.iter().sum::<u64>());
        let fewest = tiles.iter().min().copied().unwrap_or(0);
        let first = fewest * timing::tiles_per_block(input.dtype, right.dtype);
        work.first = first.saturating_sub(1) * timing::tile_slots(1, machine) * phases;
        work.empty = (timing::tile_slots(1, machine) - 1) * phases;
        work.least = blocks * passes * timing::tile_slots(1, machine) - work.empty;
        if let Elements::Some(there) = self.live.needed(output) {
            let fewest = if linear.is_grouped() { 1 } else { fewest };
            work.array = fewest * passes * some_slots(there, linear, machine);
            work.tail = rows * phases;
            return work;
        }
        work.tail = (slots - pixels.min(slots)) * phases;
        if is_plain(op, graph) && linear.leads == 1 {
            (work.pixels, work.rounds) = (pixels, blocks * passes);
        }
        work.array = blocks * passes * slots * u64::from(linear.leads);
        work.entries = blocks * passes * pixels * u64::from(linear.leads);
        // Of smaller images the gates speak: halves may hide stalls in empty slots.
        let large = pixels >= 2 * rows;
        if large && is_plain(op, graph) && passes == 1 && phases == 1 && linear.leads == 1 {
            let descriptor = linear.descriptor(right.dtype);
            let list = timing::blocks(&descriptor, &input, 0, linear.columns().min(machine.array.columns), machine);
            // In larger pixels, which may make for fewer stalls, there is at least a K block more.
            work.array += count * feed::stalls(&input, &linear.window, &list, machine).min(slots);
        }
        work
    }

    /// Work of the elementwise and the pooling unit.
    fn beside_array(&self, layer: &Layer) -> Work {
        let (graph, machine, op, output) = (self.graph, self.machine, &layer.op, layer.output);
        let ewp = &machine.ewp;
        let mut work = Work::default();
        if !moves(op) && !matches!(op, Op::Embedding { .. }) {
            let inputs: u64 = streams(graph, op).iter().map(|&t| self.all_read(layer, t)).sum();
            work.words = (self.bytes(output) + inputs.min(self.bytes(output))) / machine.word() as u64;
        }
        match op {
            Op::Conv { window, input, .. } | Op::MaxPool { window, input } | Op::AveragePool { window, input, .. } => {
                let steps = |words| timing::pool_steps(words, graph.tensor(*input).dtype, graph.tensor(output).dtype);
                let taps = u64::from(window.kernel[0] * window.kernel[1]).div_ceil(machine.pdp.taps.into());
                // The average of a whole image may as well be a sum, made by the elementwise unit.
                let shape = &graph.tensor(*input).shape;
                let whole = window.pads == [0; 4] && window.kernel.map(|k| k as usize) == [shape[1], shape[2]];
                if whole && matches!(op, Op::AveragePool { .. }) {
                    // All of the image is there before the window over it, or before the last stretch of the sum, begins.
                    let (pdp, ewp) = (machine.pdp.start + machine.pdp.latency, machine.ewp.start + machine.ewp.latency);
                    work.least = (pdp + taps * steps(1)).min(ewp + 1) - pdp.min(ewp);
                } else {
                    let compute = steps(self.bytes(output).div_ceil(machine.word() as u64)) * taps;
                    (work.pdp, work.least) = (self.pooling(layer, *input, window, compute), taps * steps(1));
                }
            }
            Op::Reduce { input, .. } | Op::ArgMax { input, .. } => {
                let results = graph.tensor(output).elements().max(1) as u64;
                let of = graph.tensor(*input).elements() as u64 / results;
                let elements = self.live.needed(output).count(graph.tensor(output).elements()) * of;
                work.ewp = self.elementwise(*input, elements, ewp.reduce + ending(op, machine));
            }
            Op::Concat { inputs, requants, .. } if self.live.whole(output) => {
                let changed = inputs.iter().zip(requants).filter(|(_, requant)| requant.is_some());
                let elements = |&t: &TensorId| graph.tensor(t).elements() as u64;
                work.ewp = changed.map(|(t, _)| elements(t).div_ceil(ewp.lanes.into()) * ewp.r#move).sum();
            }
            Op::Softmax { .. }
            | Op::LayerNorm { .. }
            | Op::Binary { .. }
            | Op::Unary { .. }
            | Op::Rescale { .. }
            | Op::Quantize { .. }
            | Op::Dequantize { .. }
            | Op::PRelu { .. }
            | Op::ResizeLinear { .. }
            | Op::Select { .. } => {
                let rate = match op {
                    Op::Softmax { .. } => ewp.softmax,
                    Op::LayerNorm { center: true, .. } => ewp.layer_norm,
                    Op::LayerNorm { .. } => ewp.rms_norm,
                    Op::ResizeLinear { .. } => ewp.bilinear,
                    _ => ewp.r#move,
                };
                let needed = self.live.needed(output).count(graph.tensor(output).elements());
                let elements = match op {
                    Op::Softmax { .. } | Op::LayerNorm { .. } => self.with_padding(output, needed),
                    _ => needed,
                };
                work.ewp = self.elementwise(output, elements, rate + ending(op, machine));
            }
            _ => {}
        }
        work
    }

    /// So many elements of a tensor and what their pixels have besides: an operator over channels takes pixels whole, each in words
    /// of its own or in a part of one that is a power of two.
    fn with_padding(&self, tensor: TensorId, elements: u64) -> u64 {
        let tensor = self.graph.tensor(tensor);
        let channels = tensor.shape.last().map_or(1, |&channels| channels.max(1));
        let pixel = layout::pixel_bytes(channels * tensor.dtype.bytes(), self.machine.word());
        elements.div_ceil(channels as u64) * (pixel / tensor.dtype.bytes()) as u64
    }

    /// Cycles of the elementwise unit for so many elements of a tensor. Where its channels fill no whole words they may still be
    /// taken in parts that lie densely.
    fn elementwise(&self, tensor: TensorId, elements: u64, rate: u64) -> u64 {
        let slow = if self.graph.tensor(tensor).dtype.bytes() == 4 { 2 } else { 1 };
        elements.div_ceil(self.machine.ewp.lanes.into()) * rate * slow
    }

    /// Cycles of the pooling unit, whose lanes are busy for `compute`.
    fn pooling(&self, layer: &Layer, input: TensorId, window: &tpuflow_ir::Window, compute: u64) -> u64 {
        let (machine, word) = (self.machine, self.machine.word() as u64);
        if !self.live.whole(layer.output) {
            return compute;
        }
        match sparse(self.graph, self.producer, layer) {
            Some(Sparse { products, .. }) => {
                let size = self.graph.tensor(input).dtype.bytes() as u64;
                (products * size / (word * u64::from(machine.pdp.taps)).max(1)).min(compute)
            }
            None => compute.max(lines(&natural_view(self.graph, input, machine.word()), window, machine)),
        }
    }
}

/// Slots of a K block in all column tiles that together hold what is needed: of every tile at least those of its column with most
/// pixels, whichever columns are taken together.
fn some_slots(there: &[bool], linear: &Linear, machine: &Machine) -> u64 {
    let columns = linear.columns() as usize;
    let lead = there.len() / linear.leads.max(1) as usize;
    let of = |lead: &[bool]| {
        let pixels = |column: usize| lead.iter().skip(column).step_by(columns).filter(|&&there| there).count() as u64;
        let mut most: Vec<u64> = (0..columns).map(pixels).filter(|&pixels| pixels > 0).collect();
        most.sort_unstable_by(|a, b| b.cmp(a));
        let tiles = most.iter().step_by(machine.array.columns as usize);
        tiles.map(|&pixels| timing::tile_slots(pixels, machine)).sum::<u64>()
    };
    there.chunks(lead.max(1)).map(of).sum::<u64>()
}

/// Whether every element of the operands matters: strides wider than the window leave some out.
pub(super) fn reads_all(graph: &Graph, op: &Op) -> bool {
    match op {
        Op::Conv { window, input, .. } | Op::MaxPool { window, input } | Op::AveragePool { window, input, .. } => {
            covers(window, &graph.tensor(*input).shape)
        }
        _ => true,
    }
}

/// Cycles per `ewp.lanes` elements of the function a float operator of the elementwise unit ends in.
fn ending(op: &Op, machine: &Machine) -> u64 {
    let finish = match op {
        Op::Softmax { exponentials: Float(finish), .. }
        | Op::Binary { requant: Float(finish), .. }
        | Op::Unary { function: Float(finish), .. }
        | Op::Rescale { requant: Float(finish), .. }
        | Op::Dequantize { finish, .. } => finish,
        Op::LayerNorm { norm: Float(norm), .. } => &norm.finish,
        Op::PRelu { slopes: Float(slopes), .. } => &slopes.finish,
        Op::Reduce { requant: Float(reduction), .. } => &reduction.finish,
        _ => return 0,
    };
    finish.function.as_ref().map_or(0, |function| timing::function_cycles(function, machine))
}

/// Cycles of the pooling unit to read the lines under all windows: neighbouring words come from the same bank, which serves one
/// a cycle, but for those where a line ends (of each part of its channels that may lie apart) or a bank does.
fn lines(input: &View, window: &tpuflow_ir::Window, machine: &Machine) -> u64 {
    let Some([height, _]) = window.output(input.height as usize, input.width as usize) else { return 0 };
    let word = machine.word() as u64;
    let line = u64::from(input.width) * input.payload() as u64 / word;
    // Whole words of channels, and what is left in parts of powers of two.
    let parts = input.payload() as u64 / word + u64::from(word.ilog2());
    let apart = parts + line.div_ceil(machine.cache.words.into());
    let count = |row: i64| {
        let top = row * i64::from(window.stride[0]) - i64::from(window.pads[0]);
        let tap = |k: &u32| (0..i64::from(input.height)).contains(&(top + i64::from(k * window.dilation[0])));
        (0..window.kernel[0]).filter(tap).count() as u64
    };
    let images = u64::from(input.rows / input.height.max(1));
    images * (0..height as i64).map(count).sum::<u64>() * line.saturating_sub(apart)
}
