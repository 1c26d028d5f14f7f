//! Which device computes which part of every layer, and which tensors the devices exchange.
//!
//! Layers are looked at in order. A layer whose operands are split, and whose result can be split so that every device has all it
//! reads, needs no exchange: heads of an attention, channels of a gate. Convolutions and matrix products of operands that every
//! device has whole are split by output channels, so that every device has some of the weights; products of two activations by
//! matrices or rows. Everything else is computed by every device, of whole operands. An operand that is split and needed otherwise
//! is exchanged.
//!
//! Parts are of one size. An axis that cannot be cut so is not cut.

use std::collections::BTreeSet;

use tpuflow_ir::{Arithmetic, Graph, Layer, Op, Real, TensorId};

use super::local;
use crate::tiling::part::Part;
use crate::tiling::region::Region;

/// Parts of a tensor along an axis, one for each device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub axis: usize,
    pub ranges: Vec<(usize, usize)>,
}

impl Cut {
    /// The part of a device, of a tensor of `shape`.
    pub fn region(&self, shape: &[usize], device: usize) -> Region {
        Region::whole(shape).with(self.axis, self.ranges[device])
    }
}

/// Where a tensor is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Placed {
    /// The parts devices have; `None`: every device has all of it.
    pub cut: Option<Cut>,
    /// Whether every device loads the parts of all.
    pub is_exchanged: bool,
    /// The new rows of the state of which the tensor is a copy or view.
    rows: Option<TensorId>,
}

/// The decisions by tensor.
#[derive(Clone, Debug)]
pub(super) struct Sharding(pub Vec<Placed>);

impl Sharding {
    /// Decides for all layers.
    pub fn new(graph: &Graph, devices: usize) -> Self {
        let mut whole = BTreeSet::new();
        loop {
            match Decision::new(graph, devices, &whole).all() {
                Ok(sharding) => return sharding,
                // A state would have to be exchanged row by row, every time: its new rows are computed by all instead.
                Err(rows) => whole.insert(rows),
            };
        }
    }

    /// The part of a tensor that a device computes.
    pub fn region(&self, graph: &Graph, tensor: TensorId, device: usize) -> Region {
        let shape = &graph.tensor(tensor).shape;
        let cut = self.0[tensor.index()].cut.as_ref();
        cut.map_or_else(|| Region::whole(shape), |cut| cut.region(shape, device))
    }

    /// Whether every device loads the parts of a tensor.
    pub fn is_exchanged(&self, tensor: TensorId) -> bool {
        self.0[tensor.index()].is_exchanged
    }
}

/// The decisions so far.
struct Decision<'a> {
    graph: &'a Graph,
    devices: usize,
    /// Results that every device computes whole.
    whole: &'a BTreeSet<TensorId>,
    /// Pasts of states that layers have read.
    read: BTreeSet<TensorId>,
    found: Sharding,
}

impl<'a> Decision<'a> {
    fn new(graph: &'a Graph, devices: usize, whole: &'a BTreeSet<TensorId>) -> Self {
        let found = Sharding(vec![Placed::default(); graph.tensors.len()]);
        Self { graph, devices, whole, read: BTreeSet::new(), found }
    }

    /// Decides for all layers.
    ///
    /// # Errors
    /// New rows of a state that must be whole.
    fn all(mut self) -> Result<Sharding, TensorId> {
        for layer in &self.graph.layers {
            self.layer(layer)?;
        }
        Ok(self.found)
    }

    fn layer(&mut self, layer: &Layer) -> Result<(), TensorId> {
        let operands = layer.op.operands();
        let may_be_cut = !self.whole.contains(&layer.output);
        let cuts = if may_be_cut { self.local_cuts(layer) } else { vec![] };
        let mut cut = cuts.into_iter().find(|cut| self.is_local(layer, cut));
        if cut.is_none() {
            for &operand in &operands {
                self.exchange(operand)?;
            }
            let cuts = if may_be_cut { self.product_cuts(layer) } else { vec![] };
            cut = cuts.into_iter().find(|cut| self.is_local(layer, cut));
        }
        let is_view = matches!(layer.op, Op::Concat { .. } | Op::Rearrange { .. });
        let rows = operands.iter().find_map(|id| self.placed(*id).rows).filter(|_| is_view && cut.is_some());
        self.found.0[layer.output.index()] = Placed { cut, is_exchanged: false, rows };
        self.read.extend(operands);
        self.place_past(layer.output)
    }

    fn placed(&self, tensor: TensorId) -> &Placed {
        &self.found.0[tensor.index()]
    }

    /// Whether every device has, or can load, all of a tensor.
    fn is_whole(&self, tensor: TensorId) -> bool {
        self.placed(tensor).cut.is_none() || self.placed(tensor).is_exchanged
    }

    /// A past has the parts of the new rows behind it.
    fn place_past(&mut self, new: TensorId) -> Result<(), TensorId> {
        for state in &self.graph.states {
            if self.graph.outputs[state.output as usize] == new {
                let past = self.graph.inputs[state.input as usize];
                let cut = self.placed(new).cut.clone();
                if cut.is_some() && self.read.contains(&past) {
                    return Err(new);
                }
                let rows = cut.is_some().then_some(new);
                self.found.0[new.index()].rows = rows;
                self.found.0[past.index()] = Placed { cut, is_exchanged: false, rows };
            }
        }
        Ok(())
    }

