//! The parameters of an epilogue for every column, filled up to whole tiles.

use std::ops::Range;

use super::Epilogue;
use crate::gemm::tiles::WIDTH;

/// In which order the columns of a tile stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// One after the other.
    Natural,
    /// As interleaving bytes of four vectors leaves them: column `16 l + 4 v + i` at place `16 v + 4 l + i`, all below 4.
    Interleaved,
}

/// Offsets and factors of all columns, zero beyond them, in the order of the tiles.
#[derive(Clone, Debug)]
pub struct Columns {
    order: Order,
    pub(super) offsets: Vec<i32>,
    /// `M * 2^-N`: fifteen bits, so exact.
    pub(super) factors: Vec<f32>,
    /// All factors are below one in size.
    pub(super) shrink: bool,
    /// All sums become codes by a single rounding, see [`super::codes512`].
    pub(super) direct: bool,
}

impl Order {
    /// The column of a tile that stands at `place`.
    fn column(self, place: usize) -> usize {
        match self {
            Self::Natural => place,
            Self::Interleaved => place / 4 % 4 * 16 + place / 16 * 4 + place % 4,
        }
    }
}

impl Epilogue {
    /// The parameters of [`Epilogue::tile`] beside the sums: their offsets, one per column. `largest(column)`: no sum of it
    /// with its offset is larger in size.
    ///
    /// # Panics
    /// When there is neither one multiplier nor one per column.
    #[must_use]
    pub fn columns_of(&self, offsets: &[i32], order: Order, largest: impl Fn(usize) -> u64) -> Columns {
        self.check(offsets.len(), offsets.len(), offsets.len());
        let places = 0..offsets.len().next_multiple_of(WIDTH);
        let column = |place: usize| place / WIDTH * WIDTH + order.column(place % WIDTH);
        let factor = |j: usize| if let [factor] = self.factors[..] { factor } else { self.factors[j] };
        #[cfg(target_arch = "x86_64")]
        let direct = (0..offsets.len()).all(|j| match self.table {
            Some(_) => super::codes512::is_direct_between(largest(j), factor(j), self.requant.zero_point),
            None => super::codes512::is_direct(largest(j), factor(j), self.requant.zero_point),
        });
        #[cfg(not(target_arch = "x86_64"))]
        let (direct, _) = (false, largest);
        Columns {
            order,
            direct,
            offsets: places.clone().map(|place| offsets.get(column(place)).copied().unwrap_or(0)).collect(),
            factors: places
                .map(|place| if column(place) < offsets.len() { factor(column(place)) as f32 } else { 0.0 })
                .collect(),
            shrink: self.factors.iter().all(|&factor| factor.abs() < 1.0),
        }
    }
}

impl Columns {
    /// The order of the columns.
    pub(super) fn order(&self) -> Order {
        self.order
    }

    /// Entries of a tile in natural order.
    pub(super) fn natural(&self, entries: &[i32]) -> [i32; WIDTH] {
        let mut natural = [0; WIDTH];
        for (place, &entry) in entries.iter().enumerate() {
            natural[self.order.column(place)] = entry;
        }
        natural
    }

    /// Offsets of a tile's columns in natural order.
    pub(super) fn natural_offsets(&self, columns: &Range<usize>) -> [i32; WIDTH] {
        let first = columns.start / WIDTH * WIDTH;
        let natural = self.natural(&self.offsets[first..first + WIDTH]);
        let mut own = [0; WIDTH];
        own[..columns.len()].copy_from_slice(&natural[columns.start - first..][..columns.len()]);
        own
    }
}
