//! An operator for a part of its result: which parts of its operands it takes, and what becomes of its fields.
//!
//! Along every axis an operator either works element by element (its operands' ranges are the result's), or slides a window
//! (their ranges reach as far as the outermost taps do, and padding is left only where the part touches the edge), or needs
//! all there is.
//!
//! ```text
//!  3x3 window, padding 1, rows 4..8 of 8:      operand rows 3..8, padding above 0, below 1
//! ```

use tpuflow_ir::op::{FloatSlopes, Slopes};
use tpuflow_ir::shape::broadcast;
use tpuflow_ir::{Arithmetic, Epilogue, Graph, Layer, LinearTap, Op, PadMode, Requant, TensorId, Window};

use super::movement;
use super::region::Region;
use crate::error::TilingError;

/// An operator for a part of its result; its operands are still named as those of the whole.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub op: Op,
    /// The region it computes: at least the part asked for.
    pub region: Region,
    /// By operand, in the order of [`Op::operands`], what it reads.
    pub operands: Vec<Region>,
}

/// Shapes of a graph's tensors.
struct Shapes<'a>(&'a Graph);

impl Shapes<'_> {
    fn of(&self, tensor: TensorId) -> &[usize] {
        &self.0.tensor(tensor).shape
    }

    fn whole(&self, tensor: TensorId) -> Region {
        Region::whole(self.of(tensor))
    }
}

/// The operator of `layer` for the part `wanted` of its result.
///
/// # Errors
/// Why it has none.
pub(crate) fn part(graph: &Graph, layer: &Layer, wanted: &Region) -> Result<Part, TilingError> {
    part_of(graph, layer, &graph.tensor(layer.output).shape, wanted)
}

/// As [`part`], of a result of the shape `result`.
///
/// # Errors
/// Why it has none.
pub(crate) fn part_of(graph: &Graph, layer: &Layer, result: &[usize], wanted: &Region) -> Result<Part, TilingError> {
    let shapes = Shapes(graph);
    match &layer.op {
        Op::Conv { .. } => convolution(&shapes, &layer.op, result, wanted),
        Op::MatMul { .. } => product(&shapes, &layer.op, result, wanted),
        Op::MaxPool { input, window } => {
            let (operand, window) = windowed(&shapes, *input, window, result, wanted)?;
            let operand = operand.with(3, wanted.0[3]);
            Ok(Part { op: Op::MaxPool { input: *input, window }, region: wanted.clone(), operands: vec![operand] })
        }
        Op::AveragePool { input, window, count_include_pad, beyond, average } => {
            let (operand, own) = windowed(&shapes, *input, window, result, wanted)?;
            let over = |axis: usize| own.pads[axis + 2].saturating_sub(window.pads[axis + 2] - beyond[axis]);
            let op = Op::AveragePool {
                input: *input,
                window: own,
                count_include_pad: *count_include_pad,
                beyond: [over(0), over(1)],
                average: average.clone(),
            };
            Ok(Part { op, region: wanted.clone(), operands: vec![operand.with(3, wanted.0[3])] })
        }
        Op::Binary { .. } | Op::Select { .. } => pointwise(&shapes, layer.op.clone(), result, wanted),
        Op::Unary { input, .. }
        | Op::Rescale { input, .. }
        | Op::Quantize { input, .. }
        | Op::Dequantize { input, .. } => {
            same(shapes.of(*input), result)?;
            let operands = layer.op.operands();
            let tables = operands[1..].iter().map(|&t| shapes.whole(t));
            let operands = std::iter::once(wanted.clone()).chain(tables).collect();
            Ok(Part { op: layer.op.clone(), region: wanted.clone(), operands })
        }
        Op::PRelu { input, slopes } => {
            same(shapes.of(*input), result)?;
            let op = Op::PRelu { input: *input, slopes: some_slopes(slopes, last(wanted)) };
            Ok(Part { op, region: wanted.clone(), operands: vec![wanted.clone()] })
        }
        // Made by tilings only.
        Op::SoftmaxStatistics { .. } => Err(TilingError::NoAttention),
        Op::Softmax { .. } => {
            all_of_last(result, wanted)?;
            pointwise(&shapes, layer.op.clone(), result, wanted)
        }
        Op::LayerNorm { input, gamma, beta, .. } => {
            same(shapes.of(*input), result)?;
            all_of_last(result, wanted)?;
            let operands = vec![wanted.clone(), shapes.whole(*gamma), shapes.whole(*beta)];
            Ok(Part { op: layer.op.clone(), region: wanted.clone(), operands })
        }
        Op::ArgMax { input, .. } => last_axis(&shapes, &layer.op, *input, result, wanted),
        Op::Reduce { input, axes, .. } => reduction(&shapes, &layer.op, (*input, axes), result, wanted),
        Op::Embedding { table, indices, .. } => {
            all_of_last(result, wanted)?;
            same(shapes.of(*indices), &result[..result.len() - 1])?;
            let own = Region(wanted.0[..result.len() - 1].to_vec());
            Ok(Part { op: layer.op.clone(), region: wanted.clone(), operands: vec![shapes.whole(*table), own] })
        }
        Op::ResizeLinear { input, rows, columns } => {
            let shape = shapes.of(*input);
            same(&[shape[0], rows.len(), columns.len(), shape[3]], result)?;
            let [n, y, x, c] = four(wanted)?;
            let ((top, rows), (left, columns)) = (some_taps(rows, y), some_taps(columns, x));
            let op = Op::ResizeLinear { input: *input, rows, columns };
            Ok(Part { op, region: wanted.clone(), operands: vec![Region(vec![n, top, left, c])] })
        }
        Op::Concat { inputs, axis, requants } => concatenation(&shapes, (inputs, *axis, requants), result, wanted),
        Op::Pad { input, before, mode, .. } => padded(&shapes, (*input, before, *mode), result, wanted),
        Op::Gather { input, axis, indices } => gathered(&shapes, (*input, *axis, indices), result, wanted),
        Op::Rearrange { input, dims, strides, offset } => {
            movement::rearranged(*input, shapes.of(*input), (dims, strides, *offset), result, wanted)
        }
        Op::InsertZeros { input, stride } => spread(*input, *stride, wanted),
    }
}

