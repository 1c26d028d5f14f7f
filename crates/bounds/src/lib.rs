//! Lower bounds of the makespan: cycles no program of a graph on a machine can do with less.
//!
//! What every program must do is counted per layer ([`Work`]): slots of the array, cycles of the elementwise and the pooling
//! unit, constants brought in from DDR. The array's is counted in natural layouts, which no storage inside a wider tensor
//! undercuts, that of the other units in bytes, for channels that fill no whole words may lie densely in parts; moves
//! of elements count nothing, since some program may have produced them in place, unless they change the scale. Operators run on the unit of the operator
//! table, and every layer is computed in full.
//!
//! * `array`, `ewp`, `pdp`: a unit does one thing at a time. The array stands still where its feeder needs several words of a bank
//!   ([`feed`]).
//! * `ddr`: a channel moves so many bytes a cycle and opens each page it touches at least once; constants may be split over the
//!   channels in the best way, inputs and outputs only where they may lie.
//! * `ports`: weights pass the port word by word; a bank serves one word a cycle.
//! * `flow`: nothing downstream of a layer can start on the array before all constants of that layer, and of everything it needs
//!   all channels of, are there. After that the array still has all of the downstream work to do. And of constants that nobody
//!   uses before some moment, those the caches have no room for come after it.
//! * `segment`: what no unit can begin before some moment adds up after it, with what the array loses at small images ([`gates`]).
//! * `path`: along a chain of layers every one needs at least its latency and what a pixel takes, and all of its time where all
//!   of it must be done before the next begins. ([`chain`])

#![forbid(unsafe_code)]

mod chain;
mod feed;
mod gates;
mod last;
mod linear;

use chain::{Chains, begun};
use gates::is_plain;
use last::last;
use linear::{Linear, is_depthwise, natural, streams};
use tpuflow_ir::Arithmetic::{Fixed, Float};
use tpuflow_ir::isa::{ChannelParameters, FLOAT_NORM_BYTES, NormParameters, Slope};
use tpuflow_ir::{Bounds, DType, Graph, Machine, Op, TensorId, View, timing};

/// What a layer costs every program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Work {
    array: u64,
    /// Slots at the end of a tile of few pixels, which nobody needs to wait for.
    tail: u64,
    /// Slots of any of its instructions before those of the last K block.
    first: u64,
    /// Pixels of a layer whose columns differ in their weights alone, and K blocks of all of its tiles; else nothing.
    pixels: u64,
    rounds: u64,
    ewp: u64,
    pdp: u64,
    /// Words through the weight port.
    weights: u64,
    /// Cycles for all channels of one pixel: slots of the array, or of the pooling unit for one word.
    least: u64,
    /// Bytes of constants from DDR.
    constants: u64,
    /// Those among them that every pixel needs.
    packed: u64,
    /// Words read and written in the shared cache.
    words: u64,
}

/// Lower bounds of a graph on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphBounds {
    /// Of all of it.
    pub whole: Bounds,
    /// Of each layer alone.
    pub layers: Vec<LayerBound>,
}

/// Lower bound of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerBound {
    /// What binds: `array`, `ddr`, `ewp`, `pdp` or `ports`.
    pub binding: &'static str,
    /// Cycles.
    pub cycles: u64,
}

/// Bounds of a graph and of its layers.
#[must_use]
pub fn bounds(graph: &Graph, machine: &Machine) -> GraphBounds {
    let works: Vec<Work> = graph.layers.iter().map(|layer| work(graph, &layer.op, layer.output, machine)).collect();
    GraphBounds {
        whole: whole(graph, &works, machine),
        layers: works.iter().map(|work| alone(work, machine)).collect(),
    }
}

fn alone(work: &Work, machine: &Machine) -> LayerBound {
    let parts = [
        ("array", work.array),
        ("ddr", split(work.constants, machine)),
        ("ewp", work.ewp),
        ("pdp", work.pdp),
        ("ports", work.weights.max(work.words.div_ceil(machine.cache.banks.into()))),
    ];
    let (mut binding, mut cycles) = parts[0];
    for (name, part) in parts {
        if part > cycles {
            (binding, cycles) = (name, part);
        }
    }
    LayerBound { binding, cycles }
}

