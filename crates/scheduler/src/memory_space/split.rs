//! Buffers cut into pieces of rows where no instruction looks across.
//!
//! A bank serves one word a cycle, and a buffer is one stretch of memory: who writes the next rows of a tensor and who reads
//! the last ones are mostly at the same bank. Stripes are buffers of their own, which can lie in different banks, and whose
//! memory is free as soon as its own rows are no longer needed.
//!
//! ```text
//!  rows      0  1  2  3  4  5  6  7  8
//!  written   |--|--|--|--|--|--|--|--|         pieces: rows 0..3, 3..6, 6..8
//!  read      |--------|--------|-----|
//! ```
//!
//! What the pooling unit's windows see of the rows before a piece is copied there, where that is little beside the piece: the
//! array would hold it up at the bank else. What is read as a whole stays so.

use std::collections::BTreeMap;
use std::ops::Range;

use smallvec::SmallVec;
use tpuflow_ir::access::{Stretch, accesses};
use tpuflow_ir::isa::{Vector, VectorOp};
use tpuflow_ir::{Descriptor, InstructionId, Machine, Space, View, Work};

use crate::virtual_program::addresses::{computed_bytes, lifetimes, resolve};
use crate::virtual_program::dependence::side_by_side;
use crate::virtual_program::{BufferId, Content, Memory, VirtualAddress, VirtualInstruction, VirtualProgram};

/// Stripes of a buffer at most.
const MOST: u64 = 16;

/// Words of a piece at least.
const LEAST: u64 = 128;

/// The same with rows copied there, and how many times these it must be.
const LEAST_WITH_HALO: u64 = 512;
const HALO: u64 = 4;

/// Share of the cache, as a fraction.
const SPLIT_SHARE: (u64, u64) = (4, 5);

/// Bytes of a buffer that a virtual instruction reads or writes.
struct BufferAccess {
    virtual_instruction: usize,
    bytes: Range<u64>,
    writes: bool,
}

/// A stretch of a buffer that becomes one of its own.
struct SubBuffer {
    /// Those that are written there.
    bytes: Range<u64>,
    /// Bytes before these that are copied there.
    halo: u64,
    buffer: BufferId,
}

impl SubBuffer {
    /// Bytes of the whole that it holds.
    fn all(&self) -> Range<u64> {
        self.bytes.start - self.halo..self.bytes.end
    }

    fn holds(&self, t: &BufferAccess) -> bool {
        let from = if t.writes { self.bytes.start } else { self.all().start };
        from <= t.bytes.start && t.bytes.end <= self.bytes.end
    }
}

/// By buffer, whether what is computed takes no more than [`SPLIT_SHARE`] of the cache while it is in use: pieces lie in many banks, and
/// a cache that is nearly full has better use for stretches without holes.
pub(crate) fn with_space(code: &VirtualProgram, machine: &Machine) -> Vec<bool> {
    let live_ranges = lifetimes(code);
    // How many instructions before each find the cache fuller than that.
    let mut full = vec![0u32];
    for bytes in computed_bytes(code, &live_ranges) {
        full.push(full[full.len() - 1] + u32::from(SPLIT_SHARE.1 * bytes > SPLIT_SHARE.0 * machine.cache_bytes()));
    }
    let is_free = |life: &Option<(InstructionId, InstructionId)>| {
        let Some((first, last)) = life else { return false };
        full[last.index() + 1] == full[first.index()]
    };
    live_ranges.iter().map(is_free).collect()
}

