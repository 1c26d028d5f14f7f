//! Values: every instruction executed on the bytes of the simulated memories, at the addresses the program names.
//!
//! An instruction is executed as a whole at the moment it starts. Its operands are complete then (an earlier instruction that
//! still writes them would be a hazard), and nobody may touch its result until it has finished ([`crate::order`]), so any other
//! moment up to its last cycle would give the same bytes.
//!
//! Operands are gathered from their views into dense rows, unless they lie so, computed by `tpuflow-kernels`, and scattered
//! back byte by byte: channels beyond a view's own stay as they are.
//!
//! Copies of constants into the shared cache are put off until an instruction may read them ([`Memories::settle`]). Weights that
//! are packed already are known by what they are a copy of, so most are never made.

mod channels;
mod float;
pub(crate) mod form;
mod matrix;
mod non_finite;
mod partial;
mod pool;
mod register;
mod tensor;
mod vector;
mod windows;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use rayon::prelude::*;
use tpuflow_ir::isa::{Direction, Expand, Indices, Lookup, PackedForm, PackedLookup, TableShape, Transfer};
use tpuflow_ir::packed::CodeKind;
use tpuflow_ir::{Descriptor, LayerId, Port, PositionedTransfer, Program, Space, View, Window, Work, layout, packed};
use tpuflow_kernels::table;

use crate::check::hazard;
use crate::checked_program::CheckedProgram;
use crate::dma::element_address;
use crate::error::SimError;
use crate::hazard::Rule;
use crate::memory::Memory;
use crate::run::{ArrayModel, Event};
use non_finite::{NonFinite, Occurrences};
use register::Pass;
use tensor::Buffers;
use windows::GatherKey;

/// Where something is wrong, and what.
type Fault = ((Space, u64), Rule);

/// Whether output pixels are input pixels: then they correspond by number, whatever the widths of their rows.
pub(crate) fn is_plain(window: &Window) -> bool {
    window.kernel == [1, 1] && window.stride == [1, 1] && window.pads == [0; 4]
}

/// Elements that may wait for the registers.
const WAITING: usize = 64 << 20;

/// Data that runs of a program keep for later ones, to save time: weights as the kernels take them, memories, and what was
/// checked. It changes no result. Weights are taken again only where they are a copy of the same constants or every byte is
/// the same, what memories hold counts as never written, and checks hold for the same instructions on the same machine, so
/// any program may be given any.
#[derive(Clone, Debug, Default)]
pub struct ProgramCache {
    tiles: Arc<Mutex<BTreeMap<matrix::Place, Arc<matrix::PackedTile>>>>,
    depthwise: Arc<Mutex<BTreeMap<pool::Place, Arc<pool::Depthwise>>>>,
    /// As many as were in use at a time.
    memories: Arc<Mutex<Vec<MemoryBuffers>>>,
    sound: Arc<Mutex<Option<Arc<CheckedProgram>>>>,
}

impl ProgramCache {
    /// The checks of a program before it runs.
    ///
    /// # Errors
    /// [`SimError::Hazard`] with the first rule an instruction breaks.
    pub(crate) fn checked_program(&self, program: &Program) -> Result<Arc<CheckedProgram>, SimError> {
        let kept = || self.sound.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sound) = kept().as_ref().filter(|sound| sound.is_of(program)) {
            return Ok(Arc::clone(sound));
        }
        let sound = Arc::new(CheckedProgram::new(program)?);
        *kept() = Some(Arc::clone(&sound));
        Ok(sound)
    }
}

/// Shared cache, EWP cache and DDR of a run that is over.
type MemoryBuffers = (Memory, Memory, Vec<Memory>);

/// All memories of the machine, and what has gone wrong in them.
#[derive(Debug)]
pub(crate) struct Memories {
    cache: Memory,
    ewp_cache: Memory,
    ddr: Vec<Memory>,
    word: usize,
    non_finite: NonFinite,
    buffers: Buffers,
    /// Of which rows the gathered ones are.
    gathered: Option<GatherKey>,
    kept: ProgramCache,
    /// Of the last instruction.
    passes: Vec<Pass>,
}

