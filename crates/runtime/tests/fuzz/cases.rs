//! Damaged files of every kind, and everything a user may do with them. A case is known by seed and number.
//!
//! Damage is done to what a file means, and the file written again with the checksum it then has, so that a case gets past the
//! checksum to the checks behind it; a part of the cases damages the bytes themselves.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use tpuflow_ir::{Graph, Image, Machine, Program};
use tpuflow_kernels::Values;
use tpuflow_runtime::{Codec, Mode, Session};
use tpuflow_scheduler::schedule;
use tpuflow_simulator::{Interpreter, Keep, Options, simulate};

use crate::mutate::{self, Rng};
use crate::tables;

/// What may be asked for before a program is refused for its size: several simulated devices at a time stay far below the 1 GB
/// that the long run allows.
const MEMORY: u64 = 96 << 20;
/// Programs of more cycles, and graphs of more products, are not run: that takes time whatever the code does.
const WORK: u64 = 1 << 20;

/// Files as they should be.
pub struct Material {
    programs: Vec<(Program, Value)>,
    /// One that looks entries of packed tables up.
    tables: Vec<(Program, Value)>,
    files: Vec<Vec<u8>>,
    graphs: Vec<(Graph, Value)>,
    texts: Vec<String>,
    machine: String,
    codec: Value,
    /// Where damaged files are written, which this process alone uses.
    scratch: PathBuf,
}

impl Material {
    /// Reads the files of `formats`, a folder of `tests/formats`.
    pub fn read(formats: &Path, scratch: PathBuf) -> Self {
        tpuflow_ir::memory::set_limit(MEMORY);
        let names = ["int8.o1", "int8.o5", "int16.o5", "f16.o5"];
        let path = |name: &str, kind: &str| formats.join(format!("{name}.{kind}"));
        let load = |name: &str| Program::load(&path(name, "tpu")).expect("a program");
        let of_program = |program: Program| {
            let value = serde_json::to_value(&program).expect("expressible");
            (program, value)
        };
        let programs = names.map(|name| of_program(load(name)));
        let graphs = ["int8", "int16", "f16"].map(|name| {
            let graph = Graph::load(&path(name, "tpuq")).expect("a graph");
            let value = serde_json::to_value(&graph).expect("expressible");
            (graph, value)
        });
        let files = ["int8.o5.tpu", "int8.o5.raw.tpu", "int8.tpuq", "segments.tpu", "combined.bundle"];
        let codec = std::fs::read_to_string(formats.join("int8.o5.codec.json")).expect("a codec");
        let codec: Value = serde_json::from_str(&codec).expect("a codec");
        let metadata = codec["metadata"].as_str().expect("text");
        std::fs::create_dir_all(&scratch).expect("a folder");
        Self {
            texts: names.map(|name| load(name).to_text(true).expect("expressible")).to_vec(),
            codec: serde_json::from_str(metadata).expect("a program"),
            files: files.map(|name| std::fs::read(formats.join(name)).expect("a file")).to_vec(),
            machine: std::fs::read_to_string(formats.join("machine.toml")).expect("a machine"),
            programs: programs.to_vec(),
            tables: vec![of_program(tables::program())],
            graphs: graphs.to_vec(),
            scratch,
        }
    }

    /// Runs a case: what was damaged, and whether it was refused.
    pub fn run(&self, seed: u64, case: u64) -> (&'static str, bool) {
        let mut rng = Rng::new(seed, case);
        match rng.below(10) {
            0..=3 => ("program", self.program(&self.programs, &mut rng).is_err()),
            4 => ("bytes", self.bytes(&mut rng).is_err()),
            5 => ("text", self.text(&mut rng).is_err()),
            6..=7 => ("graph", self.graph(&mut rng).is_err()),
            8 => ("machine", self.machine(&mut rng).is_err()),
            _ => ("codec", self.codec(&mut rng).is_err()),
        }
    }

