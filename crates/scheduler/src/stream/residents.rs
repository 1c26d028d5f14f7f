//! Loads anew around constants that stay: a plan of one run fills the caches with loads ahead, which leaves bytes of their own to
//! hardly any constant. Here some constants get theirs first, and all else is loaded ahead in what is left.

use std::collections::BTreeMap;

use tpuflow_ir::Machine;

use super::buffers::constants;
use crate::context::PlanningContext;
use crate::emission::Plan;
use crate::order::prefetch::{PrefetchDistance, Residents, prefetch};
use crate::virtual_program::{BufferId, Content, Memory, VirtualProgram};

/// Shares of both caches for constants that stay, in per cent; those for which the rest is enough are tried.
const SHARES: [u64; 4] = [65, 50, 35, 20];

/// The plan with constants that stay and its other loads ahead in the rest of the caches, for each share that leaves enough.
pub(super) fn variants(context: &PlanningContext, plan: &Plan) -> Vec<Plan> {
    let (code, _) = plan.parts();
    let late = with_late_loads(code);
    let reaches = PrefetchDistance {
        layers: context.parameters.prefetch_depth(),
        positions: late.instructions.len() as u32,
        ring: [false; 2],
    };
    let variant = |share| {
        let residents = residents(&late, context.machine, share);
        let found = prefetch(&late, context.machine, &reaches, &residents, None).ok()?;
        plan.rescheduled(context, found.code, &found.addresses).ok()
    };
    SHARES.into_iter().filter_map(variant).collect()
}

/// The largest constants that fit a share of the caches, at the end of these.
fn residents(code: &VirtualProgram, machine: &Machine, share: u64) -> Residents {
    let mut found = Residents::none(machine);
    let constants = constants(code);
    for (number, memory) in [Memory::Cache, Memory::Ewp].into_iter().enumerate() {
        let least = found.capacity[number] - found.capacity[number] / 100 * share;
        for &index in constants.iter().filter(|&&index| code.buffers[index].memory == memory) {
            let words = code.buffers[index].bytes.div_ceil(machine.word() as u64);
            if least + words <= found.capacity[number] {
                found.capacity[number] -= words;
                found.words.insert(BufferId::new(index), found.capacity[number]);
            }
        }
    }
    found
}

/// The same with every load of constants right before what uses its buffer first.
fn with_late_loads(code: &VirtualProgram) -> VirtualProgram {
    let mut pending: BTreeMap<BufferId, Vec<_>> = BTreeMap::new();
    let mut order = Vec::with_capacity(code.instructions.len());
    for (id, instruction) in code.ids().zip(&code.instructions) {
        match instruction.load() {
            Some((to, from)) if matches!(code.buffers[from.index()].content, Content::Constant(_)) => {
                pending.entry(to).or_default().push(id);
                continue;
            }
            _ => {}
        }
        for buffer in instruction.touches() {
            order.extend(pending.remove(&buffer).into_iter().flatten());
        }
        order.push(id);
    }
    order.extend(pending.into_values().flatten());
    code.reordered(&order)
}
