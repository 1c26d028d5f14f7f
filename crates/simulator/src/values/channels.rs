//! The epilogue of an instruction's channels, decoded from the EWP cache.

use tpuflow_ir::isa::{ChannelParameters, Codes, TableShape};
use tpuflow_ir::{Requant, Space};
use tpuflow_kernels::linear::Epilogue;

use super::Fault;
use crate::hazard::Rule;

/// Where the parameters of channels lie and how they are meant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Channels {
    /// Address in the EWP cache.
    pub(super) address: u32,
    /// Whether a bias has 48 bits.
    pub(super) wide: bool,
    pub(super) codes: Codes,
    pub(super) first_shift: Option<u8>,
    pub(super) table: Option<TableShape>,
}

impl Channels {
    /// Bias of every channel, and requantisation with the table after it.
    ///
    /// # Errors
    /// A shift or a table that no graph may have.
    pub(super) fn decode(&self, parameters: &[u8], table: &[u8]) -> Result<(Vec<i64>, Epilogue), Fault> {
        let parameters: Vec<ChannelParameters> = parameters
            .chunks_exact(ChannelParameters::bytes(self.wide))
            .map(|bytes| ChannelParameters::decode(self.wide, bytes))
            .collect();
        if !parameters.iter().all(|p| (-15..=47).contains(&p.shift)) {
            let place = (Space::EwpCache, self.address.into());
            return Err((place, Rule::Shape("has a shift beyond -15..=47".to_owned())));
        }
        let requant = Requant {
            multiplier: parameters.iter().map(|p| p.multiplier.into()).collect(),
            shift: parameters.iter().map(|p| p.shift).collect(),
            zero_point: self.codes.zero_point,
            lo: self.codes.lo,
            hi: self.codes.hi,
        };
        let table = self.table.map(|shape| super::lookup(table, shape, 16)).transpose();
        let table = table.map_err(|rule| ((Space::EwpCache, self.address.into()), rule))?;
        let mut bias: Vec<i64> = parameters.iter().map(|p| p.bias).collect();
        let epilogue = Epilogue::new(requant, table);
        let epilogue = epilogue.with_first_shift(self.first_shift, &mut bias);
        Ok((bias, epilogue))
    }
}
