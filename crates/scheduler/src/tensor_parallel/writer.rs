//! The graph of what a device computes in a superstep.

use std::collections::{BTreeMap, BTreeSet};

use tpuflow_ir::{Graph, Layer, State, Tensor, TensorId};

use super::sharding::Sharding;
use super::{DeviceGraph, Slice, local};
use crate::error::ScheduleError;
use crate::tiling::movement::{slice, slice_bytes};
use crate::tiling::region::Region;
use crate::tiling::some_scales;

/// A layer as a device computes it: the operator, the part of the result, the parts of the operands.
struct DeviceLayer<'a> {
    layer: &'a Layer,
    part: crate::tiling::part::Part,
}

/// What is known of all supersteps and devices.
pub(super) struct Plan<'a> {
    pub graph: &'a Graph,
    pub sharding: &'a Sharding,
    /// By tensor, the last superstep that reads it; those of the graph's outputs: none, but they leave.
    last_reads: Vec<Option<usize>>,
}

impl<'a> Plan<'a> {
    pub fn new(graph: &'a Graph, sharding: &'a Sharding) -> Self {
        let mut last_reads = vec![None; graph.tensors.len()];
        for (layer, &superstep) in graph.layers.iter().zip(&sharding.supersteps) {
            for operand in layer.op.operands() {
                last_reads[operand.index()] = last_reads[operand.index()].max(Some(superstep));
            }
        }
        Self { graph, sharding, last_reads }
    }

    /// The graph of a device in a superstep.
    ///
    /// # Errors
    /// [`ScheduleError`] naming a layer that cannot be computed so.
    pub fn device_graph(&self, superstep: usize, device: usize) -> Result<DeviceGraph, ScheduleError> {
        let mut layers = Vec::new();
        for (layer, _) in self.graph.layers.iter().zip(&self.sharding.supersteps).filter(|(_, own)| **own == superstep) {
            let wanted = self.sharding.region(self.graph, layer.output, device);
            let part = self.part(layer, &wanted).map_err(|reason| ScheduleError::Tiling { layer: layer.name.clone(), reason })?;
            layers.push(DeviceLayer { layer, part });
        }
        let mut writer = Writer::new(self.graph);
        let made: BTreeSet<TensorId> = layers.iter().map(|each| each.layer.output).collect();
        writer.inputs(self, &layers, &made, device);
        for each in &layers {
            writer.layer(each);
        }
        for each in &layers {
            let output = each.layer.output;
            let leaves = self.last_reads[output.index()] > Some(superstep) || self.graph.outputs.contains(&output);
            if leaves {
                writer.outputs.push((output, each.part.region.clone()));
            }
        }
        writer.finish()
    }

    fn part(&self, layer: &Layer, wanted: &Region) -> Result<crate::tiling::part::Part, crate::error::TilingError> {
        let shape = |id: TensorId| &self.graph.tensor(id).shape[..];
        if wanted.fills(shape(layer.output)) {
            let operands = layer.op.operands().into_iter().map(|id| Region::whole(shape(id))).collect();
            return Ok(crate::tiling::part::Part { op: layer.op.clone(), region: wanted.clone(), operands });
        }
        local::part(self.graph, layer, wanted)
    }

    /// The past of a state, of which a device has its part only.
    fn is_past(&self, tensor: TensorId) -> bool {
        self.graph.states.iter().any(|state| self.graph.inputs[state.input as usize] == tensor)
    }
}

/// Writes one graph.
struct Writer<'a> {
    graph: &'a Graph,
    tensors: Vec<Tensor>,
    /// By tensor, what it holds.
    claims: Vec<Slice>,
    layers: Vec<Layer>,
    /// What there is of a tensor of the whole graph, and where.
    held: BTreeMap<TensorId, Vec<(Region, TensorId)>>,
    inputs: Vec<TensorId>,
    outputs: Vec<(TensorId, Region)>,
    names: BTreeSet<String>,
}

impl<'a> Writer<'a> {
    fn new(graph: &'a Graph) -> Self {
        let (tensors, claims, layers) = (vec![], vec![], vec![]);
        let (held, inputs, outputs) = (BTreeMap::new(), vec![], vec![]);
        Self { graph, tensors, claims, layers, held, inputs, outputs, names: BTreeSet::new() }
    }

