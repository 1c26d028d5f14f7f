//! The order in which units take up their work: instructions of different layers interleaved so that no unit waits longer than
//! it must.
//!
//! ```text
//!  by layers   ME  |aaaa|    |cccc|            schedule   ME  |a|a|a|cac|c|c|
//!              PDP      |bbbb|                         PDP     |b|b|b|b|
//! ```
//!
//! A *list schedule* hands every unit, whenever it is free, the most urgent of the instructions that may begin. How urgent an
//! instruction is comes from the schedule before: a list schedule of the reversed network tells how late each may begin at the
//! latest, one of the network itself how early it can end, and the two take turns (forward-backward improvement of
//! resource-constrained schedules; Li and Willis 1992, Tormos and Lova 2001). Schedules that start from the best one with its
//! times shaken follow, as many as the budget allows. The shortest one found is taken. One such schedule is made in `list`.

mod list;

pub(crate) use list::BufferLimit;
use list::ListSchedule;
use tpuflow_ir::{InstructionId, Machine};

use crate::budget::{SearchBudget, next_random};
use crate::virtual_program::addresses::Addresses;
use crate::virtual_program::bank_traffic::Traffic;
use crate::virtual_program::dependence::Dependences;
use crate::virtual_program::unit_work::{UnitWork, jobs, traffic};
use crate::virtual_program::{Buffer, BufferId, Content, Memory, VirtualInstruction, VirtualProgram};

/// Times a schedule and its mirror image improve each other.
const ROUNDS: u32 = 8;

/// Orders that are kept.
const FINALISTS: usize = 4;

/// Instructions placed in a step of the search.
const STEP: u64 = 1000;

/// A virtual program as a scheduling problem.
pub(crate) struct ListScheduler<'a> {
    code: &'a VirtualProgram,
    dependences: &'a Dependences,
    jobs: Vec<UnitWork>,
    /// By virtual instruction, once buffers have their places.
    traffic: Vec<Traffic>,
    /// By buffer of the cache, the virtual instructions that touch it and how many they are; by virtual instruction, the buffers it touches.
    users: Vec<Vec<InstructionId>>,
    touches: Vec<u32>,
    buffers: Vec<Vec<BufferId>>,
    /// By virtual instruction, whether it may come any number of layers early.
    is_early_load: Vec<bool>,
    /// Layers that may be under way at a time.
    window: u32,
}

impl<'a> ListScheduler<'a> {
    /// With `addresses`, instructions that would meet at banks are kept apart where others may begin as well.
    pub fn new(
        code: &'a VirtualProgram,
        dependences: &'a Dependences,
        machine: &Machine,
        window: u32,
        addresses: Option<&Addresses>,
    ) -> Self {
        let mut users = vec![Vec::new(); code.buffers.len()];
        let mut buffers = Vec::with_capacity(code.instructions.len());
        let mut loaded = vec![false; code.buffers.len()];
        for (to, from) in code.instructions.iter().filter_map(|instruction| instruction.load()) {
            loaded[to.index()] |= matches!(code.buffers[from.index()].content, Content::Constant(_));
        }
        for (id, instruction) in code.ids().zip(&code.instructions) {
            let mut list: Vec<BufferId> = instruction
                .touches()
                .iter()
                .filter(|b| code.buffers[b.index()].memory == Memory::Cache && !loaded[b.index()])
                .copied()
                .collect();
            list.sort_unstable();
            list.dedup();
            for &buffer in &list {
                users[buffer.index()].push(id);
            }
            buffers.push(list);
        }
        let traffic = addresses.map_or_else(Vec::new, |addresses| traffic(code, machine, addresses));
        let touches = users.iter().map(|users| users.len() as u32).collect();
        // Where all that is loaded takes half of the cache at most, no load waits for space.
        let bytes = |(buffer, &loaded): (&Buffer, &bool)| if loaded { buffer.bytes } else { 0 };
        let has_space = 2 * code.buffers.iter().zip(&loaded).map(bytes).sum::<u64>() <= machine.cache_bytes();
        let is_load = |instruction: &VirtualInstruction| has_space && instruction.load().is_some();
        let is_early_load = code.instructions.iter().map(is_load).collect();
        Self { code, dependences, jobs: jobs(code, machine), traffic, users, touches, buffers, is_early_load, window }
    }

