//! The form of elementwise instructions: numbers, shapes and element types of their operands.

use tpuflow_ir::isa::{FloatFunction, Vector, VectorOp};
use tpuflow_ir::op::{LinearTap, Measure, ReduceKind};
use tpuflow_ir::{DType, View};

/// Checks an elementwise instruction without regard to the values of its operands.
///
/// # Errors
/// The condition that does not hold.
pub(crate) fn check(v: &Vector, op: &VectorOp) -> Result<(), &'static str> {
    let operands = match op {
        VectorOp::Fill { .. } | VectorOp::Float { function: FloatFunction::Constant(_), .. } => 0..=0,
        VectorOp::Softmax { .. } | VectorOp::SoftmaxStatistics { .. } => 1..=3,
        VectorOp::Float { function: FloatFunction::Softmax, .. } => 1..=2,
        _ if op.reduces() => 1..=2,
        VectorOp::Binary { .. } | VectorOp::Float { function: FloatFunction::Binary(_), .. } => 2..=2,
        VectorOp::Select => 3..=3,
        _ => 1..=1,
    };
    require(operands.contains(&v.inputs.len()), "has the wrong number of operands")?;
    require(v.rows > 0, "has no rows")?;
    let codes = |dtype| matches!(dtype, DType::I8 | DType::I16);
    let sound = |view: &View| {
        view.rows > 0 && view.width > 0 && view.channels > 0 && view.height > 0 && view.rows.is_multiple_of(view.height)
    };
    require(v.inputs.iter().chain([&v.output]).all(sound), "has an empty view")?;
    let broadcasts = v.inputs.iter().all(|i| {
        let fits = |own: u32, result: u32| own == result || own == 1;
        let images = |view: &View| view.rows / view.height;
        fits(i.width, v.output.width)
            && fits(i.channels, v.output.channels)
            && fits(i.height, v.output.height)
            && fits(images(i), images(&v.output))
    });
    let computes = v.inputs.iter().all(|i| codes(i.dtype));
    let floats = v.inputs.first().is_some_and(|i| i.dtype.is_float());
    match op {
        VectorOp::Move { dims, input_strides, output_strides, rescale, .. } => {
            check_move(v, (dims, input_strides, output_strides), rescale.is_some())
        }
        VectorOp::Gather { outer, extent, inner, indices } => {
            require(v.inputs[0].dtype == v.output.dtype, "gathers between element types")?;
            let sizes = *inner > 0 && !indices.is_empty() && indices.iter().all(|i| i < extent);
            require(sizes, "gathers beyond its operand")?;
            let loops = u64::from(*outer) * indices.len() as u64;
            require(u64::from(v.first_row) + u64::from(v.rows) <= loops, "gathers beyond its loops")
        }
        VectorOp::Fill { .. } => Ok(()),
        VectorOp::Reduce { kind, shape, axes, partial, .. } => {
            let is_of_sums = *kind == ReduceKind::Sum && v.inputs[0].dtype == DType::I64;
            require(is_of_sums || v.inputs[0].dtype.is_code(), "reduces elements of the wrong type")?;
            check_reduction(v, *kind, (shape, axes), *partial, DType::is_code)
        }
        VectorOp::Float { function: FloatFunction::Reduce { kind, shape, axes, partial, .. }, .. } => {
            require(floats, "reduces elements of the wrong type")?;
            check_reduction(v, *kind, (shape, axes), *partial, DType::is_float)
        }
        VectorOp::ArgMax { .. } => check_arg_max(v),
        VectorOp::ResizeLinear { rows, columns } => check_resize(v, rows, columns),
        VectorOp::SoftmaxStatistics { .. } => check_row_blocks(v, op),
        VectorOp::Softmax { .. } if op.has_statistics(v) => check_row_blocks(v, op),
        VectorOp::Softmax { .. } => {
            let whole = v.inputs[0].channels == v.output.channels && v.inputs[0].width == v.output.width;
            let has_mask = v.inputs.len() <= 2;
            require(
                whole && has_mask && broadcasts && computes && codes(v.output.dtype),
                "has operands that do not fit",
            )
        }
        VectorOp::LayerNorm { .. } | VectorOp::SharedLayerNorm { .. } => {
            let whole = v.inputs[0].channels == v.output.channels && v.inputs[0].width == v.output.width;
            require(whole && broadcasts && computes && codes(v.output.dtype), "has operands that do not fit")
        }
        VectorOp::Select => {
            let same = v.inputs[1..].iter().all(|i| i.dtype == v.output.dtype);
            require(broadcasts && codes(v.inputs[0].dtype) && same, "chooses between elements of other types")
        }
        VectorOp::Float { function, .. } => check_float(v, function, broadcasts),
        VectorOp::Quantize { .. } => {
            let result = !v.output.dtype.is_float() && v.output.dtype != DType::I64;
            require(broadcasts && floats && result, "quantises elements of the wrong types")
        }
        _ => require(broadcasts && computes && codes(v.output.dtype), "has operands that do not broadcast"),
    }
}

/// A move stays within its loops and keeps the element type, unless it rescales.
fn check_move(v: &Vector, (dims, from, to): (&[u32], &[i64], &[i64]), rescales: bool) -> Result<(), &'static str> {
    let even = !dims.is_empty() && dims.len() == from.len() && dims.len() == to.len();
    require(even && dims.iter().all(|&d| d > 0), "moves with uneven or empty loops")?;
    require(v.first_row + v.rows <= dims[0], "moves beyond its outermost loop")?;
    let same = v.inputs[0].dtype == v.output.dtype;
    require(same || rescales, "moves between element types")?;
    require(
        !rescales || (v.inputs[0].dtype.is_code() && v.output.dtype.is_code()),
        "rescales elements that are no codes",
    )
}

