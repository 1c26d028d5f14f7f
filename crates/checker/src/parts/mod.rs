//! Layers in parts: the graph that a program with tilings is a program of, and the proof that it computes the original.
//!
//! A tiling names a run of layers and boxes of what leaves it. What the layers in parts are follows from the definitions of
//! their operators ([`access`]): in the order of the boxes, each layer of the run makes what is asked of it by the box or taken
//! by those of the run that read it, unless some part made before holds that ([`tiler`]). Nothing of this is believed: of the
//! graph that comes out, every element is shown to be made by the original's operator from the same elements ([`proof`]).

mod access;
mod block_proof;
mod error;
mod key_blocks;
mod local;
mod names;
mod proof;
#[cfg(test)]
mod tests;
mod tiler;
mod view;
mod view_proof;

use tpuflow_ir::{Graph, TensorId, Tiling};

pub use error::{LayerPartsError, LayerProofError, PartsError, ProofError};
pub(crate) use proof::prove;

/// A range of an axis: from, to.
type Span = (usize, usize);
/// A box: a range of each axis.
type Extent = Vec<Span>;
/// A box of a tensor of the original: the tensor, and by axis which elements `[from, to)`.
pub type Claim = (TensorId, Extent);

/// The graph in parts, once it is shown to compute `graph`, and by its tensors the boxes that they hold.
pub(crate) fn tile_and_prove(graph: &Graph, tilings: &[Tiling]) -> Result<(Graph, Vec<Claim>), PartsError> {
    let (parts, claims) = tiler::tile(graph, tilings)?;
    match parts.verify().into_iter().next() {
        Some(broken) => Err(broken.into()),
        None => {
            prove(graph, &parts, &claims)?;
            Ok((parts, claims))
        }
    }
}

/// All of a shape.
pub(crate) fn whole(shape: &[usize]) -> Extent {
    shape.iter().map(|&extent| (0, extent)).collect()
}

/// The shape of a box.
fn extents(span: &[Span]) -> Vec<usize> {
    span.iter().map(|(from, to)| to - from).collect()
}

fn elements(span: &[Span]) -> usize {
    extents(span).iter().product()
}
