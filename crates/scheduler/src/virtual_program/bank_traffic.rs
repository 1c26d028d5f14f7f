//! Cycles that instructions of different units cost each other at the banks of the shared cache.
//!
//! An instruction is taken to access its banks evenly over its time. Two that access the same bank at rates `a` and `b` collide
//! in about `a * b` of the cycles they share.

use smallvec::SmallVec;
use tpuflow_ir::access::{Accesses, Stretch};
use tpuflow_ir::{BankId, Descriptor, Instruction, Machine, Space, Unit, Work, timing};

/// Words an instruction moves from and to each bank.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traffic {
    /// Bank and words.
    banks: SmallVec<[(BankId, u64); 8]>,
    /// Cycles its unit is busy.
    cycles: u64,
}

impl Traffic {
    /// That of an instruction; none for transfers, whose words are few a cycle.
    pub fn new(instruction: &Instruction, touched: &Accesses, descriptors: &[Descriptor], machine: &Machine) -> Self {
        let cached = |list: &[Stretch]| -> SmallVec<[Stretch; 6]> {
            list.iter().filter(|s| s.space == Space::Cache).copied().collect()
        };
        let (reads, writes) = (cached(&touched.reads), cached(&touched.writes));
        let word = u64::from(machine.cache.word_bytes);
        let mut traffic = Self::default();
        match &instruction.work {
            Work::Matrix(m) => {
                let Descriptor::Matrix(d) = &descriptors[m.descriptor.index()] else { return traffic };
                let (pixels, size) = (u64::from(m.pixels), m.output.dtype.bytes() as u64);
                traffic.cycles = timing::matrix_slots(m, d, machine);
                let vectors = traffic.cycles / timing::tile_slots(pixels, machine) * pixels;
                // Neighbouring pixels share words that hold several.
                let shared = (word / u64::from(m.input.pixel_bytes).min(word)).max(1);
                let planes = if m.weights.plane_bytes > 0 { 2 } else { 1 };
                let (inputs, weights) = reads.split_at(reads.len().saturating_sub(planes));
                for stretch in inputs {
                    traffic.add(stretch, vectors / shared / inputs.len() as u64, machine);
                }
                for stretch in weights {
                    traffic.add(stretch, (stretch.end - stretch.start) / word, machine);
                }
                let wide = (u64::from(m.columns) * size).div_ceil(word);
                let together = (word / u64::from(m.output.pixel_bytes).min(word)).max(1);
                for stretch in &writes {
                    traffic.add(stretch, pixels * wide / together, machine);
                }
            }
            work => {
                let Some(streams) = timing::streams(work, descriptors, machine) else { return traffic };
                traffic.cycles = streams.cycles;
                let counts = streams.reads.iter().copied();
                for (stretch, words) in reads.iter().zip(counts).chain(writes.iter().zip([streams.writes])) {
                    traffic.add(stretch, words, machine);
                }
            }
        }
        traffic.cycles = traffic.banks.iter().fold(traffic.cycles.max(1), |most, &(_, words)| most.max(words));
        traffic
    }

    /// The same with the words of a transfer.
    pub fn with_transfers(mut self, touched: &Accesses, machine: &Machine) -> Self {
        if self.cycles == 0 {
            let word = u64::from(machine.cache.word_bytes);
            for stretch in touched.reads.iter().chain(&touched.writes).filter(|stretch| stretch.space == Space::Cache) {
                self.add(stretch, (stretch.end - stretch.start).div_ceil(word), machine);
            }
        }
        self
    }

    /// Banks, and the words moved from and to each.
    pub fn banks(&self) -> &[(BankId, u64)] {
        &self.banks
    }

    fn add(&mut self, stretch: &Stretch, words: u64, machine: &Machine) {
        let bank = u64::from(machine.cache.words) * u64::from(machine.cache.word_bytes);
        let length = (stretch.end - stretch.start).max(1);
        for number in stretch.start / bank..stretch.end.div_ceil(bank) {
            let inside = stretch.end.min((number + 1) * bank) - stretch.start.max(number * bank);
            let part = words * inside / length;
            let number = BankId::new(number as usize);
            match self.banks.iter_mut().find(|(other, _)| *other == number) {
                Some((_, sum)) => *sum += part,
                None => self.banks.push((number, part)),
            }
        }
    }

    /// Cycles lost when two run side by side for `shared` cycles.
    pub fn collisions(&self, other: &Self, shared: u64) -> u64 {
        let both = |&(bank, words): &(BankId, u64)| {
            let theirs = other.banks.iter().find(|(number, _)| *number == bank).map_or(0, |&(_, words)| words);
            u128::from(words) * u128::from(theirs)
        };
        let sum = self.banks.iter().map(both).sum::<u128>() * u128::from(shared);
        let rate = u128::from(self.cycles) * u128::from(other.cycles);
        u64::try_from(sum / rate.max(1)).unwrap_or(shared).min(shared)
    }
}

/// Whether `unit` waits when it meets `other` at a bank.
pub(crate) fn waits(unit: Unit, other: Unit) -> bool {
    let rank = |unit: Unit| if unit.is_dma() { None } else { Some(unit.index()) };
    rank(unit) > rank(other)
}