/// Executes instructions of a program it borrows or shares.
#[derive(Debug)]
pub(crate) struct Executor<P> {
    program: P,
    memories: Memories,
    array: ArrayModel,
    events: BTreeMap<(LayerId, &'static str), Occurrences>,
    /// By position, what is still to go through the registers, and its elements.
    passes: Vec<(usize, Pass)>,
    waiting: usize,
}

impl Drop for Memories {
    fn drop(&mut self) {
        let own = (std::mem::take(&mut self.cache), std::mem::take(&mut self.ewp_cache), std::mem::take(&mut self.ddr));
        self.kept.memories.lock().unwrap_or_else(PoisonError::into_inner).push(own);
    }
}

impl Memories {
    /// Memories with the program's constants in place.
    fn new(program: &Program, kept: &ProgramCache) -> Self {
        let machine = &program.machine;
        let spare = kept.memories.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let (mut cache, mut ewp_cache, mut ddr) = spare.unwrap_or_default();
        cache.renew(machine.cache_bytes(), None);
        cache.track_origins();
        cache.enable_deferred_copies(true);
        ewp_cache.renew(machine.ewp_cache_bytes(), None);
        ddr.resize_with(program.ddr_bytes.len(), Memory::default);
        for (space, (memory, &bytes)) in ddr.iter_mut().zip(&program.ddr_bytes).enumerate() {
            memory.renew(bytes, program.constants.get(space));
            memory.number(space);
        }
        let (word, non_finite, buffers) = (machine.word(), NonFinite::default(), Buffers::default());
        Self {
            cache,
            ewp_cache,
            ddr,
            word,
            non_finite,
            buffers,
            gathered: None,
            kept: kept.clone(),
            passes: Vec::new(),
        }
    }

    fn of(&self, space: Space) -> &Memory {
        match space {
            Space::Cache => &self.cache,
            Space::EwpCache => &self.ewp_cache,
            Space::Ddr(n) => &self.ddr[usize::from(n)],
        }
    }

    fn of_mut(&mut self, space: Space) -> &mut Memory {
        match space {
            Space::Cache => &mut self.cache,
            Space::EwpCache => &mut self.ewp_cache,
            Space::Ddr(n) => &mut self.ddr[usize::from(n)],
        }
    }

    fn read(&self, space: Space, start: u64, length: usize) -> Result<&[u8], Fault> {
        self.of(space).read(start, length).map_err(|missing| ((space, missing.0), Rule::NeverWritten))
    }

    /// Parameters in the EWP cache.
    fn parameters(&self, address: u32, length: usize) -> Result<&[u8], Fault> {
        self.read(Space::EwpCache, address.into(), length)
    }

    /// A table in the EWP cache for codes of `bits` bits.
    fn table(&self, address: u32, shape: TableShape, bits: u32) -> Result<table::Lookup, Fault> {
        let bytes = self.parameters(address, shape.entries as usize * 4)?;
        lookup(bytes, shape, bits).map_err(|rule| ((Space::EwpCache, address.into()), rule))
    }

    /// Makes the copies that were put off of what an instruction may read; weights are left to those who want them.
    fn copy_deferred_operands(&mut self, work: &Work) {
        let (word, cache) = (self.word, &mut self.cache);
        let mut settle = |views: &[View]| {
            for view in views.iter().filter(|view| view.space == Space::Cache) {
                cache.copy_deferred(view.address, view.bytes(word) as usize);
            }
        };
        match work {
            Work::Lookup(l) => settle(&[l.indices, l.table]),
            Work::PackedLookup(l) => settle(&[l.indices]),
            Work::Matrix(m) => settle(&[m.input]),
            Work::Pool(p) => settle(&[p.input]),
            Work::Vector(v) => settle(&v.inputs),
            Work::Transfer(t) if t.direction == Direction::Store && t.local_space == Space::Cache => {
                t.runs().for_each(|(_, inside)| cache.copy_deferred(inside, t.bytes as usize));
            }
            Work::Transfer(_) | Work::Expand(_) => {}
        }
    }

