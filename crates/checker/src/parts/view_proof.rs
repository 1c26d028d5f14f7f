//! Whether a strided view of part of a tensor gives what the view of all of it gives.

use super::Span;
use super::proof::{flat, index_of, spans_of};

/// Source element of an element of a strided view.
fn view_source(mut element: usize, dims: &[u32], strides: &[i64], offset: i64) -> i64 {
    let mut source = offset;
    for (&extent, &stride) in dims.iter().zip(strides).rev() {
        source += (element % extent as usize) as i64 * stride;
        element /= extent as usize;
    }
    source
}

/// A strided view: extents, strides, offset.
pub(super) type View<'a> = (&'a [u32], &'a [i64], i64);

/// Whether a view of the box `from` of a tensor of `shape` gives the box `out` of what the view `all` of that tensor gives, a tensor
/// of shape `whole`.
pub(super) fn same_view(shape: &[usize], whole: &[usize], all: View, own: View, from: &[Span], out: &[Span]) -> bool {
    let (near, result) = (spans_of(from), spans_of(out));
    let (size, held): (usize, usize) = (result.iter().product(), near.iter().product());
    let ((extent, step), (own_extent, own_step)) = (last_axis(all.0, all.1), last_axis(own.0, own.1));
    let [near_row, row] = [near, result].map(|extents| extents.last().copied().unwrap_or(1).max(1));
    let mut element = 0;
    while element < size {
        let position = flat(whole, &index_of(out, element));
        let source = view_source(position, all.0, all.1, all.2);
        let taken = usize::try_from(view_source(element, own.0, own.1, own.2)).ok().filter(|&taken| taken < held);
        let Some(taken) = taken.filter(|&taken| flat(shape, &index_of(from, taken)) as i64 == source) else {
            return false;
        };
        // While nothing but the last axes move, and all of them by one, the next elements are next to each other as well.
        let even = [
            row - element % row,
            extent - position % extent,
            own_extent - element % own_extent,
            near_row - taken % near_row,
        ];
        element += if (step, own_step) == (1, 1) { even.into_iter().min().unwrap_or(1) } else { 1 };
    }
    true
}

/// Extent and stride of the last axis of a strided view that is longer than one.
fn last_axis(dims: &[u32], strides: &[i64]) -> (usize, i64) {
    let long = dims.iter().zip(strides).rev().find(|&(&extent, _)| extent > 1);
    long.map_or((1, 1), |(&extent, &stride)| (extent as usize, stride))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn below(state: &mut u64, most: usize) -> usize {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state % most as u64) as usize
    }

    /// The definition: every element by itself.
    fn same_elements(shape: &[usize], whole: &[usize], all: View, own: View, from: &[Span], out: &[Span]) -> bool {
        let (near, result) = (spans_of(from), spans_of(out));
        (0..result.iter().product()).all(|element| {
            let source = view_source(flat(whole, &index_of(out, element)), all.0, all.1, all.2);
            let taken = view_source(element, own.0, own.1, own.2);
            let taken = usize::try_from(taken).ok().filter(|&taken| taken < near.iter().product());
            taken.is_some_and(|taken| flat(shape, &index_of(from, taken)) as i64 == source)
        })
    }

    /// Transpositions of tensors and boxes of them, of which some have an extent, a stride or an offset changed.
    #[test]
    fn verdicts_on_runs_are_those_on_every_element() {
        let (mut state, mut verdicts) = (0x9e37_79b9_7f4a_7c15_u64, [0, 0]);
        for _ in 0..4000 {
            let shape: Vec<usize> = (0..3).map(|_| 1 + below(&mut state, 5)).collect();
            let mut order = [0, 1, 2];
            order.swap(0, below(&mut state, 3));
            if below(&mut state, 2) == 0 {
                order.swap(1, 2);
            }
            let steps = |shape: &[usize]| -> Vec<i64> {
                (0..3).map(|axis| shape[axis + 1..].iter().product::<usize>() as i64).collect()
            };
            let turned = |values: &[i64]| -> Vec<i64> { order.iter().map(|&axis| values[axis]).collect() };
            let whole: Vec<usize> = order.iter().map(|&axis| shape[axis]).collect();
            let dims: Vec<u32> = whole.iter().map(|&extent| extent as u32).collect();
            let strides = turned(&steps(&shape));
            let mut cut = |extent: usize| {
                let start = below(&mut state, extent);
                (start, start + 1 + below(&mut state, extent - start))
            };
            let out: Vec<Span> = whole.iter().map(|&extent| cut(extent)).collect();
            let mut from = vec![(0, 0); 3];
            for (place, &axis) in order.iter().enumerate() {
                from[axis] = out[place];
            }
            let mut own: Vec<u32> = out.iter().map(|(a, b)| (b - a) as u32).collect();
            let mut own_strides = turned(&steps(&spans_of(&from)));
            let mut start = 0;
            match below(&mut state, 6) {
                0 => own_strides[below(&mut state, 3)] += 1,
                1 => start = 1,
                2 => own.swap(1, 2),
                3 => from[0] = (from[0].0, shape[0]),
                _ => {}
            }
            let views = ((&dims[..], &strides[..], 0), (&own[..], &own_strides[..], start));
            let expected = same_elements(&shape, &whole, views.0, views.1, &from, &out);
            assert_eq!(same_view(&shape, &whole, views.0, views.1, &from, &out), expected, "{shape:?} {views:?}");
            verdicts[usize::from(expected)] += 1;
        }
        assert!(verdicts.iter().all(|&count| count > 500), "{verdicts:?}");
    }
}
