//! Inputs and outputs at other addresses of external memory, chosen when a program is loaded.
//!
//! Whatever an instruction reads or writes of a port lies inside the bytes of that port. So a port moves by adding one distance
//! to its address and to those of all transfers that touch it; its parts keep their distances. Ports whose bytes overlap, and the two ports of a state, are
//! one *region* and move together. An output that is a constant stays where constants are. Distances are whole pages, which keeps transfers and pages as they lie to each other.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::error::RelocationError;
use crate::isa::Work;
use crate::{Instruction, Port, Program, Space};

/// Ports that move together.
#[derive(Clone, Debug)]
struct Region {
    space: u8,
    bytes: Range<u64>,
    ports: Vec<String>,
    to: u64,
}

impl Region {
    fn overlaps(&self, space: u8, bytes: &Range<u64>) -> bool {
        self.space == space && self.bytes.start < bytes.end && bytes.start < self.bytes.end
    }

    fn target(&self) -> Range<u64> {
        self.to..self.to + (self.bytes.end - self.bytes.start)
    }
}

impl Program {
    /// The same program with its inputs and outputs moved together, so that the lowest one begins at `address`.
    ///
    /// # Errors
    /// [`RelocationError`] when they cannot lie there.
    pub fn with_io_at(&self, address: u64) -> Result<Self, RelocationError> {
        let mut regions = self.regions()?;
        let lowest = regions.iter().map(|region| region.bytes.start).min().unwrap_or(address);
        for region in &mut regions {
            region.to = address.checked_add(region.bytes.start - lowest).ok_or(RelocationError::Range { address })?;
        }
        self.relocate(&regions)
    }

    /// The same program with each port that is named at an address of its own; the others stay.
    ///
    /// # Errors
    /// [`RelocationError`] when there is no such port, or they cannot lie there.
    pub fn with_ports_at(&self, addresses: &BTreeMap<String, u64>) -> Result<Self, RelocationError> {
        let mut regions = self.regions()?;
        for (name, &address) in addresses {
            let mut ports = self.inputs.iter().chain(&self.outputs);
            let Some(port) = ports.find(|port| port.name == *name) else {
                return Err(RelocationError::Unknown { port: name.clone() });
            };
            if !regions.iter().any(|region| region.ports.contains(name)) {
                return Err(RelocationError::Constant { port: name.clone() });
            }
            for region in regions.iter_mut().filter(|region| region.ports.contains(name)) {
                if addresses.keys().filter(|name| region.ports.contains(*name)).count() > 1 {
                    return Err(RelocationError::Together { ports: region.ports.clone() });
                }
                // Parts of a port keep their distances.
                region.to = address
                    .checked_add(region.bytes.start)
                    .and_then(|sum| sum.checked_sub(port.view.address))
                    .ok_or(RelocationError::Range { address })?;
            }
        }
        self.relocate(&regions)
    }

    /// Whether a port is one of the constants.
    fn is_constant(&self, port: &Port) -> bool {
        let Space::Ddr(space) = port.view.space else { return false };
        self.constants.get(usize::from(space)).is_some_and(|image| port.view.address < image.len() as u64)
    }

    /// Ports by the bytes that only they have, in ascending order; each where it is now.
    fn regions(&self) -> Result<Vec<Region>, RelocationError> {
        let word = self.machine.word();
        let mut regions: Vec<Region> = Vec::new();
        for port in self.inputs.iter().chain(&self.outputs).filter(|port| !self.is_constant(port)) {
            for view in port.views() {
                let Space::Ddr(space) = view.space else { continue };
                let start = view.address;
                let end = start.checked_add(view.bytes(word)).ok_or(RelocationError::Range { address: start })?;
                regions.push(Region { space, bytes: start..end, ports: vec![port.name.clone()], to: start });
            }
        }
        for state in self.state_regions().flatten() {
            regions.push(Region { space: state.space, bytes: state.start..state.end, ports: vec![], to: state.start });
        }
        regions.sort_by_key(|region| (region.space, region.bytes.start));
        let mut joined: Vec<Region> = Vec::new();
        for region in regions {
            match joined.last_mut() {
                Some(last) if last.overlaps(region.space, &region.bytes) => {
                    last.bytes.end = last.bytes.end.max(region.bytes.end);
                    last.ports.extend(region.ports);
                }
                _ => joined.push(region),
            }
        }
        Ok(joined)
    }

