//! How far a program is followed. Numbers that a program states must not make the walk endless, nor what it remembers: both
//! are bounded by what a sound program of the same graph, with as many instructions and constants, can need.
//!
//! A step is a run of values that is read, written or compared. Where values lie in order a run is a row of pixels and more; at
//! worst it is a single element. A sound program brings every element of every tensor from one memory to another a few times,
//! so that steps are counted against the graph's elements, and against the bytes and instructions that the file really has.

use std::cell::Cell;

use tpuflow_ir::{Graph, Program};

use crate::contents::Memories;
use crate::rule::{Fault, Rule};

/// Steps of any program, and further ones for each of what a program has. The programs of the largest networks take a quarter of
/// these at most, most of them a fiftieth.
const ANY: u64 = 1 << 22;
const PER_INSTRUCTION: u64 = 256;
const PER_CONSTANT_BYTE: u64 = 1;
const PER_ELEMENT: u64 = 4;
/// Elements of a program whose graph is not at hand.
const UNKNOWN: u64 = 1 << 24;
/// Runs that all memories may hold together, counted alike.
const ANY_RUNS: u64 = 1 << 20;
const RUNS_PER_INSTRUCTION: u64 = 64;
const CONSTANT_BYTES_PER_RUN: u64 = 4;
const RUNS_PER_ELEMENT: u64 = 1;

/// Steps that were taken, and how many there may be.
pub(crate) struct Budget {
    steps: Cell<u64>,
    most: u64,
    most_runs: u64,
}

impl Budget {
    /// Of a program, with or without its graph.
    pub(crate) fn new(graph: Option<&Graph>, program: &Program) -> Self {
        let constants = program.constants.iter().map(|bytes| bytes.len() as u64).sum();
        let elements = |shape: &[usize]| shape.iter().fold(1u64, |all, &extent| all.saturating_mul(extent as u64));
        let moved = match graph {
            // Constants are in the file.
            Some(graph) => {
                let computed = graph.tensors.iter().filter(|tensor| tensor.constant.is_none());
                computed.map(|tensor| elements(&tensor.shape)).fold(0, u64::saturating_add)
            }
            None => UNKNOWN,
        };
        // No instruction reaches more than its memories hold, whatever shapes say.
        let machine = &program.machine;
        let instructions = program.instructions.len() as u64;
        let reached = instructions.saturating_mul(machine.cache_bytes().saturating_add(machine.ewp_cache_bytes()));
        let elements = moved.min(reached);
        let steps = [
            instructions.saturating_mul(PER_INSTRUCTION),
            PER_CONSTANT_BYTE.saturating_mul(constants),
            PER_ELEMENT.saturating_mul(elements),
        ];
        let runs = [
            instructions.saturating_mul(RUNS_PER_INSTRUCTION),
            constants / CONSTANT_BYTES_PER_RUN,
            RUNS_PER_ELEMENT.saturating_mul(elements),
        ];
        Self {
            steps: 0.into(),
            most: steps.into_iter().fold(ANY, u64::saturating_add),
            most_runs: runs.into_iter().fold(ANY_RUNS, u64::saturating_add),
        }
    }

    /// Steps taken beside those of the memories.
    pub(crate) fn steps(&self) -> u64 {
        self.steps.get()
    }

    /// As after so many steps.
    pub(crate) fn resume(&self, steps: u64) {
        self.steps.set(steps);
    }

    /// Takes steps, if so many are left, and if the memories have not become too many runs.
    pub(crate) fn spend(&self, steps: u64, memories: &Memories) -> Result<(), Fault> {
        self.steps.set(self.steps.get().saturating_add(steps));
        let all = self.steps.get().saturating_add(memories.access_count());
        let most = format_args!("a program that {} steps can follow", self.most);
        Rule::Limits.require(all <= self.most, most, format_args!("one that takes {all}"))?;
        let (runs, most) = (memories.runs(), self.most_runs);
        Rule::Limits.require(runs <= most, format_args!("values in at most {most} runs"), format_args!("{runs}"))
    }
}
