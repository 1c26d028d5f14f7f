//! Products of two activations, `[.., m, k]` by `[.., k, n]`.
//!
//! With few rows the right operand is read where it lies rather than packed; and a rearrangement of whole rows or columns, as of
//! the keys and values of a cache by head, is not carried out if only the product reads it.

use std::sync::Arc;

use tpuflow_ir::{DType, Graph, Op, TensorId};
use tpuflow_kernels::epilogue::{Epilogue, Offsets};
use tpuflow_kernels::gemm::unpacked::{FEW, Unpacked, add_products};
use tpuflow_kernels::linear::{self, Linear, Matrix};
use tpuflow_kernels::{Element, Values, parallel};

use super::fuse::uses;
use super::prepare::Constants;

/// Products of one layer.
#[derive(Clone, Debug)]
pub(super) struct Products {
    operands: [TensorId; 2],
    shape: [usize; 3],
    zero_points: [i32; 2],
    bias: Vec<i64>,
    epilogue: Epilogue,
    /// The right operands of few rows.
    right: Option<RightOperands>,
    /// The same in the tensor that they are arranged of.
    source: Option<RightOperands>,
}

impl Products {
    /// Those of operands `a` and `b`; `bias` is empty or has an entry per column.
    pub(super) fn new(graph: &Graph, operands: [TensorId; 2], bias: Vec<i64>, epilogue: Epilogue) -> Self {
        let [a, b] = operands.map(|id| graph.tensor(id));
        let ([before @ .., m, k], [.., n]) = (&a.shape[..], &b.shape[..]) else {
            unreachable!("the shape rule admits only matrices")
        };
        let zero_points = [a.zero_point(), b.zero_point()];
        let matrices = b.elements().checked_div(k * n).unwrap_or(0);
        let rows = if matrices <= 1 { before.iter().product::<usize>() * m } else { *m };
        let right = RightOperands::dense(graph, operands[1]).filter(|_| rows <= FEW);
        Self { operands, shape: [rows, *k, *n], zero_points, bias, epilogue, right, source: None }
    }

    /// The tensor that the right operands are read in though the graph has them rearranged first.
    pub(super) fn source(&self) -> Option<TensorId> {
        Some(self.source.as_ref()?.tensor)
    }

    /// Computes the result from its operands among `tensors`.
    pub(super) fn run(&self, tensors: &[Option<Arc<Values>>], y: &mut Values) {
        let value = |id: TensorId| tensors[id.index()].as_deref();
        let present = |id: TensorId| value(id).expect("operands precede their readers");
        let [a, b] = self.operands;
        // One that is there may have been given in place of what the graph makes.
        let in_place = self.source.as_ref().filter(|_| value(b).is_none()).or(self.right.as_ref());
        match (present(a), y) {
            (Values::I8(a), Values::I8(y)) => self.run_codes(a, in_place, present, y),
            (Values::I8(a), Values::I16(y)) => self.run_codes(a, in_place, present, y),
            (Values::I16(a), Values::I8(y)) => self.run_codes(a, in_place, present, y),
            (Values::I16(a), Values::I16(y)) => self.run_codes(a, in_place, present, y),
            (a, _) => unreachable!("the shape rule does not admit {} here", a.dtype().name()),
        }
    }

    fn run_codes<'v, X: Element, Y: Element>(
        &self,
        a: &[X],
        in_place: Option<&RightOperands>,
        value: impl Fn(TensorId) -> &'v Values,
        y: &mut [Y],
    ) {
        match in_place.map(|right| (right, value(right.tensor))) {
            Some((right, Values::I8(codes))) => self.run_in_place(a, right, codes, y),
            _ => self.run_packed(a, value(self.operands[1]), y),
        }
    }

    fn run_in_place<X: Element, Y: Element>(&self, a: &[X], right: &RightOperands, codes: &[i8], y: &mut [Y]) {
        let [rows, k, n] = self.shape;
        let columns = if self.bias.is_empty() { &vec![0; n] } else { &self.bias };
        parallel::chunks(y, rows * n, |index, y| {
            let a = &a[index * rows * k..][..rows * k];
            let a: Vec<i32> = a.iter().map(|x| x.widen() - self.zero_points[0]).collect();
            let mut sums = vec![0; y.len()];
            add_products(&a, &right.matrix(index, codes), &mut sums);
            for (sums, y) in sums.chunks_exact(n).zip(y.chunks_exact_mut(n)) {
                self.epilogue.wide(sums, Offsets { row: 0, columns }, y);
            }
        });
    }

    fn run_packed<X: Element, Y: Element>(&self, a: &[X], codes: &Values, y: &mut [Y]) {
        let ([rows, k, n], [zero_a, zero_point]) = (self.shape, self.zero_points);
        for (index, y) in y.chunks_exact_mut(rows * n).enumerate() {
            let matrix = Matrix { codes, start: index * k * n, shape: [k, n], strides: [n, 1], zero_point };
            let linear = Linear::new(&matrix, X::BITS == 16, zero_a, &self.bias, self.epilogue.clone());
            linear::multiply(&linear, &a[index * rows * k..][..rows * k], y);
        }
    }
}

