//! What can go wrong while a graph or a program runs.

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
    /// A layer cannot be computed.
    #[error("layer \"{layer}\": {reason}")]
    Layer {
        /// Name of the layer.
        layer: String,
        /// Why not.
        reason: String,
    },
}
