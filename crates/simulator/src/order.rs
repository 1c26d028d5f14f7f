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

use tpuflow_ir::access::{Accesses, Stretch};
use tpuflow_ir::{Space, Unit};

/// Per unit, the number of its instructions up to and including the last that touched the stretch; 0: none.
#[derive(Clone, Copy, Debug)]
struct Segment {
    start: u64,
    end: u64,
    writers: [u32; Unit::COUNT],
    readers: [u32; Unit::COUNT],
}

impl Segment {
    fn new(start: u64, end: u64) -> Self {
        Self { start, end, writers: [0; Unit::COUNT], readers: [0; Unit::COUNT] }
    }
}

/// Segments a block may have before it is cut in two; few in tests, which have few.
const BLOCK: usize = if cfg!(test) { 3 } else { 64 };

/// The segments of one memory: disjoint segments by place, in blocks of a few.
#[derive(Debug)]
struct Segments {
    /// None is empty, unless it is the only one.
    blocks: Vec<Vec<Segment>>,
}

/// Place of a segment: block and number in it.
type At = (usize, usize);

impl Segments {
    fn new() -> Self {
        Self { blocks: vec![Vec::new()] }
    }

    /// Makes `at` a border; returns the place of the first segment behind it, which may be the end of a block.
    fn split(&mut self, at: u64) -> At {
        let block = self.blocks.partition_point(|block| block.last().is_some_and(|last| last.end <= at));
        let block = block.min(self.blocks.len() - 1);
        let number = self.blocks[block].partition_point(|segment| segment.end <= at);
        match self.blocks[block].get_mut(number) {
            Some(left) if left.start < at => {
                let right = Segment { start: at, ..*left };
                left.end = at;
                self.insert((block, number + 1), right)
            }
            _ => (block, number),
        }
    }

    /// Inserts a segment at its place; returns where it is then.
    fn insert(&mut self, (block, number): At, segment: Segment) -> At {
        let own = &mut self.blocks[block];
        own.insert(number, segment);
        if own.len() <= BLOCK {
            return (block, number);
        }
        let rest = own.split_off(BLOCK / 2);
        self.blocks.insert(block + 1, rest);
        if number < BLOCK / 2 { (block, number) } else { (block + 1, number - BLOCK / 2) }
    }

    /// The segments of a stretch that begins at a border and ends at one.
    fn within(&mut self, (block, number): At, end: u64) -> impl Iterator<Item = &mut Segment> {
        let skipped = self.blocks[block..].iter_mut().enumerate();
        let all = skipped.flat_map(move |(n, block)| block.iter_mut().skip(if n == 0 { number } else { 0 }));
        all.take_while(move |segment| segment.start < end)
    }

    /// Puts one segment in the place of those of its stretch, which begins and ends at borders.
    fn replace(&mut self, (block, number): At, segment: Segment) {
        let own = &mut self.blocks[block];
        let covered = own[number..].iter().take_while(|other| other.start < segment.end).count();
        let at_end = number + covered == own.len();
        if covered > 0 {
            own[number] = segment;
            own.drain(number + 1..number + covered);
        }
        if at_end {
            // The stretch may go on in later blocks.
            let empty =
                self.blocks[block + 1..].iter().take_while(|next| next.last().is_some_and(|l| l.end <= segment.end));
            let empty = empty.count();
            self.blocks.drain(block + 1..block + 1 + empty);
            if let Some(next) = self.blocks.get_mut(block + 1) {
                let covered = next.iter().take_while(|other| other.start < segment.end).count();
                next.drain(..covered);
            }
        }
        if covered == 0 {
            self.insert((block, number), segment);
        }
    }
}

/// The sweep.
#[derive(Debug, Default)]
pub(crate) struct Order {
    memories: Vec<(Space, Segments)>,
    issued: [u32; Unit::COUNT],
}

impl Order {
    /// Appends the next instruction; returns how many instructions of each unit must have finished before it starts.
    pub(crate) fn push(&mut self, unit: Unit, accesses: &Accesses) -> [u32; Unit::COUNT] {
        let own = unit.index();
        self.issued[own] += 1;
        let position = self.issued[own];
        let mut needs = [0; Unit::COUNT];
        for read in &accesses.reads {
            self.for_each_segment(read, |segment| {
                join(&mut needs, &segment.writers);
                segment.readers[own] = position;
            });
        }
        // Of its own unit only what it reads counts, and what it reads itself does not.
        let mut others = [0; Unit::COUNT];
        for write in &accesses.writes {
            let segments = self.segments(write.space);
            segments.split(write.end);
            let first = segments.split(write.start);
            for segment in segments.within(first, write.end) {
                join(&mut others, &segment.writers);
                join(&mut others, &segment.readers);
            }
            let mut segment = Segment::new(write.start, write.end);
            segment.writers[own] = position;
            segments.replace(first, segment);
        }
        others[own] = 0;
        join(&mut needs, &others);
        needs
    }

    fn segments(&mut self, space: Space) -> &mut Segments {
        let known = self.memories.iter().position(|(own, _)| *own == space).unwrap_or_else(|| {
            self.memories.push((space, Segments::new()));
            self.memories.len() - 1
        });
        &mut self.memories[known].1
    }

    /// Visits the segments of a stretch, made to end at its borders and to cover it.
    fn for_each_segment(&mut self, stretch: &Stretch, mut visit: impl FnMut(&mut Segment)) {
        let segments = self.segments(stretch.space);
        segments.split(stretch.end);
        let first = segments.split(stretch.start);
        let mut at = stretch.start;
        let mut gaps = Vec::new();
        for segment in segments.within(first, stretch.end) {
            if at < segment.start {
                gaps.push((at, segment.start));
            }
            visit(segment);
            at = segment.end;
        }
        if at < stretch.end {
            gaps.push((at, stretch.end));
        }
        for (start, end) in gaps {
            let mut segment = Segment::new(start, end);
            visit(&mut segment);
            let place = segments.split(start);
            segments.insert(place, segment);
        }
    }
}

fn join(into: &mut [u32; Unit::COUNT], other: &[u32; Unit::COUNT]) {
    for (a, b) in into.iter_mut().zip(other) {
        *a = (*a).max(*b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// With every instruction before `first` finished and no other, both say the same about instruction `first`; the
        /// numbers of the sweep never ask for an instruction that does not clash, directly or through others.
        #[test]
        fn sweep_equals_all_pairs(
            raw in proptest::collection::vec(
                (0usize..Unit::COUNT, proptest::collection::vec((any::<bool>(), 0u64..40, 1u64..12), 1..4)), 1..30),
            unfinished in 0usize..Unit::COUNT, count in 0usize..30,
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
