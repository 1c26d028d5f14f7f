//! Limits of the fields of descriptors, by themselves.

use super::{ADDRESS, ELEMENTS, ENTRIES, EXTENT, LimitCheck, TAPS, ZERO_POINT, at_least, at_most, product};
use crate::error::LimitError;
use crate::isa::{Codes, FloatFunction, FloatOutput, PoolKind, Scaling, TableShape, VectorOp};
use crate::quant::{MULTIPLIER_MAX, SHIFT_MAX, SHIFT_MIN};
use crate::{Descriptor, Finish, Window};

pub(super) fn check_descriptor(descriptor: &Descriptor) -> LimitCheck {
    match descriptor {
        Descriptor::Matrix(d) => {
            check_window(&d.window)?;
            at_least("group_in", d.group_in)?;
            at_least("group_out", d.group_out)?;
            check_zero("input_zero", d.input_zero)?;
            check_zero("weight_zero", d.weight_zero)?;
            check_shift("first_shift", d.first_shift.map(i32::from))?;
            check_codes(&d.codes)?;
            check_table(d.table.as_ref())?;
            check_output(d.float.as_ref())
        }
        Descriptor::Pool(d) => {
            check_window(&d.window)?;
            check_pool_kind(&d.kind, &d.window)
        }
        Descriptor::Vector(op) => check_operator(op),
    }
}

pub(super) fn check_window(window: &Window) -> LimitCheck {
    for axis in 0..2 {
        at_least(format_args!("window.kernel[{axis}]"), window.kernel[axis])?;
        at_least(format_args!("window.stride[{axis}]"), window.stride[axis])?;
        at_least(format_args!("window.dilation[{axis}]"), window.dilation[axis])?;
        let extent = product([u64::from(window.kernel[axis]), window.dilation[axis].into()]);
        at_most(format_args!("window.kernel[{axis}] * dilation"), extent, EXTENT)?;
        for (side, pads) in [("before", window.pads[axis]), ("after", window.pads[axis + 2])] {
            at_most(format_args!("window.pads[{axis}] {side}"), pads.cast_signed().unsigned_abs(), EXTENT)?;
        }
    }
    at_most("window.kernel, in cells,", product(window.kernel.map(u64::from)), TAPS)
}

pub(super) fn check_pool_kind(kind: &PoolKind, window: &Window) -> LimitCheck {
    let check_beyond = |beyond: &[u32; 2]| {
        (0..2).try_for_each(|axis| {
            at_most(
                format_args!("beyond[{axis}]"),
                beyond[axis],
                window.pads[axis + 2].cast_signed().max(0).unsigned_abs().into(),
            )
        })
    };
    match kind {
        PoolKind::Max => Ok(()),
        PoolKind::Average { input_zero, beyond, divisors, codes, .. } => {
            check_zero("input_zero", *input_zero)?;
            check_beyond(beyond)?;
            check_codes(codes)?;
            divisors.iter().try_for_each(|&(_, multiplier, shift)| check_factor(multiplier, shift))
        }
        PoolKind::Depthwise { input_zero, weight_zero, first_shift, codes, table, .. } => {
            check_zero("input_zero", *input_zero)?;
            check_zero("weight_zero", *weight_zero)?;
            check_shift("first_shift", first_shift.map(i32::from))?;
            check_codes(codes)?;
            check_table(table.as_ref())
        }
        PoolKind::FloatAverage { beyond, output, .. } => {
            check_beyond(beyond)?;
            check_output(Some(output))
        }
        PoolKind::FloatDepthwise { output, .. } => check_output(Some(output)),
    }
}

