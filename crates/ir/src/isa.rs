//! The instruction set.
//!
//! A program is one list of instructions in a legal serial order; each unit executes its own, in that order. Synchronisation
//! is by tokens: every finished instruction deposits one token of its unit, and an instruction waits until the units it names
//! have deposited as many as it says. Waits only ever point backwards in the list, so no program can deadlock.
//!
//! Operands are [`View`]s: geometry and place of a tensor or of the rows of it that are present. What is the same for all
//! instructions of a layer stands once in a [`Descriptor`].

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::op::{BinaryKind, Divisor, LinearTap, ReduceKind};
use crate::{DType, DescriptorId, Finish, Function, LayerId, Real, Space, View, Window};

/// A unit with its own in-order queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// DMA line 0.
    Dtl0,
    /// DMA line 1.
    Dtl1,
    /// Matrix engine.
    Me,
    /// Elementwise unit.
    Ewp,
    /// Pooling and depthwise unit.
    Pdp,
}

impl Unit {
    /// All units, in the order of [`Unit::index`].
    pub const ALL: [Self; 5] = [Self::Dtl0, Self::Dtl1, Self::Me, Self::Ewp, Self::Pdp];

    /// Position in [`Unit::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }

    /// Name in files and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        ["dtl0", "dtl1", "me", "ewp", "pdp"][self.index()]
    }
}

/// Wait until `unit` has finished `count` instructions since the program's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Wait {
    /// Whose tokens.
    pub unit: Unit,
    /// How many.
    pub count: u32,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Instruction {
    /// Who executes it.
    pub unit: Unit,
    /// The layer it works for.
    pub layer: LayerId,
    /// Tokens it needs; at most one entry per unit. Its own unit is named where it must see an earlier result.
    pub waits: SmallVec<[Wait; 4]>,
    /// What it does.
    pub work: Work,
}

/// What an instruction does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Work {
    /// DMA between DDR and a cache.
    Transfer(Transfer),
    /// DMA of table rows by index.
    Lookup(Lookup),
    /// A column tile on the array.
    Matrix(Matrix),
    /// Rows of a pooling or depthwise convolution.
    Pool(Pool),
    /// Rows of an elementwise operator.
    Vector(Vector),
}

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// DDR to cache.
    Load,
    /// Cache to DDR.
    Store,
}

/// A three-dimensional strided block copy: `counts[0] * counts[1]` runs of `bytes` contiguous bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Transfer {
    /// Which way.
    pub direction: Direction,
    /// DDR address space.
    pub ddr_space: u8,
    /// DDR byte address.
    pub ddr_address: u64,
    /// [`Space::Cache`] or [`Space::EwpCache`].
    pub local_space: Space,
    /// Cache byte address.
    pub local_address: u64,
    /// Contiguous bytes of a run.
    pub bytes: u32,
    /// Number of runs: outer, inner.
    pub counts: [u32; 2],
    /// Bytes between runs in DDR: outer, inner.
    pub ddr_strides: [u64; 2],
    /// Bytes between runs in the cache: outer, inner.
    pub local_strides: [u64; 2],
}

impl Transfer {
    /// `(ddr address, local address)` of every run, in execution order.
    pub fn runs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        (0..u64::from(self.counts[0])).flat_map(move |outer| {
            (0..u64::from(self.counts[1])).map(move |inner| {
                (
                    self.ddr_address + outer * self.ddr_strides[0] + inner * self.ddr_strides[1],
                    self.local_address + outer * self.local_strides[0] + inner * self.local_strides[1],
                )
            })
        })
    }

    /// Bytes moved.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        u64::from(self.bytes) * u64::from(self.counts[0]) * u64::from(self.counts[1])
    }
}

/// Copies the table rows whose numbers stand in `indices[first .. first + count]` (row-major) to the same pixels of `output`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lookup {
    /// The table in DDR: one pixel per row of the table (`width` rows of it, one image row).
    pub table: View,
    /// Indices, int32, in the cache, as the index tensor's own shape lies.
    pub indices: View,
    /// Destination in the cache: pixel `i` (row-major) takes the table row of index `i`.
    pub output: View,
    /// First index.
    pub first: u32,
    /// Number of indices.
    pub count: u32,
}

/// Weights of a column tile in the shared cache: one row per k in order `(kh, kw, channel of the group)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Weights {
    /// Byte address of row 0, column 0 of the tile.
    pub address: u64,
    /// Bytes from one row to the next.
    pub row_bytes: u32,
    /// int16 weights: 0 when the two bytes of an element are neighbours (an activation as right operand); else the distance
    /// from the plane of low bytes to the plane of high bytes, each with one byte per column. int8 and float weights: 0.
    pub plane_bytes: u32,
}

