//! The banks of the shared cache over a stretch of time: who holds which bank in which cycle.
//!
//! A line of bits per bank and client, one bit a cycle. As clients are entered in falling priority, a request sees everybody
//! who could take the bank from it, and nobody enters later who could. A client that asks in every cycle for a word of one
//! bank takes the free bits one after the other, up to 64 at a time.

use tpuflow_ir::Machine;

use crate::counters::Client;

/// Cycles kept, in blocks of 64.
const BLOCKS: u64 = 64;
/// Bits per client, and of all of them.
type Line = [u64; ANY + 1];
/// Where in a line the bits of all clients are.
const ANY: usize = Client::COUNT;

#[derive(Clone, Debug)]
pub(super) struct Banks {
    words_per_bank: u64,
    /// Of a power of two.
    shift: Option<u32>,
    count: usize,
    /// Per block (modulo [`BLOCKS`]) and bank.
    lines: Vec<Line>,
    /// Per block (modulo [`BLOCKS`]), the banks somebody holds, a bit each; so many words a block.
    used: Vec<u64>,
    groups: usize,
    first_block: u64,
    accesses: Vec<u64>,
    conflicts: [[u64; Client::COUNT]; Client::COUNT],
}

/// The result of [`Banks::stretch`].
pub(super) struct StretchGrant {
    /// How many requests.
    pub(super) count: u64,
    /// First cycle without a request.
    pub(super) next: u64,
}

impl Banks {
    pub(super) fn new(machine: &Machine, start: u64) -> Self {
        let (count, words) = (machine.cache.banks as usize, u64::from(machine.cache.words));
        Self {
            words_per_bank: words,
            shift: words.is_power_of_two().then(|| words.trailing_zeros()),
            count,
            lines: vec![[0; ANY + 1]; count * BLOCKS as usize],
            used: vec![0; count.div_ceil(64) * BLOCKS as usize],
            groups: count.div_ceil(64),
            first_block: start / 64,
            accesses: vec![0; count],
            conflicts: Default::default(),
        }
    }

    /// Bank of a cache word.
    pub(super) fn of(&self, word: u64) -> usize {
        self.shift.map_or_else(|| word / self.words_per_bank, |shift| word >> shift) as usize
    }

    /// First word of the bank after `bank`.
    pub(super) fn end(&self, bank: usize) -> u64 {
        (bank as u64 + 1) * self.words_per_bank
    }

    /// First cycle for which there is no room yet.
    pub(super) fn horizon(&self) -> u64 {
        (self.first_block + BLOCKS) * 64
    }

    /// Nobody asks about cycles before `cycle` any more.
    pub(super) fn discard_before(&mut self, cycle: u64) {
        let keep = cycle / 64;
        for block in self.first_block..keep.min(self.first_block + BLOCKS) {
            let block = (block % BLOCKS) as usize;
            for (group, used) in self.used[block * self.groups..][..self.groups].iter_mut().enumerate() {
                while *used != 0 {
                    let bank = group * 64 + used.trailing_zeros() as usize;
                    let line = std::mem::take(&mut self.lines[block * self.count + bank]);
                    self.accesses[bank] += u64::from(line[ANY].count_ones());
                    *used &= *used - 1;
                }
            }
        }
        self.first_block = self.first_block.max(keep);
    }

    fn line(&mut self, cycle: u64, bank: usize) -> &mut Line {
        &mut self.lines[(cycle / 64 % BLOCKS) as usize * self.count + bank]
    }

    /// The cycles of `cycle`'s block in which somebody holds the bank.
    pub(super) fn busy_mask(&self, cycle: u64, bank: usize) -> u64 {
        self.lines[(cycle / 64 % BLOCKS) as usize * self.count + bank][ANY]
    }

    /// Gives `client` the bank in the cycles `mask` of `cycle`'s block, in which nobody else holds or can want it.
    pub(super) fn grant(&mut self, cycle: u64, bank: usize, client: Client, mask: u64) {
        self.used[(cycle / 64 % BLOCKS) as usize * self.groups + bank / 64] |= 1 << (bank % 64);
        let line = self.line(cycle, bank);
        line[client.index()] |= mask;
        line[ANY] |= mask;
    }

    /// Counts the refusals of a request made in each of the cycles `mask` of `cycle`'s block, all of them held by others.
    pub(super) fn refuse(&mut self, cycle: u64, bank: usize, client: Client, mask: u64) {
        let held = *self.line(cycle, bank);
        for (holder, held) in held.iter().enumerate().take(ANY) {
            if held & mask != 0 {
                self.conflicts[holder][client.index()] += u64::from((held & mask).count_ones());
            }
        }
    }

    /// Counts refusals of requests for a bank that the client itself holds.
    pub(super) fn count_own_refusals(&mut self, client: Client, count: u64) {
        self.conflicts[client.index()][client.index()] += count;
    }

    /// Whether `client` gets the bank in `cycle`; a refusal is counted.
    pub(super) fn request(&mut self, cycle: u64, bank: usize, client: Client) -> bool {
        let bit = 1 << (cycle % 64);
        let free = self.busy_mask(cycle, bank) & bit == 0;
        if free {
            self.grant(cycle, bank, client, bit);
        } else {
            self.refuse(cycle, bank, client, bit);
        }
        free
    }

    /// Asks for the bank in every cycle from `from` on until it has been granted `count` times, or up to `limit`. Calls `seen`
    /// with every first cycle of a run of grants and the run's length.
    pub(super) fn stretch(
        &mut self,
        (from, limit): (u64, u64),
        bank: usize,
        client: Client,
        count: u64,
        mut seen: impl FnMut(u64, u64),
    ) -> StretchGrant {
        let (mut at, mut left) = (from, count);
        while left > 0 && at < limit {
            let block = at / 64 * 64;
            let room = (block + 64).min(limit) - at;
            let (held, most) = (self.busy_mask(at, bank), room.min(left));
            let first = ones(most) << (at - block);
            if held & first == 0 {
                self.grant(at, bank, client, first);
                seen(at, most);
                (left, at) = (left - most, at + most);
                continue;
            }
            let mask = ones(room) << (at - block);
            let (mut taken, mut next) = (mask & !held, at + room);
            if u64::from(taken.count_ones()) >= left {
                taken = lowest(taken, left);
                next = block + 64 - u64::from(taken.leading_zeros());
            }
            self.refuse(at, bank, client, held & mask & ones(next - block));
            let mut rest = taken;
            while rest != 0 {
                let start = rest.trailing_zeros();
                let length = (rest >> start).trailing_ones();
                seen(block + u64::from(start), length.into());
                rest &= !(ones(length.into()) << start);
            }
            self.grant(at, bank, client, taken);
            left -= u64::from(taken.count_ones());
            at = next;
        }
        StretchGrant { count: count - left, next: at }
    }

    pub(super) fn into_counts(mut self) -> (Vec<u64>, [[u64; Client::COUNT]; Client::COUNT]) {
        self.discard_before(u64::MAX);
        (self.accesses, self.conflicts)
    }
}

/// The `count` lowest bits.
pub(super) fn ones(count: u64) -> u64 {
    1u64.checked_shl(count.min(64) as u32).unwrap_or(0).wrapping_sub(1)
}

/// The `count` lowest set bits of `bits`, which has more or as many.
fn lowest(bits: u64, count: u64) -> u64 {
    let mut rest = bits;
    for _ in 0..count {
        rest &= rest - 1;
    }
    bits & !rest
}
