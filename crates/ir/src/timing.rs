//! Closed forms of the machine's timing laws: what the scheduler's cost model and the simulator share.
//!
//! `docs/machine.md` states the laws. Everything here is a count of cycles or words of one instruction in isolation; how
//! instructions meet at banks, channels and tokens is the simulator's business.

use std::ops::Range;

use crate::isa::{
    Descriptor, Expand, FloatFunction, FloatOutput, Lookup, Matrix, MatrixDescriptor, PackedLookup, Pool,
    PoolDescriptor, Transfer, Vector, VectorOp,
};
use crate::{DType, Machine, View};

/// Passes over the array: byte-sliced multipliers take one pass per pair of bytes.
#[must_use]
pub fn passes(input: DType, weights: DType) -> u64 {
    (input.bytes() * weights.bytes()) as u64
}

/// Cycles a pixel of a tile takes: the PEs gather a float product byte by byte while its operands stand still; of integers
/// every pass is a tile of its own.
#[must_use]
pub fn phases(input: DType, weights: DType) -> u64 {
    if input.is_float() { passes(input, weights) } else { 1 }
}

/// Tiles streamed for a K block.
#[must_use]
pub fn tiles_per_block(input: DType, weights: DType) -> u64 {
    passes(input, weights) / phases(input, weights)
}

/// Whether sums need 48 bits; those of floats are float32.
#[must_use]
pub fn has_wide_sums(input: DType, weights: DType) -> bool {
    !input.is_float() && input.bytes().max(weights.bytes()) > 1
}

/// One K block: the lanes of one row vector, as a contiguous range of weight rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// First window tap (`kh * kernel_width + kw`).
    pub first_tap: u32,
    /// Number of taps; one when a pixel takes a word or more.
    pub taps: u32,
    /// First input channel (over all groups).
    pub first_channel: u32,
    /// Input channels per tap.
    pub channels: u32,
    /// Word of the pixel these channels lie in (0 when several taps share a word).
    pub word: u32,
}

/// The K blocks of a tile with output channels `first_column .. first_column + columns`.
///
/// For pixels smaller than a word a block is `W / pixel_bytes` whole taps; else one word of one tap. Grouped convolutions
/// visit only the words that hold channels of the tile's groups.
#[must_use]
pub fn blocks(
    descriptor: &MatrixDescriptor,
    input: &View,
    first_column: u32,
    columns: u32,
    machine: &Machine,
) -> Vec<Block> {
    let word = machine.cache.word_bytes;
    let taps = descriptor.window.kernel[0] * descriptor.window.kernel[1];
    let groups = first_column / descriptor.group_out..(first_column + columns - 1) / descriptor.group_out + 1;
    let channels = groups.start * descriptor.group_in..groups.end * descriptor.group_in;
    if input.pixel_bytes < word {
        let per_block = word / input.pixel_bytes;
        return (0..taps.div_ceil(per_block))
            .map(|i| Block {
                first_tap: i * per_block,
                taps: per_block.min(taps - i * per_block),
                first_channel: channels.start,
                channels: channels.end - channels.start,
                word: 0,
            })
            .collect();
    }
    let size = input.dtype.bytes() as u32;
    let byte = |channel: u32| input.channel_offset + channel * size;
    let mut list = Vec::new();
    for tap in 0..taps {
        for slot in byte(channels.start) / word..byte(channels.end).div_ceil(word) {
            let first = channels.start.max((slot * word).saturating_sub(input.channel_offset).div_ceil(size));
            let last = channels.end.min(((slot + 1) * word - input.channel_offset).div_ceil(size));
            if first < last {
                list.push(Block { first_tap: tap, taps: 1, first_channel: first, channels: last - first, word: slot });
            }
        }
    }
    list
}

/// Cycles a tile of `rows` activation rows occupies the array: never less than the shift-in of the next tile's weights.
#[must_use]
pub fn tile_slots(rows: u64, machine: &Machine) -> u64 {
    rows.max(u64::from(machine.array.rows))
}

