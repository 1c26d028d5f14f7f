//! Functions of one or two elements: binary operators with broadcasting, change of scale, PRelu.
//!
//! Source: docs/arithmetic.md, "Binary operators", "Rescale", "PRelu".

#[cfg(target_arch = "x86_64")]
mod x86_64;

use tpuflow_ir::{BinaryKind, Requant};

#[cfg(target_arch = "x86_64")]
use crate::buffers::PIECE;
use crate::isa::Lanes;
use crate::parallel;
use crate::requant::reference::round_divide;
use crate::requant::{finish, requantize, scale};
use crate::{Element, Isa};

/// A binary operator: `requant(f((a - Za) * ka, (b - Zb) * kb))`.
#[derive(Clone, Debug)]
pub struct Binary<'a> {
    /// The function.
    pub kind: BinaryKind,
    /// Zero points of the operands.
    pub zero_points: [i32; 2],
    /// Multipliers of the operands.
    pub multipliers: [i32; 2],
    /// Single multiplier to the output codes.
    pub requant: &'a Requant,
}

impl Binary<'_> {
    /// The result for one pair of codes.
    #[inline]
    #[must_use]
    pub fn at(&self, a: i32, b: i32) -> i32 {
        let aligned = |code: i32, side: usize| {
            let product = (i64::from(code) - i64::from(self.zero_points[side])) * i64::from(self.multipliers[side]);
            product.clamp(i64::from(i32::MIN), i64::from(i32::MAX))
        };
        let (a, b) = (aligned(a, 0), aligned(b, 1));
        let value = match self.kind {
            BinaryKind::Add => a + b,
            BinaryKind::Sub => a - b,
            BinaryKind::Mul => a * b,
            BinaryKind::Max => a.max(b),
            BinaryKind::Min => a.min(b),
            BinaryKind::Div => return divide(a, b, self.requant),
            BinaryKind::Less => i64::from(a < b),
            BinaryKind::LessOrEqual => i64::from(a <= b),
            BinaryKind::Equal => i64::from(a == b),
            BinaryKind::NotEqual => i64::from(a != b),
        };
        requantize(value, self.requant, 0)
    }
}

/// `clamp(RNE(a * M / (b * 2^N)) + Z)`; a divisor of zero gives a clamp by the sign of `a`, and 0/0 the zero point.
fn divide(a: i64, b: i64, requant: &Requant) -> i32 {
    let (multiplier, shift) = requant.of(0);
    let numerator = i128::from(a * i64::from(multiplier)) << (-shift).max(0);
    let denominator = i128::from(b) << shift.max(0);
    let rounded = match denominator.signum() {
        0 => i128::from(a.signum()) << 40,
        sign => round_divide(numerator * sign, denominator * sign),
    };
    (rounded + i128::from(requant.zero_point)).clamp(i128::from(requant.lo), i128::from(requant.hi)) as i32
}

/// How two operands broadcast to a result: extents and the steps of both operands, neighbouring axes merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broadcast {
    /// Extent, step in `a`, step in `b` per loop, outermost first; at least one loop.
    loops: Vec<(usize, usize, usize)>,
}

impl Broadcast {
    /// NumPy broadcasting of two shapes, or `None` where they do not fit.
    #[must_use]
    pub fn new(a: &[usize], b: &[usize]) -> Option<Self> {
        let shape = tpuflow_ir::shape::broadcast(a, b)?;
        let steps = |s: &[usize]| {
            let mut steps = vec![0; shape.len()];
            let mut step = 1;
            for (i, &extent) in s.iter().enumerate().rev() {
                steps[i + shape.len() - s.len()] = if extent == 1 { 0 } else { step };
                step *= extent;
            }
            steps
        };
        let mut loops: Vec<(usize, usize, usize)> = Vec::new();
        for ((&extent, step_a), step_b) in shape.iter().zip(steps(a)).zip(steps(b)) {
            match loops.last_mut() {
                _ if extent == 1 => {}
                Some(outer) if outer.1 == step_a * extent && outer.2 == step_b * extent => {
                    *outer = (outer.0 * extent, step_a, step_b);
                }
                _ => loops.push((extent, step_a, step_b)),
            }
        }
        if loops.is_empty() {
            loops.push((1, 0, 0));
        }
        Some(Self { loops })
    }

