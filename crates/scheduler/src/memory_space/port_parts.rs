//! Inputs and outputs cut into parts, so that all channels of the external memory move them.
//!
//! Every part is a buffer of its own, which addresses put into the address space with the least traffic so far. A port is cut
//! where one transfer ends and the next begins; where every transfer touches all of it, as column tiles do, in its middle, and
//! the transfers with it. So are two parts of different size where no other traffic makes up for them: entries of packed tables lie in
//! the address spaces in turn.
//!
//! ```text
//!  rows 0 ..   transfer | transfer | transfer          columns   | tile | tile | tile |
//!  parts       space 0    space 1    space 0           space 0   |......|......|......|
//!                                                      space 1   |......|......|......|
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use tpuflow_ir::isa::Transfer;
use tpuflow_ir::{Graph, Machine, View, Work};

use super::LoweredNetwork;
use crate::lowering::vector::gcd;
use crate::virtual_program::{BufferId, Content, Memory, VirtualAddress, VirtualInstruction, VirtualProgram};

/// A part takes its channel at least as long as so many start-ups of a transfer.
const LEAST: u64 = 4;

/// Parts of a port, at most.
const MOST: u64 = 64;

/// Cuts inputs and outputs that take their channel long, but for those of states; the parts of an exchange alike.
pub(crate) fn cut_ports(lowered: &mut LoweredNetwork, graph: &Graph, machine: &Machine) {
    if machine.ddr_spaces() < 2 {
        return;
    }
    let word = machine.word();
    let mut views: BTreeMap<BufferId, Vec<View>> = BTreeMap::new();
    for port in lowered.inputs.iter().chain(&lowered.outputs) {
        views.entry(VirtualAddress::of_field(port.view.address).buffer).or_default().push(port.view);
    }
    let states: BTreeSet<BufferId> =
        lowered.states(graph, word).into_iter().flatten().map(|(buffer, _)| buffer).collect();
    let peers = peers(&lowered.code);
    let transfers = transfers(&lowered.code);
    let has_tables =
        lowered.code.instructions.iter().any(|each| matches!(each.work, Work::PackedLookup(l) if l.spaces > 1));
    let start = machine.dma.start + machine.dma.latency;
    let mut parts: BTreeMap<BufferId, Vec<(u64, BufferId)>> = BTreeMap::new();
    for (buffer, views) in views {
        let b = &lowered.code.buffers[buffer.index()];
        let of_peers = peers.get(&buffer).map_or(&[][..], Vec::as_slice);
        let Some(transfers) = all_transfers(&transfers, buffer, of_peers) else { continue };
        let (bytes, is_port) =
            (b.bytes, b.memory == Memory::Ddr && matches!(b.content, Content::Input | Content::Output));
        let is_whole =
            |view: &View| view.address == buffer.at(0) && view.bytes(word) == bytes && view.channel_offset == 0;
        let is_long = |bytes: u64| machine.ddr_cycles(bytes) >= LEAST * start;
        let is_peer = b.peer.is_some();
        if !is_port || is_peer || states.contains(&buffer) || !views.iter().all(is_whole) || !is_long(bytes / 2) {
            continue;
        }
        let Some(unit) = views.iter().map(|view| unit(view, word)).reduce(lowest_common_multiple) else { continue };
        let even = has_tables || !of_peers.is_empty();
        let cuts = cuts(bytes, unit, &transfers, even, |part| is_long(part) && part * MOST >= bytes);
        if !cuts.is_empty() {
            let own = cut_buffer(&mut lowered.code, buffer, &cuts);
            for &(peer, rank) in of_peers {
                let theirs = cut_buffer(&mut lowered.code, peer, &cuts);
                for (&(_, own), &(_, part)) in own.iter().zip(&theirs) {
                    lowered.code.buffers_mut()[part.index()].peer = Some((own, rank));
                }
                parts.insert(peer, theirs);
            }
            parts.insert(buffer, own);
        }
    }
    if parts.is_empty() {
        return;
    }
    cut_transfers(&mut lowered.code, &parts);
    for port in lowered.inputs.iter_mut().chain(&mut lowered.outputs) {
        if let Some(parts) = parts.get(&VirtualAddress::of_field(port.view.address).buffer) {
            port.parts =
                parts[1..].iter().map(|&(start, buffer)| (pixel_at(&port.view, start, word), buffer)).collect();
        }
    }
}