/// Array slots of a matrix instruction: K blocks x passes x tile slots.
#[must_use]
pub fn matrix_slots(matrix: &Matrix, descriptor: &MatrixDescriptor, machine: &Machine) -> u64 {
    let count = blocks(descriptor, &matrix.input, matrix.first_column, matrix.columns, machine).len() as u64;
    count * passes(matrix.input.dtype, descriptor.weight_dtype) * tile_slots(u64::from(matrix.pixels), machine)
}

/// Cycles from a row's entry to its result at the output pipe.
#[must_use]
pub fn array_depth(machine: &Machine) -> u64 {
    u64::from(machine.array.rows) + u64::from(machine.array.columns) + 1
}

/// Groups a depthwise or grouped tile packs block-diagonally: `max(1, R / max(Cin_g, Cout_g))` of them.
#[must_use]
pub fn groups_per_tile(group_in: u32, group_out: u32, machine: &Machine) -> u32 {
    (machine.array.columns / group_in.max(group_out)).max(1)
}

/// First word of a pixel that holds channels of a view, and how many do. Less than all of them where a narrow tensor lies in
/// pixels of several words.
#[must_use]
pub fn pixel_words(view: &View, word: usize) -> (u64, u64) {
    let (start, word) = (u64::from(view.channel_offset), word as u64);
    let first = start / word;
    (first, (start + view.payload() as u64).div_ceil(word) - first)
}

/// Words of a view's rows that hold its channels.
#[must_use]
pub fn view_words(view: &View, rows: u64, machine: &Machine) -> u64 {
    if view.pixel_bytes > machine.cache.word_bytes {
        return rows * u64::from(view.width) * pixel_words(view, machine.word()).1;
    }
    rows * view.row_bytes(machine.word()) / u64::from(machine.cache.word_bytes)
}

/// Cycles, words read (per operand) and words written by an instruction of the elementwise or pooling unit.
///
/// Read `i` of a stream of `n` falls due in cycle `floor(i * cycles / n)` of the unit's own time, which stands still while a
/// bank refuses an access; write `i` in cycle `ceil((i + 1) * cycles / n) - 1 + latency`, when its share of the work has passed
/// through. Alone and without refusals an instruction takes `start + cycles + latency`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Streams {
    /// Busy cycles without start-up, latency and conflicts.
    pub cycles: u64,
    /// Words read per operand.
    pub reads: Vec<u64>,
    /// Words written.
    pub writes: u64,
}

/// Streams of a pooling instruction: `ceil(taps / pdp.taps)` cycles for as many results as a word has elements of the input; every
/// input word of the rows a window covers is read once per kernel row it serves.
#[must_use]
pub fn pool(pool: &Pool, descriptor: &PoolDescriptor, machine: &Machine) -> Streams {
    let window = &descriptor.window;
    let taps = u64::from(window.kernel[0] * window.kernel[1]);
    let writes = view_words(&pool.output, u64::from(pool.rows), machine);
    let mut lines = 0;
    let out_height = output_height(&pool.output);
    for row in pool.first_row..pool.first_row + pool.rows {
        let top = i64::from(row % out_height) * i64::from(window.stride[0]) - i64::from(window.pads[0]);
        lines += window.inside(0, top, pool.input.height).len() as u64;
    }
    let reads = view_words(&pool.input, lines, machine);
    let compute = pool_steps(writes, pool.input.dtype, pool.output.dtype) * taps.div_ceil(u64::from(machine.pdp.taps));
    let cycles = compute.max(reads.div_ceil(u64::from(machine.feeder.words))).max(writes);
    Streams { cycles, reads: vec![reads], writes }
}

/// Steps in which the lanes of the pooling unit make `words` words of results: a lane multiplies a byte of the input,
/// so that how wide the results are does not count.
#[must_use]
pub fn pool_steps(words: u64, input: DType, output: DType) -> u64 {
    (words * input.bytes() as u64).div_ceil(output.bytes() as u64)
}

