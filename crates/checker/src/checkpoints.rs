//! Programs that begin alike, as those that differ from one program in a few instructions do: what they have in common is
//! followed once.

use tpuflow_ir::{Graph, Program, Tiling};

use crate::rule::Violation;
use crate::walk::{State, walk_from};

/// The states of the walk before some instructions of a sound program.
pub struct Checkpoints {
    /// With its layers as the program has them.
    graph: Graph,
    tilings: Vec<Tiling>,
    states: Vec<State>,
}

impl Checkpoints {
    /// Checks a program, and remembers what is known before every instruction whose number is a multiple of `every`, and behind
    /// the last.
    ///
    /// # Errors
    /// The first violation, if there is one.
    pub fn new(graph: &Graph, program: &Program, every: usize) -> Result<Self, Vec<Violation>> {
        let graph = crate::tiled_graph(graph, program)?;
        let mut states = Vec::new();
        walk_from(Some(&graph), program, 1, None, |steps| {
            if steps.position.is_multiple_of(every) || steps.position == program.instructions.len() {
                states.push(steps.state());
            }
        })?;
        crate::limits(program)?;
        Ok(Self { graph, tilings: program.tilings.clone(), states })
    }

    /// Checks a program of the same graph and tilings up to the violation number `most`: from the instruction `unchanged` on, if
    /// machine, sizes of memories, constants, and all instructions before that one are those of the sound program. Header and
    /// ports are always compared.
    ///
    /// # Errors
    /// As [`crate::check_to`].
    ///
    /// # Panics
    /// If the program has other tilings.
    pub fn check(&self, program: &Program, unchanged: Option<usize>, most: usize) -> Result<(), Vec<Violation>> {
        assert_eq!(program.tilings, self.tilings, "a program of another graph");
        let before = unchanged.and_then(|unchanged| self.states.iter().rev().find(|state| state.position <= unchanged));
        let from = self.states.first().zip(before).map(|(first, state)| [first, state]);
        walk_from(Some(&self.graph), program, most, from, |_| {}).and_then(|()| crate::limits(program))
    }
}
