//! The instructions that are certainly finished when another starts.
//!
//! Units start and finish their instructions in order. An instruction that waited for `n` tokens of a unit knows that the
//! unit's first `n` instructions have finished, hence everything those knew when they started. A DMA line finishes a transfer
//! before it starts the next; the other units overlap neighbours, so only tokens prove that an own earlier result is there.

use tpuflow_ir::{Instruction, Unit};

use crate::contents::{Actor, Tokens};
use crate::rule::{Fault, Rule};

/// Walks the program and keeps the knowledge of every instruction at its start.
#[derive(Clone, Default)]
pub(crate) struct Order {
    started: [Vec<Tokens>; Unit::COUNT],
}

impl Order {
    /// What every instruction of a unit so far knew at its start.
    pub(crate) fn known(&self, unit: Unit) -> &[Tokens] {
        &self.started[unit.index()]
    }

    /// Takes the next instruction of the list. Gives it its number in its unit and its knowledge, or what is wrong with its
    /// waits.
    pub(crate) fn start(&mut self, instruction: &Instruction) -> (Actor, Tokens, Result<(), Fault>) {
        let unit = instruction.unit.index();
        let mut known = self.started[unit].last().copied().unwrap_or_default();
        let mut outcome = Ok(());
        if instruction.unit.is_dma() {
            known[unit] = self.started[unit].len() as u32;
        }
        for (position, wait) in instruction.waits.iter().enumerate() {
            let other = &self.started[wait.unit.index()];
            let count = wait.count as usize;
            if count > other.len() {
                let name = wait.unit.name();
                outcome = Err(Rule::WaitAhead.violation(format_args!("at most {} of {name}", other.len()), count));
                continue;
            }
            if instruction.waits[..position].iter().any(|w| w.unit == wait.unit) {
                outcome = Err(Rule::WaitTwice.violation("one wait", format_args!("two for {}", wait.unit.name())));
            }
            if let Some(last) = count.checked_sub(1).map(|i| other[i]) {
                for (mine, theirs) in known.iter_mut().zip(last) {
                    *mine = (*mine).max(theirs);
                }
            }
            known[wait.unit.index()] = known[wait.unit.index()].max(wait.count);
        }
        self.started[unit].push(known);
        let actor = Actor { unit, number: self.started[unit].len() as u32 };
        (actor, known, outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::SmallVec;
    use tpuflow_ir::isa::{Direction, Transfer, Work};
    use tpuflow_ir::{LayerId, Space, Wait};

    fn instruction(unit: Unit, waits: &[(Unit, u32)]) -> Instruction {
        let work = Work::Transfer(Transfer {
            direction: Direction::Load,
            ddr_space: 0,
            ddr_address: 0,
            local_space: Space::Cache,
            local_address: 0,
            bytes: 1,
            counts: [1, 1],
            ddr_strides: [0, 0],
            local_strides: [0, 0],
        });
        let waits: SmallVec<[Wait; 4]> = waits.iter().map(|&(unit, count)| Wait { unit, count }).collect();
        Instruction { unit, layer: LayerId(0), waits, work }
    }

    #[test]
    fn knowledge_is_transitive() {
        let mut order = Order::default();
        let (first, ..) = order.start(&instruction(Unit::Dtl0, &[]));
        assert_eq!(first, Actor { unit: 0, number: 1 });
        let (_, known, _) = order.start(&instruction(Unit::Dtl0, &[]));
        assert_eq!(known, [1, 0, 0, 0, 0]);
        let (_, known, _) = order.start(&instruction(Unit::Me, &[(Unit::Dtl0, 2)]));
        assert_eq!(known, [2, 0, 0, 0, 0]);
        let (_, known, _) = order.start(&instruction(Unit::Me, &[]));
        assert_eq!(known, [2, 0, 0, 0, 0], "an own earlier instruction has started, not finished");
        let (_, known, outcome) = order.start(&instruction(Unit::Ewp, &[(Unit::Me, 1)]));
        assert_eq!((known, outcome), ([2, 0, 1, 0, 0], Ok(())));
        let (_, _, outcome) = order.start(&instruction(Unit::Pdp, &[(Unit::Me, 3)]));
        assert!(outcome.is_err_and(|fault| fault.rule == Rule::WaitAhead));
    }
}
