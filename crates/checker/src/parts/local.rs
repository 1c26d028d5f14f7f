//! The operator of a part: the layer's own, with fields counted from where the part and what it takes begin.

use tpuflow_ir::op::{FloatSlopes, Slopes};
use tpuflow_ir::{Arithmetic, Epilogue, Graph, LinearTap, Op, Requant, Window};

use super::access::Stretch;
use super::view::View;
use super::{LayerPartsError, Span, extents};

/// The operator that computes the box `span` of the result of `op` from the stretches `taken` of its operands (`None`:
/// nothing).
pub(super) fn local(
    graph: &Graph,
    op: &Op,
    span: &[Span],
    result: &[Span],
    taken: &[Option<Vec<Stretch>>],
) -> Result<Op, LayerPartsError> {
    let first = taken.first().and_then(Option::as_deref).unwrap_or_default();
    let last = span.last().copied().unwrap_or((0, 1));
    let mut own = op.clone();
    match &mut own {
        Op::Conv { weights, window, groups, epilogue, .. } => {
            let each = graph.tensor(*weights).shape[0] / *groups as usize;
            if *groups > 1 {
                *groups = ((last.1 - last.0) / each) as u32;
            }
            slide(window, first);
            columns(epilogue, last);
        }
        Op::MatMul { epilogue, .. } => columns(epilogue, last),
        Op::MaxPool { window, .. } => slide(window, first),
        Op::AveragePool { window, beyond, .. } => {
            for side in 0..2 {
                let declared = window.pads[side + 2] - beyond[side];
                beyond[side] = (first[side + 1].after as u32).saturating_sub(declared);
            }
            slide(window, first);
        }
        Op::PRelu { slopes, .. } => match slopes {
            Arithmetic::Fixed(Slopes { negative_multiplier, negative_shift, .. }) => {
                keep_channels(negative_multiplier, last);
                keep_channels(negative_shift, last);
            }
            Arithmetic::Float(FloatSlopes { negative, .. }) => keep_channels(negative, last),
        },
        Op::ResizeLinear { rows, columns, .. } => {
            for (taps, axis) in [(rows, 1), (columns, 2)] {
                let (kept, start) = (span[axis].0..span[axis].1, first[axis].cells.0 as u32);
                let near = |tap: &LinearTap| LinearTap { first: tap.first - start, second: tap.second - start, ..*tap };
                *taps = taps[kept].iter().map(near).collect();
            }
        }
        Op::Concat { inputs, requants, .. } => {
            let mut used = taken.iter().map(Option::is_some);
            requants.retain(|_| used.next().unwrap_or(false));
            let mut used = taken.iter().map(Option::is_some);
            inputs.retain(|_| used.next().unwrap_or(false));
        }
        Op::Pad { before, after, .. } => {
            for (axis, stretch) in first.iter().enumerate() {
                (before[axis], after[axis]) = (stretch.before as u32, stretch.after as u32);
            }
        }
        Op::Gather { axis, indices, .. } => {
            let (axis, start) = (*axis as usize, first[*axis as usize].cells.0 as u32);
            *indices = indices[span[axis].0..span[axis].1].iter().map(|index| index - start).collect();
        }
        Op::Rearrange { input, dims, strides, offset } => {
            let view = View::new(dims, strides, *offset, &extents(result))?;
            let cells: Vec<Span> = first.iter().map(|stretch| stretch.cells).collect();
            (*dims, *strides, *offset) = view.local(span, &graph.tensor(*input).shape, &cells);
        }
        _ => {}
    }
    Ok(own)
}

/// A window whose padding is what the part's windows see of it.
fn slide(window: &mut Window, image: &[Stretch]) {
    for side in 0..2 {
        window.pads[side] = image[side + 1].before as u32;
        window.pads[side + 2] = image[side + 1].after as u32;
    }
}

fn columns(epilogue: &mut Arithmetic<Epilogue>, columns: Span) {
    if let Arithmetic::Fixed(Epilogue { requant: Requant { multiplier, shift, .. }, .. }) = epilogue {
        keep_channels(multiplier, columns);
        keep_channels(shift, columns);
    }
}

/// Leaves the entries of some channels, where there is one for each.
fn keep_channels<T>(entries: &mut Vec<T>, channels: Span) {
    if entries.len() > 1 {
        entries.truncate(channels.1);
        entries.drain(..channels.0);
    }
}
