//! Constants in the form the machine reads them.
//!
//! Weights of a column tile are `[k][columns]` with `k = (kernel row, kernel column, channel of the group)`, a row padded to a
//! power of two or whole words; the two bytes of int16 weights lie in planes apart, floats side by side. Parameters follow the encodings of
//! [`tpuflow_ir::isa`].

use std::ops::Range;

use tpuflow_ir::Arithmetic::{Fixed, Float};
use tpuflow_ir::isa::{ChannelParameters, NormParameters, Slope};
use tpuflow_ir::layout::pack as pack_activation;
use tpuflow_ir::{Op, Packed, TensorId, timing};

use crate::network::Network;
use crate::network::{Linear, row_bytes};
use crate::virtual_program::{PackedPart, Packing, Tile};

/// Writes a constant at the start of `out`, which is zero and at least as long.
pub(crate) fn pack(network: &Network, packing: &Packing, (space, word): (usize, usize), out: &mut [u8]) {
    match packing {
        Packing::Weights { step, tiles } => weights(network, &network.steps[*step].op, tiles, word, out),
        Packing::Expand(part) => {
            expandable(network, part, out);
        }
        Packing::Entries(table) => {
            let mut out = out;
            let first = if table.spaces == 1 { 0 } else { space };
            for part in table.entries().skip(first).step_by(table.spaces as usize) {
                let bytes = expandable(network, &part, out).next_multiple_of(word);
                out = out.split_at_mut(bytes.min(out.len())).1;
            }
        }
        Packing::Parameters { step, first, count } => {
            copy(&channel_parameters(network, &network.steps[*step].op, *first, *count), out);
        }
        Packing::Depthwise { step, first, count } => {
            let op = &network.steps[*step].op;
            let Op::Conv { weights, .. } = op else { return };
            let tensor = network.tensor(*weights);
            let (channels, size) = (tensor.shape[0], tensor.dtype.bytes());
            let taps = tensor.shape[1] * tensor.shape[2];
            let bytes = tensor.constant.as_deref().unwrap_or_default();
            let count_ = *count as usize;
            for tap in 0..taps {
                for channel in 0..count_ {
                    let from = ((*first as usize + channel) * taps + tap) * size;
                    let to = (tap * count_ + channel) * size;
                    out[to..to + size].copy_from_slice(&bytes[from..from + size]);
                }
            }
            debug_assert!(*first as usize + count_ <= channels);
            let start = (taps * count_ * size).next_multiple_of(word);
            copy(&channel_parameters(network, op, *first, *count), &mut out[start..]);
        }
        Packing::Vector { step } => copy(&vector_parameters(network, &network.steps[*step].op), out),
        Packing::Table { tensor } => copy(network.tensor(*tensor).constant.as_deref().unwrap_or_default(), out),
        Packing::Activation { tensor } => activation(network, *tensor, word, out),
        Packing::Bundle(parts) => {
            for (offset, part) in parts {
                pack(network, part, (space, word), &mut out[*offset as usize..]);
            }
        }
    }
}

fn copy(from: &[u8], to: &mut [u8]) {
    to[..from.len()].copy_from_slice(from);
}

fn activation(network: &Network, tensor: TensorId, word: usize, out: &mut [u8]) {
    let tensor = network.tensor(tensor);
    let bytes = tensor.constant.as_deref().unwrap_or_default();
    copy(&pack_activation(bytes, &tensor.shape, tensor.dtype, word), out);
}

fn weights(network: &Network, op: &Op, tiles: &[Tile], word: usize, out: &mut [u8]) {
    let Some(linear) = Linear::of(op, network) else { return };
    let tensor = network.tensor(linear.right);
    let (bytes, size) = (tensor.constant.as_deref().unwrap_or_default(), tensor.dtype.bytes());
    let k = linear.k() as usize;
    // Convolution weights are [column][k]; right operands of products [lead][k][column].
    let is_conv = matches!(op, Op::Conv { .. });
    let columns = linear.columns() as usize;
    let mut at = 0;
    for &(lead, first, count) in tiles {
        let total = linear.tile_bytes(count, tensor.dtype, word) as usize;
        let row = row_bytes(count, tensor.dtype, word);
        // From byte to byte and from column to column.
        let (plane, step) = if tensor.dtype.is_float() { (1, size) } else { (total / size, 1) };
        let count = count as usize;
        let tile = &mut out[at..at + total];
        for column in 0..count {
            let global = first as usize + column;
            for i in 0..k {
                let source = if is_conv { global * k + i } else { (lead as usize * k + i) * columns + global } * size;
                for byte in 0..size {
                    tile[byte * plane + i * row + column * step] = bytes[source + byte];
                }
            }
        }
        at += total;
    }
}

