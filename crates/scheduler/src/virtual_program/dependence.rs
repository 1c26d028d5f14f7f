//! Which virtual instructions must follow which: the order a virtual program's virtual instructions may be permuted within.
//!
//! Virtual instructions are looked at in the order of the virtual program, which is a legal one. A read follows the last write, a write follows the
//! last write and all reads since, but writes of one unit to different channels of the same pixels come in any order. What follows on the same unit for the sake of memory alone may begin at once, for a unit
//! touches memory in order; everything else waits for the end.

use std::collections::BTreeMap;

use smallvec::SmallVec;
use tpuflow_ir::access::{Stretch, accesses};
use tpuflow_ir::isa::VectorOp;
use tpuflow_ir::{Descriptor, InstructionId, Machine, Space, Unit, Work};

use crate::virtual_program::addresses::{Addresses, resolve};
use crate::virtual_program::{Memory, VirtualProgram};

/// An edge to a later or earlier virtual instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    /// The other end.
    pub instruction: InstructionId,
    /// Whether the later one waits for the end of the earlier one, not just for its turn.
    pub finish: bool,
}

/// Dependences of the virtual instructions of a virtual program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dependences {
    /// By virtual instruction, what it follows.
    pub before: Vec<SmallVec<[Edge; 6]>>,
    /// By virtual instruction, what follows it.
    pub after: Vec<SmallVec<[Edge; 6]>>,
}

/// A stretch of memory all of whose bytes were last touched by the same virtual instructions.
#[derive(Clone, Debug, Default)]
struct Segment {
    end: u64,
    /// Virtual instructions that write different channels of the same pixels, in any order, and what each of them follows.
    writers: SmallVec<[InstructionId; 4]>,
    before: SmallVec<[InstructionId; 4]>,
    /// Those that have read since.
    readers: SmallVec<[InstructionId; 4]>,
}

/// The channels of every pixel a virtual instruction writes: bytes `start .. end` of every `pixel` bytes of the memory, by one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChannelRange {
    unit: Unit,
    pixel: u64,
    start: u64,
    end: u64,
}

impl ChannelRange {
    /// Of instructions that write some channels of whole pixels and leave the others alone.
    fn of(work: &Work, unit: Unit, descriptors: &[Descriptor]) -> Option<Self> {
        let (view, first, channels) = match work {
            Work::Matrix(m) => (&m.output, m.output_channel, m.columns),
            Work::Pool(p) => (&p.output, 0, p.output.channels),
            Work::Vector(v) => match &descriptors[v.descriptor.index()] {
                Descriptor::Vector(VectorOp::Move { dims, output_strides, output_offset, .. }) => {
                    let (first, channels) = moved(v.output.channels, dims, output_strides, *output_offset);
                    (&v.output, first, channels)
                }
                Descriptor::Vector(op) if !op.reduces() => (&v.output, 0, v.output.channels),
                _ => return None,
            },
            _ => return None,
        };
        let size = view.dtype.bytes() as u64;
        let pixel = u64::from(view.pixel_bytes);
        let start = (view.address + u64::from(view.channel_offset) + u64::from(first) * size) % pixel;
        Some(Self { unit, pixel, start, end: start + u64::from(channels) * size })
    }

    /// Whether no byte is the other's as well, and one unit writes both, which needs no token to do it in either order.
    fn is_beside(&self, other: &Self) -> bool {
        let alike = (self.unit, self.pixel) == (other.unit, other.pixel);
        let inside = self.end.max(other.end) <= self.pixel;
        alike && inside && (self.end <= other.start || other.end <= self.start)
    }
}

/// The first channel that a copy writes of any pixel of a view of `channels`, and how many from there on: all of them unless it goes
/// from pixel to pixel in whole steps.
fn moved(channels: u32, dims: &[u32], strides: &[i64], offset: i64) -> (u32, u32) {
    let pixel = i64::from(channels.max(1));
    let first = offset.rem_euclid(pixel);
    let inside = dims.iter().zip(strides).filter(|(_, stride)| *stride % pixel != 0);
    let steps = inside.map(|(&extent, &stride)| (stride > 0).then(|| i64::from(extent.max(1) - 1) * stride));
    match steps.sum::<Option<i64>>().map(|step| first + step) {
        Some(last) if last < pixel => (first as u32, (last - first + 1) as u32),
        _ => (0, channels),
    }
}

type Segments = BTreeMap<u64, Segment>;