    /// Ports for what earlier supersteps, other devices and the user give: the largest regions that are read.
    fn inputs(&mut self, plan: &Plan<'_>, layers: &[DeviceLayer<'_>], made: &BTreeSet<TensorId>, device: usize) {
        let mut needs: BTreeMap<TensorId, BTreeSet<Region>> = BTreeMap::new();
        for each in layers {
            for (operand, region) in each.part.op.operands().into_iter().zip(&each.part.operands) {
                if self.graph.tensor(operand).constant.is_some() || made.contains(&operand) {
                    continue;
                }
                let past = plan.is_past(operand).then(|| plan.sharding.region(self.graph, operand, device));
                needs.entry(operand).or_default().insert(past.unwrap_or_else(|| region.clone()));
            }
        }
        // Inputs of the graph first and in its order, then tensors in theirs.
        let order: Vec<TensorId> = self.graph.inputs.iter().copied().chain(needs.keys().copied()).collect();
        for tensor in order {
            let Some(regions) = needs.remove(&tensor) else { continue };
            for region in regions.iter().filter(|own| !regions.iter().any(|other| other != *own && other.holds(own))) {
                let port = self.tensor(tensor, region);
                self.inputs.push(port);
            }
        }
    }

    fn layer(&mut self, each: &DeviceLayer<'_>) {
        let DeviceLayer { layer, part } = each;
        let operands = part.op.operands().into_iter().zip(&part.operands);
        let operands: Vec<TensorId> = operands.map(|(tensor, region)| self.fetch(tensor, region, layer)).collect();
        let output = self.tensor(layer.output, &part.region);
        let op = part.op.with_operands(&operands);
        self.layers.push(Layer { op, output, ..(*layer).clone() });
    }

    /// A region of a tensor: where it is, or a slice of that.
    fn fetch(&mut self, tensor: TensorId, region: &Region, reader: &Layer) -> TensorId {
        let known = self.held.get(&tensor).map_or(&[][..], Vec::as_slice);
        if let Some((_, id)) = known.iter().find(|(own, _)| own == region) {
            return *id;
        }
        let source = known.iter().find(|(own, _)| own.holds(region)).cloned();
        let info = self.graph.tensor(tensor);
        let id = self.tensor(tensor, region);
        if let Some(bytes) = &info.constant {
            let whole = region.fills(&info.shape);
            let own = &mut self.tensors[id.index()];
            own.constant = Some(if whole {
                bytes.clone()
            } else {
                slice_bytes(bytes, info.dtype.bytes(), &info.shape, region).into()
            });
            own.packed = match (&info.packed, &region.0[..]) {
                (Some(packed), [rows, columns]) if *rows == (0, info.shape[0]) => {
                    Some(packed.columns(&info.shape, columns.0..columns.1))
                }
                _ => None,
            };
        } else if let Some((outer, from)) = source {
            let inner = outer.0.iter().zip(&region.0).map(|(outer, own)| (own.0 - outer.0, own.1 - outer.0)).collect();
            let op = slice(from, &outer.shape(), &Region(inner));
            let name = self.numbered(&format!("{}:operand", reader.name));
            self.layers.push(Layer { name, op, output: id, nodes: reader.nodes.clone(), terms: None });
        }
        id
    }

    /// A new tensor that holds a region of one of the whole graph.
    fn tensor(&mut self, of: TensorId, region: &Region) -> TensorId {
        let info = self.graph.tensor(of);
        let (id, name) = (TensorId::new(self.tensors.len()), self.numbered(&info.name));
        let whole = region.fills(&info.shape);
        self.tensors.push(Tensor {
            name,
            shape: region.shape(),
            dtype: info.dtype,
            quant: info.quant.as_ref().map(|quant| some_scales(quant, &info.shape, region)),
            source: info.source.clone().filter(|_| whole),
            constant: None,
            packed: None,
        });
        self.claims.push(Slice { tensor: of, region: region.0.clone() });
        self.held.entry(of).or_default().push((region.clone(), id));
        id
    }

    /// A name nobody has: the first tensor of a name has it as it is.
    fn numbered(&mut self, name: &str) -> String {
        let others = (2..).map(|count| format!("{name}#{count}"));
        let mut names = std::iter::once(name.to_owned()).chain(others);
        let free = names.find(|name| !self.names.contains(name)).unwrap_or_default();
        self.names.insert(free.clone());
        free
    }

    fn finish(self) -> Result<DeviceGraph, ScheduleError> {
        let id = |tensor: TensorId, region: &Region| {
            let found = self.held[&tensor].iter().find(|(own, _)| own == region);
            found.map_or(TensorId(0), |(_, id)| *id)
        };
        let outputs: Vec<TensorId> = self.outputs.iter().map(|(tensor, region)| id(*tensor, region)).collect();
        let mut states = Vec::new();
        for state in &self.graph.states {
            let (past, new) = (self.graph.inputs[state.input as usize], self.graph.outputs[state.output as usize]);
            let input = self.inputs.iter().position(|id| self.claims[id.index()].tensor == past);
            let output = self.outputs.iter().position(|(tensor, _)| *tensor == new);
            match (input, output) {
                (Some(input), Some(output)) => {
                    states.push(State { input: input as u32, output: output as u32, axis: state.axis });
                }
                (None, _) => {}
                (Some(_), None) => {
                    return Err(ScheduleError::State { state: self.graph.tensor(past).name.clone() });
                }
            }
        }
        let graph = Graph {
            name: self.graph.name.clone(),
            tensors: self.tensors,
            layers: self.layers,
            inputs: self.inputs,
            outputs,
            states,
        };
        match graph.verify().into_iter().next() {
            Some(broken) => Err(ScheduleError::Graph(broken)),
            None => Ok(DeviceGraph { graph, claims: self.claims }),
        }
    }
}

