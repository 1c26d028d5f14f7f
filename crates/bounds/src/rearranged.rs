//! Pixels, matrices and lines that the pixels, matrices and lines of a rearranged tensor are made of.
//!
//! A tensor `[tokens, heads x channels]` whose heads become matrices `[heads, tokens, channels]`: each matrix holds the line of one
//! channel over all tokens. Where heads are joined again, a pixel is made of a pixel of each of so many matrices.

/// Matrices of so many elements that loops of a permutation visit.
pub(super) fn matrices(loops: &[Loop], elements: usize) -> u64 {
    let elements = elements as i64;
    let visited = |&(stride, extent): &Loop| {
        let even = stride % elements == 0 || elements % stride == 0;
        if even { (extent as u64).min((extent as u64 - 1) * stride as u64 / elements as u64 + 1) } else { 1 }
    };
    loops.iter().map(visited).product()
}

/// Stride and extent.
pub(super) type Loop = (i64, usize);

/// The loops by which a tensor is rearranged, the innermost last.
pub(super) struct Loops<'a> {
    pub dims: &'a [u32],
    pub strides: &'a [i64],
    pub offset: i64,
}

impl Loops<'_> {
    /// From the innermost on.
    fn outwards(&self) -> Vec<Loop> {
        let loops = self.strides.iter().rev().zip(self.dims.iter().rev());
        loops.map(|(&stride, &extent)| (stride, extent as usize)).filter(|&(_, extent)| extent > 1).collect()
    }

    /// The steps from one pixel of the operand to another within a pixel of the result, where this is made of whole ones.
    pub fn pixels(&self, channels: usize, columns: usize) -> Option<Vec<Loop>> {
        let whole = channels as i64;
        let mut loops = self.outwards();
        if channels > 1 {
            let (stride, extent) = *loops.first()?;
            if stride != 1 || !extent.is_multiple_of(channels) {
                return None;
            }
            loops[0] = (whole, extent / channels);
        }
        if self.offset % whole != 0 || loops.iter().any(|(stride, _)| stride % whole != 0) {
            return None;
        }
        split_off(&mut loops, columns.is_multiple_of(channels).then_some(columns / channels)?)
    }

    /// By axis of the result, the loops along it.
    pub fn by_axis(&self, result: &[usize]) -> Option<Vec<Vec<Loop>>> {
        let mut loops = self.outwards();
        let mut axes: Vec<Vec<Loop>> =
            result.iter().rev().map(|&extent| split_off(&mut loops, extent)).collect::<Option<_>>()?;
        axes.reverse();
        Some(axes)
    }
}

/// Whether some of these loops go along whole lines of an axis, wherever the others are, given its extent and those inside it.
pub(super) fn hold_lines(some: &[Loop], all: &[Loop], offset: i64, extents: &[usize]) -> bool {
    let (axis, inside) = (extents[0], extents[1..].iter().product::<usize>() as i64);
    let end = inside * axis as i64;
    let is_along = |loops: &&Loop| (inside..end).contains(&loops.0);
    let mut along: Vec<Loop> = some.iter().filter(is_along).copied().collect();
    along.sort_unstable();
    let reached = along.iter().try_fold(inside, |at, &(stride, extent)| (stride == at).then_some(at * extent as i64));
    // The others stay between two elements of a line, or go from one line to another.
    let below: i64 = all.iter().filter(|l| l.0 < inside).map(|l| l.0 * (l.1 as i64 - 1)).sum();
    let apart = all.iter().all(|l| (0..inside).contains(&l.0) || l.0 % end == 0 || along.contains(l));
    axis > 1 && reached == Some(end) && apart && offset % end + below < inside
}