    fn relocate(&self, regions: &[Region]) -> Result<Self, RelocationError> {
        regions.iter().try_for_each(|region| self.fits(region))?;
        let mut moved = self.clone();
        let mut taken: Vec<(u8, Range<u64>)> = Vec::new();
        for (space, image) in self.constants.iter().enumerate() {
            taken.push((space as u8, 0..image.len() as u64));
        }
        for (number, instruction) in moved.instructions.iter_mut().enumerate() {
            let Some((space, bytes, address)) = external(instruction, self.machine.word()) else { continue };
            match regions.iter().find(|region| region.overlaps(space, &bytes)) {
                None => taken.push((space, bytes)),
                Some(region) if region.bytes.start <= bytes.start && bytes.end <= region.bytes.end => {
                    *address = *address - region.bytes.start + region.to;
                }
                Some(region) => {
                    return Err(RelocationError::Shared { ports: region.ports.clone(), instruction: number });
                }
            }
        }
        for (number, region) in regions.iter().enumerate() {
            let range = region.target();
            let others = regions[..number].iter().map(|other| (other.space, other.target()));
            let meets = |(space, other): &(u8, Range<u64>)| {
                *space == region.space && range.start < other.end && other.start < range.end
            };
            if let Some((_, other)) = taken.iter().cloned().chain(others).find(meets) {
                let ports = region.ports.clone();
                return Err(RelocationError::Taken { ports, start: other.start, end: other.end });
            }
        }
        for port in moved.inputs.iter_mut().chain(&mut moved.outputs) {
            let name = port.name.clone();
            port.for_each_place(|space, address| {
                let here = |region: &&Region| {
                    Space::Ddr(region.space) == space && region.ports.contains(&name) && region.bytes.contains(address)
                };
                if let Some(region) = regions.iter().find(here) {
                    *address = *address - region.bytes.start + region.to;
                }
            });
        }
        taken.extend(regions.iter().map(|region| (region.space, region.target())));
        for (space, bytes) in moved.ddr_bytes.iter_mut().enumerate() {
            let here = taken.iter().filter(|(other, _)| usize::from(*other) == space);
            *bytes = here.map(|(_, range)| range.end).max().unwrap_or(0);
        }
        Ok(moved)
    }

    /// Whether a region is whole pages away from where it was, and inside the memory.
    fn fits(&self, region: &Region) -> Result<(), RelocationError> {
        let (ports, address) = (region.ports.clone(), region.to);
        let (page, capacity) = (self.machine.page_bytes().max(self.machine.word() as u64), self.machine.ddr_capacity());
        if address.abs_diff(region.bytes.start) % page != 0 {
            return Err(RelocationError::Page { ports, address, page, offset: region.bytes.start % page });
        }
        match address.checked_add(region.bytes.end - region.bytes.start) {
            None => Err(RelocationError::Range { address }),
            Some(end) if end > capacity => Err(RelocationError::Capacity { ports, end, capacity }),
            Some(_) => Ok(()),
        }
    }
}

/// Where the ports of the runs of a stream lie: those of run 0 as in the program, all of the others behind its memory, run by run,
/// so far apart that pages and channels are the same.
pub(crate) struct PortRegions {
    regions: Vec<Region>,
    word: usize,
    /// By address space: from run 0 to run 1, and from any later run to the next.
    distances: Vec<[u64; 2]>,
    ddr_bytes: Vec<u64>,
    capacity: u64,
}