/// Operators that take all of the last axis to one element.
fn last_axis(
    shapes: &Shapes,
    op: &Op,
    input: TensorId,
    result: &[usize],
    wanted: &Region,
) -> Result<Part, TilingError> {
    let mut operand = wanted.clone();
    let (lead, &extent) = shapes.of(input).split_last().map(|(n, lead)| (lead, n)).ok_or(TilingError::Scalar)?;
    match result.split_last() {
        Some((1, kept)) if kept == lead => operand.0.truncate(lead.len()),
        _ if result == lead => {}
        _ => return Err(reshaped(result)),
    }
    operand.0.push((0, extent));
    Ok(Part { op: op.clone(), region: wanted.clone(), operands: vec![operand] })
}

/// All along some axes; those may be kept with an extent of one, or left out.
fn reduction(
    shapes: &Shapes,
    op: &Op,
    (input, axes): (TensorId, &[u32]),
    result: &[usize],
    wanted: &Region,
) -> Result<Part, TilingError> {
    let shape = shapes.of(input);
    let kept = result.len() == shape.len();
    let mut next = 0;
    let mut ranges = Vec::new();
    for (axis, &extent) in shape.iter().enumerate() {
        let reduced = axes.contains(&(axis as u32));
        ranges.push(if reduced { (0, extent) } else { *wanted.0.get(next).ok_or_else(|| reshaped(result))? });
        let expected = if reduced { 1 } else { extent };
        if kept || !reduced {
            if result.get(next) != Some(&expected) {
                return Err(reshaped(result));
            }
            next += 1;
        }
    }
    if next != result.len() {
        return Err(reshaped(result));
    }
    Ok(Part { op: op.clone(), region: wanted.clone(), operands: vec![Region(ranges)] })
}