    /// Runs a case of a program with packed tables: whether it was refused.
    pub fn run_tables(&self, seed: u64, case: u64) -> bool {
        self.program(&self.tables, &mut Rng::new(seed, case)).is_err()
    }

    fn program(&self, programs: &[(Program, Value)], rng: &mut Rng) -> Result<(), String> {
        let number = rng.below(programs.len());
        let (original, value) = &programs[number];
        let mut value = value.clone();
        for _ in 0..=rng.below(3) {
            mutate::tree(rng, &mut value);
        }
        let mut program: Program = serde_json::from_value(value).map_err(|error| error.to_string())?;
        program.constants = original.constants.clone();
        if rng.below(4) == 0 && !program.constants.is_empty() {
            let space = rng.below(program.constants.len());
            let mut bytes = program.constants[space].to_vec();
            for _ in 0..=rng.below(4) {
                mutate::bytes(rng, &mut bytes);
            }
            program.constants[space] = Image::from(bytes);
        }
        if rng.below(4) > 0 {
            return self.used(&program);
        }
        let path = self.scratch.join("program.tpu");
        program.save(&path).map_err(|error| error.to_string())?;
        self.used(&Program::load(&path).map_err(|error| error.to_string())?)
    }

    /// Everything that is done with programs. What it says of a damaged one is not judged here.
    fn used(&self, program: &Program) -> Result<(), String> {
        if let Err(reason) = program.check_limits() {
            let run = simulate(program, &[], &Options { values: false, ..Options::default() });
            assert!(run.is_err(), "what cannot be computed with is not run");
            return Err(reason.to_string());
        }
        let rules = tpuflow_checker::check_rules(program);
        for (graph, _) in &self.graphs {
            let _ = tpuflow_checker::check(graph, program);
        }
        let _ = program.to_text(false);
        let figures = simulate(program, &[], &Options { values: false, ..Options::default() });
        let figures = figures.map_err(|error| error.to_string())?;
        let _ = serde_json::to_string(&figures.report(program));
        let session = Session::new(Arc::new(program.clone())).map_err(|error| error.to_string())?;
        let ports = &session.codec().inputs;
        if figures.cycles < WORK && ports.iter().all(|port| port.user_bytes() < MEMORY as usize) {
            let arrays: Vec<Vec<u8>> = ports.iter().map(|port| vec![3; port.user_bytes()]).collect();
            let arrays: Vec<&[u8]> = arrays.iter().map(Vec::as_slice).collect();
            let fast = session.run(&arrays, Mode::Fast).map_err(|error| error.to_string())?;
            let exact = session.run(&arrays, Mode::Exact).map_err(|error| error.to_string())?;
            assert_eq!(fast.outputs, exact.outputs, "both ways to run a program agree");
        }
        rules.map_err(|broken| broken[0].to_string())
    }

    fn bytes(&self, rng: &mut Rng) -> Result<(), String> {
        let mut bytes = rng.pick(&self.files).clone();
        // Headers are short beside what they describe, but hold most of the meaning.
        let header = rng.below(2) == 0;
        let mut head = if header { bytes.drain(..bytes.len().min(64)).collect() } else { vec![] };
        for _ in 0..=rng.below(3) {
            mutate::bytes(rng, if header { &mut head } else { &mut bytes });
        }
        head.extend(bytes);
        let path = self.scratch.join("bytes");
        std::fs::write(&path, &head).map_err(|error| error.to_string())?;
        let program = Program::load(&path).map_err(|error| error.to_string());
        let graph = Graph::load(&path).map_err(|error| error.to_string());
        match (program, graph) {
            (Ok(program), _) => self.used(&program),
            (_, Ok(graph)) => interpreted(&graph),
            (Err(reason), Err(_)) => Err(reason),
        }
    }