pub(super) fn check_operator(op: &VectorOp) -> LimitCheck {
    match op {
        VectorOp::Binary { zeros, factors, scaling, .. } => {
            zeros.iter().try_for_each(|&zero| check_zero("zeros", zero))?;
            factors.iter().try_for_each(|factor| at_most("factors", factor.unsigned_abs(), MULTIPLIER_MAX as u64))?;
            check_scaling(scaling)
        }
        VectorOp::Table(shape) => check_table(Some(shape)),
        VectorOp::Rescale { input_zero, scaling } => {
            check_zero("input_zero", *input_zero)?;
            check_scaling(scaling)
        }
        VectorOp::PRelu { input_zero, positive, .. } => {
            check_zero("input_zero", *input_zero)?;
            check_scaling(positive)
        }
        VectorOp::Softmax { scaling, .. } => check_scaling(scaling),
        VectorOp::LayerNorm { input_zero, normalize, codes, .. }
        | VectorOp::SharedLayerNorm { input_zero, normalize, codes, .. } => {
            check_zero("input_zero", *input_zero)?;
            check_factor(normalize.0, normalize.1)?;
            check_codes(codes)
        }
        VectorOp::Reduce { shape, axes, input_zero, scaling, .. } => {
            check_reduction(shape, axes)?;
            check_zero("input_zero", *input_zero)?;
            check_scaling(scaling)
        }
        VectorOp::Move { dims, input_strides, input_offset, output_strides, output_offset, rescale } => {
            check_loops("input", dims, input_strides, *input_offset)?;
            check_loops("output", dims, output_strides, *output_offset)?;
            rescale.as_ref().map_or(Ok(()), |(zero, scaling)| {
                check_zero("rescale", *zero)?;
                check_scaling(scaling)
            })
        }
        VectorOp::Gather { outer, extent, inner, indices } => {
            [("outer", *outer), ("extent", *extent), ("inner", *inner)]
                .iter()
                .try_for_each(|(field, value)| at_least(field, *value))?;
            at_least("the number of indices", indices.len() as u64)?;
            if let Some(&index) = indices.iter().find(|index| *index >= extent) {
                return Err(LimitError::Index { index, extent: *extent });
            }
            let longest = u64::from(*extent).max(indices.len() as u64);
            at_most("outer * extent * inner", product([(*outer).into(), longest, (*inner).into()]), ELEMENTS)
        }
        VectorOp::Float { function, output } => {
            if let FloatFunction::Reduce { shape, axes, .. } = function {
                check_reduction(shape, axes)?;
            }
            if let FloatFunction::Dequantize { zero_point, .. } = function {
                check_zero("zero_point", *zero_point)?;
            }
            check_output(Some(output))
        }
        VectorOp::Quantize { codes, .. } => check_codes(codes),
        VectorOp::ArgMax { .. }
        | VectorOp::SoftmaxStatistics { .. }
        | VectorOp::Fill { .. }
        | VectorOp::ResizeLinear { .. }
        | VectorOp::Select => Ok(()),
    }
}

pub(super) fn check_reduction(shape: &[u32], axes: &[u32]) -> LimitCheck {
    shape.iter().try_for_each(|&size| at_least("shape", size))?;
    at_most("the elements of shape", product(shape.iter().map(|&n| n.into())), ELEMENTS)?;
    let beyond = axes.iter().find(|axis| **axis as usize >= shape.len());
    beyond.map_or(Ok(()), |&axis| Err(LimitError::Axis { axis, sizes: shape.len() }))
}

pub(super) fn check_loops(name: &'static str, dims: &[u32], strides: &[i64], offset: i64) -> LimitCheck {
    if dims.is_empty() || dims.len() != strides.len() {
        return Err(LimitError::Strides { name, strides: strides.len(), loops: dims.len() });
    }
    dims.iter().try_for_each(|&size| at_least("dims", size))?;
    at_most("the product of dims", product(dims.iter().map(|&n| n.into())), ELEMENTS)?;
    let reach = |(&size, stride): (&u32, &i64)| u128::from(size) * u128::from(stride.unsigned_abs());
    let all: u128 = dims.iter().zip(strides).map(reach).sum();
    at_most(format_args!("{name}_offset + dims * {name}_strides"), all + u128::from(offset.unsigned_abs()), ADDRESS)
}

pub(super) fn check_zero(field: &str, zero: i32) -> LimitCheck {
    at_most(format_args!("the magnitude of {field}"), zero.unsigned_abs(), ZERO_POINT)
}

pub(super) fn check_shift(field: &'static str, shift: Option<i32>) -> LimitCheck {
    match shift {
        Some(shift) if !(SHIFT_MIN..=SHIFT_MAX).contains(&shift) => {
            Err(LimitError::Shift { field, shift, least: SHIFT_MIN, most: SHIFT_MAX })
        }
        _ => Ok(()),
    }
}

pub(super) fn check_factor(multiplier: i32, shift: i8) -> LimitCheck {
    at_most("the magnitude of multiplier", multiplier.unsigned_abs(), MULTIPLIER_MAX as u64)?;
    check_shift("shift", Some(shift.into()))
}

pub(super) fn check_scaling(scaling: &Scaling) -> LimitCheck {
    check_factor(scaling.multiplier, scaling.shift)?;
    check_codes(&scaling.codes)
}

pub(super) fn check_codes(codes: &Codes) -> LimitCheck {
    check_clamp(codes.lo, codes.hi)
}

pub(super) fn check_clamp(lo: i32, hi: i32) -> LimitCheck {
    if lo > hi { Err(LimitError::Clamp { lo, hi }) } else { Ok(()) }
}

pub(super) fn check_table(table: Option<&TableShape>) -> LimitCheck {
    let Some(table) = table else { return Ok(()) };
    at_most("entries", table.entries, ENTRIES)?;
    check_clamp(table.lo, table.hi)
}

pub(super) fn check_output(output: Option<&FloatOutput>) -> LimitCheck {
    Ok(output.map_or(Ok(()), |output| Finish::from(output).check())?)
}
