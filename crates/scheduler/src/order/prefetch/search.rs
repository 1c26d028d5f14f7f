//! Other placements of loads, for networks that external memory holds up.
//!
//! One load after the other takes the earliest place that is left, in the order of use: weights of a layer that is large leave
//! holes in which those of the next find no room, and lines wait while a third of the cache is empty. A hill climb changes some
//! loads that follow each other at a time: how early they are placed, so that large ones go first, and which of the gaps they
//! take; a change that makes the [`Model`] no slower is kept (a greedy randomised search; Feo and Resende 1995).

use super::model::Model;
use super::{Choice, LoadPreference, Placement, Prefetcher};
use crate::budget::{SearchBudget, next_random};

/// Instructions that may be examined for every step of the budget; sixteen pairs of a load and a buffer count as one.
const STEP: u64 = 8000;

/// Loads that change at once, at most.
const RUN: u64 = 16;

/// The best of a placement and those that come from it.
pub(super) fn improved(prefetcher: &Prefetcher, first: Placement, budget: &SearchBudget) -> Placement {
    let (count, positions) = (prefetcher.loads.len(), prefetcher.code.instructions.len() as u64);
    let cost = positions + (count * prefetcher.code.buffers.len()) as u64 / 16;
    if count == 0 {
        return first;
    }
    let model = Model::new(prefetcher);
    let (mut least, mut best) = (model.makespan(&first), first);
    let mut preferences = vec![LoadPreference::default(); count];
    let mut random = budget.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut below = |limit: u64| next_random(&mut random) % limit.max(1);
    for _ in 0..budget.steps.saturating_mul(STEP) / cost {
        if budget.is_over() {
            break;
        }
        let from = below(count as u64) as usize;
        let run = 1 + below(3) * below(RUN / 2);
        // From all positions to a thirty-second of them.
        let reach = positions >> below(6);
        let lead = if below(3) == 0 { 0 } else { below(reach) as u32 };
        let choice =
            [Choice::Next, Choice::Next, Choice::Tight { end: false }, Choice::Tight { end: true }, Choice::Last]
                [below(5) as usize];
        let changed = from..(from + run as usize).min(count);
        let before: Vec<LoadPreference> = preferences[changed.clone()].to_vec();
        preferences[changed.clone()].fill(LoadPreference { lead, choice });
        let found = prefetcher.placement(&preferences).ok().map(|found| (model.makespan(&found), found));
        match found {
            Some((makespan, found)) if makespan <= least => (least, best) = (makespan, found),
            _ => preferences[changed].copy_from_slice(&before),
        }
    }
    best
}
