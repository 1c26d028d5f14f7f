//! The graph of what a device computes.

use std::collections::{BTreeMap, BTreeSet};

use tpuflow_ir::{Exchange, Graph, Layer, Op, State, Tensor, TensorId};

use super::sharding::Sharding;
use super::{DeviceGraph, Slice, local};
use crate::error::{ScheduleError, TilingError};
use crate::tiling::movement::{slice, slice_bytes};
use crate::tiling::part::Part;
use crate::tiling::region::Region;
use crate::tiling::some_scales;

/// By rank, the parts of all layers.
type Parts = Vec<Vec<Part>>;

/// By rank, the region that a device has, or reads, of a tensor: what is one tensor on one device is one on all.
type Regions = Vec<Region>;

/// The graphs of all devices, by rank.
///
/// # Errors
/// [`ScheduleError`] naming a layer or state that cannot be divided so.
pub(super) fn device_graphs(
    graph: &Graph,
    sharding: &Sharding,
    devices: usize,
) -> Result<Vec<DeviceGraph>, ScheduleError> {
    let part = |rank: usize, layer: &Layer| {
        let found = device_part(graph, layer, &sharding.region(graph, layer.output, rank));
        found.map_err(|reason| ScheduleError::Tiling { layer: layer.name.clone(), reason })
    };
    let of_rank = |rank| graph.layers.iter().map(|layer| part(rank, layer)).collect();
    let parts: Parts = (0..devices).map(of_rank).collect::<Result<_, _>>()?;
    let written = (0..devices).map(|rank| {
        let mut writer = Writer::new(graph, sharding, &parts, rank);
        writer.inputs();
        for layer in 0..graph.layers.len() {
            writer.layer(layer);
        }
        writer.finish()
    });
    written.collect()
}

/// What a device computes of a layer: all of it as it stands, or a part.
fn device_part(graph: &Graph, layer: &Layer, wanted: &Region) -> Result<Part, TilingError> {
    let shape = |id: TensorId| &graph.tensor(id).shape[..];
    if wanted.fills(shape(layer.output)) {
        let operands = layer.op.operands().into_iter().map(|id| Region::whole(shape(id))).collect();
        return Ok(Part { op: layer.op.clone(), region: wanted.clone(), operands });
    }
    local::part(graph, layer, wanted)
}

/// Writes one graph.
struct Writer<'a> {
    graph: &'a Graph,
    sharding: &'a Sharding,
    parts: &'a Parts,
    rank: usize,
    tensors: Vec<Tensor>,
    /// By tensor, what it holds.
    claims: Vec<Slice>,
    layers: Vec<Layer>,
    /// What there is of a tensor of the whole graph, and where.
    held: BTreeMap<(TensorId, Regions), TensorId>,
    inputs: Vec<TensorId>,
    /// Tensors whose parts are loaded, and the numbers of the inputs that these are.
    exchanges: Vec<(TensorId, Vec<u32>)>,
    names: BTreeSet<String>,
}

impl<'a> Writer<'a> {
    fn new(graph: &'a Graph, sharding: &'a Sharding, parts: &'a Parts, rank: usize) -> Self {
        let (tensors, claims, layers, inputs, exchanges) = (vec![], vec![], vec![], vec![], vec![]);
        let (held, names) = (BTreeMap::new(), BTreeSet::new());
        Self { graph, sharding, parts, rank, tensors, claims, layers, held, inputs, exchanges, names }
    }

    /// By rank, the part of a tensor that a device computes.
    fn own_parts(&self, tensor: TensorId) -> Regions {
        (0..self.parts.len()).map(|rank| self.sharding.region(self.graph, tensor, rank)).collect()
    }

    /// By rank, all of a tensor.
    fn whole(&self, tensor: TensorId) -> Regions {
        vec![Region::whole(&self.graph.tensor(tensor).shape); self.parts.len()]
    }

    /// By rank, what a layer reads of its operand number `operand`.
    fn reads(&self, layer: usize, operand: usize) -> Regions {
        self.parts.iter().map(|parts| parts[layer].operands[operand].clone()).collect()
    }

    /// Ports for what the user gives: every region that is read; of the past of a state, the device's part.
    fn inputs(&mut self) {
        let graph = self.graph;
        for &input in &graph.inputs {
            let is_past = graph.states.iter().any(|state| graph.inputs[state.input as usize] == input);
            for (layer, part) in self.parts[self.rank].iter().enumerate() {
                let operands = part.op.operands();
                for operand in (0..operands.len()).filter(|&operand| operands[operand] == input) {
                    let regions = if is_past { self.own_parts(input) } else { self.reads(layer, operand) };
                    if !self.held.contains_key(&(input, regions.clone())) {
                        let port = self.tensor(input, regions);
                        self.inputs.push(port);
                    }
                }
            }
        }
    }

    fn layer(&mut self, number: usize) {
        let (layer, part) = (&self.graph.layers[number], &self.parts[self.rank][number]);
        let operands = part.op.operands().into_iter().enumerate();
        let operands: Vec<TensorId> =
            operands.map(|(operand, tensor)| self.fetch(tensor, self.reads(number, operand), layer)).collect();
        let output = self.tensor(layer.output, self.own_parts(layer.output));
        let op = part.op.with_operands(&operands);
        self.layers.push(Layer { op, output, ..layer.clone() });
    }

