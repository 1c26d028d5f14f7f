//! Lengths of coalesced transfers, searched stretch by stretch.

use rayon::prelude::*;

use crate::addresses::external::CoalescingLimit;
use crate::budget::Timing;
use crate::context::PlanningContext;
use crate::emission::{Layout, Plan, TransferOptions};
use crate::lowering::piece_bytes;
use crate::virtual_program::VirtualAddress;

/// Lengths of transfers, in pieces, that are tried.
const LENGTHS: [u64; 5] = [1, 2, 4, 8, 16];

/// Instructions in the programs that are timed for a step of the budget.
const STEP: u64 = 2000;

/// Stretches of the order at most.
const STRETCHES: u64 = 24;

/// The plan with the best lengths of transfers that are found, stretch by stretch.
pub(crate) fn lengthen_transfers(context: &PlanningContext, plan: Plan, timing: Timing) -> Plan {
    let (code, _) = plan.parts();
    let instructions = code.instructions.len() as u64;
    let may_join = context.parameters.parallel() && context.parameters.grouped().is_some();
    if !may_join || instructions == 0 || !plan.loading(context.machine) {
        return plan;
    }
    let loads: Vec<VirtualAddress> = code
        .instructions
        .iter()
        .filter(|d| d.load().is_some())
        .filter_map(|d| Some(VirtualAddress::of_field(d.transfer()?.local_address)))
        .collect();
    let piece = piece_bytes(context.machine);
    let timings = context.budget.steps.saturating_mul(STEP) / instructions;
    let stretches = (timings / (2 * LENGTHS.len() as u64)).min(STRETCHES).min(loads.len() as u64);
    if stretches == 0 {
        return plan;
    }
    let mut best = plan;
    let mut transfer_options = best.transfer_options().clone();
    transfer_options.backward = !transfer_options.backward;
    if let Ok(layout) = best.layout(context, &transfer_options) {
        let plan = best.by(context, &layout, transfer_options).timed(timing);
        if plan.program.predicted_cycles < best.program.predicted_cycles {
            best = plan;
        }
    }
    let step = loads.len().div_ceil(stretches as usize);
    let parts = (0..loads.len()).step_by(step).map(|first| first..(first + step).min(loads.len()));
    let transfer_options: Vec<(u64, bool)> =
        LENGTHS.iter().flat_map(|&length| [(length, false), (length, true)]).collect();
    for part in std::iter::once(0..loads.len()).chain(parts) {
        if context.budget.is_over() {
            break;
        }
        let laid_out = |&(length, next): &(u64, bool)| {
            let mut transfer_options = best.transfer_options().clone();
            let join = CoalescingLimit { bytes: length * piece, next };
            transfer_options.coalescing.extend(loads[part.clone()].iter().map(|&load| (load, join)));
            Some((best.layout(context, &transfer_options).ok()?, transfer_options))
        };
        let all: Vec<_> = transfer_options.par_iter().filter_map(laid_out).collect();
        // Most lengths are more than a stretch has to join, and lead to one and the same program.
        let mut distinct: Vec<(Layout, TransferOptions)> = Vec::new();
        for (layout, transfer_options) in all {
            if !distinct.iter().any(|(known, _)| known.is_same(&layout)) {
                distinct.push((layout, transfer_options));
            }
        }
        let timed = |(layout, transfer_options): (Layout, TransferOptions)| {
            best.by(context, &layout, transfer_options).timed(timing)
        };
        let found: Vec<Plan> = distinct.into_par_iter().map(timed).collect();
        // The first of equals.
        let Some(plan) = found.into_iter().min_by_key(|plan| plan.program.predicted_cycles) else { break };
        let cycles = plan.program.predicted_cycles;
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

    use crate::budget::SearchBudget;
    use crate::options::{PipelineMode, PlanOptions};
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
        let budget = SearchBudget { seed: 0, steps: 50, deadline: None };
        for banks in [32, 8] {
            machine.cache.banks = banks;
            let context = PlanningContext::new(&graph, &machine, budget, &parameters).expect("a sound graph");
            // The fewer instructions the better.
            let fewest = |program: &tpuflow_ir::Program| Some(program.instructions.len() as u64);
            let plan =
                context.plan(PlanOptions::new(PipelineMode::Layers { paired: true }), &fewest).expect("room for all");
            let before = plan.program.instructions.len();
            let program = lengthen_transfers(&context, plan, &fewest).program(&context);
            assert!(program.instructions.len() < before, "{} of {before}", program.instructions.len());
            assert_eq!(tpuflow_checker::check(&graph, &program), Ok(()));
            let last = program.instructions.len() as u32;
            assert!(program.allocations.iter().all(|part| part.first <= part.last && part.last < last));
        }
    }
}
