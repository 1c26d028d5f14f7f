//! Shapes of results.

use crate::shape::broadcast;
use crate::{Op, Tensor, TensorId, Window};

/// The shape an operator computes of operands that fit; none where it counts elements in row-major order, so that any serves.
#[must_use]
pub fn result_shape(op: &Op, tensors: &[Tensor]) -> Option<Vec<usize>> {
    let shape = |id: &TensorId| tensors[id.index()].shape.clone();
    let windowed = |input: &TensorId, window: &Window, channels: usize| {
        let x = shape(input);
        let [h, w] = window.output(x[1], x[2])?;
        Some(vec![x[0], h, w, channels])
    };
    match op {
        Op::Conv { input, weights, window, .. } => windowed(input, window, shape(weights)[0]),
        Op::MaxPool { input, window } | Op::AveragePool { input, window, .. } => {
            windowed(input, window, shape(input)[3])
        }
        Op::MatMul { a, b, .. } => {
            let mut out = shape(a);
            *out.last_mut()? = *shape(b).last()?;
            Some(out)
        }
        Op::Binary { a, b, .. } => broadcast(&shape(a), &shape(b)),
        Op::Select { condition, a, b } => broadcast(&broadcast(&shape(a), &shape(b))?, &shape(condition)),
        Op::Unary { input, .. }
        | Op::Rescale { input, .. }
        | Op::Quantize { input, .. }
        | Op::Dequantize { input, .. }
        | Op::PRelu { input, .. }
        | Op::Softmax { input, .. }
        | Op::LayerNorm { input, .. } => Some(shape(input)),
        Op::SoftmaxStatistics { input, .. } => {
            let mut out = shape(input);
            *out.last_mut()? = 2;
            Some(out)
        }
        Op::ArgMax { input, .. } => {
            let mut out = shape(input);
            match out.last_mut() {
                Some(last) => *last = 1,
                None => out.push(1),
            }
            Some(out)
        }
        Op::Embedding { table, indices, entry } => {
            let mut out = shape(indices);
            let table = shape(table);
            out.push(entry.count([*table.first()?, *table.get(1)?])[1]);
            Some(out)
        }
        Op::ResizeLinear { input, rows, columns } => {
            let x = shape(input);
            Some(vec![x[0], rows.len(), columns.len(), x[3]])
        }
        Op::Concat { inputs, axis, .. } => {
            let mut out = shape(inputs.first()?);
            out[*axis as usize] = inputs.iter().map(|input| shape(input)[*axis as usize]).sum();
            Some(out)
        }
        Op::Pad { input, before, after, .. } => {
            let pads = before.iter().zip(after).map(|(&before, &after)| before as usize + after as usize);
            Some(shape(input).iter().zip(pads).map(|(extent, pad)| extent + pad).collect())
        }
        Op::InsertZeros { input, stride } => {
            let (x, spread) = (shape(input), |extent: usize, step: u32| (extent - 1) * step as usize + 1);
            Some(vec![x[0], spread(x[1], stride[0]), spread(x[2], stride[1]), x[3]])
        }
        Op::Reduce { .. } | Op::Rearrange { .. } | Op::Gather { .. } => None,
    }
}

/// The shape a result is computed in, if it may not be declared with another one of as many elements: leading axes of extent one may
/// be there or not where no axis is counted from the first, and so may the axis of extent one that [`Op::ArgMax`] leaves.
pub(crate) fn contradicting_shape(op: &Op, tensors: &[Tensor], declared: &[usize]) -> Option<Vec<usize>> {
    let computed = result_shape(op, tensors)?;
    let fits = match op {
        Op::Concat { .. } | Op::Pad { .. } | Op::InsertZeros { .. } => computed == *declared,
        Op::ArgMax { .. } if computed[..computed.len() - 1] == *declared => true,
        _ => own_axes(&computed) == own_axes(declared),
    };
    (!fits).then_some(computed)
}

/// Extents from the first that is not one.
fn own_axes(shape: &[usize]) -> &[usize] {
    &shape[shape.iter().position(|&extent| extent != 1).unwrap_or(shape.len())..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arithmetic, BinaryKind, DType, Finish};

    fn tensor(shape: &[usize]) -> Tensor {
        let (name, shape) = ("x".to_owned(), shape.to_vec());
        Tensor { name, shape, dtype: DType::F32, quant: None, source: None, constant: None, packed: None }
    }

    #[test]
    fn leading_ones_may_be_added_and_left_out() {
        let tensors = [tensor(&[1, 1, 2, 3]), tensor(&[2, 3])];
        let op = Op::Binary {
            kind: BinaryKind::Add,
            a: TensorId(0),
            b: TensorId(1),
            ka: 1,
            kb: 1,
            requant: Arithmetic::Float(Finish::default()),
        };
        assert_eq!(result_shape(&op, &tensors), Some(vec![1, 1, 2, 3]));
        for declared in [&[2, 3][..], &[1, 2, 3], &[1, 1, 2, 3], &[1, 1, 1, 2, 3]] {
            assert_eq!(contradicting_shape(&op, &tensors, declared), None);
        }
        for declared in [&[6][..], &[3, 2], &[2, 1, 3], &[2, 3, 1]] {
            assert_eq!(contradicting_shape(&op, &tensors, declared), Some(vec![1, 1, 2, 3]));
        }
    }

    #[test]
    fn axes_counted_from_the_first_are_there() {
        let tensors = [tensor(&[2, 3]), tensor(&[2, 1])];
        let op = Op::Concat { inputs: vec![TensorId(0), TensorId(1)], axis: 1, requants: vec![None, None] };
        assert_eq!(contradicting_shape(&op, &tensors, &[2, 4]), None);
        for declared in [&[1, 2, 4][..], &[8], &[4, 2]] {
            assert_eq!(contradicting_shape(&op, &tensors, declared), Some(vec![2, 4]));
        }
    }

    #[test]
    fn the_axis_of_the_largest_may_be_dropped() {
        let tensors = [tensor(&[2, 3, 4])];
        let op = Op::ArgMax { input: TensorId(0), largest: true, select_last: false };
        for declared in [&[2, 3][..], &[2, 3, 1]] {
            assert_eq!(contradicting_shape(&op, &tensors, declared), None);
        }
        assert_eq!(contradicting_shape(&op, &tensors, &[6]), Some(vec![2, 3, 1]));
    }
}
