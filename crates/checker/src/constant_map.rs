//! A map from the bytes of a program's constants to elements: each stands for one element of one constant.
//!
//! A program could bring in fewer bytes than its constants have by taking a stretch of one for a stretch of another that happens
//! to look like it. Machines with compressed weights do so on purpose; this one does not, so that what a network must bring in follows
//! from its graph. Equal constants are one constant.

use std::collections::BTreeMap;

use tpuflow_ir::constants::EqualConstants;
use tpuflow_ir::{LayerId, TensorId};

/// Which constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Constant {
    /// Elements of a tensor in their order.
    Dense(TensorId),
    /// Weights of a convolution by tap, channel of the group, and column.
    ByColumn(TensorId),
    /// One of the two planes of the bytes of weights, by row and column.
    Plane(TensorId, u64),
    /// Codes of 4 bits, two from one of this parity on, row by row.
    Codes(TensorId, u64),
    /// Scales of blocks of packed weights, by block and column.
    Scales(TensorId),
    /// Zero points of blocks, two from one of this parity on.
    ZeroPoints(TensorId, u64),
    /// Entries of so many elements a row of a packed table, one after the other, by column.
    Records(TensorId, u32),
    /// The parameters of the channels of a layer.
    Parameters(LayerId),
}

/// Bytes of a constant from one on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConstantByte {
    pub(crate) of: Constant,
    pub(crate) byte: u64,
}

impl ConstantByte {
    fn advance(self, bytes: u64) -> Self {
        Self { byte: self.byte + bytes, ..self }
    }
}

#[derive(Clone)]
struct Run {
    bytes: u64,
    element: ConstantByte,
}

/// All bytes that were computed with.
#[derive(Clone)]
pub(crate) struct ConstantMap {
    equal: EqualConstants,
    runs: BTreeMap<(u8, u64), Run>,
}

impl ConstantMap {
    pub(crate) fn new(equal: EqualConstants) -> Self {
        Self { equal, runs: BTreeMap::new() }
    }

    /// `bytes` bytes of the constants of an address space from `at` on stand for these.
    ///
    /// # Errors
    /// The other element that the first conflicting byte stands for.
    pub(crate) fn assign(
        &mut self,
        space: u8,
        mut at: u64,
        bytes: u64,
        element: ConstantByte,
    ) -> Result<(), ConstantByte> {
        let of = match element.of {
            Constant::Dense(id) => Constant::Dense(self.equal.tensor(id)),
            Constant::ByColumn(id) => Constant::ByColumn(self.equal.tensor(id)),
            Constant::Plane(id, plane) => Constant::Plane(self.equal.tensor(id), plane),
            Constant::Codes(id, first) => Constant::Codes(self.equal.tensor(id), first),
            Constant::Scales(id) => Constant::Scales(self.equal.tensor(id)),
            Constant::ZeroPoints(id, first) => Constant::ZeroPoints(self.equal.tensor(id), first),
            Constant::Records(id, width) => Constant::Records(self.equal.tensor(id), width),
            Constant::Parameters(layer) => Constant::Parameters(self.equal.parameters(layer)),
        };
        let (mut element, end) = (ConstantByte { of, ..element }, at + bytes);
        while at < end {
            let before = self.runs.range_mut((space, 0)..=(space, at)).next_back();
            if let Some((&(_, start), run)) = before
                && start + run.bytes >= at
            {
                let known = start + run.bytes - at;
                let same = run.element.advance(at - start) == element;
                if known > 0 && !same {
                    return Err(run.element.advance(at - start));
                }
                if known > 0 {
                    (at, element) = (at + known, element.advance(known));
                    continue;
                }
                if same {
                    let next = self
                        .runs
                        .range((space, at)..)
                        .next()
                        .map_or(end, |(&(other, next), _)| if other == space { next.min(end) } else { end });
                    self.extend(space, start, next - at);
                    (at, element) = (next, element.advance(next - at));
                    continue;
                }
            }
            let next = self.runs.range((space, at)..(space, end)).next().map_or(end, |(&(_, next), _)| next);
            self.runs.insert((space, at), Run { bytes: next - at, element });
            (at, element) = (next, element.advance(next - at));
        }
        Ok(())
    }

    fn extend(&mut self, space: u8, start: u64, bytes: u64) {
        if let Some(run) = self.runs.get_mut(&(space, start)) {
            run.bytes += bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::{Net, Random};

    #[test]
    fn bytes_stand_for_what_they_stood_for_before() {
        let mut net = Net::new(1);
        let x = net.input(&[1, 4]);
        let graph = net.finish(&[x]);
        let mut refused = 0;
        for seed in 0..50 {
            let mut random = Random(seed);
            let mut map = ConstantMap::new(EqualConstants::of(&graph));
            let mut known: BTreeMap<u64, ConstantByte> = BTreeMap::new();
            for _ in 0..80 {
                let (at, bytes) = (random.below(60) as u64, 1 + random.below(12) as u64);
                let byte = if random.chance(85) { at + 100 } else { random.below(200) as u64 };
                let element = ConstantByte { of: Constant::Plane(TensorId(0), 0), byte };
                let expected = (0..bytes).find_map(|i| known.get(&(at + i)).filter(|&&k| k != element.advance(i)));
                let found = map.assign(0, at, bytes, element);
                assert_eq!(found.err(), expected.copied(), "seed {seed}: {bytes} bytes from {at}");
                refused += u32::from(expected.is_some());
                if expected.is_none() {
                    known.extend((0..bytes).map(|i| (at + i, element.advance(i))));
                } else {
                    break;
                }
            }
        }
        assert!(refused > 10, "{refused}");
    }
}
