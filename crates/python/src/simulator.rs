//! Compiled programs and their runs on the simulated machine.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use numpy::PyArray2;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tpuflow_kernels::Values;
use tpuflow_simulator::counters::{Client, Stall};
use tpuflow_simulator::{ArrayModel, Options};

use crate::arrays;
use crate::error::Failure;

/// Registers the classes and functions of this module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Program>()?;
    module.add_class::<Run>()?;
    module.add_class::<Signals>()?;
    module.add_class::<Devices>()?;
    module.add_function(wrap_pyfunction!(signals, module)?)?;
    module.add_function(wrap_pyfunction!(simulate, module)?)
}

fn json<T: serde::Serialize>(value: &T) -> PyResult<String> {
    Ok(serde_json::to_string(value).map_err(|error| Failure::program(error.to_string()))?)
}

/// A network compiled for a machine, immutable.
#[pyclass(module = "tpuflow._core", frozen)]
pub struct Program {
    /// The program.
    pub program: Arc<tpuflow_ir::Program>,
    cache: tpuflow_simulator::ProgramCache,
}

impl Program {
    /// Wraps a finished program.
    pub fn new(program: tpuflow_ir::Program) -> Self {
        Self { program: Arc::new(program), cache: tpuflow_simulator::ProgramCache::default() }
    }
}

#[pymethods]
impl Program {
    /// Name of the network.
    #[getter]
    fn name(&self) -> &str {
        &self.program.name
    }

    /// Optimisation level asked for.
    #[getter]
    fn level(&self) -> u8 {
        self.program.level
    }

    /// Why a lower level was taken, if it was.
    #[getter]
    fn fallback(&self) -> Option<&str> {
        self.program.fallback.as_deref()
    }

    /// The same instructions on a machine with other speeds; its memories and array must be the same.
    fn on_machine(&self, machine_toml: &str) -> PyResult<Self> {
        let machine = tpuflow_ir::Machine::parse("machine", machine_toml).map_err(Failure::from)?;
        let own = &self.program.machine;
        let shape = |m: &tpuflow_ir::Machine| {
            (m.array.rows, m.array.columns, m.array.accumulators, m.word(), m.cache_bytes(), m.ewp_cache_bytes())
        };
        if shape(&machine) != shape(own) || machine.ddr_spaces() != own.ddr_spaces() {
            let message = format!("machine {} has other memories than the program's, {}", machine.name, own.name);
            return Err(Failure::program(message).into());
        }
        Ok(Self::new(tpuflow_ir::Program { machine, ..tpuflow_ir::Program::clone(&self.program) }))
    }

    /// The last position a run may have: rows of the states it reaches before its own. `None`: the program has no state.
    #[getter]
    fn last_position(&self) -> Option<u32> {
        self.program.last_position()
    }

    /// The same program for runs at a position.
    fn at(&self, position: u32) -> PyResult<Self> {
        let placed = self.program.at(position);
        placed.check_limits().map_err(|error| Failure::program(error.to_string()))?;
        Ok(Self { program: Arc::new(placed), cache: self.cache.clone() })
    }

    /// Whether it takes the same instructions as another, on constants that may be others.
    fn is_like(&self, other: &Self) -> bool {
        self.program.is_like(&other.program)
    }

    /// The stream of so many runs, each beginning before the one before has ended, as a program of the graph repeated as often.
    fn unrolled(&self, py: Python<'_>, runs: u32) -> PyResult<Self> {
        let unrolled = py.detach(|| self.program.unrolled(runs));
        Ok(Self::new(unrolled.map_err(|error| Failure::program(error.to_string()))?))
    }

    /// Number of instructions.
    fn __len__(&self) -> usize {
        self.program.instructions.len()
    }

    /// Machine, ports, layers, bounds and allocations as JSON: everything but instructions and constants.
    fn metadata(&self) -> PyResult<String> {
        Ok(self.program.metadata().map_err(Failure::from)?)
    }

