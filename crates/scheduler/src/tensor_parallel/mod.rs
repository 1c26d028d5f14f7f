//! A network on several devices: a graph for each, of the same operators on parts of the tensors.
//!
//! ```text
//!  device 0    y[.., 0..64]   --+--> y --> z[.., 0..32]
//!  device 1    y[.., 64..128] --+--> y --> z[.., 32..64]
//!                            exchange
//! ```
//!
//! Weights, heads and channels are divided (tensor parallelism; Shoeybi et al. 2019), sums are not: a device computes some elements of
//! a result, each of them from the same elements, in the same order, as one device alone. So the bits are those of one device. What
//! a device needs of the others is exchanged ([`tpuflow_ir::Exchange`]): every device loads the parts of all. All parts of a tensor are
//! of one shape, so that the graphs differ in constants alone, and so do their programs.
//!
//! `unmerged` lets heads be axes of their own, `sharding` decides, `local` says what a part of a layer takes, `writer` writes the graphs, `joined` puts them together again, for the
//! checker to prove that together they compute the network.

mod joined;
mod local;
mod sharding;
mod unmerged;
mod writer;

use tpuflow_checker::check_parts;
use tpuflow_ir::exchange::MOST_DEVICES;
use tpuflow_ir::{Graph, Layer, TensorId};

use crate::error::ScheduleError;
use sharding::Sharding;

/// Part of a tensor of the network: by axis, elements `[from, to)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The tensor.
    pub tensor: TensorId,
    /// By axis.
    pub region: Vec<(usize, usize)>,
}

/// What a device computes.
#[derive(Clone, Debug)]
pub struct DeviceGraph {
    /// The graph: its inputs are what the user and other devices give.
    pub graph: Graph,
    /// By tensor of the graph, which part of which tensor of the network it holds.
    pub claims: Vec<Slice>,
}

impl DeviceGraph {
    /// The inputs, as parts of tensors of the network; those of exchanges as well.
    pub fn inputs(&self) -> impl Iterator<Item = &Slice> {
        self.graph.inputs.iter().map(|id| &self.claims[id.index()])
    }

    /// The outputs, as parts of tensors of the network; those of exchanges as well.
    pub fn outputs(&self) -> impl Iterator<Item = &Slice> {
        self.graph.outputs.iter().map(|id| &self.claims[id.index()])
    }
}

/// A network divided among devices.
#[derive(Clone, Debug)]
pub struct Division {
    /// By rank.
    pub devices: Vec<DeviceGraph>,
    /// All of them as one graph, in which exchanges are concatenations: it computes the network.
    pub joined: Graph,
}

/// Divides a network among `devices` devices, which are proven to compute it together.
///
/// # Errors
/// [`ScheduleError::Devices`] for none or too many, [`ScheduleError::State`] where a state cannot be divided,
/// [`ScheduleError::Parts`] where the proof fails.
pub fn divide(graph: &Graph, devices: usize) -> Result<Division, ScheduleError> {
    if !(1..=MOST_DEVICES).contains(&devices) {
        return Err(ScheduleError::Devices { devices, most: MOST_DEVICES });
    }
    let graph = &unmerged::unmerged(graph);
    let sharding = Sharding::new(graph, devices);
    let devices = writer::device_graphs(graph, &sharding, devices)?;
    for (rank, device) in devices.iter().enumerate() {
        if let Some(layer) = first_difference(&device.graph, &devices[0].graph) {
            return Err(ScheduleError::Parts(format!(
                "device {rank} would need other instructions than device 0{layer}"
            )));
        }
    }
    let (joined, claims) = joined::joined(graph, &devices);
    check_parts(graph, &joined, &claims).map_err(|error| ScheduleError::Parts(error.to_string()))?;
    Ok(Division { devices, joined })
}

/// The first layer in which two graphs differ in more than constants, as a phrase.
fn first_difference(one: &Graph, other: &Graph) -> Option<String> {
    let shape = |graph: &Graph, id: TensorId| {
        let tensor = graph.tensor(id);
        (tensor.shape.clone(), tensor.dtype, tensor.zero_point(), tensor.constant.is_some())
    };
    let tensors = |graph: &Graph, layer: &Layer| -> Vec<_> {
        layer.op.operands().into_iter().chain([layer.output]).map(|id| (id, shape(graph, id))).collect()
    };
    let differs = |(a, b): &(&Layer, &Layer)| {
        tensors(one, a) != tensors(other, b) || sharding::without_channels(&a.op) != sharding::without_channels(&b.op)
    };
    let found = one.layers.iter().zip(&other.layers).find(differs).map(|(layer, _)| layer);
    let ports =
        |graph: &Graph| (graph.inputs.clone(), graph.outputs.clone(), graph.states.clone(), graph.exchanges.clone());
    match found {
        Some(layer) => Some(format!(", in layer \"{}\"", layer.name)),
        None if one.layers.len() != other.layers.len() || ports(one) != ports(other) => {
            Some(", in its ports".to_owned())
        }
        None => None,
    }
}
