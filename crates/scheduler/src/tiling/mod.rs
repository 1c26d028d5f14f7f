//! Layers computed part by part: a graph in which runs of layers stand once for each part of what leaves them.
//!
//! From the parts of the tensors that leave a run, what each of its layers must compute is found backwards, halos included;
//! what two parts both need is computed in each (unless it is the very same). Parts are joined again by concatenations, which
//! cost nothing where they are whole rows.
//!
//! ```text
//!  rows of b   0..4  <- rows of a   0..5  <- rows of x   0..6        3x3 windows
//!  rows of b   4..8  <- rows of a   3..8  <- rows of x   2..8        rows 3 and 4 of a twice
//! ```
//!
//! The result is a graph like any other: everything after it plans, proves and runs it as such. No integer changes, for every
//! element is computed by the same operator from the same elements.

pub mod groups;
pub(crate) mod key_blocks;
pub(crate) mod movement;
pub(crate) mod part;
pub(crate) mod region;
pub mod request;
pub(crate) mod stacks;

use std::collections::{BTreeMap, BTreeSet};

use tpuflow_ir::{Graph, Layer, LayerId, Op, Parts, Quant, Tensor, TensorId, Tiling};

use crate::error::{ScheduleError, TilingError};
use part::part;
use region::{Region, even};

/// A graph with layers in parts.
#[derive(Clone, Debug)]
pub struct Tiled {
    /// The graph.
    pub graph: Graph,
    /// By tensor, of which tensor of the original it holds what: by axis, elements `[from, to)`.
    pub claims: Vec<(TensorId, Vec<(usize, usize)>)>,
}

/// `graph` with the layers of every tiling computed in parts.
///
/// # Errors
/// [`ScheduleError::Tiling`] naming the layer that cannot be cut so, or [`ScheduleError::Graph`].
pub fn tiled(graph: &Graph, tilings: &[Tiling]) -> Result<Tiled, ScheduleError> {
    let mut sorted: Vec<&Tiling> = tilings.iter().collect();
    sorted.sort_by_key(|tiling| tiling.first);
    for pair in sorted.windows(2) {
        if pair[1].first <= pair[0].last {
            let layer = name(graph, pair[1].first);
            return Err(ScheduleError::Tiling { layer, reason: TilingError::Twice });
        }
    }
    let mut writer = Writer::new(graph);
    let mut next = 0;
    for tiling in sorted {
        let last = tiling.last.index();
        if last >= graph.layers.len() || tiling.first > tiling.last {
            let (first, last) = (tiling.first.0, tiling.last.0);
            return Err(ScheduleError::Layers { first, last, layers: graph.layers.len() });
        }
        let before = next..tiling.first.index();
        writer.layers.extend(graph.layers[before].iter().cloned());
        writer.run(tiling)?;
        next = last + 1;
    }
    writer.layers.extend(graph.layers[next..].iter().cloned());
    let tiled = writer.finish();
    match tiled.graph.verify().into_iter().next() {
        Some(broken) => Err(ScheduleError::Graph(broken)),
        None => Ok(tiled),
    }
}

fn name(graph: &Graph, layer: LayerId) -> String {
    graph.layers.get(layer.index()).map_or_else(String::new, |layer| layer.name.clone())
}

/// Tensors made by layers `first ..= last` that others read or the network returns.
fn leaving(graph: &Graph, first: usize, last: usize) -> Vec<usize> {
    let read = |tensor: TensorId| {
        graph.outputs.contains(&tensor)
            || graph.layers[last + 1..].iter().any(|layer| layer.op.operands().contains(&tensor))
    };
    let mut found: Vec<usize> = (first..=last).filter(|&l| read(graph.layers[l].output)).collect();
    if found.is_empty() {
        // Nobody reads the last: it is computed all the same.
        found.push(last);
    }
    found
}

/// Regions that each layer of a run computes for one part, by layer, and the number of the part.
#[derive(Clone, Debug)]
struct RequiredParts {
    /// By layer that leaves the run, the part itself.
    leaves: BTreeMap<usize, Region>,
    /// By layer of the run.
    computes: BTreeMap<usize, Region>,
    /// Regions read of tensors that come into the run.
    enters: Vec<(TensorId, Region)>,
}