    /// Number of elements of the result.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.loops.iter().map(|l| l.0).product()
    }

    /// Where run `run` of the innermost loop starts in `a` and in `b`.
    fn start(&self, run: usize) -> (usize, usize) {
        let (mut rest, mut at_a, mut at_b) = (run, 0, 0);
        for &(extent, step_a, step_b) in self.loops[..self.loops.len() - 1].iter().rev() {
            at_a += rest % extent * step_a;
            at_b += rest % extent * step_b;
            rest /= extent;
        }
        (at_a, at_b)
    }

    /// `y = f(a, b)` over all elements, spread over threads.
    ///
    /// # Panics
    /// When the slices do not have the broadcast sizes.
    pub fn apply<A, B, Y>(&self, a: &[A], b: &[B], y: &mut [Y], f: impl Fn(A, B) -> Y + Sync)
    where
        A: Copy + Sync,
        B: Copy + Sync,
        Y: Send,
    {
        assert_eq!(y.len(), self.elements(), "y holds every result");
        let &(extent, step_a, step_b) = self.loops.last().expect("at least one loop");
        if extent == 0 {
            return;
        }
        let piece = |index: usize, y: &mut [Y], at_a: usize, at_b: usize| {
            let (a, b) = (&a[at_a + index * PIECE * step_a..], &b[at_b + index * PIECE * step_b..]);
            if (step_a, step_b) == (1, 1) {
                for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
                    *y = f(a, b);
                }
            } else {
                for (i, y) in y.iter_mut().enumerate() {
                    *y = f(a[i * step_a], b[i * step_b]);
                }
            }
        };
        let runs = (PIECE / extent).max(1);
        parallel::pieces(y, runs * extent, if runs == 1 { PIECE } else { runs * extent }, |unit, index, y| {
            for (run, y) in y.chunks_mut(extent).enumerate() {
                let (at_a, at_b) = self.start(unit * runs + run);
                piece(index, y, at_a, at_b);
            }
        });
    }
}

impl Broadcast {
    /// `f` over dense operands and results of some length, spread over threads: what an operand repeats is written out, short
    /// repetitions several times.
    ///
    /// # Panics
    /// When the slices do not have the broadcast sizes.
    pub fn runs<T: Copy + Sync, Y: Send>(
        &self,
        a: &[T],
        b: &[T],
        y: &mut [Y],
        f: impl Fn(&[T], &[T], &mut [Y]) + Sync,
    ) {
        assert_eq!(y.len(), self.elements(), "y holds every result");
        if y.is_empty() {
            return;
        }
        // The innermost loop in pieces, or several rounds of it, as the loop around it makes them.
        let (outer, (extent, step_a, step_b)) = match self.loops[..] {
            [.., outer, inner] => (outer, inner),
            [inner] => ((1, 0, 0), inner),
            [] => unreachable!("at least one loop"),
        };
        let is_long = extent >= PIECE;
        let (run, piece) =
            if is_long { (extent, PIECE) } else { (outer.0 * extent, (PIECE / extent).clamp(1, outer.0) * extent) };
        // Where a part begins in an operand, and its shape there.
        let place = |at: usize, first: usize, count: usize, outer: usize, step: usize| {
            if is_long {
                (at + first * step, [1, count])
            } else {
                (at + first / extent * outer, [count / extent, extent])
            }
        };
        parallel::pieces(y, run, piece, |index, part, y| {
            let (at_a, at_b) = self.start(if is_long { index } else { index * outer.0 });
            let (mut room_a, mut room_b) = (Vec::new(), Vec::new());
            let (start_a, shape) = place(at_a, part * piece, y.len(), outer.1, step_a);
            let (start_b, _) = place(at_b, part * piece, y.len(), outer.2, step_b);
            let a = dense(a, start_a, shape, [outer.1, step_a], &mut room_a);
            let b = dense(b, start_b, shape, [outer.2, step_b], &mut room_b);
            f(a, b, y);
        });
    }
}

