//! What can go wrong while a graph or a program runs.

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
    /// A graph that cannot be run here.
    #[error("graph \"{name}\": {reason}")]
    Graph {
        /// Name of the graph.
        name: String,
        /// Why not.
        reason: String,
    },
    /// A layer cannot be computed.
    #[error("layer \"{layer}\": {reason}")]
    Layer {
        /// Name of the layer.
        layer: String,
        /// Why not.
        reason: String,
    },
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
        /// What is wrong.
        reason: String,
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
