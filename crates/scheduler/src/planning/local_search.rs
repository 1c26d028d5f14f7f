//! Small changes to the order of a finished plan, kept where the timing tells that they save cycles.
//!
//! What chose the order until here is a model of the units; who meets whom at a bank, or on a channel with which page open, only the
//! timing knows. So some neighbouring instructions are shaken into another order, or one is moved, that is timed, and the next change
//! starts from there if it is no slower: a hill climb. Several neighbours are timed side by side, always as many, so that the
//! outcome does not depend on the number of threads.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use rayon::prelude::*;
use tpuflow_ir::InstructionId;

use crate::budget::Timing;
use crate::budget::next_random;
use crate::context::PlanningContext;
use crate::emission::Plan;
use crate::virtual_program::dependence::Dependences;

/// Orders that are timed before one is chosen.
const NEIGHBORS: u64 = 8;

/// What is timed for a step of the budget, in instructions, of all plans that are improved together.
const STEP: u64 = 2500;

/// Cycles of a program that take as long to time as an instruction takes to place and to time.
const CYCLES: u64 = 200;

/// Turns without a gain after which there will hardly be one, and how many instructions are timed at least until then: turns of
/// short programs cost little, up to four times as many.
const PATIENCE: u64 = 24;
const TIMED: u64 = 100_000;

/// Neighbouring instructions that are shaken, of short programs as well.
const SHAKEN: u64 = 8;

/// How far an instruction is moved at most, and at most as a part of the program.
const FARTHEST: u64 = 64;
const PART: u64 = 8;

/// The plan with the fewest cycles that is found, `plan` itself if need be or if layers are not to be interleaved; `share`: of how
/// many plans it is one.
pub(crate) fn improve_order(context: &PlanningContext, plan: Plan, share: usize, timing: Timing) -> Plan {
    let (code, addresses) = plan.parts();
    if !context.parameters.parallel() || context.parameters.layer_fusion == 0 || code.instructions.is_empty() {
        return plan;
    }
    let dependences = Dependences::new(code, context.machine, Some(addresses));
    let instructions = code.instructions.len() as u64;
    let cycles = plan.program.predicted_cycles;
    let cost = NEIGHBORS * (instructions + cycles / CYCLES) * share as u64;
    let turns = context.budget.steps.saturating_mul(STEP) / cost;
    let patience = (TIMED / (NEIGHBORS * instructions)).clamp(PATIENCE, 4 * PATIENCE);
    let mut current: Vec<InstructionId> = code.ids().collect();
    let mut shortest = cycles;
    let (mut best, mut gained) = (None, 0);
    // Small changes often lead back to an order that was timed before, and then to no better one.
    let mut known: HashMap<Vec<InstructionId>, Option<u64>> = HashMap::new();
    for turn in 0..turns {
        if context.budget.is_over() || turn > gained + patience {
            break;
        }
        let orders: Vec<Vec<InstructionId>> = (0..NEIGHBORS)
            .into_par_iter()
            .map(|neighbor| {
                let seed = context.budget.seed.wrapping_add(turn * NEIGHBORS + neighbor);
                changed(&current, &dependences, seed)
            })
            .collect();
        let is_new = |&at: &usize| !known.contains_key(&orders[at]) && !orders[..at].contains(&orders[at]);
        let new: Vec<usize> = (0..orders.len()).filter(is_new).collect();
        let timed = |&at: &usize| Some(plan.reordered(context, &orders[at]).ok()?.timed(timing));
        let mut plans: Vec<Option<Plan>> = new.par_iter().map(timed).collect();
        for (&at, plan) in new.iter().zip(&plans) {
            known.insert(orders[at].clone(), plan.as_ref().map(|plan| plan.program.predicted_cycles));
        }
        let timed = orders.iter().enumerate().filter_map(|(at, order)| Some(((*known.get(order)?)?, at)));
        let Some((cycles, at)) = timed.min() else { break };
        if cycles <= shortest {
            if cycles < shortest {
                (shortest, gained) = (cycles, turn);
                best = new.iter().position(|&place| place == at).and_then(|place| plans.swap_remove(place));
            }
            current.clone_from(&orders[at]);
        }
    }
    best.unwrap_or(plan)
}

/// An order in which some neighbouring virtual instructions have changed places, or a single one has.
fn changed(order: &[InstructionId], dependences: &Dependences, seed: u64) -> Vec<InstructionId> {
    let mut random = seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    // The state is the seed at first.
    (0..4).for_each(|_| {
        next_random(&mut random);
    });
    let keys = if next_random(&mut random).is_multiple_of(2) {
        keys_with_one_moved(order, &mut random)
    } else {
        keys_with_some_shaken(order, &mut random)
    };
    legal(dependences, &keys)
}