/// `shape` elements at `strides` from `start` on, as a slice: of the operand, where they lie there densely, else written to
/// `room`.
fn dense<'a, T: Copy>(
    operand: &'a [T],
    start: usize,
    [rows, extent]: [usize; 2],
    strides: [usize; 2],
    room: &'a mut Vec<T>,
) -> &'a [T] {
    if strides[1] == 1 && (rows == 1 || strides[0] == extent) {
        return &operand[start..][..rows * extent];
    }
    room.clear();
    for row in 0..rows {
        let start = start + row * strides[0];
        if strides[1] == 1 {
            room.extend_from_slice(&operand[start..][..extent]);
        } else {
            room.extend((0..extent).map(|i| operand[start + i * strides[1]]));
        }
    }
    room
}

/// `y = requant(f(a, b))` with broadcasting.
///
/// # Panics
/// When the slices do not have the broadcast sizes.
pub fn binary<A: Element, B: Element, Y: Element>(
    binary: &Binary<'_>,
    broadcast: &Broadcast,
    a: &[A],
    b: &[B],
    y: &mut [Y],
) {
    binary_with(Isa::selected(), binary, broadcast, a, b, y);
}

/// As [`binary`], with an instruction set.
///
/// # Panics
/// As [`binary`].
pub fn binary_with<A: Element, B: Element, Y: Element>(
    isa: Isa,
    binary: &Binary<'_>,
    broadcast: &Broadcast,
    a: &[A],
    b: &[B],
    y: &mut [Y],
) {
    #[cfg(target_arch = "x86_64")]
    if let Lanes::Avx512(isa) = isa.lanes()
        && let (Some(narrow), Some(a), Some(b)) = (x86_64::Narrow::new(isa, binary), A::as_bytes(a), B::as_bytes(b))
        && let Some(y) = Y::as_bytes_mut(y)
    {
        broadcast.runs(a, b, y, |a, b, y| narrow.apply(Some(a), Some(b), y));
        return;
    }
    let _ = isa;
    broadcast.apply(a, b, y, |a, b| Y::narrow(binary.at(a.widen(), b.widen())));
}

/// `y = requant(f(y, other))`, or `f(other, y)` unless `first`: of operands of the same shape, on this thread.
///
/// # Panics
/// When the slices differ in length.
pub fn binary_onto<X: Element, Y: Element>(binary: &Binary<'_>, other: &[X], first: bool, y: &mut [Y]) {
    binary_onto_with(Isa::selected(), binary, other, first, y);
}

/// As [`binary_onto`], with an instruction set.
///
/// # Panics
/// As [`binary_onto`].
pub fn binary_onto_with<X: Element, Y: Element>(isa: Isa, binary: &Binary<'_>, other: &[X], first: bool, y: &mut [Y]) {
    assert_eq!(other.len(), y.len(), "operands of the same shape");
    #[cfg(target_arch = "x86_64")]
    if let Lanes::Avx512(isa) = isa.lanes()
        && let (Some(narrow), Some(other)) = (x86_64::Narrow::new(isa, binary), X::as_bytes(other))
        && Y::as_bytes(y).is_some()
        && let Some(y) = Y::as_bytes_mut(y)
    {
        return if first { narrow.apply(None, Some(other), y) } else { narrow.apply(Some(other), None, y) };
    }
    let _ = isa;
    for (y, other) in y.iter_mut().zip(other) {
        let (own, other) = (y.widen(), other.widen());
        *y = Y::narrow(if first { binary.at(own, other) } else { binary.at(other, own) });
    }
}

/// `y = clamp(RNE((x - Zx) * M * 2^-N) + Z)`.
///
/// # Panics
/// When `x` and `y` differ in length.
pub fn rescale<X: Element, Y: Element>(zero_point: i32, requant: &Requant, x: &[X], y: &mut [Y]) {
    assert_eq!(x.len(), y.len(), "one result per operand");
    parallel::chunks(y, PIECE, |index, y| {
        for (y, x) in y.iter_mut().zip(&x[index * PIECE..]) {
            *y = Y::narrow(requantize(i64::from(x.widen()) - i64::from(zero_point), requant, 0));
        }
    });
}

