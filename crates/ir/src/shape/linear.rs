//! Convolutions and matrix products.

use super::{Output, kind, requant, table};
use crate::error::ShapeError;
use crate::{Arithmetic, DType, Epilogue, Tensor, Window};

/// Windows of an image by filters, in groups of channels.
pub(super) fn convolution(
    tensors: &[Tensor],
    [x, w, b]: [&Tensor; 3],
    window: &Window,
    groups: u32,
    epilogue: &Arithmetic<Epilogue>,
) -> Result<(usize, Output), ShapeError> {
    let output = operands(epilogue, x, w)?;
    let (&[n, h, width, c], &[o, kh, kw, ci]) = (&x.shape[..], &w.shape[..]) else {
        return Err(ShapeError::ConvolutionRank { input: x.shape.clone(), weights: w.shape.clone() });
    };
    let groups = groups as usize;
    if groups == 0 || ci * groups != c || o % groups != 0 {
        return Err(ShapeError::Groups { weights: w.shape.clone(), groups, input: x.shape.clone() });
    }
    if [kh as u32, kw as u32] != window.kernel || window.stride.contains(&0) || window.dilation.contains(&0) {
        return Err(ShapeError::Kernel { window: *window, weights: w.shape.clone() });
    }
    fitting_bias(b, o, x, w)?;
    fitting_epilogue(epilogue, tensors, o, &[x, w])?;
    let exceeds = || ShapeError::WindowExceeds { window: *window, input: x.shape.clone() };
    let [oh, ow] = window.output(h, width).ok_or_else(exceeds)?;
    Ok((n * oh * ow * o, output))
}

/// Matrices by matrices, of one pair or of many.
pub(super) fn product(
    tensors: &[Tensor],
    [a, b]: [&Tensor; 2],
    bias: Option<&Tensor>,
    epilogue: &Arithmetic<Epilogue>,
) -> Result<(usize, Output), ShapeError> {
    let output = operands(epilogue, a, b)?;
    let ([lead_a @ .., m, k], [lead_b @ .., k2, n]) = (&a.shape[..], &b.shape[..]) else {
        return Err(ShapeError::MatrixRank { a: a.shape.clone(), b: b.shape.clone() });
    };
    if k != k2 || (!lead_b.is_empty() && lead_a != lead_b) {
        return Err(ShapeError::Matrices { a: a.shape.clone(), b: b.shape.clone() });
    }
    if let Some(bias) = bias {
        fitting_bias(bias, *n, a, b)?;
    }
    fitting_epilogue(epilogue, tensors, *n, &[a, b])?;
    Ok((super::product(lead_a) * m * n, output))
}

/// A linear operator's operands fit its arithmetic; floats are of one type.
fn operands(epilogue: &Arithmetic<Epilogue>, x: &Tensor, w: &Tensor) -> Result<Output, ShapeError> {
    let output = kind(epilogue, &[x, w])?;
    if output == Output::Floats && x.dtype != w.dtype {
        return Err(ShapeError::MixedTypes { one: x.dtype.name(), other: w.dtype.name() });
    }
    Ok(output)
}

fn fitting_bias(bias: &Tensor, channels: usize, x: &Tensor, w: &Tensor) -> Result<(), ShapeError> {
    let expected = match (x.dtype, w.dtype) {
        (DType::I8, DType::I8) => DType::I32,
        (dtype, _) if dtype.is_float() => DType::F32,
        _ => DType::I64,
    };
    if bias.elements() != channels || bias.dtype != expected || bias.constant.is_none() {
        let (shape, found) = (bias.shape.clone(), bias.dtype.name());
        return Err(ShapeError::Bias { shape, found, channels, expected: expected.name() });
    }
    Ok(())
}

fn fitting_epilogue(
    epilogue: &Arithmetic<Epilogue>,
    tensors: &[Tensor],
    channels: usize,
    operands: &[&Tensor],
) -> Result<(), ShapeError> {
    match epilogue {
        Arithmetic::Fixed(epilogue) => {
            requant(&epilogue.requant, channels)?;
            if let Some(shift) = epilogue.first_shift {
                if shift > 47 {
                    return Err(ShapeError::FirstShift(shift));
                }
                if operands.iter().all(|operand| operand.dtype == DType::I8) {
                    return Err(ShapeError::NarrowFirstShift);
                }
            }
            epilogue.table.as_ref().map_or(Ok(()), |t| table(t, tensors, 16))
        }
        Arithmetic::Float(finish) => Ok(finish.check()?),
    }
}
