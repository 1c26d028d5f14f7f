//! A program without time: its instructions executed one after another in the order of the list.
//!
//! In a run without a hazard every instruction sees the bytes the serial order gives (see `order`), so the values are those of
//! [`crate::simulate`]. What only time shows, a missing token, goes unseen here.

use std::sync::Arc;

use tpuflow_ir::{Program, Space};
use tpuflow_kernels::parallel;

use crate::check;
use crate::error::SimError;
use crate::machine::{check_alone, check_memory, check_program};
use crate::run::{ArrayModel, Event};
use crate::values::{Executor, ProgramCache};

/// A program every instruction of which is sound on its own: right descriptor and sizes, inside the memories.
#[derive(Clone, Debug)]
pub struct Serial {
    program: Arc<Program>,
    kept: ProgramCache,
}

impl Serial {
    /// Checks a program.
    ///
    /// # Errors
    /// [`SimError`]: it does not fit its machine, or an instruction breaks a rule that can be seen before it runs.
    pub fn new(program: Arc<Program>) -> Result<Self, SimError> {
        check_program(&program)?;
        check_alone(&program)?;
        check_memory(&program)?;
        for position in 0..program.instructions.len() {
            check::accesses(&program, position)?;
        }
        Ok(Self { program, kept: ProgramCache::default() })
    }

    /// The same program for runs at a position, with what earlier runs have left.
    #[must_use]
    pub fn at(&self, position: u32) -> Self {
        Self { program: Arc::new(self.program.at(position)), kept: self.kept.clone() }
    }

    /// Memories with constants and inputs in place, before the first instruction. `inputs` as for [`crate::simulate`].
    ///
    /// # Errors
    /// [`SimError`]: inputs that do not fit.
    pub fn begin(&self, inputs: &[Vec<u8>]) -> Result<Stepper, SimError> {
        let mut stepper = self.with_inputs(inputs)?;
        stepper.executor.copy_eagerly();
        Ok(stepper)
    }

    fn with_inputs(&self, inputs: &[Vec<u8>]) -> Result<Stepper, SimError> {
        let mut executor = Executor::new(Arc::clone(&self.program), ArrayModel::Closed, &self.kept);
        executor.write_inputs(inputs)?;
        Ok(Stepper { executor })
    }

    /// Executes everything: outputs as those of [`crate::Run`], and the events.
    ///
    /// # Errors
    /// [`SimError`]: inputs that do not fit, or a broken rule.
    pub fn run(&self, inputs: &[Vec<u8>]) -> Result<(Vec<Vec<u8>>, Vec<Event>), SimError> {
        let mut stepper = self.with_inputs(inputs)?;
        self.finish(&mut stepper)?;
        Ok((stepper.outputs()?, stepper.executor.events()))
    }

    /// The same for inputs and outputs as they lie in DDR: whole words. The padding of outputs is as it
    /// was left, 0 where nobody wrote.
    ///
    /// # Errors
    /// [`SimError`]: words that do not fit, or a broken rule.
    pub fn run_words<W: AsRef<[u8]>>(&self, inputs: &[W]) -> Result<(Vec<Vec<u8>>, Vec<Event>), SimError> {
        let mut executor = Executor::new(Arc::clone(&self.program), ArrayModel::Closed, &self.kept);
        executor.write_input_words(inputs)?;
        let mut stepper = Stepper { executor };
        self.finish(&mut stepper)?;
        Ok((stepper.executor.output_words()?, stepper.executor.events()))
    }

    fn finish(&self, stepper: &mut Stepper) -> Result<(), SimError> {
        let all = 0..self.program.instructions.len();
        parallel::inside(|| all.into_iter().try_for_each(|position| stepper.execute(position)))
    }
}

/// The memories between two instructions.
#[derive(Debug)]
pub struct Stepper {
    executor: Executor<Arc<Program>>,
}

impl Stepper {
    /// Executes the instruction at `position`; the caller chooses a legal order.
    ///
    /// # Errors
    /// [`SimError::Hazard`]: it reads what nobody wrote, or looks up a row that does not exist.
    ///
    /// # Panics
    /// When there is no such instruction.
    pub fn execute(&mut self, position: usize) -> Result<(), SimError> {
        self.executor.execute(position)
    }

    /// Bytes of a memory, and which of them have been written; cut at the memory's end. `None`: there is no such memory.
    #[must_use]
    pub fn read(&self, space: Space, start: u64, length: u64) -> Option<(Vec<u8>, Vec<bool>)> {
        if matches!(space, Space::Ddr(n) if usize::from(n) >= self.executor.program().ddr_bytes.len()) {
            return None;
        }
        let memory = self.executor.memory(space);
        let start = start.min(memory.size());
        let end = start.saturating_add(length).min(memory.size());
        let written = (start..end).map(|at| memory.is_written(at)).collect();
        Some((memory.bytes(start, (end - start) as usize), written))
    }

    /// Exact sums of a matrix instruction of integers, bias included, `[pixels, columns]`; nothing of any other.
    ///
    /// # Errors
    /// [`SimError::Hazard`]: an operand is not there.
    ///
    /// # Panics
    /// When there is no such instruction.
    pub fn accumulators(&self, position: usize) -> Result<Vec<i64>, SimError> {
        self.executor.accumulators(position)
    }

    /// The output ports, dense.
    ///
    /// # Errors
    /// [`SimError::Output`]: one is not complete yet.
    pub fn outputs(&self) -> Result<Vec<Vec<u8>>, SimError> {
        self.executor.outputs()
    }
}
