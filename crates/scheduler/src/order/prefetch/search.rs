//! Other placements of loads, for networks that external memory holds up.
//!
//! One load after the other takes the earliest place that is left, in the order of use: weights of a layer that is large leave
//! holes in which those of the next find no room, and lines wait while a third of the cache is empty. A hill climb changes some
//! loads that follow each other at a time: how early they are placed, so that large ones go first, and which of the gaps they
//! take; a change that makes the [`Model`] no slower is kept (a greedy randomised search; Feo and Resende 1995).

use super::model::Model;
use super::{Ahead, Choice, Placement, Taste};
use crate::budget::{SearchBudget, next_random};

/// What may be looked at for every step of the budget: instructions, and for sixteen pairs of a load and a buffer as much as for one.
const STEP: u64 = 8000;

/// Loads that change at once, at most.
const RUN: u64 = 16;

/// The best of a placement and those that come from it.
pub(super) fn improved(ahead: &Ahead, first: Placement, budget: &SearchBudget) -> Placement {
    let (count, positions) = (ahead.loads.len(), ahead.code.instructions.len() as u64);
    let cost = positions + (count * ahead.code.buffers.len()) as u64 / 16;
    if count == 0 {
        return first;
    }
    let model = Model::new(ahead);
    let (mut least, mut best) = (model.makespan(&first), first);
    let mut tastes = vec![Taste::default(); count];
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
        let before: Vec<Taste> = tastes[changed.clone()].to_vec();
        tastes[changed.clone()].fill(Taste { lead, choice });
        let found = ahead.placement(&tastes).ok().map(|found| (model.makespan(&found), found));
        match found {
            Some((makespan, found)) if makespan <= least => (least, best) = (makespan, found),
            _ => tastes[changed].copy_from_slice(&before),
        }
    }
    best
}
