//! A simulated memory: bytes, and for each whether anybody has written it.
//!
//! Copies carry "never written" along, as padding may be moved about unseen; whoever computes with such a byte breaks a rule.
//! A memory can be used again: only what was written has to be cleared, and constants that nobody touched stay.

use tpuflow_ir::Image;

/// First address of a stretch that was never written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NeverWritten(pub(crate) u64);

#[derive(Clone, Debug)]
pub(crate) struct Memory {
    bytes: Vec<u8>,
    /// One bit per byte, and at least one more.
    written: Vec<u64>,
    /// What its first bytes hold as long as nobody has written there.
    constants: Option<Image>,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Memory {
    pub(crate) fn new(bytes: u64) -> Self {
        Self { bytes: vec![0; bytes as usize], written: vec![0; bytes as usize / 64 + 1], constants: None }
    }

    /// Makes it a memory of `bytes` bytes that holds `constants` from address 0 on, and nothing else.
    pub(crate) fn renew(&mut self, bytes: u64, constants: Option<&Image>) {
        if self.size() != bytes {
            *self = Self::new(bytes);
        }
        let kept = match (&self.constants, constants) {
            (Some(own), Some(constants)) if own.is_same(constants) => own.len(),
            _ => 0,
        };
        // A line of 64 bytes that constants share with others is written again.
        let first = kept / 64;
        let mut line = first;
        while line < self.written.len() {
            let used = self.written[line..].iter().take_while(|&&written| written != 0).count();
            let end = ((line + used) * 64).min(self.bytes.len());
            self.bytes[(line * 64).min(end)..end].fill(0);
            self.written[line..line + used].fill(0);
            line += used;
            line += self.written[line..].iter().take_while(|&&written| written == 0).count();
        }
        if let Some(constants) = constants {
            self.write((first * 64) as u64, &constants[first * 64..]);
        }
        self.constants = constants.cloned();
    }

    /// The bytes at `start`, all of which must have been written. The stretch lies inside the memory.
    pub(crate) fn read(&self, start: u64, length: usize) -> Result<&[u8], NeverWritten> {
        let start = start as usize;
        let (first, whole, last) = words(start, start + length);
        let complete = |word: usize, mask: u64| mask & !self.written[word] == 0;
        if complete(first.0, first.1) && self.written[whole].iter().all(|&w| w == u64::MAX) && complete(last.0, last.1)
        {
            return Ok(&self.bytes[start..start + length]);
        }
        let missing = (start..start + length).find(|&at| !self.is_written(at as u64));
        Err(NeverWritten(missing.unwrap_or(start) as u64))
    }

    /// The bytes at `start`, whether they were written or not. The stretch lies inside the memory.
    pub(crate) fn bytes(&self, start: u64, length: usize) -> &[u8] {
        &self.bytes[start as usize..start as usize + length]
    }

    /// Number of bytes.
    pub(crate) fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Whether a byte inside the memory was written.
    pub(crate) fn is_written(&self, at: u64) -> bool {
        self.written[at as usize / 64] >> (at % 64) & 1 == 1
    }

    /// Writes bytes inside the memory.
    pub(crate) fn write(&mut self, start: u64, bytes: &[u8]) {
        let start = start as usize;
        self.touch(start);
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        let (first, whole, last) = words(start, start + bytes.len());
        self.written[whole].fill(u64::MAX);
        for (word, mask) in [first, last] {
            self.written[word] |= mask;
        }
    }

    /// Something is written at `start`.
    fn touch(&mut self, start: usize) {
        if self.constants.as_ref().is_some_and(|constants| start < constants.len()) {
            self.constants = None;
        }
    }

    /// Copies bytes of another memory with what is known about each; whether any of them was ever written.
    pub(crate) fn copy(&mut self, to: u64, from: &Self, start: u64, length: usize) -> bool {
        if from.read(start, length).is_ok() {
            let start = start as usize;
            self.write(to, &from.bytes[start..start + length]);
            return true;
        }
        let mut any = false;
        self.touch(to as usize);
        for offset in 0..length as u64 {
            let (target, source) = ((to + offset) as usize, (start + offset) as usize);
            let known = from.written[source / 64] >> (source % 64) & 1;
            any |= known == 1;
            self.bytes[target] = from.bytes[source];
            self.written[target / 64] = self.written[target / 64] & !(1 << (target % 64)) | known << (target % 64);
        }
        any
    }
}

/// The bits `start .. end` of the bit map: word and mask of those in the first word, the words that are full, word and mask of
/// those behind them. Masks may be empty; the map has a word more than bits.
fn words(start: usize, end: usize) -> ((usize, u64), std::ops::Range<usize>, (usize, u64)) {
    let (first, last) = (start / 64, end / 64);
    let (from, to) = (u64::MAX << (start % 64), (1 << (end % 64)) - 1);
    if first == last {
        return ((first, from & to), first..first, (last, 0));
    }
    ((first, from), first + 1..last, (last, to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() })]

        /// A memory that was used is like a new one, whatever constants it held and whatever was written over them.
        #[test]
        fn is_as_new(
            uses in proptest::collection::vec(
                (0usize..3, proptest::collection::vec((0u64..300, 0usize..100), 0..4)), 1..5),
        ) {
            let images = [Image::from(vec![1; 130]), Image::from(vec![2; 130]), Image::from(vec![3; 7])];
            let mut memory = Memory::new(400);
            for (image, writes) in uses {
                memory.renew(400, Some(&images[image]));
                let mut new = Memory::new(400);
                new.write(0, &images[image]);
                prop_assert_eq!((&memory.bytes, &memory.written), (&new.bytes, &new.written));
                for (start, length) in writes {
                    memory.write(start, &vec![9; length]);
                }
            }
        }

        /// Bits of the map, one by one.
        #[test]
        fn words_cover_bits(start in 0usize..200, length in 0usize..200) {
            let (first, whole, last) = words(start, start + length);
            let mut map = [0u64; 7];
            map[whole].fill(u64::MAX);
            map[first.0] |= first.1;
            map[last.0] |= last.1;
            for at in 0..448 {
                prop_assert_eq!(map[at / 64] >> (at % 64) & 1 == 1, (start..start + length).contains(&at), "bit {}", at);
            }
        }

        #[test]
        fn remembers_what_was_written(
            writes in proptest::collection::vec((0u64..300, 0usize..100), 0..6), at in 0u64..300, length in 1usize..100,
            to in 0u64..300,
        ) {
            let mut memory = Memory::new(400);
            let mut slow = [None; 400];
            for (i, (start, length)) in writes.into_iter().enumerate() {
                memory.write(start, &vec![i as u8 + 1; length]);
                slow[start as usize..][..length].fill(Some(i as u8 + 1));
            }
            let expected = &slow[at as usize..][..length];
            let missing = expected.iter().position(Option::is_none).map(|n| NeverWritten(at + n as u64));
            let bytes: Vec<u8> = expected.iter().map(|b| b.unwrap_or(0)).collect();
            prop_assert_eq!(memory.read(at, length), missing.map_or(Ok(&bytes[..]), Err));
            let mut used = memory.clone();
            used.renew(400, None);
            prop_assert_eq!((&used.bytes, &used.written), (&vec![0; 400], &vec![0; 7]));
            let mut other = Memory::new(400);
            other.write(0, &[9; 400]);
            prop_assert_eq!(other.copy(to, &memory, at, length), expected.iter().any(Option::is_some));
            for (n, byte) in expected.iter().enumerate() {
                prop_assert_eq!(other.read(to + n as u64, 1).ok().map(<[u8]>::to_vec), byte.map(|b| vec![b]));
            }
        }
    }
}
