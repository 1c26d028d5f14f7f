//! A simulated memory: bytes, and for each whether anybody has written it.
//!
//! Copies carry "never written" along, as padding may be moved about unseen; whoever computes with such a byte breaks a rule.
//! A memory can be used again: what was written counts as never written then, and constants that nobody touched stay.
//!
//! A memory may also keep in mind which lines of 64 bytes are copies of constants, and of which: what was made of them once need
//! not be compared with them again. Then such copies can be put off, too: most are of weights, which nobody looks at once they
//! are packed. A line that was put off counts as written; whoever wants its bytes has it [settled](Memory::settle) first, and a
//! line of which something else is written is settled on its own.

mod origin;

use std::ops::Range;

use tpuflow_ir::Image;

pub(crate) use origin::Origin;

/// First address of a stretch that was never written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NeverWritten(pub(crate) u64);

#[derive(Clone, Debug)]
pub(crate) struct Memory {
    /// From `base` on, so that lines are cache lines of the host.
    bytes: Vec<u8>,
    base: usize,
    /// One bit per byte, and at least one more; none of lines that were put off.
    written: Vec<u64>,
    /// The value of its first bytes as long as nobody has written there.
    constants: Option<Image>,
    /// Per line of 64 bytes, which line of constants it is a copy of. Empty if nobody wants to know.
    origins: Vec<Option<Origin>>,
    /// The first line of its own constants, if they are to be known.
    numbered: Option<Origin>,
    /// One bit per line whose copy was put off, and at least one more; empty if none ever is.
    waiting: Vec<u64>,
    /// By memory, the constants that lines which were put off are copies of.
    sources: Vec<Option<Image>>,
    /// A stretch nobody has written to since this was asked; empty: somebody has.
    watched: Range<u64>,
}

/// Bytes of a line.
const LINE: usize = 64;

impl Default for Memory {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Memory {
    pub(crate) fn new(bytes: u64) -> Self {
        let (bytes, written) = (vec![0u8; bytes as usize + LINE - 1], vec![0; bytes as usize / LINE + 1]);
        let base = bytes.as_ptr().align_offset(LINE).min(LINE - 1);
        let (origins, waiting, sources) = (Vec::new(), Vec::new(), Vec::new());
        Self { bytes, base, written, constants: None, origins, numbered: None, waiting, sources, watched: 0..0 }
    }

    /// Puts off copies of constants from now on, or makes them at once.
    pub(crate) fn enable_deferred_copies(&mut self, off: bool) {
        self.copy_deferred(0, self.size() as usize);
        self.waiting.resize(if off { self.written.len() / 64 + 1 } else { 0 }, 0);
    }

    /// Bytes as they lie, whoever wrote them.
    fn bytes_at(&self, start: usize, length: usize) -> &[u8] {
        &self.bytes[self.base + start..][..length]
    }

    fn bytes_at_mut(&mut self, start: usize, length: usize) -> &mut [u8] {
        &mut self.bytes[self.base + start..][..length]
    }

    /// The line of constants a line that was put off is a copy of.
    fn deferred_source(&self, line: usize) -> Option<&[u8]> {
        if self.waiting.get(line / 64).is_none_or(|lines| lines >> (line % 64) & 1 == 0) {
            return None;
        }
        let origin = self.origins[line]?;
        let source = self.sources[origin.memory()].as_ref().expect("lines put off have a source");
        Some(&source[origin.line() * LINE..][..LINE])
    }

    /// Makes the copy of a line, if it was put off.
    fn copy_deferred_line(&mut self, line: usize) {
        let Some(bytes) = self.deferred_source(line) else { return };
        let bytes: [u8; LINE] = bytes.try_into().expect("a line");
        self.bytes_at_mut(line * LINE, LINE).copy_from_slice(&bytes);
        self.written[line] = u64::MAX;
        self.waiting[line / 64] &= !(1 << (line % 64));
    }

    /// Makes the copies of a stretch that were put off.
    pub(crate) fn copy_deferred(&mut self, start: u64, length: usize) {
        let (first, end) = (start as usize / LINE, (start as usize + length).div_ceil(LINE));
        if self.waiting.is_empty() {
            return;
        }
        for group in first / 64..end.div_ceil(64) {
            let mut lines = self.waiting[group];
            while lines != 0 {
                let line = group * 64 + lines.trailing_zeros() as usize;
                if (first..end).contains(&line) {
                    self.copy_deferred_line(line);
                }
                lines &= lines - 1;
            }
        }
    }