/// One column tile of a convolution or matrix product, all of K, for a run of output pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Matrix {
    /// A [`Descriptor::Matrix`].
    pub descriptor: DescriptorId,
    /// Left operand.
    pub input: View,
    /// Result.
    pub output: View,
    /// First output pixel, counted over the output view (`row * width + column`, rows over all images).
    pub first_pixel: u32,
    /// Number of output pixels, at most [`crate::Machine::matrix_rows`].
    pub pixels: u32,
    /// First output channel of the tile, counted over the whole layer (it determines the groups).
    pub first_column: u32,
    /// Number of output channels, at most the array's columns.
    pub columns: u32,
    /// Channel of the `output` view that receives the tile's first column; `output.origin[1] + output_channel` equals
    /// `first_column`.
    pub output_channel: u32,
    /// Right operand.
    pub weights: Weights,
    /// EWP-cache byte address of the tile's channel parameters, [`ChannelParameters`] each.
    pub parameters: u32,
    /// EWP-cache byte address of the fused table (int32 entries), if the descriptor has one.
    pub table: u32,
}

/// Output rows of a pooling or depthwise convolution, all channels of the views.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pool {
    /// A [`Descriptor::Pool`].
    pub descriptor: DescriptorId,
    /// Operand.
    pub input: View,
    /// Result.
    pub output: View,
    /// First output row (over all images).
    pub first_row: u32,
    /// Number of output rows.
    pub rows: u32,
    /// EWP-cache byte address of depthwise weights `[tap][channel]`, for the channels of the views.
    pub weights: u32,
    /// EWP-cache byte address of the channel parameters (depthwise).
    pub parameters: u32,
    /// EWP-cache byte address of the fused table, if the descriptor has one.
    pub table: u32,
}

/// Part of an elementwise operator: rows of the output, or a range of the outermost loop of a move or gather.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Vector {
    /// A [`Descriptor::Vector`].
    pub descriptor: DescriptorId,
    /// Operands in the order of the descriptor.
    pub inputs: SmallVec<[View; 2]>,
    /// Result.
    pub output: View,
    /// First row (move: first outermost index; gather: first of `outer * indices`).
    pub first_row: u32,
    /// Number of them. Reductions always take all rows.
    pub rows: u32,
    /// EWP-cache byte address of the operator's parameters, if it has any.
    pub parameters: u32,
}

/// What all instructions of a layer have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Descriptor {
    /// For [`Work::Matrix`].
    Matrix(MatrixDescriptor),
    /// For [`Work::Pool`].
    Pool(PoolDescriptor),
    /// For [`Work::Vector`].
    Vector(VectorOp),
}

/// Size and clamp of a table; its int32 entries lie in the EWP cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TableShape {
    /// `2^k + 1`.
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

/// What happens to the float32 result of a float instruction: `function`, then a clamp, then one rounding to the output's type.
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

/// Common part of the matrix instructions of a layer. A matrix product is a 1x1 convolution whose pixels are its rows.
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
    /// What is computed.
    pub kind: PoolKind,
    /// Window geometry.
    pub window: Window,
}

/// What a pool instruction computes.
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

/// What a vector instruction computes. Row-wise operators take the same row of operands and result; a size of one in an
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
    /// Piecewise linear, row-wise. Parameters: [`Slope`] of every channel, or one.
    PRelu {
        /// Zero point of the operand.
        input_zero: i32,
        /// For operands at or above the zero point.
        positive: Scaling,
        /// One slope per channel.
        per_channel: bool,
    },
    /// Softmax over channels, row-wise. A second operand is the mask.
    Softmax {
        /// See [`crate::Op::Softmax`].
        coefficient: u64,
        /// To the result.
        scaling: Scaling,
    },
    /// Normalisation over channels, row-wise. Parameters: [`NormParameters`] of every channel.
    LayerNorm {
        /// Subtract the mean.
        center: bool,
        /// Zero point of the operand.
        input_zero: i32,
        /// See [`crate::Op::LayerNorm`].
        epsilon: u64,
        /// To the normalised intermediate: M and N.
        normalise: (i32, i8),
        /// Result.
        codes: Codes,
    },
    /// Reduction of a stretch of row-major elements (a whole tensor, most often) over axes of its logical shape. A second
    /// operand holds the running results of the stretches before it, in [`VectorOp::running`]'s type.
    Reduce {
        /// What is computed.
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
        /// What is computed, in float32.
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
}

