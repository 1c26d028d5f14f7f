//! Kinds of damage a program can take, each with the rules the checker may find broken.

use tpuflow_ir::access::{Accesses, accesses};
use tpuflow_ir::isa::{ChannelParameters, Descriptor, PoolKind, Scaling, TableShape, Unit, VectorOp, Work};
use tpuflow_ir::{Program, Real, Space, View, Window};

use tpuflow_checker::Rule;

use super::constants;
use super::listing::Listing;
use super::rules::{CONSTANT, DESCRIPTOR, ORDER, OUTPUT, PLACE, RANGE, TIME, TOKEN, VALUE};
use crate::common::Random;

/// A kind of damage.
pub struct Fault {
    pub name: &'static str,
    /// One of these is broken first.
    pub rules: &'static [&'static [Rule]],
    /// Damages some place of a program; whether there was one.
    pub damage: fn(&mut Program, &mut Random) -> bool,
}

pub const FAULTS: &[Fault] = &[
    // Synchronisation.
    Fault { name: "wait dropped", rules: &[ORDER], damage: wait_dropped },
    Fault { name: "wait one too short", rules: &[ORDER], damage: wait_short },
    Fault { name: "wait for a later instruction", rules: &[TOKEN], damage: wait_ahead },
    Fault { name: "dependent instructions swapped", rules: TIME, damage: swapped },
    Fault { name: "instruction left out", rules: TIME, damage: left_out },
    Fault { name: "instruction repeated", rules: TIME, damage: repeated },
    Fault { name: "buffer reused too early", rules: TIME, damage: reused },
    Fault { name: "transfer on the other line", rules: TIME, damage: other_line },
    // Addresses.
    Fault { name: "cache address off by a word", rules: PLACE, damage: cache_word },
    Fault { name: "cache address in another bank", rules: PLACE, damage: cache_bank },
    Fault { name: "DDR address off by a word", rules: PLACE, damage: ddr_word },
    Fault { name: "parameter address off", rules: PLACE, damage: parameter_address },
    Fault { name: "output port moved", rules: &[OUTPUT, &[Rule::Memory, Rule::View]], damage: output_port },
    Fault { name: "input port moved", rules: PLACE, damage: input_port },
    // Extents.
    Fault { name: "transfer cut short", rules: PLACE, damage: cut_short },
    Fault { name: "transfer stride", rules: PLACE, damage: transfer_stride },
    Fault { name: "weight row or plane stride", rules: PLACE, damage: weight_stride },
    Fault { name: "pixel stride", rules: PLACE, damage: pixel_stride },
    Fault { name: "first row of a view", rules: PLACE, damage: view_row },
    Fault { name: "size of a view", rules: PLACE, damage: view_size },
    Fault { name: "first pixel", rules: PLACE, damage: first_pixel },
    Fault { name: "first column", rules: &[RANGE, VALUE, CONSTANT, DESCRIPTOR], damage: first_column },
    Fault { name: "first row", rules: PLACE, damage: first_row },
    Fault { name: "rows or pixels left out", rules: PLACE, damage: rows_short },
    // What is computed.
    Fault { name: "wrong layer", rules: PLACE, damage: wrong_layer },
    Fault { name: "operands exchanged", rules: PLACE, damage: operands },
    Fault { name: "window stride or dilation", rules: &[DESCRIPTOR], damage: window_step },
    Fault { name: "window padding", rules: &[DESCRIPTOR], damage: window_pad },
    Fault { name: "window kernel", rules: &[DESCRIPTOR], damage: window_kernel },
    Fault { name: "zero point", rules: &[DESCRIPTOR], damage: zero_point },
    Fault { name: "first shift", rules: &[DESCRIPTOR], damage: first_shift },
    Fault { name: "clamp", rules: &[DESCRIPTOR, CONSTANT], damage: clamp },
    Fault { name: "scaling of a vector operator", rules: &[DESCRIPTOR], damage: scaling },
    Fault { name: "moved elements", rules: PLACE, damage: moved },
    Fault { name: "constant written by a fill", rules: &[VALUE, OUTPUT], damage: fill },
    // Constants.
    Fault { name: "weight byte", rules: &[CONSTANT], damage: constants::weight },
    Fault { name: "depthwise weight byte", rules: &[CONSTANT], damage: constants::depthwise_weight },
    Fault { name: "bias", rules: &[CONSTANT], damage: constants::bias },
    Fault { name: "multiplier or shift", rules: &[CONSTANT], damage: constants::multiplier },
    Fault { name: "fused table entry", rules: &[CONSTANT], damage: constants::fused_table },
    Fault { name: "vector parameter", rules: &[DESCRIPTOR, CONSTANT], damage: constants::vector_parameter },
];

