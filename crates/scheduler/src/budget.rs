//! How long searches go on, and the random numbers they draw.

use std::time::Instant;

/// How long to search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub seed: u64,
    /// Thousands of instructions to place.
    pub steps: u64,
    /// When to stop in any case.
    pub deadline: Option<Instant>,
}

impl Effort {
    /// Whether there is no time left.
    pub fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

/// The next of a sequence of numbers that look random (xorshift; Marsaglia 2003).
pub(crate) fn draw(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}
