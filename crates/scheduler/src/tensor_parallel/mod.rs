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
//! `sharding` decides, `local` says what a part of a layer takes, `writer` writes the graphs, `joined` puts them together again, for the
//! checker to prove that together they compute the network.

mod joined;
mod local;
mod sharding;
mod writer;

use tpuflow_checker::check_parts;
use tpuflow_ir::exchange::MOST_DEVICES;
use tpuflow_ir::{Graph, TensorId};

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
    let sharding = Sharding::new(graph, devices);
    let device_graphs = (0..devices).map(|rank| writer::device_graph(graph, &sharding, rank));
    let devices: Vec<DeviceGraph> = device_graphs.collect::<Result<_, _>>()?;
    let (joined, claims) = joined::joined(graph, &devices);
    check_parts(graph, &joined, &claims).map_err(|error| ScheduleError::Parts(error.to_string()))?;
    Ok(Division { devices, joined })
}