/// Changes the first instruction from a random one on (around the end) that `change` accepts.
fn some(program: &mut Program, random: &mut Random, mut change: impl FnMut(&mut Work, &mut Random) -> bool) -> bool {
    let count = program.instructions.len();
    let start = random.below(count);
    (start..count).chain(0..start).any(|i| change(&mut program.instructions[i].work, random))
}

fn some_descriptor(
    program: &mut Program,
    random: &mut Random,
    mut change: impl FnMut(&mut Descriptor, &mut Random) -> bool,
) -> bool {
    let count = program.descriptors.len();
    let start = random.below(count);
    (start..count).chain(0..start).any(|i| change(&mut program.descriptors[i], random))
}

pub fn one_of<T>(items: Vec<T>, random: &mut Random) -> Option<T> {
    let at = if items.is_empty() { return None } else { random.below(items.len()) };
    items.into_iter().nth(at)
}

fn shift(address: &mut u64, by: u64, random: &mut Random) {
    *address = if *address >= by && random.chance(50) { *address - by } else { *address + by };
}

fn step<T: Into<i64> + TryFrom<i64> + Copy>(value: &mut T, random: &mut Random) -> bool {
    let moved = (*value).into() + if random.chance(50) { 1 } else { -1 };
    T::try_from(moved).map(|moved| *value = moved).is_ok()
}

fn views(work: &mut Work) -> Vec<&mut View> {
    match work {
        Work::Transfer(_) => vec![],
        Work::Expand(_) => vec![],
        Work::PackedLookup(l) => vec![&mut l.indices, &mut l.output],
        Work::Lookup(l) => vec![&mut l.table, &mut l.indices, &mut l.output],
        Work::Matrix(m) => vec![&mut m.input, &mut m.output],
        Work::Pool(p) => vec![&mut p.input, &mut p.output],
        Work::Vector(v) => v.inputs.iter_mut().chain([&mut v.output]).collect(),
    }
}

// Synchronisation.

/// Some instruction that waits, and which of its waits.
fn a_wait(program: &Program, random: &mut Random) -> Option<(usize, usize)> {
    let waits = program.instructions.iter().enumerate().flat_map(|(i, one)| (0..one.waits.len()).map(move |w| (i, w)));
    one_of(waits.collect(), random)
}

fn wait_dropped(program: &mut Program, random: &mut Random) -> bool {
    let found = a_wait(program, random);
    found.map(|(at, wait)| program.instructions[at].waits.remove(wait)).is_some()
}

fn wait_short(program: &mut Program, random: &mut Random) -> bool {
    let Some((at, wait)) = a_wait(program, random) else { return false };
    let waits = &mut program.instructions[at].waits;
    if waits[wait].count > 1 {
        waits[wait].count -= 1;
    } else {
        waits.remove(wait);
    }
    true
}

fn wait_ahead(program: &mut Program, random: &mut Random) -> bool {
    let Some((at, wait)) = a_wait(program, random) else { return false };
    let unit = program.instructions[at].waits[wait].unit;
    let before = program.instructions[..at].iter().filter(|i| i.unit == unit).count();
    program.instructions[at].waits[wait].count = before as u32 + 1;
    true
}

fn swapped(program: &mut Program, random: &mut Random) -> bool {
    let Some((at, wait)) = a_wait(program, random) else { return false };
    let wait = program.instructions[at].waits[wait];
    let awaited = (0..at).filter(|&i| program.instructions[i].unit == wait.unit).nth(wait.count as usize - 1);
    awaited.map(|awaited| program.instructions.swap(awaited, at)).is_some()
}

