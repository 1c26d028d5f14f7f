//! What reports want to know of every layer.

use tpuflow_ir::program::LayerSummary;
use tpuflow_ir::{Graph, Op, Unit};

use crate::network::Network;
use crate::network::{Linear, is_depthwise};

/// Samples per run: the leading extent of the first input.
pub(crate) fn batch(graph: &Graph) -> u32 {
    let first = graph.inputs.first().map(|&t| graph.tensor(t));
    first.and_then(|t| t.source.as_ref().map_or(t.shape.first(), |s| s.shape.first())).map_or(1, |&n| n as u32)
}

/// One summary per layer, bounds not yet filled in.
pub(crate) fn layers(graph: &Graph, network: &Network) -> Vec<LayerSummary> {
    let summary = |layer: &tpuflow_ir::Layer| LayerSummary {
        name: layer.name.clone(),
        op: layer.op.name().to_owned(),
        dtype: graph.tensor(layer.output).dtype,
        unit: unit_of(network, &layer.op),
        macs: macs(graph, network, layer),
        bound: 0,
        binding: String::new(),
        nodes: layer.nodes.clone(),
    };
    graph.layers.iter().map(summary).collect()
}

/// The unit that computes an operator.
pub(crate) fn unit_of(network: &Network, op: &Op) -> Unit {
    match op {
        Op::Conv { .. } if is_depthwise(network, op) => Unit::Pdp,
        Op::Conv { .. } | Op::MatMul { .. } => Unit::Me,
        Op::MaxPool { .. } | Op::AveragePool { .. } => Unit::Pdp,
        Op::Embedding { .. } => Unit::Dtl0,
        _ => Unit::Ewp,
    }
}

fn macs(graph: &Graph, network: &Network, layer: &tpuflow_ir::Layer) -> u64 {
    Linear::of(&layer.op, network).map_or(0, |l| graph.tensor(layer.output).elements() as u64 * u64::from(l.k()))
}
