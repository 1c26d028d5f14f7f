//! How long a virtual program takes with its loads in given places: every unit takes its virtual instructions in order, each when what it depends on is
//! done, a load when what lay in its place is used up.
//!
//! Coarser than the cost model (no channels, pages, tokens or banks), but it needs no addresses in instructions: many
//! placements can be compared in the time one program takes to be made.

use tpuflow_ir::{InstructionId, Unit};

use super::{Placement, Prefetcher};
use crate::virtual_program::addresses::Lifetime;
use crate::virtual_program::dependence::Dependences;
use crate::virtual_program::unit_work::{UnitWork, jobs};
use crate::virtual_program::{BufferId, Content, Memory};

/// Use of a buffer of the shared cache.
struct CachedBuffer {
    /// Its load, if it has one; else where it is.
    load: Result<usize, u64>,
    words: u64,
    /// The last virtual instruction that touches it.
    last: InstructionId,
}

pub(super) struct Model<'a> {
    prefetcher: &'a Prefetcher<'a>,
    dependences: Dependences,
    jobs: Vec<UnitWork>,
    /// By virtual instruction, whether it loads a constant, which either line may do.
    is_constant: Vec<bool>,
    /// By virtual instruction, the load it is part of.
    load: Vec<Option<usize>>,
    residents: Vec<CachedBuffer>,
}

impl<'a> Model<'a> {
    pub fn new(prefetcher: &'a Prefetcher<'a>) -> Self {
        let code = prefetcher.code;
        let word = prefetcher.machine.word() as u64;
        let mut load = vec![None; code.instructions.len()];
        let mut owner = vec![None; code.buffers.len()];
        for (index, each) in prefetcher.loads.iter().enumerate() {
            owner[each.buffer.index()] = Some(index);
            each.instructions.iter().for_each(|instruction| load[instruction.index()] = Some(index));
        }
        let is_constant = |from: BufferId| matches!(code.buffers[from.index()].content, Content::Constant(_));
        let constants = code.instructions.iter().map(|d| d.load().is_some_and(|(_, from)| is_constant(from)));
        let resident = |(buffer, life): (usize, &Option<Lifetime>)| {
            let (_, last) = (*life).filter(|_| code.buffers[buffer].memory == Memory::Cache)?;
            let load = owner[buffer].ok_or(prefetcher.addresses[buffer].1 / word);
            Some(CachedBuffer { load, words: code.buffers[buffer].bytes.div_ceil(word), last })
        };
        Self {
            prefetcher,
            dependences: Dependences::new(code, prefetcher.machine, None),
            jobs: jobs(code, prefetcher.machine),
            is_constant: constants.collect(),
            load,
            residents: prefetcher.live_ranges.iter().enumerate().filter_map(resident).collect(),
        }
    }

    /// Cycles until the last virtual instruction is done.
    pub fn makespan(&self, placement: &Placement) -> u64 {
        let lines = [Unit::Dtl0, Unit::Dtl1];
        let count = self.prefetcher.machine.channels();
        let before = self.before(placement);
        let (mut taken, mut finished) = (vec![0u64; self.jobs.len()], vec![0u64; self.jobs.len()]);
        let mut free = [0u64; Unit::COUNT];
        let mut moved = [0u64; 2];
        let mut end = 0;
        for instruction in self.prefetcher.order(placement) {
            let job = self.jobs[instruction.index()];
            let mut unit = job.unit;
            if self.is_constant[instruction.index()] {
                let line = (0..count).min_by_key(|&line| moved[line]).unwrap_or(0);
                moved[line] += job.busy;
                unit = lines[line];
            }
            let edges = self.dependences.before[instruction.index()].iter();
            let followed =
                edges.map(|e| if e.finish { finished[e.instruction.index()] } else { taken[e.instruction.index()] });
            let gone =
                self.load[instruction.index()].into_iter().flat_map(|load| &before[load]).map(|d| finished[d.index()]);
            let begin = followed.chain(gone).fold(free[unit.index()], u64::max);
            taken[instruction.index()] = begin + job.busy;
            free[unit.index()] = begin + job.busy;
            finished[instruction.index()] = begin + job.busy + job.tail;
            end = end.max(finished[instruction.index()]);
        }
        end
    }

    /// By load, the last virtual instructions of what lay in its place before.
    fn before(&self, placement: &Placement) -> Vec<Vec<InstructionId>> {
        let at = |resident: &CachedBuffer| match resident.load {
            Ok(load) => placement.words[load],
            Err(address) => address,
        };
        let places: Vec<(u64, u64, InstructionId)> =
            self.residents.iter().map(|r| (at(r), at(r) + r.words, r.last)).collect();
        let of = |(index, load): (usize, &super::Load)| -> Vec<InstructionId> {
            if self.prefetcher.memory(load) != Memory::Cache {
                return vec![];
            }
            let (start, slot) = (placement.words[index], placement.slots[index]);
            let end = start + self.prefetcher.size(load);
            let met = places.iter().filter(|&&(from, to, last)| from < end && start < to && last.0 < slot);
            met.map(|place| place.2).collect()
        };
        self.prefetcher.loads.iter().enumerate().map(of).collect()
    }
}
