//! Constants of a program, packed in the form the machine reads them.

use rayon::prelude::*;
use tpuflow_ir::Image;

use super::pack::pack;
use crate::addresses::external::{External, stored};
use crate::network::Network;
use crate::virtual_program::{Content, VirtualProgram};

impl External {
    /// Constants of every address space, packed.
    pub fn constants(&self, code: &VirtualProgram, network: &Network, word: usize) -> Vec<Image> {
        let end = |space: usize| {
            let ends = self.recipes.iter().filter(|r| r.0 == space);
            ends.map(|&(_, at, b)| at + stored(code, b, space, word)).max().unwrap_or(0)
        };
        let mut constants: Vec<Vec<u8>> = (0..self.bytes.len()).map(|space| vec![0; end(space) as usize]).collect();
        for (space, memory) in constants.iter_mut().enumerate() {
            // Disjoint stretches in ascending order: each packed on its own.
            let mut stretches = Vec::new();
            let mut rest = memory.as_mut_slice();
            let mut end = 0;
            for &(_, at, buffer) in self.recipes.iter().filter(|r| r.0 == space) {
                let size = stored(code, buffer, space, word);
                let (head, tail) = rest[(at - end) as usize..].split_at_mut(size as usize);
                end = at + size;
                if let Content::Constant(packing) = &code.buffers[buffer.index()].content {
                    stretches.push((packing, head));
                }
                rest = tail;
            }
            stretches.into_par_iter().for_each(|(packing, out)| pack(network, packing, (space, word), out));
        }
        constants.into_iter().map(Image::from).collect()
    }
}
