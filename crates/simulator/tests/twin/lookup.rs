//! Lookups on a line.

use tpuflow_ir::isa::{Direction, Lookup, Transfer};
use tpuflow_ir::{Machine, Space};

use super::{Step, steps};

/// The steps of a lookup: words of indices, and a row of the table for each index.
pub fn lookup(l: &Lookup, machine: &Machine) -> Vec<Step> {
    let word = machine.word();
    let mut list = Vec::new();
    let mut held = None;
    for n in l.first..l.first + l.count {
        let (pixel, channel) = (n / l.indices.channels, n % l.indices.channels);
        let at =
            l.indices.pixel_address(pixel / l.indices.width, pixel % l.indices.width, word) + 4 * u64::from(channel);
        if held.replace(at / word as u64) != Some(at / word as u64) {
            list.push(Step::Index(at / word as u64));
        }
        let row = u64::from(n) * 2_654_435_761 % u64::from(l.table.width);
        let Space::Ddr(ddr_space) = l.table.space else { unreachable!("tables lie in DDR") };
        list.extend(steps(
            &Transfer {
                direction: Direction::Load,
                ddr_space,
                ddr_address: l.table.address + row * u64::from(l.table.pixel_bytes),
                local_space: Space::Cache,
                local_address: l.output.pixel_address(n / l.output.width, n % l.output.width, word),
                bytes: l.table.payload() as u32,
                counts: [1, 1],
                ddr_strides: [0, 0],
                local_strides: [0, 0],
            },
            machine,
        ));
    }
    list
}
