//! Small constants that are used one after the other share a transfer: one start-up for many.
//!
//! Members of a group lie side by side in DDR and in the cache. A group lives from its load to the last use of any member,
//! so its size is bounded by a small share of the memory; the first groups are small, for the first instruction waits for one.

use tpuflow_ir::{Machine, Work};

use crate::lowering::piece_bytes;
use crate::virtual_program::{Buffer, BufferId, Content, Memory, Packing, VirtualInstruction, VirtualProgram};

/// A group that still takes members.
struct OpenGroup {
    /// Draft of its transfer, and the buffers at both ends.
    instruction: usize,
    from: BufferId,
    to: BufferId,
    bytes: u64,
    limit: u64,
    parts: Vec<(u64, Packing)>,
}

/// Merges neighbouring small loads of constants, of at most so many layers, into groups `times` as large as usual.
pub(crate) fn group_constants(code: &mut VirtualProgram, machine: &Machine, layers: u32, times: u64) {
    let mut uses = vec![0u32; code.buffers.len()];
    for (to, from) in code.instructions.iter().filter_map(VirtualInstruction::load) {
        uses[to.index()] += 1;
        uses[from.index()] += 1;
    }
    let mut moved: Vec<(BufferId, u64)> = (0..code.buffers.len() as u32).map(|i| (BufferId(i), 0)).collect();
    let mut dropped = vec![false; code.instructions.len()];
    let most = |memory: Memory| match memory {
        Memory::Ewp => (machine.ewp_cache_bytes() / 16).min(piece_bytes(machine) / 4),
        Memory::Cache | Memory::Ddr => (machine.cache_bytes() / 64).min(piece_bytes(machine) * times / 2),
    };
    let mut open: [Option<OpenGroup>; 2] = [None, None];
    let mut loaded = 0;
    for (index, dropped) in dropped.iter_mut().enumerate() {
        let Some((to, from)) = code.instructions[index].load() else { continue };
        let (memory, bytes) = (code.buffers[to.index()].memory, code.buffers[to.index()].bytes);
        let Content::Constant(packing) = code.buffers[from.index()].content.clone() else { continue };
        let slot = usize::from(memory == Memory::Ewp);
        loaded += bytes;
        let whole = code.instructions[index].transfer().is_some_and(|t| t.total_bytes() == bytes);
        if uses[to.index()] != 1 || uses[from.index()] != 1 || !whole || bytes > most(memory) {
            close(code, open[slot].take());
            continue;
        }
        if let Some(group_constants) = &mut open[slot]
            && group_constants.bytes + bytes <= group_constants.limit
            && code.instructions[index].layer.0.abs_diff(code.instructions[group_constants.instruction].layer.0)
                < layers
        {
            moved[to.index()] = (group_constants.to, group_constants.bytes);
            group_constants.parts.push((group_constants.bytes, packing));
            group_constants.bytes += bytes;
            *dropped = true;
            continue;
        }
        close(code, open[slot].take());
        let limit = most(memory).min((loaded / 4).max(u64::from(machine.cache.word_bytes) * 32));
        open[slot] = Some(OpenGroup { instruction: index, from, to, bytes, limit, parts: vec![(0, packing)] });
    }
    for group_constants in open {
        close(code, group_constants);
    }
    let mut place = 0..dropped.len();
    code.instructions.retain(|_| place.next().is_some_and(|index| !dropped[index]));
    code.instructions.iter_mut().for_each(|instruction| instruction.redirect(&moved));
}

/// Enlarges the first member's buffers and transfer to take all members.
fn close(code: &mut VirtualProgram, group_constants: Option<OpenGroup>) {
    let Some(group_constants) = group_constants.filter(|b| b.parts.len() > 1) else { return };
    for buffer in [group_constants.from, group_constants.to] {
        code.buffers_mut()[buffer.index()].bytes = group_constants.bytes;
    }
    let from: &mut Buffer = &mut code.buffers_mut()[group_constants.from.index()];
    from.content = Content::Constant(Packing::Bundle(group_constants.parts));
    if let Work::Transfer(t) = &mut code.instructions[group_constants.instruction].work {
        t.bytes = group_constants.bytes as u32;
    }
}