/// Finds what every layer must compute for every part.
fn demands(graph: &Graph, tiling: &Tiling) -> Result<Vec<RequiredParts>, ScheduleError> {
    let (first, last) = (tiling.first.index(), tiling.last.index());
    let made: BTreeMap<TensorId, usize> = (first..=last).map(|l| (graph.layers[l].output, l)).collect();
    let fail = |layer: usize, reason| ScheduleError::Tiling { layer: graph.layers[layer].name.clone(), reason };
    let leaves = leaving(graph, first, last);
    let mut all: Vec<BTreeMap<usize, Region>> = Vec::new();
    for &layer in &leaves {
        let shape = &graph.tensor(graph.layers[layer].output).shape;
        let parts = match &tiling.parts {
            Parts::Grid { images, rows, columns } => {
                grid(shape, [*images, *rows, *columns]).map_err(|reason| fail(layer, reason))?
            }
            Parts::Boxes(boxes) => {
                if leaves.len() > 1 {
                    return Err(fail(layer, TilingError::SeveralResults));
                }
                let as_range = |range: &[u32; 2]| (range[0] as usize, range[1] as usize);
                boxes.iter().map(|part| Region(part.iter().map(as_range).collect())).collect()
            }
            // These have an order of their own.
            Parts::KeyBlocks { .. } => vec![],
        };
        all.resize(all.len().max(parts.len()), BTreeMap::new());
        for (part, region) in all.iter_mut().zip(parts) {
            part.insert(layer, region);
        }
    }
    let backwards = |leaves: BTreeMap<usize, Region>| {
        let mut computes = leaves.clone();
        let mut enters = Vec::new();
        for layer in (first..=last).rev() {
            let Some(wanted) = computes.get(&layer) else { continue };
            let own = &graph.layers[layer];
            let found = part(graph, own, wanted).map_err(|reason| fail(layer, reason))?;
            for (operand, region) in found.op.operands().into_iter().zip(found.operands) {
                match made.get(&operand) {
                    Some(&producer) => {
                        let joint = computes.get(&producer).map_or_else(|| region.clone(), |r| r.hull(&region));
                        computes.insert(producer, joint);
                    }
                    None if graph.tensor(operand).constant.is_none() => enters.push((operand, region)),
                    None => {}
                }
            }
            computes.insert(layer, found.region);
        }
        Ok(RequiredParts { leaves, computes, enters })
    };
    all.into_iter().map(backwards).collect()
}

/// A shape in parts along batch, rows and columns.
fn grid(shape: &[usize], counts: [u32; 3]) -> Result<Vec<Region>, TilingError> {
    let rank = shape.len();
    let axes = [(rank > 3).then_some(0), rank.checked_sub(3), rank.checked_sub(2)];
    let mut parts = vec![Region::whole(shape)];
    for ((axis, count), what) in axes.into_iter().zip(counts).zip(["images", "rows", "columns"]) {
        let count = count as usize;
        if count <= 1 {
            continue;
        }
        let axis = axis.ok_or(TilingError::Nothing { what })?;
        if shape[axis] < count {
            return Err(TilingError::TooFew { extent: shape[axis], what, parts: count });
        }
        let ranges = even(shape[axis], count);
        parts = parts.iter().flat_map(|part| ranges.iter().map(|&range| part.with(axis, range))).collect();
    }
    Ok(parts)
}

/// Writes the tiled graph: tensors of the old one keep their numbers until the end.
struct Writer<'a> {
    graph: &'a Graph,
    tensors: Vec<Tensor>,
    /// By tensor, which part of which tensor of the graph it holds.
    claims: Vec<(TensorId, Region)>,
    layers: Vec<Layer>,
    /// Parts there are: of which tensor, which, and where.
    parts: Vec<(TensorId, Region, TensorId)>,
    /// Names there are, and how often each was numbered.
    names: BTreeSet<String>,
    counts: BTreeMap<String, usize>,
}

impl<'a> Writer<'a> {
    fn new(graph: &'a Graph) -> Self {
        let tensors = graph.tensors.clone();
        let names = tensors.iter().map(|t| &t.name).chain(graph.layers.iter().map(|l| &l.name)).cloned().collect();
        let whole = |(id, tensor): (usize, &Tensor)| (TensorId::new(id), Region::whole(&tensor.shape));
        let claims = tensors.iter().enumerate().map(whole).collect();
        Self { graph, tensors, claims, layers: vec![], parts: vec![], names, counts: BTreeMap::new() }
    }

    fn run(&mut self, tiling: &Tiling) -> Result<(), ScheduleError> {
        if matches!(tiling.parts, Parts::KeyBlocks { .. }) {
            return self.key_blocks(tiling);
        }
        let demands = demands(self.graph, tiling)?;
        let mut pieces: BTreeMap<usize, Vec<(Region, TensorId)>> = BTreeMap::new();
        for demand in &demands {
            self.compute(&demand.computes)?;
            for (&layer, region) in &demand.leaves {
                let own = &self.graph.layers[layer];
                let piece = self.fetch(own.output, region, own);
                pieces.entry(layer).or_default().push((region.clone(), piece));
            }
        }
        for (layer, pieces) in pieces {
            let own = &self.graph.layers[layer];
            let whole = Region::whole(&self.graph.tensor(own.output).shape);
            covers(&whole, &pieces)
                .and_then(|()| self.join(own, pieces, &whole))
                .map_err(|reason| ScheduleError::Tiling { layer: own.name.clone(), reason })?;
        }
        Ok(())
    }

