//! Streaming statistics of float tensors, and the search for the range to quantise them in.
//!
//! Calibration shows a network samples and must keep little of what it sees. Two summaries suffice:
//! the [`Extrema`] of every batch, and one [`Histogram`] per tensor. A histogram's bins are powers of
//! two wide and widen by merging neighbours as larger values arrive, so its counts depend on the values
//! alone: not on their order, nor on the number of threads, nor on how samples were split into shards.
//! One pass over the samples is therefore enough, and merging shards is exact. Of large tensors a part of the values
//! stands for all, chosen by place in the tensor, which keeps all of that.
//!
//! ```text
//! [f32] --observe--> Extrema, Moments, Histogram --percentile | mse | kld--> (low, high)
//! ```
//!
//! * [`percentile_range`] cuts a share of the values off,
//! * [`mse_range`] trades clipping against resolution for a given [`Quantizer`],
//! * [`kld_range`] is TensorRT's entropy calibration,
//! * [`by_channel`] gives reach and power of the channels of activations,
//! * [`channel_extrema`] and [`channel_mse_ranges`] serve weights, which are at hand as values.
//!
//! Every result is a pure function of the values: parallel parts are combined in a fixed order.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "in a test the panic is the finding"))]

mod by_channel;
mod channel;
mod extrema;
mod histogram;
mod kld;
mod moments;
mod mse;
mod observe;
mod partial_histogram;
mod percentile;
mod quantizer;
mod sums;

pub use by_channel::{Activation, ByChannel, by_channel};
pub use channel::{Channels, channel_extrema, channel_mse_ranges};
pub use extrema::{Extrema, extrema};
pub use histogram::{Histogram, HistogramParts};
pub use kld::kld_range;
pub use moments::{Moments, moments};
pub use mse::mse_range;
pub use observe::{LARGEST, Layout, MANY, Observed, Tensor, observe};
pub use percentile::percentile_range;
pub use quantizer::{Grid, Quantizer};

/// A range of values `(low, high)` with `low <= 0 <= high`.
pub type Range = (f64, f64);

/// Why a statistic cannot be formed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StatisticsError {
    /// NaN or an infinity among the values: no range describes them.
    #[error("{0} of the values are NaN or infinite")]
    NotFinite(usize),
    /// The number of bins must let neighbours merge down to one.
    #[error("the number of bins is {0}, it must be a power of two from 2 to 65536")]
    Bins(usize),
    /// Only histograms of equal resolution can be merged.
    #[error("a histogram of {0} bins cannot be merged with one of {1}")]
    MergeBins(usize, usize),
    /// Stored counts that no sequence of observations produces.
    #[error("the parts are not those of a histogram: {0}")]
    Parts(&'static str),
    /// A percentile outside (0, 100].
    #[error("the percentile is {0}, it must be above 0 and at most 100")]
    Percentile(f64),
    /// A quantiser without zero among its codes, or with fewer than two codes.
    #[error("the codes {0} to {1} must contain 0 and at least one more")]
    Codes(i32, i32),
    /// A weight of clipping errors below 1, or none.
    #[error("the weight of clipping errors is {0}, it must be a finite number from 1")]
    ClipWeight(f64),
    /// A number of levels the divergence cannot be computed for.
    #[error("the number of levels is {0}, it must be at least 2")]
    Levels(usize),
    /// Tensors and histograms come in pairs, or without histograms.
    #[error("{tensors} tensors cannot be counted in {histograms} histograms")]
    Pairs {
        /// Number of tensors.
        tensors: usize,
        /// Number of histograms.
        histograms: usize,
    },
    /// Fewer or more values than the shape has.
    #[error("{values} values do not fill a shape of {outer} x {channels} x {inner}")]
    Shape {
        /// Number of values given.
        values: usize,
        /// Product of the axes before the channel axis.
        outer: usize,
        /// Length of the channel axis.
        channels: usize,
        /// Product of the axes after the channel axis.
        inner: usize,
    },
}

/// Values per unit of parallel work. Fixed, so that partial results never depend on the thread count.
const CHUNK: usize = 1 << 16;