/// Splits the allowed of the computed buffers of the cache between rows that no instruction, or almost none, reads or writes together.
pub(crate) fn split_live_ranges(code: &mut VirtualProgram, machine: &Machine, allowed: &[bool]) {
    let word = machine.word();
    // Virtual instructions to come before others.
    let mut copies: Vec<(usize, VirtualInstruction)> = Vec::new();
    for (buffer, accesses) in buffer_accesses(code, machine).into_iter().filter(|(buffer, _)| allowed[buffer.index()]) {
        let cuts = cuts(code, buffer, &accesses, word);
        let Some(mut list) = list(code, buffer, &accesses, &cuts, word) else { continue };
        let whole = code.buffers[buffer.index()].clone();
        for piece in &mut list {
            let bytes = piece.bytes.end - piece.all().start;
            if piece.bytes.start > 0 {
                piece.buffer = code.buffer(whole.name.clone(), bytes, whole.memory, whole.content.clone());
            } else {
                code.buffers_mut()[buffer.index()].bytes = bytes;
            }
        }
        for pair in list.windows(2).filter(|pair| pair[1].halo > 0) {
            copies.extend(copy(code, buffer, &accesses, &pair[0], &pair[1], word));
        }
        for t in &accesses {
            if let Some(piece) = list.iter().find(|piece| piece.holds(t)) {
                moved(&mut code.instructions[t.virtual_instruction], buffer, piece, word);
            }
        }
    }
    copies.sort_by_key(|&(position, _)| position);
    let mut copies = copies.into_iter().peekable();
    let mut instructions = Vec::with_capacity(code.instructions.len() + copies.len());
    for (position, virtual_instruction) in std::mem::take(&mut code.instructions).into_iter().enumerate() {
        while let Some((_, copy)) = copies.next_if(|&(before, _)| before == position) {
            instructions.push(copy);
        }
        instructions.push(virtual_instruction);
    }
    code.instructions = instructions;
}

/// By buffer that may be cut, what each virtual instruction touches of it.
fn buffer_accesses(code: &VirtualProgram, machine: &Machine) -> BTreeMap<BufferId, Vec<BufferAccess>> {
    let word = machine.word() as u64;
    let apart = side_by_side(code, machine);
    let descriptors: Vec<Descriptor> = code.descriptors.iter().cloned().collect();
    let mut found: BTreeMap<BufferId, Vec<BufferAccess>> = BTreeMap::new();
    let mut fixed = vec![false; code.buffers.len()];
    let mut loaded = vec![false; code.buffers.len()];
    for (to, _) in code.instructions.iter().filter_map(VirtualInstruction::load) {
        loaded[to.index()] = true;
    }
    for (index, virtual_instruction) in code.instructions.iter().enumerate() {
        let accesses = accesses(
            &resolve(virtual_instruction, virtual_instruction.unit(&descriptors, machine), &apart),
            &descriptors,
            machine,
        );
        for buffer in virtual_instruction.touches() {
            let b = &code.buffers[buffer.index()];
            let start = apart[buffer.index()].1;
            let inside = |s: &&Stretch| s.space == Space::Cache && start <= s.start && s.start < start + b.bytes;
            let writes = accesses.writes.iter().any(|s| inside(&s));
            let stretches = accesses.reads.iter().chain(&accesses.writes).filter(inside);
            let hull = stretches.map(|s| (s.start - start, s.end - start)).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
            let large = b.memory == Memory::Cache && b.content == Content::Computed && b.bytes >= 2 * LEAST * word;
            match hull {
                Some((start, end)) if large => {
                    let list = found.entry(buffer).or_default();
                    if list.last().is_none_or(|last| last.virtual_instruction != index) {
                        list.push(BufferAccess { virtual_instruction: index, bytes: start..end.min(b.bytes), writes });
                    }
                }
                _ => fixed[buffer.index()] = true,
            }
        }
        // Weights that are loaded stay together, as do their planes.
        if let Work::Matrix(m) = &virtual_instruction.work {
            let weights = VirtualAddress::of_field(m.weights.address).buffer.index();
            fixed[weights] |= loaded[weights] || m.weights.plane_bytes > 0;
        }
    }
    found.retain(|buffer, _| !fixed[buffer.index()]);
    found
}

