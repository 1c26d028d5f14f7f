//! The arithmetic of a PE: byte products, and how they become products and sums.
//!
//! A PE's multiplier takes two 9-bit signed numbers. [`integer`] and [`float`] say how operands are cut
//! to fit it and how the pieces meet again; [`Datapath`] is the arithmetic as the registers of one PE
//! see it, [`Precision`] the format of a whole run.

mod float;
mod integer;

use std::fmt::Debug;

pub use float::Float;
pub use integer::Integer;

/// How the byte products of an operand pair are spread over the weight-stationary arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passes {
    /// Integers: the whole tile is streamed so many times, one pair of bytes each.
    Streams(u64),
    /// Floats: the tile is streamed once, every slot lasts so many cycles.
    Phases(u64),
}

impl Passes {
    /// Byte products per product: what the slots of a tile are multiplied by.
    #[must_use]
    pub fn count(self) -> u64 {
        self.streams() * self.phases()
    }

    /// Times a tile is streamed.
    #[must_use]
    pub fn streams(self) -> u64 {
        if let Self::Streams(count) = self { count } else { 1 }
    }

    /// Cycles a slot lasts.
    #[must_use]
    pub fn phases(self) -> u64 {
        if let Self::Phases(count) = self { count } else { 1 }
    }
}

/// The arithmetic inside a PE, as its registers see it. One instance serves all PEs.
pub trait Datapath: Copy {
    /// Content of an activation or weight register.
    type Word: Copy + Default;
    /// Content of the product register.
    type Product: Copy + Default;
    /// Content of the sum register.
    type Sum: Copy + Default;

    /// Cycles one product takes.
    fn phases(self) -> u8;
    /// The product register after the byte product of this `phase` (0 starts afresh).
    fn multiply(self, product: Self::Product, activation: Self::Word, weight: Self::Word, phase: u8) -> Self::Product;
    /// `sum + product`, in the sum's own arithmetic.
    fn add(self, sum: Self::Sum, product: Self::Product) -> Self::Sum;
}

/// Number format of a run: [`Integer`] or [`Float`].
pub trait Precision: Copy + Debug {
    /// Activation or weight as a tile holds it.
    type Operand: Copy + Default + Debug;
    /// Accumulator and result.
    type Sum: Copy + Default + Debug + PartialEq;
    /// PE of the weight-stationary arrays.
    type Streaming: Datapath;
    /// PE of the output-stationary array, whose products are whole.
    type Whole: Datapath<Word = Self::Operand, Sum = Self::Sum>;

    /// Bytes of an activation and of a weight.
    fn bytes(self) -> (usize, usize);
    /// How often bytes meet, and when.
    fn passes(self) -> Passes;
    /// Whether the value is one of an activation of this format (zero point subtracted).
    fn accepts_activation(self, value: Self::Operand) -> bool;
    /// Whether the value is one of a weight of this format (zero point subtracted).
    fn accepts_weight(self, value: Self::Operand) -> bool;
    /// Whether the accumulator can hold the sum.
    fn fits(self, sum: Self::Sum) -> bool;
    /// `sum + activation · weight`, as the accumulator has it in the end.
    fn mac(self, sum: Self::Sum, activation: Self::Operand, weight: Self::Operand) -> Self::Sum;

    /// PE of the weight-stationary arrays.
    fn streaming(self) -> Self::Streaming;
    /// PE of the output-stationary array.
    fn whole(self) -> Self::Whole;
    /// The value of the activation register in a stream.
    fn activation_word(self, value: Self::Operand, stream: usize) -> <Self::Streaming as Datapath>::Word;
    /// The value of the weight register in a stream.
    fn weight_word(self, value: Self::Operand, stream: usize) -> <Self::Streaming as Datapath>::Word;
    /// The sum entering the top of a column, given the accumulator it will end in.
    fn start(self, accumulator: Self::Sum) -> <Self::Streaming as Datapath>::Sum;
    /// The accumulator after a column's sum of one stream has arrived.
    fn collect(self, accumulator: Self::Sum, sum: <Self::Streaming as Datapath>::Sum, stream: usize) -> Self::Sum;
}

/// Which bytes (activation, weight) meet in pass `pass`, activation bytes running faster.
fn byte_pair((activation_bytes, _): (usize, usize), pass: usize) -> (usize, usize) {
    (pass % activation_bytes, pass / activation_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_are_the_products_of_bytes() {
        let integers = [Integer::I8, Integer::I16I8, Integer::I8I16, Integer::I16];
        assert_eq!(integers.map(Precision::passes), [1, 2, 2, 4].map(Passes::Streams));
        assert_eq!([Float::F16, Float::Bf16, Float::F32].map(Precision::passes), [4, 4, 16].map(Passes::Phases));
    }
}
