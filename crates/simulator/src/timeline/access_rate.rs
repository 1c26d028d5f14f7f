//! `n` things spread evenly over `c` places: number `i` at `floor((i c + offset) / n)`, one after the other, without dividing.

use super::banks::ones;

/// Every so many-th of 64 bits, from the lowest on.
const COMBS: [u64; 65] = {
    let mut combs = [1; 65];
    let mut step = 1;
    while step < 64 {
        let mut bit = step;
        while bit < 64 {
            combs[step] |= 1 << bit;
            bit += step;
        }
        step += 1;
    }
    combs
};

/// Every `step`-th of 64 bits, from the lowest on; `step` is at least 1.
pub(crate) fn every_nth_bit(step: u64) -> u64 {
    COMBS[step.min(64) as usize]
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessRate {
    at: u64,
    rest: u64,
    whole: u64,
    part: u64,
    count: u64,
}

impl AccessRate {
    /// Stands at number `first`. `count` may be 0 if it is never asked.
    pub(crate) fn new(places: u64, count: u64, offset: u64, first: u64) -> Self {
        let count = count.max(1);
        let sum = u128::from(first) * u128::from(places) + u128::from(offset);
        let (at, rest) = match u64::try_from(sum) {
            Ok(sum) => (sum / count, sum % count),
            Err(_) => ((sum / u128::from(count)) as u64, (sum % u128::from(count)) as u64),
        };
        Self { at, rest, whole: places / count, part: places % count, count }
    }

    /// The place of the number it stands at.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Whether no two numbers share a place.
    pub(crate) fn is_sparse(&self) -> bool {
        self.whole > 0
    }

    /// How many numbers from this on, of at most 64, have a place before `limit`.
    pub(crate) fn count_before(&self, limit: u64) -> u64 {
        let places = limit.saturating_sub(self.at);
        if self.whole == 1 && self.part == 0 {
            return places.min(64);
        }
        if places > 64 * (self.whole + 1) {
            return 64;
        }
        let step = self.whole * self.count + self.part;
        (places * self.count).saturating_sub(self.rest).div_ceil(step.max(1)).min(64)
    }

    /// Of `count` numbers from this on, whose places no two share and are cycles counted from `origin`: the cycles before `end`, as
    /// bits of the block of 64 that begins in cycle `block` and that they lie in; and how many they are.
    pub(crate) fn mask(&self, origin: u64, (block, end): (u64, u64), count: u64) -> (u64, u64) {
        let at = origin + self.at;
        if self.part == 0 {
            let found = count.min(end.saturating_sub(at).div_ceil(self.whole.max(1)));
            let Some(last) = found.checked_sub(1) else { return (0, 0) };
            let comb = every_nth_bit(self.whole) & ones(last * self.whole + 1);
            return (comb << (at - block), found);
        }
        let (mut pace, mut mask, mut found) = (*self, 0, 0);
        while found < count && origin + pace.at < end {
            mask |= 1 << (origin + pace.at - block);
            found += 1;
            pace.advance();
        }
        (mask, found)
    }

    /// Goes on by `count` numbers.
    pub(crate) fn skip(&mut self, count: u64) {
        self.at += self.whole * count;
        if self.part > 0 {
            let rest = self.rest + self.part * count;
            self.at += rest / self.count;
            self.rest = rest % self.count;
        }
    }

    /// Goes on to the next number.
    pub(crate) fn advance(&mut self) {
        self.at += self.whole;
        self.rest += self.part;
        if self.rest >= self.count {
            self.rest -= self.count;
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Products of 128 bits have their places, too.
    #[test]
    fn numbers_far_away_are_where_they_belong() {
        for (places, count, offset) in [(u64::MAX, 6, 4), (u64::MAX - 2, 7, 0), (u64::MAX / 3, 90, u64::MAX)] {
            for first in 2..5 {
                let place = |number: u64| {
                    ((u128::from(number) * u128::from(places) + u128::from(offset)) / u128::from(count)) as u64
                };
                let mut pace = AccessRate::new(places, count, offset, first);
                for number in first..first + 2 {
                    assert_eq!(pace.at(), place(number), "number {number} of {count} over {places} places");
                    pace.advance();
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Many numbers at a time are as many one after the other.
        #[test]
        fn steps_at_once_are_steps(
            [places, count, offset, first] in [1u64..400, 1u64..90, 0u64..90, 0u64..90], skipped in 0u64..70,
            [origin, length] in [0u64..100, 1u64..65], limit in 0u64..600,
        ) {
            let place = |number: u64| (number * places + offset) / count;
            let mut pace = AccessRate::new(places, count, offset, first);
            pace.skip(skipped);
            let first = first + skipped;
            prop_assert_eq!(pace.at(), place(first));
            let before = (0..64).take_while(|n| place(first + n) < limit).count() as u64;
            prop_assert_eq!(pace.count_before(limit), before);
            if pace.is_sparse() {
                // A block that the first number lies in.
                let at = origin + place(first);
                let block = at / 64 * 64;
                let cycles = (0..skipped).map(|n| origin + place(first + n)).take_while(|&cycle| cycle < block + length);
                let mask = cycles.clone().fold(0, |mask, cycle| mask | 1u64 << (cycle - block));
                prop_assert_eq!(mask.count_ones() as usize, cycles.clone().count());
                prop_assert_eq!(pace.mask(origin, (block, block + length), skipped), (mask, cycles.count() as u64));
            }
        }
    }
}
