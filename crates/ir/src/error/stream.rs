//! Why runs of a program cannot follow each other without a pause.

use super::{LimitError, RelocationError};

/// Errors of a stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what every field is")]
pub enum StreamError {
    /// A program that was built without.
    #[error("the program was not built for a stream of runs; build it with --pipeline")]
    None,
    /// No runs.
    #[error("a stream has at least 1 run")]
    Runs,
    /// Runs that depend on each other.
    #[error("the network keeps state from run to run, so a run cannot begin before the one before has ended")]
    State,
    /// Too many runs.
    #[error("{runs} runs have more than {instructions} instructions or layers")]
    Size { runs: u32, instructions: u64 },
    /// A body that cannot be repeated.
    #[error(transparent)]
    Body(#[from] LimitError),
    /// Inputs and outputs of the runs do not lie beside each other.
    #[error("inputs and outputs of every run: {0}")]
    Ports(#[from] RelocationError),
}