fn left_out(program: &mut Program, random: &mut Random) -> bool {
    let mut listing = Listing::of(program);
    listing.remove(random.below(program.instructions.len()));
    program.instructions = listing.finish();
    true
}

fn repeated(program: &mut Program, random: &mut Random) -> bool {
    let mut listing = Listing::of(program);
    let position = random.below(program.instructions.len());
    listing.repeat(position, position + 1 + random.below(program.instructions.len() - position));
    program.instructions = listing.finish();
    true
}

fn touched(program: &Program, at: usize) -> Accesses {
    accesses(&program.instructions[at], &program.descriptors, &program.machine)
}

/// Moves an instruction that overwrites what earlier ones still read to before one of these.
fn reused(program: &mut Program, random: &mut Random) -> bool {
    let start = random.below(program.instructions.len());
    for writer in (start..program.instructions.len()).chain(0..start) {
        let writes = touched(program, writer).writes;
        let reads = |&at: &usize| {
            touched(program, at).reads.iter().any(|r| r.space == Space::Cache && writes.iter().any(|w| w.overlaps(r)))
        };
        let Some(reader) = (0..writer).rev().find(reads) else { continue };
        let mut listing = Listing::of(program);
        listing.hoist(writer, reader);
        program.instructions = listing.finish();
        return true;
    }
    false
}

fn other_line(program: &mut Program, random: &mut Random) -> bool {
    let is_dma = |i: &usize| matches!(program.instructions[*i].unit, Unit::Dtl0 | Unit::Dtl1);
    let Some(at) = one_of((0..program.instructions.len()).filter(is_dma).collect(), random) else { return false };
    let unit = &mut program.instructions[at].unit;
    *unit = if *unit == Unit::Dtl0 { Unit::Dtl1 } else { Unit::Dtl0 };
    true
}

// Addresses.

fn cache_address(program: &mut Program, random: &mut Random, by: u64) -> bool {
    some(program, random, |work, random| match work {
        Work::Transfer(t) if t.local_space == Space::Cache => {
            shift(&mut t.local_address, by, random);
            true
        }
        Work::Matrix(m) if random.chance(33) => {
            shift(&mut m.weights.address, by, random);
            true
        }
        work => {
            let cached = views(work).into_iter().filter(|v| v.space == Space::Cache).collect();
            one_of(cached, random).map(|view| shift(&mut view.address, by, random)).is_some()
        }
    })
}

fn cache_word(program: &mut Program, random: &mut Random) -> bool {
    let word = program.machine.word() as u64;
    cache_address(program, random, word)
}

fn cache_bank(program: &mut Program, random: &mut Random) -> bool {
    let bank = program.machine.cache_bytes() / u64::from(program.machine.cache.banks);
    cache_address(program, random, bank)
}

fn ddr_word(program: &mut Program, random: &mut Random) -> bool {
    let word = program.machine.word() as u64;
    some(program, random, |work, random| match work {
        Work::Transfer(t) => {
            shift(&mut t.ddr_address, word, random);
            true
        }
        _ => false,
    })
}

fn parameter_address(program: &mut Program, random: &mut Random) -> bool {
    let entry = ChannelParameters::bytes(false) as u32;
    let off = |address: &mut u32, random: &mut Random| {
        *address = if *address >= entry && random.chance(50) { *address - entry } else { *address + entry };
        true
    };
    let depthwise: Vec<bool> = program
        .descriptors
        .iter()
        .map(|d| matches!(d, Descriptor::Pool(p) if matches!(p.kind, PoolKind::Depthwise { .. })))
        .collect();
    some(program, random, |work, random| match work {
        Work::Matrix(m) => off(&mut m.parameters, random),
        Work::Pool(p) if depthwise[p.descriptor.index()] => {
            off(if random.chance(50) { &mut p.parameters } else { &mut p.weights }, random)
        }
        _ => false,
    })
}

fn output_port(program: &mut Program, random: &mut Random) -> bool {
    let (word, count) = (program.machine.word() as u64, program.outputs.len());
    shift(&mut program.outputs[random.below(count)].view.address, word, random);
    true
}

fn input_port(program: &mut Program, random: &mut Random) -> bool {
    let (word, count) = (program.machine.word() as u64, program.inputs.len());
    shift(&mut program.inputs[random.below(count)].view.address, word, random);
    true
}

