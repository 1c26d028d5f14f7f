//! From accumulators to codes: zero-point terms, requantisation per column, then possibly a table.
//!
//! Vector variants requantise in float64, which is exact here. An accumulator below 2^31 (or 2^38) times a multiplier below
//! 2^15 has fewer than 53 bits, scaling by a power of two changes none of them, and bounding the product by the integers
//! `lo - Z` and `hi - Z` before rounding gives the same as after, since rounding is monotone and leaves integers alone.
//! Adding `1.5 * 2^52` then rounds to the nearest even integer and leaves it in the low bits.
//!
//! Sums of a [`Sums`] tile become int8 codes by a shorter way, [`codes512`], where vectors have 512 bits.
//!
//! Source: docs/arithmetic.md, sections 4 to 6.

#[cfg(target_arch = "x86_64")]
pub(crate) mod codes512;
mod columns;
#[cfg(target_arch = "x86_64")]
pub(crate) mod steps512;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;

pub use columns::{Columns, Order};

use std::ops::Range;
#[cfg(target_arch = "x86_64")]
use std::sync::Arc;

use tpuflow_ir::Requant;

#[cfg(target_arch = "x86_64")]
use self::codes512::{Finish, Kind};
#[cfg(target_arch = "x86_64")]
use self::steps512::Steps;
use crate::gemm::tiles::{Sums, WIDTH};
#[cfg(target_arch = "x86_64")]
use crate::isa::Avx512Vbmi;
use crate::isa::Lanes;
use crate::requant::{requantize, scale};
use crate::table::Lookup;
use crate::{Element, Isa};

/// `1.5 * 2^52`: the spacing of float64 values near it is one.
const ROUNDER: f64 = 6_755_399_441_055_744.0;
/// Accumulators below this are exact in float64 after multiplication.
const EXACT_LIMIT: u64 = 1 << 38;

/// Requantisation per column, possibly after a first rounding, then possibly a table over the 16-bit intermediate.
#[derive(Clone, Debug)]
pub struct Epilogue {
    isa: Isa,
    first: Option<First>,
    requant: Requant,
    /// `M * 2^-N`, one or one per column.
    factors: Vec<f64>,
    table: Option<Table>,
}

/// A rounding of sums without bias to 32 bits, and the biases that follow it: one per column, or none at all.
#[derive(Clone, Debug)]
struct First {
    shift: u8,
    bias: Vec<i64>,
}

impl First {
    /// `clamp(clamp(RNE(sum * 2^-shift)) + bias)`, both to 32 bits.
    #[inline(always)]
    fn rounded(&self, sum: i64, column: usize) -> i64 {
        let held = |value: i64| value.clamp(i32::MIN.into(), i32::MAX.into());
        held(held(scale(sum, 1, self.shift.cast_signed())) + self.bias.get(column).copied().unwrap_or(0))
    }
}

#[derive(Clone, Debug)]
struct Table {
    lookup: Arc<Lookup>,
    /// The result of every 16-bit code, where all are int8 codes: what vectors look up.
    #[cfg(target_arch = "x86_64")]
    codes: Option<Arc<[i8]>>,
    /// The same for registers, where its form admits that.
    #[cfg(target_arch = "x86_64")]
    steps: Option<Arc<Steps>>,
}

impl Table {
    fn new(isa: Isa, lookup: Lookup) -> Self {
        #[cfg(target_arch = "x86_64")]
        let codes: Option<Arc<[i8]>> = (matches!(isa.lanes(), Lanes::Avx512(_)) && lookup.is_narrow()).then(|| {
            let codes = (-32768..=32767).map(|code| lookup.at(code) as i8);
            codes.chain([0; codes512::TABLE - (1 << 16)]).collect()
        });
        #[cfg(not(target_arch = "x86_64"))]
        let _ = isa;
        Self {
            lookup: Arc::new(lookup),
            #[cfg(target_arch = "x86_64")]
            steps: codes
                .as_deref()
                .zip(Avx512Vbmi::detect())
                .and_then(|(codes, isa)| Steps::new(isa, codes))
                .map(Arc::new),
            #[cfg(target_arch = "x86_64")]
            codes,
        }
    }
}