/// A part of a packed constant as [`Expand`](tpuflow_ir::isa::Expand) reads it; how many bytes that are.
fn expandable(network: &Network, part: &PackedPart, out: &mut [u8]) -> usize {
    let tensor = network.tensor(part.tensor);
    let (Some(packed), &[_, all]) = (&tensor.packed, &tensor.shape[..]) else { return 0 };
    let expand = part.expand(packed);
    let [first_row, rows] = part.rows.map(|n| n as usize);
    let (mut at, block) = (0, packed.block as usize);
    for start in (first_row..first_row + rows).step_by(block) {
        let own = start..(first_row + rows).min(start + block);
        let bytes = expand.block_bytes(own.len() as u64) as usize;
        let out = &mut out[at..at + bytes];
        if part.is_by_column {
            records(packed, part, own, all, out);
        } else {
            lines(packed, part, own, all, out);
        }
        at += bytes;
    }
    at
}

/// A block by row: scales, zero points, rows of codes.
fn lines(packed: &Packed, part: &PackedPart, rows: Range<usize>, all: usize, out: &mut [u8]) {
    let [first, count] = part.columns.map(|n| n as usize);
    let expand = part.expand(packed);
    let (width, cells) = (part.row_bytes as usize, rows.start / packed.block as usize * all + first);
    let (header, codes) = out.split_at_mut(expand.header_bytes() as usize);
    for column in 0..count {
        header[column] = packed.scales[cells + column];
        if packed.has_zero_points {
            header[width + column / 2] |= packed.zero_point(cells + column) << (column % 2 * 4);
        }
    }
    for (k, line) in rows.zip(codes.chunks_mut(expand.code_bytes() as usize)) {
        for column in 0..count {
            line[column / 2] |= packed.code(k * all + first + column) << (column % 2 * 4);
        }
    }
}

/// A block by column: of each its scale, its zero point, its codes.
fn records(packed: &Packed, part: &PackedPart, rows: Range<usize>, all: usize, out: &mut [u8]) {
    let [first, count] = part.columns.map(|n| n as usize);
    let expand = part.expand(packed);
    let (header, cells) = (expand.record_header_bytes() as usize, rows.start / packed.block as usize * all + first);
    let records = out.chunks_exact_mut(expand.record_bytes(rows.len() as u64) as usize);
    for (column, record) in records.take(count).enumerate() {
        record[0] = packed.scales[cells + column];
        if packed.has_zero_points {
            record[1] = packed.zero_point(cells + column);
        }
        for (at, k) in rows.clone().enumerate() {
            record[header + at / 2] |= packed.code(k * all + first + column) << (at % 2 * 4);
        }
    }
}

fn channel_parameters(network: &Network, op: &Op, first: u32, count: u32) -> Vec<u8> {
    let (input, right, bias, epilogue) = match op {
        Op::Conv { input, weights, bias, epilogue, .. } => (input, weights, Some(bias), epilogue),
        Op::MatMul { a, b, bias, epilogue, .. } => (a, b, bias.as_ref(), epilogue),
        _ => return Vec::new(),
    };
    let bias = bias.map(|b| network.tensor(*b));
    let wide = timing::has_wide_sums(network.tensor(*input).dtype, network.tensor(*right).dtype);
    let mut out = Vec::with_capacity(count as usize * ChannelParameters::bytes(wide));
    let channels = first as usize..(first + count) as usize;
    match epilogue {
        Fixed(epilogue) => {
            let bias = bias.map(tpuflow_ir::Tensor::integers);
            for channel in channels {
                let (multiplier, shift) = epilogue.requant.of(channel);
                let bias = bias.as_ref().map_or(0, |b| b[channel]);
                ChannelParameters { bias, multiplier: multiplier as i16, shift }.encode(wide, &mut out);
            }
        }
        Float(_) => {
            let bias = bias.map(tpuflow_ir::Tensor::f32s);
            for channel in channels {
                ChannelParameters::float(bias.as_ref().map_or(0.0, |b| b[channel])).encode(wide, &mut out);
            }
        }
    }
    out
}

fn vector_parameters(network: &Network, op: &Op) -> Vec<u8> {
    let mut out = Vec::new();
    match op {
        Op::PRelu { slopes: Fixed(slopes), .. } => {
            for (&multiplier, &shift) in slopes.negative_multiplier.iter().zip(&slopes.negative_shift) {
                Slope { multiplier: multiplier as i16, shift }.encode(&mut out);
            }
        }
        Op::LayerNorm { gamma, beta, norm: Fixed(norm), .. } => {
            let entries = NormParameters::of(norm, network.tensor(*gamma), network.tensor(*beta));
            entries.iter().for_each(|entry| entry.encode(&mut out));
        }
        Op::PRelu { slopes: Float(slopes), .. } => {
            for slope in &slopes.negative {
                out.extend_from_slice(&slope.single().unwrap_or_default().to_le_bytes());
            }
        }
        Op::LayerNorm { gamma, beta, norm: Float(_), .. } => {
            for (gamma, beta) in network.tensor(*gamma).f32s().into_iter().zip(network.tensor(*beta).f32s()) {
                out.extend_from_slice(&gamma.to_le_bytes());
                out.extend_from_slice(&beta.to_le_bytes());
            }
        }
        _ => {}
    }
    out
}
