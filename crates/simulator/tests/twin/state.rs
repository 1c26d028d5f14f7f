//! Transfers at a position: what a state does not hold is not moved, what is appended lies where the position says.

use tpuflow_ir::isa::Transfer;
use tpuflow_ir::{Program, Space};

use super::{Step, steps as plain};

/// The steps of a transfer at the position of the run.
pub(super) fn steps(program: &Program, transfer: &Transfer) -> Vec<Step> {
    let machine = &program.machine;
    let Some(position) = program.position else { return plain(transfer, machine) };
    let word = machine.word() as u64;
    for state in &program.states {
        let (past, new) = (&program.inputs[state.input as usize], &program.outputs[state.output as usize]);
        let rows = past.shape[state.axis as usize] as u64;
        if past.view.space != Space::Ddr(transfer.ddr_space) {
            continue;
        }
        let (start, border) = (past.view.address, new.view.address);
        let row = (border - start) / rows;
        let missing = (rows - u64::from(position)) * row;
        if (border..border + new.view.bytes(machine.word())).contains(&transfer.ddr_address) {
            return plain(&Transfer { ddr_address: transfer.ddr_address - missing, ..*transfer }, machine);
        }
        if !(start..border).contains(&transfer.ddr_address) {
            continue;
        }
        let mut list = Vec::new();
        for (ddr_address, local_address) in transfer.runs() {
            let bytes = u64::from(transfer.bytes);
            let there = (ddr_address..ddr_address + bytes).filter(|&byte| byte < border - missing).count() as u32;
            if there > 0 {
                let counts = [1, 1];
                list.extend(plain(
                    &Transfer { ddr_address, local_address, bytes: there, counts, ..*transfer },
                    machine,
                ));
            }
            if u64::from(there) < bytes {
                let (first, last) = (local_address + u64::from(there), local_address + bytes - 1);
                list.extend((first / word..=last / word).map(Step::Index));
            }
        }
        return list;
    }
    plain(transfer, machine)
}
