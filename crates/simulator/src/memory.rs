//! A simulated memory: bytes, and for each whether anybody has written it.
//!
//! Copies carry "never written" along, as padding may be moved about unseen; whoever computes with such a byte breaks a rule.
//! A memory can be used again: what was written counts as never written then, and constants that nobody touched stay.
//!
//! A memory may also keep in mind which lines of 64 bytes are copies of constants, and of which: what was made of them once need
//! not be compared with them again.

use std::ops::Range;

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
    /// Per line of 64 bytes, which line of constants it is a copy of; 0: of none. Empty if nobody wants to know.
    origins: Vec<u64>,
    /// What the lines of its own constants are numbered from on; 0: not at all.
    numbered: u64,
    /// A stretch nobody has written to since this was asked; empty: somebody has.
    watched: Range<u64>,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Memory {
    pub(crate) fn new(bytes: u64) -> Self {
        let (bytes, written) = (vec![0; bytes as usize], vec![0; bytes as usize / 64 + 1]);
        Self { bytes, written, constants: None, origins: Vec::new(), numbered: 0, watched: 0..0 }
    }

    /// Keeps in mind from now on what its lines are copies of.
    pub(crate) fn keep_origins(&mut self) {
        self.origins.resize(self.written.len(), 0);
    }

    /// Lines of its constants get a number of their own among those of `memory`, counted from 0, and other memories.
    pub(crate) fn number(&mut self, memory: usize) {
        self.numbered = (memory as u64 + 1) << 40;
    }

    /// Which memory's constants a stretch from the beginning of a line on is a copy of, and their first line's number; the same
    /// numbers of the same constants are the same bytes. `None`: of none, or of several places of them.
    pub(crate) fn origin(&self, start: u64, length: usize) -> Option<(usize, u64)> {
        let (first, end) = (start as usize / 64, (start as usize + length).div_ceil(64));
        let lines = self.origins.get(first..end).filter(|lines| start.is_multiple_of(64) && !lines.is_empty())?;
        let number = lines[0];
        let other = (number..).zip(lines).fold(0, |other, (number, line)| other | (number ^ line));
        (number != 0 && other == 0).then(|| ((number >> 40) as usize - 1, number))
    }

    /// What its first bytes hold, if nobody has written there.
    pub(crate) fn constants(&self) -> Option<&Image> {
        self.constants.as_ref()
    }

    /// Whether a stretch lies within constants nobody has written to.
    fn is_constant(&self, start: usize, length: usize) -> bool {
        self.constants.as_ref().is_some_and(|constants| start + length <= constants.len())
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
        self.watched = 0..0;
        // A line of 64 bytes that constants share with others is written again.
        let first = kept / 64;
        let mut line = first;
        while line < self.written.len() {
            let used = self.written[line..].iter().take_while(|&&written| written != 0).count();
            self.written[line..line + used].fill(0);
            if !self.origins.is_empty() {
                self.origins[line..line + used].fill(0);
            }
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
        let all = |lines: &[u64]| lines.iter().fold(u64::MAX, |all, line| all & line) == u64::MAX;
        if complete(first.0, first.1) && all(&self.written[whole]) && complete(last.0, last.1) {
            return Ok(&self.bytes[start..start + length]);
        }
        let missing = (start..start + length).find(|&at| !self.is_written(at as u64));
        Err(NeverWritten(missing.unwrap_or(start) as u64))
    }

    /// The bytes at `start`, 0 where none was written. The stretch lies inside the memory.
    pub(crate) fn bytes(&self, start: u64, length: usize) -> Vec<u8> {
        if let Ok(written) = self.read(start, length) {
            return written.to_vec();
        }
        let own = (start..).zip(&self.bytes[start as usize..][..length]);
        own.map(|(at, &byte)| if self.is_written(at) { byte } else { 0 }).collect()
    }

    /// Watches a stretch from now on, and no other.
    pub(crate) fn watch(&mut self, stretch: Range<u64>) {
        self.watched = stretch;
    }

    /// Whether this stretch, which is not empty, is watched and nobody has written to it since.
    pub(crate) fn is_untouched(&self, stretch: &Range<u64>) -> bool {
        self.watched == *stretch
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
        self.touch(start, bytes.len());
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        let (first, whole, last) = words(start, start + bytes.len());
        self.written[whole].fill(u64::MAX);
        for (word, mask) in [first, last] {
            self.written[word] |= mask;
        }
    }

    /// Something is written at `start`.
    fn touch(&mut self, start: usize, length: usize) {
        if (start as u64) < self.watched.end && self.watched.start < (start + length) as u64 {
            self.watched = 0..0;
        }
        if self.constants.as_ref().is_some_and(|constants| start < constants.len()) {
            self.constants = None;
        }
        if !self.origins.is_empty() {
            self.origins[start / 64..(start + length).div_ceil(64)].fill(0);
        }
    }

    /// Whole lines of a stretch are copies of another memory's constants, if they are.
    fn stem(&mut self, to: usize, from: &Self, start: usize, length: usize) {
        if self.origins.is_empty() || from.numbered == 0 || !from.is_constant(start, length) || to % 64 != start % 64 {
            return;
        }
        let (first, end) = (to.div_ceil(64), (to + length) / 64);
        let lines = self.origins.get_mut(first..end).unwrap_or_default();
        (from.numbered + start.div_ceil(64) as u64..).zip(lines).for_each(|(number, line)| *line = number);
    }

    /// Copies bytes of another memory with what is known about each; whether any of them was ever written.
    pub(crate) fn copy(&mut self, to: u64, from: &Self, start: u64, length: usize) -> bool {
        if from.is_constant(start as usize, length) || from.read(start, length).is_ok() {
            let start = start as usize;
            self.write(to, &from.bytes[start..start + length]);
            self.stem(to as usize, from, start, length);
            return true;
        }
        let mut any = false;
        self.touch(to as usize, length);
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
fn words(start: usize, end: usize) -> ((usize, u64), Range<usize>, (usize, u64)) {
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
                prop_assert_eq!((memory.bytes(0, 400), &memory.written), (new.bytes(0, 400), &new.written));
                for (start, length) in writes {
                    memory.write(start, &vec![9; length]);
                }
            }
        }

        /// A stretch that is said to be a copy of constants is one, and one that was copied in one piece is said to be.
        #[test]
        fn copies_of_constants_are_known(
            steps in proptest::collection::vec((0u64..6, 0u64..6, 1usize..200, any::<bool>(), 0u64..3), 1..12),
            [at, lines] in [0u64..6, 1u64..4],
        ) {
            let image = Image::from((0..500u32).map(|n| (n * 7 % 251) as u8).collect::<Vec<_>>());
            let mut ddr = Memory::new(600);
            ddr.renew(600, Some(&image));
            ddr.number(2);
            let mut memory = Memory::new(600);
            memory.keep_origins();
            for (to, from, length, copied, odd) in steps {
                let (to, from) = (64 * to + odd, (64 * from + odd).min(400));
                if copied {
                    let length = length.min(500 - from as usize);
                    memory.copy(to, &ddr, from, length);
                    if length >= 64 && odd == 0 {
                        prop_assert_eq!(memory.origin(to, length / 64 * 64), Some((2, (3 << 40) + from / 64)));
                    }
                } else {
                    memory.write(to, &vec![0; length]);
                }
            }
            let (start, length) = (64 * at, 64 * lines as usize);
            if let Some((space, number)) = memory.origin(start, length.min(600 - start as usize)) {
                prop_assert_eq!(space, 2);
                let from = (number & 0xffff) as usize * 64;
                let length = length.min(500 - from);
                prop_assert_eq!(memory.read(start, length), Ok(&image[from..from + length]));
            }
            memory.renew(600, None);
            prop_assert_eq!(memory.origin(start, 64), None);
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

        /// A stretch is untouched until something is written or copied there.
        #[test]
        fn watches(
            [start, length] in [0u64..300, 1u64..90], writes in proptest::collection::vec((0u64..300, 1usize..90, any::<bool>()), 0..4),
        ) {
            let (mut memory, mut other) = (Memory::new(400), Memory::new(400));
            other.write(0, &[1]);
            memory.watch(start..start + length);
            let mut untouched = true;
            for (at, count, copied) in writes {
                if copied { memory.copy(at, &other, 0, count); } else { memory.write(at, &vec![1; count]); }
                untouched &= at >= start + length || at + count as u64 <= start;
                prop_assert_eq!(memory.is_untouched(&(start..start + length)), untouched);
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
            prop_assert_eq!(memory.bytes(at, length), &bytes[..]);
            let whole = slow.iter().map(|b| b.unwrap_or(0)).collect::<Vec<u8>>();
            prop_assert_eq!(memory.bytes(0, 400), &whole[..]);
            let mut used = memory.clone();
            used.renew(400, None);
            prop_assert_eq!((used.bytes(0, 400), &used.written), (vec![0; 400], &vec![0; 7]));
            let mut other = Memory::new(400);
            other.write(0, &[9; 400]);
            prop_assert_eq!(other.copy(to, &memory, at, length), expected.iter().any(Option::is_some));
            for (n, byte) in expected.iter().enumerate() {
                prop_assert_eq!(other.read(to + n as u64, 1).ok().map(<[u8]>::to_vec), byte.map(|b| vec![b]));
            }
        }
    }
}