fn output_height(view: &View) -> u32 {
    view.height.max(1)
}

/// Streams of an elementwise instruction.
#[must_use]
pub fn vector(vector: &Vector, op: &VectorOp, machine: &Machine) -> Streams {
    let ewp = &machine.ewp;
    let rate = match op {
        VectorOp::ResizeLinear { .. } => ewp.bilinear,
        // Of its three passes, the largest code and the sum are made before.
        VectorOp::Softmax { .. } if op.has_statistics(vector) => ewp.r#move,
        VectorOp::Softmax { .. } => ewp.softmax,
        VectorOp::LayerNorm { center, .. } | VectorOp::SharedLayerNorm { center, .. } => {
            if *center {
                ewp.layer_norm
            } else {
                ewp.rms_norm
            }
        }
        VectorOp::Reduce { .. } | VectorOp::ArgMax { .. } | VectorOp::SoftmaxStatistics { .. } => ewp.reduce,
        VectorOp::Float { function, output } => float_rate(function, output, machine),
        _ => ewp.r#move,
    };
    let word = u64::from(machine.cache.word_bytes);
    let out_words = view_words(&vector.output, u64::from(vector.rows), machine);
    let whole = |view: &View| view_words(view, u64::from(view.stored_rows), machine);
    let share = |n: u64, part: u64, of: u64| (n * part).div_ceil(of.max(1));
    let (reads, writes): (Vec<u64>, u64) = match op {
        _ if op.reduces() => (vector.inputs.iter().map(whole).collect(), whole(&vector.output)),
        VectorOp::ArgMax { .. } => (vec![view_words(&vector.inputs[0], u64::from(vector.rows), machine)], out_words),
        VectorOp::Move { dims, .. } => {
            let inner: u64 = dims.iter().skip(1).map(|&d| u64::from(d)).product();
            let bytes = u64::from(vector.rows) * inner;
            (
                vec![(bytes * vector.inputs[0].dtype.bytes() as u64).div_ceil(word)],
                (bytes * vector.output.dtype.bytes() as u64).div_ceil(word),
            )
        }
        VectorOp::Gather { inner, .. } => {
            let bytes = u64::from(vector.rows) * u64::from(*inner) * vector.output.dtype.bytes() as u64;
            (vec![bytes.div_ceil(word)], bytes.div_ceil(word))
        }
        _ => {
            let reads = vector
                .inputs
                .iter()
                .map(|v| {
                    if v.rows == vector.output.rows {
                        view_words(v, u64::from(vector.rows), machine)
                    } else {
                        share(whole(v), u64::from(vector.rows), u64::from(vector.output.rows)).max(1)
                    }
                })
                .collect();
            (reads, out_words)
        }
    };
    let size = |view: &View| if view.dtype.bytes() == 4 { 2 } else { 1 };
    let main = reads.first().copied().unwrap_or(0) * word / vector.inputs.first().map_or(1, |v| v.dtype.bytes() as u64);
    let result = writes * word / vector.output.dtype.bytes() as u64;
    let elements = match op {
        VectorOp::ArgMax { .. } | VectorOp::SoftmaxStatistics { .. } => main,
        _ if op.reduces() => main,
        _ => result,
    };
    let slow = vector.inputs.iter().map(size).chain([size(&vector.output)]).max().unwrap_or(1);
    let compute = elements.div_ceil(u64::from(ewp.lanes)) * rate * slow;
    let cycles = compute.max(reads.iter().sum::<u64>().div_ceil(2)).max(writes);
    Streams { cycles, reads, writes }
}

