//! Granularities of single stages: tiles that are best for large images are not for small ones.
//!
//! Every plan tells when each of its stages ended. Where a stage took less time in another plan than in the fastest, the fastest is
//! made again with that stage cut as in the other. Stages overlap, so the gain may not show in the whole: a change is kept where
//! the whole is faster, and all changes that are kept are tried together.

use rayon::prelude::*;

use super::portfolio::Candidate;
use crate::context::PlanningContext;
use crate::network::stages::STAGES;
use crate::options::PipelineMode;
use crate::options::granularity::StageGranularities;

/// Changes tried side by side, if the programs they are tried on have no more than so many instructions together.
const CHANGES: usize = 8;
const TRIED: usize = 30_000;

/// Times to go on from what was found, as long as all changes can be tried.
const ROUNDS: usize = 2;

/// The plans, and those that mix the granularities of their stages, unless one is close to the bound.
pub(crate) fn search_stage_granularities(
    context: &PlanningContext,
    mut plans: Vec<Candidate>,
    tried: &(dyn Fn(StageGranularities) -> Candidate + Sync),
) -> Vec<Candidate> {
    let mut last = Vec::new();
    for _ in 0..ROUNDS {
        let times = stage_times(context, &plans);
        let Some(fastest) = times.iter().min_by_key(|plan| plan.cycles) else { break };
        let (least, base) = (fastest.cycles, fastest.granularities);
        let affordable = TRIED / fastest.instructions.max(1);
        let changes = changes(&times, fastest, affordable.clamp(1, CHANGES));
        if context.is_close(least) || changes == last {
            break;
        }
        let found: Vec<Candidate> = changes.par_iter().map(|&(stage, from)| tried(base.with(stage, &from))).collect();
        let mut kept = base;
        for (&(stage, from), plan) in changes.iter().zip(&found) {
            if plan.cycles() < least && kept.of(stage) == base.of(stage) {
                kept = kept.with(stage, &from);
            }
        }
        let is_new = kept != base && !changes.iter().any(|&(stage, from)| base.with(stage, &from) == kept);
        plans.extend(found);
        if is_new {
            plans.push(tried(kept));
        }
        if kept == base || affordable < CHANGES {
            break;
        }
        last = changes;
    }
    plans
}

/// Times of the stages of a plan, as far as known.
struct StageTimes {
    /// Of the whole plan.
    cycles: u64,
    instructions: usize,
    granularities: StageGranularities,
    /// By stage, when it and those before it end.
    ends: Vec<u64>,
    /// By stage, what tells pieces apart.
    cuts: Vec<u64>,
}

impl StageTimes {
    /// Cycles from the end of the stage before to its own.
    fn took(&self, stage: usize) -> u64 {
        self.ends[stage] - if stage > 0 { self.ends[stage - 1] } else { 0 }
    }
}

/// Those of the plans that have granularities.
fn stage_times(context: &PlanningContext, plans: &[Candidate]) -> Vec<StageTimes> {
    let mut times = Vec::new();
    for tried in plans {
        if let (PipelineMode::Interleaved { granularities }, Ok(plan)) = (tried.options.mode, &tried.plan) {
            let program = &plan.program;
            let (cycles, instructions) = (program.predicted_cycles, program.instructions.len());
            let (ends, cuts) = (plan.ends(), plan.cuts(context));
            times.push(StageTimes { cycles, instructions, granularities, ends, cuts });
        }
    }
    times
}

/// At most `count` stages that took less time in another plan than in `base`, cut otherwise, with the granularities of that plan; the
/// largest gain first.
fn changes(times: &[StageTimes], base: &StageTimes, count: usize) -> Vec<(u8, StageGranularities)> {
    let mut found: Vec<(u64, u8, StageGranularities)> = Vec::new();
    for stage in 0..STAGES.min(base.ends.len()) {
        let number = stage as u8;
        let others = times.iter().filter(|other| other.cuts[stage] != base.cuts[stage]);
        let Some(best) = others.min_by_key(|other| other.took(stage)) else { continue };
        let gain = base.took(stage).saturating_sub(best.took(stage));
        if gain > 0 {
            found.push((gain, number, best.granularities));
        }
    }
    found.sort_by_key(|&(gain, stage, _)| (std::cmp::Reverse(gain), stage));
    found.into_iter().take(count).map(|(_, stage, from)| (stage, from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::granularity::TileGranularity;

    #[test]
    fn stages_that_took_less_time_elsewhere_are_changed_the_largest_gain_first() {
        let [base, other, third] = [TileGranularity::Fine, TileGranularity::Finest(2), TileGranularity::Finest(3)]
            .map(StageGranularities::even);
        let plan = |cycles, granularities: StageGranularities, ends: [u64; 4]| StageTimes {
            cycles,
            instructions: 9,
            granularities,
            ends: ends.to_vec(),
            cuts: (0..4).map(|stage| granularities.of(stage).pieces(100, 10)).collect(),
        };
        // Stages take 10, 30, 20 and 5 cycles; 12, 22, 19 and 5; 9, 25, 25 and 5.
        let times =
            [plan(65, base, [10, 40, 60, 65]), plan(58, other, [12, 34, 53, 58]), plan(64, third, [9, 34, 59, 64])];
        assert_eq!(changes(&times, &times[0], 9), [(1, other), (0, third), (2, other)]);
        assert_eq!(changes(&times, &times[0], 2), [(1, other), (0, third)]);
        // Where a stage is already cut as in the plan that was faster, the next one is asked.
        let mixed = plan(60, base.with(1, &other), [10, 40, 60, 65]);
        assert_eq!(changes(&times[1..], &mixed, 9)[0], (1, third));
        assert!(changes(&times[..1], &times[0], 9).is_empty());
        // A stage that the other plan cuts into the same pieces took less time for another reason.
        let mut alike = plan(58, other, [9, 34, 53, 58]);
        alike.cuts[0] = times[0].cuts[0];
        assert_eq!(changes(&[alike], &times[0], 9), [(1, other), (2, other)]);
    }
}