fn whole(graph: &Graph, works: &[Work], machine: &Machine) -> Bounds {
    let sum = |part: fn(&Work) -> u64| works.iter().map(part).sum::<u64>();
    let start = begun(machine);
    let after = |cycles: u64, before: u64| if cycles > 0 { start + before + cycles } else { 0 };
    let (array, ewp, pdp) = (sum(|w| w.array), sum(|w| w.ewp), sum(|w| w.pdp));
    let fill = machine.control.issue_cold + machine.array.setup + u64::from(machine.array.rows);
    let depth = timing::array_depth(machine);
    let chains = Chains::new(graph, works, machine);
    Bounds {
        array: after(array, fill + depth).saturating_sub(works.iter().map(|w| w.tail).max().unwrap_or(0)),
        ddr: ddr(graph, works, machine).max(last(graph, works, &chains, machine)),
        ewp: after(ewp, machine.ewp.start + machine.ewp.latency),
        pdp: after(pdp, machine.pdp.start + machine.pdp.latency),
        ports: after(sum(|w| w.weights), 0).max(after(sum(|w| w.words).div_ceil(machine.cache.banks.into()), 0)),
        flow: flow(graph, works, &chains, machine).max(chains.left_to_load()),
        segment: chains.makespan(),
        path: chains.times.iter().map(|times| times.all).max().unwrap_or(0),
    }
}

fn payload(graph: &Graph, tensor: TensorId) -> u64 {
    graph.tensor(tensor).bytes() as u64
}

/// Cycles of the elementwise unit for the elements of a tensor. Where its channels fill no whole words they may still be taken in
/// parts that lie densely.
fn elementwise(graph: &Graph, tensor: TensorId, rate: u64, machine: &Machine) -> u64 {
    let slow = if graph.tensor(tensor).dtype.bytes() == 4 { 2 } else { 1 };
    let elements = graph.tensor(tensor).elements() as u64;
    elements.div_ceil(machine.ewp.lanes.into()) * rate * slow
}