/// By instruction, its place, of some neighbours with a random delay.
fn keys_with_some_shaken(order: &[InstructionId], random: &mut u64) -> Vec<u64> {
    let count = order.len() as u64;
    // From a 16th to a 256th of all.
    let length = (count >> (4 + next_random(random) % 5)).max(SHAKEN);
    let first = next_random(random) % count;
    let reach = 2 + next_random(random) % length.min(16);
    let mut keys = vec![0; order.len()];
    for (place, &instruction) in (0..).zip(order) {
        let shaken = (first..first + length).contains(&place);
        keys[instruction.index()] = place + if shaken { next_random(random) % reach } else { 0 };
    }
    keys
}

/// By instruction, twice its place, of a random one between those of others.
fn keys_with_one_moved(order: &[InstructionId], random: &mut u64) -> Vec<u64> {
    let count = order.len() as u64;
    let farthest = (count / PART).clamp(2, FARTHEST);
    let mut keys = vec![0; order.len()];
    for (place, &instruction) in (farthest + 1..).zip(order) {
        keys[instruction.index()] = 2 * place;
    }
    let way = 2 * (next_random(random) % farthest) + 3;
    let moved = order[(next_random(random) % count) as usize].index();
    keys[moved] = if next_random(random).is_multiple_of(2) { keys[moved] - way } else { keys[moved] + way };
    keys
}

/// The virtual instructions by keys, as far as dependences allow.
fn legal(dependences: &Dependences, keys: &[u64]) -> Vec<InstructionId> {
    let mut left: Vec<usize> = dependences.before.iter().map(|before| before.len()).collect();
    let entry = |instruction: InstructionId| Reverse((keys[instruction.index()], instruction));
    let all = (0..keys.len()).map(InstructionId::new);
    let mut open: BinaryHeap<_> = all.filter(|d| left[d.index()] == 0).map(entry).collect();
    let mut order = Vec::with_capacity(keys.len());
    while let Some(Reverse((_, instruction))) = open.pop() {
        order.push(instruction);
        for edge in &dependences.after[instruction.index()] {
            left[edge.instruction.index()] -= 1;
            if left[edge.instruction.index()] == 0 {
                open.push(entry(edge.instruction));
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use tpuflow_ir::Machine;

    use crate::virtual_program::dependence::Edge;
    use crate::{Options, common, schedule};

    #[test]
    fn a_graph_without_work_needs_none() {
        let mut net = common::Net::new(1);
        let x = net.input(&[1, 2, 2, 8]);
        let graph = net.finish(&[x]);
        let machine = Machine::preset("128x128_asic").expect("known");
        let options = Options { level: 5, ..Options::default() };
        let program = schedule(&graph, &machine, &options).expect("a sound graph");
        assert!(program.instructions.is_empty());
    }

    #[test]
    fn changed_orders_keep_dependences() {
        let count = 200u32;
        let mut dependences = Dependences {
            before: vec![Default::default(); count as usize],
            after: vec![Default::default(); count as usize],
        };
        let mut random = 7;
        for instruction in 1..count {
            for _ in 0..next_random(&mut random) % 3 {
                let other = (next_random(&mut random) % u64::from(instruction)) as u32;
                let [one, other] = [instruction, other].map(InstructionId);
                dependences.before[one.index()].push(Edge { instruction: other, finish: true });
                dependences.after[other.index()].push(Edge { instruction: one, finish: true });
            }
        }
        let mut order: Vec<InstructionId> = (0..count).map(InstructionId).collect();
        assert_eq!(legal(&dependences, &(0..u64::from(count)).collect::<Vec<_>>()), order);
        let mut moved = 0;
        for seed in 0..100 {
            let next = changed(&order, &dependences, seed);
            assert_eq!(next, changed(&order, &dependences, seed));
            let mut place = vec![None; count as usize];
            (0..).zip(&next).for_each(|(at, &instruction)| place[instruction.index()] = Some(at));
            for instruction in 0..count as usize {
                assert!(
                    dependences.before[instruction]
                        .iter()
                        .all(|edge| place[edge.instruction.index()] < place[instruction])
                );
            }
            moved += usize::from(next != order);
            order = next;
        }
        assert!(moved > 50, "{moved}");
    }
}