/// The addends of the products of a row before they are requantised: one value for the row and one per column.
#[derive(Clone, Copy, Debug)]
pub struct Offsets<'a, T> {
    /// Of the row.
    pub row: T,
    /// Of each column.
    pub columns: &'a [T],
}

impl Epilogue {
    /// Requantisation and, if there is one, the table of 16-bit codes behind it.
    #[must_use]
    pub fn new(requant: Requant, table: Option<Lookup>) -> Self {
        Self::with(Isa::selected(), requant, table)
    }

    /// As [`Self::new`], with the instruction set that everything built upon the epilogue uses.
    #[must_use]
    pub fn with(isa: Isa, requant: Requant, table: Option<Lookup>) -> Self {
        let pairs = requant.multiplier.iter().zip(&requant.shift);
        let factors = pairs.map(|(&m, &n)| f64::from(m) * 2f64.powi(-i32::from(n))).collect();
        Self { isa, first: None, factors, requant, table: table.map(|table| Table::new(isa, table)) }
    }

    /// With a first rounding where there is to be one: it takes the biases away from the sums, which then come without.
    #[must_use]
    pub fn with_first_shift(mut self, shift: Option<u8>, bias: &mut [i64]) -> Self {
        self.first = shift.map(|shift| First { shift, bias: bias.to_vec() });
        if self.first.is_some() {
            bias.fill(0);
        }
        self
    }

    /// The epilogue of some of the columns, for one group of a convolution or one column tile.
    #[must_use]
    pub fn columns(&self, columns: Range<usize>) -> Self {
        let mut own = self.clone();
        if let Some(first) = own.first.as_mut().filter(|first| !first.bias.is_empty()) {
            first.bias = first.bias[columns.clone()].to_vec();
        }
        if own.factors.len() > 1 {
            own.factors = self.factors[columns.clone()].to_vec();
            own.requant.multiplier = self.requant.multiplier[columns.clone()].to_vec();
            own.requant.shift = self.requant.shift[columns].to_vec();
        }
        own
    }

    /// The instruction set.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Codes of a row of 32-bit products; each sum is taken modulo 2^32, where it fits.
    ///
    /// # Panics
    /// When the slices do not have one entry per column.
    pub fn narrow<Y: Element>(&self, products: &[i32], offsets: Offsets<'_, i32>, y: &mut [Y]) {
        self.check(products.len(), offsets.columns.len(), y.len());
        self.part(0, products, offsets, y);
    }

    /// As [`Self::narrow`], of the columns from `first` on.
    pub(crate) fn part<Y: Element>(&self, first: usize, products: &[i32], offsets: Offsets<'_, i32>, y: &mut [Y]) {
        let sums = products.iter().zip(offsets.columns);
        let sums = sums.map(|(p, o)| i64::from(p.wrapping_add(*o).wrapping_add(offsets.row)));
        match (self.isa.lanes(), &self.table) {
            (Lanes::One, _) => self.apply_from(first, sums, y),
            #[cfg(target_arch = "x86_64")]
            (isa, None) => {
                let factors =
                    if let [_] = self.factors[..] { &self.factors[..] } else { &self.factors[first..][..y.len()] };
                let row = Row { factors, requant: &self.requant };
                match isa {
                    Lanes::Avx2(isa) => isa.narrow(products, offsets, row, y),
                    Lanes::Avx512(isa) => isa.narrow(products, offsets, row, y),
                    Lanes::One => unreachable!("matched above"),
                }
            }
            _ => self.apply_from(first, sums, y),
        }
    }