    /// A byte that was written.
    fn byte(&self, at: usize) -> Option<u8> {
        if self.written[at / LINE] >> (at % LINE) & 1 == 1 {
            return Some(self.bytes[self.base + at]);
        }
        self.deferred_source(at / LINE).map(|line| line[at % LINE])
    }

    /// Keeps in mind from now on what its lines are copies of.
    pub(crate) fn track_origins(&mut self) {
        self.origins.resize(self.written.len(), None);
    }

    /// Lines of its constants get a number of their own among those of `memory`, counted from 0, and other memories.
    pub(crate) fn number(&mut self, memory: usize) {
        self.numbered = Some(Origin::first(memory));
    }

    /// The first line of the constants that a stretch from the beginning of a line on is a copy of; the same lines of the same
    /// constants are the same bytes. `None`: of none, or of several places of them.
    pub(crate) fn origin(&self, start: u64, length: usize) -> Option<Origin> {
        let (first, end) = (start as usize / 64, (start as usize + length).div_ceil(64));
        let lines = self.origins.get(first..end).filter(|lines| start.is_multiple_of(64) && !lines.is_empty())?;
        lines[0].filter(|first| first.begins(lines))
    }

    /// The value of its first bytes, if nobody has written there.
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
        // What was put off need not be made any more.
        for group in 0..self.waiting.len() {
            let mut lines = std::mem::take(&mut self.waiting[group]);
            while lines != 0 {
                self.written[group * 64 + lines.trailing_zeros() as usize] = u64::MAX;
                lines &= lines - 1;
            }
        }
        self.sources.clear();
        // A line of 64 bytes that constants share with others is written again.
        let first = kept / 64;
        let mut line = first;
        while line < self.written.len() {
            let used = self.written[line..].iter().take_while(|&&written| written != 0).count();
            self.written[line..line + used].fill(0);
            if !self.origins.is_empty() {
                self.origins[line..line + used].fill(None);
            }
            line += used;
            line += self.written[line..].iter().take_while(|&&written| written == 0).count();
        }
        if let Some(constants) = constants {
            self.write((first * 64) as u64, &constants[first * 64..]);
        }
        self.constants = constants.cloned();
    }

    /// The bytes at `start`, all of which must have been written, and settled. The stretch lies inside the memory.
    pub(crate) fn read(&self, start: u64, length: usize) -> Result<&[u8], NeverWritten> {
        let start = start as usize;
        let (first, whole, last) = bitmap_words(start, start + length);
        let complete = |word: usize, mask: u64| mask & !self.written[word] == 0;
        let all = |lines: &[u64]| lines.iter().fold(u64::MAX, |all, line| all & line) == u64::MAX;
        if complete(first.0, first.1) && all(&self.written[whole]) && complete(last.0, last.1) {
            return Ok(self.bytes_at(start, length));
        }
        let missing = (start..start + length).find(|&at| !self.is_written(at as u64));
        Err(NeverWritten(missing.unwrap_or(start) as u64))
    }

    /// The bytes from `start` to the end of the last of `count` pieces of `length` bytes, `pitch` bytes from one to the next; all
    /// bytes of the pieces must have been written, and settled. They lie inside the memory.
    pub(crate) fn read_pieces(
        &self,
        start: u64,
        length: usize,
        pitch: usize,
        count: usize,
    ) -> Result<&[u8], NeverWritten> {
        let starts = (start as usize..).step_by(pitch.max(1)).take(count);
        for start in starts {
            let (first, whole, last) = bitmap_words(start, start + length);
            let missing = |(word, mask): (usize, u64)| mask & !self.written[word];
            let within = self.written[whole].iter().fold(0, |missing, word| missing | !word);
            if missing(first) | within | missing(last) != 0 {
                self.read(start as u64, length)?;
            }
        }
        Ok(self.bytes_at(start as usize, count.saturating_sub(1) * pitch + length))
    }