/// Piecewise linear function: one multiplier for `x >= Zx`, one (or one per channel) below.
#[derive(Clone, Debug)]
pub struct PRelu<'a> {
    /// Zero point of the input.
    pub zero_point: i32,
    /// For `x >= Zx`, and zero point and clamp for all.
    pub positive: &'a Requant,
    /// Multipliers for `x < Zx`.
    pub negative_multiplier: &'a [i32],
    /// Shifts for `x < Zx`.
    pub negative_shift: &'a [i8],
}

/// Applies the function; channels run fastest.
///
/// # Panics
/// When `x` and `y` differ in length.
pub fn p_relu<X: Element, Y: Element>(function: &PRelu<'_>, x: &[X], y: &mut [Y]) {
    assert_eq!(x.len(), y.len(), "one result per operand");
    let slopes = function.negative_multiplier.len();
    for (i, (y, x)) in y.iter_mut().zip(x).enumerate() {
        let value = i64::from(x.widen()) - i64::from(function.zero_point);
        let (multiplier, shift) = if value >= 0 {
            function.positive.of(0)
        } else {
            (function.negative_multiplier[i % slopes], function.negative_shift[i % slopes])
        };
        *y = Y::narrow(finish(scale(value, multiplier, shift), function.positive));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shapes() -> impl Strategy<Value = (Vec<usize>, Vec<usize>)> {
        let extent = prop_oneof![Just(1usize), 2usize..=5, 62usize..=66, 300usize..=310];
        prop::collection::vec((extent, 0u8..4), 1..=3).prop_map(|axes| {
            let side = |bit: u8| axes.iter().map(|&(n, which)| if which == bit { 1 } else { n }).collect();
            (side(1), side(2))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]
        #[test]
        fn every_variant_is_the_formula(
            (a_shape, b_shape) in shapes(),
            kind in prop_oneof![
                Just(BinaryKind::Add), Just(BinaryKind::Sub), Just(BinaryKind::Mul), Just(BinaryKind::Max),
                Just(BinaryKind::Less),
            ],
            zero_points in [-128i32..=127, -128i32..=127],
            multipliers in prop_oneof![
                Just([1, 1]), Just([32767, 32767]), [1i32..=181, 1i32..=181], [1i32..=32767, 1i32..=32767],
                [32760i32..=40000, 1i32..=3],
            ],
            requant in (
                0i32..=32767, -3i8..=40, -128i32..=127, prop_oneof![Just(-128), -128i32..=0], prop_oneof![Just(127), 0i32..=127],
            ),
            seed in any::<u32>(),
        ) {
            let requant = Requant {
                multiplier: vec![requant.0], shift: vec![requant.1], zero_point: requant.2, lo: requant.3, hi: requant.4,
            };
            let code = |i: usize| ((i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as i8;
            let a: Vec<i8> = (0..a_shape.iter().product()).map(code).collect();
            let b: Vec<i8> = (0..b_shape.iter().product()).map(|i| code(i + 7919)).collect();
            let function = Binary { kind, zero_points, multipliers, requant: &requant };
            let broadcast = Broadcast::new(&a_shape, &b_shape).expect("axes are equal or one");
            let mut expected = vec![0i8; broadcast.elements()];
            broadcast.apply(&a, &b, &mut expected, |a: i8, b: i8| function.at(a.into(), b.into()) as i8);
            for isa in Isa::variants() {
                let mut y = vec![0i8; expected.len()];
                binary_with(isa, &function, &broadcast, &a, &b, &mut y);
                prop_assert_eq!(&y, &expected, "{}", isa.name());
            }
            // Onto an operand, of those that have the same shape.
            let (a, b) = (&a[..a.len().min(b.len())], &b[..a.len().min(b.len())]);
            let expected: Vec<i8> =
                a.iter().zip(b).map(|(&a, &b)| function.at(a.into(), b.into()) as i8).collect();
            for isa in Isa::variants() {
                let (mut first, mut second) = (a.to_vec(), b.to_vec());
                binary_onto_with(isa, &function, b, true, &mut first);
                binary_onto_with(isa, &function, a, false, &mut second);
                prop_assert_eq!(&first, &expected, "{} onto the first", isa.name());
                prop_assert_eq!(&second, &expected, "{} onto the second", isa.name());
            }
        }
    }
}
