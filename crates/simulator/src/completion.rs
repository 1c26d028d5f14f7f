//! The knowledge that waits of a program give: how many instructions of each unit have finished whenever an instruction
//! starts, however long everything takes.
//!
//! Units start their instructions in order and finish them in order. So an instruction that has seen `n` tokens of a unit knows
//! that the unit's first `n` have finished, and all that the `n`-th knew when it started; and it knows what the instruction before
//! it on its own unit knew. A DMA line has finished one transfer before it starts the next.

use tpuflow_ir::{Program, Unit};

use crate::hazard::Rule;

/// By unit, how many of its instructions have certainly finished.
pub(crate) type FinishedCounts = [u32; Unit::COUNT];

/// Goes through the list of instructions.
#[derive(Debug, Default)]
pub(crate) struct CompletionWalk {
    /// By unit, what each of its instructions knew when it started.
    known: [Vec<FinishedCounts>; Unit::COUNT],
}

impl CompletionWalk {
    /// The finished instructions known to the one at `position`, the next of the list, when it starts.
    ///
    /// # Errors
    /// [`Rule::Wait`], [`Rule::WaitsTwice`].
    pub(crate) fn next(&mut self, program: &Program, position: usize) -> Result<FinishedCounts, Rule> {
        let instruction = &program.instructions[position];
        let own = instruction.unit.index();
        let mut finished = self.known[own].last().copied().unwrap_or_default();
        if instruction.unit.is_dma() {
            finished[own] = self.known[own].len() as u32;
        }
        let mut named = [false; Unit::COUNT];
        for wait in &instruction.waits {
            let (unit, before) = (wait.unit.index(), &self.known[wait.unit.index()]);
            if std::mem::replace(&mut named[unit], true) {
                return Err(Rule::WaitsTwice(wait.unit));
            }
            let Some(last) = (wait.count as usize).checked_sub(1) else { continue };
            let deposited = before.len() as u32;
            let known = before.get(last).ok_or(Rule::Wait { unit: wait.unit, count: wait.count, deposited })?;
            for (own, theirs) in finished.iter_mut().zip(known) {
                *own = (*own).max(*theirs);
            }
            finished[unit] = finished[unit].max(wait.count);
        }
        self.known[own].push(finished);
        Ok(finished)
    }
}