/// By buffer that is a part of an exchange, those of all devices and their ranks.
fn peers(code: &VirtualProgram) -> BTreeMap<BufferId, Vec<(BufferId, u8)>> {
    let mut found: BTreeMap<BufferId, Vec<(BufferId, u8)>> = BTreeMap::new();
    for (index, buffer) in code.buffers.iter().enumerate() {
        if let Some((own, rank)) = buffer.peer {
            found.entry(own).or_default().push((BufferId::new(index), rank));
        }
    }
    found
}

/// The transfers from or to a buffer and its like on other devices, if nothing else reads it.
fn all_transfers(
    transfers: &BTreeMap<BufferId, Option<Vec<Transfer>>>,
    buffer: BufferId,
    peers: &[(BufferId, u8)],
) -> Option<Vec<Transfer>> {
    let mut all = transfers.get(&buffer)?.clone()?;
    for (peer, _) in peers {
        all.extend(transfers.get(peer)?.clone()?);
    }
    Some(all)
}

/// By buffer, the bytes of every transfer from or to it; `None`: something else reads it.
fn transfers(code: &VirtualProgram) -> BTreeMap<BufferId, Option<Vec<Transfer>>> {
    let mut found: BTreeMap<BufferId, Option<Vec<Transfer>>> = BTreeMap::new();
    for instruction in &code.instructions {
        let Some(transfer) = instruction.transfer() else {
            for buffer in instruction.touches() {
                found.insert(buffer, None);
            }
            continue;
        };
        let buffer = VirtualAddress::of_field(transfer.ddr_address).buffer;
        if let Some(list) = found.entry(buffer).or_insert_with(|| Some(Vec::new())) {
            list.push(*transfer);
        }
    }
    found
}

/// Bytes between places a port may be cut at: rows, or pixels on words where rows have no gaps between them.
fn unit(view: &View, word: usize) -> u64 {
    let pixel = u64::from(view.pixel_bytes);
    let has_gaps = view.rows > 1 && view.row_bytes(word) > u64::from(view.width) * pixel;
    if has_gaps { view.row_bytes(word) } else { lowest_common_multiple(pixel, word as u64) }
}

fn lowest_common_multiple(a: u64, b: u64) -> u64 {
    a / (gcd(a as usize, b as usize) as u64).max(1) * b
}

/// The bytes of a buffer that a transfer touches, in its order.
fn span(transfer: &Transfer) -> Range<u64> {
    let start = VirtualAddress::of_field(transfer.ddr_address).offset;
    let reach: u64 = (0..2).map(|n| u64::from(transfer.counts[n].max(1) - 1) * transfer.ddr_strides[n]).sum();
    start..start + reach + u64::from(transfer.bytes)
}

/// Where to cut a buffer: between transfers, else in the middle if all transfers can be cut there; also if two parts are to be `even`
/// and would not be.
fn cuts(bytes: u64, unit: u64, transfers: &[Transfer], even: bool, is_long: impl Fn(u64) -> bool) -> Vec<u64> {
    let mut spans: Vec<Range<u64>> = transfers.iter().map(span).collect();
    spans.sort_unstable_by_key(|span| (span.start, span.end));
    let (mut found, mut last, mut reach) = (Vec::new(), 0, 0);
    for Range { start, end } in spans {
        let fits = start.is_multiple_of(unit) && is_long(start - last) && is_long(bytes - start);
        if reach <= start && fits {
            found.push(start);
            last = start;
        }
        reach = reach.max(end);
    }
    let is_uneven = matches!(found[..], [cut] if cut.max(bytes - cut) > bytes / 2 + bytes / 16);
    if found.is_empty() || even && is_uneven {
        let middle = (bytes / 2).next_multiple_of(unit);
        let can_cut = |transfer: &Transfer| !crosses(transfer, middle) || cut(transfer, middle).is_some();
        if middle < bytes && is_long(bytes - middle) && transfers.iter().all(can_cut) {
            found = vec![middle];
        }
    }
    found
}