fn work(graph: &Graph, op: &Op, output: TensorId, machine: &Machine) -> Work {
    let word = machine.word() as u64;
    let constants = constants(graph, op);
    let packed = match op {
        Op::Embedding { .. } | Op::Binary { .. } | Op::Select { .. } => 0,
        _ => constants,
    };
    let mut work = Work { constants, packed, ..Work::default() };
    if let Some(linear) = Linear::of(op, graph)
        && !is_depthwise(graph, op)
    {
        let input = natural(graph, linear.input, machine.word());
        let right = graph.tensor(linear.right);
        let pixels = graph.tensor(output).elements() as u64 / u64::from(linear.columns() * linear.leads).max(1);
        let descriptor = linear.descriptor(right.dtype);
        let passes = timing::passes(input.dtype, right.dtype);
        let slots = timing::tile_slots(pixels, machine);
        work.tail = (slots - pixels.min(slots)) * timing::phases(input.dtype, right.dtype);
        let tiles = linear.blocks(&input, right.dtype, machine);
        let count = tiles.len() as u64;
        let blocks: u64 = tiles.iter().sum();
        let fewest = tiles.iter().min().map_or(0, |&blocks| blocks * timing::tiles_per_block(input.dtype, right.dtype));
        let phases = timing::phases(input.dtype, right.dtype);
        work.first = fewest.saturating_sub(1) * timing::tile_slots(1, machine) * phases;
        if is_plain(op, graph) && linear.leads == 1 {
            (work.pixels, work.rounds) = (pixels, blocks * passes);
        }
        work.array = blocks * passes * slots * u64::from(linear.leads);
        // Of smaller images the gates speak: halves may hide stalls in empty slots.
        let large = pixels >= 2 * u64::from(machine.array.rows);
        if large && is_plain(op, graph) && passes == 1 && phases == 1 && linear.leads == 1 {
            let list = timing::blocks(&descriptor, &input, 0, linear.columns().min(machine.array.columns), machine);
            // In larger pixels, which may make for fewer stalls, there is at least a K block more.
            work.array += count * feed::stalls(&input, &linear.window, &list, machine).min(slots);
        }
        let idle = (timing::tile_slots(1, machine) - 1) * timing::phases(input.dtype, right.dtype);
        work.least = blocks * passes * timing::tile_slots(1, machine) - idle;
        work.packed = constants / u64::from(linear.leads).max(1);
        work.weights = (right.bytes() as u64).div_ceil(word);
        work.words = work.weights + (payload(graph, linear.input) + payload(graph, output)) / word;
        return work;
    }
    let ewp = &machine.ewp;
    let inputs: u64 = streams(graph, op).iter().map(|&t| payload(graph, t)).sum();
    let computes = !matches!(
        op,
        Op::Concat { .. }
            | Op::Pad { .. }
            | Op::Rearrange { .. }
            | Op::Gather { .. }
            | Op::InsertZeros { .. }
            | Op::Embedding { .. }
    );
    if computes {
        work.words = (payload(graph, output) + inputs.min(payload(graph, output))) / word;
    }
    match op {
        Op::Conv { window, input, .. } | Op::MaxPool { window, input } | Op::AveragePool { window, input, .. } => {
            let taps = u64::from(window.kernel[0] * window.kernel[1]).div_ceil(machine.pdp.taps.into());
            let words = payload(graph, output).div_ceil(word);
            // The average of a whole image may as well be a sum, made by the elementwise unit.
            let shape = &graph.tensor(*input).shape;
            let whole = window.pads == [0; 4] && window.kernel.map(|k| k as usize) == [shape[1], shape[2]];
            if whole && matches!(op, Op::AveragePool { .. }) {
                // All of the image is there before the window over it, or before the last stretch of the sum, begins.
                let (pdp, ewp) = (machine.pdp.start + machine.pdp.latency, machine.ewp.start + machine.ewp.latency);
                let window = pdp + taps * graph.tensor(*input).dtype.bytes() as u64;
                work.least = window.min(ewp + 1) - pdp.min(ewp);
            } else {
                let compute = words * taps * graph.tensor(*input).dtype.bytes() as u64;
                work.least = taps * graph.tensor(*input).dtype.bytes() as u64;
                work.pdp = compute.max(lines(&natural(graph, *input, machine.word()), window, machine));
            }
        }
        Op::Reduce { input, .. } | Op::ArgMax { input, .. } => {
            work.ewp = elementwise(graph, *input, ewp.reduce + ending(op, machine), machine);
        }
        Op::Concat { inputs, requants, .. } => {
            let changed = inputs.iter().zip(requants).filter(|(_, requant)| requant.is_some());
            let elements = |&t: &TensorId| graph.tensor(t).elements() as u64;
            work.ewp = changed.map(|(t, _)| elements(t).div_ceil(ewp.lanes.into()) * ewp.r#move).sum();
        }
        Op::ResizeLinear { .. } => work.ewp = elementwise(graph, output, ewp.bilinear, machine),
        Op::Softmax { .. }
        | Op::LayerNorm { .. }
        | Op::Binary { .. }
        | Op::Unary { .. }
        | Op::Rescale { .. }
        | Op::Quantize { .. }
        | Op::Dequantize { .. }
        | Op::PRelu { .. }
        | Op::Select { .. } => {
            let rate = match op {
                Op::Softmax { .. } => ewp.softmax,
                Op::LayerNorm { center: true, .. } => ewp.layer_norm,
                Op::LayerNorm { .. } => ewp.rms_norm,
                _ => ewp.r#move,
            };
            work.ewp = elementwise(graph, output, rate + ending(op, machine), machine);
        }
        _ => {}
    }
    work
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

/// Bytes of constants a layer cannot do without.
fn constants(graph: &Graph, op: &Op) -> u64 {
    let bytes = |t: TensorId| if graph.tensor(t).constant.is_some() { payload(graph, t) } else { 0 };
    let table = |t: &Option<tpuflow_ir::Table>| t.as_ref().map_or(0, |t| bytes(t.entries));
    let parameters = |input: TensorId, right: TensorId, channels: usize| {
        let wide = timing::wide(graph.tensor(input).dtype, graph.tensor(right).dtype);
        (channels * ChannelParameters::bytes(wide)) as u64
    };
    match op {
        Op::Conv { input, weights, epilogue, .. } => {
            let channels = graph.tensor(*weights).shape[0];
            let table = epilogue.fixed().map_or(0, |e| table(&e.table));
            bytes(*weights) + parameters(*input, *weights, channels) + table
        }
        Op::MatMul { a, b, epilogue, .. } => {
            let columns = graph.tensor(*b).shape.last().copied().unwrap_or(1);
            let table = epilogue.fixed().map_or(0, |e| table(&e.table));
            bytes(*b) + parameters(*a, *b, columns) + table
        }
        Op::Unary { function: Fixed(table), .. } => bytes(table.entries),
        Op::PRelu { slopes: Fixed(slopes), .. } => (slopes.negative_multiplier.len() * Slope::BYTES) as u64,
        Op::PRelu { slopes: Float(slopes), .. } => (slopes.negative.len() * DType::F32.bytes()) as u64,
        Op::LayerNorm { gamma, norm: Float(_), .. } => (graph.tensor(*gamma).elements() * FLOAT_NORM_BYTES) as u64,
        Op::LayerNorm { gamma, .. } => (graph.tensor(*gamma).elements() * NormParameters::BYTES) as u64,
        Op::Embedding { table, indices } => {
            let t = graph.tensor(*table);
            (graph.tensor(*indices).elements() * t.shape[1] * t.dtype.bytes()) as u64
        }
        Op::Binary { a, b, .. } | Op::Select { a, b, .. } => bytes(*a) + if a == b { 0 } else { bytes(*b) },
        _ => 0,
    }
}

/// Cycles of one channel for `bytes`, every page opened once.
fn channel(bytes: u64, machine: &Machine) -> u64 {
    machine.ddr_cycles(bytes) + bytes.div_ceil(machine.ddr.page_bytes.max(1)) * machine.page_miss()
}

/// Cycles for `bytes` split over all channels in the best way.
fn split(bytes: u64, machine: &Machine) -> u64 {
    channel(bytes.div_ceil(machine.ddr.channels.into()), machine)
}

fn ddr(graph: &Graph, works: &[Work], machine: &Machine) -> u64 {
    let constants: u64 = works.iter().map(|w| w.constants).sum();
    let used = |t: &&TensorId| {
        graph.layers.iter().any(|l| !moves(&l.op) && reads_all(graph, &l.op) && l.op.operands().contains(t))
    };
    let mut outputs: Vec<TensorId> = graph.outputs.clone();
    outputs.sort_unstable();
    outputs.dedup();
    outputs.retain(|&t| graph.layers.iter().any(|l| l.output == t && !moves(&l.op)));
    let ports: u64 = graph.inputs.iter().filter(used).chain(&outputs).map(|&t| graph.tensor(t).bytes() as u64).sum();
    let best = split(constants + ports, machine);
    // Ports lie in the first address space, one channel of it unless all are interleaved.
    let first = if machine.ddr_spaces() > 1 { channel(ports, machine) } else { 0 };
    let cycles = best.max(first);
    if cycles > 0 { machine.control.start + machine.dma.start + machine.dma.latency + cycles } else { 0 }
}

/// Operators whose result may be where it is without anything being written for it.
fn moves(op: &Op) -> bool {
    matches!(op, Op::Concat { .. } | Op::Pad { .. } | Op::Rearrange { .. } | Op::Gather { .. } | Op::InsertZeros { .. })
}

/// Whether every element of the operands matters: strides wider than the window leave some out.
fn reads_all(graph: &Graph, op: &Op) -> bool {
    match op {
        Op::Conv { window, input, .. } | Op::MaxPool { window, input } | Op::AveragePool { window, input, .. } => {
            covers(window, &graph.tensor(*input).shape)
        }
        _ => true,
    }
}

/// Whether every pixel of an operand `[n, h, w, c]` lies under some window.
fn covers(window: &tpuflow_ir::Window, shape: &[usize]) -> bool {
    let &[_, height, width, _] = shape else { return false };
    let Some(output) = window.output(height, width) else { return false };
    [height, width].into_iter().zip(output).enumerate().all(|(axis, (extent, count))| {
        let last = (count.max(1) - 1) * window.stride[axis] as usize + window.kernel[axis] as usize;
        let dense = window.stride[axis] <= window.kernel[axis] && window.dilation[axis] == 1;
        dense && last >= extent + window.pads[axis] as usize
    })
}

fn flow(graph: &Graph, works: &[Work], chains: &Chains, machine: &Machine) -> u64 {
    let begin = machine.control.start + machine.dma.start + machine.dma.latency;
    let total = |set: &dyn Fn(usize) -> bool, part: fn(&Work) -> u64| -> u64 {
        (0..works.len()).filter(|&i| set(i)).map(|i| part(&works[i])).sum()
    };
    let mut most = 0;
    for (layer, work) in works.iter().enumerate().filter(|(_, w)| w.array > 0) {
        let needed = work.packed + total(&|i| chains.channels[layer][i], |w| w.packed);
        // A tile of a grouped convolution needs the channels of its groups alone.
        let grouped = |i: usize| matches!(&graph.layers[i].op, Op::Conv { groups, .. } if *groups > 1);
        let after = |i: usize| chains.channels[i][layer] && !grouped(i);
        let tail = (0..works.len()).filter(|&i| after(i)).map(|i| works[i].tail).max().unwrap_or(0);
        let later = total(&after, |w| w.array) - tail;
        if later > 0 {
            most = most.max(begin + split(needed, machine) + later + timing::array_depth(machine));
        }
    }
    most
}