    /// Writes pieces of `length` bytes, `pitch` bytes from one to the next, inside the memory.
    pub(crate) fn write_pieces(&mut self, start: u64, length: usize, pitch: usize, bytes: &[u8]) {
        let (start, count) = (start as usize, bytes.len() / length);
        let span = count.saturating_sub(1) * pitch + length;
        // What lies between them stays, but what it is a copy of is forgotten.
        self.copy_deferred(start as u64, span);
        self.note_write(start, span);
        let own = &mut self.bytes[self.base + start..][..span];
        for (piece, own) in bytes.chunks_exact(length).zip(own.chunks_mut(pitch)) {
            copy_short(piece, &mut own[..length]);
        }
        for start in (start..).step_by(pitch).take(count) {
            let (first, whole, last) = bitmap_words(start, start + length);
            self.written[whole].fill(u64::MAX);
            for (word, mask) in [first, last] {
                self.written[word] |= mask;
            }
        }
    }

    /// The bytes at `start`, 0 where none was written. The stretch lies inside the memory.
    pub(crate) fn bytes(&self, start: u64, length: usize) -> Vec<u8> {
        if let Ok(written) = self.read(start, length) {
            return written.to_vec();
        }
        (start as usize..start as usize + length).map(|at| self.byte(at).unwrap_or(0)).collect()
    }

    /// Watches a stretch from now on, and no other.
    pub(crate) fn watch(&mut self, stretch: Range<u64>) {
        self.watched = stretch;
    }

    /// Whether this stretch, which is not empty, is watched and nobody has written to it since.
    pub(crate) fn is_unchanged(&self, stretch: &Range<u64>) -> bool {
        self.watched == *stretch
    }

    /// Number of bytes.
    pub(crate) fn size(&self) -> u64 {
        (self.bytes.len() + 1 - LINE) as u64
    }

    /// Whether a byte inside the memory was written.
    pub(crate) fn is_written(&self, at: u64) -> bool {
        self.byte(at as usize).is_some()
    }

    /// Writes bytes inside the memory.
    pub(crate) fn write(&mut self, start: u64, bytes: &[u8]) {
        let start = start as usize;
        self.note_write(start, bytes.len());
        self.bytes_at_mut(start, bytes.len()).copy_from_slice(bytes);
        let (first, whole, last) = bitmap_words(start, start + bytes.len());
        self.written[whole].fill(u64::MAX);
        for (word, mask) in [first, last] {
            self.written[word] |= mask;
        }
    }

    /// Something is written at `start`.
    fn note_write(&mut self, start: usize, length: usize) {
        if (start as u64) < self.watched.end && self.watched.start < (start + length) as u64 {
            self.watched = 0..0;
        }
        if self.constants.as_ref().is_some_and(|constants| start < constants.len()) {
            self.constants = None;
        }
        let end = start + length;
        let lines = start / LINE..end.div_ceil(LINE);
        if !self.waiting.is_empty() {
            // Of these something is left.
            for part in [start, end].into_iter().filter(|part| !part.is_multiple_of(LINE)) {
                self.copy_deferred_line(part / LINE);
            }
            mark(&mut self.waiting, lines.clone(), false);
        }
        if !self.origins.is_empty() {
            self.origins[lines].fill(None);
        }
    }

    /// Puts off the copy of the whole lines of a stretch of another memory's constants; whether that can be done.
    fn defer_copy(&mut self, to: usize, from: &Self, start: usize, length: usize) -> bool {
        let lines = to.div_ceil(LINE)..(to + length) / LINE;
        let known = from.is_constant(start, length) && to % LINE == start % LINE;
        let Some(numbered) = from.numbered.filter(|_| known) else { return false };
        if self.waiting.is_empty() || self.origins.is_empty() || lines.is_empty() {
            return false;
        }
        let (first, end) = (lines.start * LINE, lines.end * LINE);
        self.write(to as u64, from.bytes_at(start, first - to));
        self.write(end as u64, from.bytes_at(start + end - to, to + length - end));
        let source = numbered.memory();
        if self.sources.len() <= source {
            self.sources.resize(source + 1, None);
        }
        let same = |own: &Image| from.constants.as_ref().is_some_and(|constants| own.is_same(constants));
        if !self.sources[source].as_ref().is_some_and(same) {
            self.copy_deferred(0, self.size() as usize);
            self.sources[source].clone_from(&from.constants);
        }
        self.note_write(first, end - first);
        self.written[lines.clone()].fill(0);
        mark(&mut self.waiting, lines.clone(), true);
        let origin = numbered.plus((start + first - to) / LINE);
        (0..).zip(&mut self.origins[lines]).for_each(|(number, line)| *line = Some(origin.plus(number)));
        true
    }