    /// Most bytes of the shared cache that are allocated at a time.
    fn cache_in_use(&self) -> u64 {
        self.program.cache_in_use()
    }

    /// SHA-256 of what the machine executes, names left out.
    fn digest(&self, py: Python<'_>) -> PyResult<String> {
        Ok(py.detach(|| self.program.digest()).map_err(Failure::from)?)
    }

    /// The program as JSON, without its constants.
    fn to_json(&self) -> PyResult<String> {
        json(&*self.program)
    }

    /// The same program without what the outside needs: ports are cache words.
    fn to_raw(&self) -> Self {
        Self::new(self.program.to_raw())
    }

    /// The same program with its inputs and outputs elsewhere in DDR: those that are named at addresses of their own, or all of
    /// them together, the lowest at `io_address`.
    #[pyo3(signature = (io_address=None, addresses=BTreeMap::new()))]
    fn relocated(&self, py: Python<'_>, io_address: Option<u64>, addresses: BTreeMap<String, u64>) -> PyResult<Self> {
        let moved = match io_address {
            Some(address) => self.program.with_io_at(address),
            None => self.program.with_ports_at(&addresses),
        };
        let mut moved = moved.map_err(|error| Failure::program(error.to_string()))?;
        moved.check_limits().map_err(|error| Failure::program(error.to_string()))?;
        // Pages of other channels may take another time.
        let untimed = Options { values: false, ..Options::default() };
        let run = py.detach(|| tpuflow_simulator::simulate(&moved, &[], &untimed));
        moved.predicted_cycles = run.map_or(moved.predicted_cycles, |run| run.cycles);
        Ok(Self::new(moved))
    }

    /// Whether ports are cache words.
    #[getter]
    fn is_raw(&self) -> bool {
        self.program.is_raw()
    }

    /// Constants of every DDR address space, as bytes.
    fn constants<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        self.program.constants.iter().map(|image| PyBytes::new(py, image)).collect()
    }

    /// Writes the file form.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        Ok(py.detach(|| self.program.save(&path)).map_err(Failure::from)?)
    }

    /// Maps the file form.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        Ok(Self::new(py.detach(|| tpuflow_ir::Program::load(&path)).map_err(Failure::from)?))
    }

    /// The text form; without constants for reading only.
    #[pyo3(signature = (*, constants=true))]
    fn to_text(&self, py: Python<'_>, constants: bool) -> PyResult<String> {
        Ok(py.detach(|| self.program.to_text(constants)).map_err(Failure::from)?)
    }

    /// Reads the text form.
    #[staticmethod]
    fn from_text(py: Python<'_>, text: &str) -> PyResult<Self> {
        Ok(Self::new(py.detach(|| tpuflow_ir::Program::from_text(text)).map_err(Failure::from)?))
    }

    fn __repr__(&self) -> String {
        let p = &self.program;
        format!("Program({:?}, {:?}, level {}, {} instructions)", p.name, p.machine.name, p.level, p.instructions.len())
    }
}

/// The results of a program on the simulated machine.
#[pyclass(module = "tpuflow._core", frozen)]
struct Run {
    run: tpuflow_simulator::Run,
    program: Arc<tpuflow_ir::Program>,
}

#[pymethods]
impl Run {
    /// Codes of the output ports in the shape of the stored tensors; empty without values.
    #[getter]
    fn outputs<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let made = |(port, bytes): (&tpuflow_ir::Port, &Vec<u8>)| {
            arrays::array(py, &port.shape, &Values::from_le_bytes(port.dtype, bytes))
        };
        self.program.outputs.iter().zip(&self.run.outputs).map(made).collect()
    }

    /// Cycles from the start of the program to the end of its last instruction.
    #[getter]
    fn cycles(&self) -> u64 {
        self.run.cycles
    }

    /// Everything counted, as JSON.
    fn to_json(&self) -> PyResult<String> {
        json(&self.run.report(&self.program))
    }

    /// The trace as a JSON list of intervals; `null` when none was asked for.
    fn trace_json(&self) -> PyResult<String> {
        json(&self.run.trace)
    }
}

