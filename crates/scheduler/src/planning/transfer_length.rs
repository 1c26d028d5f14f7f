//! Lengths of coalesced transfers, searched stretch by stretch.

use rayon::prelude::*;

use crate::Timing;
use crate::addresses::external::Join;
use crate::context::Site;
use crate::emission::Planned;
use crate::lowering::piece_bytes;

/// Lengths of transfers, in pieces, that are tried.
const LENGTHS: [u64; 5] = [1, 2, 4, 8, 16];

/// Instructions in the programs that are timed for a step of the budget.
const STEP: u64 = 2000;

/// Stretches of the order at most.
const STRETCHES: u64 = 24;

/// The plan with the best lengths of transfers that are found, stretch by stretch.
pub(crate) fn longer(site: &Site, planned: Planned, timing: Timing) -> Planned {
    let (sketch, _) = planned.draft();
    let drafts = sketch.drafts.len() as u64;
    let may_join = site.parameters.parallel() && site.parameters.grouped().is_some();
    if !may_join || drafts == 0 || !planned.loading(site.machine) {
        return planned;
    }
    let loads: Vec<u64> =
        sketch.drafts.iter().filter(|d| d.load().is_some()).filter_map(|d| Some(d.transfer()?.local_address)).collect();
    let piece = piece_bytes(site.machine);
    let timings = site.effort.steps.saturating_mul(STEP) / drafts;
    let stretches = (timings / (2 * LENGTHS.len() as u64)).min(STRETCHES).min(loads.len() as u64);
    if stretches == 0 {
        return planned;
    }
    let mut best = planned;
    let mut ways = best.ways().clone();
    ways.backward = !ways.backward;
    if let Ok(plan) = best.by(site, ways) {
        let plan = plan.timed(timing);
        if plan.program.predicted_cycles < best.program.predicted_cycles {
            best = plan;
        }
    }
    let step = loads.len().div_ceil(stretches as usize);
    let parts = (0..loads.len()).step_by(step).map(|first| first..(first + step).min(loads.len()));
    let ways: Vec<(u64, bool)> = LENGTHS.iter().flat_map(|&length| [(length, false), (length, true)]).collect();
    for part in std::iter::once(0..loads.len()).chain(parts) {
        if site.effort.is_over() {
            break;
        }
        let timed = |&(length, next): &(u64, bool)| {
            let mut ways = best.ways().clone();
            let join = Join { bytes: length * piece, next };
            ways.joins.extend(loads[part.clone()].iter().map(|&load| (load, join)));
            let plan = best.by(site, ways).ok()?.timed(timing);
            Some((plan.program.predicted_cycles, length, next, plan))
        };
        let found: Vec<_> = ways.par_iter().filter_map(timed).collect();
        let Some((cycles, .., plan)) = found.into_iter().min_by_key(|f| (f.0, f.1, f.2)) else { break };
        if cycles < best.program.predicted_cycles {
            best = plan;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use tpuflow_ir::Machine;

    use crate::budget::Effort;
    use crate::options::{Manner, Mode};
    use crate::{common, parameters::Parameters};

    #[test]
    fn programs_with_longer_transfers_are_proven() {
        let mut net = common::Net::new(3);
        let x = net.input(&[1, 8, 8, 64]);
        let mut y = net.conv(x, 512, common::window(3, 1, 1), 1);
        for _ in 0..3 {
            y = net.conv(y, 512, common::window(1, 1, 0), 1);
        }
        let graph = net.finish(&[y]);
        let mut machine = Machine::preset("128x128_asic").expect("known");
        let parameters = Parameters::o5();
        let effort = Effort { seed: 0, steps: 50, deadline: None };
        for banks in [32, 8] {
            machine.cache.banks = banks;
            let site = Site::new(&graph, &machine, effort, &parameters).expect("a sound graph");
            // The fewer instructions the better.
            let fewest = |program: &tpuflow_ir::Program| Some(program.instructions.len() as u64);
            let planned = site.plan(Mode::Layers { paired: true }, Manner::default(), &fewest).expect("room for all");
            let before = planned.program.instructions.len();
            let program = longer(&site, planned, &fewest).program(&site);
            assert!(program.instructions.len() < before, "{} of {before}", program.instructions.len());
            assert_eq!(tpuflow_checker::check(&graph, &program), Ok(()));
            let last = program.instructions.len() as u32;
            assert!(program.allocations.iter().all(|part| part.first <= part.last && part.last < last));
        }
    }
}
