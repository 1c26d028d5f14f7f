//! Where buffers lie, and virtual instructions with the addresses put in.

use tpuflow_ir::{Instruction, InstructionId, Space, Unit, View, Work};

use super::{Memory, VirtualAddress, VirtualInstruction, VirtualProgram};

/// Where every buffer lies: space and byte address.
pub(crate) type Addresses = Vec<(Space, u64)>;

/// First and last instruction that touches a buffer.
pub(crate) type Lifetime = (InstructionId, InstructionId);

/// First and last position (in `order`) that touches each buffer; `None` for buffers nothing touches.
pub(crate) fn lifetimes(code: &VirtualProgram) -> Vec<Option<Lifetime>> {
    let mut live_ranges: Vec<Option<Lifetime>> = vec![None; code.buffers.len()];
    for (position, virtual_instruction) in code.instructions.iter().enumerate() {
        let position = InstructionId::new(position);
        for buffer in virtual_instruction.touches() {
            let life = &mut live_ranges[buffer.index()];
            *life = Some(life.map_or((position, position), |(first, _)| (first, position)));
        }
    }
    live_ranges
}

/// By instruction, and once more behind the last, bytes of the cache in use for what is computed, not loaded alone.
pub(crate) fn computed_bytes(code: &VirtualProgram, live_ranges: &[Option<Lifetime>]) -> Vec<u64> {
    let loaded = code.loaded_alone();
    let mut bytes = vec![0u64; code.instructions.len() + 1];
    for ((buffer, life), loaded) in code.buffers.iter().zip(live_ranges).zip(loaded) {
        if let (Some((first, last)), Memory::Cache, false) = (life, buffer.memory, loaded) {
            // Changes first: what ends is taken off, modulo 2^64.
            bytes[first.index()] = bytes[first.index()].wrapping_add(buffer.bytes);
            bytes[last.index() + 1] = bytes[last.index() + 1].wrapping_sub(buffer.bytes);
        }
    }
    let mut now = 0u64;
    for change in &mut bytes {
        now = now.wrapping_add(*change);
        *change = now;
    }
    bytes
}

/// The real address behind a virtual one.
fn resolved(addresses: &Addresses, field: u64) -> (Space, u64) {
    let VirtualAddress { buffer, offset } = VirtualAddress::of_field(field);
    let (space, address) = addresses[buffer.index()];
    (space, address + offset)
}

/// A view with its real address.
pub(crate) fn resolve_view(addresses: &Addresses, view: &View) -> View {
    let (space, address) = resolved(addresses, view.address);
    View { space, address, ..*view }
}

/// A virtual instruction with real addresses, on unit `unit`, without waits.
pub(crate) fn resolve(virtual_instruction: &VirtualInstruction, unit: Unit, addresses: &Addresses) -> Instruction {
    let mut work = virtual_instruction.work.clone();
    let place = |slot: usize| -> u32 {
        virtual_instruction.ewp[slot].map_or(0, |(buffer, offset)| addresses[buffer.index()].1 as u32 + offset)
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
        Work::Expand(e) => {
            let (space, address) = resolved(addresses, e.ddr_address);
            if let Space::Ddr(space) = space {
                e.ddr_space = space;
            }
            e.ddr_address = address;
            e.local_address = resolved(addresses, e.local_address).1;
        }
        Work::PackedLookup(l) => {
            let (space, address) = resolved(addresses, l.ddr_address);
            if let Space::Ddr(space) = space {
                l.ddr_space = space;
            }
            l.ddr_address = address;
            [&mut l.indices, &mut l.output].into_iter().for_each(view);
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
    Instruction { unit, layer: virtual_instruction.layer, waits: smallvec::SmallVec::new(), work }
}
