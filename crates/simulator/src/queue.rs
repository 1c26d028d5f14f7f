//! Instruction queues and the tokens that order them.

use tpuflow_ir::{Program, Unit};

/// How many instructions each unit has finished; what a unit finishes in a cycle is seen from the next cycle on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tokens {
    finished: [u32; Unit::COUNT],
    pending: [u32; Unit::COUNT],
}

impl Tokens {
    pub(crate) fn finished(&self) -> &[u32; Unit::COUNT] {
        &self.finished
    }

    pub(crate) fn deposit(&mut self, unit: Unit) {
        self.pending[unit.index()] += 1;
    }

    /// Ends the cycle.
    pub(crate) fn commit(&mut self) {
        for (finished, pending) in self.finished.iter_mut().zip(&mut self.pending) {
            *finished += std::mem::take(pending);
        }
    }
}

/// The instructions of one unit, in order.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    list: Vec<u32>,
    next: usize,
}

impl Queue {
    pub(crate) fn new(program: &Program, unit: Unit) -> Self {
        let list = (0u32..).zip(&program.instructions).filter(|(_, i)| i.unit == unit).map(|(n, _)| n).collect();
        Self { list, next: 0 }
    }

    /// The next instruction to start.
    pub(crate) fn head(&self) -> Option<usize> {
        self.list.get(self.next).map(|&n| n as usize)
    }

    /// The next instruction if the tokens it waits for are there.
    pub(crate) fn ready(&self, program: &Program, tokens: &Tokens) -> Option<usize> {
        let head = self.head()?;
        let met = program.instructions[head].waits.iter().all(|w| tokens.finished[w.unit.index()] >= w.count);
        met.then_some(head)
    }

    pub(crate) fn pop(&mut self) {
        self.next += 1;
    }
}
