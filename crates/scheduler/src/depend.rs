//! Which drafts must follow which: the order a sketch's drafts may be permuted within.
//!
//! Drafts are looked at in the order of the sketch, which is a legal one. A read follows the last write, a write follows the
//! last write and all reads since. What follows on the same unit for the sake of memory alone may begin at once, for a unit
//! touches memory in order; everything else waits for the end.

use std::collections::BTreeMap;

use smallvec::SmallVec;
use tpuflow_ir::access::{Stretch, accesses};
use tpuflow_ir::{Descriptor, Machine, Space, Unit};

use crate::emit::{Addresses, resolve, unit};
use crate::sketch::{Memory, Sketch};

/// An edge to a later or earlier draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    /// The other end.
    pub draft: u32,
    /// Whether the later one waits for the end of the earlier one, not just for its turn.
    pub finish: bool,
}

/// Dependences of the drafts of a sketch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Depend {
    /// By draft, what it follows.
    pub before: Vec<SmallVec<[Edge; 6]>>,
    /// By draft, what follows it.
    pub after: Vec<SmallVec<[Edge; 6]>>,
}

/// A stretch of memory all of whose bytes were last touched by the same drafts.
#[derive(Clone, Debug)]
struct Segment {
    end: u64,
    writer: Option<u32>,
    readers: SmallVec<[u32; 4]>,
}

type Segments = BTreeMap<u64, Segment>;

impl Depend {
    /// Finds all dependences: those of values, and with addresses in the caches also those of places used again.
    pub fn new(sketch: &Sketch, machine: &Machine, addresses: Option<&Addresses>) -> Self {
        let mut apart = side_by_side(sketch, machine.word() as u64);
        for (index, place) in apart.iter_mut().enumerate() {
            if let Some(addresses) = addresses.filter(|_| sketch.buffers[index].memory != Memory::Ddr) {
                *place = addresses[index];
            }
        }
        let descriptors: Vec<Descriptor> = sketch.descriptors.iter().cloned().collect();
        let units: Vec<Unit> = sketch.drafts.iter().map(|draft| unit(&draft.work, Unit::Dtl0)).collect();
        let mut memories: BTreeMap<Space, Segments> = BTreeMap::new();
        let mut depend = Self { before: vec![SmallVec::new(); units.len()], after: vec![SmallVec::new(); units.len()] };
        for (index, draft) in sketch.drafts.iter().enumerate() {
            let touched = accesses(&resolve(draft, units[index], &apart), &descriptors, machine);
            // Earlier drafts, and whether their results are read.
            let mut found: BTreeMap<u32, bool> = BTreeMap::new();
            for stretch in &touched.reads {
                let memory = memories.entry(stretch.space).or_default();
                for segment in cover(memory, stretch) {
                    if let Some(writer) = segment.writer {
                        found.insert(writer, true);
                    }
                    segment.readers.push(index as u32);
                }
            }
            for stretch in &touched.writes {
                let memory = memories.entry(stretch.space).or_default();
                for segment in cover(memory, stretch) {
                    for other in segment.readers.iter().copied().chain(segment.writer) {
                        if other != index as u32 {
                            found.entry(other).or_insert(false);
                        }
                    }
                }
                let inside: SmallVec<[u64; 8]> = memory.range(stretch.start..stretch.end).map(|(&at, _)| at).collect();
                for at in inside {
                    memory.remove(&at);
                }
                let segment = Segment { end: stretch.end, writer: Some(index as u32), readers: SmallVec::new() };
                memory.insert(stretch.start, segment);
            }
            for (other, read) in found {
                let dma = matches!(units[index], Unit::Dtl0 | Unit::Dtl1);
                let finish = read || dma || units[index] != units[other as usize];
                depend.before[index].push(Edge { draft: other, finish });
                depend.after[other as usize].push(Edge { draft: index as u32, finish });
            }
        }
        depend
    }
}

/// Addresses that give every buffer memory of its own.
pub(crate) fn side_by_side(sketch: &Sketch, word: u64) -> Addresses {
    let mut ends: BTreeMap<Memory, u64> = BTreeMap::new();
    let place = |buffer: &crate::sketch::Buffer| {
        let space = match buffer.memory {
            Memory::Cache => Space::Cache,
            Memory::Ewp => Space::EwpCache,
            Memory::Ddr => Space::Ddr(0),
        };
        let end = ends.entry(buffer.memory).or_default();
        let start = *end;
        *end += buffer.bytes.next_multiple_of(word);
        (space, start)
    };
    sketch.buffers.iter().map(place).collect()
}

/// The segments of a stretch, cut at its ends and with gaps filled.
fn cover<'a>(memory: &'a mut Segments, stretch: &Stretch) -> impl Iterator<Item = &'a mut Segment> {
    for at in [stretch.start, stretch.end] {
        if let Some((_, segment)) = memory.range_mut(..at).next_back()
            && segment.end > at
        {
            let tail = segment.clone();
            segment.end = at;
            memory.insert(at, tail);
        }
    }
    let mut gaps: SmallVec<[(u64, u64); 4]> = SmallVec::new();
    let mut at = stretch.start;
    for (&start, segment) in memory.range(stretch.start..stretch.end) {
        if start > at {
            gaps.push((at, start));
        }
        at = segment.end;
    }
    if at < stretch.end {
        gaps.push((at, stretch.end));
    }
    for (start, end) in gaps {
        memory.insert(start, Segment { end, writer: None, readers: SmallVec::new() });
    }
    memory.range_mut(stretch.start..stretch.end).map(|(_, segment)| segment)
}