    /// A region of a tensor: where it is, or a slice of this device's part, or of all.
    fn fetch(&mut self, tensor: TensorId, regions: Regions, reader: &Layer) -> TensorId {
        if let Some(&id) = self.held.get(&(tensor, regions.clone())) {
            return id;
        }
        let (info, region) = (self.graph.tensor(tensor), regions[self.rank].clone());
        if let Some(bytes) = &info.constant {
            let id = self.tensor(tensor, regions);
            let own = &mut self.tensors[id.index()];
            own.constant = Some(if region.fills(&info.shape) {
                bytes.clone()
            } else {
                slice_bytes(bytes, info.dtype.bytes(), &info.shape, &region).into()
            });
            own.packed = match (&info.packed, &region.0[..]) {
                (Some(packed), [rows, columns]) if *rows == (0, info.shape[0]) => {
                    Some(packed.columns(&info.shape, columns.0..columns.1))
                }
                _ => None,
            };
            return id;
        }
        let own = self.own_parts(tensor);
        let is_own = own.iter().zip(&regions).all(|(own, region)| own.holds(region));
        let outer = if is_own { own } else { self.whole(tensor) };
        if !is_own && self.sharding.is_exchanged(tensor) && !self.held.contains_key(&(tensor, outer.clone())) {
            self.exchange(tensor);
        }
        let from = self.held.get(&(tensor, outer.clone())).copied().unwrap_or(TensorId(u32::MAX));
        if outer == regions {
            return from;
        }
        let outer = outer[self.rank].clone();
        let inner = outer.0.iter().zip(&region.0).map(|(outer, own)| (own.0 - outer.0, own.1 - outer.0)).collect();
        let op = slice(from, &outer.shape(), &Region(inner));
        let output = self.tensor(tensor, regions);
        let name = self.numbered(&format!("{}:operand", reader.name));
        self.layers.push(Layer { name, op, output, nodes: reader.nodes.clone(), terms: None });
        output
    }

    /// All of a tensor, of the parts that devices have.
    fn exchange(&mut self, tensor: TensorId) {
        let info = self.graph.tensor(tensor);
        let Some(cut) = &self.sharding.0[tensor.index()].cut else { return };
        let (mut parts, mut numbers) = (Vec::new(), Vec::new());
        for rank in 0..cut.ranges.len() {
            numbers.push(self.inputs.len() as u32);
            let part = self.unnamed(tensor, &cut.region(&info.shape, rank));
            self.inputs.push(part);
            parts.push(part);
        }
        self.exchanges.push((tensor, numbers));
        let whole = self.tensor(tensor, self.whole(tensor));
        let requants = vec![None; parts.len()];
        let op = Op::Concat { inputs: parts, axis: cut.axis as u32, requants };
        let name = self.numbered(&format!("exchange of {}", info.name));
        self.layers.push(Layer { name, op, output: whole, nodes: vec![], terms: None });
    }

    /// A new tensor that holds regions of one of the whole graph, by which layers find it.
    fn tensor(&mut self, of: TensorId, regions: Regions) -> TensorId {
        let id = self.unnamed(of, &regions[self.rank]);
        self.held.insert((of, regions), id);
        id
    }

    /// A new tensor that holds a region of one of the whole graph.
    fn unnamed(&mut self, of: TensorId, region: &Region) -> TensorId {
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
        let made: BTreeSet<TensorId> = self.graph.layers.iter().map(|layer| layer.output).collect();
        let mut given: Vec<TensorId> = Vec::new();
        let exchanged = self.exchanges.iter().map(|(tensor, _)| tensor);
        for tensor in self.graph.outputs.iter().filter(|output| made.contains(output)).chain(exchanged) {
            if !given.contains(tensor) {
                given.push(*tensor);
            }
        }
        let own_part = |tensor: &TensorId| self.held[&(*tensor, self.own_parts(*tensor))];
        let outputs = given.iter().map(own_part).collect();
        let number = |tensor: TensorId| given.iter().position(|given| *given == tensor).map(|at| at as u32);
        let exchanges = self.exchanges.iter();
        let exchanges = exchanges
            .filter_map(|(tensor, inputs)| Some(Exchange { output: number(*tensor)?, inputs: inputs.clone() }))
            .collect();
        let mut states = Vec::new();
        for state in &self.graph.states {
            let (past, new) = (self.graph.inputs[state.input as usize], self.graph.outputs[state.output as usize]);
            let input = self.inputs.iter().position(|id| self.claims[id.index()].tensor == past);
            match (input, number(new)) {
                (Some(input), Some(output)) => states.push(State { input: input as u32, output, axis: state.axis }),
                (None, _) => {}
                (Some(_), None) => {
                    return Err(ScheduleError::State { state: self.graph.tensor(past).name.clone() });
                }
            }
        }
        let Self { tensors, layers, inputs, claims, .. } = self;
        let graph = Graph { name: self.graph.name.clone(), tensors, layers, inputs, outputs, states, exchanges };
        match graph.verify().into_iter().next() {
            Some(broken) => Err(ScheduleError::Graph(broken)),
            None => Ok(DeviceGraph { graph, claims }),
        }
    }
}