/// Rows in blocks: codes, perhaps a mask that broadcasts to them, and two int64 for every row of them.
fn check_row_blocks(v: &Vector, op: &VectorOp) -> Result<(), &'static str> {
    let (block, has_statistics) = (&v.inputs[0], op.has_statistics(v));
    let masks = &v.inputs[1..v.inputs.len() - usize::from(has_statistics)];
    let fits = |own: u32, result: u32| own == result || own == 1;
    let is_mask = |mask: &View| {
        let images = |view: &View| view.rows / view.height;
        let sizes = [(mask.width, block.width), (mask.channels, block.channels), (mask.height, block.height)];
        mask.dtype == DType::I8
            && sizes.iter().all(|&(own, result)| fits(own, result))
            && fits(images(mask), images(block))
    };
    let same_pixels = |view: &View| (view.rows, view.height, view.width) == (block.rows, block.height, block.width);
    let is_statistics = |view: &View| view.dtype == DType::I64 && view.channels == 2 && same_pixels(view);
    let given = v.inputs.last().filter(|_| has_statistics).is_none_or(is_statistics);
    let left = match op {
        VectorOp::SoftmaxStatistics { measure } => {
            (has_statistics || *measure == Measure::Maximum) && is_statistics(&v.output)
        }
        _ => v.output.dtype.is_code() && v.output.channels == block.channels && same_pixels(&v.output),
    };
    let types = block.dtype.is_code() && masks.len() <= 1 && masks.iter().all(is_mask);
    require(types && given && left, "has operands that are no blocks of rows with their statistics")
}

/// A reduction takes all of its operand and of running results as many as it gives; finished ones are of a type `admits` names.
fn check_reduction(
    v: &Vector,
    kind: ReduceKind,
    (shape, axes): (&[u32], &[u32]),
    partial: bool,
    admits: fn(DType) -> bool,
) -> Result<(), &'static str> {
    let count: u64 = shape.iter().map(|&n| u64::from(n)).product();
    let kept: u64 = (0u32..).zip(shape).filter(|(i, _)| !axes.contains(i)).map(|(_, &n)| u64::from(n)).product();
    let fits = elements(&v.inputs[0]) == count && elements(&v.output) == kept;
    let running = VectorOp::running(kind, v.inputs[0].dtype);
    let given = v.inputs.get(1).is_none_or(|r| r.dtype == running && elements(r) == kept && r.rows == 1);
    let left = if partial { v.output.dtype == running && v.output.rows == 1 } else { admits(v.output.dtype) };
    require(fits && given && left, "reduces to another number of elements")
}

/// One index for every pixel.
fn check_arg_max(v: &Vector) -> Result<(), &'static str> {
    let i = &v.inputs[0];
    let per_pixel = u64::from(i.rows) * u64::from(i.width) == elements(&v.output);
    let rows = i.rows == v.output.rows;
    require(per_pixel && rows && (i.dtype.is_code() || i.dtype.is_float()), "has other than one result per pixel")?;
    require(v.output.dtype == DType::I32, "gives indices that are not int32")
}

/// Every line and column lies between two of the operand.
fn check_resize(v: &Vector, rows: &[LinearTap], columns: &[LinearTap]) -> Result<(), &'static str> {
    let i = &v.inputs[0];
    let taps = rows.len() == v.output.height as usize && columns.len() == v.output.width as usize;
    let within = |taps: &[LinearTap], n: u32| taps.iter().all(|t| t.first < n && t.second < n);
    let images = i.rows / i.height == v.output.rows / v.output.height && i.channels == v.output.channels;
    let fits = taps && within(rows, i.height) && within(columns, i.width) && images;
    require(
        fits && (i.dtype.is_code() || i.dtype.is_float()) && i.dtype == v.output.dtype,
        "resizes to another size than its taps",
    )
}

/// Operands of a function of floats are floats, but for codes that it converts and masks.
fn check_float(v: &Vector, function: &FloatFunction, broadcasts: bool) -> Result<(), &'static str> {
    let floats = v.inputs.first().is_some_and(|i| i.dtype.is_float());
    let whole = v.inputs.first().is_none_or(|i| i.channels == v.output.channels && i.width == v.output.width);
    let whole = whole || !matches!(function, FloatFunction::Softmax | FloatFunction::LayerNorm { .. });
    let operands = match function {
        FloatFunction::Dequantize { .. } => !floats && v.inputs[0].dtype != DType::I64,
        FloatFunction::Softmax => floats && v.inputs[1..].iter().all(|mask| mask.dtype == DType::I8),
        _ => v.inputs.iter().all(|i| i.dtype.is_float()),
    };
    let compares = matches!(function, FloatFunction::Binary(kind) if kind.compares());
    let result = if compares { v.output.dtype == DType::I8 } else { v.output.dtype.is_float() };
    require(whole && broadcasts && operands && result, "has operands that do not fit")
}

fn elements(view: &View) -> u64 {
    u64::from(view.rows) * u64::from(view.width) * u64::from(view.channels)
}

fn require(condition: bool, what: &'static str) -> Result<(), &'static str> {
    if condition { Ok(()) } else { Err(what) }
}
