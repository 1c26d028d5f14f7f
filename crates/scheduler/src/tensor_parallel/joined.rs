//! All graphs of all devices as one, in which exchanges are concatenations and slices.

use std::collections::BTreeMap;

use tpuflow_checker::Claim;
use tpuflow_ir::{Graph, Layer, Op, Tensor, TensorId};

use super::DeviceGraph;
use crate::tiling::movement::slice;
use crate::tiling::region::Region;

/// The graph, and by its tensors which part of which tensor of `graph` they hold.
pub(super) fn joined(graph: &Graph, supersteps: &[Vec<DeviceGraph>]) -> (Graph, Vec<Claim>) {
    let mut joined = Joined::new(graph);
    for devices in supersteps {
        for (device, own) in devices.iter().enumerate() {
            joined.device_graph(device, own);
        }
    }
    let outputs = graph.outputs.iter().map(|&output| joined.output(output)).collect();
    let Joined { tensors, layers, claims, .. } = joined;
    let inputs = (0..graph.inputs.len()).map(TensorId::new).collect();
    (Graph { name: graph.name.clone(), tensors, layers, inputs, outputs, states: vec![] }, claims)
}

struct Joined<'a> {
    graph: &'a Graph,
    tensors: Vec<Tensor>,
    claims: Vec<Claim>,
    layers: Vec<Layer>,
    /// By tensor of the network: the parts that a device (`None`: the user) has given, and where they are.
    given: BTreeMap<TensorId, Vec<(Option<usize>, Region, TensorId)>>,
}

impl<'a> Joined<'a> {
    fn new(graph: &'a Graph) -> Self {
        let mut new = Self { graph, tensors: vec![], claims: vec![], layers: vec![], given: BTreeMap::new() };
        for &input in &graph.inputs {
            let whole = Region::whole(&graph.tensor(input).shape);
            let id = new.tensor(graph.tensor(input).clone(), input, &whole);
            new.given.entry(input).or_default().push((None, whole, id));
        }
        new
    }

    fn tensor(&mut self, tensor: Tensor, of: TensorId, region: &Region) -> TensorId {
        self.tensors.push(tensor);
        self.claims.push((of, region.0.clone()));
        TensorId::new(self.tensors.len() - 1)
    }

    fn layer(&mut self, of: TensorId, region: &Region, op: Op) -> TensorId {
        let whole = self.graph.tensor(of);
        let tensor = Tensor { shape: region.shape(), constant: None, packed: None, ..whole.clone() };
        let output = self.tensor(tensor, of, region);
        self.layers.push(Layer { name: format!("exchange of {}", whole.name), op, output, nodes: vec![], terms: None });
        output
    }

    fn device_graph(&mut self, device: usize, own: &DeviceGraph) {
        let mut numbers = Vec::with_capacity(own.claims.len());
        for ((number, tensor), claim) in own.graph.tensors.iter().enumerate().zip(&own.claims) {
            let region = Region(claim.region.clone());
            let is_input = own.graph.inputs.iter().any(|id| id.index() == number);
            numbers.push(if is_input {
                self.fetch(device, claim.tensor, &region)
            } else {
                self.tensor(tensor.clone(), claim.tensor, &region)
            });
        }
        for layer in &own.graph.layers {
            let operands: Vec<TensorId> = layer.op.operands().iter().map(|id| numbers[id.index()]).collect();
            let output = numbers[layer.output.index()];
            self.layers.push(Layer { op: layer.op.with_operands(&operands), output, ..layer.clone() });
        }
        for output in &own.graph.outputs {
            let claim = &own.claims[output.index()];
            let entry = (Some(device), Region(claim.region.clone()), numbers[output.index()]);
            self.given.entry(claim.tensor).or_default().push(entry);
        }
    }

    /// What a device reads: of its own or the user's where that has all of it, else of all devices.
    fn fetch(&mut self, device: usize, tensor: TensorId, region: &Region) -> TensorId {
        let given = self.given.get(&tensor).map_or(&[][..], Vec::as_slice);
        let own = given.iter().find(|(by, held, _)| by.is_none_or(|by| by == device) && held.holds(region));
        let (held, from) = match own.cloned() {
            Some((_, held, from)) => (held, from),
            None => (Region::whole(&self.graph.tensor(tensor).shape), self.output(tensor)),
        };
        if held == *region {
            return from;
        }
        let inner = held.0.iter().zip(&region.0).map(|(held, own)| (own.0 - held.0, own.1 - held.0)).collect();
        self.layer(tensor, region, slice(from, &held.shape(), &Region(inner)))
    }

    /// A tensor of the network, whole: as the first device has it, or its parts joined.
    fn output(&mut self, tensor: TensorId) -> TensorId {
        let whole = Region::whole(&self.graph.tensor(tensor).shape);
        let given = self.given.get(&tensor).cloned().unwrap_or_default();
        if let Some((_, _, id)) = given.iter().find(|(_, held, _)| *held == whole) {
            return *id;
        }
        if self.graph.tensor(tensor).constant.is_some() {
            return self.tensor(self.graph.tensor(tensor).clone(), tensor, &whole);
        }
        let differs = |axis: &usize| given.iter().any(|(_, held, _)| held.0[*axis] != whole.0[*axis]);
        let axis = (0..whole.0.len()).find(differs).unwrap_or(0);
        let inputs: Vec<TensorId> = given.iter().map(|(_, _, id)| *id).collect();
        let requants = vec![None; inputs.len()];
        let id = self.layer(tensor, &whole, Op::Concat { inputs, axis: axis as u32, requants });
        self.given.entry(tensor).or_default().push((None, whole, id));
        id
    }
}