impl Dependences {
    /// Finds all dependences: those of values, and with addresses in the caches also those of places used again.
    pub fn new(code: &VirtualProgram, machine: &Machine, addresses: Option<&Addresses>) -> Self {
        let mut apart = side_by_side(code, machine);
        for (index, place) in apart.iter_mut().enumerate() {
            if let Some(addresses) = addresses.filter(|_| code.buffers[index].memory != Memory::Ddr) {
                *place = addresses[index];
            }
        }
        let descriptors: Vec<Descriptor> = code.descriptors.iter().cloned().collect();
        let units: Vec<Unit> = code
            .instructions
            .iter()
            .map(|virtual_instruction| virtual_instruction.unit(&descriptors, machine))
            .collect();
        let mut memories: BTreeMap<Space, Segments> = BTreeMap::new();
        let mut dependences =
            Self { before: vec![SmallVec::new(); units.len()], after: vec![SmallVec::new(); units.len()] };
        let mut lanes: Vec<Option<ChannelRange>> = Vec::with_capacity(units.len());
        for (index, virtual_instruction) in code.instructions.iter().enumerate() {
            let instruction = resolve(virtual_instruction, units[index], &apart);
            let touched = accesses(&instruction, &descriptors, machine);
            lanes.push(ChannelRange::of(&instruction.work, units[index], &descriptors));
            // Earlier virtual instructions, and whether their results are read.
            let id = InstructionId::new(index);
            let mut found: BTreeMap<InstructionId, bool> = BTreeMap::new();
            for stretch in &touched.reads {
                let memory = memories.entry(stretch.space).or_default();
                for segment in cover(memory, stretch) {
                    found.extend(segment.writers.iter().map(|&writer| (writer, true)));
                    segment.readers.push(id);
                }
            }
            for stretch in &touched.writes {
                let memory = memories.entry(stretch.space).or_default();
                let is_beside = |other: &InstructionId| match (&lanes[index], &lanes[other.index()]) {
                    (Some(mine), Some(other)) => mine.is_beside(other),
                    _ => false,
                };
                let mut merged = Segment { end: stretch.end, ..Segment::default() };
                let mut joined = false;
                for segment in cover(memory, stretch) {
                    let joins = segment.readers.is_empty()
                        && !segment.writers.is_empty()
                        && segment.writers.iter().all(is_beside);
                    if !joins {
                        segment.before = segment.writers.drain(..).chain(segment.readers.drain(..)).collect();
                    }
                    joined |= joins;
                    segment.before.retain(|other| *other != id);
                    for &other in &segment.before {
                        found.entry(other).or_insert(false);
                    }
                    segment.writers.push(id);
                    merged.before.extend(segment.before.iter().copied());
                }
                if !joined {
                    let inside: SmallVec<[u64; 8]> =
                        memory.range(stretch.start..stretch.end).map(|(&at, _)| at).collect();
                    for at in inside {
                        memory.remove(&at);
                    }
                    merged.before.sort_unstable();
                    merged.before.dedup();
                    merged.writers.push(id);
                    memory.insert(stretch.start, merged);
                }
            }
            for (other, read) in found {
                let finish = read || units[index].is_dma() || units[index] != units[other.index()];
                dependences.before[index].push(Edge { instruction: other, finish });
                dependences.after[other.index()].push(Edge { instruction: id, finish });
            }
        }
        dependences
    }
}