    /// The shortest order found in which open computed buffers keep to `limit`.
    pub fn order(&self, limit: BufferLimit, budget: &SearchBudget) -> Vec<InstructionId> {
        self.orders(limit, budget, 0).swap_remove(0)
    }

    /// The shortest orders found, the shortest first: as many as take `cycles` together, at least one and at most
    /// [`FINALISTS`].
    pub fn orders(&self, limit: BufferLimit, budget: &SearchBudget, cycles: u64) -> Vec<Vec<InstructionId>> {
        let instructions = self.jobs.len() as u64;
        let layer_order: Vec<u64> = (0..instructions).collect();
        // Later layers first: whatever has begun is brought to its end.
        let depth = |layer: u32| u64::from(u32::MAX - layer);
        let later_layers_first: Vec<u64> = self
            .code
            .instructions
            .iter()
            .zip(0..)
            .map(|(instruction, i)| depth(instruction.layer.0) * instructions + i)
            .collect();
        let mut best = vec![self.improved(self.schedule(&layer_order, false, limit), limit, ROUNDS, budget)];
        if !budget.is_over() {
            keep(&mut best, self.improved(self.schedule(&later_layers_first, false, limit), limit, ROUNDS, budget));
        }
        let mut random = budget.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut left = budget.steps / (6 * instructions.div_ceil(STEP)).max(1);
        while left > 0 && !budget.is_over() {
            // From a thousandth to a sixteenth of the whole.
            let reach = (best[0].makespan >> (4 + left % 7)).max(1);
            let keys: Vec<u64> = best[0].starts.iter().map(|&start| start + next_random(&mut random) % reach).collect();
            keep(&mut best, self.improved(self.schedule(&keys, false, limit), limit, 1, budget));
            left -= 1;
        }
        let count = (cycles / best[0].makespan.max(1)).max(1) as usize;
        best.into_iter().take(count).map(|schedule| schedule.order).collect()
    }

    /// The shortest of a schedule and those that come from it in some rounds, as long as there is time.
    fn improved(&self, first: ListSchedule, limit: BufferLimit, rounds: u32, budget: &SearchBudget) -> ListSchedule {
        let mut best = first.clone();
        let mut seen = vec![first];
        for round in 0..rounds as usize {
            if budget.is_over() {
                break;
            }
            let back = self.schedule(&self.mirrored(&seen[round]), true, BufferLimit::NONE);
            let schedule = self.schedule(&self.mirrored(&back), false, limit);
            // A schedule depends on the one before alone: from here on they would come again in turn.
            if seen.contains(&schedule) {
                break;
            }
            if schedule.makespan < best.makespan {
                best = schedule.clone();
            }
            seen.push(schedule);
        }
        best
    }

    /// When each job begins if time runs the other way.
    fn mirrored(&self, schedule: &ListSchedule) -> Vec<u64> {
        self.jobs.iter().zip(&schedule.starts).map(|(job, start)| schedule.makespan - start - job.busy).collect()
    }

