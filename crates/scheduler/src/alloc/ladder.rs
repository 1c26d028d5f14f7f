//! From cheap to thorough: greedy orders, then exact search, until the height is good enough or the effort is spent.
//!
//! ```text
//!   bound           bound of probes          best so far
//!     |--- proven ---|--- not found yet ---|------|          Probes bisect what is left; one that ends without an answer
//!                            ^ probe                         moves its side of the gap until the next, longer round.
//! ```
//!
//! The search is given steps, not seconds, so that an answer repeats; the caller's clock can only cut it short, and what was
//! found until then stands.

use super::core::Search;
use super::exact::Verdict;
use super::greedy::portfolio;
use super::{Problem, Solution};

/// Steps a probe gets in the first round of bisection.
const FIRST_PROBE: u64 = 20_000;

/// How good, and how much work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Stop at a solution no higher than this, or when it is proven that there is none; 0: go on to the lower bound.
    pub enough: u64,
    /// States the exact search may examine; 0: greedy orders alone.
    pub steps: u64,
    /// Seed of its random preferences.
    pub seed: u64,
}

/// The best that was found, and what is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Sound for any capacity of at least its height.
    pub solution: Solution,
    /// No solution is lower.
    pub bound: u64,
    /// States the exact search examined.
    pub steps: u64,
}

/// Looks for the lowest solution, or one that is low enough.
///
/// `alignments`: one per item, whose address is a multiple of it; empty if any will do. `go_on` is told the steps done now and
/// then, and ends the search by answering no.
///
/// The capacity of the problem is not looked at: a caller that needs it says so in [`Effort::enough`].
pub fn solve_by_effort(
    problem: &Problem,
    alignments: &[u64],
    effort: &Effort,
    go_on: &mut dyn FnMut(u64) -> bool,
) -> Outcome {
    let mut bound = problem.lower_bound();
    let mut cut = false;
    let mut solution = portfolio(problem, alignments, effort.enough.max(bound), &mut || {
        cut |= !go_on(0);
        !cut
    });
    let total = problem.items.iter().try_fold(0u64, |sum, item| sum.checked_add(item.size));
    let searchable = total.is_some_and(|total| total < 1 << 60);
    let hopeless = |bound: u64| 0 < effort.enough && effort.enough < bound;
    if effort.steps == 0 || !searchable || solution.height <= effort.enough.max(bound) || hopeless(bound) {
        return Outcome { solution, bound, steps: 0 };
    }
    let mut search = Search::new(problem, alignments, effort.seed, effort.steps);
    let unit = search.unit();
    bound = bound.next_multiple_of(unit);
    // A height that is enough gets most of the steps; if it is not found, the rest still lowers the best.
    let mut probe_steps = if effort.enough >= bound { effort.steps - effort.steps / 4 } else { FIRST_PROBE };
    // Heights below this were looked for in this round.
    let mut low = bound;
    while !cut && search.steps < effort.steps && solution.height > effort.enough.max(bound) && !hopeless(bound) {
        if low >= solution.height {
            (low, probe_steps) = (bound, probe_steps.saturating_mul(2));
        }
        let probe = match effort.enough {
            enough if enough >= low => enough - enough % unit,
            // The bound itself first: it is often reached, and nothing is left to do then.
            _ if low == bound => bound,
            _ => low + (solution.height - unit - low) / unit / 2 * unit,
        };
        let mut watch = |steps: u64| {
            cut |= !go_on(steps);
            !cut
        };
        match search.below(probe, probe_steps, &mut watch) {
            Verdict::Feasible(offsets) => {
                let ends = problem.items.iter().zip(&offsets).map(|(item, offset)| item.size + offset);
                solution = Solution { height: ends.max().unwrap_or(0), offsets };
            }
            Verdict::Infeasible => {
                bound = bound.max(probe + unit);
                low = low.max(bound);
            }
            Verdict::Unknown => low = probe + unit,
        }
        if let Some(other) = search.best.take_if(|other| other.height < solution.height) {
            solution = other;
        }
    }
    Outcome { solution, bound, steps: search.steps }
}