    fn text(&self, rng: &mut Rng) -> Result<(), String> {
        let mut text = rng.pick(&self.texts).clone();
        for _ in 0..=rng.below(3) {
            mutate::text(rng, &mut text);
        }
        if rng.below(4) == 0 {
            let mut bytes = text.into_bytes();
            mutate::bytes(rng, &mut bytes);
            text = String::from_utf8_lossy(&bytes).into_owned();
        }
        self.used(&Program::from_text(&text).map_err(|error| error.to_string())?)
    }

    fn graph(&self, rng: &mut Rng) -> Result<(), String> {
        let (original, value) = rng.pick(&self.graphs);
        let mut value = value.clone();
        for _ in 0..=rng.below(3) {
            mutate::tree(rng, &mut value);
        }
        let mut graph: Graph = serde_json::from_value(value).map_err(|error| error.to_string())?;
        for tensor in &mut graph.tensors {
            let same = original.tensors.iter().find(|own| own.name == tensor.name);
            tensor.constant = same.and_then(|own| own.constant.clone());
        }
        let path = self.scratch.join("graph.tpuq");
        graph.save(&path).map_err(|error| error.to_string())?;
        interpreted(&Graph::load(&path).map_err(|error| error.to_string())?)
    }

    fn machine(&self, rng: &mut Rng) -> Result<(), String> {
        let mut text = self.machine.clone();
        for _ in 0..=rng.below(3) {
            mutate::text(rng, &mut text);
        }
        let machine = Machine::parse("machine.toml", &text).map_err(|error| error.to_string())?;
        if rng.below(2) == 0 {
            let graph = &rng.pick(&self.graphs).0;
            let made = schedule(graph, &machine, &tpuflow_scheduler::Options::default());
            let program = made.map_err(|error| error.to_string())?;
            let run = simulate(&program, &[], &Options { values: false, ..Options::default() });
            run.expect("what is compiled for a machine runs on it");
            return Ok(());
        }
        let mut program = rng.pick(&self.programs).0.clone();
        program.machine = machine;
        self.used(&program)
    }

    fn codec(&self, rng: &mut Rng) -> Result<(), String> {
        let mut value = self.codec.clone();
        // Ports are what a codec is about.
        let ports = *rng.pick(&["inputs", "outputs"]);
        for _ in 0..=rng.below(3) {
            mutate::tree(rng, &mut value[ports]);
        }
        if value[ports].is_null() {
            value[ports] = json!([]);
        }
        let program: Program = serde_json::from_value(value).map_err(|error| error.to_string())?;
        let codec = Codec::new(&program).map_err(|error| error.to_string())?;
        for port in codec.inputs.iter().chain(&codec.outputs) {
            if port.user_bytes().max(port.word_bytes()) < MEMORY as usize {
                let words = port.pack(&vec![1; port.user_bytes()]).map_err(|error| error.to_string())?;
                port.unpack(&words).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }
}

/// Runs a graph on constant inputs.
fn interpreted(graph: &Graph) -> Result<(), String> {
    let _ = graph.to_json();
    let macs: u64 = graph.layers.iter().map(|layer| graph.macs(layer)).fold(0, u64::saturating_add);
    let elements = |tensor: &tpuflow_ir::Tensor| tensor.shape.iter().fold(1u64, |all, &n| all.saturating_mul(n as u64));
    let all = graph.tensors.iter().map(elements).fold(macs, u64::saturating_add);
    let interpreter = Interpreter::new(Arc::new(graph.clone())).map_err(|error| error.to_string())?;
    if all > WORK * 4 {
        return Ok(());
    }
    let inputs = graph.inputs.iter().map(|&id| {
        let tensor = graph.tensor(id);
        Values::from_le_bytes(tensor.dtype, &vec![3; elements(tensor) as usize * tensor.dtype.bytes()])
    });
    interpreter.run(inputs.collect(), Keep::Outputs).map_err(|error| error.to_string())?;
    Ok(())
}
