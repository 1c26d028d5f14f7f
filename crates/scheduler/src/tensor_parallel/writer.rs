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

/// The graph of the device of rank `rank`.
///
/// # Errors
/// [`ScheduleError`] naming a layer or state that cannot be divided so.
pub(super) fn device_graph(graph: &Graph, sharding: &Sharding, rank: usize) -> Result<DeviceGraph, ScheduleError> {
    let mut writer = Writer::new(graph, sharding);
    let part = |layer: &Layer| {
        let found = device_part(graph, layer, &sharding.region(graph, layer.output, rank));
        found.map_err(|reason| ScheduleError::Tiling { layer: layer.name.clone(), reason })
    };
    let parts = graph.layers.iter().map(part).collect::<Result<Vec<Part>, _>>()?;
    writer.inputs(&parts, rank);
    for (layer, part) in graph.layers.iter().zip(&parts) {
        writer.layer(layer, part);
    }
    writer.finish(rank)
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
    tensors: Vec<Tensor>,
    /// By tensor, what it holds.
    claims: Vec<Slice>,
    layers: Vec<Layer>,
    /// What there is of a tensor of the whole graph, and where.
    held: BTreeMap<TensorId, Vec<(Region, TensorId)>>,
    inputs: Vec<TensorId>,
    /// Tensors whose parts are loaded, and the numbers of the inputs that these are.
    exchanges: Vec<(TensorId, Vec<u32>)>,
    names: BTreeSet<String>,
}

impl<'a> Writer<'a> {
    fn new(graph: &'a Graph, sharding: &'a Sharding) -> Self {
        let (tensors, claims, layers, inputs, exchanges) = (vec![], vec![], vec![], vec![], vec![]);
        let (held, names) = (BTreeMap::new(), BTreeSet::new());
        Self { graph, sharding, tensors, claims, layers, held, inputs, exchanges, names }
    }

    /// Ports for what the user gives: the largest regions that are read; of the past of a state, the device's part.
    fn inputs(&mut self, parts: &[Part], rank: usize) {
        let (graph, sharding) = (self.graph, self.sharding);
        for &input in &graph.inputs {
            let is_past = graph.states.iter().any(|state| graph.inputs[state.input as usize] == input);
            let mut regions: BTreeSet<Region> = BTreeSet::new();
            for part in parts {
                let read = part.op.operands().into_iter().zip(&part.operands).filter(|(operand, _)| *operand == input);
                let own = || sharding.region(graph, input, rank);
                regions.extend(read.map(|(_, region)| if is_past { own() } else { region.clone() }));
            }
            for region in regions.iter().filter(|own| !regions.iter().any(|other| other != *own && other.holds(own))) {
                let port = self.tensor(input, region);
                self.inputs.push(port);
            }
        }
    }

    fn layer(&mut self, layer: &Layer, part: &Part) {
        let operands = part.op.operands().into_iter().zip(&part.operands);
        let operands: Vec<TensorId> = operands.map(|(tensor, region)| self.fetch(tensor, region, layer)).collect();
        let output = self.tensor(layer.output, &part.region);
        let op = part.op.with_operands(&operands);
        self.layers.push(Layer { op, output, ..layer.clone() });
    }

    /// A region of a tensor: where it is, or a slice of that.
    fn fetch(&mut self, tensor: TensorId, region: &Region, reader: &Layer) -> TensorId {
        let held = |writer: &Self| {
            let known = writer.held.get(&tensor).map_or(&[][..], Vec::as_slice);
            let exact = known.iter().find(|(own, _)| own == region);
            exact.or_else(|| known.iter().find(|(own, _)| own.holds(region))).cloned()
        };
        let info = self.graph.tensor(tensor);
        let found = match held(self) {
            None if info.constant.is_none() && self.sharding.is_exchanged(tensor) => {
                self.exchange(tensor);
                held(self)
            }
            found => found,
        };
        if let Some((own, id)) = &found
            && own == region
        {
            return *id;
        }
        let id = self.tensor(tensor, region);
        if let Some(bytes) = &info.constant {
            let own = &mut self.tensors[id.index()];
            own.constant = Some(if region.fills(&info.shape) {
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
        } else if let Some((outer, from)) = found {
            let inner = outer.0.iter().zip(&region.0).map(|(outer, own)| (own.0 - outer.0, own.1 - outer.0)).collect();
            let op = slice(from, &outer.shape(), &Region(inner));
            let name = self.numbered(&format!("{}:operand", reader.name));
            self.layers.push(Layer { name, op, output: id, nodes: reader.nodes.clone(), terms: None });
        }
        id
    }

    /// All of a tensor, of the parts that devices have.
    fn exchange(&mut self, tensor: TensorId) {
        let info = self.graph.tensor(tensor);
        let Some(cut) = &self.sharding.0[tensor.index()].cut else { return };
        let (mut parts, mut numbers) = (Vec::new(), Vec::new());
        for rank in 0..cut.ranges.len() {
            numbers.push(self.inputs.len() as u32);
            let part = self.part_of_rank(tensor, &cut.region(&info.shape, rank));
            self.inputs.push(part);
            parts.push(part);
        }
        self.exchanges.push((tensor, numbers));
        let whole = self.tensor(tensor, &Region::whole(&info.shape));
        let requants = vec![None; parts.len()];
        let op = Op::Concat { inputs: parts, axis: cut.axis as u32, requants };
        let name = self.numbered(&format!("exchange of {}", info.name));
        self.layers.push(Layer { name, op, output: whole, nodes: vec![], terms: None });
    }

    /// A part that a device loads to be joined with the others; layers read the device's own part where that is.
    fn part_of_rank(&mut self, tensor: TensorId, region: &Region) -> TensorId {
        let before = self.held.get(&tensor).cloned();
        let part = self.tensor(tensor, region);
        if let Some(before) = before {
            self.held.insert(tensor, before);
        }
        part
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

    fn finish(self, rank: usize) -> Result<DeviceGraph, ScheduleError> {
        let made: BTreeSet<TensorId> = self.graph.layers.iter().map(|layer| layer.output).collect();
        let mut given: Vec<TensorId> = Vec::new();
        let exchanged = self.exchanges.iter().map(|(tensor, _)| tensor);
        for tensor in self.graph.outputs.iter().filter(|output| made.contains(output)).chain(exchanged) {
            if !given.contains(tensor) {
                given.push(*tensor);
            }
        }
        let own_part = |tensor: &TensorId| {
            let region = self.sharding.region(self.graph, *tensor, rank);
            let found = self.held[tensor].iter().find(|(own, _)| *own == region);
            found.map_or(TensorId(0), |(_, id)| *id)
        };
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
        let graph =
            Graph { name: self.graph.name.clone(), tensors, layers, inputs, outputs, states, exchanges };
        match graph.verify().into_iter().next() {
            Some(broken) => Err(ScheduleError::Graph(broken)),
            None => Ok(DeviceGraph { graph, claims }),
        }
    }
}
