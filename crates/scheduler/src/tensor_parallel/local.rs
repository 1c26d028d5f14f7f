//! What a device computes of a layer: the operator for a part of its result, and the parts of the operands that takes.
//!
//! Strided views are told apart by axes of both the result and the operand, so that a part of any axis of one is a part of an axis
//! of the other: channels of a projection are heads of an attention.

use tpuflow_ir::shape::result_shape;
use tpuflow_ir::{Graph, Layer, Op, TensorId};

use crate::error::TilingError;
use crate::tiling::movement::by_axis;
use crate::tiling::part::{Part, part_of};
use crate::tiling::region::{Region, steps};

/// The operator of `layer` for the part `wanted` of its result.
///
/// # Errors
/// Why it has none.
pub(super) fn part(graph: &Graph, layer: &Layer, wanted: &Region) -> Result<Part, TilingError> {
    if let Op::Rearrange { input, dims, strides, offset } = &layer.op {
        let shapes = (&graph.tensor(*input).shape[..], &graph.tensor(layer.output).shape[..]);
        return rearranged(*input, shapes, (dims, strides, *offset), wanted);
    }
    let declared = &graph.tensor(layer.output).shape;
    let computed = match layer.op {
        Op::ArgMax { .. } => None,
        _ => result_shape(&layer.op, &graph.tensors),
    };
    let computed = computed.unwrap_or_else(|| declared.clone());
    let found = part_of(graph, layer, &computed, &with_rank(wanted, computed.len()))?;
    Ok(Part { region: with_rank(&found.region, declared.len()), ..found })
}

/// The same region of a tensor with more or fewer leading axes of one element.
fn with_rank(region: &Region, rank: usize) -> Region {
    let own = &region.0;
    let missing = rank.saturating_sub(own.len());
    let kept = own[own.len().saturating_sub(rank)..].iter().copied();
    Region(std::iter::repeat_n((0, 1), missing).chain(kept).collect())
}

/// A loop of a strided view within one axis of the result, which steps along one axis of the operand, or repeats an element.
#[derive(Clone, Copy)]
struct Loop {
    axis: usize,
    extent: usize,
    /// The operand's axis, and how many of its cells a step is.
    step: Option<(usize, i64)>,
}

/// A part of a strided view.
fn rearranged(
    input: TensorId,
    (shape, result): (&[usize], &[usize]),
    (dims, strides, offset): (&[u32], &[i64], i64),
    wanted: &Region,
) -> Result<Part, TilingError> {
    let loops = loops(shape, dims, strides, result)?;
    let mut region = wanted.clone();
    let mut start: Vec<i64> =
        steps(shape).iter().zip(shape).map(|(step, &extent)| offset / step % extent as i64).collect();
    let mut own = Vec::with_capacity(loops.len());
    for axis in 0..result.len() {
        let mut inner = loops.iter().filter(|each| each.axis == axis).copied();
        let Some(outer) = inner.next() else { continue };
        let unit: usize = inner.clone().map(|each| each.extent).product();
        let (from, to) = (wanted.0[axis].0 / unit, wanted.0[axis].1.div_ceil(unit));
        region.0[axis] = (from * unit, to * unit);
        if let Some((along, cells)) = outer.step {
            start[along] += from as i64 * cells;
        }
        own.push(Loop { extent: to - from, ..outer });
        own.extend(inner);
    }
    let (mut low, mut high) = (start.clone(), start.clone());
    for each in &own {
        if let Some((along, cells)) = each.step {
            let far = (each.extent as i64 - 1) * cells;
            low[along] += far.min(0);
            high[along] += far.max(0);
        }
    }
    if low.iter().zip(&high).zip(shape).any(|((&low, &high), &extent)| low < 0 || high >= extent as i64) {
        return Err(TilingError::Across);
    }
    let operand = Region(low.iter().zip(&high).map(|(&low, &high)| (low as usize, high as usize + 1)).collect());
    let cell = steps(&operand.shape());
    let offset = start.iter().zip(&low).zip(&cell).map(|((start, low), cell)| (start - low) * cell).sum();
    let (mut extents, mut strides): (Vec<u32>, Vec<i64>) = (vec![], vec![]);
    for each in own.iter().filter(|each| each.extent > 1) {
        let stride = each.step.map_or(0, |(along, cells)| cells * cell[along]);
        match (extents.last_mut(), strides.last_mut()) {
            (Some(extent), Some(outer)) if *outer == stride * each.extent as i64 => {
                *extent *= each.extent as u32;
                *outer = stride;
            }
            _ => {
                extents.push(each.extent as u32);
                strides.push(stride);
            }
        }
    }
    if extents.is_empty() {
        (extents, strides) = (vec![1], vec![1]);
    }
    Ok(Part { op: Op::Rearrange { input, dims: extents, strides, offset }, region, operands: vec![operand] })
}

/// The loops of a view, each within an axis of the result and an axis of the operand; outermost first.
fn loops(shape: &[usize], dims: &[u32], strides: &[i64], result: &[usize]) -> Result<Vec<Loop>, TilingError> {
    let cell = steps(shape);
    let mut loops = Vec::new();
    for each in by_axis(dims, strides, result)?.iter().rev() {
        let (mut rest, mut stride) = (each.extent, each.stride);
        while rest > 1 {
            if stride == 0 {
                loops.push(Loop { axis: each.axis, extent: rest, step: None });
                break;
            }
            let fits = |&axis: &usize| shape[axis] > 1 && cell[axis] <= stride.abs() && stride % cell[axis] == 0;
            let along = (0..shape.len()).find(fits).ok_or(TilingError::Across)?;
            let cells = stride / cell[along];
            let longest = shape[along].div_ceil(cells.unsigned_abs() as usize);
            let extent = rest.min(longest);
            if extent < 2 || !rest.is_multiple_of(extent) {
                return Err(TilingError::Across);
            }
            if rest > extent && extent as i64 * cells.abs() != shape[along] as i64 {
                return Err(TilingError::Across);
            }
            loops.push(Loop { axis: each.axis, extent, step: Some((along, cells)) });
            rest /= extent;
            stride *= extent as i64;
        }
    }
    loops.reverse();
    Ok(loops)
}
