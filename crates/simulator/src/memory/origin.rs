//! Where a line of a memory was copied from.

use std::num::NonZeroU64;

/// A line of the constants of one of several memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Origin(NonZeroU64);

impl Origin {
    /// Bits of the number of a line; memories are numbered above them, from 1 on.
    const LINE_BITS: u32 = 40;
    /// Numbers from a memory to the next.
    const MEMORY: NonZeroU64 = NonZeroU64::new(1 << Self::LINE_BITS).expect("not 0");

    /// The first line of the constants of a memory.
    pub(super) fn first(memory: usize) -> Self {
        Self(NonZeroU64::MIN.saturating_add(memory as u64).saturating_mul(Self::MEMORY))
    }

    /// Number of the memory.
    pub(crate) fn memory(self) -> usize {
        (self.0.get() >> Self::LINE_BITS) as usize - 1
    }

    /// Number of the line among those of its memory.
    pub(crate) fn line(self) -> usize {
        (self.0.get() & ((1 << Self::LINE_BITS) - 1)) as usize
    }

    /// The line so many behind it.
    pub(super) fn plus(self, lines: usize) -> Self {
        Self(self.0.saturating_add(lines as u64))
    }

    /// Whether lines are this one and those that follow it, all of one memory.
    pub(super) fn begins(self, lines: &[Option<Self>]) -> bool {
        let expected = self.0.get()..;
        let number = |line: &Option<Self>| line.map_or(0, |line| line.0.get());
        expected.zip(lines).fold(0, |other, (expected, line)| other | (expected ^ number(line))) == 0
    }
}