impl VectorOp {
    /// Whether it is a reduction, which takes all rows of its operands and gives all of its result's.
    #[must_use]
    pub fn reduces(&self) -> bool {
        matches!(self, Self::Reduce { .. } | Self::Float { function: FloatFunction::Reduce { .. }, .. })
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

/// What a float instruction of the elementwise unit computes before its [`FloatOutput`].
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
        /// What is computed.
        kind: ReduceKind,
        /// Logical shape of the stretch.
        shape: Vec<u32>,
        /// Reduced axes.
        axes: Vec<u32>,
        /// What the result is divided by, a float32.
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

/// Bytes of gamma and beta of one channel of a float normalisation.
pub const FLOAT_NORM_BYTES: usize = 8;

/// Bias, multiplier and shift of one output channel as they lie in the EWP cache, little endian.
///
/// Layers with 32-bit sums take 8 bytes: bias i32, multiplier i16, shift i8, one byte zero. Layers with 48-bit sums take 16:
/// bias i64, multiplier i16, shift i8, five bytes zero. Float layers have the bits of their float32 bias in place of the i32,
/// and zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelParameters {
    /// Added to the sum.
    pub bias: i64,
    /// M.
    pub multiplier: i16,
    /// N.
    pub shift: i8,
}

impl ChannelParameters {
    /// The entry of a float channel.
    #[must_use]
    pub fn float(bias: f32) -> Self {
        Self { bias: i64::from(bias.to_bits().cast_signed()), multiplier: 0, shift: 0 }
    }

    /// The bias of a float channel.
    #[must_use]
    pub fn float_bias(&self) -> f32 {
        f32::from_bits((self.bias as i32).cast_unsigned())
    }

    /// Bytes of one entry.
    #[must_use]
    pub fn bytes(wide: bool) -> usize {
        if wide { 16 } else { 8 }
    }

    /// Appends the entry.
    pub fn encode(&self, wide: bool, out: &mut Vec<u8>) {
        let start = out.len();
        let width = Self::bytes(wide) / 2;
        out.extend_from_slice(&self.bias.to_le_bytes()[..width]);
        out.extend_from_slice(&self.multiplier.to_le_bytes());
        out.extend_from_slice(&self.shift.to_le_bytes());
        out.resize(start + Self::bytes(wide), 0);
    }

    /// Reads an entry of [`Self::bytes`] bytes.
    #[must_use]
    pub fn decode(wide: bool, bytes: &[u8]) -> Self {
        let width = Self::bytes(wide) / 2;
        let bias = if wide { i64::from_le_bytes(array(bytes)) } else { i64::from(i32::from_le_bytes(array(bytes))) };
        Self {
            bias,
            multiplier: i16::from_le_bytes(array(&bytes[width..])),
            shift: i8::from_le_bytes(array(&bytes[width + 2..])),
        }
    }
}

/// Slope of one channel below zero: multiplier i16, shift i8, one byte zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slope {
    /// M, may be negative.
    pub multiplier: i16,
    /// N.
    pub shift: i8,
}

impl Slope {
    /// Bytes of one entry.
    pub const BYTES: usize = 4;

    /// Appends the entry.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.multiplier.to_le_bytes());
        out.extend_from_slice(&[self.shift.cast_unsigned(), 0]);
    }

    /// Reads an entry.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Self {
        Self { multiplier: i16::from_le_bytes(array(bytes)), shift: bytes[2].cast_signed() }
    }
}

/// Parameters of one channel of a normalisation: beta i64, gamma i16, multiplier i16, shift i8, three bytes zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormParameters {
    /// Added to `t * gamma`.
    pub beta: i64,
    /// Factor of the normalised value.
    pub gamma: i16,
    /// M of the result.
    pub multiplier: i16,
    /// N of the result.
    pub shift: i8,
}

impl NormParameters {
    /// Bytes of one entry.
    pub const BYTES: usize = 16;

    /// Appends the entry.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.beta.to_le_bytes());
        out.extend_from_slice(&self.gamma.to_le_bytes());
        out.extend_from_slice(&self.multiplier.to_le_bytes());
        out.extend_from_slice(&[self.shift.cast_unsigned(), 0, 0, 0]);
    }

    /// Reads an entry.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Self {
        Self {
            beta: i64::from_le_bytes(array(bytes)),
            gamma: i16::from_le_bytes(array(&bytes[8..])),
            multiplier: i16::from_le_bytes(array(&bytes[10..])),
            shift: bytes[12].cast_signed(),
        }
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[..N]);
    out
}
