//! Rows of heads apart: a tensor whose rows are the heads of all tokens has the tokens and the heads as axes of their own.
//!
//! Models normalise queries and keys by head, as rows of one matrix `[tokens * heads, channels]`. A part of the heads is no box of
//! that. The same elements in the same order as `[tokens, heads, channels]` can be cut.

use std::collections::BTreeMap;

use tpuflow_ir::{Graph, Op, TensorId};

/// The graph with shapes of tensors in between that can be cut by heads; the same operators on the same elements.
pub(super) fn unmerged(graph: &Graph) -> Graph {
    let mut readers: BTreeMap<TensorId, Vec<usize>> = BTreeMap::new();
    for (number, layer) in graph.layers.iter().enumerate() {
        for operand in layer.op.operands() {
            readers.entry(operand).or_default().push(number);
        }
    }
    let mut found = graph.clone();
    for layer in &graph.layers {
        if let Some(shape) = by_heads(graph, &layer.op, layer.output)
            && let Some(alike) = read_by_row(graph, &readers, layer.output)
        {
            for tensor in alike {
                found.tensors[tensor.index()].shape.clone_from(&shape);
            }
        }
    }
    if found.verify().is_empty() { found } else { graph.clone() }
}

/// The shape of rows of heads that a view only reshapes, apart.
fn by_heads(graph: &Graph, op: &Op, output: TensorId) -> Option<Vec<usize>> {
    let Op::Rearrange { input, dims, strides, offset: 0 } = op else { return None };
    let (from, to) = (&graph.tensor(*input).shape, &graph.tensor(output).shape);
    let (&[rows, channels], &width) = (&to[..], from.last()?) else { return None };
    let is_reshaped = matches!((&dims[..], &strides[..]), ([count], [1]) if *count as usize == rows * channels);
    let is_merged = channels > 0 && width > channels && width.is_multiple_of(channels) && rows > width / channels;
    let same = graph.tensor(*input).elements() == rows * channels;
    (is_reshaped && is_merged && same).then(|| vec![rows * channels / width, width / channels, channels])
}

/// The tensor and those computed of it row by row, if everything else only reads their elements in order.
fn read_by_row(graph: &Graph, readers: &BTreeMap<TensorId, Vec<usize>>, first: TensorId) -> Option<Vec<TensorId>> {
    let (mut alike, mut next) = (Vec::new(), vec![first]);
    while let Some(tensor) = next.pop() {
        if graph.outputs.contains(&tensor) {
            return None;
        }
        alike.push(tensor);
        for &reader in readers.get(&tensor).map_or(&[][..], Vec::as_slice) {
            let layer = &graph.layers[reader];
            let shape = |id: TensorId| &graph.tensor(id).shape;
            match &layer.op {
                Op::Rearrange { .. } => {}
                Op::LayerNorm { input, .. }
                | Op::Unary { input, .. }
                | Op::Rescale { input, .. }
                | Op::PRelu { input, .. }
                    if *input == tensor && shape(layer.output) == shape(tensor) =>
                {
                    next.push(layer.output);
                }
                _ => return None,
            }
        }
    }
    Some(alike)
}
