//! Exchanges: tensors of which every device of several computes a part, which the others load.
//!
//! All devices run programs of the same instructions, on constants of their own. Where one stores its part of an exchange, each of
//! the others stores its own, at the same address of its DDR. The inputs of an exchange are the parts of all devices, by rank: they
//! lie where the output lies, in the address spaces of those devices.
//!
//! ```text
//! address space    0 .. S            S .. 2 S           2 S .. 3 S     ...    S: Machine::ddr_spaces
//! of device        this one          rank 0             rank 1
//! ```
//!
//! A load from an address space of a rank takes [`Machine::dma`]'s `link_latency` cycles longer to begin, and the channel that it would take
//! of its own device: while this device reads of another one, another one reads of it. A part is stored once in a run, and is answered once
//! it is there.

use serde::{Deserialize, Serialize};

use crate::{Graph, Machine, Space, View};

/// Most devices a program is one of.
pub const MOST_DEVICES: usize = 64;

/// An output that is a part of a tensor, and the inputs that are the parts of all devices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exchange {
    /// Which of the outputs is this device's part.
    pub output: u32,
    /// By rank, which of the inputs is that device's part.
    pub inputs: Vec<u32>,
}

impl Exchange {
    /// Whether the ports are parts of one form, and belong to no state; `devices`: how many parts there must be.
    pub(crate) fn fits(&self, graph: &Graph, devices: usize) -> bool {
        let Some(&output) = graph.outputs.get(self.output as usize) else { return false };
        let own = graph.tensor(output);
        let of_state = |number: u32, is_input: bool| {
            graph.states.iter().any(|state| number == if is_input { state.input } else { state.output })
        };
        let like = |input: &u32| {
            let Some(&id) = graph.inputs.get(*input as usize) else { return false };
            let part = graph.tensor(id);
            (&part.shape, part.dtype, &part.quant) == (&own.shape, own.dtype, &own.quant) && !of_state(*input, true)
        };
        let is_computed = own.constant.is_none() && !graph.inputs.contains(&output);
        let is_once = graph.outputs.iter().filter(|id| **id == output).count() == 1;
        (2..=MOST_DEVICES).contains(&devices)
            && self.inputs.len() == devices
            && is_computed
            && is_once
            && !of_state(self.output, false)
            && self.inputs.iter().all(like)
    }
}

impl Machine {
    /// The address space, of the device itself, that one of a device by rank is like.
    #[must_use]
    pub fn own_space(&self, space: u8) -> u8 {
        space % self.ddr_spaces() as u8
    }

    /// The device an address space is of; `None`: this one.
    #[must_use]
    pub fn rank(&self, space: u8) -> Option<usize> {
        (usize::from(space) / self.ddr_spaces()).checked_sub(1)
    }

    /// The same place on a device, by its rank.
    #[must_use]
    pub fn view_of_rank(&self, view: View, rank: usize) -> View {
        match view.space {
            Space::Ddr(space) => View { space: Space::Ddr(self.space_of_rank(space, rank)), ..view },
            _ => view,
        }
    }

    /// An address space of a device, by its rank; of more than [`MOST_DEVICES`] devices, or of a space that is none of the own ones, any.
    #[must_use]
    pub fn space_of_rank(&self, space: u8, rank: usize) -> u8 {
        space.wrapping_add((self.ddr_spaces() * (rank + 1)) as u8)
    }
}