    /// The same order with every load right before what needs it first.
    pub fn late_loads(&self, order: &[InstructionId]) -> Vec<InstructionId> {
        let is_load = |instruction: InstructionId| self.code.instructions[instruction.index()].load().is_some();
        let mut place = vec![0u32; order.len()];
        for (position, &instruction) in order.iter().enumerate() {
            place[instruction.index()] = position as u32;
        }
        let mut done = vec![false; order.len()];
        let mut late = Vec::with_capacity(order.len());
        for &instruction in order.iter().filter(|&&d| !is_load(d)) {
            let (mut loads, mut next) = (Vec::new(), vec![instruction]);
            // A load may follow others, into the same words.
            while let Some(follower) = next.pop() {
                for edge in &self.dependences.before[follower.index()] {
                    let load = edge.instruction;
                    if is_load(load) && !std::mem::replace(&mut done[load.index()], true) {
                        loads.push(load);
                        next.push(load);
                    }
                }
            }
            loads.sort_unstable_by_key(|&d| place[d.index()]);
            late.append(&mut loads);
            late.push(instruction);
        }
        // Loads nobody waits for.
        late.extend(order.iter().copied().filter(|&d| is_load(d) && !done[d.index()]));
        late
    }
}

/// Keeps the [`FINALISTS`] shortest schedules of different lengths, the shortest first and of equals the one found first.
fn keep(best: &mut Vec<ListSchedule>, found: ListSchedule) {
    let at = best.partition_point(|schedule| schedule.makespan < found.makespan);
    if best.get(at).is_none_or(|next| next.makespan > found.makespan) {
        best.insert(at, found);
        best.truncate(FINALISTS);
    }
}

#[cfg(test)]
mod tests {
    use smallvec::SmallVec;

    use super::*;
    use crate::virtual_program::dependence::Edge;
    use tpuflow_ir::isa::{Direction, Transfer};
    use tpuflow_ir::{LayerId, Space, Unit, Work};

    /// Jobs on random lanes with random dependences, no memory.
    fn problem(seed: u64, count: usize) -> (VirtualProgram, Dependences, Vec<UnitWork>) {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut code = VirtualProgram::default();
        let mut dependences =
            Dependences { before: vec![Default::default(); count], after: vec![Default::default(); count] };
        let mut jobs = Vec::new();
        for index in 0..count {
            let work = Work::Transfer(Transfer {
                direction: Direction::Store,
                ddr_space: 0,
                ddr_address: 0,
                local_space: Space::Cache,
                local_address: 0,
                bytes: 0,
                counts: [1, 1],
                ddr_strides: [0, 0],
                local_strides: [0, 0],
            });
            code.instructions.push(VirtualInstruction::new(LayerId(index as u32 / 2), work));
            let unit = Unit::ALL[(next_random(&mut state) % 3) as usize];
            jobs.push(UnitWork { unit, busy: 1 + next_random(&mut state) % 9, tail: next_random(&mut state) % 9 });
            for other in 0..index {
                if next_random(&mut state).is_multiple_of(3) {
                    let finish = !next_random(&mut state).is_multiple_of(4);
                    dependences.before[index].push(Edge { instruction: InstructionId::new(other), finish });
                    dependences.after[other].push(Edge { instruction: InstructionId::new(index), finish });
                }
            }
        }
        (code, dependences, jobs)
    }

    fn scheduler<'a>(code: &'a VirtualProgram, dependences: &'a Dependences, jobs: &[UnitWork]) -> ListScheduler<'a> {
        let count = jobs.len();
        ListScheduler {
            code,
            dependences,
            jobs: jobs.to_vec(),
            traffic: Vec::new(),
            users: Vec::new(),
            touches: Vec::new(),
            buffers: vec![Vec::new(); count],
            is_early_load: vec![false; count],
            window: u32::MAX,
        }
    }

    /// How long the jobs take in this order, each as early as it can; `None` if the order is not one.
    fn length(scheduler: &ListScheduler, order: &[InstructionId]) -> Option<u64> {
        let mut free = [0; Unit::COUNT];
        let mut starts: Vec<Option<u64>> = vec![None; order.len()];
        let mut end = 0;
        for &instruction in order {
            let job = scheduler.jobs[instruction.index()];
            let mut start = free[job.unit.index()];
            for edge in &scheduler.dependences.before[instruction.index()] {
                let before = scheduler.jobs[edge.instruction.index()];
                let tail = if edge.finish { before.tail } else { 0 };
                start = start.max(starts[edge.instruction.index()]? + before.busy + tail);
            }
            starts[instruction.index()] = Some(start);
            free[job.unit.index()] = start + job.busy;
            end = end.max(start + job.busy + job.tail);
        }
        Some(end)
    }

