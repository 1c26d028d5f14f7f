//! Virtual instructions as jobs of their units: how long each holds its unit, when its result is there, and what it moves from and to banks.

use std::collections::HashMap;

use tpuflow_ir::access::accesses;
use tpuflow_ir::isa::StartUp;
use tpuflow_ir::{Descriptor, Machine, Unit, Work, timing};

use crate::virtual_program::addresses::{Addresses, resolve};
use crate::virtual_program::bank_traffic::Traffic;
use crate::virtual_program::feeder::matrix_cycles;
use crate::virtual_program::{VirtualInstruction, VirtualProgram};

/// Cycles and bank traffic of a virtual instruction on its unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnitWork {
    pub unit: Unit,
    /// Cycles until the unit can take the next.
    pub busy: u64,
    /// Cycles from then to the result.
    pub tail: u64,
}

/// Bank traffic of every virtual instruction.
pub(crate) fn traffic(code: &VirtualProgram, machine: &Machine, addresses: &Addresses) -> Vec<Traffic> {
    let descriptors: Vec<Descriptor> = code.descriptors.iter().cloned().collect();
    let of = |virtual_instruction: &VirtualInstruction| {
        let instruction = resolve(virtual_instruction, virtual_instruction.unit(&descriptors, machine), addresses);
        Traffic::new(&instruction, &accesses(&instruction, &descriptors, machine), &descriptors, machine)
    };
    code.instructions.iter().map(of).collect()
}

/// Work of every virtual instruction on its unit. Start-ups that the unit hides behind the instruction before count as delay only.
pub(crate) fn jobs(code: &VirtualProgram, machine: &Machine) -> Vec<UnitWork> {
    let descriptors: Vec<Descriptor> = code.descriptors.iter().cloned().collect();
    let lines = machine.channels() as u64;
    let mut traffic = [0u64; 2];
    // Most instructions of a layer are alike.
    let mut array_cycles = HashMap::new();
    let mut job = |virtual_instruction: &VirtualInstruction| {
        let mut transfer = |busy: u64| {
            let unit = if lines > 1 && traffic[1] < traffic[0] { Unit::Dtl1 } else { Unit::Dtl0 };
            traffic[unit.index()] += busy;
            UnitWork { unit, busy, tail: 1 }
        };
        let start = machine.dma.start + machine.dma.latency;
        match &virtual_instruction.work {
            Work::Transfer(t) => transfer(start + timing::transfer_cycles(t, machine)),
            Work::Expand(e) => {
                let cycles = timing::expand_lead(e, machine) + timing::transfer_cycles(&e.run(), machine);
                transfer(start + cycles)
            }
            Work::Lookup(l) => transfer(start + timing::lookup_cycles(l, machine)),
            Work::PackedLookup(l) => {
                let cycles = timing::lookup_lead(l, machine) + timing::packed_lookup_cycles(l, machine);
                transfer(start + cycles)
            }
            Work::Matrix(m) => {
                let slots = match &descriptors[m.descriptor.index()] {
                    Descriptor::Matrix(d) => *array_cycles
                        .entry((m.descriptor.index(), m.pixels, m.columns, m.first_column, m.input.pixel_bytes))
                        .or_insert_with(|| matrix_cycles(m, d, machine)),
                    _ => 0,
                };
                let rows = u64::from(machine.array.rows);
                let lead = machine.control.issue + rows;
                // The next instruction is issued when the last tile begins to stream.
                let gap = lead.saturating_sub(timing::tile_slots(m.pixels.into(), machine));
                UnitWork { unit: Unit::Me, busy: slots + gap, tail: lead + timing::array_depth(machine) - gap + 1 }
            }
            work => {
                // A bank serves a word a cycle, and neighbouring rows lie in the same one.
                let streams = timing::streams(work, &descriptors, machine);
                let cycles = streams.map_or(0, |s| s.reads.iter().fold(s.cycles, |most, &reads| most.max(reads)));
                let unit = virtual_instruction.unit(&descriptors, machine);
                let StartUp { start, latency } = unit.start_up(machine).unwrap_or(StartUp { start: 0, latency: 0 });
                let busy = cycles.max(start);
                UnitWork { unit, busy, tail: start + cycles + latency + 1 - busy }
            }
        }
    };
    code.instructions.iter().map(&mut job).collect()
}
