//! Which instructions must have finished before another one may start, derived from the bytes they touch.
//!
//! The program's list is a legal serial order. An instruction may start its work once every *earlier* instruction that
//! conflicts with it has finished: one that writes what it reads (on any unit), or reads or writes what it writes (on another
//! unit; on the same unit the order of the queue suffices). This covers all pairs: of two conflicting instructions one is the
//! earlier. As units finish in order, one number per unit says it all: how many of its instructions must have finished.
//!
//! A sweep over the list keeps, for every stretch of every memory, the last writer and the readers since then. Older ones need
//! not be kept: the last writer could not start (or, on their own unit, not finish) before them.
//!
//! Consequence: in a run without a hazard every instruction sees exactly the bytes the serial order gives, so its values may be
//! computed at any moment between its start and its finish.

use std::collections::BTreeMap;

use tpuflow_ir::access::{Accesses, Stretch};
use tpuflow_ir::{Space, Unit};

const UNITS: usize = Unit::ALL.len();

/// Per unit, the number of its instructions up to and including the last that touched the stretch; 0: none.
#[derive(Clone, Copy, Debug, Default)]
struct Segment {
    end: u64,
    writers: [u32; UNITS],
    readers: [u32; UNITS],
}

/// Stretches of one memory by first byte, disjoint.
type Segments = BTreeMap<u64, Segment>;

/// The sweep.
#[derive(Debug, Default)]
pub(crate) struct Order {
    memories: BTreeMap<Space, Segments>,
    issued: [u32; UNITS],
}

impl Order {
    /// Appends the next instruction; returns how many instructions of each unit must have finished before it starts.
    pub(crate) fn push(&mut self, unit: Unit, accesses: &Accesses) -> [u32; UNITS] {
        let own = unit.index();
        self.issued[own] += 1;
        let position = self.issued[own];
        let mut needs = [0; UNITS];
        for read in &accesses.reads {
            self.each(read, |segment| {
                join(&mut needs, &segment.writers);
                segment.readers[own] = position;
            });
        }
        // Of its own unit only what it reads counts, and what it reads itself does not.
        let mut others = [0; UNITS];
        let mut covered = Vec::new();
        for write in &accesses.writes {
            let segments = self.memories.entry(write.space).or_default();
            split(segments, write.start);
            split(segments, write.end);
            for (&start, segment) in segments.range(write.start..write.end) {
                join(&mut others, &segment.writers);
                join(&mut others, &segment.readers);
                covered.push(start);
            }
            for start in covered.drain(..) {
                segments.remove(&start);
            }
            let mut segment = Segment { end: write.end, ..Segment::default() };
            segment.writers[own] = position;
            segments.insert(write.start, segment);
        }
        others[own] = 0;
        join(&mut needs, &others);
        needs
    }

    /// Visits the segments of a stretch, made to end at its borders and to cover it.
    fn each(&mut self, stretch: &Stretch, mut visit: impl FnMut(&mut Segment)) {
        let segments = self.memories.entry(stretch.space).or_default();
        split(segments, stretch.start);
        split(segments, stretch.end);
        let mut at = stretch.start;
        let mut gaps = Vec::new();
        for (&start, segment) in segments.range_mut(stretch.start..stretch.end) {
            if at < start {
                gaps.push((at, start));
            }
            visit(segment);
            at = segment.end;
        }
        if at < stretch.end {
            gaps.push((at, stretch.end));
        }
        for (start, end) in gaps {
            let mut segment = Segment { end, ..Segment::default() };
            visit(&mut segment);
            segments.insert(start, segment);
        }
    }
}

fn join(into: &mut [u32; UNITS], other: &[u32; UNITS]) {
    for (a, b) in into.iter_mut().zip(other) {
        *a = (*a).max(*b);
    }
}

/// Makes `at` a border.
fn split(segments: &mut Segments, at: u64) {
    if let Some((_, left)) = segments.range_mut(..at).next_back()
        && left.end > at
    {
        let right = *left;
        left.end = at;
        segments.insert(at, right);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    /// All pairs, as the module says it.
    fn slow(list: &[(Unit, Accesses)], finished: impl Fn(usize) -> bool) -> Vec<bool> {
        let touch = |a: &[Stretch], b: &[Stretch]| a.iter().any(|x| b.iter().any(|y| x.overlaps(y)));
        (0..list.len())
            .map(|i| {
                (0..i).all(|j| {
                    let ((unit, late), (other, early)) = (&list[i], &list[j]);
                    let mut clash = touch(&late.reads, &early.writes);
                    if unit != other {
                        clash |= touch(&late.writes, &early.reads) || touch(&late.writes, &early.writes);
                    }
                    finished(j) || !clash
                })
            })
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() })]

        /// With every instruction before `first` finished and no other, both say the same about instruction `first`; the
        /// numbers of the sweep never ask for an instruction that does not clash, directly or through others.
        #[test]
        fn sweep_equals_all_pairs(
            raw in proptest::collection::vec(
                (0usize..UNITS, proptest::collection::vec((any::<bool>(), 0u64..40, 1u64..12), 1..4)), 1..30),
            unfinished in 0usize..UNITS, count in 0usize..30,
        ) {
            let list: Vec<(Unit, Accesses)> = raw.into_iter().map(|(unit, touches)| {
                let mut accesses = Accesses::default();
                for (write, start, length) in touches {
                    let stretch = Stretch { space: Space::Cache, start, end: start + length };
                    if write { accesses.writes.push(stretch) } else { accesses.reads.push(stretch) }
                }
                (Unit::ALL[unit], accesses)
            }).collect();
            let mut order = Order::default();
            let needs: Vec<_> = list.iter().map(|(unit, accesses)| order.push(*unit, accesses)).collect();
            // One unit lags: it has finished its first `count` instructions; all other instructions are finished.
            let lagging = Unit::ALL[unfinished];
            let mut seen = 0;
            let done: Vec<bool> = list.iter().map(|(unit, _)| {
                seen += usize::from(*unit == lagging);
                *unit != lagging || seen <= count
            }).collect();
            let truth = slow(&list, |j| done[j]);
            for (i, needed) in needs.iter().enumerate() {
                let ready = needed[lagging.index()] as usize <= count;
                if list[i].0 != lagging || done[i] {
                    // A clash may be hidden behind a later writer, which then clashes itself: the first that fails is the same.
                    let first_bad = truth.iter().position(|ok| !ok);
                    if first_bad.is_none_or(|bad| i <= bad) {
                        prop_assert_eq!(ready, truth[i], "instruction {}", i);
                    }
                }
            }
        }
    }
}