    /// Copies between a DDR and a cache; a run none of whose bytes was ever written breaks a rule. What a state does not hold
    /// yet is zero points.
    fn transfer(&mut self, placed: &PositionedTransfer) -> Result<(), Fault> {
        let t = &placed.transfer;
        let Some(ddr) = self.ddr.get_mut(usize::from(t.ddr_space)) else {
            return Err(((Space::Ddr(t.ddr_space), t.ddr_address), Rule::Rank));
        };
        let local = if t.local_space == Space::Cache { &mut self.cache } else { &mut self.ewp_cache };
        for (outside, inside) in t.runs() {
            let length = placed.transferred_bytes(outside) as usize;
            if let Some((_, state)) = placed.limit {
                let absent = (length..t.bytes as usize).map(|at| state.zero_byte(outside + at as u64));
                local.write(inside + length as u64, &absent.collect::<Vec<u8>>());
            }
            let known = match t.direction {
                _ if length == 0 => true,
                Direction::Load => local.copy(inside, ddr, outside, length),
                Direction::Store => ddr.copy(outside, local, inside, length),
            };
            if !known {
                let load = t.direction == Direction::Load;
                let at = if load { (Space::Ddr(t.ddr_space), outside) } else { (t.local_space, inside) };
                return Err((at, Rule::NeverWritten));
            }
        }
        Ok(())
    }

    /// Copies a part of an exchange from the DDR of another device, or its own.
    fn load_part(&mut self, t: &Transfer, own_space: u8, peer: Option<&Self>) -> Result<(), Fault> {
        let space = usize::from(own_space);
        for (outside, inside) in t.runs() {
            let ddr = peer.map_or(&self.ddr, |peer| &peer.ddr);
            if !self.cache.copy(inside, &ddr[space], outside, t.bytes as usize) {
                return Err(((Space::Ddr(t.ddr_space), outside), Rule::NeverWritten));
            }
        }
        Ok(())
    }

    /// Writes the int8 elements that packed weights stand for.
    fn expand(&mut self, e: &Expand) -> Result<(), Fault> {
        let elements = self.expanded(e)?;
        self.cache.write(e.local_address, &elements);
        Ok(())
    }

    /// The int8 elements that packed weights stand for.
    fn expanded(&self, e: &Expand) -> Result<Vec<u8>, Fault> {
        let packed = self.read(Space::Ddr(e.ddr_space), e.ddr_address, e.packed_bytes() as usize)?;
        let columns = e.row_bytes as usize;
        let mut elements = vec![0; e.bytes() as usize];
        if e.codes.is_by_column() {
            let mut column = vec![0; e.block as usize];
            let mut rest = packed;
            for rows in elements.chunks_mut(e.block as usize * columns) {
                let own = rows.len() / columns;
                let (block, behind) = rest.split_at(e.block_bytes(own as u64) as usize);
                rest = behind;
                for (at, record) in block.chunks_exact(e.record_bytes(own as u64) as usize).enumerate() {
                    expand_record(e.codes.kind(), record, &mut column[..own]);
                    rows[at..].iter_mut().step_by(columns).zip(&column).for_each(|(to, &element)| *to = element);
                }
            }
            return Ok(elements);
        }
        let (header, row) = (e.header_bytes() as usize, e.code_bytes() as usize);
        let mut rows = elements.chunks_exact_mut(columns);
        let mut zero_points = vec![packed::SYMMETRIC; columns];
        for block in packed.chunks(header + e.block as usize * row) {
            let (header, codes) = block.split_at(header);
            let (scales, zeros) = header.split_at(columns);
            if e.codes == PackedForm::ZeroPoints {
                packed::unpack(zeros, &mut zero_points);
            }
            for (codes, elements) in codes.chunks(row).zip(&mut rows) {
                packed::expand_row(e.codes.kind(), codes, &zero_points, scales, elements);
            }
        }
        Ok(elements)
    }

    /// The elements of a column of packed weights that lie by column.
    fn expanded_column(&self, e: &Expand, column: u32) -> Result<Vec<u8>, Fault> {
        let mut elements = vec![0; e.rows as usize];
        let mut start = e.ddr_address;
        for own in elements.chunks_mut(e.block as usize) {
            let bytes = e.record_bytes(own.len() as u64);
            let record = self.read(Space::Ddr(e.ddr_space), start + u64::from(column) * bytes, bytes as usize)?;
            expand_record(e.codes.kind(), record, own);
            start += u64::from(e.row_bytes) * bytes;
        }
        Ok(elements)
    }

