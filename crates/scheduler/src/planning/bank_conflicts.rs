//! Buffers of a finished plan moved to banks where units do not wait for each other.
//!
//! Buffers get addresses before the order of instructions is final, so what two units use at the same time may have come into one bank,
//! which serves a word a cycle. Here the order stays, and buffers move one by one to where they cost the fewest cycles by a
//! model: two instructions that run side by side and access a bank at rates `a` and `b` lose `a b` of the cycles they share. A
//! buffer moves only to bytes that nobody else has while it is in use by the clock of the units, so nothing has to wait for its
//! place. The timing decides whether the result is taken.
//!
//! ```text
//!   bank 0 | scores 1 | shares 0 |          array reads shares 0 while the elementwise unit reads scores 1:
//!   bank 1 | keys     |                     one of them moves to bank 1 or to a free one
//! ```

use std::cmp::Reverse;

use tpuflow_ir::access::accesses;
use tpuflow_ir::{Descriptor, Machine, Space, Unit};

use crate::budget::Timing;
use crate::context::PlanningContext;
use crate::emission::Plan;
use crate::virtual_program::addresses::{Addresses, lifetimes, resolve};
use crate::virtual_program::bank_traffic::Traffic;
use crate::virtual_program::dependence::Dependences;
use crate::virtual_program::unit_work::{UnitWork, jobs};
use crate::virtual_program::{Memory, VirtualProgram};

/// Times all buffers are looked at, and times the clock is set anew.
const PASSES: usize = 3;
const ROUNDS: usize = 2;

/// Costs are counted in parts of a cycle.
const PARTS: u64 = 1024;

/// Instructions, and pairs of buffers in use at a time, of programs that are left as they are: they take long as it is.
const MOST_INSTRUCTIONS: usize = 100_000;
const MOST_PAIRS: usize = 4_000_000;

/// The plan with its buffers in other banks where that is faster, as it is otherwise.
pub(crate) fn separate_banks(context: &PlanningContext, plan: Plan, timing: Timing) -> Plan {
    let mut best = plan;
    if !context.parameters.parallel() {
        return best;
    }
    for _ in 0..ROUNDS {
        if context.budget.is_over() {
            break;
        }
        let (code, addresses) = best.parts();
        let Some(moved) = moved(code, addresses, context.machine) else { break };
        let Ok(found) = best.relocated(context, &moved) else { break };
        let found = found.timed(timing);
        if found.program.predicted_cycles >= best.program.predicted_cycles {
            break;
        }
        best = found;
    }
    best
}

/// Addresses that cost fewer cycles at banks; `None` where no buffer moves.
fn moved(code: &VirtualProgram, addresses: &Addresses, machine: &Machine) -> Option<Addresses> {
    if code.instructions.len() > MOST_INSTRUCTIONS {
        return None;
    }
    let mut layout = BankLayout::new(code, addresses, machine)?;
    let mut has_moved = false;
    for _ in 0..PASSES {
        let mut order: Vec<(Reverse<u64>, usize)> =
            (0..layout.buffers.len()).map(|at| (Reverse(layout.cost(at, layout.buffers[at].start)), at)).collect();
        order.sort_unstable();
        let costly = order.into_iter().take_while(|(cost, _)| cost.0 > 0);
        let mut has_gained = false;
        for (_, at) in costly {
            has_gained |= layout.improve(at);
        }
        has_moved |= has_gained;
        if !has_gained {
            break;
        }
    }
    let word = machine.word() as u64;
    has_moved.then(|| {
        let mut addresses = addresses.clone();
        for buffer in &layout.buffers {
            addresses[buffer.index].1 = buffer.start * word;
        }
        addresses
    })
}

/// A buffer of the shared cache.
struct Placed {
    /// Its number in the virtual program.
    index: usize,
    /// First word.
    start: u64,
    /// Words.
    size: u64,
    /// Others that have bytes at the same time, by position or by the clock.
    meets: Vec<usize>,
    /// By piece of the length of a bank, pieces of other buffers accessed at the same time, and what it costs if both lie in one bank.
    conflicts: Vec<Vec<(Piece, u64)>>,
}