/// Cycles per `ewp.lanes` elements of a float operator and the function it ends in.
#[must_use]
pub fn float_rate(function: &FloatFunction, output: &FloatOutput, machine: &Machine) -> u64 {
    let ewp = &machine.ewp;
    let rate = match function {
        FloatFunction::Softmax => ewp.softmax,
        FloatFunction::LayerNorm { center: true, .. } => ewp.layer_norm,
        FloatFunction::LayerNorm { .. } => ewp.rms_norm,
        FloatFunction::Reduce { .. } => ewp.reduce,
        FloatFunction::Identity
        | FloatFunction::Constant(_)
        | FloatFunction::Binary(_)
        | FloatFunction::PRelu { .. }
        | FloatFunction::Dequantize { .. } => ewp.r#move,
    };
    rate + output.function.as_ref().map_or(0, |function| function_cycles(function, machine))
}

/// Cycles per `ewp.lanes` elements of a function of floats.
#[must_use]
pub fn function_cycles(function: &crate::Function, machine: &Machine) -> u64 {
    let cost =
        |step: &crate::function::Step| if step.is_transcendental() { machine.ewp.series } else { machine.ewp.step };
    function.steps.iter().map(cost).sum()
}

/// Streams of a pool or vector instruction by its descriptor; `None` for others.
#[must_use]
pub fn streams(work: &crate::isa::Work, descriptors: &[Descriptor], machine: &Machine) -> Option<Streams> {
    match work {
        crate::isa::Work::Pool(p) => match &descriptors[p.descriptor.index()] {
            Descriptor::Pool(d) => Some(pool(p, d, machine)),
            _ => None,
        },
        crate::isa::Work::Vector(v) => match &descriptors[v.descriptor.index()] {
            Descriptor::Vector(op) => Some(vector(v, op, machine)),
            _ => None,
        },
        _ => None,
    }
}

/// A stretch of a transfer inside one DDR page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRun {
    /// Channel that serves it.
    pub channel: usize,
    /// Page number in the address space.
    pub page: u64,
    /// Cache byte address of its first byte.
    pub local: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Cuts a transfer into page runs, in execution order: every contiguous run at the borders of DDR pages. Runs are not joined,
/// even where they are neighbours; a transfer of neighbouring rows is better written as one run.
#[must_use]
pub fn page_runs(transfer: &Transfer, machine: &Machine) -> Vec<PageRun> {
    let page_bytes = machine.page_bytes();
    let space = usize::from(machine.own_space(transfer.ddr_space));
    let mut runs: Vec<PageRun> = Vec::new();
    for (ddr, local) in transfer.runs() {
        let end = ddr + u64::from(transfer.bytes);
        let mut at = ddr;
        while at < end {
            let page = at / page_bytes;
            let stop = end.min((page + 1) * page_bytes);
            let channel = machine.channel(space, at);
            runs.push(PageRun { channel, page, local: local + (at - ddr), bytes: stop - at });
            at = stop;
        }
    }
    runs
}

/// Cycles by which the words of packed weights follow their codes: those of the bytes of a block before its first row is complete, so
/// that no word is written before its bytes are there, however they are spread over a page.
#[must_use]
pub fn expand_lead(expand: &Expand, machine: &Machine) -> u64 {
    machine.ddr_cycles(expand.lead_bytes())
}

/// Words of the shared cache that a page run of packed weights (one of [`page_runs`] of [`Expand::run`]) completes.
#[must_use]
pub fn expanded_words(expand: &Expand, run: &PageRun, machine: &Machine) -> Range<u64> {
    let word = machine.word() as u64;
    let start = run.local - expand.local_address;
    let end = start + run.bytes;
    let complete = |packed| expand.local_address + expand.complete(packed);
    let last = if end == expand.packed_bytes() { complete(end).div_ceil(word) } else { complete(end) / word };
    complete(start) / word..last
}

/// Cycles by which the words of a lookup in a packed table follow what they are made of: of a column nothing, which has its scale in
/// front of its codes.
#[must_use]
pub fn lookup_lead(lookup: &PackedLookup, machine: &Machine) -> u64 {
    if lookup.columns.is_some() { 0 } else { expand_lead(&lookup.form(), machine) }
}