/// Of the operands joined, those that the part has any of.
fn concatenation(
    shapes: &Shapes,
    (inputs, axis, requants): (&[TensorId], u32, &[Option<Requant>]),
    result: &[usize],
    wanted: &Region,
) -> Result<Part, TilingError> {
    let axis = axis as usize;
    let (mut at, (from, to)) = (0, *wanted.0.get(axis).ok_or_else(|| reshaped(result))?);
    let (mut taken, mut kept, mut operands) = (Vec::new(), Vec::new(), Vec::new());
    for (&input, requant) in inputs.iter().zip(requants) {
        let extent = *shapes.of(input).get(axis).ok_or_else(|| reshaped(result))?;
        if at < to && from < at + extent {
            taken.push(input);
            kept.push(requant.clone());
            operands.push(wanted.with(axis, (from.max(at) - at, to.min(at + extent) - at)));
        }
        at += extent;
    }
    if at != result[axis] || shapes.of(inputs[0]).len() != result.len() {
        return Err(reshaped(result));
    }
    let op = Op::Concat { inputs: taken, axis: axis as u32, requants: kept };
    Ok(Part { op, region: wanted.clone(), operands })
}

/// The region inside of a part, and the padding left around it.
fn padded(
    shapes: &Shapes,
    (input, before, mode): (TensorId, &[u32], PadMode),
    result: &[usize],
    wanted: &Region,
) -> Result<Part, TilingError> {
    if !matches!(mode, PadMode::Constant(_) | PadMode::Value(_)) {
        return Err(TilingError::Mirrored);
    }
    let shape = shapes.of(input);
    if shape.len() != result.len() {
        return Err(reshaped(result));
    }
    let (mut ranges, mut first, mut after) = (Vec::new(), Vec::new(), Vec::new());
    for (axis, &(from, to)) in wanted.0.iter().enumerate() {
        let pad = before[axis] as usize;
        let inside = (from.max(pad) - pad, to.min(pad + shape[axis]).saturating_sub(pad));
        if inside.0 >= inside.1 {
            return Err(TilingError::OnlyPadding);
        }
        first.push((inside.0 + pad - from) as u32);
        after.push((to - pad - inside.1) as u32);
        ranges.push(inside);
    }
    let op = Op::Pad { input, before: first, after, mode };
    Ok(Part { op, region: wanted.clone(), operands: vec![Region(ranges)] })
}

/// Some picks, counted from the first cell they take.
fn gathered(
    shapes: &Shapes,
    (input, axis, indices): (TensorId, u32, &[u32]),
    result: &[usize],
    wanted: &Region,
) -> Result<Part, TilingError> {
    let (axis, shape) = (axis as usize, shapes.of(input));
    let mut expected = shape.to_vec();
    expected[axis] = indices.len();
    same(&expected, result)?;
    let indices = &indices[wanted.0[axis].0..wanted.0[axis].1];
    let low = indices.iter().copied().min().unwrap_or(0);
    let high = indices.iter().copied().max().unwrap_or(0);
    let op = Op::Gather { input, axis: axis as u32, indices: indices.iter().map(|index| index - low).collect() };
    let operand = wanted.with(axis, (low as usize, high as usize + 1));
    Ok(Part { op, region: wanted.clone(), operands: vec![operand] })
}

/// Pixels with zeros between them, from one pixel of the operand to another.
fn spread(input: TensorId, stride: [u32; 2], wanted: &Region) -> Result<Part, TilingError> {
    let [n, y, x, c] = four(wanted)?;
    let [sh, sw] = stride.map(|s| s as usize);
    let operand = |(from, to): (usize, usize), s: usize| (from / s, (to - 1).div_ceil(s) + 1);
    let result = |(from, to): (usize, usize), s: usize| (from * s, (to - 1) * s + 1);
    let (rows, columns) = (operand(y, sh), operand(x, sw));
    Ok(Part {
        op: Op::InsertZeros { input, stride },
        region: Region(vec![n, result(rows, sh), result(columns, sw), c]),
        operands: vec![Region(vec![n, rows, columns, c])],
    })
}

