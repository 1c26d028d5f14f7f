//! From a sketch to a program: addresses for all buffers, units for all transfers, tokens for all dependencies.

use rayon::prelude::*;
use tpuflow_ir::program::Allocation;
use tpuflow_ir::{Image, Instruction, Machine, Space, Unit, View, Work};

use crate::ScheduleError;
use crate::network::Network;
use crate::pack::pack;
use crate::sketch::{BufferId, Content, Draft, Memory, Sketch};

/// Where every buffer lies: space and byte address.
pub(crate) type Addresses = Vec<(Space, u64)>;

/// First and last position (in `order`) that touches each buffer; `None` for buffers nothing touches.
pub(crate) fn lifetimes(sketch: &Sketch) -> Vec<Option<(u32, u32)>> {
    let mut lives: Vec<Option<(u32, u32)>> = vec![None; sketch.buffers.len()];
    for (position, draft) in sketch.drafts.iter().enumerate() {
        for buffer in draft.touches() {
            let position = position as u32;
            let life = &mut lives[buffer.index()];
            *life = Some(life.map_or((position, position), |(first, _)| (first, position)));
        }
    }
    lives
}

/// External memory: constants in order of first use from address 0, then inputs, outputs and spilled tensors in space 0.
pub(crate) struct External {
    /// Constants: address space, address and buffer, ascending in each space.
    recipes: Vec<(usize, u64, BufferId)>,
    /// Bytes used of every address space.
    pub bytes: Vec<u64>,
}

/// Lays out external memory, filling in `addresses`. With `split`, constants alternate between address spaces so that all
/// channels have the same to do at any time.
///
/// # Errors
/// [`ScheduleError::External`] when an address space overflows.
pub(crate) fn external(
    sketch: &Sketch,
    machine: &Machine,
    split: bool,
    ports: &[View],
    addresses: &mut Addresses,
) -> Result<External, ScheduleError> {
    let word = machine.word() as u64;
    let spaces = machine.ddr_spaces();
    let mut ends = vec![0u64; spaces];
    // Traffic so far, activations included.
    let mut load = vec![0u64; spaces];
    let mut placed = vec![false; sketch.buffers.len()];
    let mut recipes: Vec<(usize, u64, BufferId)> = Vec::new();
    for draft in &sketch.drafts {
        for buffer in draft.touches() {
            let b = &sketch.buffers[buffer.index()];
            if b.memory != Memory::Ddr {
                continue;
            }
            let bytes = match &draft.work {
                Work::Transfer(t) => t.total_bytes(),
                Work::Lookup(l) => u64::from(l.count) * l.table.payload() as u64,
                _ => 0,
            };
            if !matches!(b.content, Content::Constant(_)) {
                load[0] += bytes;
            } else if placed[buffer.index()] {
                if let (Space::Ddr(space), _) = addresses[buffer.index()] {
                    load[usize::from(space)] += bytes;
                }
            } else {
                placed[buffer.index()] = true;
                let space = if split { (0..spaces).min_by_key(|&s| load[s]).unwrap_or(0) } else { 0 };
                addresses[buffer.index()] = (Space::Ddr(space as u8), ends[space]);
                recipes.push((space, ends[space], buffer));
                ends[space] += b.bytes.next_multiple_of(word);
                load[space] += bytes;
            }
        }
    }
    // A constant that is also an output need not be loaded by anyone; it still has a place.
    for (buffer, _) in ports.iter().map(|port| BufferId::split(port.address)) {
        let b = &sketch.buffers[buffer.index()];
        if matches!(b.content, Content::Constant(_)) && !std::mem::replace(&mut placed[buffer.index()], true) {
            addresses[buffer.index()] = (Space::Ddr(0), ends[0]);
            recipes.push((0, ends[0], buffer));
            ends[0] += b.bytes.next_multiple_of(word);
        }
    }
    for kind in [Content::Input, Content::Output, Content::Computed] {
        for (index, buffer) in sketch.buffers.iter().enumerate() {
            if buffer.memory == Memory::Ddr && buffer.content == kind {
                let start = ends[0].next_multiple_of(machine.ddr.page_bytes.max(word));
                addresses[index] = (Space::Ddr(0), start);
                ends[0] = start + buffer.bytes.next_multiple_of(word);
            }
        }
    }
    let capacity = machine.ddr.capacity_bytes * if spaces == 1 { u64::from(machine.ddr.channels) } else { 1 };
    if let Some(&bytes) = ends.iter().find(|&&end| end > capacity) {
        return Err(ScheduleError::External { bytes, capacity, machine: machine.name.clone() });
    }
    Ok(External { recipes, bytes: ends })
}