// Extents.

fn cut_short(program: &mut Program, random: &mut Random) -> bool {
    some(program, random, |work, random| {
        let Work::Transfer(t) = work else { return false };
        match random.below(3) {
            0 if t.counts[0] > 1 => t.counts[0] -= 1,
            1 if t.counts[1] > 1 => t.counts[1] -= 1,
            _ if t.bytes > 1 => t.bytes -= 1 + random.below(t.bytes as usize - 1) as u32,
            _ => return false,
        }
        true
    })
}

fn transfer_stride(program: &mut Program, random: &mut Random) -> bool {
    let word = program.machine.word() as u64;
    some(program, random, |work, random| {
        let Work::Transfer(t) = work else { return false };
        let Some(axis) = one_of((0..2).filter(|&axis| t.counts[axis] > 1).collect(), random) else { return false };
        let strides = if random.chance(50) { &mut t.ddr_strides } else { &mut t.local_strides };
        shift(&mut strides[axis], word, random);
        true
    })
}

fn weight_stride(program: &mut Program, random: &mut Random) -> bool {
    let word = program.machine.word() as u32;
    let rows = |descriptor: &Descriptor| match descriptor {
        Descriptor::Matrix(d) => d.window.kernel[0] * d.window.kernel[1] * d.group_in,
        _ => 0,
    };
    let rows: Vec<u32> = program.descriptors.iter().map(rows).collect();
    some(program, random, |work, random| {
        let Work::Matrix(m) = work else { return false };
        if m.weights.plane_bytes > 0 && random.chance(50) {
            m.weights.plane_bytes += word;
            return true;
        }
        m.weights.row_bytes += word;
        rows[m.descriptor.index()] > 1
    })
}

fn a_view(program: &mut Program, random: &mut Random, mut change: impl FnMut(&mut View, &mut Random) -> bool) -> bool {
    some(program, random, |work, random| one_of(views(work), random).is_some_and(|view| change(view, random)))
}

fn pixel_stride(program: &mut Program, random: &mut Random) -> bool {
    a_view(program, random, |view, _| {
        view.pixel_bytes *= 2;
        view.width > 1
    })
}

fn view_row(program: &mut Program, random: &mut Random) -> bool {
    a_view(program, random, |view, random| match random.below(2) {
        0 => step(&mut view.first_row, random),
        _ => {
            view.stored_rows -= 1;
            true
        }
    })
}

fn view_size(program: &mut Program, random: &mut Random) -> bool {
    a_view(program, random, |view, random| {
        let size = match random.below(4) {
            0 => &mut view.rows,
            1 => &mut view.height,
            2 => &mut view.width,
            _ => &mut view.channels,
        };
        step(size, random)
    })
}

fn first_pixel(program: &mut Program, random: &mut Random) -> bool {
    some(program, random, |work, random| {
        let Work::Matrix(m) = work else { return false };
        step(&mut m.first_pixel, random)
    })
}

fn first_column(program: &mut Program, random: &mut Random) -> bool {
    some(program, random, |work, random| {
        let Work::Matrix(m) = work else { return false };
        // Alone it contradicts the view; together with the view's channel it means other columns.
        let consistent = random.chance(50);
        let before = m.first_column;
        if !step(&mut m.first_column, random) {
            return false;
        }
        if consistent {
            m.output.origin[1] = (m.output.origin[1] + m.first_column).wrapping_sub(before);
        }
        true
    })
}

fn first_row(program: &mut Program, random: &mut Random) -> bool {
    some(program, random, |work, random| match work {
        Work::Pool(p) => step(&mut p.first_row, random),
        Work::Vector(v) => step(&mut v.first_row, random),
        _ => false,
    })
}

fn rows_short(program: &mut Program, random: &mut Random) -> bool {
    some(program, random, |work, _| {
        let count = match work {
            Work::Matrix(m) => &mut m.pixels,
            Work::Pool(p) => &mut p.rows,
            Work::Vector(v) => &mut v.rows,
            Work::Expand(e) => &mut e.rows,
            Work::Lookup(l) => &mut l.count,
            Work::PackedLookup(l) => &mut l.count,
            Work::Transfer(_) => return false,
        };
        *count -= 1;
        true
    })
}

