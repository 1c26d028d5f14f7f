//! Tokens: which instructions of other units (and earlier results of the own one) an instruction must wait for.
//!
//! Every memory is a map of stretches, each with its last writer and, per unit, its last reader. A read waits for the writer;
//! a write waits for readers and writer on other units, as a unit's own instructions touch memory in order. What is already
//! known is not waited for again: an instruction knows what its predecessor on the unit knew, and what everything it waits for
//! knew (vector clocks).

use std::collections::BTreeMap;

use smallvec::SmallVec;
use tpuflow_ir::access::{Accesses, Stretch};
use tpuflow_ir::{Space, Unit, Wait};

/// Instructions finished, per unit.
type Counts = [u32; Unit::COUNT];

#[derive(Clone, Copy, Debug)]
struct Segment {
    end: u64,
    writer: Option<(usize, u32)>,
    readers: Counts,
}

/// Finds the waits of instructions given in serial order.
#[derive(Debug, Default)]
pub(crate) struct TokenTracker {
    memories: BTreeMap<Space, BTreeMap<u64, Segment>>,
    /// Instructions so far.
    added: Counts,
    /// Per unit and instruction, what had finished when it started.
    known: [Vec<Counts>; Unit::COUNT],
}

impl TokenTracker {
    /// Adds the next instruction; returns how many instructions of every unit must have finished before it starts.
    pub fn needs(&mut self, unit: Unit, accesses: &Accesses) -> Counts {
        let own = unit.index();
        self.added[own] += 1;
        let number = self.added[own];
        let mut need = [0; Unit::COUNT];
        for stretch in &accesses.reads {
            self.read(stretch, own, number, &mut need);
        }
        for stretch in &accesses.writes {
            self.write(stretch, own, number, &mut need);
        }
        need
    }

    /// Adds the next instruction; returns what it waits for, at most one entry per unit.
    pub fn add(&mut self, unit: Unit, accesses: &Accesses) -> SmallVec<[Wait; 4]> {
        let own = unit.index();
        let need = self.needs(unit, accesses);
        let mut known = self.known[own].last().copied().unwrap_or_default();
        let wanted: SmallVec<[(usize, u32); 4]> =
            (0..Unit::COUNT).filter(|&v| need[v] > known[v]).map(|v| (v, need[v])).collect();
        let behind = |&(v, count): &(usize, u32)| self.known[v][count as usize - 1];
        let implied = |&(v, count): &(usize, u32)| wanted.iter().any(|other| other.0 != v && behind(other)[v] >= count);
        let mut waits = SmallVec::new();
        for want in &wanted {
            if !implied(want) {
                waits.push(Wait { unit: Unit::ALL[want.0], count: want.1 });
            }
            let before = behind(want);
            for (mine, theirs) in known.iter_mut().zip(before) {
                *mine = (*mine).max(theirs);
            }
            known[want.0] = known[want.0].max(want.1);
        }
        self.known[own].push(known);
        waits
    }

    fn read(&mut self, stretch: &Stretch, unit: usize, number: u32, need: &mut Counts) {
        let memory = self.memories.entry(stretch.space).or_default();
        split(memory, stretch.start);
        split(memory, stretch.end);
        let mut at = stretch.start;
        let mut gaps: SmallVec<[(u64, u64); 4]> = SmallVec::new();
        for (&start, segment) in memory.range_mut(stretch.start..stretch.end) {
            if start > at {
                gaps.push((at, start));
            }
            if let Some((writer, count)) = segment.writer {
                need[writer] = need[writer].max(count);
            }
            segment.readers[unit] = number;
            at = segment.end;
        }
        if at < stretch.end {
            gaps.push((at, stretch.end));
        }
        let mut readers = [0; Unit::COUNT];
        readers[unit] = number;
        for (start, end) in gaps {
            memory.insert(start, Segment { end, writer: None, readers });
        }
    }

    fn write(&mut self, stretch: &Stretch, unit: usize, number: u32, need: &mut Counts) {
        let memory = self.memories.entry(stretch.space).or_default();
        split(memory, stretch.start);
        split(memory, stretch.end);
        let inside: SmallVec<[u64; 8]> = memory.range(stretch.start..stretch.end).map(|(&start, _)| start).collect();
        for start in inside {
            let Some(segment) = memory.remove(&start) else { continue };
            let writer = segment.writer.filter(|w| w.0 != unit);
            if let Some((writer, count)) = writer {
                need[writer] = need[writer].max(count);
            }
            for other in (0..Unit::COUNT).filter(|&other| other != unit) {
                need[other] = need[other].max(segment.readers[other]);
            }
        }
        let segment = Segment { end: stretch.end, writer: Some((unit, number)), readers: [0; Unit::COUNT] };
        memory.insert(stretch.start, segment);
    }
}

/// Cuts the segment across `at` in two.
fn split(memory: &mut BTreeMap<u64, Segment>, at: u64) {
    if let Some((&start, segment)) = memory.range_mut(..at).next_back()
        && segment.end > at
    {
        debug_assert!(start < at);
        let tail = *segment;
        segment.end = at;
        memory.insert(at, tail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accesses(reads: &[(u64, u64)], writes: &[(u64, u64)]) -> Accesses {
        let stretch = |&(start, end): &(u64, u64)| Stretch { space: Space::Cache, start, end };
        Accesses { reads: reads.iter().map(stretch).collect(), writes: writes.iter().map(stretch).collect() }
    }

    fn waits(tracker: &mut TokenTracker, unit: Unit, reads: &[(u64, u64)], writes: &[(u64, u64)]) -> Vec<(Unit, u32)> {
        tracker.add(unit, &accesses(reads, writes)).iter().map(|w| (w.unit, w.count)).collect()
    }

    #[test]
    fn true_dependencies_and_nothing_else() {
        let mut t = TokenTracker::default();
        assert_eq!(waits(&mut t, Unit::Dtl0, &[], &[(0, 8)]), []);
        assert_eq!(waits(&mut t, Unit::Dtl1, &[], &[(8, 16)]), []);
        // Reads the end of one and the start of the other.
        assert_eq!(waits(&mut t, Unit::Me, &[(6, 10)], &[(16, 24)]), [(Unit::Dtl0, 1), (Unit::Dtl1, 1)]);
        // Already known to the unit.
        assert_eq!(waits(&mut t, Unit::Me, &[(0, 8)], &[(24, 32)]), []);
        // Its own result, and only that.
        assert_eq!(waits(&mut t, Unit::Me, &[(16, 24)], &[(32, 40)]), [(Unit::Me, 1)]);
        // Overwriting waits for readers; the writer is known through them.
        assert_eq!(waits(&mut t, Unit::Dtl0, &[], &[(0, 4)]), [(Unit::Me, 2)]);
        // Reading what another part of a stretch's writer left.
        assert_eq!(waits(&mut t, Unit::Ewp, &[(2, 6)], &[(40, 48)]), [(Unit::Dtl0, 2)]);
    }
}