    /// Whole lines of a stretch are copies of another memory's constants, if they are.
    fn record_origin(&mut self, to: usize, from: &Self, start: usize, length: usize) {
        let Some(numbered) = from.numbered else { return };
        if self.origins.is_empty() || !from.is_constant(start, length) || to % 64 != start % 64 {
            return;
        }
        let (first, end) = (to.div_ceil(64), (to + length) / 64);
        let lines = self.origins.get_mut(first..end).unwrap_or_default();
        let origin = numbered.plus(start.div_ceil(64));
        (0..).zip(lines).for_each(|(number, line)| *line = Some(origin.plus(number)));
    }

    /// Copies bytes of another memory with what is known about each; whether any of them was ever written.
    pub(crate) fn copy(&mut self, to: u64, from: &Self, start: u64, length: usize) -> bool {
        if self.defer_copy(to as usize, from, start as usize, length) {
            return true;
        }
        if from.is_constant(start as usize, length) || from.read(start, length).is_ok() {
            let start = start as usize;
            self.write(to, from.bytes_at(start, length));
            self.record_origin(to as usize, from, start, length);
            return true;
        }
        let mut any = false;
        self.note_write(to as usize, length);
        for offset in 0..length as u64 {
            let (target, byte) = ((to + offset) as usize, from.byte((start + offset) as usize));
            any |= byte.is_some();
            self.bytes_at_mut(target, 1)[0] = byte.unwrap_or(0);
            let known = u64::from(byte.is_some());
            self.written[target / 64] = self.written[target / 64] & !(1 << (target % 64)) | known << (target % 64);
        }
        any
    }
}

/// Copies a few bytes: without a call where they are a multiple of eight.
pub(crate) fn copy_short<T: Copy>(from: &[T], to: &mut [T]) {
    if from.len() > 256 || !from.len().is_multiple_of(8) {
        return to.copy_from_slice(from);
    }
    for (from, to) in from.as_chunks::<8>().0.iter().zip(to.as_chunks_mut::<8>().0) {
        *to = *from;
    }
}

/// Sets the bits of a range of a map as [`words`] wants it, or clears them.
fn mark(map: &mut [u64], bits: Range<usize>, set: bool) {
    let (first, whole, last) = bitmap_words(bits.start, bits.end);
    map[whole].fill(if set { u64::MAX } else { 0 });
    for (word, mask) in [first, last] {
        map[word] = if set { map[word] | mask } else { map[word] & !mask };
    }
}

