//! Soundness of a solution, the slow and obvious way; shares nothing with what it checks.

use super::{Problem, Solution};

/// A defect of a solution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Not one offset per item.
    #[error("{offsets} offsets for {items} items")]
    Count {
        /// Offsets given.
        offsets: usize,
        /// Items to place.
        items: usize,
    },
    /// Two items share time and addresses.
    #[error("items {0} and {1} overlap")]
    Overlap(usize, usize),
    /// An item lies above the capacity.
    #[error("item {0} exceeds the capacity")]
    Beyond(usize),
    /// An address is no multiple of what it must be.
    #[error("item {0} is not aligned")]
    Misaligned(usize),
}

/// Checks every pair of items and every end against the capacity.
///
/// # Errors
/// The first fault found.
pub fn validate(problem: &Problem, solution: &Solution) -> Result<(), Fault> {
    let (items, offsets) = (&problem.items, &solution.offsets);
    if items.len() != offsets.len() {
        return Err(Fault::Count { offsets: offsets.len(), items: items.len() });
    }
    for (i, a) in items.iter().enumerate() {
        if offsets[i] + a.size > problem.capacity {
            return Err(Fault::Beyond(i));
        }
        for (j, b) in items.iter().enumerate().skip(i + 1) {
            let apart_in_time = a.last < b.first || b.last < a.first;
            let apart_in_space = offsets[i] + a.size <= offsets[j] || offsets[j] + b.size <= offsets[i];
            if !apart_in_time && !apart_in_space && a.size > 0 && b.size > 0 {
                return Err(Fault::Overlap(i, j));
            }
        }
    }
    Ok(())
}

/// Checks every address against the alignment of its item.
///
/// # Errors
/// The first fault found.
pub fn aligned(alignments: &[u64], solution: &Solution) -> Result<(), Fault> {
    if alignments.len() != solution.offsets.len() {
        return Err(Fault::Count { offsets: solution.offsets.len(), items: alignments.len() });
    }
    match alignments.iter().zip(&solution.offsets).position(|(&alignment, &offset)| offset % alignment.max(1) != 0) {
        Some(item) => Err(Fault::Misaligned(item)),
        None => Ok(()),
    }
}
