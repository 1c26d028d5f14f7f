//! The independent checker: does a program compute its graph, in every interleaving its tokens allow?
//!
//! The program is walked once in its serial order with symbolic memories ([`contents`]): every byte is "byte `b` of tensor
//! `t`", "byte `b` of the constants", a fill, or undefined. An instruction must find exactly the values its layer reads
//! ([`expectation`] says which those are), with the descriptor its layer demands and constants that equal the graph's to the byte;
//! then its output stretches hold the layer's elements. At the end the output ports must hold the outputs.
//!
//! The serial order is one legal interleaving. That every other one gives the same is shown with vector clocks ([`order`]):
//! whoever reads a byte must know that its writer has finished, and whoever overwrites it that all its readers on other units
//! (and its writer) have.
//!
//! Where layers are computed in parts, the program is one of a graph in which they stand as parts; that this graph computes what
//! the original does is shown first ([`parts`]).
//!
//! A program whose runs may follow each other without a pause is checked for every number of runs ([`stream`]).
//!
//! Nothing here is shared with the planner, the emitter or the simulator beyond the definitions of the instruction set; in
//! particular the bytes whose values an instruction reads and writes are worked out anew. That everything else it touches is in
//! order, too, is checked against the definition of what that is ([`tpuflow_ir::access`]). Without a graph the same walk checks
//! everything but the meaning of values.

#![forbid(unsafe_code)]

mod budget;
mod checkpoints;
mod constant_map;
mod constants;
mod contents;
mod exchange;
mod expansion;
mod expectation;
mod form;
mod header;
mod lookup;
mod matrix;
mod movement;
mod order;
mod packed;
mod parts;
mod pool;
mod reduce;
mod rule;
mod state;
mod stream;
mod stretches;
mod transfer;
mod units;
mod values;
mod vector;
mod views;
mod walk;

pub use checkpoints::Checkpoints;
pub use parts::{Claim, LayerPartsError, LayerProofError, PartsError, ProofError};
pub use rule::{Operand, Rule, Violation};
use tpuflow_ir::{Graph, Program, TensorId, Tiling};

/// Violations reported at most; a broken program breaks many rules at once.
pub const REPORTED: usize = 20;

/// Checks that `program` computes `graph`.
///
/// # Errors
/// The first [`REPORTED`] violations in program order.
pub fn check(graph: &Graph, program: &Program) -> Result<(), Vec<Violation>> {
    check_to(graph, program, REPORTED)
}

/// As [`check`], up to the violation number `most`.
///
/// # Errors
/// The first `most` violations in program order.
pub fn check_to(graph: &Graph, program: &Program, most: usize) -> Result<(), Vec<Violation>> {
    let check = |graph: &Graph| {
        walk::walk(Some(graph), program, most)?;
        limits(program)?;
        stream::check(Some(graph), program, most)
    };
    if program.tilings.is_empty() { check(graph) } else { check(&tiled_graph(graph, program)?) }
}

/// The graph with its layers as a program has them.
fn tiled_graph(graph: &Graph, program: &Program) -> Result<Graph, Vec<Violation>> {
    in_parts(graph, &program.tilings)
        .map_err(|reason| vec![rule::Rule::Parts.violation("parts of the layers", reason).at_instruction(None)])
}

/// The graph whose layers are those of a program with these tilings, proven to compute `graph`.
///
/// # Errors
/// Why the layers cannot be computed so.
pub fn in_parts(graph: &Graph, tilings: &[Tiling]) -> Result<Graph, PartsError> {
    in_parts_with_boxes(graph, tilings).map(|(parts, _)| parts)
}

/// As [`in_parts`]; and by tensor of that graph, the box of a tensor of `graph` that it holds.
///
/// # Errors
/// Why the layers cannot be computed so.
pub fn in_parts_with_boxes(graph: &Graph, tilings: &[Tiling]) -> Result<(Graph, Vec<Claim>), PartsError> {
    if tilings.is_empty() {
        let boxes =
            graph.tensors.iter().enumerate().map(|(id, tensor)| (TensorId::new(id), parts::whole(&tensor.shape)));
        return Ok((graph.clone(), boxes.collect()));
    }
    parts::tile_and_prove(graph, tilings)
}

/// Checks that a graph with layers in parts computes `graph`, if each of its tensors holds what is claimed: by tensor, of which
/// tensor of `graph`, and by axis which elements `[from, to)`.
///
/// # Errors
/// The first tensor or layer that does not hold what is claimed.
pub fn check_parts(graph: &Graph, parts: &Graph, claims: &[Claim]) -> Result<(), ProofError> {
    parts::prove(graph, parts, claims)
}

/// Checks a program on its own: tokens, order, ranges and definedness, but not what the values mean.
///
/// # Errors
/// As [`check`].
pub fn check_rules(program: &Program) -> Result<(), Vec<Violation>> {
    walk::walk(None, program, REPORTED)?;
    limits(program)?;
    stream::check(None, program, REPORTED)
}

/// Checks what no rule of values needs, but whoever runs the program: that its numbers can be computed with.
fn limits(program: &Program) -> Result<(), Vec<Violation>> {
    let expected = "numbers within the limits of `ir`";
    program.check_limits().map_err(|reason| vec![rule::Rule::Limits.violation(expected, reason).at_instruction(None)])
}

#[cfg(test)]
#[path = "../../scheduler/tests/common/mod.rs"]
mod common;
