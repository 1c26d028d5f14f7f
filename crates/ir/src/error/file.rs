//! Why a file cannot be read or written.

use std::fmt;

use safetensors::SafeTensorError;

use super::{Error, GraphErrors, LimitError, MachineError, ProgramError};

/// The kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A graph.
    Graph,
    /// A program.
    Program,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Graph => "graph",
            Self::Program => "program",
        })
    }
}

/// Versions that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The first of them.
    pub oldest: u32,
    /// The last of them.
    pub newest: u32,
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.oldest != self.newest {
            write!(f, "{} to ", self.oldest)?;
        }
        write!(f, "{}", self.newest)
    }
}

/// Errors of a file; its path is said elsewhere.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what every field is")]
pub enum FileError {
    /// An error of the system.
    #[error(transparent)]
    System(#[from] std::io::Error),
    /// A file of a later version.
    #[error("version {version} of the {kind} file is newer than this build, which reads {reads}: update tpuflow")]
    Newer { version: u32, kind: Kind, reads: Versions },
    /// A file of an earlier version.
    #[error(
        "version {version} of the {kind} file is older than this build reads ({reads}): \
         build it again with `tpuflow build`"
    )]
    Older { version: u32, kind: Kind, reads: Versions },
    /// No tensors, or not all of them.
    #[error("not a {kind} file, or cut short ({source})")]
    Unreadable { kind: Kind, source: SafeTensorError },
    /// Tensors of something else.
    #[error("not a {0} file: it holds tensors but no {0}")]
    Absent(Kind),
    /// A file in segments.
    #[error("parts of it run on the host, which the Python package alone does")]
    Segments,
    /// JSON that cannot be read.
    #[error("damaged header ({0})")]
    Header(serde_json::Error),
    /// Instructions that cannot be read.
    #[error("damaged instructions ({0})")]
    Instructions(postcard::Error),
    /// Bytes that are not those that were written.
    #[error("the file was altered: its checksum does not match")]
    Altered,
    /// The machine cannot be.
    #[error("its machine: {0}")]
    Machine(MachineError),
    /// The machine is another one.
    #[error("made for machine {made}, but holds machine {held}")]
    OtherMachine { made: String, held: String },
    /// The graph breaks invariants.
    #[error(transparent)]
    Graph(#[from] GraphErrors),
    /// A graph with layers that stand in no file.
    #[error("layer \"{0}\" is a part of attention by blocks of keys, which only tilings of a program make")]
    Blocks(String),
    /// Numbers that cannot be computed with.
    #[error(transparent)]
    Limits(#[from] LimitError),
    /// Constants that cannot be told apart.
    #[error("two constants are called \"{0}\"")]
    TwoConstants(String),
    /// A value that JSON cannot hold.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A value that cannot be encoded.
    #[error(transparent)]
    Encoding(#[from] ProgramError),
    /// Tensors that cannot be written.
    #[error(transparent)]
    Tensors(#[from] SafeTensorError),
}

impl FileError {
    /// A file of `version` is not read by a build that reads `reads`.
    pub(crate) fn version(kind: Kind, version: u32, reads: Versions) -> Self {
        if version > reads.newest { Self::Newer { version, kind, reads } } else { Self::Older { version, kind, reads } }
    }

    /// The same, with the file's path.
    pub(crate) fn of(self, path: &std::path::Path) -> Error {
        Error::File { path: path.display().to_string(), reason: self }
    }
}