/// A buffer, by its place in the layout, and the number of a piece.
type Piece = (usize, usize);

/// Where the buffers of the shared cache lie.
struct BankLayout {
    buffers: Vec<Placed>,
    /// Words of a bank, and of all.
    bank: u64,
    capacity: u64,
}

impl BankLayout {
    /// `None` where too many buffers are in use at a time.
    fn new(code: &VirtualProgram, addresses: &Addresses, machine: &Machine) -> Option<Self> {
        let (bank, word) = (u64::from(machine.cache.words), machine.word() as u64);
        let live_ranges = lifetimes(code);
        let is_cached = |&index: &usize| code.buffers[index].memory == Memory::Cache && live_ranges[index].is_some();
        let indices: Vec<usize> = (0..code.buffers.len()).filter(is_cached).collect();
        let placed = |&index: &usize| {
            let size = code.buffers[index].bytes.div_ceil(word).max(1);
            let conflicts = vec![Vec::new(); size.div_ceil(bank) as usize];
            Placed { index, start: addresses[index].1 / word, size, meets: Vec::new(), conflicts }
        };
        let buffers: Vec<Placed> = indices.iter().map(placed).collect();
        let mut layout = Self { buffers, bank, capacity: machine.cache_bytes() / word };
        let jobs = jobs(code, machine);
        let starts = starts(code, addresses, &jobs, machine);
        layout.find_meetings(code, &starts, &jobs)?;
        layout.find_conflicts(code, &starts, &jobs, machine);
        Some(layout)
    }

    /// Who has bytes at the same time as whom.
    fn find_meetings(&mut self, code: &VirtualProgram, starts: &[u64], jobs: &[UnitWork]) -> Option<()> {
        let mut positions = vec![None::<(usize, usize)>; code.buffers.len()];
        let mut clock = vec![(u64::MAX, 0); code.buffers.len()];
        for (position, instruction) in code.instructions.iter().enumerate() {
            let (start, end) = (starts[position], starts[position] + jobs[position].busy + jobs[position].tail);
            for buffer in instruction.touches() {
                let own = &mut positions[buffer.index()];
                *own = Some(own.map_or((position, position), |(first, _)| (first, position)));
                let own = &mut clock[buffer.index()];
                *own = (own.0.min(start), own.1.max(end));
            }
        }
        let position = |at: usize| positions[self.buffers[at].index].unwrap_or_default();
        let mut by_start: Vec<usize> = (0..self.buffers.len()).collect();
        by_start.sort_by_key(|&at| clock[self.buffers[at].index].0);
        let mut by_position = by_start.clone();
        by_position.sort_by_key(|&at| position(at).0);
        let mut pairs: Vec<(usize, usize)> = Vec::new();
        for (rank, &at) in by_start.iter().enumerate() {
            let end = clock[self.buffers[at].index].1;
            let others = by_start[rank + 1..].iter().take_while(|&&other| clock[self.buffers[other].index].0 < end);
            pairs.extend(others.map(|&other| (at.min(other), at.max(other))));
            if pairs.len() > MOST_PAIRS {
                return None;
            }
        }
        for (rank, &at) in by_position.iter().enumerate() {
            let others = by_position[rank + 1..].iter().take_while(|&&other| position(other).0 <= position(at).1);
            pairs.extend(others.map(|&other| (at.min(other), at.max(other))));
            if pairs.len() > 2 * MOST_PAIRS {
                return None;
            }
        }
        pairs.sort_unstable();
        pairs.dedup();
        for (one, other) in pairs {
            self.buffers[one].meets.push(other);
            self.buffers[other].meets.push(one);
        }
        Some(())
    }

