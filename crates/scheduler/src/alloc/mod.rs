//! Static memory allocation: buffers with known lifetimes get addresses so that no two that live at the same time overlap.
//!
//! ```text
//!  address
//!    |  +-------+          +----+     An item is a rectangle: its lifetime wide, its size high. Time is fixed, only the
//!    |  |   C   |  +----+  | E  |     address is free. The height of a solution is the highest address used; no solution
//!    |  +----+--+  | D  |  |    |     is lower than the largest sum of sizes that live at one time.
//!    |  | A  |   B | .. |  |    |
//!    +--+----+-----+----+--+----+--> time
//! ```
//!
//! There are two problems. In a linear space every address is as good as another: [`ladder::solve_by_effort`] goes from a portfolio of
//! greedy orders ([`solve`] is that portfolio alone) to exact search, of all items or, where there are very many, of those
//! that leave no choice, and says how far from the lower bound it stopped. In a space of banks, buffers that are used at the same time should not share a bank: [`place_apart`].
//! [`check::validate`] re-derives soundness the slow way.

pub mod check;
mod core;
mod exact;
mod greedy;
pub mod ladder;
pub(crate) mod placed;

pub use greedy::{Fit, Order, PORTFOLIO, place, place_apart, solve};
/// A buffer: alive from `first` to `last`, both inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// First point of time.
    pub first: u32,
    /// Last point of time, at least `first`.
    pub last: u32,
    /// Units of address space, such as words.
    pub size: u64,
}

impl Item {
    /// Whether two buffers live at the same time.
    #[must_use]
    pub fn meets(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Buffers to place, and the memory to place them in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Buffers.
    pub items: Vec<Item>,
    /// Units of address space there are.
    pub capacity: u64,
}

/// An address per item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Solution {
    /// By item.
    pub offsets: Vec<u64>,
    /// One past the highest unit used.
    pub height: u64,
}

impl Problem {
    /// The largest sum of sizes alive at one time: no solution is lower.
    #[must_use]
    pub fn lower_bound(&self) -> u64 {
        self.loads().into_iter().map(|(_, load)| load).max().unwrap_or(0)
    }

    /// The sum of sizes alive from each moment at which it changes, in the order of time.
    fn loads(&self) -> Vec<(u32, u64)> {
        let mut events: Vec<(u32, bool, u64)> = Vec::with_capacity(2 * self.items.len());
        for item in &self.items {
            events.push((item.first, true, item.size));
            events.push((item.last + 1, false, item.size));
        }
        // Ends before starts at the same time: intervals are closed and `last + 1` is free again.
        events.sort_unstable();
        let mut loads: Vec<(u32, u64)> = Vec::with_capacity(events.len());
        let mut load = 0u64;
        for (time, starts, size) in events {
            load = if starts { load + size } else { load - size };
            match loads.last_mut() {
                Some(last) if last.0 == time => last.1 = load,
                _ => loads.push((time, load)),
            }
        }
        loads
    }
}
