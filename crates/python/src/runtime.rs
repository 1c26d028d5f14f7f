//! Arrays to cache words, programs ready to run, programs run instruction by instruction.

use std::sync::{Arc, Mutex, PoisonError};

use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tpuflow_ir::Space;
use tpuflow_runtime::{Mode, RunResult, StateMemory};
use tpuflow_simulator::Serial;

use crate::error::Failure;
use crate::simulator::{Program, input_bytes};

/// Registers the classes of this module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Codec>()?;
    module.add_class::<Session>()?;
    module.add_class::<State>()?;
    module.add_class::<Stepper>()
}

type Bytes<'py> = Bound<'py, PyArray1<u8>>;

/// Bytes of a contiguous array of bytes.
fn slice<'a>(array: &'a PyReadonlyArray1<'_, u8>) -> PyResult<&'a [u8]> {
    array.as_slice().map_err(|error| Failure::sample(error.to_string()).into())
}

/// Packs and unpacks the ports of a program; arrays are flat bytes.
#[pyclass(module = "tpuflow._core", frozen)]
struct Codec {
    codec: tpuflow_runtime::Codec,
}

impl Codec {
    fn port(ports: &[tpuflow_runtime::Port], number: usize) -> PyResult<&tpuflow_runtime::Port> {
        Ok(ports.get(number).ok_or_else(|| Failure::sample(format!("there is no port {number}")))?)
    }
}

#[pymethods]
impl Codec {
    /// The ports in a program's metadata.
    #[new]
    fn new(metadata: &str) -> PyResult<Self> {
        let program: tpuflow_ir::Program =
            serde_json::from_str(metadata).map_err(|error| Failure::program(error.to_string()))?;
        Ok(Self { codec: tpuflow_runtime::Codec::new(&program).map_err(Failure::from)? })
    }

    /// Cache words of an input.
    fn pack<'py>(&self, py: Python<'py>, number: usize, array: PyReadonlyArray1<'py, u8>) -> PyResult<Bytes<'py>> {
        let (port, array) = (Self::port(&self.codec.inputs, number)?, slice(&array)?);
        Ok(PyArray1::from_vec(py, py.detach(|| port.pack(array)).map_err(Failure::from)?))
    }

    /// The user's elements in the cache words of an output.
    fn unpack<'py>(&self, py: Python<'py>, number: usize, words: PyReadonlyArray1<'py, u8>) -> PyResult<Bytes<'py>> {
        let (port, words) = (Self::port(&self.codec.outputs, number)?, slice(&words)?);
        Ok(PyArray1::from_vec(py, py.detach(|| port.unpack(words)).map_err(Failure::from)?))
    }
}

/// A program that was checked once for many runs, which may go on side by side.
#[pyclass(module = "tpuflow._core", frozen)]
struct Session {
    session: tpuflow_runtime::Session,
}

#[pymethods]
impl Session {
    #[new]
    fn new(py: Python<'_>, program: &Program) -> PyResult<Self> {
        let program = Arc::clone(&program.program);
        Ok(Self { session: py.detach(|| tpuflow_runtime::Session::new(program)).map_err(Failure::from)? })
    }

    /// Runs the program: flat bytes of every output, figures of an exact run as JSON, events as JSON, seconds of simulation.
    #[allow(clippy::type_complexity, reason = "one answer")]
    fn run<'py>(
        &self,
        py: Python<'py>,
        arrays: Vec<PyReadonlyArray1<'py, u8>>,
        exact: bool,
    ) -> PyResult<(Vec<Bytes<'py>>, Option<(u64, String)>, Option<String>, f64)> {
        let slices = arrays.iter().map(slice).collect::<PyResult<Vec<_>>>()?;
        let mode = if exact { Mode::Exact } else { Mode::Fast };
        let answer = py.detach(|| self.session.run(&slices, mode)).map_err(Failure::from)?;
        self.wrap_result(py, answer)
    }

    /// No rows yet of the program's states.
    fn state(&self) -> PyResult<State> {
        Ok(State { state: Mutex::new(self.session.state().map_err(Failure::from)?) })
    }

    /// As `run`, behind the rows of a state before a position; states are not among the arrays taken and given, which are empty.
    #[allow(clippy::type_complexity, reason = "one answer")]
    fn step<'py>(
        &self,
        py: Python<'py>,
        arrays: Vec<PyReadonlyArray1<'py, u8>>,
        state: &State,
        position: u32,
        exact: bool,
    ) -> PyResult<(Vec<Bytes<'py>>, Option<(u64, String)>, Option<String>, f64)> {
        let slices = arrays.iter().map(slice).collect::<PyResult<Vec<_>>>()?;
        let mode = if exact { Mode::Exact } else { Mode::Fast };
        let answer = py.detach(|| self.session.step(&slices, &mut state.lock(), position, mode));
        self.wrap_result(py, answer.map_err(Failure::from)?)
    }
}

