//! Pieces of another size for single stages: what is best for large images is not for small ones.
//!
//! Every plan tells by when its stages had ended. Where a stage took less time in another plan than in the best one, the best is
//! made again with that stage cut as in the other. Stages overlap, so this promises more than it keeps: a change is kept where the
//! whole is faster, and all such changes are tried together.

use rayon::prelude::*;

use super::portfolio::Candidate;
use crate::context::PlanningContext;
use crate::network::stages::STAGES;
use crate::options::PipelineMode;
use crate::options::granularity::StageGranularities;

/// Changes tried side by side.
const CHANGES: usize = 8;

/// Times to go on from what was found.
const ROUNDS: usize = 2;

/// The plans, and those that mix the sizes of their pieces, unless one is close to the bound.
pub(crate) fn search_stage_granularities(
    context: &PlanningContext,
    mut plans: Vec<Candidate>,
    tried: &(dyn Fn(StageGranularities) -> Candidate + Sync),
) -> Vec<Candidate> {
    let mut last = Vec::new();
    for _ in 0..ROUNDS {
        let Some((least, base, ends)) = transfer_options(&plans).into_iter().min_by_key(|way| way.0) else { break };
        let promised = promises(&transfer_options(&plans), base, &ends);
        if context.is_close(least) || promised == last {
            break;
        }
        let found: Vec<Candidate> = promised.par_iter().map(|&(stage, from)| tried(base.with(stage, &from))).collect();
        let mut kept = base;
        for (&(stage, from), plan) in promised.iter().zip(&found) {
            if plan.cycles() < least && kept.of(stage) == base.of(stage) {
                kept = kept.with(stage, &from);
            }
        }
        let fresh = kept != base && !promised.iter().any(|&(stage, from)| base.with(stage, &from) == kept);
        plans.extend(found);
        if fresh {
            plans.push(tried(kept));
        }
        if kept == base {
            break;
        }
        last = promised;
    }
    plans
}

/// Cycles, pieces and the ends of all stages of the plans that have any.
fn transfer_options(plans: &[Candidate]) -> Vec<(u64, StageGranularities, Vec<u64>)> {
    let mut transfer_options = Vec::new();
    for tried in plans {
        if let (PipelineMode::Interleaved { granularities }, Ok(plan)) = (tried.options.mode, &tried.plan) {
            transfer_options.push((plan.program.predicted_cycles, granularities, plan.ends()));
        }
    }
    transfer_options
}

/// Stages that took less time in some way than in the one that ended them at `ends`, and that way: those first that promise most.
fn promises(
    transfer_options: &[(u64, StageGranularities, Vec<u64>)],
    base: StageGranularities,
    ends: &[u64],
) -> Vec<(u8, StageGranularities)> {
    let took = |ends: &[u64], stage: usize| ends[stage] - if stage > 0 { ends[stage - 1] } else { 0 };
    let mut promises: Vec<(u64, u8, StageGranularities)> = Vec::new();
    for stage in 0..STAGES.min(ends.len()) {
        let others = transfer_options.iter().filter(|way| way.1.of(stage as u8) != base.of(stage as u8));
        let Some(best) = others.min_by_key(|way| took(&way.2, stage)) else { continue };
        let gain = took(ends, stage).saturating_sub(took(&best.2, stage));
        if gain > 0 {
            promises.push((gain, stage as u8, best.1));
        }
    }
    promises.sort_by_key(|&(gain, stage, _)| (std::cmp::Reverse(gain), stage));
    promises.into_iter().take(CHANGES).map(|(_, stage, from)| (stage, from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::granularity::TileGranularity;

    #[test]
    fn stages_that_took_less_time_elsewhere_are_promised_the_largest_gain_first() {
        let [base, other, third] = [TileGranularity::Fine, TileGranularity::Finest(2), TileGranularity::Finest(3)]
            .map(StageGranularities::even);
        // Stages take 10, 30, 20 and 5 cycles; 12, 22, 19 and 5; 9, 25, 25 and 5.
        let transfer_options =
            [(65, base, vec![10, 40, 60, 65]), (58, other, vec![12, 34, 53, 58]), (64, third, vec![9, 34, 59, 64])];
        assert_eq!(promises(&transfer_options, base, &transfer_options[0].2), [(1, other), (0, third), (2, other)]);
        // Where a stage is already cut as in the way that was faster, the next one is asked.
        let mixed = base.with(1, &other);
        assert_eq!(promises(&transfer_options[1..], mixed, &[10, 40, 60, 65])[0], (1, third));
        assert!(promises(&transfer_options[..1], base, &transfer_options[0].2).is_empty());
    }
}
