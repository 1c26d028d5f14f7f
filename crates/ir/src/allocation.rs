//! Which tensor has which bytes of the shared cache, from when to when, and how many bytes that takes at a time.

use serde::{Deserialize, Serialize};

/// A stretch of the shared cache given to a tensor (or a part of one) for a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// Tensor, or `weights of LAYER`.
    pub name: String,
    /// Byte address in the shared cache.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// First instruction (position in the list) that touches it.
    pub first: u32,
    /// Last instruction that touches it.
    pub last: u32,
}

/// Most bytes that are allocated at a time, in serial order; bytes that several allocations share count once.
///
/// The union of intervals is kept in a segment tree over their ends, so that n allocations take O(n log n) steps whatever a
/// file says they overlap. One that ends before it begins, as a damaged file may state, is never held.
pub(crate) fn most_at_a_time(allocations: &[Allocation]) -> u64 {
    let allocations = || allocations.iter().filter(|allocation| allocation.first <= allocation.last);
    let end = |allocation: &Allocation| allocation.address.saturating_add(allocation.bytes);
    let mut ends: Vec<u64> = allocations().flat_map(|a| [a.address, end(a)]).collect();
    ends.sort_unstable();
    ends.dedup();
    let mut changes: Vec<(u64, bool, &Allocation)> =
        allocations().flat_map(|a| [(u64::from(a.first), true, a), (u64::from(a.last) + 1, false, a)]).collect();
    // Of one instruction, what ends comes before what begins.
    changes.sort_by_key(|&(instruction, begins, _)| (instruction, begins));
    let mut union = Union { nodes: vec![Node::default(); 4 * ends.len()], ends };
    let mut most = 0;
    for (_, begins, allocation) in changes {
        let [first, last] = [allocation.address, end(allocation)].map(|at| union.ends.partition_point(|&end| end < at));
        union.change(1, 0..union.ends.len() - 1, &(first..last), begins);
        most = most.max(union.nodes[1].bytes);
    }
    most
}

/// Intervals between sorted ends, some of which are held.
struct Union {
    ends: Vec<u64>,
    nodes: Vec<Node>,
}

/// A range of intervals: how many allocations hold all of it (counted at the highest such nodes), how many bytes are held.
#[derive(Clone, Copy, Default)]
struct Node {
    holders: u64,
    bytes: u64,
}

impl Union {
    /// Intervals of `wanted` get a holder more or one less; `node` stands for those of `own`.
    fn change(&mut self, node: usize, own: std::ops::Range<usize>, wanted: &std::ops::Range<usize>, begins: bool) {
        if own.start >= own.end || wanted.start >= own.end || own.start >= wanted.end {
            return;
        }
        let middle = own.start.midpoint(own.end);
        if wanted.start <= own.start && own.end <= wanted.end {
            let holders = &mut self.nodes[node].holders;
            *holders = if begins { *holders + 1 } else { *holders - 1 };
        } else {
            self.change(2 * node, own.start..middle, wanted, begins);
            self.change(2 * node + 1, middle..own.end, wanted, begins);
        }
        self.nodes[node].bytes = match self.nodes[node].holders {
            0 if own.len() == 1 => 0,
            0 => self.nodes[2 * node].bytes + self.nodes[2 * node + 1].bytes,
            _ => self.ends[own.end] - self.ends[own.start],
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn allocations() -> impl Strategy<Value = Vec<Allocation>> {
        // Some end before they begin.
        let one = (0u64..40, 0u64..20, 0u32..12, 0u32..9).prop_map(|(address, bytes, first, more)| Allocation {
            name: String::new(),
            address,
            bytes,
            first,
            last: (first + more).saturating_sub(3),
        });
        prop::collection::vec(one, 1..12)
    }

    proptest! {
        /// Byte by byte and instruction by instruction.
        #[test]
        fn bytes_held_at_a_time_are_those_counted_one_by_one(allocations in allocations()) {
            let held = |instruction: u32, byte: u64| {
                allocations.iter().any(|a| {
                    (a.first..=a.last).contains(&instruction) && (a.address..a.address + a.bytes).contains(&byte)
                })
            };
            let counted = (0..18).map(|i| (0..60).filter(|&byte| held(i, byte)).count() as u64).max();
            prop_assert_eq!(Some(most_at_a_time(&allocations)), counted);
        }
    }

    #[test]
    fn many_nested_allocations_are_counted_at_once() {
        let nested = |n: u32| Allocation {
            name: String::new(),
            address: n.into(),
            bytes: u64::from(400_000 - 2 * n),
            first: n,
            last: 400_000 - n,
        };
        let all: Vec<Allocation> = (0..200_000).map(nested).collect();
        assert_eq!(most_at_a_time(&all), 400_000);
    }
}
