//! `n` things spread evenly over `c` places: number `i` at `floor((i c + offset) / n)`, one after the other, without dividing.

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    at: u64,
    rest: u64,
    whole: u64,
    part: u64,
    count: u64,
}

impl Pace {
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
