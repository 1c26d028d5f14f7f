//! Order of whole stretches. Waits order what instructions touch as [`tpuflow_ir::access`] defines it: whole words, whole rows
//! of a view, everything between the first and the last byte of a transfer. That is more than the bytes that carry values, whose
//! order the memories prove one by one.

use std::collections::BTreeMap;

use tpuflow_ir::Space;
use tpuflow_ir::access::Stretch;

use crate::contents::{Actor, Tokens};

/// Bytes up to `end`: of each unit the last instruction that wrote or read them.
#[derive(Clone, Copy, Default)]
struct AccessSet {
    end: u64,
    writers: Tokens,
    readers: Tokens,
}

/// Who touched which bytes last. Older accesses need not be kept: the last writer could not begin before they were over.
#[derive(Clone, Default)]
pub(crate) struct Stretches {
    spaces: BTreeMap<Space, BTreeMap<u64, AccessSet>>,
    /// Stretches that were read or replaced.
    access_count: u64,
}

impl Stretches {
    /// The tokens that prove all writers of a stretch finished; `reader` is remembered.
    pub(crate) fn read(&mut self, stretch: &Stretch, reader: Actor) -> Tokens {
        let memory = self.spaces.entry(stretch.space).or_default();
        split(memory, stretch.start);
        split(memory, stretch.end);
        fill(memory, stretch);
        let mut needed = Tokens::default();
        for accesses in memory.range_mut(stretch.start..stretch.end).map(|(_, touched)| touched) {
            self.access_count += 1;
            join(&mut needed, &accesses.writers);
            accesses.readers[reader.unit] = reader.number;
        }
        needed
    }

    /// The tokens that prove all earlier readers and writers of a stretch finished, which `writer` now owns.
    pub(crate) fn write(&mut self, stretch: &Stretch, writer: Actor) -> Tokens {
        let memory = self.spaces.entry(stretch.space).or_default();
        split(memory, stretch.start);
        split(memory, stretch.end);
        let mut needed = Tokens::default();
        let covered: Vec<u64> = memory.range(stretch.start..stretch.end).map(|(&start, _)| start).collect();
        self.access_count += covered.len() as u64;
        for accesses in covered.iter().filter_map(|start| memory.remove(start)) {
            join(&mut needed, &accesses.writers);
            join(&mut needed, &accesses.readers);
        }
        let mut own = AccessSet { end: stretch.end, ..AccessSet::default() };
        own.writers[writer.unit] = writer.number;
        memory.insert(stretch.start, own);
        needed
    }

    /// All stretches: memory, first byte, end, last writers and readers.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Space, u64, u64, [Tokens; 2])> {
        self.spaces.iter().flat_map(|(&space, memory)| {
            memory.iter().map(move |(&start, set)| (space, start, set.end, [set.writers, set.readers]))
        })
    }

    /// How many stretches were read or replaced until now.
    pub(crate) fn access_count(&self) -> u64 {
        self.access_count
    }
}

fn join(needed: &mut Tokens, others: &Tokens) {
    for (needed, other) in needed.iter_mut().zip(others) {
        *needed = (*needed).max(*other);
    }
}

/// Makes a border at `at`.
fn split(memory: &mut BTreeMap<u64, AccessSet>, at: u64) {
    if let Some((_, accesses)) = memory.range_mut(..at).next_back()
        && accesses.end > at
    {
        let tail = *accesses;
        accesses.end = at;
        memory.insert(at, tail);
    }
}

/// Puts bytes nobody has touched into the gaps of a stretch between borders.
fn fill(memory: &mut BTreeMap<u64, AccessSet>, stretch: &Stretch) {
    let mut gaps = Vec::new();
    let mut at = stretch.start;
    for (&start, accesses) in memory.range(stretch.start..stretch.end) {
        if start > at {
            gaps.push((at, start));
        }
        at = accesses.end;
    }
    if at < stretch.end {
        gaps.push((at, stretch.end));
    }
    memory.extend(gaps.into_iter().map(|(start, end)| (start, AccessSet { end, ..AccessSet::default() })));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// As a memory that keeps them byte by byte.
        #[test]
        fn is_that_of_every_byte(accesses in prop::collection::vec((any::<bool>(), 0u64..40, 1u64..20, 0usize..5), 1..40)) {
            let mut stretches = Stretches::default();
            let mut bytes = [(Tokens::default(), Tokens::default()); 64];
            for (n, (writes, start, length, unit)) in (1u32..).zip(accesses) {
                let (actor, stretch) = (Actor { unit, number: n }, Stretch { space: Space::Cache, start, end: start + length });
                let mut needed = Tokens::default();
                for (writers, readers) in &mut bytes[start as usize..(start + length) as usize] {
                    join(&mut needed, writers);
                    if writes {
                        join(&mut needed, readers);
                        (*writers, *readers) = (Tokens::default(), Tokens::default());
                        writers[unit] = n;
                    } else {
                        readers[unit] = n;
                    }
                }
                let found = if writes { stretches.write(&stretch, actor) } else { stretches.read(&stretch, actor) };
                prop_assert_eq!(found, needed);
            }
        }
    }
}