/// The codes of inputs in the shape and element type of the input ports.
pub fn input_bytes(program: &tpuflow_ir::Program, inputs: &[Bound<'_, PyAny>]) -> PyResult<Vec<Vec<u8>>> {
    program.inputs.iter().zip(inputs).map(|(port, given)| port_bytes(port, given)).collect()
}

/// The codes of an input in the shape and element type of its port.
fn port_bytes(port: &tpuflow_ir::Port, given: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let name = format!("input \"{}\"", port.name);
    let (shape, given) = arrays::values(given, &name)?;
    if shape != port.shape || given.dtype() != port.dtype {
        let (dtype, wanted) = (given.dtype().name(), port.dtype.name());
        let message = format!("{name} is {dtype} {shape:?}, expected {wanted} {:?}", port.shape);
        return Err(Failure::sample(message).into());
    }
    Ok(given.to_le_bytes())
}

/// Runs a program. `inputs`: codes in the shape and element type of the input ports, none without `values`.
#[pyfunction]
#[pyo3(signature = (program, inputs, *, values=true, trace=false, array="closed", stepped=false))]
fn simulate(
    py: Python<'_>,
    program: &Program,
    inputs: Vec<Bound<'_, PyAny>>,
    values: bool,
    trace: bool,
    array: &str,
    stepped: bool,
) -> PyResult<Run> {
    let array = match array {
        "closed" => ArrayModel::Closed,
        "register" => ArrayModel::Register,
        other => return Err(Failure::program(format!("array model \"{other}\" is none of closed, register")).into()),
    };
    let ports = &program.program.inputs;
    let codes = input_bytes(&program.program, &inputs)?;
    if values && inputs.len() != ports.len() {
        let message = format!("{} inputs given, \"{}\" takes {}", inputs.len(), program.program.name, ports.len());
        return Err(Failure::sample(message).into());
    }
    let options = Options { values, trace, array, stepped };
    let run = py
        .detach(|| tpuflow_simulator::simulate_again(&program.program, &codes, &options, &program.cache))
        .map_err(Failure::from)?;
    Ok(Run { run, program: Arc::clone(&program.program) })
}

/// The programs of several devices, by rank, which run together.
#[pyclass(module = "tpuflow._core", frozen)]
struct Devices {
    devices: tpuflow_simulator::Devices,
    program: Arc<tpuflow_ir::Program>,
}

#[pymethods]
impl Devices {
    #[new]
    fn new(programs: Vec<PyRef<'_, Program>>) -> PyResult<Self> {
        let programs: Vec<_> = programs.iter().map(|program| Arc::clone(&program.program)).collect();
        let Some(program) = programs.first().cloned() else {
            return Err(Failure::program("no programs of devices given".to_owned()).into());
        };
        let devices = tpuflow_simulator::Devices::new(programs).map_err(Failure::from)?;
        Ok(Self { devices, program })
    }

    /// The same for runs at a position of the states.
    fn at(&self, position: u32) -> Self {
        Self { devices: self.devices.at(position), program: Arc::new(self.program.at(position)) }
    }

    /// Runs all devices: by rank codes of the outputs. `inputs`: by rank, those that are no parts of exchanges.
    fn run<'py>(&self, py: Python<'py>, inputs: Vec<Vec<Bound<'py, PyAny>>>) -> PyResult<Vec<Vec<Bound<'py, PyAny>>>> {
        let given: Vec<usize> = (0..self.program.inputs.len()).filter(|&n| !self.program.is_exchanged(n)).collect();
        let mut codes = Vec::with_capacity(inputs.len());
        for own in &inputs {
            if own.len() != given.len() {
                let message = format!("{} inputs of a device given, expected {}", own.len(), given.len());
                return Err(Failure::sample(message).into());
            }
            let mut all = vec![vec![]; self.program.inputs.len()];
            for (&number, array) in given.iter().zip(own) {
                all[number] = port_bytes(&self.program.inputs[number], array)?;
            }
            codes.push(all);
        }
        let runs = py.detach(|| self.devices.run(&codes)).map_err(Failure::from)?;
        let outputs = |(outputs, _): (Vec<Vec<u8>>, _)| -> PyResult<Vec<Bound<'py, PyAny>>> {
            let ports = self.program.outputs.iter().zip(&outputs);
            let array = |(port, bytes): (&tpuflow_ir::Port, &Vec<u8>)| {
                arrays::array(py, &port.shape, &Values::from_le_bytes(port.dtype, bytes))
            };
            ports.map(array).collect()
        };
        runs.into_iter().map(outputs).collect()
    }
}

