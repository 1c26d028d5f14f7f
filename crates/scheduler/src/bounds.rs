//! Lower bounds of the makespan: cycles no program of a graph on a machine can do with less.
//!
//! What every program must do is counted per layer ([`Work`]): slots of the array, cycles of the elementwise and the pooling
//! unit, constants brought in from DDR. It is counted in natural layouts, which no storage inside a wider tensor undercuts; moves
//! of elements count nothing, since some program may have produced them in place. Operators run on the unit of the operator
//! table, and every layer is computed in full.
//!
//! * `array`, `ewp`, `pdp`: a unit does one thing at a time.
//! * `ddr`: a channel moves so many bytes a cycle and opens each page it touches at least once; constants may be split over the
//!   channels in the best way, inputs and outputs only where they may lie.
//! * `ports`: weights pass the port word by word; a bank serves one word a cycle.
//! * `flow`: nothing downstream of a layer can start on the array before all constants of that layer, and of everything it needs
//!   all channels of, are there. After that the array still has all of the downstream work to do.
//! * `segment`: past a reduction over the whole image whose consumers need all of its channels, nothing overlaps what came
//!   before; what the busiest unit does in each of the segments adds up.
//! * `path`: along a chain of layers every one needs at least its latency, and all of its time where it reduces over space.

use tpuflow_ir::Arithmetic::{Fixed, Float};
use tpuflow_ir::isa::{ChannelParameters, FLOAT_NORM_BYTES, MatrixDescriptor, NormParameters, Slope};
use tpuflow_ir::program::LayerSummary;
use tpuflow_ir::{Bounds, DType, Graph, Machine, Op, TensorId, Unit, View, timing};

use crate::lower::{Linear, is_depthwise};
use crate::network::Network;
use crate::placement::natural;
use crate::summary::unit_of;

/// What a layer costs every program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Work {
    array: u64,
    /// Slots at the end of a tile of few pixels, which nobody needs to wait for.
    tail: u64,
    ewp: u64,
    pdp: u64,
    /// Words through the weight port.
    weights: u64,
    /// Bytes of constants from DDR.
    constants: u64,
    /// Words read and written in the shared cache.
    words: u64,
}

/// Who depends on whom.
struct Relations {
    /// By layer: all layers it depends on.
    ancestors: Vec<Vec<bool>>,
    /// By layer: those of which it needs all channels of at least one pixel before anything can start.
    channels: Vec<Vec<bool>>,
}

/// Bounds of the network; fills in those of the layers.
pub(crate) fn bounds(graph: &Graph, network: &Network, machine: &Machine, layers: &mut [LayerSummary]) -> Bounds {
    let works: Vec<Work> = graph.layers.iter().map(|layer| work(network, &layer.op, layer.output, machine)).collect();
    for (layer, work) in layers.iter_mut().zip(&works) {
        let parts = [
            ("array", work.array),
            ("ddr", split(work.constants, machine)),
            ("ewp", work.ewp),
            ("pdp", work.pdp),
            ("ports", work.weights.max(work.words.div_ceil(machine.cache.banks.into()))),
        ];
        let mut best = parts[0];
        for part in parts {
            if part.1 > best.1 {
                best = part;
            }
        }
        (layer.binding, layer.bound) = (best.0.to_owned(), best.1);
    }
    let sum = |part: fn(&Work) -> u64| works.iter().map(part).sum::<u64>();
    let start = machine.control.start;
    let after = |cycles: u64, before: u64| if cycles > 0 { start + before + cycles } else { 0 };
    let (array, ewp, pdp) = (sum(|w| w.array), sum(|w| w.ewp), sum(|w| w.pdp));
    let fill = machine.control.issue_cold + machine.array.setup + u64::from(machine.array.rows);
    let depth = timing::array_depth(machine);
    let relations = relations(graph, network);
    Bounds {
        array: after(array, fill + depth).saturating_sub(works.iter().map(|w| w.tail).max().unwrap_or(0)),
        ddr: ddr(graph, &works, machine),
        ewp: after(ewp, machine.ewp.start + machine.ewp.latency),
        pdp: after(pdp, machine.pdp.start + machine.pdp.latency),
        ports: after(sum(|w| w.weights), 0).max(after(sum(|w| w.words).div_ceil(machine.cache.banks.into()), 0)),
        flow: flow(graph, &works, &relations, machine),
        segment: segment(graph, network, &works, &relations, machine),
        path: path(graph, network, &works, machine),
    }
}

fn payload(network: &Network, tensor: TensorId) -> u64 {
    network.tensor(tensor).bytes() as u64
}

