//! How long a virtual program takes with its loads in given places: every unit takes its virtual instructions in order, each when what it depends on is
//! done, a load when what lay in its place is used up.
//!
//! Coarser than the cost model (no channels, pages, tokens or banks), but it needs no addresses in instructions: many
//! placements can be compared in the time one program takes to be made.

use tpuflow_ir::Unit;

use super::{Ahead, Placement};
use crate::virtual_program::dependence::Dependences;
use crate::virtual_program::unit_work::{UnitWork, jobs};
use crate::virtual_program::{Content, Memory};

/// What a buffer of the shared cache is for.
struct Resident {
    /// Its load, if it has one; else where it is.
    load: Result<usize, u64>,
    words: u64,
    /// The last virtual instruction that touches it.
    last: u32,
}

pub(super) struct Model<'a> {
    ahead: &'a Ahead<'a>,
    dependences: Dependences,
    jobs: Vec<UnitWork>,
    /// By virtual instruction, whether it loads a constant, which either line may do.
    is_constant: Vec<bool>,
    /// By virtual instruction, the load it is part of.
    load: Vec<Option<usize>>,
    residents: Vec<Resident>,
}

impl<'a> Model<'a> {
    pub fn new(ahead: &'a Ahead<'a>) -> Self {
        let code = ahead.code;
        let word = ahead.machine.word() as u64;
        let mut load = vec![None; code.instructions.len()];
        let mut owner = vec![None; code.buffers.len()];
        for (index, each) in ahead.loads.iter().enumerate() {
            owner[each.buffer] = Some(index);
            each.instructions.iter().for_each(|&instruction| load[instruction] = Some(index));
        }
        let is_constant = |from: usize| matches!(code.buffers[from].content, Content::Constant(_));
        let constants = code.instructions.iter().map(|d| d.load().is_some_and(|(_, from)| is_constant(from.index())));
        let resident = |(buffer, life): (usize, &Option<(u32, u32)>)| {
            let (_, last) = (*life).filter(|_| code.buffers[buffer].memory == Memory::Cache)?;
            let load = owner[buffer].ok_or(ahead.addresses[buffer].1 / word);
            Some(Resident { load, words: code.buffers[buffer].bytes.div_ceil(word), last })
        };
        Self {
            ahead,
            dependences: Dependences::new(code, ahead.machine, None),
            jobs: jobs(code, ahead.machine),
            is_constant: constants.collect(),
            load,
            residents: ahead.live_ranges.iter().enumerate().filter_map(resident).collect(),
        }
    }

    /// Cycles until the last virtual instruction is done.
    pub fn makespan(&self, placement: &Placement) -> u64 {
        let lines = [Unit::Dtl0.index(), Unit::Dtl1.index()];
        let count = self.ahead.machine.ddr.channels.min(2) as usize;
        let before = self.before(placement);
        let (mut taken, mut finished) = (vec![0u64; self.jobs.len()], vec![0u64; self.jobs.len()]);
        let mut free = [0u64; Unit::ALL.len()];
        let mut moved = [0u64; 2];
        let mut end = 0;
        for instruction in self.ahead.order(placement) {
            let job = self.jobs[instruction];
            let mut lane = job.lane;
            if self.is_constant[instruction] {
                let line = (0..count).min_by_key(|&line| moved[line]).unwrap_or(0);
                moved[line] += job.busy;
                lane = lines[line];
            }
            let edges = self.dependences.before[instruction].iter();
            let followed =
                edges.map(|e| if e.finish { finished[e.instruction as usize] } else { taken[e.instruction as usize] });
            let gone = self.load[instruction].into_iter().flat_map(|load| &before[load]).map(|&d| finished[d as usize]);
            let begin = followed.chain(gone).fold(free[lane], u64::max);
            taken[instruction] = begin + job.busy;
            free[lane] = begin + job.busy;
            finished[instruction] = begin + job.busy + job.tail;
            end = end.max(finished[instruction]);
        }
        end
    }

    /// By load, the last virtual instructions of what lay in its place before.
    fn before(&self, placement: &Placement) -> Vec<Vec<u32>> {
        let at = |resident: &Resident| match resident.load {
            Ok(load) => placement.words[load],
            Err(address) => address,
        };
        let places: Vec<(u64, u64, u32)> = self.residents.iter().map(|r| (at(r), at(r) + r.words, r.last)).collect();
        let of = |(index, load): (usize, &super::Load)| -> Vec<u32> {
            if self.ahead.memory(load) != Memory::Cache {
                return vec![];
            }
            let (start, slot) = (placement.words[index], placement.slots[index]);
            let end = start + self.ahead.size(load);
            let met = places.iter().filter(|&&(from, to, last)| from < end && start < to && last < slot);
            met.map(|place| place.2).collect()
        };
        self.ahead.loads.iter().enumerate().map(of).collect()
    }
}
