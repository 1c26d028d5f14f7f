//! How long searches go on, the random numbers they draw, and the timing they ask.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tpuflow_ir::Program;

/// Cycles of a program that still lacks its constants; `None` where they cannot be told.
pub type Timing<'a> = &'a (dyn Fn(&Program) -> Option<u64> + Sync);

/// A timing that is asked once for every program: searches meet the same programs again and again, by other ways.
pub(crate) struct TimedPrograms<'a> {
    timing: Timing<'a>,
    /// By hash of what cycles depend on. The machine is the same for all.
    known: Mutex<HashMap<u64, Option<u64>>>,
    hasher: RandomState,
}

impl<'a> TimedPrograms<'a> {
    pub fn new(timing: Timing<'a>) -> Self {
        Self { timing, known: Mutex::default(), hasher: RandomState::new() }
    }

    /// As the timing says.
    pub fn cycles(&self, program: &Program) -> Option<u64> {
        let key = self.hasher.hash_one((&program.instructions, &program.descriptors, &program.ddr_bytes));
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&cycles) = known().get(&key) {
            return cycles;
        }
        let cycles = (self.timing)(program);
        known().insert(key, cycles);
        cycles
    }
}

/// How long to search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchBudget {
    pub seed: u64,
    /// Thousands of instructions to place.
    pub steps: u64,
    /// When to stop in any case.
    pub deadline: Option<Instant>,
}

impl SearchBudget {
    /// Whether there is no time left.
    pub fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

/// The next of a sequence of numbers that look random (xorshift; Marsaglia 2003).
pub(crate) fn next_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}