    /// The indices of a lookup.
    fn indices(&self, list: &Indices) -> Result<Vec<u32>, Fault> {
        (list.first..list.first + list.count)
            .map(|n| {
                let address = element_address(&list.view, n, self.word);
                let bytes = self.read(Space::Cache, address, 4)?;
                let index = i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                match u32::try_from(index) {
                    Ok(row) if row < list.size => Ok(row),
                    _ => Err(((Space::Cache, address), Rule::Lookup(index.into()))),
                }
            })
            .collect()
    }

    /// The indices an instruction looks up.
    fn looked_up(&self, work: &Work) -> Result<Vec<u32>, Fault> {
        work.indices().map_or_else(|| Ok(Vec::new()), |list| self.indices(&list))
    }

    fn look_up_packed(&mut self, l: &PackedLookup) -> Result<(), Fault> {
        for (pixel, index) in (l.first..).zip(self.looked_up(&Work::PackedLookup(*l))?) {
            let (number, column) = l.place(index);
            let entry = l.entry(number, self.word);
            let elements = match column {
                Some(column) => self.expanded_column(&entry, column)?,
                None => self.expanded(&entry)?,
            };
            let to = l.output.pixel_address(pixel / l.output.width, pixel % l.output.width, self.word);
            self.cache.write(to, &elements);
        }
        Ok(())
    }

    fn look_up_rows(&mut self, l: &Lookup) -> Result<(), Fault> {
        for (pixel, row) in (l.first..).zip(self.looked_up(&Work::Lookup(*l))?) {
            let from = l.table.pixel_address(0, row, self.word);
            let bytes = self.read(l.table.space, from, l.table.payload())?.to_vec();
            let to = l.output.pixel_address(pixel / l.output.width, pixel % l.output.width, self.word);
            self.cache.write(to, &bytes);
        }
        Ok(())
    }
}

impl<P: Deref<Target = Program>> Executor<P> {
    /// Memories with the program's constants in place.
    pub(crate) fn new(program: P, array: ArrayModel, kept: &ProgramCache) -> Self {
        let memories = Memories::new(&program, kept);
        Self { program, memories, array, events: BTreeMap::new(), passes: Vec::new(), waiting: 0 }
    }

    /// Makes every copy when its instruction is executed, for those who look at memories in between.
    pub(crate) fn copy_eagerly(&mut self) {
        self.memories.cache.enable_deferred_copies(false);
    }

    /// Puts the inputs in place, given dense.
    ///
    /// # Errors
    /// [`SimError`] when they do not fit.
    pub(crate) fn write_inputs(&mut self, inputs: &[Vec<u8>]) -> Result<(), SimError> {
        let program = &self.program;
        check_count(program, inputs.len())?;
        for (number, (port, dense)) in program.inputs.iter().zip(inputs).enumerate() {
            if program.is_exchanged(number) {
                continue;
            }
            let expected = port.shape.iter().product::<usize>();
            check_size(port, (dense.len(), expected), port.dtype.name(), port.dtype.bytes())?;
            let packed = layout::pack(dense, &port.shape, port.dtype, self.memories.word);
            write_input(program, number, &packed, &mut self.memories);
        }
        Ok(())
    }

    /// Puts the inputs in place, given as words.
    ///
    /// # Errors
    /// [`SimError`] when they do not fit.
    pub(crate) fn write_input_words<W: AsRef<[u8]>>(&mut self, inputs: &[W]) -> Result<(), SimError> {
        let program = &self.program;
        check_count(program, inputs.len())?;
        for (number, (port, words)) in program.inputs.iter().zip(inputs).enumerate() {
            if program.is_exchanged(number) {
                continue;
            }
            let words = words.as_ref();
            check_size(port, (words.len(), port.view.bytes(self.memories.word) as usize), "uint8", 1)?;
            write_input(program, number, words, &mut self.memories);
        }
        Ok(())
    }