impl PortRegions {
    /// Of a program.
    ///
    /// # Errors
    /// [`RelocationError`] when a port is not bytes of memory.
    pub(crate) fn of(program: &Program) -> Result<Self, RelocationError> {
        let regions = program.regions()?;
        let machine = &program.machine;
        let period = match machine.ddr.interleave_bytes {
            0 => machine.page_bytes(),
            bytes => bytes * machine.channels() as u64,
        };
        let period = period.max(machine.word() as u64).next_multiple_of(machine.word() as u64);
        let distances = program.ddr_bytes.iter().enumerate().map(|(space, &bytes)| {
            let own = || regions.iter().filter(|region| usize::from(region.space) == space).map(|r| &r.bytes);
            let (start, end) = (own().map(|b| b.start).min().unwrap_or(0), own().map(|b| b.end).max().unwrap_or(0));
            [bytes.saturating_sub(start).next_multiple_of(period), (end - start).next_multiple_of(period)]
        });
        Ok(Self {
            distances: distances.collect(),
            word: machine.word(),
            ddr_bytes: program.ddr_bytes.clone(),
            capacity: machine.ddr_capacity(),
            regions,
        })
    }

    /// How far the ports of a run are from those of the first.
    fn distance(&self, space: u8, run: u32) -> u64 {
        let Some(&[first, next]) = self.distances.get(usize::from(space)) else { return 0 };
        if run == 0 { 0 } else { first + next * u64::from(run - 1) }
    }

    /// Moves the access of instruction number `number` to a port, if it has one, to the port of a run.
    ///
    /// # Errors
    /// [`RelocationError::Shared`] when it accesses other memory as well.
    pub(crate) fn move_to_run(
        &self,
        instruction: &mut Instruction,
        number: usize,
        run: u32,
    ) -> Result<(), RelocationError> {
        let Some((space, bytes, address)) = external(instruction, self.word) else { return Ok(()) };
        let Some(region) = self.regions.iter().find(|region| region.overlaps(space, &bytes)) else { return Ok(()) };
        if bytes.start < region.bytes.start || region.bytes.end < bytes.end {
            return Err(RelocationError::Shared { ports: region.ports.clone(), instruction: number });
        }
        *address += self.distance(space, run);
        Ok(())
    }

    /// How far the bytes of a port at an address are from those of the first run; a constant stays.
    pub(crate) fn distance_at(&self, space: Space, address: u64, run: u32) -> u64 {
        let Space::Ddr(space) = space else { return 0 };
        let of_port = self.regions.iter().any(|region| region.space == space && region.bytes.contains(&address));
        if of_port { self.distance(space, run) } else { 0 }
    }

    /// Bytes of every address space with the ports of so many runs.
    ///
    /// # Errors
    /// [`RelocationError::Capacity`] when they do not fit.
    pub(crate) fn ddr_bytes(&self, runs: u32) -> Result<Vec<u64>, RelocationError> {
        let (capacity, last) = (self.capacity, runs.saturating_sub(1));
        let mut bytes = self.ddr_bytes.clone();
        for region in &self.regions {
            let end = region.bytes.end + self.distance(region.space, last);
            if end > capacity {
                return Err(RelocationError::Capacity { ports: region.ports.clone(), end, capacity });
            }
            let own = &mut bytes[usize::from(region.space)];
            *own = (*own).max(end);
        }
        Ok(bytes)
    }
}

/// The stretch of external memory an instruction reads or writes, and the field that says where it begins.
fn external(instruction: &mut Instruction, word: usize) -> Option<(u8, Range<u64>, &mut u64)> {
    match &mut instruction.work {
        Work::Transfer(t) => {
            let (last, _) = t.last_run()?;
            Some((t.ddr_space, t.ddr_address..last + u64::from(t.bytes), &mut t.ddr_address))
        }
        Work::Expand(e) => Some((e.ddr_space, e.ddr_address..e.ddr_address + e.packed_bytes(), &mut e.ddr_address)),
        Work::Lookup(l) => match l.table.space {
            Space::Ddr(space) => {
                let bytes = l.table.address..l.table.address + l.table.bytes(word);
                Some((space, bytes, &mut l.table.address))
            }
            _ => None,
        },
        // It reads constants alone, which stay.
        Work::PackedLookup(_) | Work::Matrix(_) | Work::Pool(_) | Work::Vector(_) => None,
    }
}