/// The bits `start .. end` of the bit map: word and mask of those in the first word, the words that are full, word and mask of
/// those behind them. Masks may be empty; the map has a word more than bits.
fn bitmap_words(start: usize, end: usize) -> ((usize, u64), Range<usize>, (usize, u64)) {
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

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

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
            memory.track_origins();
            for (to, from, length, copied, odd) in steps {
                let (to, from) = (64 * to + odd, (64 * from + odd).min(400));
                if copied {
                    let length = length.min(500 - from as usize);
                    memory.copy(to, &ddr, from, length);
                    if length >= 64 && odd == 0 {
                        prop_assert_eq!(memory.origin(to, length / 64 * 64), Some(Origin::first(2).plus(from as usize / 64)));
                    }
                } else {
                    memory.write(to, &vec![0; length]);
                }
            }
            let (start, length) = (64 * at, 64 * lines as usize);
            if let Some(origin) = memory.origin(start, length.min(600 - start as usize)) {
                prop_assert_eq!(origin.memory(), 2);
                let from = origin.line() * 64;
                let length = length.min(500 - from);
                prop_assert_eq!(memory.read(start, length), Ok(&image[from..from + length]));
            }
            memory.renew(600, None);
            prop_assert_eq!(memory.origin(start, 64), None);
        }

        /// A memory that puts copies off is like one that makes them, whoever reads what and whatever is written or copied over
        /// it meanwhile.
        #[test]
        fn copies_put_off_are_as_made(
            renewed in any::<bool>(), overwritten in 0u64..500,
            steps in proptest::collection::vec((0u8..6, 0u64..9, 0u64..5, 0u64..70, 0u64..3, 0usize..300), 1..30),
        ) {
            let image = Image::from((0..700u32).map(|n| (n * 7 % 251) as u8).collect::<Vec<_>>());
            let mut ddr = Memory::new(900);
            ddr.renew(900, Some(&image));
            ddr.number(1);
            let (mut lazy, mut eager) = (Memory::new(640), Memory::new(640));
            for memory in [&mut lazy, &mut eager] {
                memory.track_origins();
            }
            lazy.enable_deferred_copies(true);
            if renewed {
                lazy.copy(64, &ddr, 0, 500);
                lazy.renew(640, None);
            }
            for (n, (kind, to, from, odd, skew, length)) in steps.into_iter().enumerate() {
                let to = 64 * to + odd;
                let length = length.min(640 - to as usize);
                match kind {
                    0..=2 => {
                        let from = (64 * from + odd + if skew == 2 { 1 } else { 0 }).min(900 - length as u64);
                        let known = lazy.copy(to, &ddr, from, length);
                        prop_assert_eq!(known, eager.copy(to, &ddr, from, length));
                    }
                    3 => {
                        // In pieces of the size of the skew, but the last one.
                        let piece = 64 + skew as usize;
                        if skew > 0 && length >= piece {
                            let (count, bytes) = (length / piece, vec![n as u8; length]);
                            let own = piece - 13;
                            lazy.write_pieces(to, own, piece, &bytes[..count * own]);
                            for at in (to..).step_by(piece).take(count) {
                                eager.write(at, &bytes[..own]);
                            }
                        } else {
                            lazy.write(to, &vec![n as u8; length]);
                            eager.write(to, &vec![n as u8; length]);
                        }
                    }
                    4 => {
                        lazy.copy_deferred(to, length);
                        prop_assert_eq!(lazy.read(to, length), eager.read(to, length));
                        let (piece, own) = (7 + skew as usize, 7);
                        let count = length / piece;
                        let starts = || (to..).step_by(piece).take(count);
                        let all = starts().try_for_each(|at| eager.read(at, own).map(|_| ()));
                        let found = lazy.read_pieces(to, own, piece, count).map(|span| (0..count).map(|i| span[i * piece..][..own].to_vec()).collect::<Vec<_>>());
                        let expected = all.map(|()| starts().map(|at| eager.bytes(at, own)).collect::<Vec<_>>());
                        if count > 0 {
                            prop_assert_eq!(found, expected);
                        }
                    }
                    _ => {
                        // What others do to its source changes nothing any more.
                        ddr.write(overwritten, &vec![n as u8; length]);
                    }
                }
                let mut other = [Memory::new(700), Memory::new(700)];
                for (other, memory) in other.iter_mut().zip([&lazy, &eager]) {
                    other.copy(5, memory, to, length);
                }
                prop_assert_eq!((other[0].bytes(0, 700), &other[0].written), (other[1].bytes(0, 700), &other[1].written));
                prop_assert_eq!(lazy.bytes(0, 640), eager.bytes(0, 640));
                for at in 0..640 {
                    prop_assert_eq!(lazy.is_written(at), eager.is_written(at), "byte {}", at);
                }
                for line in 0..10 {
                    let known = lazy.origin(64 * line, 64);
                    prop_assert!(known.is_none() || known == eager.origin(64 * line, 64));
                }
            }
            lazy.copy_deferred(0, 640);
            prop_assert_eq!((lazy.bytes(0, 640), &lazy.written), (eager.bytes(0, 640), &eager.written));
            for memory in [&mut lazy, &mut eager] {
                memory.renew(640, None);
            }
            prop_assert_eq!((lazy.bytes(0, 640), &lazy.written), (eager.bytes(0, 640), &eager.written));
        }

        /// Bits of the map, one by one.
        #[test]
        fn words_cover_bits(start in 0usize..200, length in 0usize..200) {
            let (first, whole, last) = bitmap_words(start, start + length);
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
                prop_assert_eq!(memory.is_unchanged(&(start..start + length)), untouched);
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
