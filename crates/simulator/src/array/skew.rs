//! A triangle of delay registers: lane i of a row comes out i (or n - 1 - i) strides later than lane 0.

/// Delays each lane of the rows pushed into it. Kept as a ring of rows; nothing is shifted.
#[derive(Debug, Clone)]
pub(super) struct Skew<T> {
    delays: Vec<usize>,
    ring: Vec<T>,
    depth: usize,
    head: usize,
    out: Vec<T>,
}

impl<T: Copy + Default> Skew<T> {
    /// Lane i is delayed by `i * stride` cycles.
    pub(super) fn rising(lanes: usize, stride: usize) -> Self {
        Self::new((0..lanes).map(|lane| lane * stride).collect())
    }

    /// Lane i is delayed by `lanes - 1 - i` cycles: undoes `rising(lanes, 1)`.
    pub(super) fn falling(lanes: usize) -> Self {
        Self::new((0..lanes).rev().collect())
    }

    fn new(delays: Vec<usize>) -> Self {
        let depth = delays.iter().max().map_or(1, |delay| delay + 1);
        let lanes = delays.len();
        Self { delays, ring: vec![T::default(); depth * lanes], depth, head: 0, out: vec![T::default(); lanes] }
    }

    /// One cycle: takes a row in, gives the lanes that are due (a lane without delay passes through).
    pub(super) fn push(&mut self, row: impl IntoIterator<Item = T>) -> &[T] {
        let lanes = self.delays.len();
        self.head = (self.head + 1) % self.depth;
        for (slot, value) in self.ring[self.head * lanes..][..lanes].iter_mut().zip(row) {
            *slot = value;
        }
        for (lane, (out, delay)) in self.out.iter_mut().zip(&self.delays).enumerate() {
            let row = if *delay <= self.head { self.head - delay } else { self.head + self.depth - delay };
            *out = self.ring[row * lanes + lane];
        }
        &self.out
    }
}

#[cfg(test)]
mod tests {
    use super::Skew;

    #[test]
    fn rising_delays_each_lane_by_its_stride() {
        let mut skew = Skew::rising(3, 2);
        let out: Vec<Vec<i32>> = (1..=6).map(|t| skew.push([t, 10 * t, 100 * t]).to_vec()).collect();
        assert_eq!(out[0], [1, 0, 0]);
        assert_eq!(out[2], [3, 10, 0]);
        assert_eq!(out[5], [6, 40, 200]);
    }

    #[test]
    fn falling_undoes_rising() {
        let (mut skew, mut deskew) = (Skew::rising(4, 1), Skew::falling(4));
        for t in 1..20 {
            let row = deskew.push(skew.push([t; 4]).to_vec()).to_vec();
            assert_eq!(row, [(t - 3).max(0); 4]);
        }
    }
}