    /// Executes the instruction at `position`.
    pub(crate) fn execute(&mut self, position: usize) -> Result<(), SimError> {
        let instruction = &self.program.instructions[position];
        let wrong = || Err(((Space::Cache, 0), Rule::Descriptor));
        let descriptor = |id: tpuflow_ir::DescriptorId| &self.program.descriptors[id.index()];
        let memories = &mut self.memories;
        memories.copy_deferred_operands(&instruction.work);
        let done = match &instruction.work {
            Work::Transfer(t) => memories.transfer(&self.program.positioned_transfer(t)).map(|()| 0),
            Work::Lookup(l) => memories.look_up_rows(l).map(|()| 0),
            Work::Expand(e) => memories.expand(e).map(|()| 0),
            Work::PackedLookup(l) => memories.look_up_packed(l).map(|()| 0),
            Work::Matrix(m) => match descriptor(m.descriptor) {
                Descriptor::Matrix(d) => memories.matrix(instruction.layer, m, d, self.array, &self.program.machine),
                _ => wrong(),
            },
            Work::Pool(p) => match descriptor(p.descriptor) {
                Descriptor::Pool(d) => memories.pool(instruction.layer, p, d),
                _ => wrong(),
            },
            Work::Vector(v) => match descriptor(v.descriptor) {
                Descriptor::Vector(op) => memories.vector(v, op).map(|()| 0),
                _ => wrong(),
            },
        };
        let overflows = Occurrences { count: *done.as_ref().unwrap_or(&0), first: None };
        for (kind, seen) in memories.non_finite.take().into_iter().chain([("accumulator overflow", overflows)]) {
            if seen.count > 0 {
                self.events.entry((instruction.layer, kind)).or_default().add(seen);
            }
        }
        done.map_err(|(at, rule)| hazard(&self.program, position, at, rule))?;
        for pass in self.memories.passes.drain(..) {
            self.waiting += pass.elements();
            self.passes.push((position, pass));
        }
        if self.waiting > WAITING { self.check_passes() } else { Ok(()) }
    }

    /// Executes the load at `position`, of a part of an exchange that another device has stored; `None`: this one.
    ///
    /// # Errors
    /// [`SimError::Hazard`]: it is not there.
    pub(crate) fn load_part(&mut self, position: usize, peer: Option<&Self>) -> Result<(), SimError> {
        let Work::Transfer(transfer) = &self.program.instructions[position].work else { return self.execute(position) };
        let own_space = self.program.machine.own_space(transfer.ddr_space);
        let done = self.memories.load_part(transfer, own_space, peer.map(|peer| &peer.memories));
        done.map_err(|(at, rule)| hazard(&self.program, position, at, rule))
    }

    /// Takes all matrix instructions executed so far through the registers, if that is asked for.
    ///
    /// # Errors
    /// The first that gives other than the closed form.
    pub(crate) fn check_passes(&mut self) -> Result<(), SimError> {
        let machine = &self.program.machine;
        let broken =
            self.passes.par_iter().find_map_first(|(position, pass)| Some((*position, pass.check(machine).err()?)));
        self.passes.clear();
        self.waiting = 0;
        broken.map_or(Ok(()), |(position, (at, rule))| Err(hazard(&self.program, position, at, rule)))
    }

    /// The indices of a lookup that has been executed.
    pub(crate) fn indices(&self, list: &Indices) -> Vec<u32> {
        self.memories.indices(list).unwrap_or_default()
    }

    /// The program.
    pub(crate) fn program(&self) -> &Program {
        &self.program
    }

    /// A memory.
    pub(crate) fn memory(&self, space: Space) -> &Memory {
        self.memories.of(space)
    }

    /// Sums of a matrix instruction of integers before anything is done with them, `[pixels, columns]`.
    pub(crate) fn accumulators(&self, position: usize) -> Result<Vec<i64>, SimError> {
        let Work::Matrix(m) = &self.program.instructions[position].work else { return Ok(vec![]) };
        let Descriptor::Matrix(d) = &self.program.descriptors[m.descriptor.index()] else { return Ok(vec![]) };
        let sums = self.memories.accumulators(m, d);
        sums.map_err(|(at, rule)| hazard(&self.program, position, at, rule))
    }