// What is computed.

fn wrong_layer(program: &mut Program, random: &mut Random) -> bool {
    let computes = |i: &usize| !matches!(program.instructions[*i].work, Work::Transfer(_));
    let Some(at) = one_of((0..program.instructions.len()).filter(computes).collect(), random) else { return false };
    let layer = &mut program.instructions[at].layer;
    let other = random.below(program.layers.len()) as u32;
    let changed = layer.0 != other;
    layer.0 = other;
    changed
}

fn operands(program: &mut Program, random: &mut Random) -> bool {
    some(program, random, |work, _| {
        let Work::Vector(v) = work else { return false };
        if v.inputs.len() < 2 {
            return false;
        }
        let last = v.inputs.len() - 1;
        v.inputs.swap(last - 1, last);
        v.inputs[last - 1] != v.inputs[last]
    })
}

fn a_window(
    program: &mut Program,
    random: &mut Random,
    mut change: impl FnMut(&mut Window, &mut Random) -> bool,
) -> bool {
    some_descriptor(program, random, |descriptor, random| match descriptor {
        Descriptor::Matrix(m) => change(&mut m.window, random),
        Descriptor::Pool(p) => change(&mut p.window, random),
        Descriptor::Vector(_) => false,
    })
}

fn window_step(program: &mut Program, random: &mut Random) -> bool {
    a_window(program, random, |window, random| {
        let steps = if random.chance(50) { &mut window.stride } else { &mut window.dilation };
        steps[random.below(2)] += 1;
        true
    })
}

fn window_pad(program: &mut Program, random: &mut Random) -> bool {
    a_window(program, random, |window, random| step(&mut window.pads[random.below(4)], random))
}

fn window_kernel(program: &mut Program, random: &mut Random) -> bool {
    a_window(program, random, |window, random| {
        window.kernel[random.below(2)] += 1;
        true
    })
}

fn zero_point(program: &mut Program, random: &mut Random) -> bool {
    some_descriptor(program, random, |descriptor, random| {
        let zeros: Vec<&mut i32> = match descriptor {
            Descriptor::Matrix(m) => vec![&mut m.input_zero, &mut m.weight_zero, &mut m.codes.zero_point],
            Descriptor::Pool(p) => match &mut p.kind {
                PoolKind::Max | PoolKind::FloatAverage { .. } | PoolKind::FloatDepthwise { .. } => vec![],
                PoolKind::Average { input_zero, codes, .. } => vec![input_zero, &mut codes.zero_point],
                PoolKind::Depthwise { input_zero, weight_zero, codes, .. } => {
                    vec![input_zero, weight_zero, &mut codes.zero_point]
                }
            },
            Descriptor::Vector(op) => match op {
                VectorOp::Binary { zeros, .. } => zeros.iter_mut().collect(),
                VectorOp::Rescale { input_zero, .. }
                | VectorOp::PRelu { input_zero, .. }
                | VectorOp::LayerNorm { input_zero, .. }
                | VectorOp::Reduce { input_zero, .. } => vec![input_zero],
                _ => vec![],
            },
        };
        one_of(zeros, random).is_some_and(|zero| step(zero, random))
    })
}

fn first_shift(program: &mut Program, random: &mut Random) -> bool {
    some_descriptor(program, random, |descriptor, random| {
        let shift = match descriptor {
            Descriptor::Matrix(m) if m.float.is_none() => &mut m.first_shift,
            Descriptor::Pool(p) => match &mut p.kind {
                PoolKind::Depthwise { first_shift, .. } => first_shift,
                _ => return false,
            },
            _ => return false,
        };
        let changed = if random.chance(50) { shift.map_or(Some(0), |shift| Some(shift ^ 1)) } else { None };
        std::mem::replace(shift, changed) != changed
    })
}

fn table_of(descriptor: &mut Descriptor) -> Option<&mut TableShape> {
    match descriptor {
        Descriptor::Matrix(m) => m.table.as_mut(),
        Descriptor::Pool(p) => match &mut p.kind {
            PoolKind::Depthwise { table, .. } => table.as_mut(),
            _ => None,
        },
        Descriptor::Vector(VectorOp::Table(shape)) => Some(shape),
        Descriptor::Vector(_) => None,
    }
}

