//! How far runs overlap, and in which order an iteration stands.
//!
//! If a run begins every `target` cycles, an instruction that ends `t` cycles after the beginning of its run ends in the iteration
//! `t / target` later, `t % target` after that began: modulo scheduling (Rau 1994) of a finished schedule. Two things bound
//! that lag. No instruction may overtake one of the run before that it conflicts with, since buffers are the same in all runs, so
//! of two that conflict the later one of a run is at most one iteration behind the earlier one ([`lags`]). And
//! within an iteration, instructions of a later run stand behind those of earlier ones with which they conflict ([`merge`]).

use std::collections::BTreeMap;

use smallvec::SmallVec;
use tpuflow_ir::access::{Accesses, Stretch};
use tpuflow_ir::stream::LAG;
use tpuflow_ir::{Instruction, InstructionId, Repeated, Space};

/// The body of a stream in which a run begins every `target` cycles if nothing is in the way. `ends`: when instructions finish in a
/// run by itself. `repeated`: which of them the body has.
pub(super) fn body(
    instructions: &[Instruction],
    accesses: &[Accesses],
    ends: &[u64],
    repeated: &[bool],
    target: u64,
) -> Vec<Repeated> {
    let lag = |end: u64| (end / target.max(1)).min(u64::from(LAG)) as u32;
    let mut found: Vec<u32> = ends.iter().map(|&end| lag(end)).collect();
    lags(instructions, accesses, repeated, &mut found);
    // When in its iteration an instruction ends; sorted by that, those of a run are in an order in which nothing overtakes
    // what it depends on.
    let time = |number: usize| ends[number] - u64::from(found[number]) * target;
    let mut order: Vec<usize> = Vec::new();
    for lag in (0..=LAG).rev() {
        let mut own: Vec<usize> = (0..ends.len()).filter(|&n| repeated[n] && found[n] == lag).collect();
        own.sort_by_key(|&number| ends[number]);
        order = merge(order, own, accesses, &time);
    }
    let entry =
        |number| Repeated { instruction: InstructionId::new(number), lag: found[number], waits: SmallVec::new() };
    order.into_iter().map(entry).collect()
}

/// Lowers lags until no instruction overtakes one with which it conflicts, of its own run or the run before.
fn lags(instructions: &[Instruction], accesses: &[Accesses], repeated: &[bool], lags: &mut [u32]) {
    let touched = touched_bytes(accesses, repeated);
    loop {
        let before = lags.to_vec();
        // In a run, nothing is executed before what stands before it on its unit, or what it depends on.
        let mut least = [LAG; tpuflow_ir::Unit::COUNT];
        for (number, instruction) in instructions.iter().enumerate().rev().filter(|(number, _)| repeated[*number]) {
            let least = &mut least[instruction.unit.index()];
            lags[number] = lags[number].min(*least);
            *least = lags[number];
        }
        for list in &touched {
            let (mut any, mut writers) = (LAG, LAG);
            for &(number, writes) in list.iter().rev() {
                lags[number] = lags[number].min(if writes { any } else { writers });
                any = any.min(lags[number]);
                writers = if writes { writers.min(lags[number]) } else { writers };
            }
            // The next run's come behind, at most in the same iteration.
            for &(number, writes) in list {
                let bound = if writes { any } else { writers };
                lags[number] = lags[number].min(bound + 1);
            }
        }
        if before == lags {
            return;
        }
    }
}

/// Instructions that access the same bytes, in serial order, and whether they write them.
type Accessors = SmallVec<[(usize, bool); 4]>;