impl Session {
    #[allow(clippy::type_complexity, reason = "one answer")]
    fn wrap_result<'py>(
        &self,
        py: Python<'py>,
        answer: RunResult,
    ) -> PyResult<(Vec<Bytes<'py>>, Option<(u64, String)>, Option<String>, f64)> {
        let json = |text: Result<String, serde_json::Error>| text.map_err(|error| Failure::program(error.to_string()));
        let figures = match &answer.run {
            Some(run) => Some((run.cycles, json(serde_json::to_string(&run.report(self.session.program())))?)),
            None => None,
        };
        let events = if answer.events.is_empty() { None } else { Some(json(serde_json::to_string(&answer.events))?) };
        let outputs = answer.outputs.into_iter().map(|bytes| PyArray1::from_vec(py, bytes)).collect();
        Ok((outputs, figures, events, answer.seconds))
    }
}

/// Rows of a program's states, which stay on the device between runs.
#[pyclass(module = "tpuflow._core", frozen)]
struct State {
    state: Mutex<StateMemory>,
}

impl State {
    fn lock(&self) -> std::sync::MutexGuard<'_, StateMemory> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl State {
    /// Rows that count.
    #[getter]
    fn rows(&self) -> u32 {
        self.lock().rows()
    }

    /// Names of the states, those of their inputs.
    #[getter]
    fn names(&self) -> Vec<String> {
        self.lock().names().map(str::to_owned).collect()
    }

    /// Forgets rows from `rows` on.
    fn truncate(&self, rows: u32) {
        self.lock().truncate(rows);
    }

    /// The rows of a state that count: shape in the model, flat bytes.
    fn read<'py>(&self, py: Python<'py>, session: &Session, name: &str) -> PyResult<(Vec<usize>, Bytes<'py>)> {
        let (shape, bytes) = self.lock().read(session.session.program(), name).map_err(Failure::from)?;
        Ok((shape, PyArray1::from_vec(py, bytes)))
    }

    /// Replaces all rows: flat bytes of as many for every state.
    fn write(&self, session: &Session, rows: u32, arrays: Vec<PyReadonlyArray1<'_, u8>>) -> PyResult<()> {
        let slices = arrays.iter().map(slice).collect::<PyResult<Vec<_>>>()?;
        Ok(self.lock().write(session.session.program(), rows, &slices).map_err(Failure::from)?)
    }

    /// All rows that count as bytes, which `restore` reads.
    fn save<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.lock().save().map_err(Failure::from)?))
    }

    /// Takes the rows that were saved of the same states.
    fn restore(&self, saved: &[u8]) -> PyResult<()> {
        Ok(self.lock().restore(saved).map_err(Failure::from)?)
    }
}

/// The memories of a program between two instructions.
#[pyclass(module = "tpuflow._core", frozen)]
struct Stepper {
    program: Arc<tpuflow_ir::Program>,
    stepper: Mutex<tpuflow_simulator::Stepper>,
}

impl Stepper {
    fn position(&self, position: usize) -> PyResult<usize> {
        let count = self.program.instructions.len();
        if position < count {
            return Ok(position);
        }
        Err(Failure::program(format!("instruction {position} does not exist, there are {count}")).into())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, tpuflow_simulator::Stepper> {
        self.stepper.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Stepper {
    /// Memories with constants and inputs in place. `inputs`: codes in the shape and element type of the input ports.
    #[new]
    fn new(py: Python<'_>, program: &Program, inputs: Vec<Bound<'_, PyAny>>) -> PyResult<Self> {
        let codes = input_bytes(&program.program, &inputs)?;
        let program = Arc::clone(&program.program);
        let begun = py.detach(|| Serial::new(Arc::clone(&program))?.begin(&codes));
        Ok(Self { stepper: Mutex::new(begun.map_err(Failure::from)?), program })
    }

    /// Executes an instruction.
    fn execute(&self, py: Python<'_>, position: usize) -> PyResult<()> {
        let position = self.position(position)?;
        Ok(py.detach(|| self.lock().execute(position)).map_err(Failure::from)?)
    }

    /// Bytes of a memory (`cache`, `ewp` or `ddr0`, ...) and for each whether it was written; cut at the memory's end.
    fn read<'py>(
        &self,
        py: Python<'py>,
        space: &str,
        start: u64,
        length: u64,
    ) -> PyResult<(Bytes<'py>, Bound<'py, PyArray1<bool>>)> {
        let unknown = || Failure::program(format!("memory \"{space}\" is none of cache, ewp, ddr0, ddr1, ..."));
        let found = match space {
            "cache" => Space::Cache,
            "ewp" => Space::EwpCache,
            other => Space::Ddr(other.strip_prefix("ddr").and_then(|n| n.parse().ok()).ok_or_else(unknown)?),
        };
        let stepper = self.lock();
        let (bytes, written) = stepper.read(found, start, length).ok_or_else(unknown)?;
        Ok((PyArray1::from_vec(py, bytes), PyArray1::from_vec(py, written)))
    }

    /// Exact sums of a matrix instruction of integers, `[pixels * columns]`; nothing of any other.
    fn accumulators<'py>(&self, py: Python<'py>, position: usize) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let position = self.position(position)?;
        let sums = py.detach(|| self.lock().accumulators(position)).map_err(Failure::from)?;
        Ok(PyArray1::from_vec(py, sums))
    }
}
