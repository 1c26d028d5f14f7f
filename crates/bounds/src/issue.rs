//! Work of a unit whose instructions wait in an issue stage.
//!
//! Every layer takes at least one instruction of its own. An instruction stays in the stage for `start` cycles at least, and until the
//! unit has passed the cycles of the one before; only then may the next enter (`docs/machine.md`, section 5). So the times at which two
//! instructions move to the unit lie `start` cycles apart, or as many as the first takes there if these are more.
//!
//! ```text
//!  stage  [ start ][ start ][ start ]
//!  unit            [1]      [2]      [ 3 ... ] latency
//! ```

/// Cycles from when the first instruction of some layers moves to the unit until the last has passed it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Occupancy {
    start: u64,
    cycles: u64,
    /// How much shorter than its time in the stage the last instruction may be.
    shorter: u64,
}

impl Occupancy {
    /// Of a unit with so many cycles of issue.
    pub fn new(start: u64) -> Self {
        Self { start, cycles: 0, shorter: 0 }
    }

    /// Adds a layer whose instructions take so many cycles together; without any it needs none.
    pub fn add(&mut self, cycles: u64) {
        if cycles > 0 {
            self.cycles += cycles.max(self.start);
            self.shorter = self.shorter.max(self.start.saturating_sub(cycles));
        }
    }

    /// From the first instruction of all to the end of the last, whichever it is.
    pub fn once(self) -> u64 {
        self.cycles - self.shorter
    }

    /// From the first instruction to the same one of the next inference, where inferences follow each other.
    pub fn repeated(self) -> u64 {
        self.cycles
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end of the last of some instructions, by the law of the stage.
    fn end(start: u64, instructions: &[u64]) -> u64 {
        let (mut entered, mut end) = (0, 0);
        for cycles in instructions {
            let moved = end.max(entered + start);
            (entered, end) = (moved, moved + cycles);
        }
        end
    }

    #[test]
    fn no_order_and_no_division_of_layers_is_quicker() {
        for start in [1, 7, 64] {
            for layers in [[1, 1, 1], [3, 90, 2], [64, 65, 200], [10, 6, 7]] {
                let mut occupancy = Occupancy::new(start);
                layers.iter().for_each(|&cycles| occupancy.add(cycles));
                let whole = |order: [usize; 3]| end(start, &order.map(|layer| layers[layer]));
                let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
                let least = orders.map(whole).into_iter().min();
                assert_eq!(least, Some(start + occupancy.once()), "{start}, {layers:?}");
                let halves: Vec<u64> = layers.iter().flat_map(|&c| [c / 2, c - c / 2]).filter(|&c| c > 0).collect();
                assert!(end(start, &halves) >= start + occupancy.once(), "{start}, {layers:?}");
                let twice = [layers, layers].concat();
                assert!(end(start, &twice) >= end(start, &layers) + occupancy.repeated(), "{start}, {layers:?}");
            }
        }
        assert_eq!(Occupancy::new(5).once(), 0);
    }
}
