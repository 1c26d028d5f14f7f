//! Cycles of an array that overlaps nothing: each fold is loaded, streamed and drained by itself.
//!
//! This is how SCALE-Sim v3 (Raj et al., ISPASS 2025) counts a layer `[m,k] · [k,n]` on R x C PEs.
//! A fold is one stretch of the two dimensions that lie on the array; the third one streams. It gives
//! no latency to the edges of the array, so a weight-stationary fold is one cycle shorter than a tile of
//! [`super::Dataflow::SingleBuffered`] with `pipeline` 0.

use super::ArraySpec;

/// Which operand a serial fold keeps in the array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stationary {
    /// Weights: K on rows, N on columns, M streams.
    Weights,
    /// Outputs: M on rows, N on columns, K streams.
    Outputs,
    /// Activations: K on rows, M on columns, N streams.
    Inputs,
}

/// Folds of a layer `[m,k] · [k,n]` on the array (its `dataflow` is not looked at).
#[must_use]
pub fn folds(spec: &ArraySpec, stationary: Stationary, (m, n, k): (u64, u64, u64)) -> u64 {
    let (on_rows, on_columns) = match stationary {
        Stationary::Weights => (k, n),
        Stationary::Outputs => (m, n),
        Stationary::Inputs => (k, m),
    };
    on_rows.div_ceil(spec.rows as u64) * on_columns.div_ceil(spec.columns as u64)
}

/// Cycles of a layer `[m,k] · [k,n]`, folds one after the other:
/// `folds * (2R + C + m - 2) - 1` for weights, `folds * (R + C + k - 2) - 1` for outputs,
/// `folds * (2R + C + n - 2) - 1` for inputs. Dimensions are at least 1.
#[must_use]
pub fn cycles(spec: &ArraySpec, stationary: Stationary, layer: (u64, u64, u64)) -> u64 {
    let (rows, columns) = (spec.rows as u64, spec.columns as u64);
    let (m, n, k) = layer;
    let fold = match stationary {
        Stationary::Weights => 2 * rows + columns + m - 2,
        Stationary::Outputs => rows + columns + k - 2,
        Stationary::Inputs => 2 * rows + columns + n - 2,
    };
    folds(spec, stationary, layer) * fold - 1
}