/// Where a buffer is cut, at rows of every view of it, and how many bytes before the cut are still needed behind it.
fn cuts(code: &VirtualProgram, buffer: BufferId, accesses: &[BufferAccess], word: usize) -> Vec<(u64, u64)> {
    let mut pitches: Vec<(u64, u64, u64)> = Vec::new();
    for view in accesses.iter().flat_map(|t| views(&code.instructions[t.virtual_instruction].work)) {
        let VirtualAddress { buffer: own, offset: start } = VirtualAddress::of_field(view.address);
        let pitch = (start, view.row_bytes(word), start + view.bytes(word));
        if own == buffer && pitches.last() != Some(&pitch) {
            pitches.push(pitch);
        }
    }
    pitches.sort_unstable();
    pitches.dedup();
    let at_rows = |cut: u64| {
        pitches.iter().all(|&(start, row, end)| cut <= start || end <= cut || (cut - start).is_multiple_of(row))
    };
    let bytes = code.buffers[buffer.index()].bytes;
    let mut starts: Vec<u64> = accesses.iter().filter(|t| t.writes).map(|t| t.bytes.start).collect();
    starts.sort_unstable();
    starts.dedup();
    let (mut last, mut cuts) = (0, Vec::new());
    for start in starts {
        let crossing = || accesses.iter().filter(|t| t.bytes.start < start && start < t.bytes.end);
        let halo = start - crossing().map(|t| t.bytes.start).min().unwrap_or(start);
        let least = if halo > 0 { (LEAST_WITH_HALO * word as u64).max(HALO * halo) } else { LEAST * word as u64 };
        let least = least.max(bytes / MOST);
        if start >= last + least
            && bytes >= start + least
            && start - halo >= last
            && at_rows(start)
            && at_rows(start - halo)
            && (halo == 0 || can_copy(code, accesses, &crossing().collect::<Vec<_>>(), start - halo..start))
        {
            cuts.push((start, halo));
            last = start;
        }
    }
    cuts
}

/// Whether bytes can be copied before the first of some readers: the pooling unit reads them, as the array has written them.
fn can_copy(code: &VirtualProgram, accesses: &[BufferAccess], readers: &[&BufferAccess], bytes: Range<u64>) -> bool {
    let Some(first) = readers.iter().map(|t| t.virtual_instruction).min() else { return false };
    let Some(view) = pooled(&code.instructions[first].work) else { return false };
    let same = |other: &View| {
        let pixels = |v: &View| u64::from(v.rows) * u64::from(v.width);
        let form = |v: &View| (v.address, v.dtype, v.channels, v.pixel_bytes, v.channel_offset, v.origin, v.first_row);
        form(other) == form(view) && pixels(other) == pixels(view)
    };
    let written = |t: &&BufferAccess| t.writes && t.bytes.start < bytes.end && bytes.start < t.bytes.end;
    readers.iter().all(|t| !t.writes && pooled(&code.instructions[t.virtual_instruction].work) == Some(view))
        && accesses.iter().filter(written).all(|t| match &code.instructions[t.virtual_instruction].work {
            Work::Matrix(m) => t.virtual_instruction < first && same(&m.output),
            _ => false,
        })
}

fn pooled(work: &Work) -> Option<&View> {
    if let Work::Pool(p) = work { Some(&p.input) } else { None }
}

/// The pieces, all still of the same buffer; `None` if something would touch two of them.
fn list(
    code: &VirtualProgram,
    buffer: BufferId,
    accesses: &[BufferAccess],
    cuts: &[(u64, u64)],
    word: usize,
) -> Option<Vec<SubBuffer>> {
    let bytes = code.buffers[buffer.index()].bytes;
    let starts = [(0, 0)].into_iter().chain(cuts.iter().copied());
    let ends = cuts.iter().map(|cut| cut.0).chain([bytes]);
    let list: Vec<SubBuffer> =
        starts.zip(ends).map(|((start, halo), end)| SubBuffer { bytes: start..end, halo, buffer }).collect();
    let fits = |t: &BufferAccess| {
        let Some(piece) = list.iter().find(|piece| piece.holds(t)) else { return false };
        views(&code.instructions[t.virtual_instruction].work)
            .filter(|view| VirtualAddress::of_field(view.address).buffer == buffer)
            .all(|view| narrowed(view, &piece.all(), buffer, word).is_some())
    };
    (list.len() > 1 && accesses.iter().all(fits)).then_some(list)
}

