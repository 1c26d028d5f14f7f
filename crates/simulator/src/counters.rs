//! The counters of a run: every cycle of every unit by cause, and every access to a memory.

use serde::Serialize;
use tpuflow_ir::Unit;

/// Who asks a bank of the shared cache for a word: units in the order of [`Unit::ALL`], of which the matrix engine has three ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// A unit whose accesses are of one kind.
    Unit(Unit),
    /// Row feeder of the matrix engine.
    Feeder,
    /// Weight port of the matrix engine.
    WeightPort,
    /// Output pipe of the matrix engine.
    MatrixWrite,
}

impl Client {
    /// Number of clients.
    pub const COUNT: usize = Unit::COUNT - 1 + Self::ARRAY.len();
    /// Those of the matrix engine.
    const ARRAY: [Self; 3] = [Self::Feeder, Self::WeightPort, Self::MatrixWrite];
    /// Where they stand among all.
    const FIRST: usize = Unit::Me as usize;
    /// All clients in falling priority.
    pub const ALL: [Self; Self::COUNT] = {
        let mut all = [Self::Feeder; Self::COUNT];
        let mut number = 0;
        while number < Self::COUNT {
            all[number] = if number < Self::FIRST {
                Self::Unit(Unit::ALL[number])
            } else if number < Self::FIRST + Self::ARRAY.len() {
                Self::ARRAY[number - Self::FIRST]
            } else {
                Self::Unit(Unit::ALL[number + 1 - Self::ARRAY.len()])
            };
            number += 1;
        }
        all
    };

    /// Position in [`Client::ALL`].
    #[inline]
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Self::Unit(unit) if unit.index() < Self::FIRST => unit.index(),
            Self::Unit(unit) => unit.index() + Self::ARRAY.len() - 1,
            Self::Feeder => Self::FIRST,
            Self::WeightPort => Self::FIRST + 1,
            Self::MatrixWrite => Self::FIRST + 2,
        }
    }

    /// Name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unit(unit) => unit.name(),
            Self::Feeder => "row_feeder",
            Self::WeightPort => "weight_port",
            Self::MatrixWrite => "me_write",
        }
    }
}

/// Why a unit that has begun its first instruction and not finished its last does no work in a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stall {
    /// A bank served somebody else.
    BankConflict,
    /// A DMA line waits for a channel, or the channel opens a page.
    Ddr,
    /// The next instruction waits for tokens.
    Dependency,
    /// The array waits for the weights of the next tile.
    WeightLoad,
    /// Start-up of an instruction that nothing hides.
    Issue,
    /// Nothing to start, or no accumulators free, while earlier results are still on their way; or the row feeder needs more
    /// words for a pixel than it can take in a cycle.
    UnitBusy,
}

impl Stall {
    /// All causes.
    pub const ALL: [Self; 6] =
        [Self::BankConflict, Self::Ddr, Self::Dependency, Self::WeightLoad, Self::Issue, Self::UnitBusy];

    /// Name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        ["bank_conflict", "ddr", "dependency", "weight_load", "issue", "unit_busy"][self as usize]
    }
}

/// Idle cycles by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stalls {
    /// See [`Stall::BankConflict`].
    pub bank_conflict: u64,
    /// See [`Stall::Ddr`].
    pub ddr: u64,
    /// See [`Stall::Dependency`].
    pub dependency: u64,
    /// See [`Stall::WeightLoad`].
    pub weight_load: u64,
    /// See [`Stall::Issue`].
    pub issue: u64,
    /// See [`Stall::UnitBusy`].
    pub unit_busy: u64,
}

impl Stalls {
    pub(crate) fn add(&mut self, cause: Stall, cycles: u64) {
        *match cause {
            Stall::BankConflict => &mut self.bank_conflict,
            Stall::Ddr => &mut self.ddr,
            Stall::Dependency => &mut self.dependency,
            Stall::WeightLoad => &mut self.weight_load,
            Stall::Issue => &mut self.issue,
            Stall::UnitBusy => &mut self.unit_busy,
        } += cycles;
    }

    /// All of them together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.bank_conflict + self.ddr + self.dependency + self.weight_load + self.issue + self.unit_busy
    }

    /// Sum, cause by cause.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            bank_conflict: self.bank_conflict + other.bank_conflict,
            ddr: self.ddr + other.ddr,
            dependency: self.dependency + other.dependency,
            weight_load: self.weight_load + other.weight_load,
            issue: self.issue + other.issue,
            unit_busy: self.unit_busy + other.unit_busy,
        }
    }
}

/// One unit's cycles. `busy + stalls.total() == end - start`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UnitCounters {
    /// Cycle in which its first instruction began.
    pub start: u64,
    /// One past the cycle in which its last instruction finished; 0 without instructions.
    pub end: u64,
    /// Cycles of work: data on the channel (DMA), slots of a tile (matrix engine), unit-cycles (others).
    pub busy: u64,
    /// All other cycles of `start .. end`.
    pub stalls: Stalls,
    /// Instructions executed.
    pub instructions: u32,
}

/// Everything counted in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Per unit, in the order of [`Unit::ALL`].
    pub units: [UnitCounters; Unit::COUNT],
    /// `bank_conflicts[holder][waiter]` by [`Client`]: accesses refused because the bank served the holder in that cycle.
    pub bank_conflicts: [[u64; Client::COUNT]; Client::COUNT],
    /// Words read or written per bank.
    pub bank_accesses: Vec<u64>,
    /// Bytes read from DDR.
    pub ddr_read_bytes: u64,
    /// Bytes written to DDR.
    pub ddr_write_bytes: u64,
    /// Page runs that had to open their page.
    pub page_misses: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_stand_where_their_units_do() {
        let names: Vec<&str> = Client::ALL.into_iter().map(Client::name).collect();
        assert_eq!(names[..7], ["dtl0", "dtl1", "row_feeder", "weight_port", "me_write", "ewp", "pdp"]);
        assert!(Client::ALL.into_iter().enumerate().all(|(number, client)| client.index() == number));
    }
}
