//! Damage to constants: a bit flips in a weight, bias, multiplier, shift or table entry that some instruction uses.

use tpuflow_ir::isa::{ChannelParameters, Descriptor, Direction, PoolKind, Transfer, VectorOp, Work};
use tpuflow_ir::{Image, Program, Space};

use super::kinds::one_of;
use crate::common::Random;

/// Where the byte that a load before position `at` put to `address` comes from.
fn source(program: &Program, at: usize, space: Space, address: u64) -> Option<(usize, u64)> {
    let from = |t: &Transfer| {
        let inside = t.runs().find(|&(_, local)| (local..local + u64::from(t.bytes)).contains(&address));
        inside.map(|(ddr, local)| (usize::from(t.ddr_space), ddr + address - local))
    };
    let (ddr, byte) = program.instructions[..at].iter().rev().find_map(|i| match &i.work {
        Work::Transfer(t) if t.direction == Direction::Load && t.local_space == space => from(t),
        _ => None,
    })?;
    (byte < program.constants.get(ddr)?.len() as u64).then_some((ddr, byte))
}

/// Flips a bit of the constant at one of the cache bytes that `sites` names for some instruction.
fn flip(program: &mut Program, random: &mut Random, sites: impl Fn(&Program, &Work) -> Vec<(Space, u64)>) -> bool {
    let count = program.instructions.len();
    let start = random.below(count);
    for at in (start..count).chain(0..start) {
        let Some((space, address)) = one_of(sites(program, &program.instructions[at].work), random) else { continue };
        let Some((ddr, byte)) = source(program, at, space, address) else { continue };
        let mut bytes = program.constants[ddr].to_vec();
        bytes[byte as usize] ^= 1 << random.below(8);
        program.constants[ddr] = Image::from(bytes);
        return true;
    }
    false
}

/// Bytes `within` of every entry of `size` bytes.
fn entries(address: u32, count: u32, size: usize, within: std::ops::Range<usize>) -> Vec<(Space, u64)> {
    let entry = |i: u32| within.clone().map(move |byte| u64::from(address) + u64::from(i) * size as u64 + byte as u64);
    (0..count).flat_map(entry).map(|byte| (Space::EwpCache, byte)).collect()
}

/// Address, number and width of the channel parameters of an instruction.
fn channels(program: &Program, work: &Work) -> Option<(u32, u32, bool)> {
    match (work, descriptor_of(program, work)?) {
        (Work::Matrix(m), Descriptor::Matrix(d)) => {
            Some((m.parameters, m.columns, m.input.dtype.bytes().max(d.weight_dtype.bytes()) > 1))
        }
        (Work::Pool(p), Descriptor::Pool(d)) => match &d.kind {
            PoolKind::Depthwise { weight_dtype, .. } => {
                Some((p.parameters, p.input.channels, p.input.dtype.bytes().max(weight_dtype.bytes()) > 1))
            }
            _ => None,
        },
        _ => None,
    }
}

fn descriptor_of<'p>(program: &'p Program, work: &Work) -> Option<&'p Descriptor> {
    let id = match work {
        Work::Matrix(m) => m.descriptor,
        Work::Pool(p) => p.descriptor,
        Work::Vector(v) => v.descriptor,
        Work::Transfer(_) | Work::Lookup(_) | Work::Expand(_) | Work::PackedLookup(_) => return None,
    };
    Some(program.descriptor(id))
}

pub fn weight(program: &mut Program, random: &mut Random) -> bool {
    flip(program, random, |program, work| {
        let (Work::Matrix(m), Some(Descriptor::Matrix(d))) = (work, descriptor_of(program, work)) else {
            return vec![];
        };
        let rows = u64::from(d.window.kernel[0] * d.window.kernel[1] * d.group_in);
        let apart = m.weights.plane_bytes > 0;
        let inner = u64::from(m.columns) * if apart { 1 } else { d.weight_dtype.bytes() as u64 };
        let planes = if apart { vec![0, u64::from(m.weights.plane_bytes)] } else { vec![0] };
        let row = |k: u64| m.weights.address + k * u64::from(m.weights.row_bytes);
        let bytes = planes.into_iter().flat_map(|plane| (0..rows).map(move |k| (plane, k)));
        bytes.flat_map(|(plane, k)| (0..inner).map(move |i| (Space::Cache, row(k) + plane + i))).collect()
    })
}

pub fn depthwise_weight(program: &mut Program, random: &mut Random) -> bool {
    flip(program, random, |program, work| {
        let (Work::Pool(p), Some(Descriptor::Pool(d))) = (work, descriptor_of(program, work)) else { return vec![] };
        let PoolKind::Depthwise { weight_dtype, .. } = &d.kind else { return vec![] };
        let taps = d.window.kernel[0] * d.window.kernel[1];
        let size = weight_dtype.bytes();
        entries(p.weights, taps * p.input.channels, size, 0..size)
    })
}

pub fn bias(program: &mut Program, random: &mut Random) -> bool {
    flip(program, random, |program, work| {
        channels(program, work).map_or(vec![], |(address, count, wide)| {
            let size = ChannelParameters::bytes(wide);
            entries(address, count, size, 0..size / 2)
        })
    })
}

pub fn multiplier(program: &mut Program, random: &mut Random) -> bool {
    flip(program, random, |program, work| {
        channels(program, work).map_or(vec![], |(address, count, wide)| {
            let size = ChannelParameters::bytes(wide);
            entries(address, count, size, size / 2..size / 2 + 3)
        })
    })
}

pub fn fused_table(program: &mut Program, random: &mut Random) -> bool {
    flip(program, random, |program, work| {
        let shape = match descriptor_of(program, work) {
            Some(Descriptor::Matrix(d)) => d.table,
            Some(Descriptor::Pool(d)) => match d.kind {
                PoolKind::Depthwise { table, .. } => table,
                _ => None,
            },
            _ => None,
        };
        let address = match work {
            Work::Matrix(m) => m.table,
            Work::Pool(p) => p.table,
            _ => return vec![],
        };
        shape.map_or(vec![], |shape| entries(address, shape.entries, 4, 0..4))
    })
}

pub fn vector_parameter(program: &mut Program, random: &mut Random) -> bool {
    flip(program, random, |program, work| {
        let (Work::Vector(v), Some(Descriptor::Vector(op))) = (work, descriptor_of(program, work)) else {
            return vec![];
        };
        match op {
            VectorOp::Table(shape) => entries(v.parameters, shape.entries, 4, 0..4),
            VectorOp::PRelu { per_channel, .. } => {
                entries(v.parameters, if *per_channel { v.output.channels } else { 1 }, 4, 0..3)
            }
            VectorOp::LayerNorm { .. } => entries(v.parameters, v.output.channels, 16, 0..13),
            VectorOp::SharedLayerNorm { .. } => entries(v.parameters, 1, 16, 0..13),
            _ => vec![],
        }
    })
}