/// Addresses that give every buffer memory of its own, but for parts of an exchange, which lie alike on all devices.
pub(crate) fn side_by_side(code: &VirtualProgram, machine: &Machine) -> Addresses {
    let word = machine.word() as u64;
    let mut ends: BTreeMap<Memory, u64> = BTreeMap::new();
    let place = |buffer: &crate::virtual_program::Buffer| {
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
    let mut places: Addresses = code.buffers.iter().map(place).collect();
    place_peers(code, machine, &mut places);
    places
}

/// Puts the parts of other devices where this device's part lies, in their address spaces.
pub(crate) fn place_peers(code: &VirtualProgram, machine: &Machine, places: &mut Addresses) {
    for (index, buffer) in code.buffers.iter().enumerate() {
        if let Some((own, rank)) = buffer.peer
            && let (Space::Ddr(space), address) = places[own.index()]
        {
            places[index] = (Space::Ddr(machine.space_of_rank(space, rank.into())), address);
        }
    }
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
        memory.insert(start, Segment { end, ..Segment::default() });
    }
    memory.range_mut(stretch.start..stretch.end).map(|(_, segment)| segment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tpuflow_ir::Op;
    use tpuflow_ir::isa::Matrix;

    use crate::budget::SearchBudget;
    use crate::common::{Net, window};
    use crate::context::PlanningContext;
    use crate::options::granularity::{StageGranularities, TileGranularity};
    use crate::options::{PipelineMode, PlanOptions};
    use crate::parameters::Parameters;

    #[test]
    fn column_tiles_of_a_pixel_come_in_any_order_and_before_its_readers() {
        let mut net = Net::new(5);
        let x = net.input(&[1, 8, 8, 32]);
        let y = net.conv(x, 384, window(1, 1, 0), 1);
        let y = net.conv(y, 16, window(1, 1, 0), 1);
        let graph = net.finish(&[y]);
        let machine = Machine::preset("128x128_asic").expect("known");
        let parameters = Parameters::o5();
        let budget = SearchBudget { seed: 0, steps: 1, deadline: None };
        let context = PlanningContext::new(&graph, &machine, budget, &parameters).expect("a sound graph");
        let plan = context
            .plan(
                PlanOptions::new(PipelineMode::Interleaved {
                    granularities: StageGranularities::even(TileGranularity::Fine),
                }),
                &|_| None,
            )
            .expect("room");
        let (code, addresses) = plan.parts();
        for places in [None, Some(addresses)] {
            let dependences = Dependences::new(code, &machine, places);
            let matrix = |virtual_instruction: usize| -> Option<&Matrix> {
                match &code.instructions[virtual_instruction].work {
                    Work::Matrix(m) => Some(m),
                    _ => None,
                }
            };
            let of = |columns: u32| -> Vec<usize> {
                (0..code.instructions.len()).filter(|&d| matrix(d).is_some_and(|m| m.columns == columns)).collect()
            };
            let (writers, readers) = (of(128), of(16));
            assert_eq!((writers.len(), readers.len()), (3, 1));
            let follows = |later: usize, earlier: usize| {
                dependences.before[later]
                    .iter()
                    .find(|edge| edge.instruction.index() == earlier)
                    .map(|edge| edge.finish)
            };
            for &one in &writers {
                assert!(writers.iter().all(|&other| follows(one, other).is_none()));
                assert_eq!(follows(readers[0], one), Some(true));
            }
        }
    }

    #[test]
    fn lanes_lie_beside_each_other_within_pixels_of_one_size() {
        let lane = |unit, pixel, start, end| ChannelRange { unit, pixel, start, end };
        let mine = lane(Unit::Me, 256, 0, 128);
        assert!(mine.is_beside(&lane(Unit::Me, 256, 128, 192)));
        assert!(lane(Unit::Me, 256, 128, 192).is_beside(&mine));
        for other in [
            lane(Unit::Me, 256, 127, 192),
            lane(Unit::Me, 512, 128, 192),
            lane(Unit::Pdp, 256, 128, 192),
            // It goes on in the next pixel.
            lane(Unit::Me, 256, 192, 320),
            mine,
        ] {
            assert!(!mine.is_beside(&other), "{other:?}");
        }
    }

    /// The channels of a copy, element by element.
    #[test]
    fn copies_write_the_channels_that_their_elements_are() {
        let mut random = 7;
        let mut below = |n: u64| crate::budget::next_random(&mut random) % n;
        let mut known = 0;
        for _ in 0..20_000 {
            let channels = 1 + below(6) as u32;
            let pixel = i64::from(channels);
            let loops = 1 + below(3) as usize;
            let dims: Vec<u32> = (0..loops).map(|_| 1 + below(4) as u32).collect();
            let steps = [pixel, 2 * pixel, 1, 2, -1];
            let strides: Vec<i64> = (0..loops).map(|_| steps[below(5) as usize]).collect();
            let offset = 100 * pixel + below(6) as i64;
            let mut elements = vec![offset];
            for (&extent, &stride) in dims.iter().zip(&strides) {
                elements =
                    elements.iter().flat_map(|at| (0..extent).map(move |i| at + i64::from(i) * stride)).collect();
            }
            let found = elements.iter().map(|at| at.rem_euclid(pixel) as u32);
            let (least, most) = (found.clone().min().expect("one"), found.max().expect("one"));
            let (first, count) = moved(channels, &dims, &strides, offset);
            assert!(first <= least && most < first + count, "{channels} {dims:?} {strides:?} {offset}");
            known += u32::from((first, first + count - 1) == (least, most));
        }
        assert!(known > 10_000, "{known}");
    }

    #[test]
    fn operands_of_a_concatenation_are_copied_in_any_order() {
        let mut net = Net::new(5);
        let (x, y) = (net.input(&[1, 16, 16, 24]), net.input(&[1, 16, 16, 8]));
        let op = Op::Concat { inputs: vec![x, y], axis: 3, requants: vec![None; 2] };
        let both = net.rearrange(x, op, &[1, 16, 16, 32]);
        let z = net.conv(both, 16, window(1, 1, 0), 1);
        let graph = net.finish(&[z]);
        let machine = Machine::preset("128x128_asic").expect("known");
        let (parameters, budget) = (Parameters::o5(), SearchBudget { seed: 0, steps: 1, deadline: None });
        let context = PlanningContext::new(&graph, &machine, budget, &parameters).expect("a sound graph");
        let mode = PipelineMode::Interleaved { granularities: StageGranularities::even(TileGranularity::Fine) };
        let plan = context.plan(PlanOptions::new(mode), &|_| None).expect("a plan that fits");
        let (code, _) = plan.parts();
        let dependences = Dependences::new(code, &machine, None);
        let copies: Vec<usize> = (0..code.instructions.len())
            .filter(|&index| matches!(code.instructions[index].work, Work::Vector(_)))
            .collect();
        assert!(copies.len() >= 2);
        for &one in &copies {
            assert!(dependences.before[one].iter().all(|edge| !copies.contains(&edge.instruction.index())));
        }
    }
}