/// The innermost loops, taken from all that are left, of so many elements.
fn split_off(loops: &mut Vec<Loop>, elements: usize) -> Option<Vec<Loop>> {
    let mut left = elements;
    let mut taken = Vec::new();
    while left > 1 {
        let (stride, extent) = *loops.first()?;
        let part = extent.min(left);
        if !left.is_multiple_of(part) || !extent.is_multiple_of(part) {
            return None;
        }
        taken.push((stride, part));
        left /= part;
        if part == extent {
            loops.remove(0);
        } else {
            loops[0] = (stride * part as i64, extent / part);
        }
    }
    (left == 1).then_some(taken)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::common::Random;
    use crate::linear::is_permutation;

    /// Where each element of a result comes from, in its order.
    fn sources(dims: &[u32], strides: &[i64], offset: i64) -> Vec<usize> {
        let mut found = vec![offset];
        for (&extent, &stride) in dims.iter().zip(strides) {
            found = found.iter().flat_map(|&at| (0..i64::from(extent)).map(move |i| at + i * stride)).collect();
        }
        found.into_iter().map(|at| at as usize).collect()
    }

    /// Elements of each line of a tensor along an axis.
    fn lines(shape: &[usize], axis: usize) -> Vec<Vec<usize>> {
        let inside: usize = shape[axis + 1..].iter().product();
        let count: usize = shape.iter().product();
        let starts = (0..count).filter(|at| (at / inside).is_multiple_of(shape[axis]));
        starts.map(|start| (0..shape[axis]).map(|i| start + i * inside).collect()).collect()
    }

    /// A tensor, split, transposed and cut, and the shape that it takes.
    struct Case {
        operand: Vec<usize>,
        dims: Vec<u32>,
        strides: Vec<i64>,
        offset: i64,
        result: Vec<usize>,
    }

    fn case(rng: &mut Random) -> Case {
        let parts: Vec<usize> = (0..4).map(|_| 1 + rng.below(3)).collect();
        let join = |parts: &[usize], at: usize| -> Vec<usize> {
            [&parts[..at], &[parts[at] * parts[at + 1]], &parts[at + 2..]].concat()
        };
        let operand = if rng.chance(60) { join(&parts, rng.below(3)) } else { parts.clone() };
        let mut steps: Vec<i64> = (0..4).map(|i| parts[i + 1..].iter().product::<usize>() as i64).collect();
        let mut extents = parts;
        let mut offset = 0;
        if rng.chance(30) {
            let axis = rng.below(4);
            let kept = 1 + rng.below(extents[axis]);
            offset = steps[axis] * rng.below(extents[axis] - kept + 1) as i64;
            extents[axis] = kept;
        }
        if rng.chance(20) {
            let axis = rng.below(4);
            offset += steps[axis] * (extents[axis] as i64 - 1);
            steps[axis] = -steps[axis];
        }
        for last in (1..4).rev() {
            let other = rng.below(last + 1);
            extents.swap(last, other);
            steps.swap(last, other);
        }
        let result = if rng.chance(60) { join(&extents, rng.below(3)) } else { extents.clone() };
        // Loops that continue each other are one.
        let (mut dims, mut strides): (Vec<u32>, Vec<i64>) = (vec![], vec![]);
        for (&extent, &step) in extents.iter().zip(&steps).filter(|(extent, _)| **extent > 1) {
            match (dims.last_mut(), strides.last_mut()) {
                (Some(dim), Some(stride)) if *stride == step * extent as i64 && rng.chance(80) => {
                    (*dim, *stride) = (*dim * extent as u32, step);
                }
                _ => {
                    dims.push(extent as u32);
                    strides.push(step);
                }
            }
        }
        Case { operand, dims, strides, offset, result }
    }

    #[test]
    fn what_is_said_of_rearranged_pixels_and_lines_is_so() {
        let mut rng = Random(3);
        let mut said = [0; 4];
        for _ in 0..20_000 {
            let Case { operand, dims, strides, offset, result } = case(&mut rng);
            let loops = Loops { dims: &dims, strides: &strides, offset };
            let from = sources(&dims, &strides, offset);
            let elements: usize = operand.iter().product();
            let [rows, channels] = [operand[operand.len() - 2], operand[operand.len() - 1]];
            let columns = *result.last().expect("axes");
            let pixels = |taken: &[usize]| -> Vec<usize> {
                let taken: HashSet<usize> = taken.iter().copied().collect();
                (0..elements / channels)
                    .filter(|p| (0..channels).all(|c| taken.contains(&(p * channels + c))))
                    .collect()
            };
            if let Some(steps) = loops.pixels(channels, columns) {
                let every = is_permutation(&dims, &strides, offset, elements);
                let count = if every { matrices(&steps, rows * channels) } else { 1 };
                for pixel in from.chunks(columns) {
                    let met: HashSet<usize> = pixels(pixel).iter().map(|p| p / rows).collect();
                    assert!(met.len() as u64 >= count, "{operand:?} {dims:?} {strides:?} {offset} {result:?}: {count}");
                }
                said[0] += 1;
                said[1] += usize::from(count > 1);
            }
            let Some(axes) = loops.by_axis(&result) else { continue };
            let every_loop = axes.concat();
            let matrix: usize = result.iter().rev().take(2).product();
            for axis in 0..operand.len() {
                let whole = |taken: &[usize]| {
                    let taken: HashSet<usize> = taken.iter().copied().collect();
                    lines(&operand, axis).iter().any(|line| line.iter().all(|at| taken.contains(at)))
                };
                for (along, inner) in axes.iter().enumerate() {
                    if hold_lines(inner, &every_loop, offset, &operand[axis..]) {
                        let every = lines(&result, along);
                        assert!(every.iter().all(|line| whole(&line.iter().map(|&at| from[at]).collect::<Vec<_>>())));
                        said[2] += 1;
                    }
                }
                let inner = [&axes[axes.len() - 2][..], &axes[axes.len() - 1]].concat();
                if hold_lines(&inner, &every_loop, offset, &operand[axis..]) {
                    assert!(
                        from.chunks(matrix).all(whole),
                        "{operand:?} {dims:?} {strides:?} {offset} {result:?} {axis}"
                    );
                    said[3] += 1;
                }
            }
        }
        assert!(said.iter().all(|&times| times > 500), "{said:?}");
    }
}