    /// What it costs if pieces of two buffers lie in one bank.
    fn find_conflicts(&mut self, code: &VirtualProgram, starts: &[u64], jobs: &[UnitWork], machine: &Machine) {
        let traffic = self.traffic(code, jobs, machine);
        let mut found: Vec<(Piece, Piece, u64)> = Vec::new();
        let mut add = |one: (Piece, u64), other: (Piece, u64), cycles: [u64; 2], shared: u64| {
            if one.0.0 != other.0.0 {
                let cost = u128::from(PARTS * shared) * u128::from(one.1) * u128::from(other.1)
                    / (u128::from(cycles[0]) * u128::from(cycles[1])).max(1);
                found.push((one.0, other.0, cost as u64));
                found.push((other.0, one.0, cost as u64));
            }
        };
        // A unit meets itself where its operands and results share a bank.
        for (own, job) in traffic.iter().zip(jobs) {
            for (rank, &one) in own.iter().enumerate() {
                own[rank + 1..].iter().for_each(|&other| add(one, other, [job.busy; 2], job.busy));
            }
        }
        let by_unit = Unit::ALL.map(|unit| {
            let mut own: Vec<usize> = (0..jobs.len()).filter(|&at| jobs[at].unit == unit).collect();
            own.sort_by_key(|&at| starts[at]);
            own
        });
        let end = |at: usize| starts[at] + jobs[at].busy;
        for (rank, mine) in by_unit.iter().enumerate() {
            for theirs in &by_unit[rank + 1..] {
                let mut first = 0;
                for &one in mine {
                    while theirs.get(first).is_some_and(|&other| end(other) <= starts[one]) {
                        first += 1;
                    }
                    for &other in theirs[first..].iter().take_while(|&&other| starts[other] < end(one)) {
                        let shared = end(one).min(end(other)).saturating_sub(starts[one].max(starts[other]));
                        for &a in &traffic[one] {
                            traffic[other].iter().for_each(|&b| add(a, b, [jobs[one].busy, jobs[other].busy], shared));
                        }
                    }
                }
            }
        }
        found.sort_unstable();
        for ((at, piece), other, cost) in found {
            let list = &mut self.buffers[at].conflicts[piece];
            match list.last_mut() {
                Some(last) if last.0 == other => last.1 += cost,
                _ => list.push((other, cost)),
            }
        }
        for list in self.buffers.iter_mut().flat_map(|buffer| &mut buffer.conflicts) {
            list.retain(|&(_, cost)| cost > 0);
        }
    }

    /// By instruction, the words it moves from and to pieces of buffers.
    fn traffic(&self, code: &VirtualProgram, jobs: &[UnitWork], machine: &Machine) -> Vec<Vec<(Piece, u64)>> {
        let word = machine.word() as u64;
        // Every buffer from the start of a bank on that it has alone: banks are pieces.
        let mut apart: Addresses = vec![(Space::Ddr(0), 0); code.buffers.len()];
        let mut pieces: Vec<Piece> = Vec::new();
        for (at, buffer) in self.buffers.iter().enumerate() {
            apart[buffer.index] = (Space::Cache, pieces.len() as u64 * self.bank * word);
            pieces.extend((0..buffer.conflicts.len()).map(|piece| (at, piece)));
        }
        let descriptors: Vec<Descriptor> = code.descriptors.iter().cloned().collect();
        let of = |(instruction, job): (&crate::virtual_program::VirtualInstruction, &UnitWork)| {
            let instruction = resolve(instruction, job.unit, &apart);
            let touched = accesses(&instruction, &descriptors, machine);
            let traffic = Traffic::new(&instruction, &touched, &descriptors, machine).with_transfers(&touched, machine);
            let banks = traffic.banks().iter().filter(|(_, words)| *words > 0);
            banks.filter_map(|&(bank, words)| Some((*pieces.get(bank.index())?, words))).collect()
        };
        code.instructions.iter().zip(jobs).map(of).collect()
    }

    /// Words of a piece of buffer `at`, were that to begin at `start`, in the banks it lies in.
    fn banks(&self, at: usize, piece: usize, start: u64) -> [(u64, u64); 2] {
        let first = start + piece as u64 * self.bank;
        let end = (first + self.bank).min(start + self.buffers[at].size);
        let border = (first / self.bank + 1) * self.bank;
        let inside = end.min(border) - first;
        [(first / self.bank, inside), (first / self.bank + 1, end - first - inside)]
    }

