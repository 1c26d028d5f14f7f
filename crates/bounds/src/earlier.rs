//! Layers before others, by what a result of theirs needs.
//!
//! Of long graphs only so many layers before each are looked at, since sets of all would grow with the square of their number. A
//! bound that knows of fewer needs is lower, and holds.

use std::ops::Range;

/// Graphs of up to so many layers are looked at whole.
const WHOLE: usize = 2048;

/// How many layers before each are looked at in longer ones.
const REACH: usize = 512;

/// How far back a graph of so many layers is looked at.
pub(super) fn reach(layers: usize) -> usize {
    if layers <= WHOLE { layers } else { REACH }
}

/// By layer, a set of those in reach before it.
#[derive(Clone, Debug)]
pub(super) struct Earlier {
    reach: usize,
    sets: Vec<Vec<bool>>,
}

impl Earlier {
    /// Of no layer yet.
    pub fn new(reach: usize) -> Self {
        Self { reach, sets: Vec::new() }
    }

    /// Whether none of `count` layers is out of reach.
    pub fn is_whole(&self, count: usize) -> bool {
        count <= self.reach
    }

    /// The layers that may be in the set of one.
    pub fn range(&self, layer: usize) -> Range<usize> {
        layer.saturating_sub(self.reach)..layer
    }

    /// Adds the set of the next layer: a flag for each of its [`range`](Self::range), those of the last left out being none.
    pub fn push(&mut self, mut flags: Vec<bool>) {
        flags.resize(self.range(self.sets.len()).len(), false);
        self.sets.push(flags);
    }

    /// Whether `other` is in the set of `layer`.
    pub fn has(&self, layer: usize, other: usize) -> bool {
        let range = self.range(layer);
        range.contains(&other) && self.sets[layer][other - range.start]
    }

    /// The set of a layer, in ascending order.
    pub fn of(&self, layer: usize) -> impl DoubleEndedIterator<Item = usize> + '_ {
        self.range(layer).zip(&self.sets[layer]).filter(|(_, is_in)| **is_in).map(|(other, _)| other)
    }

    /// Flags of the set of `from`, and with `itself` of `from` too, in the range of a later layer.
    pub fn seen_from(&self, layer: usize, from: usize, itself: bool) -> Vec<bool> {
        let (range, own) = (self.range(layer), self.range(from));
        let mut flags = vec![false; range.len()];
        let both = range.start.max(own.start)..own.end.max(range.start);
        if !both.is_empty() {
            let place = both.start - range.start;
            flags[place..place + both.len()].copy_from_slice(&self.sets[from][both.start - own.start..]);
        }
        if itself && range.contains(&from) {
            flags[from - range.start] = true;
        }
        flags
    }

    /// Layers whose sets may have `layer`, among `count`.
    pub fn later(&self, layer: usize, count: usize) -> Range<usize> {
        layer + 1..count.min(layer.saturating_add(self.reach).saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::wild::wild;
    use crate::common::{machine, random};

    /// By layer, whether it needs another, whatever the reach.
    fn needs(layer: usize, other: usize) -> bool {
        (layer * 7 + other * 3) % 5 < 3
    }

    #[test]
    fn sets_hold_what_is_in_reach() {
        for reach in [1, 4, 9, 40] {
            let mut sets = Earlier::new(reach);
            for layer in 0..30 {
                let flags = sets.range(layer).map(|other| needs(layer, other)).collect();
                sets.push(flags);
            }
            for layer in 0..30 {
                let own = |other: usize| other < layer && other + reach >= layer && needs(layer, other);
                assert_eq!(sets.of(layer).collect::<Vec<_>>(), (0..30).filter(|&other| own(other)).collect::<Vec<_>>());
                for other in 0..30 {
                    assert_eq!(sets.has(layer, other), own(other));
                    let is_later = sets.later(other, 30).contains(&layer);
                    assert_eq!(is_later, other < layer && other + reach >= layer);
                }
                for (from, itself) in (0..layer).flat_map(|from| [(from, false), (from, true)]) {
                    let seen = |&other: &usize| itself && other == from || sets.has(from, other);
                    let expected: Vec<bool> = sets.range(layer).map(|other| seen(&other)).collect();
                    assert_eq!(sets.seen_from(layer, from, itself), expected, "{layer} from {from}, reach {reach}");
                }
            }
        }
    }

    /// Whoever knows of fewer needs has lower bounds, on every count and machine.
    #[test]
    fn bounds_grow_with_what_is_looked_at() {
        let mut lower = 0;
        for seed in 0..150 {
            let graph = if seed % 2 == 0 { random(seed, 24) } else { wild(seed, 16, 3000) };
            let machine = machine(seed);
            let of = |reach| crate::bounds_within(&graph, &machine, reach).whole.by_name();
            let (reaches, all) = ([1, 2, 5, 11], of(graph.layers.len()));
            let mut before = of(1);
            for found in reaches.map(of).into_iter().chain([all]) {
                for ((name, less), (_, more)) in before.into_iter().zip(found) {
                    assert!(less <= more, "seed {seed}, {name}: {less} above {more}");
                }
                lower += u32::from(before != found);
                before = found;
            }
        }
        assert!(lower > 100, "{lower}");
    }
}
