//! Several devices at once: programs of the same instructions on constants of their own, which load each other's parts.
//!
//! Instructions are executed in the serial order, each by all devices before the next. What a device loads of another was
//! stored by an earlier instruction, and nothing is stored there twice, so any other order that the tokens allow gives the same bytes.
//! All devices take the same cycles, those of any one of them ([`crate::simulate`] without values).

use std::sync::Arc;

use tpuflow_ir::{Program, Work};
use tpuflow_kernels::parallel;

use crate::check;
use crate::error::{ProgramError, SimError};
use crate::machine::{check_memory, check_program, refused};
use crate::run::{ArrayModel, Event};
use crate::values::{Executor, ProgramCache};

/// The programs of several devices, by rank.
#[derive(Clone, Debug)]
pub struct Devices {
    programs: Vec<Arc<Program>>,
    kept: Vec<ProgramCache>,
}

/// By device: its outputs, dense, and what went wrong.
pub type DeviceRun = (Vec<Vec<u8>>, Vec<Event>);

impl Devices {
    /// Checks that programs are those of all devices, and that every instruction is sound on its own.
    ///
    /// # Errors
    /// [`SimError`]: they are not, or a program does not fit its machine.
    pub fn new(programs: Vec<Arc<Program>>) -> Result<Self, SimError> {
        let devices = programs.iter().map(|program| program.devices()).max().unwrap_or(1);
        for program in &programs {
            let alike = program.is_like(&programs[0]);
            if !alike || devices > 1 && devices != programs.len() {
                return Err(refused(program, ProgramError::Devices { devices, given: programs.len() }));
            }
            check_program(program)?;
            check_memory(program)?;
            for position in 0..program.instructions.len() {
                check::accesses(program, position)?;
            }
        }
        let kept = programs.iter().map(|_| ProgramCache::default()).collect();
        Ok(Self { programs, kept })
    }

    /// The same for runs at a position of the states.
    #[must_use]
    pub fn at(&self, position: u32) -> Self {
        let programs = self.programs.iter().map(|program| Arc::new(program.at(position))).collect();
        Self { programs, kept: self.kept.clone() }
    }

    /// Executes everything. `inputs`: by device, as for [`crate::simulate`]; those that are parts of exchanges are ignored.
    ///
    /// # Errors
    /// [`SimError`]: inputs that do not fit, or a broken rule.
    pub fn run(&self, inputs: &[Vec<Vec<u8>>]) -> Result<Vec<DeviceRun>, SimError> {
        let mut executors = Vec::with_capacity(self.programs.len());
        for ((program, kept), inputs) in self.programs.iter().zip(&self.kept).zip(inputs) {
            let mut executor = Executor::new(Arc::clone(program), ArrayModel::Closed, kept);
            executor.write_inputs(inputs)?;
            executors.push(executor);
        }
        let count = self.programs.first().map_or(0, |program| program.instructions.len());
        parallel::inside(|| (0..count).try_for_each(|position| self.execute(&mut executors, position)))?;
        executors.iter().map(|executor| Ok((executor.outputs()?, executor.events()))).collect()
    }

    /// Executes an instruction on all devices.
    fn execute(&self, executors: &mut [Executor<Arc<Program>>], position: usize) -> Result<(), SimError> {
        let program = &self.programs[0];
        let rank = match &program.instructions[position].work {
            Work::Transfer(transfer) => program.machine.rank(transfer.ddr_space),
            _ => None,
        };
        let Some(rank) = rank else {
            return executors.iter_mut().try_for_each(|executor| executor.execute(position));
        };
        for device in 0..executors.len() {
            let [own, peer] = if device == rank {
                executors[device].load_part(position, None)?;
                continue;
            } else {
                executors.get_disjoint_mut([device, rank]).map_err(|_| {
                    refused(program, ProgramError::Devices { devices: rank + 1, given: self.programs.len() })
                })?
            };
            own.load_part(position, Some(peer))?;
        }
        Ok(())
    }
}