/// Matrices `[k, n]` within a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RightOperands {
    /// The tensor.
    tensor: TensorId,
    /// Where each matrix begins.
    starts: Vec<usize>,
    shape: [usize; 2],
    strides: [usize; 2],
    zero_point: i8,
}

impl RightOperands {
    /// Those of a tensor of matrices, row-major.
    fn dense(graph: &Graph, id: TensorId) -> Option<Self> {
        let tensor = graph.tensor(id);
        let [.., k, n] = tensor.shape[..] else { return None };
        let (size, zero_point) = (k * n, i8::try_from(tensor.zero_point()).ok()?);
        let starts = (0..tensor.elements().checked_div(size)?).map(|matrix| matrix * size).collect();
        (tensor.dtype == DType::I8).then_some(Self { tensor: id, starts, shape: [k, n], strides: [n, 1], zero_point })
    }

    /// Those of a rearrangement, in the tensor it reads.
    fn arranged(graph: &Graph, id: TensorId, op: &Op) -> Option<Self> {
        let Op::Rearrange { input, dims, strides, offset } = op else { return None };
        let (dense, first) = (Self::dense(graph, id)?, usize::try_from(*offset).ok()?);
        let mut axes: Vec<(usize, usize)> = Vec::with_capacity(dims.len());
        for (&extent, &stride) in dims.iter().zip(strides).filter(|&(&extent, _)| extent > 1) {
            axes.push((extent as usize, usize::try_from(stride).ok()?));
        }
        let column = split(&mut axes, dense.shape[1])?;
        let row = split(&mut axes, dense.shape[0])?;
        let mut starts = vec![first];
        for &(extent, stride) in &axes {
            starts = starts.iter().flat_map(|start| (0..extent).map(move |at| start + at * stride)).collect();
        }
        let has_whole_lines = row == 1 || column == 1;
        (has_whole_lines && starts.len() == dense.starts.len()).then_some(Self {
            tensor: *input,
            starts,
            strides: [row, column],
            ..dense
        })
    }

    /// Matrix number `index` of the tensor's codes.
    fn matrix<'a>(&self, index: usize, codes: &'a [i8]) -> Unpacked<'a> {
        let Self { shape, strides, zero_point, .. } = *self;
        Unpacked { codes: &codes[self.starts[index]..], shape, strides, zero_point }
    }
}

/// Takes an axis of this extent off the inner end of axes (extent, stride): its stride, if there is only one.
fn split(axes: &mut Vec<(usize, usize)>, extent: usize) -> Option<usize> {
    if extent == 1 {
        // No step is ever taken.
        return Some(1);
    }
    let (mut inner, stride) = axes.pop()?;
    while inner < extent {
        let (outer, step) = axes.pop()?;
        if step != inner * stride {
            return None;
        }
        inner *= outer;
    }
    if inner > extent && inner.is_multiple_of(extent) {
        axes.push((inner / extent, stride * extent));
    }
    inner.is_multiple_of(extent).then_some(stride)
}

/// Puts right operands that are rearranged for one product of few rows alone where that product finds them. Returns, per layer,
/// whether it is such a rearrangement: it need not be carried out unless its result is kept.
pub(super) fn read_in_place(graph: &Graph, layers: &mut [Constants]) -> Vec<bool> {
    let (readers, producers) = uses(graph);
    let mut spared = vec![false; layers.len()];
    for prepared in layers {
        if let Constants::Products(products) = prepared
            && let [_, b] = products.operands
            && let Some(producer) = producers[b.index()].filter(|_| readers[b.index()] == 1 && products.right.is_some())
        {
            products.source = RightOperands::arranged(graph, b, &graph.layers[producer].op);
            spared[producer] = products.source.is_some();
        }
    }
    spared
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_split_and_joined() {
        let mut axes = vec![(1024, 1), (1024, 1024)];
        assert_eq!(split(&mut axes, 1024), Some(1024));
        assert_eq!(split(&mut axes, 128), Some(1));
        assert_eq!(axes, [(8, 128)]);
        let mut axes = vec![(4, 6), (2, 3), (3, 1)];
        assert_eq!(split(&mut axes, 1), Some(1));
        assert_eq!(split(&mut axes, 12), Some(1));
        assert_eq!(axes, [(2, 12)]);
        assert_eq!(split(&mut vec![(4, 5), (3, 1)], 12), None);
        assert_eq!(split(&mut vec![(4, 1)], 3), None);
        assert_eq!(split(&mut vec![], 3), None);
    }
}