fn clamp(program: &mut Program, random: &mut Random) -> bool {
    some_descriptor(program, random, |descriptor, random| {
        if random.chance(30)
            && let Some(shape) = table_of(descriptor)
        {
            return step(if random.chance(50) { &mut shape.lo } else { &mut shape.hi }, random);
        }
        let codes = match descriptor {
            Descriptor::Matrix(m) => &mut m.codes,
            Descriptor::Pool(p) => match &mut p.kind {
                PoolKind::Max | PoolKind::FloatAverage { .. } | PoolKind::FloatDepthwise { .. } => return false,
                PoolKind::Average { codes, .. } | PoolKind::Depthwise { codes, .. } => codes,
            },
            Descriptor::Vector(op) => match op {
                VectorOp::LayerNorm { codes, .. } | VectorOp::SharedLayerNorm { codes, .. } => codes,
                op => match scaling_of(op) {
                    Some(scaling) => &mut scaling.codes,
                    None => return false,
                },
            },
        };
        step(if random.chance(50) { &mut codes.lo } else { &mut codes.hi }, random)
    })
}

fn scaling_of(op: &mut VectorOp) -> Option<&mut Scaling> {
    match op {
        VectorOp::Binary { scaling, .. }
        | VectorOp::Rescale { scaling, .. }
        | VectorOp::PRelu { positive: scaling, .. }
        | VectorOp::Softmax { scaling, .. }
        | VectorOp::Reduce { scaling, .. } => Some(scaling),
        _ => None,
    }
}

fn scaling(program: &mut Program, random: &mut Random) -> bool {
    some_descriptor(program, random, |descriptor, random| {
        let Descriptor::Vector(op) = descriptor else { return false };
        match op {
            VectorOp::Binary { factors, .. } if random.chance(50) => step(&mut factors[random.below(2)], random),
            VectorOp::Softmax { coefficient, .. } if random.chance(50) => {
                *coefficient += 1;
                true
            }
            VectorOp::LayerNorm { epsilon, normalize, .. } | VectorOp::SharedLayerNorm { epsilon, normalize, .. } => {
                if random.chance(50) {
                    *epsilon += 1;
                    return true;
                }
                step(&mut normalize.0, random)
            }
            op => scaling_of(op).is_some_and(|s| {
                if random.chance(50) { step(&mut s.multiplier, random) } else { step(&mut s.shift, random) }
            }),
        }
    })
}

fn moved(program: &mut Program, random: &mut Random) -> bool {
    some_descriptor(program, random, |descriptor, random| match descriptor {
        Descriptor::Vector(VectorOp::Move {
            dims, input_strides, input_offset, output_strides, output_offset, ..
        }) => {
            let wide: Vec<usize> = (0..dims.len()).filter(|&axis| dims[axis] > 1).collect();
            match (random.below(4), one_of(wide, random)) {
                (0, _) => step(input_offset, random),
                (1, _) => step(output_offset, random),
                (2, Some(axis)) => step(&mut input_strides[axis], random),
                (_, Some(axis)) => step(&mut output_strides[axis], random),
                _ => false,
            }
        }
        Descriptor::Vector(VectorOp::Gather { indices, extent, .. }) => {
            let at = random.below(indices.len());
            let other = (indices[at] + 1) % *extent;
            let changed = indices[at] != other;
            indices[at] = other;
            changed
        }
        Descriptor::Vector(VectorOp::ResizeLinear { rows, columns }) => {
            let taps = if random.chance(50) { rows } else { columns };
            let at = random.below(taps.len());
            let steps = (taps[at].weight.get() * 2048.0) as u32 ^ 1;
            taps[at].weight = Real::new(f64::from(steps) / 2048.0);
            true
        }
        _ => false,
    })
}

fn fill(program: &mut Program, random: &mut Random) -> bool {
    some_descriptor(program, random, |descriptor, random| match descriptor {
        Descriptor::Vector(VectorOp::Fill { code }) => step(code, random),
        _ => false,
    })
}