/// What an index of a packed table reads, page run by page run, for a pixel at `address`, and the words of the shared cache that each
/// completes. A column is a record of every block.
#[must_use]
pub fn entry_runs(lookup: &PackedLookup, index: u32, address: u64, machine: &Machine) -> Vec<(PageRun, Range<u64>)> {
    let word = machine.word();
    let (number, column) = lookup.place(index);
    let entry = Expand { local_address: address, ..lookup.entry(number, word) };
    let Some(column) = column else {
        let runs = page_runs(&entry.run(), machine);
        return runs.into_iter().map(|run| (run, expanded_words(&entry, &run, machine))).collect();
    };
    let (rows, word) = (u64::from(entry.rows), word as u64);
    let mut list = Vec::new();
    let mut start = entry.ddr_address;
    for first in (0..rows).step_by(entry.block.max(1) as usize) {
        let own = (rows - first).min(entry.block.into());
        let bytes = entry.record_bytes(own);
        let record = Transfer {
            ddr_address: start + u64::from(column) * bytes,
            local_address: address + first,
            bytes: bytes as u32,
            ..entry.run()
        };
        let (from, end) = ((address + first) / word, address + first + own);
        let until = if first + own == rows { end.div_ceil(word) } else { end / word };
        let runs = page_runs(&record, machine);
        let last = runs.len().saturating_sub(1);
        // A record that crosses a page is complete with its last run.
        list.extend(
            runs.into_iter().enumerate().map(|(at, run)| (run, if at == last { from..until } else { from..from })),
        );
        start += entry.block_bytes(own);
    }
    list
}

/// Data cycles of a page run: its bytes on the channel, and one for each of so many words at the banks of a cache.
#[must_use]
pub fn data_cycles(bytes: u64, words: u64, machine: &Machine) -> u64 {
    machine.ddr_cycles(bytes).max(words)
}

/// Cycles from when a transfer is taken up to when its first page run may begin.
#[must_use]
pub fn transfer_lead(transfer: &Transfer, machine: &Machine) -> u64 {
    let link = if machine.rank(transfer.ddr_space).is_some() { machine.dma.link_latency } else { 0 };
    machine.dma.start + machine.dma.latency + link
}

/// Channel cycles of a page run, which opens its page or finds it open.
#[must_use]
pub fn run_cycles(bytes: u64, words: u64, opens: bool, machine: &Machine) -> u64 {
    data_cycles(bytes, words, machine) + if opens { machine.page_miss() } else { 0 }
}

/// Channel cycles of a lookup when every row opens a page.
#[must_use]
pub fn lookup_cycles(lookup: &Lookup, machine: &Machine) -> u64 {
    u64::from(lookup.count) * run_cycles(lookup.table.payload() as u64, 0, true, machine)
}

/// Channel cycles of a lookup in a packed table, each index alone.
#[must_use]
pub fn packed_lookup_cycles(lookup: &PackedLookup, machine: &Machine) -> u64 {
    let mut open = None;
    let cycles = |run: &PageRun| {
        let opens = open.replace((run.channel, run.page)) != Some((run.channel, run.page));
        run_cycles(run.bytes, 0, opens, machine)
    };
    let runs = entry_runs(lookup, 0, 0, machine);
    u64::from(lookup.count) * runs.iter().map(|(run, _)| run).map(cycles).sum::<u64>()
}

/// Channel cycles of a transfer when every page run opens its page only where it differs from the one before.
#[must_use]
pub fn transfer_cycles(transfer: &Transfer, machine: &Machine) -> u64 {
    let mut open = None;
    let mut cycles = 0;
    for run in page_runs(transfer, machine) {
        let opens = open.replace((run.channel, run.page)) != Some((run.channel, run.page));
        cycles += run_cycles(run.bytes, 0, opens, machine);
    }
    cycles
}
