//! Why a graph has no program on a machine.

mod tiling;

use tpuflow_ir::error::{GraphError, StreamError};

pub use tiling::TilingError;

/// Errors of the scheduler; messages name the layer and the limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// Even the finest cut of a layer exceeds a memory.
    #[error("layer \"{layer}\" does not fit {memory} of {machine}: its smallest piece exceeds {capacity} bytes")]
    Capacity {
        /// The layer.
        layer: String,
        /// The memory, such as `the shared cache`.
        memory: &'static str,
        /// The machine.
        machine: String,
        /// Bytes of the memory.
        capacity: u64,
    },
    /// Constants, inputs, outputs and spills exceed external memory.
    #[error("{bytes} bytes exceed the {capacity} bytes of external memory of {machine}")]
    External {
        /// Bytes needed in an address space.
        bytes: u64,
        /// Bytes there are.
        capacity: u64,
        /// The machine.
        machine: String,
    },
    /// A level other than 1 and 5.
    #[error("optimisation level {0} does not exist; choose 1 or 5")]
    Level(u8),
    /// The time was up before there was a plan.
    #[error("the time limit was reached before there was a plan")]
    Time,
    /// A layer cannot be computed in the parts asked for.
    #[error("layer \"{layer}\" {reason}")]
    Tiling {
        /// The layer.
        layer: String,
        /// The reason, to be read behind its name.
        reason: TilingError,
    },
    /// A run of layers to be computed in parts is none.
    #[error("layer \"layers {first} to {last} of {layers}\" do not exist")]
    Layers {
        /// Number of the first.
        first: u32,
        /// Number of the last.
        last: u32,
        /// Layers there are.
        layers: usize,
    },
    /// A number of devices that no network is divided among.
    #[error("{devices} devices; a network is divided among 1 to {most}")]
    Devices {
        /// Devices asked for.
        devices: usize,
        /// Most there may be.
        most: usize,
    },
    /// A state whose rows are read and computed on different sides of an exchange.
    #[error("state \"{state}\" cannot be divided among devices: it is read before its new rows are exchanged")]
    State {
        /// The input of the state.
        state: String,
    },
    /// The graphs of the devices do not compute the network: a defect of the division, reported rather than run.
    #[error("the graphs of the devices do not compute the network: {0}")]
    Parts(String),
    /// Runs of the program cannot overlap.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The graph breaks an invariant.
    #[error("graph: {0}")]
    Graph(GraphError),
    /// No arrangement of the buffers was found although every layer fits alone.
    #[error("{memory} of {machine}: {height} bytes needed after packing, {capacity} available")]
    Allocation {
        /// The memory.
        memory: &'static str,
        /// The machine.
        machine: String,
        /// Height reached.
        height: u64,
        /// Bytes of the memory.
        capacity: u64,
    },
    /// The independent checker refuses the program: a defect of the scheduler, reported rather than run.
    #[error("the program breaks {count} rules, the first: {first}")]
    Check {
        /// Violations reported.
        count: usize,
        /// The first of them.
        first: String,
    },
}
