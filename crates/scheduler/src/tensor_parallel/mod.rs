//! A network on several devices: graphs of what each computes between two exchanges.
//!
//! ```text
//!              superstep 0       exchange        superstep 1
//!  device 0    y[.., 0..64]   --------------->   z[.., 0..32]  of all of y
//!  device 1    y[.., 64..128]  to each other     z[.., 32..64] of all of y
//! ```
//!
//! Weights, heads and channels are divided (tensor parallelism; Shoeybi et al. 2019), sums are not: a device computes some elements of
//! a result, each of them from the same elements, in the same order, as one device alone. So the bits are those of one device. In
//! between devices exchange parts of tensors (all-gather). All devices compute, then all exchange, in turns: supersteps of the
//! bulk-synchronous model (Valiant 1990).
//!
//! `sharding` decides, `local` says what a part of a layer takes, `writer` writes the graphs, `joined` puts them together again, for the
//! checker to prove that together they compute the network.

mod joined;
mod local;
mod sharding;
mod writer;

use tpuflow_checker::check_parts;
use tpuflow_ir::{Graph, TensorId};

use crate::error::ScheduleError;
use sharding::Sharding;
use writer::Plan;

/// Part of a tensor of the network: by axis, elements `[from, to)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The tensor.
    pub tensor: TensorId,
    /// By axis.
    pub region: Vec<(usize, usize)>,
}

/// What a device computes in a superstep.
#[derive(Clone, Debug)]
pub struct DeviceGraph {
    /// The graph: its inputs are what the user, other devices and earlier supersteps give.
    pub graph: Graph,
    /// By tensor of the graph, which part of which tensor of the network it holds.
    pub claims: Vec<Slice>,
}

impl DeviceGraph {
    /// The inputs, as parts of tensors of the network.
    pub fn inputs(&self) -> impl Iterator<Item = &Slice> {
        self.graph.inputs.iter().map(|id| &self.claims[id.index()])
    }

    /// The outputs, as parts of tensors of the network.
    pub fn outputs(&self) -> impl Iterator<Item = &Slice> {
        self.graph.outputs.iter().map(|id| &self.claims[id.index()])
    }
}

/// Most devices a network is divided among.
pub const MOST_DEVICES: usize = 64;

/// The graphs of `devices` devices, by superstep and device, proven to compute `graph` together.
///
/// # Errors
/// [`ScheduleError::Devices`] for none or too many, [`ScheduleError::State`] where a state cannot be divided,
/// [`ScheduleError::Parts`] where the proof fails.
pub fn split(graph: &Graph, devices: usize) -> Result<Vec<Vec<DeviceGraph>>, ScheduleError> {
    if !(1..=MOST_DEVICES).contains(&devices) {
        return Err(ScheduleError::Devices { devices, most: MOST_DEVICES });
    }
    let sharding = Sharding::new(graph, devices);
    let plan = Plan::new(graph, &sharding);
    let count = sharding.supersteps.iter().max().map_or(0, |last| last + 1);
    let device_graphs = |superstep| (0..devices).map(|device| plan.device_graph(superstep, device)).collect();
    let supersteps: Vec<Vec<DeviceGraph>> = (0..count).map(device_graphs).collect::<Result<_, _>>()?;
    let (joined, claims) = joined::joined(graph, &supersteps);
    check_parts(graph, &joined, &claims).map_err(|error| ScheduleError::Parts(error.to_string()))?;
    Ok(supersteps)
}