/// Cycles of the elementwise unit for the elements of a view in whole words.
fn elementwise(view: &View, rate: u64, machine: &Machine) -> u64 {
    let bytes = view.row_bytes(machine.word()) * u64::from(view.rows);
    let elements = bytes / view.dtype.bytes() as u64;
    let slow = if view.dtype.bytes() == 4 { 2 } else { 1 };
    elements.div_ceil(machine.ewp.lanes.into()) * rate * slow
}

fn work(network: &Network, op: &Op, output: TensorId, machine: &Machine) -> Work {
    let word = machine.word() as u64;
    let mut work = Work { constants: constants(network, op), ..Work::default() };
    let out = natural(network, output, machine.word());
    if let Some(linear) = Linear::of(op, network)
        && !is_depthwise(network, op)
    {
        let input = natural(network, linear.input, machine.word());
        let right = network.tensor(linear.right);
        let pixels = network.tensor(output).elements() as u64 / u64::from(linear.columns() * linear.leads).max(1);
        let blocks = |packed: u32| -> u64 {
            let descriptor = MatrixDescriptor {
                window: linear.window,
                group_in: linear.group_in,
                group_out: linear.group_out,
                input_zero: 0,
                weight_zero: 0,
                weight_dtype: right.dtype,
                codes: tpuflow_ir::isa::Codes { zero_point: 0, lo: 0, hi: 0 },
                table: None,
                float: None,
            };
            let tiles = linear.tiles(machine.array.columns, packed);
            tiles.iter().map(|&(c, n)| timing::blocks(&descriptor, &input, c, n, machine).len() as u64).sum()
        };
        let passes = timing::passes(input.dtype, right.dtype);
        let slots = timing::tile_slots(pixels, machine);
        work.tail = (slots - pixels.min(slots)) * timing::phases(input.dtype, right.dtype);
        work.array = blocks(linear.packing(&input, machine)) * passes * slots * u64::from(linear.leads);
        work.weights = (right.bytes() as u64).div_ceil(word);
        work.words = work.weights + (payload(network, linear.input) + payload(network, output)) / word;
        return work;
    }
    let ewp = &machine.ewp;
    let inputs: u64 = network.streams(op).iter().map(|&t| payload(network, t)).sum();
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
        work.words = (payload(network, output) + inputs.min(payload(network, output))) / word;
    }
    match op {
        Op::Conv { window, input, .. } | Op::MaxPool { window, input } | Op::AveragePool { window, input, .. } => {
            let taps = u64::from(window.kernel[0] * window.kernel[1]).div_ceil(machine.pdp.taps.into());
            let words = out.row_bytes(machine.word()) * u64::from(out.rows) / word;
            // An image that never fits may be averaged elsewhere, as a sum by stretches.
            let fits = payload(network, *input) <= machine.cache_bytes();
            if fits || !matches!(op, Op::AveragePool { .. }) {
                let compute = words * taps * network.tensor(*input).dtype.bytes() as u64;
                work.pdp = compute.max(lines(&natural(network, *input, machine.word()), window, machine));
            }
        }
        Op::Reduce { input, .. } | Op::ArgMax { input, .. } => {
            let from = natural(network, *input, machine.word());
            work.ewp = elementwise(&from, ewp.reduce + ending(op, machine), machine);
        }
        Op::ResizeLinear { .. } => work.ewp = elementwise(&out, ewp.bilinear, machine),
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
            work.ewp = elementwise(&out, rate + ending(op, machine), machine);
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
/// a cycle, but for those where a line ends or a bank does.
fn lines(input: &View, window: &tpuflow_ir::Window, machine: &Machine) -> u64 {
    let Some([height, _]) = window.output(input.height as usize, input.width as usize) else { return 0 };
    let line = input.row_bytes(machine.word()) / machine.word() as u64;
    let apart = 1 + line.div_ceil(machine.cache.words.into());
    let count = |row: i64| {
        let top = row * i64::from(window.stride[0]) - i64::from(window.pads[0]);
        let tap = |k: &u32| (0..i64::from(input.height)).contains(&(top + i64::from(k * window.dilation[0])));
        (0..window.kernel[0]).filter(tap).count() as u64
    };
    let images = u64::from(input.rows / input.height.max(1));
    images * (0..height as i64).map(count).sum::<u64>() * line.saturating_sub(apart)
}

/// Bytes of constants a layer cannot do without.
fn constants(network: &Network, op: &Op) -> u64 {
    let bytes = |t: TensorId| if network.is_constant(t) { payload(network, t) } else { 0 };
    let table = |t: &Option<tpuflow_ir::Table>| t.as_ref().map_or(0, |t| bytes(t.entries));
    let parameters = |input: TensorId, right: TensorId, channels: usize| {
        let wide = timing::wide(network.tensor(input).dtype, network.tensor(right).dtype);
        (channels * ChannelParameters::bytes(wide)) as u64
    };
    match op {
        Op::Conv { input, weights, epilogue, .. } => {
            let channels = network.tensor(*weights).shape[0];
            let table = epilogue.fixed().map_or(0, |e| table(&e.table));
            bytes(*weights) + parameters(*input, *weights, channels) + table
        }
        Op::MatMul { a, b, epilogue, .. } => {
            let columns = network.tensor(*b).shape.last().copied().unwrap_or(1);
            let table = epilogue.fixed().map_or(0, |e| table(&e.table));
            bytes(*b) + parameters(*a, *b, columns) + table
        }
        Op::Unary { function: Fixed(table), .. } => bytes(table.entries),
        Op::PRelu { slopes: Fixed(slopes), .. } => (slopes.negative_multiplier.len() * Slope::BYTES) as u64,
        Op::PRelu { slopes: Float(slopes), .. } => (slopes.negative.len() * DType::F32.bytes()) as u64,
        Op::LayerNorm { gamma, norm: Float(_), .. } => (network.tensor(*gamma).elements() * FLOAT_NORM_BYTES) as u64,
        Op::LayerNorm { gamma, .. } => (network.tensor(*gamma).elements() * NormParameters::BYTES) as u64,
        Op::Embedding { table, indices } => {
            let t = network.tensor(*table);
            (network.tensor(*indices).elements() * t.shape[1] * t.dtype.bytes()) as u64
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
    let used =
        |t: &&TensorId| graph.layers.iter().any(|l| !moves(&l.op) && reads_all(&l.op) && l.op.operands().contains(t));
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
fn reads_all(op: &Op) -> bool {
    match op {
        Op::Conv { window, .. } | Op::MaxPool { window, .. } | Op::AveragePool { window, .. } => {
            (0..2).all(|axis| window.stride[axis] <= window.kernel[axis] && window.dilation[axis] == 1)
        }
        _ => true,
    }
}

fn relations(graph: &Graph, network: &Network) -> Relations {
    let count = graph.layers.len();
    let producer: Vec<Option<usize>> = {
        let mut list = vec![None; graph.tensors.len()];
        for (index, layer) in graph.layers.iter().enumerate() {
            list[layer.output.index()] = Some(index);
        }
        list
    };
    let mut ancestors: Vec<Vec<bool>> = Vec::with_capacity(count);
    let mut channels: Vec<Vec<bool>> = Vec::with_capacity(count);
    for layer in &graph.layers {
        let (mut above, mut all) = (vec![false; count], vec![false; count]);
        let keeps = keeps_channels(network, &layer.op);
        for parent in layer.op.operands().iter().filter_map(|t| producer[t.index()]) {
            above[parent] = true;
            or(&mut above, &ancestors[parent]);
            if keeps {
                all[parent] = true;
                or(&mut all, &channels[parent]);
            }
        }
        ancestors.push(above);
        channels.push(all);
    }
    Relations { ancestors, channels }
}

fn or(mine: &mut [bool], theirs: &[bool]) {
    for (a, b) in mine.iter_mut().zip(theirs) {
        *a |= b;
    }
}

/// Whether all channels of an output pixel need all channels of at least one pixel of every operand.
fn keeps_channels(network: &Network, op: &Op) -> bool {
    match op {
        Op::Conv { window, .. } | Op::MaxPool { window, .. } | Op::AveragePool { window, .. } => {
            // A window inside the padding needs nothing at all.
            (0..4).all(|side| window.pads[side] <= (window.kernel[side % 2] - 1) * window.dilation[side % 2])
        }
        Op::MatMul { b, .. } => network.is_constant(*b),
        Op::Binary { a, b, .. } => network.tensor(*a).shape == network.tensor(*b).shape,
        Op::Unary { .. }
        | Op::Rescale { .. }
        | Op::Quantize { .. }
        | Op::Dequantize { .. }
        | Op::PRelu { .. }
        | Op::Softmax { .. }
        | Op::LayerNorm { .. } => true,
        _ => false,
    }
}

fn flow(graph: &Graph, works: &[Work], relations: &Relations, machine: &Machine) -> u64 {
    let begin = machine.control.start + machine.dma.start + machine.dma.latency;
    let total = |set: &dyn Fn(usize) -> bool, part: fn(&Work) -> u64| -> u64 {
        (0..works.len()).filter(|&i| set(i)).map(|i| part(&works[i])).sum()
    };
    let mut most = 0;
    for (layer, work) in works.iter().enumerate().filter(|(_, w)| w.array > 0) {
        let needed = work.constants + total(&|i| relations.channels[layer][i], |w| w.constants);
        // A tile of a grouped convolution needs the channels of its groups alone.
        let grouped = |i: usize| matches!(&graph.layers[i].op, Op::Conv { groups, .. } if *groups > 1);
        let after = |i: usize| relations.channels[i][layer] && !grouped(i);
        let tail = (0..works.len()).filter(|&i| after(i)).map(|i| works[i].tail).max().unwrap_or(0);
        let later = total(&after, |w| w.array) - tail;
        if later > 0 {
            most = most.max(begin + split(needed, machine) + later + timing::array_depth(machine));
        }
    }
    most
}

fn segment(graph: &Graph, network: &Network, works: &[Work], relations: &Relations, machine: &Machine) -> u64 {
    let mut total = 0;
    let mut before: Option<usize> = None;
    let busiest = |set: &dyn Fn(usize) -> bool| -> u64 {
        let sum = |part: fn(&Work) -> u64| (0..works.len()).filter(|&i| set(i)).map(|i| part(&works[i])).sum::<u64>();
        let tail = (0..works.len()).filter(|&i| set(i)).map(|i| works[i].tail).max().unwrap_or(0);
        (sum(|w| w.array) - tail).max(sum(|w| w.ewp)).max(sum(|w| w.pdp))
    };
    let below = |layer: usize, cut: Option<usize>| cut.is_none_or(|cut| relations.ancestors[layer][cut]);
    for cut in (0..works.len()).filter(|&i| is_cut(graph, network, i)) {
        if !below(cut, before) {
            continue;
        }
        let above = |i: usize| i == cut || relations.ancestors[cut][i];
        total += busiest(&|i| above(i) && below(i, before));
        before = Some(cut);
    }
    if before.is_none() {
        return 0;
    }
    machine.control.start + total + busiest(&|i| below(i, before))
}

/// Whether a layer reduces a whole image to one pixel that everything reading it needs all channels of.
fn is_cut(graph: &Graph, network: &Network, layer: usize) -> bool {
    let layer = &graph.layers[layer];
    let whole = match &layer.op {
        Op::Reduce { input, axes, .. } => {
            let x = &network.tensor(*input).shape;
            let kept = (0..x.len()).filter(|&i| !axes.contains(&(i as u32)) && x[i] > 1);
            kept.eq(std::iter::once(x.len() - 1))
        }
        Op::AveragePool { input, window, .. } => {
            let x = &network.tensor(*input).shape;
            x[0] == 1 && window.pads == [0; 4] && window.kernel.map(|k| k as usize) == [x[1], x[2]]
        }
        _ => false,
    };
    let readers = |l: &&tpuflow_ir::Layer| l.op.operands().contains(&layer.output);
    let linear = |l: &tpuflow_ir::Layer| {
        matches!(&l.op, Op::Conv { groups: 1, .. }) || matches!(&l.op, Op::MatMul { a, .. } if *a == layer.output)
    };
    whole && graph.layers.iter().any(|l| readers(&l)) && graph.layers.iter().filter(readers).all(linear)
}

fn path(graph: &Graph, network: &Network, works: &[Work], machine: &Machine) -> u64 {
    // Whatever is computed, something was loaded before; what is only looked at from another side takes no time.
    let loaded = machine.control.start + machine.dma.start + machine.dma.latency + 1;
    // By tensor: first element there, last element there.
    let mut times = vec![(0u64, 0u64); graph.tensors.len()];
    for (index, layer) in graph.layers.iter().enumerate() {
        let work = &works[index];
        let (latency, cycles) = match unit_of(network, &layer.op) {
            Unit::Me => (timing::array_depth(machine), work.array - work.tail),
            Unit::Pdp => (machine.pdp.start + machine.pdp.latency, work.pdp),
            _ if work.ewp > 0 => (machine.ewp.start + machine.ewp.latency, work.ewp),
            _ => (0, 0),
        };
        let operands = graph.activations(layer).map(|t| times[t.index()]);
        let (first, last) = operands.fold((0, 0), |(f, l), (first, last)| (f.max(first), l.max(last)));
        let whole = matches!(layer.op, Op::Reduce { .. });
        let begin = if whole { last } else { first }.max(if cycles > 0 { loaded } else { 0 });
        times[layer.output.index()] = (begin + latency, (begin + cycles).max(last) + latency);
    }
    let end = graph.outputs.iter().map(|t| times[t.index()].1).max().unwrap_or(0);
    if graph.layers.is_empty() { 0 } else { end }
}