/// The signals of units, ports and DDR channels in a window of cycles; events as rows of numbers, in the order of time.
#[pyclass(module = "tpuflow._core", frozen)]
struct Signals {
    signals: tpuflow_simulator::Signals,
}

type Rows<'py> = Bound<'py, PyArray2<u64>>;

fn rows<'py, const N: usize>(py: Python<'py>, events: impl ExactSizeIterator<Item = [u64; N]>) -> PyResult<Rows<'py>> {
    let count = events.len();
    let flat = numpy::PyArray1::from_vec(py, events.flatten().collect());
    numpy::PyArrayMethods::reshape(&flat, [count, N])
}

#[pymethods]
impl Signals {
    /// Names of the ports that ask banks for words, in falling priority.
    #[getter]
    fn ports(&self) -> Vec<&'static str> {
        Client::ALL.map(Client::name).to_vec()
    }

    /// Names of the reasons why a unit does no work.
    #[getter]
    fn stalls(&self) -> Vec<&'static str> {
        Stall::ALL.map(Stall::name).to_vec()
    }

    /// `cycle, unit, layer, stall` from this cycle on; layer and stall are one more than the number, or 0.
    #[getter]
    fn states<'py>(&self, py: Python<'py>) -> PyResult<Rows<'py>> {
        let row = |s: &tpuflow_simulator::signals::State| {
            let layer = s.layer.map_or(0, |layer| layer.index() as u64 + 1);
            [s.cycle, s.unit.index() as u64, layer, s.stall.map_or(0, |stall| stall as u64 + 1)]
        };
        rows(py, self.signals.states.iter().map(row))
    }

    /// `cycle, port, instruction, word, write, granted`.
    #[getter]
    fn requests<'py>(&self, py: Python<'py>) -> PyResult<Rows<'py>> {
        let row = |r: &tpuflow_simulator::signals::Request| {
            [r.cycle, r.port.index() as u64, r.instruction.into(), r.word, r.write.into(), r.granted.into()]
        };
        rows(py, self.signals.requests.iter().map(row))
    }

    /// `cycle, channel, line, page` from this cycle on; the line is one more than the unit's number, or 0.
    #[getter]
    fn channels<'py>(&self, py: Python<'py>) -> PyResult<Rows<'py>> {
        let row = |c: &tpuflow_simulator::signals::Channel| {
            let (line, page) = c.user.map_or((0, 0), |(unit, page)| (unit.index() as u64 + 1, page));
            [c.cycle, c.channel.into(), line, page]
        };
        rows(py, self.signals.channels.iter().map(row))
    }
}

/// Steps a program through cycles and records what is seen from `begin` up to `end`; more than `most` events are an error.
#[pyfunction]
fn signals(
    py: Python<'_>,
    program: &Program,
    inputs: Vec<Bound<'_, PyAny>>,
    begin: u64,
    end: u64,
    most: usize,
) -> PyResult<Signals> {
    let codes = input_bytes(&program.program, &inputs)?;
    let found = py.detach(|| tpuflow_simulator::signals_of(&program.program, &codes, begin..end, most));
    Ok(Signals { signals: found.map_err(Failure::from)? })
}