    /// Codes of a tile of sums. Row `i` of the product goes to `y[place(i)..]`, or nowhere.
    ///
    /// # Panics
    /// When a row does not lie within `y`, or `columns` were made by another epilogue.
    pub fn tile<Y: Element>(
        &self,
        tile: &Sums<'_>,
        columns: &Columns,
        place: impl Fn(usize) -> Option<usize>,
        y: &mut [Y],
    ) {
        #[cfg(target_arch = "x86_64")]
        if let Lanes::Avx512(isa) = self.isa.lanes()
            && let Some(finish) = &self.finish(columns)
            && let Some(y) = Y::as_bytes_mut(y)
        {
            return isa.tile(finish, tile, columns, place, y);
        }
        let first = tile.columns.start;
        let offsets = columns.natural_offsets(&tile.columns);
        for (row, sums) in tile.rows.clone().zip(tile.sums.chunks_exact(WIDTH)) {
            if let Some(at) = place(row) {
                let y = &mut y[at + first..][..tile.columns.len()];
                let sums = columns.natural(sums);
                let offsets = Offsets { row: 0, columns: &offsets[..y.len()] };
                self.part(first, &sums[..y.len()], offsets, y);
            }
        }
    }

    /// How 512-bit vectors make int8 codes of 32-bit sums, where they can.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn finish(&self, columns: &Columns) -> Option<Finish<'_>> {
        let Requant { zero_point, lo, hi, .. } = self.requant;
        let is_code =
            |code: i32| if self.table.is_some() { i16::try_from(code).is_ok() } else { i8::try_from(code).is_ok() };
        if !is_code(zero_point) || (self.table.is_some() && !(is_code(lo) && is_code(hi))) {
            return None;
        }
        let widest = self.requant.lo <= -128 && self.requant.hi >= 127;
        let (kind, table) = match &self.table {
            None if columns.direct && widest => (Kind::Direct, &[][..]),
            None if columns.direct => (Kind::DirectBounded, &[][..]),
            None if columns.shrink && widest => (Kind::Plain, &[][..]),
            None => (Kind::Bounded, &[][..]),
            Some(Table { steps: Some(steps), .. }) if columns.direct && zero_point % 2 == 0 => {
                (Kind::Steps(steps), &[][..])
            }
            Some(table) if columns.direct => (Kind::DirectTable, table.codes.as_deref()?),
            Some(table) => (Kind::Table, table.codes.as_deref()?),
        };
        Some(Finish { kind, requant: &self.requant, table })
    }

    /// Codes of a row of 48-bit products.
    ///
    /// # Panics
    /// When the slices do not have one entry per column.
    pub fn wide<Y: Element>(&self, products: &[i64], offsets: Offsets<'_, i64>, y: &mut [Y]) {
        self.check(products.len(), offsets.columns.len(), y.len());
        let sums = products.iter().zip(offsets.columns).map(|(p, o)| p + o + offsets.row);
        match (self.isa.lanes(), &self.table) {
            (Lanes::One, _) => self.apply(sums, y),
            _ if self.first.is_some() => self.apply(sums, y),
            #[cfg(target_arch = "x86_64")]
            (Lanes::Avx512(isa), None) => {
                let largest = sums.clone().fold(0, |most: u64, sum| most.max(sum.unsigned_abs()));
                if largest < EXACT_LIMIT {
                    let row = Row { factors: &self.factors, requant: &self.requant };
                    isa.wide(products, offsets, row, y);
                } else {
                    self.apply(sums, y);
                }
            }
            _ => self.apply(sums, y),
        }
    }

    fn check(&self, products: usize, offsets: usize, y: usize) {
        assert!(products == y && offsets == y, "one product, offset and code per column");
        assert!([1, y].contains(&self.factors.len()), "one multiplier, or one per column");
    }

    /// Codes of a row of whole accumulators, as the formula reads.
    ///
    /// # Panics
    /// When there are more sums than columns.
    pub fn apply<Y: Element>(&self, sums: impl Iterator<Item = i64>, y: &mut [Y]) {
        self.apply_from(0, sums, y);
    }

    fn apply_from<Y: Element>(&self, first: usize, sums: impl Iterator<Item = i64>, y: &mut [Y]) {
        let rounded = |j: usize, sum: i64| self.first.as_ref().map_or(sum, |first| first.rounded(sum, j));
        let codes = (first..).zip(sums).map(|(j, sum)| requantize(rounded(j, sum), &self.requant, j));
        match &self.table {
            None => y.iter_mut().zip(codes).for_each(|(y, code)| *y = Y::narrow(code)),
            Some(table) => y.iter_mut().zip(codes).for_each(|(y, code)| *y = Y::narrow(table.lookup.at(code))),
        }
    }
}