    /// By piece of a buffer, what each bank would cost all of it.
    fn costs_by_bank(&self, at: usize) -> Vec<Vec<u64>> {
        let banks = self.capacity.div_ceil(self.bank) as usize + 1;
        let of = |conflicts: &Vec<(Piece, u64)>| {
            let mut costs = vec![0; banks];
            for &((other, piece), cost) in conflicts {
                let theirs = self.banks(other, piece, self.buffers[other].start);
                let all = theirs[0].1 + theirs[1].1;
                for (bank, words) in theirs.into_iter().filter(|(_, words)| *words > 0) {
                    costs[bank as usize] += cost * words / all.max(1);
                }
            }
            costs
        };
        self.buffers[at].conflicts.iter().map(of).collect()
    }

    /// What buffer `at` costs from `start` on.
    fn cost(&self, at: usize, start: u64) -> u64 {
        self.cost_by(&self.costs_by_bank(at), at, start)
    }

    fn cost_by(&self, costs: &[Vec<u64>], at: usize, start: u64) -> u64 {
        let of = |(piece, costs): (usize, &Vec<u64>)| {
            let banks = self.banks(at, piece, start);
            let all = banks[0].1 + banks[1].1;
            banks
                .iter()
                .filter(|(_, words)| *words > 0)
                .map(|&(bank, words)| costs[bank as usize] * words / all)
                .sum::<u64>()
        };
        costs.iter().enumerate().map(of).sum()
    }

    /// Moves a buffer to where it costs the least; whether it has moved.
    fn improve(&mut self, at: usize) -> bool {
        let costs = self.costs_by_bank(at);
        let own = &self.buffers[at];
        let now = self.cost_by(&costs, at, own.start);
        let mut taken: Vec<(u64, u64)> = own
            .meets
            .iter()
            .map(|&other| (self.buffers[other].start, self.buffers[other].start + self.buffers[other].size))
            .collect();
        taken.sort_unstable();
        taken.push((self.capacity, self.capacity));
        let (mut end, mut best) = (0, (now, own.start));
        for (from, to) in taken {
            // From the start of the gap, its end, and the starts of banks inside it.
            let last = from.checked_sub(own.size).filter(|&last| last >= end);
            let starts = (end / self.bank + 1..=last.unwrap_or(0) / self.bank).map(|bank| bank * self.bank);
            for start in [Some(end), last].into_iter().flatten().chain(starts).filter(|_| last.is_some()) {
                best = best.min((self.cost_by(&costs, at, start), start));
            }
            end = end.max(to);
        }
        let has_gained = best.0 < now;
        if has_gained {
            self.buffers[at].start = best.1;
        }
        has_gained
    }
}

