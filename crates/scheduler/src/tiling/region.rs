//! Boxes of elements of a tensor.

/// By axis, elements `[from, to)`, never empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Region(pub Vec<(usize, usize)>);

impl Region {
    /// All of a shape.
    pub fn whole(shape: &[usize]) -> Self {
        Self(shape.iter().map(|&extent| (0, extent)).collect())
    }

    /// Extent of every axis.
    pub fn shape(&self) -> Vec<usize> {
        self.0.iter().map(|(from, to)| to - from).collect()
    }

    pub fn elements(&self) -> usize {
        self.shape().iter().product()
    }

    /// Whether it is all of `shape`.
    pub fn fills(&self, shape: &[usize]) -> bool {
        *self == Self::whole(shape)
    }

    /// The smallest box around both.
    pub fn hull(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(a, b)| (a.0.min(b.0), a.1.max(b.1))).collect())
    }

    /// Whether `other` lies inside.
    pub fn holds(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(a, b)| a.0 <= b.0 && b.1 <= a.1)
    }

    /// Whether an element is in both.
    pub fn meets(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(a, b)| a.0.max(b.0) < a.1.min(b.1))
    }

    /// The same box with another range along `axis`.
    pub fn with(&self, axis: usize, range: (usize, usize)) -> Self {
        let mut ranges = self.0.clone();
        ranges[axis] = range;
        Self(ranges)
    }
}

/// `extent` in `parts` ranges whose sizes differ by at most one.
pub(crate) fn even(extent: usize, parts: usize) -> Vec<(usize, usize)> {
    (0..parts).map(|part| (part * extent / parts, (part + 1) * extent / parts)).collect()
}

/// Steps of a dense row-major tensor, in elements.
pub(crate) fn steps(shape: &[usize]) -> Vec<i64> {
    let mut step = 1i64;
    let mut steps: Vec<i64> = shape
        .iter()
        .rev()
        .map(|&extent| {
            let own = step;
            step *= extent as i64;
            own
        })
        .collect();
    steps.reverse();
    steps
}