    /// Layers with these regions of their results, as far as they are not there.
    fn compute(&mut self, computes: &BTreeMap<usize, Region>) -> Result<(), ScheduleError> {
        for (&layer, wanted) in computes {
            let own = &self.graph.layers[layer];
            let fail = |reason| ScheduleError::Tiling { layer: own.name.clone(), reason };
            if self.held(own.output, wanted).is_none() {
                let found = part(self.graph, own, wanted).map_err(fail)?;
                let operands = found.op.operands().into_iter().zip(&found.operands);
                let operands: Vec<TensorId> = operands.map(|(t, region)| self.fetch(t, region, own)).collect();
                let output = self.tensor(own.output, &found.region);
                self.push(own, found.op.with_operands(&operands), output);
                self.parts.push((own.output, found.region, output));
            }
        }
        Ok(())
    }

    /// A layer that works for `own`.
    fn push(&mut self, own: &Layer, op: Op, output: TensorId) {
        let name = self.numbered(&own.name);
        // Of its operator, not of what is joined around it.
        let terms = own.terms.filter(|_| matches!(op, Op::Conv { .. } | Op::MatMul { .. }));
        self.layers.push(Layer { name, op, output, nodes: own.nodes.clone(), terms });
    }

    /// A tensor that holds a part, if there is one.
    fn held(&self, tensor: TensorId, region: &Region) -> Option<&(TensorId, Region, TensorId)> {
        let of = |part: &&(TensorId, Region, TensorId)| part.0 == tensor && part.1.holds(region);
        self.parts.iter().filter(of).min_by_key(|part| part.1.elements())
    }

    /// A part of a tensor: where it was computed, the tensor itself, or a slice of either.
    fn fetch(&mut self, tensor: TensorId, region: &Region, reader: &Layer) -> TensorId {
        let info = self.graph.tensor(tensor);
        let (source, outer) = match self.held(tensor, region) {
            Some((_, outer, id)) => (*id, outer.clone()),
            None => (tensor, Region::whole(&info.shape)),
        };
        if outer == *region {
            return source;
        }
        let piece = self.tensor(tensor, region);
        let shape = outer.shape();
        let inner = Region(region.0.iter().zip(&outer.0).map(|(range, of)| (range.0 - of.0, range.1 - of.0)).collect());
        if let Some(bytes) = &info.constant {
            let bytes = movement::slice_bytes(bytes, info.dtype.bytes(), &shape, &inner);
            self.tensors[piece.index()].constant = Some(bytes.into());
        } else {
            let name = self.numbered(&format!("{}:operand", reader.name));
            let op = movement::slice(source, &shape, &inner);
            self.layers.push(Layer { name, op, output: piece, nodes: reader.nodes.clone(), terms: None });
        }
        self.parts.push((tensor, region.clone(), piece));
        piece
    }

    /// Joins parts to the layer's tensor, slabs along the first axis last.
    fn join(&mut self, own: &Layer, pieces: Vec<(Region, TensorId)>, to: &Region) -> Result<TensorId, TilingError> {
        let whole = to.fills(&self.graph.tensor(own.output).shape);
        if let [(_, piece)] = pieces[..] {
            if whole {
                // A single part is all there is; its tensor takes the name.
                return Ok(self.renamed(own, piece));
            }
            return Ok(piece);
        }
        let (axis, slabs) = (0..to.0.len())
            .find_map(|axis| slabs(&pieces, axis).map(|slabs| (axis, slabs)))
            .ok_or(TilingError::NoStraightCut)?;
        let mut inputs = Vec::new();
        for (range, slab) in slabs {
            inputs.push(self.join(own, slab, &to.with(axis, range))?);
        }
        let (output, name) = if whole {
            (own.output, own.name.clone())
        } else {
            (self.tensor(own.output, to), self.numbered(&format!("{}:joined", own.name)))
        };
        let requants = vec![None; inputs.len()];
        let op = Op::Concat { inputs, axis: axis as u32, requants };
        self.layers.push(Layer { name, op, output, nodes: own.nodes.clone(), terms: None });
        Ok(output)
    }

    /// The one part of a layer under the layer's own name.
    fn renamed(&mut self, own: &Layer, piece: TensorId) -> TensorId {
        if let Some(layer) = self.layers.iter_mut().find(|layer| layer.output == piece) {
            layer.name.clone_from(&own.name);
            layer.output = own.output;
        }
        for layer in &mut self.layers {
            let ids: Vec<TensorId> =
                layer.op.operands().into_iter().map(|id| if id == piece { own.output } else { id }).collect();
            layer.op = layer.op.with_operands(&ids);
        }
        self.parts.retain(|part| part.2 != piece);
        own.output
    }