/// The parameters of an epilogue for a vector variant.
#[derive(Clone, Copy)]
struct Row<'a> {
    factors: &'a [f64],
    requant: &'a Requant,
}

/// [`bounded`] with the single factor, or each column's.
#[inline(always)]
fn codes<Y: Element>(sums: impl Iterator<Item = f64>, row: Row<'_>, y: &mut [Y]) {
    match row.factors {
        &[factor] => bounded(sums, std::iter::repeat(factor), row.requant, y),
        factors => bounded(sums, factors.iter().copied(), row.requant, y),
    }
}

/// `clamp(RNE(sum * factor) + Z, lo, hi)` for sums that are exact in float64; see the module's text.
#[inline(always)]
fn bounded<Y: Element>(
    sums: impl Iterator<Item = f64>,
    factors: impl Iterator<Item = f64>,
    requant: &Requant,
    y: &mut [Y],
) {
    let zero_point = requant.zero_point;
    let least = f64::from(requant.lo) - f64::from(zero_point);
    let most = f64::from(requant.hi) - f64::from(zero_point);
    for ((y, sum), factor) in y.iter_mut().zip(sums).zip(factors) {
        let product = sum * factor;
        let above = if product > least { product } else { least };
        let bounded = if above < most { above } else { most };
        let rounded = (bounded + ROUNDER).to_bits() as i32;
        *y = Y::narrow(rounded.wrapping_add(zero_point));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(entries: impl Iterator<Item = i32>, lo: i32, hi: i32) -> Lookup {
        Lookup::new(entries.collect(), 16, lo, hi).expect("a table")
    }

    fn check<Y: Element>(requant: &Requant, table: Option<&Lookup>, sums: &[i64]) {
        let n = sums.len();
        let mut expected = vec![Y::default(); n];
        Epilogue::with(Isa::Reference, requant.clone(), table.cloned()).apply(sums.iter().copied(), &mut expected);
        for isa in Isa::variants() {
            let epilogue = Epilogue::with(isa, requant.clone(), table.cloned());
            let mut y = vec![Y::default(); n];
            let columns: Vec<i64> = (0..n as i64).map(|j| j * 977 - 5000).collect();
            let products: Vec<i64> = sums.iter().zip(&columns).map(|(s, c)| s - c + 31).collect();
            epilogue.wide(&products, Offsets { row: -31, columns: &columns }, &mut y);
            assert_eq!(y, expected, "{} from 64 bits", isa.name());
            if sums.iter().all(|&sum| i32::try_from(sum).is_ok()) {
                let products: Vec<i32> = products.iter().map(|&p| p as i32).collect();
                let columns: Vec<i32> = columns.iter().map(|&c| c as i32).collect();
                epilogue.narrow(&products, Offsets { row: -31, columns: &columns }, &mut y);
                assert_eq!(y, expected, "{} from 32 bits", isa.name());
            }
        }
    }

    /// Sums of a row of a tile.
    fn check_tile(requant: &Requant, table: Option<&Lookup>, sums: &[i64]) {
        let mut expected = vec![0i8; sums.len()];
        Epilogue::with(Isa::Reference, requant.clone(), table.cloned()).apply(sums.iter().copied(), &mut expected);
        for isa in Isa::variants() {
            let epilogue = Epilogue::with(isa, requant.clone(), table.cloned());
            // As much as is known of sums, and nothing.
            for largest in [|sum: i64| sum.unsigned_abs(), |_| 1 << 31] {
                let columns = epilogue.columns_of(&vec![-7; sums.len()], Order::Natural, |j| largest(sums[j]));
                let mut own = [0; WIDTH];
                own.iter_mut().zip(sums).for_each(|(own, &sum)| *own = (sum + 7) as i32);
                let mut y = vec![0i8; sums.len()];
                let tile = Sums { rows: 0..1, columns: 0..sums.len(), sums: &mut own };
                epilogue.tile(&tile, &columns, |_| Some(0), &mut y);
                assert_eq!(y, expected, "{} from a tile", isa.name());
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        /// Sums whose results lie at halves and next to them, and the largest a factor admits.
        #[test]
        fn single_roundings_are_the_reference(
            multiplier in prop_oneof![1i32..=32767, Just(16384), Just(24576)], shift in 12i8..=34, zero_point in -128i32..=127,
            (lo, hi) in prop_oneof![Just((-128, 127)), (-128i32..=0, 0i32..=127)],
            results in prop::collection::vec((-300i32..300, -2i64..=2), 1..60), large in any::<bool>(),
        ) {
            let factor = f64::from(multiplier) * 2f64.powi(-i32::from(shift));
            let held = |sum: f64| sum.clamp(-2_147_483_000.0, 2_147_483_000.0) as i64;
            let mut sums: Vec<i64> =
                results.iter().map(|&(n, d)| held((f64::from(n) + 0.5) / factor).clamp(-(1 << 24) + 2, (1 << 24) - 2) + d).collect();
            if large {
                sums.extend([1.0, -1.0].map(|sign| held(sign * 4_193_000.0 / factor)));
            }
            let requant = Requant { multiplier: vec![multiplier], shift: vec![shift], zero_point, lo, hi };
            check_tile(&requant, None, &sums);
            let between = Requant { lo: -32768, hi: 32767, ..requant };
            check_tile(&between, Some(&table((0..=65536).map(|i| i % 251 - 125), -128, 127)), &sums);
            // Interpolated, which vectors look up in registers.
            check_tile(&between, Some(&table((0..=1024).map(|i: i32| (i - 300).abs() / 2 - 125), -120, 127)), &sums);
            let bounded = Requant { lo: -2000, hi: 1999, ..between };
            check_tile(&bounded, Some(&table((0..=1024).map(|i| i - 512), -128, 127)), &sums);
        }
    }

    proptest! {
        /// Two roundings are those of the definition, in every variant, whole or by columns.
        #[test]
        fn a_first_shift_rounds_before_the_bias(
            sums in prop::collection::vec((sum(47), sum(33)), 1..20), shift in 0u8..=47, multiplier in 0i32..=32767,
            second in -3i8..=20, biased in any::<bool>(),
        ) {
            let held = |value: i128| value.clamp(i32::MIN.into(), i32::MAX.into());
            let requant = Requant { multiplier: vec![multiplier], shift: vec![second], zero_point: 5, lo: -30000, hi: 32000 };
            let (products, biases): (Vec<i64>, Vec<i64>) = sums.iter().map(|&(sum, bias)| (sum, bias % (1 << 31))).unzip();
            let biases = if biased { biases } else { vec![] };
            let expected: Vec<i16> = products.iter().enumerate().map(|(j, &sum)| {
                let first = held(crate::requant::reference::round_shift(sum.into(), shift.into()));
                let sum = held(first + i128::from(biases.get(j).copied().unwrap_or(0))) as i64;
                crate::requant::reference::requantize(sum, multiplier, second, 5, -30000, 32000) as i16
            }).collect();
            for isa in Isa::variants() {
                let mut bias = biases.clone();
                let epilogue = Epilogue::with(isa, requant.clone(), None).with_first_shift(Some(shift), &mut bias);
                prop_assert!(bias.iter().all(|&bias| bias == 0));
                let offsets = vec![0; products.len()];
                let mut y = vec![0i16; products.len()];
                epilogue.wide(&products, Offsets { row: 0, columns: &offsets }, &mut y);
                prop_assert_eq!(&y, &expected, "{}", isa.name());
                let own = products.len() / 2..products.len();
                epilogue.columns(own.clone()).wide(&products[own.clone()], Offsets { row: 0, columns: &offsets[own.clone()] }, &mut y[own.clone()]);
                prop_assert_eq!(&y, &expected, "{} by columns", isa.name());
            }
        }
    }

    proptest! {
        /// Programs may carry negative multipliers and zero points of any size; vectors must not do otherwise than the formula.
        #[test]
        fn any_multiplier_and_zero_point_is_the_reference(
            sums in prop::collection::vec(sum(30), 1..40), multiplier in -32768i32..=32767, shift in -15i8..=34,
            zero_point in prop_oneof![
                -128i32..=127, -32768i32..=32767, Just(-32769), Just(32768), Just(10_000_000), Just(-10_000_000)],
        ) {
            let requant = Requant { multiplier: vec![multiplier], shift: vec![shift], zero_point, lo: -128, hi: 127 };
            check_tile(&requant, None, &sums);
            check_tile(&Requant { lo: -100, hi: 99, ..requant.clone() }, None, &sums);
            let between = Requant { lo: -32768, hi: 32767, ..requant };
            check_tile(&between, Some(&table((0..=65536).map(|i| i % 251 - 125), -128, 127)), &sums);
        }
    }

    fn sum(bits: u32) -> impl Strategy<Value = i64> {
        let limit = (1i64 << bits) - 1;
        prop_oneof![
            -limit..=limit,
            -200i64..=200,
            (0..bits, -2i64..=2).prop_map(move |(b, d)| ((1 << b) + d).min(limit)),
            Just(limit),
            Just(-limit),
        ]
    }

    /// The number below `2^bits` that `odd` multiplies to `wanted`, modulo `2^bits`.
    fn quotient(odd: i64, wanted: i64, bits: u32) -> i64 {
        let inverse = (0..6).fold(odd, |inverse, _| inverse.wrapping_mul(2i64.wrapping_sub(odd.wrapping_mul(inverse))));
        inverse.wrapping_mul(wanted) & ((1 << bits) - 1)
    }

    proptest! {
        /// Products of 61 bits that are half a unit, or one in the last place beside it: float64 does not hold them.
        #[test]
        fn ties_of_wide_sums_are_the_reference(
            half in 0i32..16384, shift in 30i8..=46, apart in -1i64..=1, zero_point in -128i32..=127, negative in any::<bool>(),
        ) {
            let multiplier = 2 * half + 1;
            let sum = quotient(multiplier.into(), (1 << (shift - 1)) + apart, shift as u32);
            let sums: Vec<i64> = (0..9).map(|i| if negative == (i % 2 == 0) { -sum } else { sum }).collect();
            let requant = Requant { multiplier: vec![multiplier], shift: vec![shift], zero_point, lo: -32768, hi: 32767 };
            check::<i16>(&requant, None, &sums);
        }
    }

    proptest! {
        #[test]
        fn every_variant_is_the_reference(
            narrow in prop::collection::vec(sum(31), 1..40),
            wide in prop::collection::vec(sum(46), 1..40),
            pairs in prop::collection::vec((0i32..=32767, -15i8..=47), 40),
            zero_point in -128i32..=127, lo in -128i32..=0, hi in 0i32..=127, single in any::<bool>(),
        ) {
            for sums in [&narrow, &wide] {
                let count = if single { 1 } else { sums.len() };
                let requant = Requant {
                    multiplier: pairs[..count].iter().map(|p| p.0).collect(),
                    shift: pairs[..count].iter().map(|p| p.1).collect(),
                    zero_point, lo, hi,
                };
                let curve = table((0..=1024).map(|i| (i * i) % 301 - 150), -120, 32000);
                check::<i8>(&requant, None, sums);
                if sums.iter().all(|&sum| i32::try_from(sum + 7).is_ok()) {
                    let between = Requant { lo: -32768, hi: 32767, ..requant.clone() };
                    check_tile(&requant, None, sums);
                    check_tile(&between, Some(&table((0..=64).map(|i| i * i % 201 - 100), lo, hi)), sums);
                    check_tile(&between, Some(&table((0..=65536).map(|i| i / 256 - 128), -128, 127)), sums);
                }
                check::<i16>(&requant, Some(&curve), sums);
                check::<i16>(&Requant { lo: -32768, hi: 32767, ..requant }, None, sums);
            }
        }
    }
}