    /// Has every device load the parts of a tensor that is split.
    fn exchange(&mut self, tensor: TensorId) -> Result<(), TensorId> {
        let placed = &mut self.found.0[tensor.index()];
        if placed.cut.is_some() {
            if let Some(rows) = placed.rows {
                return Err(rows);
            }
            placed.is_exchanged = true;
        }
        Ok(())
    }

    /// Cuts of a result that go with those of the operands.
    fn local_cuts(&self, layer: &Layer) -> Vec<Cut> {
        let result = &self.graph.tensor(layer.output).shape;
        let mut cuts = Vec::new();
        for operand in layer.op.operands() {
            let Some(cut) = &self.placed(operand).cut else { continue };
            let extent = self.graph.tensor(operand).shape[cut.axis];
            for (axis, &own) in result.iter().enumerate().rev() {
                let scaled = |at: usize| (at * own).is_multiple_of(extent).then(|| at * own / extent);
                let ranges = cut.ranges.iter().map(|&(from, to)| Some((scaled(from)?, scaled(to)?))).collect();
                if let Some(ranges) = ranges
                    && own > 1
                {
                    let cut = Cut { axis, ranges };
                    if !cuts.contains(&cut) {
                        cuts.push(cut);
                    }
                }
            }
        }
        cuts
    }

    /// Cuts of convolutions and products whose operands are whole, the best first.
    fn product_cuts(&self, layer: &Layer) -> Vec<Cut> {
        let shape = &self.graph.tensor(layer.output).shape;
        let Some(last) = shape.len().checked_sub(1) else { return vec![] };
        let axes: Vec<usize> = match &layer.op {
            Op::Conv { .. } => std::iter::once(last).chain(0..last).collect(),
            Op::MatMul { b, .. } if self.graph.tensor(*b).constant.is_some() => {
                std::iter::once(last).chain(0..last).collect()
            }
            Op::MatMul { .. } => (0..last).collect(),
            _ => vec![],
        };
        let cut = |axis: usize| Some(Cut { axis, ranges: ranges(shape[axis], self.devices)? });
        axes.into_iter().filter_map(cut).collect()
    }

    /// Whether every device has what it reads for its part and computes no more than that, by the same instructions as the others.
    fn is_local(&self, layer: &Layer, cut: &Cut) -> bool {
        let shape = &self.graph.tensor(layer.output).shape;
        let mut first: Option<DevicePart> = None;
        (0..self.devices).all(|device| {
            let wanted = cut.region(shape, device);
            let found = local::part(self.graph, layer, &wanted);
            // A concatenation may do without some of its operands.
            let operands = layer.op.operands();
            let Ok(part) = found else { return false };
            if part.region != wanted || part.op.operands().len() != operands.len() {
                return false;
            }
            let Some(own) = self.device_part(&part, &operands, device) else { return false };
            let first = first.get_or_insert_with(|| own.clone());
            *first == own
        })
    }

    /// What instructions say of a part, if the device has all it reads: the operator without parameters of channels, which are constants,
    /// and where what it reads lies in what the device has.
    fn device_part(&self, part: &Part, operands: &[TensorId], device: usize) -> Option<DevicePart> {
        let place = |(&operand, region): (&TensorId, &Region)| {
            let tensor = self.graph.tensor(operand);
            let from = |held: &Region| region.0.iter().zip(&held.0).map(|(own, held)| own.0 - held.0).collect();
            let is_past = self.graph.states.iter().any(|state| self.graph.inputs[state.input as usize] == operand);
            let is_given = tensor.constant.is_some() || self.graph.inputs.contains(&operand) && !is_past;
            let own = self.placed(operand).cut.as_ref().map(|cut| cut.region(&tensor.shape, device));
            let from = match own.filter(|own| own.holds(region)) {
                Some(own) => Source::OwnPart(from(&own)),
                None if !self.is_whole(operand) => return None,
                // Every device has the part of a constant, or of an input, that it reads.
                None if is_given => Source::Given,
                None => Source::Whole(from(&Region::whole(&tensor.shape))),
            };
            Some((region.shape(), from))
        };
        let places: Option<Vec<_>> = operands.iter().zip(&part.operands).map(place).collect();
        Some((without_channels(&part.op), places?))
    }
}

/// Where a device has what it reads, and at which element of that it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Given,
    OwnPart(Vec<usize>),
    Whole(Vec<usize>),
}

/// An operator, and by operand the extents that it reads and where they are.
type DevicePart = (Op, Vec<(Vec<usize>, Source)>);

/// An operator without parameters of its channels.
pub(super) fn without_channels(op: &Op) -> Op {
    let mut op = op.clone();
    match &mut op {
        Op::Conv { epilogue: Arithmetic::Fixed(epilogue), .. }
        | Op::MatMul { epilogue: Arithmetic::Fixed(epilogue), .. } => {
            epilogue.requant.multiplier.fill(0);
            epilogue.requant.shift.fill(0);
        }
        Op::PRelu { slopes: Arithmetic::Fixed(slopes), .. } => {
            slopes.negative_multiplier.fill(0);
            slopes.negative_shift.fill(0);
        }
        Op::PRelu { slopes: Arithmetic::Float(slopes), .. } => slopes.negative.fill(Real::new(0.0)),
        _ => {}
    }
    op
}

/// Equal ranges of an axis, one for each device; `None`: there are none.
fn ranges(extent: usize, devices: usize) -> Option<Vec<(usize, usize)>> {
    let part = (extent > 1 && extent.is_multiple_of(devices)).then(|| extent / devices)?;
    Some((0..devices).map(|device| (device * part, (device + 1) * part)).collect())
}
