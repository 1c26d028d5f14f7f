//! All graphs of all devices as one, in which exchanges are concatenations.

use std::collections::BTreeMap;

use tpuflow_checker::Claim;
use tpuflow_ir::{Graph, Layer, Op, Tensor, TensorId};

use super::DeviceGraph;
use crate::tiling::movement::slice;
use crate::tiling::region::Region;

/// The graph, and by its tensors which part of which tensor of `graph` they hold.
pub(super) fn joined(graph: &Graph, devices: &[DeviceGraph]) -> (Graph, Vec<Claim>) {
    let mut joined = Joined { graph, tensors: vec![], claims: vec![], layers: vec![] };
    for &input in &graph.inputs {
        joined.tensor(graph.tensor(input).clone(), input, &Region::whole(&graph.tensor(input).shape));
    }
    let numbers: Vec<Vec<TensorId>> =
        devices.iter().enumerate().map(|(rank, own)| joined.tensors_of(rank, own)).collect();
    joined.layers_of(devices, &numbers);
    let given = |tensor: TensorId| -> Vec<(Region, TensorId)> {
        let one = |(own, numbers): (&DeviceGraph, &Vec<TensorId>)| {
            let id = own.graph.outputs.iter().find(|id| own.claims[id.index()].tensor == tensor)?;
            Some((Region(own.claims[id.index()].region.clone()), numbers[id.index()]))
        };
        devices.iter().zip(&numbers).filter_map(one).collect()
    };
    let mut known: BTreeMap<TensorId, TensorId> = BTreeMap::new();
    let outputs = graph
        .outputs
        .iter()
        .map(|&output| *known.entry(output).or_insert_with(|| joined.output(output, &given(output))));
    let outputs = outputs.collect();
    let Joined { tensors, layers, claims, .. } = joined;
    let inputs = (0..graph.inputs.len()).map(TensorId::new).collect();
    let (states, exchanges) = (vec![], vec![]);
    (Graph { name: graph.name.clone(), tensors, layers, inputs, outputs, states, exchanges }, claims)
}

struct Joined<'a> {
    graph: &'a Graph,
    tensors: Vec<Tensor>,
    claims: Vec<Claim>,
    layers: Vec<Layer>,
}

impl Joined<'_> {
    fn tensor(&mut self, tensor: Tensor, of: TensorId, region: &Region) -> TensorId {
        self.tensors.push(tensor);
        self.claims.push((of, region.0.clone()));
        TensorId::new(self.tensors.len() - 1)
    }

    fn layer(&mut self, name: String, of: TensorId, region: &Region, op: Op) -> TensorId {
        let whole = self.graph.tensor(of);
        let name_of_tensor = if region.fills(&whole.shape) { whole.name.clone() } else { name.clone() };
        let own = Tensor { name: name_of_tensor, shape: region.shape(), constant: None, packed: None, ..whole.clone() };
        let output = self.tensor(own, of, region);
        self.layers.push(Layer { name, op, output, nodes: vec![], terms: None });
        output
    }

    /// The tensors of a device by number: slices of the network's inputs, and tensors of its own. Parts that it loads are found later.
    fn tensors_of(&mut self, rank: usize, own: &DeviceGraph) -> Vec<TensorId> {
        let mut numbers = Vec::with_capacity(own.claims.len());
        for ((number, tensor), claim) in own.graph.tensors.iter().enumerate().zip(&own.claims) {
            let region = Region(claim.region.clone());
            let is_input = own.graph.inputs.iter().any(|id| id.index() == number);
            let from = self.graph.inputs.iter().position(|input| *input == claim.tensor).filter(|_| is_input);
            numbers.push(match from {
                Some(from) if region.fills(&self.graph.tensor(claim.tensor).shape) => TensorId::new(from),
                Some(from) => {
                    let op = slice(TensorId::new(from), &self.graph.tensor(claim.tensor).shape, &region);
                    self.layer(format!("device {rank}: {}", tensor.name), claim.tensor, &region, op)
                }
                None => {
                    let name = format!("device {rank}: {}", tensor.name);
                    self.tensor(Tensor { name, ..tensor.clone() }, claim.tensor, &region)
                }
            });
        }
        numbers
    }

    /// The layers of all devices, each behind those that compute what it reads.
    fn layers_of(&mut self, devices: &[DeviceGraph], numbers: &[Vec<TensorId>]) {
        let mut next = vec![0; devices.len()];
        let mut made = vec![false; self.tensors.len()];
        for (id, tensor) in self.tensors.iter().enumerate() {
            made[id] = tensor.constant.is_some() || id < self.graph.inputs.len();
        }
        for layer in &self.layers {
            made[layer.output.index()] = true;
        }
        let mut going_on = true;
        while std::mem::take(&mut going_on) {
            for (rank, own) in devices.iter().enumerate() {
                while let Some(layer) = own.graph.layers.get(next[rank]) {
                    let source = |id: &TensorId| number_of(devices, numbers, rank, *id);
                    let operands: Vec<TensorId> = layer.op.operands().iter().map(source).collect();
                    if !operands.iter().all(|id| made[id.index()]) {
                        break;
                    }
                    let output = numbers[rank][layer.output.index()];
                    made[output.index()] = true;
                    let name = format!("device {rank}: {}", layer.name);
                    self.layers.push(Layer { name, op: layer.op.with_operands(&operands), output, ..layer.clone() });
                    next[rank] += 1;
                    going_on = true;
                }
            }
        }
    }

    /// A tensor of the network, whole: as the first device has it, or its parts joined.
    fn output(&mut self, tensor: TensorId, given: &[(Region, TensorId)]) -> TensorId {
        let whole = Region::whole(&self.graph.tensor(tensor).shape);
        let info = self.graph.tensor(tensor);
        if let Some(input) = self.graph.inputs.iter().position(|input| *input == tensor) {
            return TensorId::new(input);
        }
        if info.constant.is_some() {
            return self.tensor(info.clone(), tensor, &whole);
        }
        if let Some((_, id)) = given.iter().find(|(held, _)| *held == whole) {
            self.tensors[id.index()].name.clone_from(&info.name);
            self.tensors[id.index()].source.clone_from(&info.source);
            return *id;
        }
        let differs = |axis: &usize| given.iter().any(|(held, _)| held.0[*axis] != whole.0[*axis]);
        let axis = (0..whole.0.len()).find(differs).unwrap_or(0) as u32;
        let inputs: Vec<TensorId> = given.iter().map(|(_, id)| *id).collect();
        let requants = vec![None; inputs.len()];
        self.layer(format!("parts of {}", info.name), tensor, &whole, Op::Concat { inputs, axis, requants })
    }
}

/// The tensor of the joined graph that a tensor of a device is; of a part that it loads, the one of the device whose part it is.
fn number_of(devices: &[DeviceGraph], numbers: &[Vec<TensorId>], rank: usize, id: TensorId) -> TensorId {
    let graph = &devices[rank].graph;
    let place = |exchange: &tpuflow_ir::Exchange| {
        let peer = exchange.inputs.iter().position(|&input| graph.inputs[input as usize] == id)?;
        Some((peer, devices[peer].graph.outputs[exchange.output as usize]))
    };
    let found = graph.exchanges.iter().find_map(place);
    found.map_or_else(|| numbers[rank][id.index()], |(peer, output)| numbers[peer][output.index()])
}
