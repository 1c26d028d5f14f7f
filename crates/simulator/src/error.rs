//! Errors of running a graph or a program.

use tpuflow_ir::error::{LimitError, MemoryError, WidthError};

use crate::hazard::Hazard;

/// Errors of this crate; messages name the layer, tensor or instruction and what is wrong with it.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The number of inputs is not the graph's.
    #[error("{given} inputs given, \"{graph}\" takes {expected}")]
    InputCount {
        /// Name of the graph.
        graph: String,
        /// Inputs given.
        given: usize,
        /// Inputs expected.
        expected: usize,
    },
    /// An input has another size or element type than the graph's.
    #[error("input \"{name}\": {given} elements of {given_type} given, expected {expected} of {expected_type}")]
    Input {
        /// Name of the input.
        name: String,
        /// Elements given.
        given: usize,
        /// Their type.
        given_type: &'static str,
        /// Elements expected.
        expected: usize,
        /// Their type.
        expected_type: &'static str,
    },
    /// The instruction set asked for does not exist.
    #[error(transparent)]
    Isa(#[from] tpuflow_kernels::isa::IsaError),
    /// A graph that takes more memory than there may be.
    #[error("graph \"{name}\": {reason}")]
    Graph {
        /// Name of the graph.
        name: String,
        /// Which fields take how much.
        reason: MemoryError,
    },
    /// A layer cannot be computed.
    #[error("layer \"{layer}\": {reason}")]
    Layer {
        /// Name of the layer.
        layer: String,
        /// Why not.
        reason: LayerError,
    },
    /// A state that cannot be used.
    #[error(transparent)]
    State(StateError),
    /// An instruction breaks a rule of the machine.
    #[error("hazard: {0}")]
    Hazard(Box<Hazard>),
    /// Every unit waits for another one.
    #[error("cycle {cycle}: no unit can go on; instruction {instruction} waits for tokens nobody will deposit")]
    Deadlock {
        /// When.
        cycle: u64,
        /// One that waits.
        instruction: u32,
    },
    /// A program that does not fit its machine.
    #[error("program \"{name}\": {reason}")]
    Program {
        /// Name of the program.
        name: String,
        /// The error.
        reason: ProgramError,
    },
    /// An output that no instruction has written completely.
    #[error("output \"{name}\": {place} was never written")]
    Output {
        /// Name of the output.
        name: String,
        /// First missing byte.
        place: String,
    },
}

/// Why a layer cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what every field is")]
pub enum LayerError {
    /// A value may not fit its width.
    #[error(transparent)]
    Width(#[from] WidthError),
    /// An average without a divisor for one of its windows.
    #[error("no divisor for the {area} cells of output {pixel}")]
    Divisor { area: u32, pixel: usize },
    /// An index that is no row of an embedding.
    #[error("index {index} is outside the {rows} rows of \"{table}\"")]
    Index { index: i32, rows: usize, table: String },
}

/// Why a graph cannot be run with a state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what every field is")]
pub enum StateError {
    /// Graphs without states.
    #[error("a graph without states keeps no rows")]
    Absent,
    /// A state of other rows.
    #[error("graph \"{graph}\" has other states than these rows are of")]
    Other { graph: String },
    /// Rows of another number or type.
    #[error("rows are written as whole arrays of the longest past, one per state")]
    Arrays,
    /// A position the graph does not reach.
    #[error("position {position} lies beyond the context: the graph takes {last} rows before a run")]
    Context { position: usize, last: usize },
    /// A position behind rows that were never written.
    #[error("position {position} lies behind the {rows} rows of the state")]
    Position { position: usize, rows: usize },
}

/// Why a program cannot be run on its machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what every field is")]
pub enum ProgramError {
    /// Numbers that cannot be computed with.
    #[error(transparent)]
    Limits(#[from] LimitError),
    /// Memories larger than there may be.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A window of cycles has too much to record.
    #[error("cycles {start} to {end} have more than {most} events: ask for fewer cycles")]
    Events {
        /// First cycle.
        start: u64,
        /// One past the last.
        end: u64,
        /// Events asked for at most.
        most: usize,
    },
    /// A broken rule too late to be looked for.
    #[error("an instruction breaks a rule after cycle {limit}, beyond which none is looked for")]
    TooLate { limit: u64 },
    /// Address spaces the machine does not have.
    #[error("{spaces} DDR address spaces of {available}")]
    Spaces { spaces: usize, available: usize },
    /// An address space larger than its memory.
    #[error("{bytes} bytes exceed DDR {space}")]
    Capacity { bytes: u64, space: usize },
    /// Constants beyond their address space.
    #[error("the constants exceed DDR {space}")]
    Constants { space: usize },
    /// A port at another place than its shape takes.
    #[error("port \"{name}\" does not lie in external memory as its shape says")]
    Port { name: String },
    /// A program of several devices without the others, or with others that are not alike.
    #[error("is one of {devices} devices, and runs with the programs of all of them, which are alike; {given} given")]
    Devices { devices: usize, given: usize },
    /// An instruction of no layer.
    #[error("instruction {instruction} works for a layer that does not exist")]
    Layer { instruction: usize },
}