impl External {
    /// Constants of every address space, packed.
    pub fn constants(&self, sketch: &Sketch, network: &Network, word: usize) -> Vec<Image> {
        let end = |space: usize| {
            let ends = self.recipes.iter().filter(|r| r.0 == space);
            ends.map(|&(_, at, b)| at + padded(sketch, b, word)).max().unwrap_or(0)
        };
        let mut constants: Vec<Vec<u8>> = (0..self.bytes.len()).map(|space| vec![0; end(space) as usize]).collect();
        for (space, memory) in constants.iter_mut().enumerate() {
            // Disjoint stretches in ascending order: each packed on its own.
            let mut stretches = Vec::new();
            let mut rest = memory.as_mut_slice();
            for &(_, _, buffer) in self.recipes.iter().filter(|r| r.0 == space) {
                let (head, tail) = rest.split_at_mut(padded(sketch, buffer, word) as usize);
                if let Content::Constant(packing) = &sketch.buffers[buffer.index()].content {
                    stretches.push((packing, head));
                }
                rest = tail;
            }
            stretches.into_par_iter().for_each(|(packing, out)| pack(network, packing, word, out));
        }
        constants.into_iter().map(Image::from).collect()
    }
}

/// Bytes of a buffer in whole words.
fn padded(sketch: &Sketch, buffer: BufferId, word: usize) -> u64 {
    sketch.buffers[buffer.index()].bytes.next_multiple_of(word as u64)
}

/// The real address behind a virtual one.
fn resolved(addresses: &Addresses, virtual_address: u64) -> (Space, u64) {
    let (buffer, offset) = BufferId::split(virtual_address);
    let (space, address) = addresses[buffer.index()];
    (space, address + offset)
}

/// A view with its real address.
pub(crate) fn resolve_view(addresses: &Addresses, view: &View) -> View {
    let (space, address) = resolved(addresses, view.address);
    View { space, address, ..*view }
}

/// A draft with real addresses, on unit `unit`, without waits.
pub(crate) fn resolve(draft: &Draft, unit: Unit, addresses: &Addresses) -> Instruction {
    let mut work = draft.work.clone();
    let place = |slot: usize| -> u32 {
        draft.ewp[slot].map_or(0, |(buffer, offset)| addresses[buffer.index()].1 as u32 + offset)
    };
    let view = |v: &mut View| *v = resolve_view(addresses, v);
    match &mut work {
        Work::Transfer(t) => {
            let (space, address) = resolved(addresses, t.ddr_address);
            if let Space::Ddr(space) = space {
                t.ddr_space = space;
            }
            t.ddr_address = address;
            (t.local_space, t.local_address) = resolved(addresses, t.local_address);
        }
        Work::Lookup(l) => [&mut l.table, &mut l.indices, &mut l.output].into_iter().for_each(view),
        Work::Matrix(m) => {
            view(&mut m.input);
            view(&mut m.output);
            m.weights.address = resolved(addresses, m.weights.address).1;
            (m.parameters, m.table) = (place(0), place(1));
        }
        Work::Pool(p) => {
            view(&mut p.input);
            view(&mut p.output);
            (p.parameters, p.table, p.weights) = (place(0), place(1), place(2));
        }
        Work::Vector(v) => {
            v.inputs.iter_mut().for_each(view);
            view(&mut v.output);
            v.parameters = place(0);
        }
    }
    Instruction { unit, layer: draft.layer, waits: smallvec::SmallVec::new(), work }
}

/// The unit of a draft; transfers on `line`.
pub(crate) fn unit(work: &Work, line: Unit) -> Unit {
    match work {
        Work::Transfer(_) | Work::Lookup(_) => line,
        Work::Matrix(_) => Unit::Me,
        Work::Pool(_) => Unit::Pdp,
        Work::Vector(_) => Unit::Ewp,
    }
}

/// Cache allocations by time, for reports.
pub(crate) fn allocations(sketch: &Sketch, lives: &[Option<(u32, u32)>], addresses: &Addresses) -> Vec<Allocation> {
    let mut list: Vec<Allocation> = sketch
        .buffers
        .iter()
        .enumerate()
        .filter(|(_, b)| b.memory == Memory::Cache)
        .filter_map(|(i, b)| {
            let (first, last) = lives[i]?;
            Some(Allocation { name: b.name.clone(), address: addresses[i].1, bytes: b.bytes, first, last })
        })
        .collect();
    list.sort_by_key(|a| (a.first, a.address));
    list
}
