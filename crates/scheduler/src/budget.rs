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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rayon::ThreadPoolBuilder;
    use tpuflow_ir::Machine;

    use super::*;
    use crate::{Options, common, schedule_by};

    #[test]
    fn no_program_is_timed_twice() {
        let mut net = common::Net::new(3);
        let x = net.input(&[1, 8, 8, 64]);
        let mut y = net.conv(x, 64, common::window(3, 1, 1), 1);
        y = net.conv(y, 256, common::window(1, 1, 0), 1);
        let graph = net.finish(&[y]);
        let machine = Machine::preset("128x128_asic").expect("known");
        let (seen, asked) = (Mutex::new(HashSet::new()), AtomicUsize::new(0));
        let timing = |program: &Program| {
            asked.fetch_add(1, Ordering::Relaxed);
            let own = (program.instructions.clone(), program.descriptors.clone(), program.ddr_bytes.clone());
            assert!(seen.lock().expect("one thread").insert(own), "a program is timed again");
            Some(program.instructions.len() as u64 * 1000)
        };
        let options = Options { level: 5, ..Options::default() };
        // Two threads may meet at a program that neither has timed yet.
        let one = ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
        one.install(|| schedule_by(&graph, &machine, &options, &timing)).expect("a sound graph");
        assert!(asked.into_inner() > 4);
    }
}
