//! The fields that all instructions of a layer have in common: the operator, how its sums become elements, and its geometry.

use serde::{Deserialize, Serialize};

use super::Vector;
use crate::op::{BinaryKind, Divisor, LinearTap, Measure, ReduceKind};
use crate::{DType, Finish, Function, Real, Window};

/// The fields that all instructions of a layer have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Descriptor {
    /// For [`crate::Work::Matrix`].
    Matrix(MatrixDescriptor),
    /// For [`crate::Work::Pool`].
    Pool(PoolDescriptor),
    /// For [`crate::Work::Vector`].
    Vector(VectorOp),
}

/// Size and clamp of a table; its int32 words lie in the EWP cache ([`crate::table`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TableShape {
    /// Number of words.
    pub entries: u32,
    /// Lower clamp.
    pub lo: i32,
    /// Upper clamp.
    pub hi: i32,
}

/// Zero point and clamp of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Codes {
    /// Added after rounding.
    pub zero_point: i32,
    /// Lower clamp.
    pub lo: i32,
    /// Upper clamp.
    pub hi: i32,
}

/// A single multiplier and where its result goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Scaling {
    /// M.
    pub multiplier: i32,
    /// N.
    pub shift: i8,
    /// Zero point and clamp.
    pub codes: Codes,
}

/// The conversion of the float32 result of a float instruction: `function`, then a clamp, then one rounding to the output's
/// type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FloatOutput {
    /// A function of the result.
    pub function: Option<Function>,
    /// Lower clamp, a float32.
    pub lo: Option<Real>,
    /// Upper clamp, a float32.
    pub hi: Option<Real>,
}

impl From<&Finish> for FloatOutput {
    fn from(finish: &Finish) -> Self {
        Self { function: finish.function.clone(), lo: finish.lo, hi: finish.hi }
    }
}

impl From<&FloatOutput> for Finish {
    fn from(output: &FloatOutput) -> Self {
        Self { function: output.function.clone(), lo: output.lo, hi: output.hi }
    }
}

/// Common part of the matrix instructions of a layer. A matrix product is a 1x1 convolution whose pixels are its rows. A result of
/// int64 is the sums of codes as they are, without bias or requantisation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MatrixDescriptor {
    /// Window geometry.
    pub window: Window,
    /// Input channels of a group.
    pub group_in: u32,
    /// Output channels of a group.
    pub group_out: u32,
    /// Zero point of the left operand, subtracted by the row feeder.
    pub input_zero: i32,
    /// Zero point of the right operand, subtracted by the weight port.
    pub weight_zero: i32,
    /// Element type of the right operand.
    pub weight_dtype: DType,
    /// A rounding before the bias, see [`crate::Epilogue`].
    pub first_shift: Option<u8>,
    /// Result of the requantisation (of the 16-bit intermediate when a table follows).
    pub codes: Codes,
    /// Fused table.
    pub table: Option<TableShape>,
    /// Present where operands are floats; zero points and codes are 0 then.
    pub float: Option<FloatOutput>,
}

/// Common part of the pool instructions of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PoolDescriptor {
    /// The operation.
    pub kind: PoolKind,
    /// Window geometry.
    pub window: Window,
}

/// The operations of pool instructions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PoolKind {
    /// Largest code of the window.
    Max,
    /// Rounded average, see [`crate::Op::AveragePool`].
    Average {
        /// Zero point of the operand.
        input_zero: i32,
        /// Padding counts as cells.
        count_include_pad: bool,
        /// Bottom and right padding that never counts.
        beyond: [u32; 2],
        /// By area.
        divisors: Vec<(u32, i32, i8)>,
        /// Result.
        codes: Codes,
    },
    /// Depthwise convolution, one output channel per input channel.
    Depthwise {
        /// Zero point of the operand.
        input_zero: i32,
        /// Zero point of the weights.
        weight_zero: i32,
        /// Element type of the weights.
        weight_dtype: DType,
        /// A rounding before the bias, see [`crate::Epilogue`].
        first_shift: Option<u8>,
        /// Result.
        codes: Codes,
        /// Fused table.
        table: Option<TableShape>,
    },
    /// Average of floats: the sum in the order of the window over the number of cells that count.
    FloatAverage {
        /// Padding counts as cells.
        count_include_pad: bool,
        /// Bottom and right padding that never counts.
        beyond: [u32; 2],
        /// Result.
        output: FloatOutput,
    },
    /// Depthwise convolution of floats.
    FloatDepthwise {
        /// Element type of the weights.
        weight_dtype: DType,
        /// Result.
        output: FloatOutput,
    },
}