/// By stretch of memory that is accessed alike, who reads and writes it.
fn touched_bytes(accesses: &[Accesses], repeated: &[bool]) -> Vec<Accessors> {
    let mut borders: BTreeMap<Space, BTreeMap<u64, Accessors>> = BTreeMap::new();
    let all = || accesses.iter().enumerate().filter(|(number, _)| repeated[*number]);
    for stretch in all().flat_map(|(_, touched)| touched.reads.iter().chain(&touched.writes)) {
        let memory = borders.entry(stretch.space).or_default();
        memory.entry(stretch.start).or_default();
        memory.entry(stretch.end).or_default();
    }
    for (number, touched) in all() {
        let writes = touched.writes.iter().map(|stretch| (stretch, true));
        for (stretch, writes) in writes.chain(touched.reads.iter().map(|stretch| (stretch, false))) {
            let Some(memory) = borders.get_mut(&stretch.space) else { continue };
            for list in memory.range_mut(stretch.start..stretch.end).map(|(_, list)| list) {
                match list.last_mut() {
                    Some((last, _)) if *last == number => {}
                    _ => list.push((number, writes)),
                }
            }
        }
    }
    let mut lists: Vec<_> =
        borders.into_values().flat_map(BTreeMap::into_values).filter(|list| list.len() > 1).collect();
    lists.sort_unstable();
    lists.dedup();
    lists
}

/// Instructions of earlier runs, and those of the next run, by the `time` at which they end. Both stay in their order.
fn merge(earlier: Vec<usize>, later: Vec<usize>, accesses: &[Accesses], time: &impl Fn(usize) -> u64) -> Vec<usize> {
    let mut touched = LastAccesses::default();
    for (position, &number) in earlier.iter().enumerate() {
        touched.add(&accesses[number], position + 1);
    }
    let mut merged = Vec::with_capacity(earlier.len() + later.len());
    let mut placed = 0;
    for number in later {
        let before = touched.conflicts(&accesses[number]);
        while placed < earlier.len() && (placed < before || time(earlier[placed]) <= time(number)) {
            merged.push(earlier[placed]);
            placed += 1;
        }
        merged.push(number);
    }
    merged.extend(&earlier[placed..]);
    merged
}

/// By stretch of memory, the position behind the last that writes and the last that reads or writes it.
#[derive(Default)]
struct LastAccesses {
    spaces: BTreeMap<Space, BTreeMap<u64, (u64, [usize; 2])>>,
}

impl LastAccesses {
    fn add(&mut self, touched: &Accesses, position: usize) {
        for stretch in &touched.reads {
            self.put(stretch, [0, position]);
        }
        for stretch in &touched.writes {
            self.put(stretch, [position, position]);
        }
    }

    fn put(&mut self, stretch: &Stretch, positions: [usize; 2]) {
        let memory = self.spaces.entry(stretch.space).or_default();
        split(memory, stretch.start);
        split(memory, stretch.end);
        let mut at = stretch.start;
        let mut gaps = Vec::new();
        for (&start, (end, last)) in memory.range_mut(stretch.start..stretch.end) {
            if start > at {
                gaps.push((at, start));
            }
            for (last, position) in last.iter_mut().zip(positions) {
                *last = (*last).max(position);
            }
            at = *end;
        }
        if at < stretch.end {
            gaps.push((at, stretch.end));
        }
        memory.extend(gaps.into_iter().map(|(start, end)| (start, (end, positions))));
    }

    /// The position behind the last access that must come before these.
    fn conflicts(&self, touched: &Accesses) -> usize {
        let last = |stretch: &Stretch, of: usize| -> usize {
            let Some(memory) = self.spaces.get(&stretch.space) else { return 0 };
            let before = memory.range(..stretch.start).next_back().filter(|(_, (end, _))| *end > stretch.start);
            let inside = memory.range(stretch.start..stretch.end);
            before.into_iter().chain(inside).map(|(_, (_, last))| last[of]).max().unwrap_or(0)
        };
        let reads = touched.reads.iter().map(|stretch| last(stretch, 0));
        reads.chain(touched.writes.iter().map(|stretch| last(stretch, 1))).max().unwrap_or(0)
    }
}

/// Cuts the stretch across `at` in two.
fn split(memory: &mut BTreeMap<u64, (u64, [usize; 2])>, at: u64) {
    if let Some((_, (end, last))) = memory.range_mut(..at).next_back()
        && *end > at
    {
        let tail = (*end, *last);
        *end = at;
        memory.insert(at, tail);
    }
}
