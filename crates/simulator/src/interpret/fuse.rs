//! Which binary operators are applied to the codes of a convolution or product while these are still in the cache: most often
//! the addition at the end of a residual block. The codes are the same as when one follows the other.

use tpuflow_ir::{Arithmetic, DType, Graph, Op, TensorId};

use super::prepare::Constants;

/// Per layer, the later one that is applied to its codes at once.
///
/// It must be the only reader of the codes and all its tensors int8 of one shape, and its other operand must be there when the
/// convolution runs: of two convolutions it is the second.
pub(super) fn successors(graph: &Graph, layers: &[Constants]) -> Vec<Option<usize>> {
    let (readers, producers) = uses(graph);
    let producer = |id: TensorId| producers[id.index()];
    let mut successors = vec![None; layers.len()];
    for (position, layer) in graph.layers.iter().enumerate() {
        let Op::Binary { a, b, requant: Arithmetic::Fixed(_), .. } = &layer.op else { continue };
        let own = if producer(*a) > producer(*b) { *a } else { *b };
        let result = graph.tensor(layer.output);
        let alike = [*a, *b].iter().all(|id| graph.tensor(*id).shape == result.shape);
        let narrow = [*a, *b, layer.output].iter().all(|id| graph.tensor(*id).dtype == DType::I8);
        if let Some(first) = producer(own)
            && (a != b && alike && narrow && readers[own.index()] == 1)
            && matches!(layers[first], Constants::Conv(_) | Constants::Product(_))
        {
            successors[first] = Some(position);
        }
    }
    successors
}

/// By tensor, how many layers and outputs read it, and the layer that makes it.
pub(super) fn uses(graph: &Graph) -> (Vec<usize>, Vec<Option<usize>>) {
    let (mut readers, mut producers) = (vec![0; graph.tensors.len()], vec![None; graph.tensors.len()]);
    for (position, layer) in graph.layers.iter().enumerate() {
        graph.activations(layer).for_each(|id| readers[id.index()] += 1);
        producers[layer.output.index()] = Some(position);
    }
    graph.outputs.iter().for_each(|id| readers[id.index()] += 1);
    (readers, producers)
}