/// Copies what the pooling unit needs of the piece before: where this comes in the order, and the virtual instruction.
fn copy(
    code: &mut VirtualProgram,
    buffer: BufferId,
    accesses: &[BufferAccess],
    before: &SubBuffer,
    piece: &SubBuffer,
    word: usize,
) -> Option<(usize, VirtualInstruction)> {
    let bytes = piece.all().start..piece.bytes.start;
    let crossing = |t: &&BufferAccess| t.bytes.start < bytes.end && bytes.end < t.bytes.end;
    let reader = accesses.iter().filter(crossing).map(|t| t.virtual_instruction).min()?;
    let writer = accesses
        .iter()
        .find(|t| t.writes && t.bytes.start < bytes.end && bytes.start < t.bytes.end)?
        .virtual_instruction;
    let view = *pooled(&code.instructions[reader].work)?;
    let from = narrowed(&view, &before.all(), before.buffer, word)?;
    let to = narrowed(&view, &piece.all(), piece.buffer, word)?;
    let line = view.width * view.channels;
    let row = view.row_bytes(word);
    debug_assert_eq!(VirtualAddress::of_field(view.address).buffer, buffer);
    let first = u64::from(view.first_row) + (bytes.start - VirtualAddress::of_field(view.address).offset) / row;
    let rows = ((bytes.end - bytes.start) / row) as u32;
    let steps = vec![i64::from(line), 1];
    let offset = first as i64 * i64::from(line);
    let op = VectorOp::Move {
        dims: vec![rows, line],
        input_strides: steps.clone(),
        input_offset: offset,
        output_strides: steps,
        output_offset: offset,
        rescale: None,
    };
    let descriptor = code.descriptor(Descriptor::Vector(op));
    let inputs = SmallVec::from_iter([from]);
    let work = Work::Vector(Vector { descriptor, inputs, output: to, first_row: 0, rows, parameters: 0 });
    // What is copied is the writer's result.
    Some((reader, VirtualInstruction::new(code.instructions[writer].layer, work)))
}

fn views(work: &Work) -> impl Iterator<Item = &View> {
    let list: Vec<&View> = match work {
        Work::Transfer(_) | Work::Expand(_) => vec![],
        Work::Lookup(l) => vec![&l.table, &l.indices, &l.output],
        Work::PackedLookup(l) => vec![&l.indices, &l.output],
        Work::Matrix(m) => vec![&m.input, &m.output],
        Work::Pool(p) => vec![&p.input, &p.output],
        Work::Vector(v) => v.inputs.iter().chain([&v.output]).collect(),
    };
    list.into_iter()
}

/// The rows of a view of `buffer` inside some of its bytes, at an address counted from the first of these.
fn narrowed(view: &View, bytes: &Range<u64>, buffer: BufferId, word: usize) -> Option<View> {
    let (row, start) = (view.row_bytes(word), VirtualAddress::of_field(view.address).offset);
    let before = bytes.start.saturating_sub(start) / row.max(1);
    let until = (bytes.end.checked_sub(start)? / row.max(1)).min(view.stored_rows.into());
    let address = buffer.at(start.max(bytes.start) - bytes.start);
    let (before, until) = (before as u32, until as u32);
    (before < until).then(|| View { address, first_row: view.first_row + before, stored_rows: until - before, ..*view })
}

/// Lets a virtual instruction touch a piece in place of the whole buffer.
fn moved(virtual_instruction: &mut VirtualInstruction, buffer: BufferId, piece: &SubBuffer, word: usize) {
    let put = |view: &mut View| {
        if VirtualAddress::of_field(view.address).buffer == buffer
            && let Some(found) = narrowed(view, &piece.all(), piece.buffer, word)
        {
            *view = found;
        }
    };
    match &mut virtual_instruction.work {
        Work::Transfer(t) => {
            let VirtualAddress { buffer: own, offset: at } = VirtualAddress::of_field(t.local_address);
            if own == buffer {
                t.local_address = piece.buffer.at(at - piece.all().start);
            }
        }
        // What is loaded is never cut.
        Work::Expand(_) => {}
        Work::Lookup(l) => [&mut l.indices, &mut l.output].into_iter().for_each(put),
        Work::PackedLookup(l) => [&mut l.indices, &mut l.output].into_iter().for_each(put),
        Work::Matrix(m) => {
            [&mut m.input, &mut m.output].into_iter().for_each(put);
            let VirtualAddress { buffer: own, offset: at } = VirtualAddress::of_field(m.weights.address);
            if own == buffer {
                m.weights.address = piece.buffer.at(at - piece.all().start);
            }
        }
        Work::Pool(p) => [&mut p.input, &mut p.output].into_iter().for_each(put),
        Work::Vector(v) => v.inputs.iter_mut().chain([&mut v.output]).for_each(put),
    }
}