impl PoolKind {
    /// Divisors of a graph's operator in the descriptor's form.
    #[must_use]
    pub fn divisors(divisors: &[Divisor]) -> Vec<(u32, i32, i8)> {
        divisors.iter().map(|d| (d.area, d.multiplier, d.shift)).collect()
    }
}

/// The operations of vector instructions. Row-wise operators take the same row of operands and result; a size of one in an
/// operand's images, height, width or channels broadcasts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum VectorOp {
    /// Two operands, row-wise.
    Binary {
        /// The function.
        kind: BinaryKind,
        /// Zero points of the operands.
        zeros: [i32; 2],
        /// Multipliers of the operands.
        factors: [i32; 2],
        /// To the result.
        scaling: Scaling,
    },
    /// Table lookup, row-wise. Parameters: the entries.
    Table(TableShape),
    /// Change of scale, row-wise.
    Rescale {
        /// Zero point of the operand.
        input_zero: i32,
        /// To the result.
        scaling: Scaling,
    },
    /// Piecewise linear, row-wise. Parameters: [`crate::isa::Slope`] of every channel, or one.
    PRelu {
        /// Zero point of the operand.
        input_zero: i32,
        /// For operands at or above the zero point.
        positive: Scaling,
        /// One slope per channel.
        per_channel: bool,
    },
    /// Softmax over channels, row-wise. Further operands are an int8 mask, and int64 statistics where the channels are some of
    /// those of the rows.
    Softmax {
        /// See [`crate::Op::Softmax`].
        coefficient: u64,
        /// To the result.
        scaling: Scaling,
    },
    /// Normalisation over channels, row-wise. Parameters: [`crate::isa::NormParameters`] of every channel.
    LayerNorm {
        /// Subtract the mean.
        center: bool,
        /// Zero point of the operand.
        input_zero: i32,
        /// See [`crate::Op::LayerNorm`].
        epsilon: u64,
        /// To the normalised intermediate: M and N. Texts of earlier versions say `normalise`.
        #[serde(alias = "normalise")]
        normalize: (i32, i8),
        /// Result.
        codes: Codes,
    },
    /// Reduction of a stretch of row-major elements (a whole tensor, most often) over axes of its logical shape, of sums also of
    /// int64. A second operand holds the running results of the stretches before it, in [`VectorOp::running`]'s type.
    Reduce {
        /// The operation.
        kind: ReduceKind,
        /// Logical shape of the stretch.
        shape: Vec<u32>,
        /// Reduced axes.
        axes: Vec<u32>,
        /// Zero point of the operand.
        input_zero: i32,
        /// To the result.
        scaling: Scaling,
        /// The result is a running one, for a later stretch to go on with.
        partial: bool,
    },
    /// Index of the extreme channel, row-wise; the result has one int32 per pixel.
    ArgMax {
        /// Largest or smallest.
        largest: bool,
        /// Ties go to the last.
        select_last: bool,
    },
    /// Copies elements between row-major positions: `output[output_offset + sum(i * output_strides)] =
    /// input[input_offset + sum(i * input_strides)]` for all `i` in `dims`, rescaled if asked.
    Move {
        /// Loop extents, outermost first.
        dims: Vec<u32>,
        /// Elements.
        input_strides: Vec<i64>,
        /// Elements.
        input_offset: i64,
        /// Elements.
        output_strides: Vec<i64>,
        /// Elements.
        output_offset: i64,
        /// Zero point of the operand and the scaling.
        rescale: Option<(i32, Scaling)>,
    },
    /// Picks indices: operand `[outer, extent, inner]`, result `[outer, indices, inner]`, row-major.
    Gather {
        /// Positions before the axis.
        outer: u32,
        /// The axis.
        extent: u32,
        /// Positions after the axis.
        inner: u32,
        /// Picked.
        indices: Vec<u32>,
    },
    /// Writes one element to all rows; no operands.
    Fill {
        /// The code; of floats the element's bits.
        code: i32,
    },
    /// Linear resize, by output rows.
    ResizeLinear {
        /// Per output row of one image.
        rows: Vec<LinearTap>,
        /// Per output column.
        columns: Vec<LinearTap>,
    },
    /// `condition ? a : b`, row-wise, on elements of any type.
    Select,
    /// A float operator. Row-wise but for reductions.
    Float {
        /// The operation, in float32.
        function: FloatFunction,
        /// To the result.
        output: FloatOutput,
    },
    /// Floats to codes, row-wise: `clamp(RNE(x / S) + Z)`.
    Quantize {
        /// S.
        scale: Real,
        /// Z and clamp.
        codes: Codes,
    },
    /// [`VectorOp::LayerNorm`] with one entry of parameters for all channels: normalisation without scales and offsets of their
    /// own, of rows that may be as long as a whole image.
    SharedLayerNorm {
        /// Subtract the mean.
        center: bool,
        /// Zero point of the operand.
        input_zero: i32,
        /// See [`crate::Op::LayerNorm`].
        epsilon: u64,
        /// To the normalised intermediate: M and N.
        normalize: (i32, i8),
        /// Result.
        codes: Codes,
    },
    /// See [`crate::Op::SoftmaxStatistics`], row-wise. Further operands are an int8 mask, and int64 statistics before.
    SoftmaxStatistics {
        /// Which is taken on.
        measure: Measure,
    },
}