    /// A new tensor for a part of another.
    fn tensor(&mut self, of: TensorId, region: &Region) -> TensorId {
        let whole = self.graph.tensor(of);
        let (id, name) = (TensorId::new(self.tensors.len()), self.numbered(&whole.name));
        self.claims.push((of, region.clone()));
        let quant = whole.quant.as_ref().map(|quant| some_scales(quant, &whole.shape, region));
        self.tensors.push(Tensor {
            packed: None,
            name,
            shape: region.shape(),
            dtype: whole.dtype,
            quant,
            source: None,
            constant: None,
        });
        id
    }

    fn numbered(&mut self, name: &str) -> String {
        let count = self.counts.entry(name.to_owned()).or_default();
        loop {
            *count += 1;
            let numbered = format!("{name}#{count}");
            if self.names.insert(numbered.clone()) {
                return numbered;
            }
        }
    }

    /// The graph of the layers written, without the tensors nobody needs any more.
    fn finish(self) -> Tiled {
        let mut needed = vec![false; self.tensors.len()];
        let ports = self.graph.inputs.iter().chain(&self.graph.outputs);
        for id in ports.copied().chain(self.layers.iter().flat_map(|l| l.op.operands().into_iter().chain([l.output]))) {
            needed[id.index()] = true;
        }
        let mut numbers = vec![TensorId(0); self.tensors.len()];
        let (mut tensors, mut claims) = (Vec::new(), Vec::new());
        for (old, (tensor, claim)) in
            self.tensors.into_iter().zip(self.claims).enumerate().filter(|(old, _)| needed[*old])
        {
            numbers[old] = TensorId::new(tensors.len());
            tensors.push(tensor);
            claims.push((claim.0, claim.1.0));
        }
        let number = |id: TensorId| numbers[id.index()];
        let layer = |layer: Layer| {
            let ids: Vec<TensorId> = layer.op.operands().into_iter().map(number).collect();
            Layer { op: layer.op.with_operands(&ids), output: number(layer.output), ..layer }
        };
        let graph = Graph {
            name: self.graph.name.clone(),
            layers: self.layers.into_iter().map(layer).collect(),
            inputs: self.graph.inputs.iter().copied().map(number).collect(),
            outputs: self.graph.outputs.iter().copied().map(number).collect(),
            states: self.graph.states.clone(),
            exchanges: self.graph.exchanges.clone(),
            tensors,
        };
        Tiled { graph, claims }
    }
}

/// Scales of a part: those of its channels where there is one for each (weights: the first axis that has as many).
pub(crate) fn some_scales(quant: &Quant, shape: &[usize], region: &Region) -> Quant {
    let count = quant.scale.len();
    let scale = match shape.iter().position(|&extent| extent == count).filter(|_| count > 1) {
        Some(axis) => quant.scale[region.0[axis].0..region.0[axis].1].to_vec(),
        None => quant.scale.clone(),
    };
    Quant { scale, ..quant.clone() }
}

/// Whether parts are all of a tensor, every element once.
fn covers(whole: &Region, pieces: &[(Region, TensorId)]) -> Result<(), TilingError> {
    for (index, (part, _)) in pieces.iter().enumerate() {
        let sound = part.0.len() == whole.0.len() && part.0.iter().all(|(from, to)| from < to) && whole.holds(part);
        if !sound {
            return Err(TilingError::Outside { part: part.0.clone(), shape: whole.shape() });
        }
        if let Some((other, _)) = pieces[..index].iter().find(|(other, _)| other.meets(part)) {
            return Err(TilingError::Overlap { one: other.0.clone(), other: part.0.clone() });
        }
    }
    let covered: usize = pieces.iter().map(|(part, _)| part.elements()).sum();
    let missing = whole.elements() - covered;
    if missing > 0 { Err(TilingError::Missing(missing)) } else { Ok(()) }
}

type Slabs = Vec<((usize, usize), Vec<(Region, TensorId)>)>;

/// Pieces by straight cuts across an axis; `None` where there is no such cut.
fn slabs(pieces: &[(Region, TensorId)], axis: usize) -> Option<Slabs> {
    let mut sorted = pieces.to_vec();
    sorted.sort_by_key(|(region, _)| region.0[axis]);
    let mut slabs: Slabs = Vec::new();
    for (region, piece) in sorted {
        let (from, to) = region.0[axis];
        match slabs.last_mut() {
            Some(((_, end), slab)) if from < *end => {
                *end = to.max(*end);
                slab.push((region, piece));
            }
            _ => slabs.push(((from, to), vec![(region, piece)])),
        }
    }
    (slabs.len() > 1).then_some(slabs)
}
