//! Transfers: symbols carried between DDR and a cache.

use tpuflow_ir::Space;
use tpuflow_ir::isa::{Direction, Transfer};

use crate::contents::Value;
use crate::rule::{Fault, Rule};
use crate::walk::Walk;

impl Walk<'_> {
    pub(crate) fn transfer(&mut self, transfer: &Transfer) -> Result<(), Fault> {
        let ddr_space = Space::Ddr(transfer.ddr_space);
        // A byte is not brought twice: what arrives fits where it arrives.
        let filled = self.limit(if transfer.direction == Direction::Load { transfer.local_space } else { ddr_space });
        let runs = transfer.counts.map(u128::from);
        let (all, most) =
            (runs[0] * runs[1] * u128::from(transfer.bytes), format_args!("at most {filled} bytes moved"));
        Rule::Limits.require(all <= u128::from(filled), most, all)?;
        for (ddr, local) in transfer.runs() {
            let bytes = u64::from(transfer.bytes);
            let ((from_space, from), (to_space, to)) = match transfer.direction {
                Direction::Load => ((ddr_space, ddr), (transfer.local_space, local)),
                Direction::Store => ((transfer.local_space, local), (ddr_space, ddr)),
            };
            if transfer.direction == Direction::Store {
                let constants = self.program.constants.get(usize::from(transfer.ddr_space)).map_or(0, |c| c.len());
                let behind = format_args!("a store behind {constants:#x}");
                Rule::ConstantsKept.require(to >= constants as u64, behind, format_args!("{to:#x}"))?;
            }
            // What is undefined at the source wipes out what the destination held.
            let mut done = from;
            let pieces = self.load(from_space, from, from + bytes)?;
            if pieces.is_empty() && bytes > 0 {
                return Err(Rule::Undefined.violation("something to move", format_args!("nothing from {from:#x} on")));
            }
            for piece in pieces {
                let at = to + (piece.start - from);
                self.store(to_space, to + (done - from), at, Value::Undefined)?;
                self.store(to_space, at, at + (piece.end - piece.start), piece.value)?;
                done = piece.end;
            }
            self.store(to_space, to + (done - from), to + bytes, Value::Undefined)?;
        }
        Ok(())
    }
}