/// Rows, columns and channels of a convolution. Groups are computed whole.
fn convolution(shapes: &Shapes, op: &Op, result: &[usize], wanted: &Region) -> Result<Part, TilingError> {
    let Op::Conv { input, weights, bias, window, groups, epilogue } = op else {
        return Err(TilingError::NoConvolution);
    };
    let w = shapes.of(*weights);
    let (operand, own) = windowed(shapes, *input, window, result, wanted)?;
    let (channels, reads, groups) = if *groups == 1 {
        (last(wanted), (0, w[3]), 1)
    } else {
        let out = w[0] / *groups as usize;
        let (from, to) = (last(wanted).0 / out, last(wanted).1.div_ceil(out));
        ((from * out, to * out), (from * w[3], to * w[3]), (to - from) as u32)
    };
    let epilogue = some_columns(epilogue, channels);
    let mut operands = vec![operand.with(3, reads), shapes.whole(*weights).with(0, channels), Region(vec![channels])];
    operands.extend(op.operands()[3..].iter().map(|&table| shapes.whole(table)));
    let op = Op::Conv { input: *input, weights: *weights, bias: *bias, window: own, groups, epilogue };
    Ok(Part { op, region: wanted.with(3, channels), operands })
}

/// Rows and columns of a matrix product.
fn product(shapes: &Shapes, op: &Op, result: &[usize], wanted: &Region) -> Result<Part, TilingError> {
    let Op::MatMul { a, b, bias, epilogue, partial: false } = op else { return Err(TilingError::NoProduct) };
    let (x, w) = (shapes.of(*a), shapes.of(*b));
    let mut expected = x.to_vec();
    expected[x.len() - 1] = w[w.len() - 1];
    same(&expected, result)?;
    let columns = last(wanted);
    let mut right = shapes.whole(*b);
    if w.len() > 2 {
        right.0[..w.len() - 2].copy_from_slice(&wanted.0[..w.len() - 2]);
    }
    let mut operands = vec![wanted.with(x.len() - 1, (0, x[x.len() - 1])), right.with(w.len() - 1, columns)];
    operands.extend(bias.map(|_| Region(vec![columns])));
    operands.extend(op.operands()[operands.len()..].iter().map(|&table| shapes.whole(table)));
    let op = Op::MatMul { a: *a, b: *b, bias: *bias, epilogue: some_columns(epilogue, columns), partial: false };
    Ok(Part { op, region: wanted.clone(), operands })
}

/// Operators that take an element of each operand to one of the result; extents of one serve all.
fn pointwise(shapes: &Shapes, op: Op, result: &[usize], wanted: &Region) -> Result<Part, TilingError> {
    let operands = op.operands();
    let mut all: Vec<usize> = Vec::new();
    for &operand in &operands {
        all = broadcast(&all, shapes.of(operand)).ok_or_else(|| reshaped(result))?;
    }
    same(&all, result)?;
    let own = |&operand: &TensorId| {
        let shape = shapes.of(operand);
        let lead = result.len() - shape.len();
        let range = |(axis, &extent): (usize, &usize)| if extent == 1 { (0, 1) } else { wanted.0[lead + axis] };
        Region(shape.iter().enumerate().map(range).collect())
    };
    let operands = operands.iter().map(own).collect();
    Ok(Part { op, region: wanted.clone(), operands })
}

/// The part of an image under the windows of a part, all channels, and the window with what is left of its padding.
fn windowed(
    shapes: &Shapes,
    input: TensorId,
    window: &Window,
    result: &[usize],
    wanted: &Region,
) -> Result<(Region, Window), TilingError> {
    let &[n, height, width, channels] = shapes.of(input) else { return Err(TilingError::ReadsNoImage) };
    let expected = window.output(height, width).ok_or(TilingError::Window)?;
    if result.len() != 4 || result[0] != n || result[1..3] != expected {
        return Err(reshaped(result));
    }
    let [images, rows, columns, _] = four(wanted)?;
    let (y, top, bottom) = under(window, 0, height, rows)?;
    let (x, left, right) = under(window, 1, width, columns)?;
    let own = Window { pads: [top, left, bottom, right], ..*window };
    Ok((Region(vec![images, y, x, (0, channels)]), own))
}