/// When each instruction begins, in the order there is, as soon as its unit is free and what it follows has finished.
fn starts(code: &VirtualProgram, addresses: &Addresses, jobs: &[UnitWork], machine: &Machine) -> Vec<u64> {
    let dependences = Dependences::new(code, machine, Some(addresses));
    let mut free = [0; Unit::COUNT];
    let mut starts: Vec<u64> = Vec::with_capacity(jobs.len());
    for (job, before) in jobs.iter().zip(&dependences.before) {
        let ready = before.iter().map(|edge| {
            let (start, other) = (starts[edge.instruction.index()], jobs[edge.instruction.index()]);
            start + other.busy + if edge.finish { other.tail } else { 0 }
        });
        let start = ready.max().unwrap_or(0).max(free[job.unit.index()]);
        free[job.unit.index()] = start + job.busy;
        starts.push(start);
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{SearchBudget, next_random};
    use crate::common::{Net, window};
    use crate::options::granularity::{StageGranularities, TileGranularity};
    use crate::options::{PipelineMode, PlanOptions};
    use crate::parameters::Parameters;

    impl BankLayout {
        fn total(&self) -> u64 {
            (0..self.buffers.len()).map(|at| self.cost(at, self.buffers[at].start)).sum()
        }

        fn overlap(&self, one: usize, other: usize) -> bool {
            let (one, other) = (&self.buffers[one], &self.buffers[other]);
            one.start < other.start + other.size && other.start < one.start + one.size
        }
    }

    /// Buffers of random sizes one behind the other, some of which are used at the same time.
    fn layout(seed: u64) -> BankLayout {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut below = |count: u64| next_random(&mut state) % count;
        let bank = 8;
        let mut buffers: Vec<Placed> = Vec::new();
        let mut end = 0;
        for index in 0..12 {
            let size = 1 + below(20);
            let conflicts = vec![Vec::new(); size.div_ceil(bank) as usize];
            buffers.push(Placed { index, start: end, size, meets: Vec::new(), conflicts });
            end += size;
        }
        for one in 0..buffers.len() {
            for other in 0..one {
                if below(3) > 0 {
                    buffers[one].meets.push(other);
                    buffers[other].meets.push(one);
                }
                if below(3) == 0 {
                    let mut piece = |at: usize| (at, below(buffers[at].conflicts.len() as u64) as usize);
                    let (mine, theirs) = (piece(one), piece(other));
                    let cost = 1 + below(5000);
                    buffers[one].conflicts[mine.1].push((theirs, cost));
                    buffers[other].conflicts[theirs.1].push((mine, cost));
                }
            }
        }
        BankLayout { buffers, bank, capacity: end.next_multiple_of(bank) + below(40) }
    }

    #[test]
    fn moves_cost_less_and_take_nobodys_place() {
        let mut gained = 0;
        for seed in 0..300 {
            let mut found = layout(seed);
            let before = found.total();
            for _ in 0..3 {
                for at in 0..found.buffers.len() {
                    let cost = found.cost(at, found.buffers[at].start);
                    let has_moved = found.improve(at);
                    assert!(found.cost(at, found.buffers[at].start) <= cost, "seed {seed}");
                    assert!(has_moved || found.cost(at, found.buffers[at].start) == cost, "seed {seed}");
                }
            }
            for (at, buffer) in found.buffers.iter().enumerate() {
                assert!(buffer.start + buffer.size <= found.capacity, "seed {seed}");
                assert!(buffer.meets.iter().all(|&other| !found.overlap(at, other)), "seed {seed}");
            }
            gained += u32::from(found.total() < before);
        }
        assert!(gained > 200, "{gained} of 300");
    }

    /// One unit that reads what the other writes, in the same bank until they are moved apart.
    #[test]
    fn what_two_units_use_at_a_time_goes_to_different_banks() {
        let mut net = Net::new(3);
        let x = net.input(&[1, 32, 32, 128]);
        let y = net.conv(x, 128, window(1, 1, 0), 1);
        let z = net.unary(y);
        let w = net.conv(z, 128, window(1, 1, 0), 1);
        let graph = net.finish(&[w]);
        let (machine, parameters) = (Machine::preset("128x128_asic").expect("known"), Parameters::o5());
        let budget = SearchBudget { seed: 0, steps: 10, deadline: None };
        let context = PlanningContext::new(&graph, &machine, budget, &parameters).expect("a sound graph");
        let mode = PipelineMode::Interleaved { granularities: StageGranularities::even(TileGranularity::Fine) };
        let plan = context.plan(PlanOptions::new(mode), &|_| None).expect("space for all");
        // All buffers one behind the other: several in a bank.
        let (code, addresses) = plan.parts();
        let (mut crowded, mut end) = (addresses.clone(), 0);
        for (index, buffer) in code.buffers.iter().enumerate().filter(|(_, buffer)| buffer.memory == Memory::Cache) {
            crowded[index].1 = end;
            end += buffer.bytes.next_multiple_of(machine.word() as u64);
        }
        let cost = |addresses: &Addresses| BankLayout::new(code, addresses, &machine).expect("few buffers").total();
        let apart = moved(code, &crowded, &machine).expect("a better place");
        assert!(10 * cost(&apart) < cost(&crowded), "{} in place of {}", cost(&apart), cost(&crowded));
        let relocated = plan.relocated(&context, &apart).expect("as much external memory");
        assert_eq!(tpuflow_checker::check(&graph, &relocated.program(&context)), Ok(()));
    }
}
