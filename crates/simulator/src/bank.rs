//! The banks of the shared cache: one word a cycle each, to the first client that asks.
//!
//! Units are stepped in the order of priority, so that whoever asks first in a cycle has the highest priority of all who do.

use tpuflow_ir::Machine;

use crate::counters::Client;

#[derive(Clone, Debug)]
pub(crate) struct Banks {
    words_per_bank: u64,
    /// Cycle (plus one) in which the bank was taken last, and by whom.
    taken: Vec<(u64, Client)>,
    accesses: Vec<u64>,
    conflicts: [[u64; Client::COUNT]; Client::COUNT],
}

impl Banks {
    pub(crate) fn new(machine: &Machine) -> Self {
        let count = machine.cache.banks as usize;
        Self {
            words_per_bank: machine.cache.words.into(),
            taken: vec![(0, Client::ALL[0]); count],
            accesses: vec![0; count],
            conflicts: Default::default(),
        }
    }

    /// Whether `client` gets the bank of cache word `word` in `cycle`; a refusal is counted.
    pub(crate) fn request(&mut self, cycle: u64, word: u64, client: Client) -> bool {
        let bank = (word / self.words_per_bank) as usize;
        let (at, holder) = self.taken[bank];
        if at == cycle + 1 {
            self.conflicts[holder.index()][client.index()] += 1;
            return false;
        }
        self.taken[bank] = (cycle + 1, client);
        self.accesses[bank] += 1;
        true
    }

    pub(crate) fn into_counts(self) -> (Vec<u64>, [[u64; Client::COUNT]; Client::COUNT]) {
        (self.accesses, self.conflicts)
    }
}
