//! The one place where errors of the crates become Python exceptions.
//!
//! The classes live in `tpuflow.errors`, where users look for them; they are looked up by name when an error occurs, so
//! the extension module imports nothing of the package while it is loaded.

use pyo3::prelude::*;
use tpuflow_ir::Error;
use tpuflow_ir::error::ProgramError;
use tpuflow_kernels::isa::IsaError;
use tpuflow_scheduler::ScheduleError;
use tpuflow_simulator::SimError;

/// An error on its way to Python: the class in `tpuflow.errors` and the message.
pub struct Failure(&'static str, String);

impl Failure {
    /// A value of the caller that does not fit.
    pub fn graph(message: String) -> Self {
        Self("GraphError", message)
    }

    /// A program, or a request of one, that does not fit.
    pub fn program(message: String) -> Self {
        Self("ProgramError", message)
    }

    /// Arrays that do not fit a graph's inputs.
    pub fn sample(message: String) -> Self {
        Self("SampleError", message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let class = match error {
            Error::Graph(_) | Error::Json(_) => "GraphError",
            Error::Machine { .. } => "MachineError",
            Error::Program(_) => "ProgramError",
            Error::File { .. } => "FileError",
        };
        Self(class, error.to_string())
    }
}

impl From<ProgramError> for Failure {
    fn from(error: ProgramError) -> Self {
        Error::from(error).into()
    }
}

impl From<tpuflow_runtime::Error> for Failure {
    fn from(error: tpuflow_runtime::Error) -> Self {
        use tpuflow_runtime::Error as E;
        match error {
            E::Machine(error) => error.into(),
            E::Port { .. } => Self("ProgramError", error.to_string()),
            E::Size { .. } | E::Index { .. } | E::Count { .. } | E::State(_) => Self("SampleError", error.to_string()),
        }
    }
}

impl From<SimError> for Failure {
    fn from(error: SimError) -> Self {
        let class = match error {
            SimError::InputCount { .. } | SimError::Input { .. } | SimError::State(_) => "SampleError",
            SimError::Graph { .. } | SimError::Layer { .. } => "GraphError",
            SimError::Hazard(_) | SimError::Deadlock { .. } | SimError::Program { .. } | SimError::Output { .. } => {
                "ProgramError"
            }
            SimError::Isa(_) => "TpuflowError",
        };
        Self(class, error.to_string())
    }
}

impl From<ScheduleError> for Failure {
    fn from(error: ScheduleError) -> Self {
        let class = match error {
            ScheduleError::Capacity { .. } | ScheduleError::External { .. } | ScheduleError::Allocation { .. } => {
                "MachineError"
            }
            ScheduleError::Graph(_) => "GraphError",
            ScheduleError::Level(_)
            | ScheduleError::Check { .. }
            | ScheduleError::Layers { .. }
            | ScheduleError::Tiling { .. }
            | ScheduleError::Devices { .. }
            | ScheduleError::State { .. }
            | ScheduleError::Parts(_)
            | ScheduleError::Stream(_)
            | ScheduleError::Time => "ProgramError",
        };
        Self(class, error.to_string())
    }
}

impl From<IsaError> for Failure {
    fn from(error: IsaError) -> Self {
        Self("TpuflowError", error.to_string())
    }
}

impl From<Failure> for PyErr {
    fn from(Failure(class, message): Failure) -> Self {
        Python::attach(|py| {
            let made = py.import("tpuflow.errors").and_then(|errors| errors.getattr(class)?.call1((message,)));
            made.map_or_else(|error| error, Self::from_value)
        })
    }
}
