//! What can be wrong with graphs, machines, programs and their files.

/// Errors of this crate; messages name the value and what is wrong with it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A graph that does not fit together.
    #[error("{0}")]
    Graph(String),
    /// A machine description that makes no sense.
    #[error("machine {name}: {reason}")]
    Machine {
        /// Preset name or file.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// A program that does not fit together.
    #[error("{0}")]
    Program(String),
    /// A file that cannot be read, is damaged, or is of another version.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// What is wrong.
        reason: String,
    },
}