    /// The shortest of all orders, tried one by one.
    fn shortest(scheduler: &ListScheduler, order: &mut Vec<InstructionId>, best: &mut u64) {
        if order.len() == scheduler.jobs.len() {
            *best = (*best).min(length(scheduler, order).unwrap_or(u64::MAX));
            return;
        }
        for instruction in scheduler.code.ids() {
            let ready =
                scheduler.dependences.before[instruction.index()].iter().all(|edge| order.contains(&edge.instruction));
            if ready && !order.contains(&instruction) {
                order.push(instruction);
                shortest(scheduler, order, best);
                order.pop();
            }
        }
    }

    const EFFORT: SearchBudget = SearchBudget { seed: 0, steps: 100, deadline: None };

    #[test]
    fn as_short_as_the_shortest_of_all_orders() {
        let mut longer = 0;
        for seed in 0..60 {
            let (code, dependences, jobs) = problem(seed, 7);
            let scheduler = scheduler(&code, &dependences, &jobs);
            let found = length(&scheduler, &scheduler.order(BufferLimit::NONE, &EFFORT)).unwrap_or(u64::MAX);
            let mut best = u64::MAX;
            shortest(&scheduler, &mut Vec::new(), &mut best);
            assert!(found >= best, "seed {seed}: {found} in place of {best}");
            // A unit never waits for a more urgent job on purpose, so a few stay behind.
            assert!(5 * found <= 6 * best, "seed {seed}: {found} in place of {best}");
            longer += u32::from(found > best);
        }
        assert!(longer <= 6, "{longer} of 60 are longer than they must be");
    }

    /// A load for the last of many layers, which nothing precedes, and a store on the same line that an earlier layer is ready for late.
    #[test]
    fn loads_do_not_wait_for_their_layers_turn() {
        let layers = 40;
        let mut code = VirtualProgram::default();
        let (mut before, mut jobs): (Vec<SmallVec<[Edge; 6]>>, Vec<UnitWork>) = (Vec::new(), Vec::new());
        let work = problem(0, 1).0.instructions[0].work.clone();
        for layer in 0..layers {
            code.instructions.push(VirtualInstruction::new(LayerId(layer), work.clone()));
            jobs.push(UnitWork { unit: Unit::Me, busy: 5, tail: 0 });
            let edge = layer.checked_sub(1).map(|other| Edge { instruction: InstructionId(other), finish: true });
            before.push(SmallVec::from_iter(edge));
        }
        code.instructions.push(VirtualInstruction::new(LayerId(layers - 1), work.clone()));
        jobs.push(UnitWork { unit: Unit::Dtl0, busy: 100, tail: 0 });
        before.push(SmallVec::new());
        before[layers as usize - 1].push(Edge { instruction: InstructionId(layers), finish: true });
        code.instructions.push(VirtualInstruction::new(LayerId(20), work));
        jobs.push(UnitWork { unit: Unit::Dtl0, busy: 5, tail: 0 });
        before.push(SmallVec::from_iter([Edge { instruction: InstructionId(20), finish: true }]));
        let mut after: Vec<SmallVec<[Edge; 6]>> = vec![SmallVec::new(); before.len()];
        for (at, edges) in before.iter().enumerate() {
            for edge in edges {
                after[edge.instruction.index()].push(Edge { instruction: InstructionId::new(at), ..*edge });
            }
        }
        let dependences = Dependences { before, after };
        let mut scheduler = scheduler(&code, &dependences, &jobs);
        scheduler.window = 4;
        let start = |scheduler: &ListScheduler| {
            let keys: Vec<u64> = (0..jobs.len() as u64).collect();
            scheduler.schedule(&keys, false, BufferLimit::NONE).starts[layers as usize]
        };
        assert!(start(&scheduler) > 100);
        scheduler.is_early_load[layers as usize] = true;
        assert_eq!(start(&scheduler), 0);
    }

