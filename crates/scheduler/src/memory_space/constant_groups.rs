//! Small constants that are used one after the other travel together: one start-up for many.
//!
//! Members of a bundle lie side by side in DDR and in the cache. A bundle lives from its load to the last use of any member,
//! so its size is bounded by a small share of the memory; the first bundles are small, for the first instruction waits for one.

use tpuflow_ir::{Machine, Work};

use crate::lowering::piece_bytes;
use crate::virtual_program::{Buffer, BufferId, Content, Draft, Memory, Packing, Sketch};

/// A bundle that still takes members.
struct Open {
    /// Draft of its transfer, and the buffers at both ends.
    draft: usize,
    from: BufferId,
    to: BufferId,
    bytes: u64,
    limit: u64,
    parts: Vec<(u64, Packing)>,
}

/// Merges neighbouring small loads of constants, of at most so many layers, into bundles `times` as large as usual.
pub(crate) fn bundle(sketch: &mut Sketch, machine: &Machine, layers: u32, times: u64) {
    let mut uses = vec![0u32; sketch.buffers.len()];
    for (to, from) in sketch.drafts.iter().filter_map(Draft::load) {
        uses[to.index()] += 1;
        uses[from.index()] += 1;
    }
    let mut moved: Vec<(BufferId, u64)> = (0..sketch.buffers.len() as u32).map(|i| (BufferId(i), 0)).collect();
    let mut dropped = vec![false; sketch.drafts.len()];
    let most = |memory: Memory| match memory {
        Memory::Ewp => (machine.ewp_cache_bytes() / 16).min(piece_bytes(machine) / 4),
        Memory::Cache | Memory::Ddr => (machine.cache_bytes() / 64).min(piece_bytes(machine) * times / 2),
    };
    let mut open: [Option<Open>; 2] = [None, None];
    let mut loaded = 0;
    for (index, dropped) in dropped.iter_mut().enumerate() {
        let Some((to, from)) = sketch.drafts[index].load() else { continue };
        let (memory, bytes) = (sketch.buffers[to.index()].memory, sketch.buffers[to.index()].bytes);
        let Content::Constant(packing) = sketch.buffers[from.index()].content.clone() else { continue };
        let slot = usize::from(memory == Memory::Ewp);
        loaded += bytes;
        let whole = sketch.drafts[index].transfer().is_some_and(|t| t.total_bytes() == bytes);
        if uses[to.index()] != 1 || uses[from.index()] != 1 || !whole || bytes > most(memory) {
            close(sketch, open[slot].take());
            continue;
        }
        if let Some(bundle) = &mut open[slot]
            && bundle.bytes + bytes <= bundle.limit
            && sketch.drafts[index].layer.0.abs_diff(sketch.drafts[bundle.draft].layer.0) < layers
        {
            moved[to.index()] = (bundle.to, bundle.bytes);
            bundle.parts.push((bundle.bytes, packing));
            bundle.bytes += bytes;
            *dropped = true;
            continue;
        }
        close(sketch, open[slot].take());
        let limit = most(memory).min((loaded / 4).max(u64::from(machine.cache.word_bytes) * 32));
        open[slot] = Some(Open { draft: index, from, to, bytes, limit, parts: vec![(0, packing)] });
    }
    for bundle in open {
        close(sketch, bundle);
    }
    let shift = |address: &mut u64| {
        let (buffer, offset) = BufferId::split(*address);
        let (buffer, base) = moved[buffer.index()];
        *address = buffer.at(base + offset);
    };
    let mut kept = Vec::with_capacity(sketch.drafts.len());
    for (draft, dropped) in std::mem::take(&mut sketch.drafts).iter_mut().zip(dropped) {
        if dropped {
            continue;
        }
        for place in draft.ewp.iter_mut().flatten() {
            let (buffer, base) = moved[place.0.index()];
            *place = (buffer, base as u32 + place.1);
        }
        match &mut draft.work {
            Work::Transfer(t) => shift(&mut t.local_address),
            Work::Matrix(m) => {
                shift(&mut m.weights.address);
                shift(&mut m.input.address);
            }
            Work::Vector(v) => v.inputs.iter_mut().for_each(|view| shift(&mut view.address)),
            Work::Pool(p) => shift(&mut p.input.address),
            Work::Lookup(l) => shift(&mut l.indices.address),
        }
        kept.push(draft.clone());
    }
    sketch.drafts = kept;
}

/// Enlarges the first member's buffers and transfer to take all members.
fn close(sketch: &mut Sketch, bundle: Option<Open>) {
    let Some(bundle) = bundle.filter(|b| b.parts.len() > 1) else { return };
    for buffer in [bundle.from, bundle.to] {
        sketch.buffers[buffer.index()].bytes = bundle.bytes;
    }
    let from: &mut Buffer = &mut sketch.buffers[bundle.from.index()];
    from.content = Content::Constant(Packing::Bundle(bundle.parts));
    if let Work::Transfer(t) = &mut sketch.drafts[bundle.draft].work {
        t.bytes = bundle.bytes as u32;
    }
}