fn crosses(transfer: &Transfer, at: u64) -> bool {
    let span = span(transfer);
    span.start < at && at < span.end
}

/// The transfer of what lies before a place in the buffer, and that of what lies behind it.
fn cut(transfer: &Transfer, at: u64) -> Option<[Transfer; 2]> {
    let start = VirtualAddress::of_field(transfer.ddr_address).offset;
    let bytes = u64::from(transfer.bytes);
    let moved = |ddr: u64, local: u64| Transfer {
        ddr_address: transfer.ddr_address + ddr,
        local_address: transfer.local_address + local,
        ..*transfer
    };
    if transfer.counts == [1, 1] {
        let first = at - start;
        let [before, after] = [first, bytes - first].map(u32::try_from);
        return Some([
            Transfer { bytes: before.ok()?, ..*transfer },
            Transfer { bytes: after.ok()?, ..moved(first, first) },
        ]);
    }
    // Of the outer loop that has more than one run, those before and those behind.
    let outer = usize::from(transfer.counts[0] == 1);
    let stride = transfer.ddr_strides[outer];
    let before = u32::try_from((at - start).div_ceil(stride.max(1))).ok()?;
    let after = transfer.counts[outer].checked_sub(before)?;
    let with = |count: u32| {
        let mut counts = transfer.counts;
        counts[outer] = count;
        counts
    };
    let (ddr, local) = (u64::from(before) * stride, u64::from(before) * transfer.local_strides[outer]);
    let parts = [Transfer { counts: with(before), ..*transfer }, Transfer { counts: with(after), ..moved(ddr, local) }];
    let is_apart = before > 0 && after > 0 && span(&parts[0]).end <= at && at <= span(&parts[1]).start;
    is_apart.then_some(parts)
}

/// The parts of a buffer, each with its first byte; the first is what is left of it.
fn cut_buffer(code: &mut VirtualProgram, buffer: BufferId, cuts: &[u64]) -> Vec<(u64, BufferId)> {
    let whole = code.buffers[buffer.index()].clone();
    code.buffers_mut()[buffer.index()].bytes = cuts[0];
    let ends = cuts[1..].iter().copied().chain([whole.bytes]);
    let mut parts = vec![(0, buffer)];
    for (&start, end) in cuts.iter().zip(ends) {
        parts.push((start, code.buffer(whole.name.clone(), end - start, whole.memory, whole.content.clone())));
    }
    parts
}

/// Lets every transfer touch one part alone.
fn cut_transfers(code: &mut VirtualProgram, parts: &BTreeMap<BufferId, Vec<(u64, BufferId)>>) {
    let instructions = std::mem::take(&mut code.instructions);
    for instruction in instructions {
        let parts = instruction.transfer().and_then(|t| parts.get(&VirtualAddress::of_field(t.ddr_address).buffer));
        let (Some(mut rest), Some(parts)) = (instruction.transfer().copied(), parts) else {
            code.instructions.push(instruction);
            continue;
        };
        for (index, &(start, part)) in parts.iter().enumerate() {
            let end = parts.get(index + 1).map(|next| next.0);
            let mut own = rest;
            let is_cut = end.filter(|&end| crosses(&rest, end)).and_then(|end| cut(&rest, end));
            let is_last = is_cut.is_none();
            if end.is_some_and(|end| span(&rest).start >= end) {
                continue;
            }
            if let Some([before, after]) = is_cut {
                (own, rest) = (before, after);
            }
            own.ddr_address = part.at(VirtualAddress::of_field(own.ddr_address).offset - start);
            code.instructions.push(VirtualInstruction { work: Work::Transfer(own), ..instruction.clone() });
            if is_last {
                break;
            }
        }
    }
}

/// The pixel of a tensor that lies at an offset of its bytes.
fn pixel_at(view: &View, offset: u64, word: usize) -> u32 {
    let row = view.row_bytes(word);
    let (rows, rest) = if view.rows > 1 { (offset / row, offset % row) } else { (0, offset) };
    rows as u32 * view.width + (rest / u64::from(view.pixel_bytes)) as u32
}
