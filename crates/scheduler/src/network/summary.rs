//! A summary of every layer for reports.

use tpuflow_ir::isa::WorkKind;
use tpuflow_ir::program::LayerSummary;
use tpuflow_ir::{Graph, Machine, Op, Unit};

use crate::network::{Linear, Network};

/// Samples per run: the leading extent of the first input.
pub(crate) fn batch(graph: &Graph) -> u32 {
    let first = graph.inputs.first().map(|&t| graph.tensor(t));
    first.and_then(|t| t.source.as_ref().map_or(t.shape.first(), |s| s.shape.first())).map_or(1, |&n| n as u32)
}

/// One summary per layer, bounds not yet filled in.
pub(crate) fn layers(graph: &Graph, network: &Network, machine: &Machine) -> Vec<LayerSummary> {
    let summary = |layer: &tpuflow_ir::Layer| LayerSummary {
        name: layer.name.clone(),
        op: layer.op.name().to_owned(),
        dtype: graph.tensor(layer.output).dtype,
        unit: unit_of(network, &layer.op, machine),
        macs: macs(graph, network, layer),
        bound: 0,
        binding: String::new(),
        nodes: layer.nodes.clone(),
    };
    graph.layers.iter().map(summary).collect()
}

/// The unit of a machine that computes an operator.
pub(crate) fn unit_of(network: &Network, op: &Op, machine: &Machine) -> Unit {
    Unit::executing(WorkKind::of(op, |tensor| &network.tensor(tensor).shape), machine)
}

fn macs(graph: &Graph, network: &Network, layer: &tpuflow_ir::Layer) -> u64 {
    let terms = Linear::of(&layer.op, network).map_or(0, |linear| layer.terms.unwrap_or(linear.k()));
    graph.tensor(layer.output).elements() as u64 * u64::from(terms)
}
