//! Layers that tilings make of attention by blocks of keys: they take or leave statistics of rows, or sums as they are.

use tpuflow_ir::{Arithmetic, DType, Graph, Layer, Measure, Op, TensorId};
use tpuflow_kernels::softmax::Statistics;
use tpuflow_kernels::sums::{self, Codes};
use tpuflow_kernels::{Values, reduce};

use super::execute::{last, softmax_of};
use super::prepare::Constants;

/// Whether a layer is one of these.
pub(super) fn is_of_blocks(graph: &Graph, layer: &Layer) -> bool {
    let takes_sums = matches!(&layer.op, Op::Reduce { input, .. } if graph.tensor(*input).dtype == DType::I64);
    layer.op.is_of_blocks() || takes_sums
}

/// Computes such a layer.
pub(super) fn compute<'v>(
    graph: &Graph,
    layer: &Layer,
    prepared: &Constants,
    value: impl Fn(TensorId) -> &'v Values,
    y: &mut Values,
) {
    let n = |id: TensorId| last(graph.tensor(id));
    match (&layer.op, prepared) {
        (Op::MatMul { a, b, .. }, _) => partial_products(graph, [*a, *b], value, y),
        (
            Op::Softmax { input, exponentials: Arithmetic::Fixed(fixed), statistics: Some(id), .. },
            Constants::Mask(mask),
        ) => {
            let (function, n, mask) = (softmax_of(fixed), n(*input), mask.full(&value));
            let rows = statistics(value(*id));
            codes!(value(*input), x => codes!(y, y => {
                for (row, ((x, y), statistics)) in x.chunks_exact(n).zip(y.chunks_exact_mut(n)).zip(rows).enumerate() {
                    function.shares(statistics, x, mask.get(row * n..row * n + n).unwrap_or_default(), y);
                }
            }));
        }
        (Op::SoftmaxStatistics { input, earlier, measure, .. }, Constants::Mask(mask)) => {
            let (n, mask, Values::I64(y)) = (n(*input), mask.full(&value), y) else {
                unreachable!("statistics are int64")
            };
            let mut rows = earlier.map_or_else(|| vec![Statistics::EMPTY; y.len() / 2], |id| statistics(value(id)));
            codes!(value(*input), x => for (row, (x, own)) in x.chunks_exact(n).zip(&mut rows).enumerate() {
                let mask = mask.get(row * n..row * n + n).unwrap_or_default();
                *own = match *measure {
                    Measure::Maximum => own.with_maximum(x, mask),
                    Measure::Sum { coefficient } => own.with_sum(coefficient, x, mask),
                };
            });
            y.chunks_exact_mut(2).zip(rows).for_each(|(y, own)| y.copy_from_slice(&[own.max, own.sum]));
        }
        (Op::Reduce { input, kind, requant: Arithmetic::Fixed(requant), .. }, Constants::Reduce(reduction)) => {
            let Values::I64(x) = value(*input) else { unreachable!("sums are int64") };
            let mut sums = vec![0; y.len()];
            reduce::add(reduction, x, &mut sums, false);
            codes!(y, y => y.iter_mut().zip(sums).for_each(|(y, sum)| *y = reduce::finish(*kind, requant, sum)));
        }
        (op, _) => unreachable!("{} was prepared as another operator", op.name()),
    }
}

/// Products over some of what others sum over, matrix by matrix.
fn partial_products<'v>(graph: &Graph, [a, b]: [TensorId; 2], value: impl Fn(TensorId) -> &'v Values, y: &mut Values) {
    let Values::I64(y) = y else { unreachable!("sums are int64") };
    let ([.., m, k], [.., n]) = (&graph.tensor(a).shape[..], &graph.tensor(b).shape[..]) else {
        unreachable!("the shape rule admits only matrices")
    };
    let (m, k, n) = (*m, *k, *n);
    let zero_points = [a, b].map(|id| graph.tensor(id).zero_point());
    let is_one = graph.tensor(b).shape.len() == 2;
    codes!(value(a), a => codes!(value(b), b => {
        for (matrix, (a, y)) in a.chunks_exact(m * k).zip(y.chunks_exact_mut(m * n)).enumerate() {
            let first = if is_one { 0 } else { matrix * k * n };
            let (a, b) = (Codes { codes: a, zero_point: zero_points[0] }, &b[first..first + k * n]);
            sums::products(a, Codes { codes: b, zero_point: zero_points[1] }, [k, n], y);
        }
    }));
}

/// Statistics of a softmax, row by row.
fn statistics(values: &Values) -> Vec<Statistics> {
    let Values::I64(pairs) = values else { unreachable!("statistics are int64") };
    pairs.chunks_exact(2).map(|pair| Statistics { max: pair[0], sum: pair[1] }).collect()
}