    /// Chains of a product, a softmax and a product: what each makes takes a buffer, of which four are open at a time.
    #[test]
    fn products_of_later_chains_leave_space_for_the_softmax_before_them() {
        let (chains, bytes) = (12u32, 100);
        let mut code = VirtualProgram::default();
        let work = problem(0, 1).0.instructions[0].work.clone();
        let (mut jobs, mut before, mut buffers) = (Vec::new(), Vec::<SmallVec<[Edge; 6]>>::new(), Vec::new());
        let mut users: Vec<Vec<InstructionId>> = Vec::new();
        for chain in 0..chains {
            let made: Vec<BufferId> =
                (0..2).map(|_| code.buffer("made".into(), bytes, Memory::Cache, Content::Computed)).collect();
            let steps = [(Unit::Me, 4, &made[..1]), (Unit::Ewp, 20, &made[..]), (Unit::Me, 15, &made[1..])];
            for (step, (unit, busy, touched)) in (0..).zip(steps) {
                let id = InstructionId::new(jobs.len());
                code.instructions.push(VirtualInstruction::new(LayerId(3 * chain + step), work.clone()));
                jobs.push(UnitWork { unit, busy, tail: 0 });
                let follows = id.index().checked_sub(1).filter(|_| step > 0);
                before.push(SmallVec::from_iter(
                    follows.map(|other| Edge { instruction: InstructionId::new(other), finish: true }),
                ));
                buffers.push(touched.to_vec());
                for buffer in touched {
                    users.resize(users.len().max(buffer.index() + 1), vec![]);
                    users[buffer.index()].push(id);
                }
            }
        }
        let mut after: Vec<SmallVec<[Edge; 6]>> = vec![SmallVec::new(); before.len()];
        for (at, edges) in before.iter().enumerate() {
            for edge in edges {
                after[edge.instruction.index()].push(Edge { instruction: InstructionId::new(at), ..*edge });
            }
        }
        let dependences = Dependences { before, after };
        let touches = users.iter().map(|users| users.len() as u32).collect();
        let scheduler = ListScheduler { buffers, users, touches, ..scheduler(&code, &dependences, &jobs) };
        // First products are the most urgent.
        let keys: Vec<u64> = (0..jobs.len() as u64).map(|at| if at % 3 == 0 { at } else { 100 + at }).collect();
        // Bytes in use at a time until their last reader has ended, which a schedule counts to where it begins.
        let in_use = |reserves| {
            let found = scheduler.schedule(&keys, false, BufferLimit { bytes: 4 * bytes, reserves });
            let end = |at: usize| found.starts[at] + jobs[at].busy;
            let lives = scheduler.users.iter().map(|users| (found.starts[users[0].index()], end(users[1].index())));
            let lives: Vec<(u64, u64)> = lives.collect();
            let at = |time: u64| bytes * lives.iter().filter(|life| life.0 <= time && time < life.1).count() as u64;
            found.starts.iter().map(|&start| at(start)).max()
        };
        let (greedy, reserved) = (in_use(false), in_use(true));
        assert!(reserved <= Some(4 * bytes) && greedy > reserved, "{greedy:?}, {reserved:?}");
    }

    #[test]
    fn orders_keep_dependences_and_repeat() {
        for seed in 0..20 {
            let (code, dependences, jobs) = problem(seed, 60);
            let scheduler = scheduler(&code, &dependences, &jobs);
            let layer_order: Vec<InstructionId> = code.ids().collect();
            let order = scheduler.order(BufferLimit::NONE, &EFFORT);
            assert!(
                length(&scheduler, &order).is_some_and(|found| Some(found) <= length(&scheduler, &layer_order)),
                "seed {seed}"
            );
            assert_eq!(order, scheduler.order(BufferLimit::NONE, &EFFORT));
        }
    }
}
