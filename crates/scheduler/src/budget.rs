//! How long searches go on, the random numbers they draw, and the timing they ask.

use std::time::Instant;

use tpuflow_ir::Program;

/// Cycles of a program that still lacks its constants; `None` where they cannot be told.
pub type Timing<'a> = &'a (dyn Fn(&Program) -> Option<u64> + Sync);

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
