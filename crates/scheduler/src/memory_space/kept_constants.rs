//! Constants that several layers read equally are loaded once: the weights of a recurrence for its first step, not for each.
//!
//! A kept constant holds its place from its load to its last use. So only as many are kept as take a small share of a memory,
//! those with the most readers first; a layer that loads a constant several times does so for want of space and goes on.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use tpuflow_ir::{LayerId, Machine, Work};

use crate::virtual_program::{BufferId, Content, Memory, Packing, VirtualAddress, VirtualProgram};

/// A buffer of a cache that constants are loaded to, and nothing else.
struct Loaded<'a> {
    to: BufferId,
    layer: LayerId,
    /// By load, in which order the bytes arrive: what it brings, and the transfer with offsets for addresses.
    loads: Vec<(&'a Packing, Work)>,
}

/// Drops loads of what another layer has loaded before and sends readers there. Whether there were any.
pub(crate) fn keep_constants(code: &mut VirtualProgram, machine: &Machine) -> bool {
    let mut places: Vec<(BufferId, u64)> = (0..code.buffers.len()).map(|i| (BufferId::new(i), 0)).collect();
    let mut left = [machine.cache_bytes() / 4, machine.ewp_cache_bytes() / 4];
    let mut found = repeated(code);
    // A stable sort: of equals, those of the first layers.
    found.sort_by_key(|buffers| {
        let bytes = code.buffers[buffers[0].index()].bytes;
        (Reverse(buffers.len()), Reverse(bytes))
    });
    let mut is_dropped = vec![false; code.buffers.len()];
    for buffers in found {
        let first = &code.buffers[buffers[0].index()];
        let left = &mut left[usize::from(first.memory == Memory::Ewp)];
        if first.bytes <= *left {
            *left -= first.bytes;
            for other in &buffers[1..] {
                places[other.index()] = (buffers[0], 0);
                is_dropped[other.index()] = true;
            }
        }
    }
    let before = code.instructions.len();
    code.instructions.retain(|instruction| !instruction.load().is_some_and(|(to, _)| is_dropped[to.index()]));
    code.instructions.iter_mut().for_each(|instruction| instruction.redirect(&places));
    code.instructions.len() < before
}

/// Buffers with equal constants, of different layers each, in the order of their first loads.
fn repeated(code: &VirtualProgram) -> Vec<Vec<BufferId>> {
    let mut order: Vec<BufferId> = Vec::new();
    let mut loaded: BTreeMap<BufferId, Loaded> = BTreeMap::new();
    for instruction in &code.instructions {
        let Some((to, from)) = instruction.load() else { continue };
        let Content::Constant(packing) = &code.buffers[from.index()].content else { continue };
        let load = (packing, without_buffers(&instruction.work));
        let entry = loaded.entry(to).or_insert_with(|| {
            order.push(to);
            Loaded { to, layer: instruction.layer, loads: Vec::new() }
        });
        entry.loads.push(load);
    }
    let mut alike: BTreeMap<(Memory, u64, &Packing), Vec<Vec<&Loaded>>> = BTreeMap::new();
    for to in order {
        let (buffer, own) = (&code.buffers[to.index()], &loaded[&to]);
        let sets = alike.entry((buffer.memory, buffer.bytes, own.loads[0].0)).or_default();
        match sets.iter_mut().find(|set| set[0].loads == own.loads) {
            // Loads of a layer follow one another.
            Some(set) if set.last().is_some_and(|last| last.layer != own.layer) => set.push(own),
            Some(_) => {}
            None => sets.push(vec![own]),
        }
    }
    let sets = alike.into_values().flatten().filter(|set| set.len() > 1);
    let mut found: Vec<Vec<BufferId>> = sets.map(|set| set.iter().map(|each| each.to).collect()).collect();
    found.sort_unstable();
    found
}

/// A load whose addresses are offsets in their buffers.
fn without_buffers(work: &Work) -> Work {
    let offset = |field: &mut u64| *field = VirtualAddress::of_field(*field).offset;
    let mut work = work.clone();
    match &mut work {
        Work::Transfer(transfer) => {
            offset(&mut transfer.local_address);
            offset(&mut transfer.ddr_address);
        }
        Work::Expand(expand) => {
            offset(&mut expand.local_address);
            offset(&mut expand.ddr_address);
        }
        _ => {}
    }
    work
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, common, schedule};
    use tpuflow_ir::DType;
    use tpuflow_ir::isa::Direction;

    /// Loads of a buffer of `bytes` for a layer, with a reader.
    fn program(loads: &[(u32, usize, u64)]) -> VirtualProgram {
        let mut code = VirtualProgram::default();
        for &(layer, step, bytes) in loads {
            let content = Content::Constant(Packing::Weights { step, tiles: vec![(0, 0, 8)] });
            let from = code.buffer("weights".into(), bytes, Memory::Ddr, content);
            let to = code.buffer("weights".into(), bytes, Memory::Cache, Content::Computed);
            code.load_whole(LayerId(layer), from, to, Memory::Cache, bytes);
        }
        code
    }

    #[test]
    fn layers_share_what_is_equal_and_a_layer_keeps_its_own_loads() {
        let machine = Machine::preset("128x128_asic").expect("known");
        let kept = |loads: &[(u32, usize, u64)]| {
            let mut code = program(loads);
            let changed = keep_constants(&mut code, &machine);
            assert_eq!(changed, code.instructions.len() < loads.len());
            code.instructions.iter().map(|each| each.layer.0).collect::<Vec<_>>()
        };
        assert_eq!(kept(&[(0, 5, 1024), (1, 5, 1024), (2, 5, 1024)]), [0]);
        assert_eq!(kept(&[(0, 5, 1024), (1, 6, 1024), (2, 5, 1024)]), [0, 1]);
        assert_eq!(kept(&[(0, 5, 1024), (1, 5, 2048)]), [0, 1]);
        assert_eq!(kept(&[(0, 5, 1024), (0, 5, 1024), (1, 5, 1024)]), [0, 0]);
        let large = machine.cache_bytes() / 4 + 1;
        assert_eq!(kept(&[(0, 5, large), (1, 5, large)]), [0, 1]);
    }

    #[test]
    fn the_weights_of_a_recurrence_are_loaded_once() {
        let mut net = common::Net::new(3);
        let mut x = net.input(&[1, 256]);
        let weights = net.constant(&[256, 256], DType::I8, -127, 127);
        for _ in 0..8 {
            x = net.product(x, weights);
        }
        let graph = net.finish(&[x]);
        for preset in ["128x128_asic", "32x32_fpga"] {
            let machine = Machine::preset(preset).expect("known");
            let options = Options { level: 5, ..Options::default() };
            let program = schedule(&graph, &machine, &options).expect("a sound graph");
            let loads = program.instructions.iter().filter_map(|each| match &each.work {
                Work::Transfer(t) if t.direction == Direction::Load => Some(t.total_bytes()),
                _ => None,
            });
            let bytes: u64 = loads.sum();
            assert!(bytes < 2 * 256 * 256, "{preset}: {bytes}");
        }
    }
}
