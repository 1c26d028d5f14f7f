//! The checks of a whole program before it runs: that every instruction is sound, that it waits for all that it needs, and
//! that no instruction waits for what never comes.
//!
//! All of it follows from the instructions, their descriptors, the machine and the sizes of memories, so it holds for any
//! program with the same ones, whatever its constants. So does its time, unless it depends on values.

use std::sync::OnceLock;

use tpuflow_ir::{Descriptor, Instruction, Machine, Program, Space, StateRegion, Unit};

use crate::check;
use crate::completion::CompletionWalk;
use crate::context::LayerTimes;
use crate::counters::Counters;
use crate::error::SimError;
use crate::machine::refused;
use crate::order::Order;
use crate::queue::Queue;

/// A program none of whose instructions breaks a rule by itself.
#[derive(Debug)]
pub(crate) struct CheckedProgram {
    instructions: Vec<Instruction>,
    descriptors: Vec<Descriptor>,
    machine: Machine,
    ddr_bytes: Vec<u64>,
    /// Ports of states and the position of the run.
    states: (Vec<StateRegion>, Option<u32>),
    /// Per instruction, how many of each unit's must have finished before it begins.
    pub(crate) needs: Vec<[u32; Unit::COUNT]>,
    /// No instruction waits for what never comes.
    pub(crate) ends: bool,
    /// The time of a run that broke no rule; only of programs whose time does not depend on values.
    pub(crate) time: OnceLock<Time>,
}

/// How long a run took and for what.
#[derive(Clone, Debug)]
pub(crate) struct Time {
    pub(crate) cycles: u64,
    pub(crate) counters: Counters,
    /// By layer and unit.
    pub(crate) layers: Vec<[LayerTimes; Unit::COUNT]>,
}

/// Whether how long instructions take depends on what they compute: lookups read DDR where indices say.
pub(crate) fn time_depends_on_values(program: &Program) -> bool {
    program.instructions.iter().any(|instruction| instruction.work.indices().is_some())
}

impl CheckedProgram {
    /// Checks every instruction of a program with a sound header, derives the order they must keep, and that waits prove it: a program that keeps it only because
    /// something happens to take long is refused.
    ///
    /// # Errors
    /// [`SimError::Program`] with a number that cannot be computed with, [`SimError::Hazard`] with the first rule an
    /// instruction breaks.
    pub(crate) fn new(program: &Program) -> Result<Self, SimError> {
        program.check_instruction_limits().map_err(|reason| refused(program, reason))?;
        let (mut order, mut awaited) = (Order::default(), CompletionWalk::default());
        let next = |(position, i): (usize, &Instruction)| {
            let needs = order.push(i.unit, &check::accesses(program, position)?);
            let finished = awaited.next(program, position);
            let finished = finished.map_err(|rule| check::hazard(program, position, (Space::Cache, 0), rule))?;
            let is_awaited = needs.iter().zip(&finished).all(|(needed, finished)| needed <= finished);
            if is_awaited { Ok(needs) } else { Err(check::conflicting_access(program, position, &finished)) }
        };
        let needs = program.instructions.iter().enumerate().map(next).collect::<Result<_, SimError>>()?;
        Ok(Self {
            instructions: program.instructions.clone(),
            descriptors: program.descriptors.clone(),
            machine: program.machine.clone(),
            ddr_bytes: program.ddr_bytes.clone(),
            states: (program.state_regions().flatten().collect(), program.position),
            needs,
            ends: ends(program),
            time: OnceLock::new(),
        })
    }

    /// Whether it says what [`Self::new`] would say of this program.
    pub(crate) fn is_of(&self, program: &Program) -> bool {
        self.machine == program.machine
            && self.ddr_bytes == program.ddr_bytes
            && self.states.1 == program.position
            && program.state_regions().flatten().eq(self.states.0.iter().copied())
            && self.descriptors == program.descriptors
            && self.instructions == program.instructions
    }
}

/// Whether no instruction waits for what never comes.
fn ends(program: &Program) -> bool {
    let mut queues = Unit::ALL.map(|unit| Queue::new(program, unit));
    let mut finished = [0; Unit::COUNT];
    loop {
        let before = finished;
        for unit in Unit::ALL {
            let queue = &mut queues[unit.index()];
            while let Some(head) = queue.head() {
                let waits = &program.instructions[head].waits;
                if waits.iter().any(|wait| finished[wait.unit.index()] < wait.count) {
                    break;
                }
                queue.pop();
                finished[unit.index()] += 1;
            }
        }
        if queues.iter().all(|queue| queue.head().is_none()) {
            return true;
        }
        if finished == before {
            return false;
        }
    }
}