impl VectorOp {
    /// Whether it is a reduction, which takes all rows of its operands and gives all of its result's.
    #[must_use]
    pub fn reduces(&self) -> bool {
        matches!(self, Self::Reduce { .. } | Self::Float { function: FloatFunction::Reduce { .. }, .. })
    }

    /// Whether a softmax, or its statistics, of this form takes statistics: its last operand is int64.
    #[must_use]
    pub fn has_statistics(&self, vector: &Vector) -> bool {
        let is_softmax = matches!(self, Self::Softmax { .. } | Self::SoftmaxStatistics { .. });
        is_softmax && vector.inputs.len() > 1 && vector.inputs.last().is_some_and(|view| view.dtype == DType::I64)
    }

    /// Element type of the running results of a reduction of `dtype`.
    #[must_use]
    pub fn running(kind: ReduceKind, dtype: DType) -> DType {
        match kind {
            ReduceKind::Max | ReduceKind::Min => dtype,
            _ if dtype.is_float() => DType::F32,
            _ => DType::I64,
        }
    }
}

/// The functions of float instructions of the elementwise unit, before their [`FloatOutput`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FloatFunction {
    /// The operand itself.
    Identity,
    /// This number; no operands.
    Constant(Real),
    /// Two operands. Comparisons give int8 and have nothing to finish.
    Binary(BinaryKind),
    /// Piecewise linear. Parameters: the float32 slope below zero of every channel, or one.
    PRelu {
        /// One slope per channel.
        per_channel: bool,
    },
    /// Softmax over channels. A second operand is the mask.
    Softmax,
    /// Normalisation over channels. Parameters: gamma and beta, float32, of every channel.
    LayerNorm {
        /// Subtract the mean.
        center: bool,
        /// Added to the variance, a float32.
        epsilon: Real,
    },
    /// Reduction, in row-major order of the reduced axes. See [`VectorOp::Reduce`].
    Reduce {
        /// The operation.
        kind: ReduceKind,
        /// Logical shape of the stretch.
        shape: Vec<u32>,
        /// Reduced axes.
        axes: Vec<u32>,
        /// The divisor of the result, a float32.
        divisor: Real,
        /// The result is a running one.
        partial: bool,
    },
    /// Integers to floats: `S * (x - Z)`.
    Dequantize {
        /// Z.
        zero_point: i32,
        /// S, a float32.
        scale: Real,
    },
}