    /// The output ports, dense.
    pub(crate) fn outputs(&self) -> Result<Vec<Vec<u8>>, SimError> {
        let word = self.memories.word;
        let words = self.output_words()?;
        let ports = self.program.outputs.iter().zip(words);
        Ok(ports.map(|(port, words)| port.view.unpack(&words, word)).collect())
    }

    /// The output ports as words; padding is as it was left, 0 where nobody wrote.
    pub(crate) fn output_words(&self) -> Result<Vec<Vec<u8>>, SimError> {
        let word = self.memories.word;
        let words = |(number, port): (usize, &Port)| {
            let mut words = Vec::new();
            for view in self.program.output_views(number) {
                self.complete(port, &view)?;
                words.extend(self.memories.of(view.space).bytes(view.address, view.bytes(word) as usize));
            }
            Ok(words)
        };
        self.program.outputs.iter().enumerate().map(words).collect()
    }

    /// Whether all elements of an output were written; of a raw one nobody can say where they are.
    fn complete(&self, port: &Port, view: &View) -> Result<(), SimError> {
        let word = self.memories.word;
        if port.is_raw(word) {
            return Ok(());
        }
        let missing =
            |(at, _): Fault| SimError::Output { name: port.name.clone(), place: crate::check::place(at.0, at.1, word) };
        for row in 0..view.rows {
            let pixels = view.width as usize * view.pixel_bytes as usize;
            if self.memories.read(view.space, view.row_address(row, word), pixels).is_ok() {
                continue;
            }
            for column in 0..view.width {
                let address = view.pixel_address(row, column, word);
                self.memories.read(view.space, address, view.payload()).map_err(missing)?;
            }
        }
        Ok(())
    }

    /// The events so far.
    pub(crate) fn events(&self) -> Vec<Event> {
        let event = |(&(layer, kind), seen): (&(LayerId, &str), &Occurrences)| Event {
            layer: self.program.layer(layer).name.clone(),
            kind: kind.to_owned(),
            count: seen.count,
            first: seen.first,
        };
        self.events.iter().map(event).collect()
    }
}

/// Puts the words of an input where its rows lie.
fn write_input(program: &Program, number: usize, words: &[u8], memories: &mut Memories) {
    let mut words = &words[..program.input_bytes(number) as usize];
    for view in program.inputs[number].views() {
        let own = words.split_at_checked(view.bytes(memories.word) as usize);
        let (own, rest) = own.unwrap_or((words, &[]));
        memories.of_mut(view.space).write(view.address, own);
        words = rest;
    }
}

fn check_count(program: &Program, given: usize) -> Result<(), SimError> {
    let expected = program.inputs.len();
    if given == expected {
        return Ok(());
    }
    Err(SimError::InputCount { graph: program.name.clone(), given, expected })
}

/// Whether `given` bytes are `expected` elements of a type.
fn check_size(
    port: &Port,
    (given, expected): (usize, usize),
    dtype: &'static str,
    bytes: usize,
) -> Result<(), SimError> {
    if given == expected * bytes {
        return Ok(());
    }
    let (given_type, expected_type) = (dtype, dtype);
    Err(SimError::Input { name: port.name.clone(), given: given / bytes, given_type, expected, expected_type })
}

/// The elements of a record: a scale, a zero point if the integers have any, and codes.
fn expand_record(kind: CodeKind, record: &[u8], elements: &mut [u8]) {
    let (zero_point, codes) = match kind {
        CodeKind::ZeroPoints => (record[1], &record[2..]),
        CodeKind::Symmetric | CodeKind::Floats => (packed::SYMMETRIC, &record[1..]),
    };
    packed::unpack(codes, elements);
    for element in elements {
        *element = packed::element(kind, *element, zero_point, record[0]).cast_unsigned();
    }
}

/// A table for codes of `bits` bits in these bytes of the EWP cache.
fn lookup(bytes: &[u8], shape: TableShape, bits: u32) -> Result<table::Lookup, Rule> {
    let words = bytes.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b)).collect();
    table::Lookup::new(words, bits, shape.lo, shape.hi).map_err(|reason| Rule::Shape(format!("has {reason}")))
}