/// Cells along an axis under the windows `wanted`, and the padding before and after them.
fn under(
    window: &Window,
    axis: usize,
    size: usize,
    wanted: (usize, usize),
) -> Result<((usize, usize), u32, u32), TilingError> {
    let at = |position: usize| position as i64 * i64::from(window.stride[axis]) - i64::from(window.pads[axis]);
    let reach = i64::from((window.kernel[axis] - 1) * window.dilation[axis]) + 1;
    let (start, end) = (at(wanted.0), at(wanted.1 - 1) + reach);
    let (low, high) = (start.clamp(0, size as i64), end.clamp(0, size as i64));
    if low >= high {
        return Err(TilingError::SeesOnlyPadding);
    }
    Ok(((low as usize, high as usize), (low - start) as u32, (end - high) as u32))
}

fn some_columns(epilogue: &Arithmetic<Epilogue>, columns: (usize, usize)) -> Arithmetic<Epilogue> {
    match epilogue {
        Arithmetic::Fixed(Epilogue { first_shift, requant, table }) => {
            let requant = Requant {
                multiplier: some(&requant.multiplier, columns),
                shift: some(&requant.shift, columns),
                ..requant.clone()
            };
            Arithmetic::Fixed(Epilogue { first_shift: *first_shift, requant, table: table.clone() })
        }
        Arithmetic::Float(finish) => Arithmetic::Float(finish.clone()),
    }
}

fn some_slopes(slopes: &Arithmetic<Slopes, FloatSlopes>, channels: (usize, usize)) -> Arithmetic<Slopes, FloatSlopes> {
    match slopes {
        Arithmetic::Fixed(slopes) => Arithmetic::Fixed(Slopes {
            positive: slopes.positive.clone(),
            negative_multiplier: some(&slopes.negative_multiplier, channels),
            negative_shift: some(&slopes.negative_shift, channels),
        }),
        Arithmetic::Float(slopes) => {
            Arithmetic::Float(FloatSlopes { negative: some(&slopes.negative, channels), finish: slopes.finish.clone() })
        }
    }
}

/// Entries of some channels of a list that has one for each, or one for all.
fn some<T: Clone>(entries: &[T], channels: (usize, usize)) -> Vec<T> {
    if entries.len() == 1 { entries.to_vec() } else { entries[channels.0..channels.1].to_vec() }
}

/// Cells that taps read, and the taps counted from the first of them.
fn some_taps(taps: &[LinearTap], wanted: (usize, usize)) -> ((usize, usize), Vec<LinearTap>) {
    let taps = &taps[wanted.0..wanted.1];
    let cells = || taps.iter().flat_map(|tap| [tap.first, tap.second]);
    let (low, high) = (cells().min().unwrap_or(0), cells().max().unwrap_or(0));
    let own = |tap: &LinearTap| LinearTap { first: tap.first - low, second: tap.second - low, ..*tap };
    ((low as usize, high as usize + 1), taps.iter().map(own).collect())
}

fn last(region: &Region) -> (usize, usize) {
    region.0.last().copied().unwrap_or((0, 1))
}

fn four(region: &Region) -> Result<[(usize, usize); 4], TilingError> {
    region.0.as_slice().try_into().map_err(|_| TilingError::GivesNoImage)
}

fn all_of_last(result: &[usize], wanted: &Region) -> Result<(), TilingError> {
    let all = result.last().is_none_or(|&extent| last(wanted) == (0, extent));
    if all { Ok(()) } else { Err(TilingError::AllChannels) }
}

fn same(computed: &[usize], result: &[usize]) -> Result<(), TilingError> {
    if computed == result { Ok(()) } else { Err(reshaped(result)) }
}

pub(super) fn reshaped(result: &[usize]) -> TilingError {
    TilingError::Reshaped(result.to_vec())
}
