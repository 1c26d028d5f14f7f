//! Errors of graphs, machines, programs and their files.

mod file;
mod graph;
mod limits;
mod machine;
mod program;
mod relocation;
mod shape;
mod stream;
mod width;

pub use crate::function::FunctionError;
pub use crate::memory::MemoryError;
pub use crate::table::TableError;
pub use file::{FileError, Kind, Versions};
pub use graph::{GraphError, GraphErrors, LayerError, PackedError};
pub use limits::{LimitError, Place};
pub use machine::MachineError;
pub use program::{ProgramError, SyntaxError};
pub use relocation::RelocationError;
pub use shape::ShapeError;
pub use stream::StreamError;
pub use width::WidthError;

/// Errors of this crate; messages name the value and what is wrong with it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A graph that does not fit together.
    #[error(transparent)]
    Graph(#[from] GraphErrors),
    /// A graph that JSON cannot hold.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A machine description that makes no sense.
    #[error("machine {name}: {reason}")]
    Machine {
        /// Preset name or file.
        name: String,
        /// The error.
        reason: MachineError,
    },
    /// A program that does not fit together.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A file that cannot be read, is damaged, or is of another version.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// The error.
        reason: FileError,
    },
}

impl From<GraphError> for Error {
    fn from(error: GraphError) -> Self {
        Self::Graph(error.into())
    }
}
