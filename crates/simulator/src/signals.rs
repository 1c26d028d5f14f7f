//! The signals of units, ports and DDR channels in a window of cycles, recorded from the stepped machine.
//!
//! Everything is an event: a unit's state and a channel's user where they change, a port's request in every cycle it is made.

use std::ops::Range;

use tpuflow_ir::{LayerId, Program, Unit};

use crate::context::Activity;
use crate::counters::{Client, Stall};
use crate::error::{ProgramError, SimError};

/// The activity of a unit from a cycle on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// First cycle.
    pub cycle: u64,
    /// The unit.
    pub unit: Unit,
    /// The layer it works for; `None` while it does no work.
    pub layer: Option<LayerId>,
    /// Why it does none, between its first and its last instruction.
    pub stall: Option<Stall>,
}

/// A port asks a bank of the shared cache for a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// In which cycle.
    pub cycle: u64,
    /// Who asks.
    pub port: Client,
    /// For which instruction.
    pub instruction: u32,
    /// The word, counted through all banks.
    pub word: u64,
    /// Whether it is written.
    pub write: bool,
    /// Whether the bank serves the port; a refused one asks again.
    pub granted: bool,
}

/// A DDR channel serves a line of the DMA, or none, from a cycle on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel {
    /// First cycle.
    pub cycle: u64,
    /// Number of the channel.
    pub channel: u32,
    /// The line that owns it, and the page it reads or writes.
    pub user: Option<(Unit, u64)>,
}

/// Events of a window, each list in the order of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// States of units; the first are those in the first cycle of the window in which the machine runs.
    pub states: Vec<State>,
    /// Requests of ports.
    pub requests: Vec<Request>,
    /// Users of channels; none before the first.
    pub channels: Vec<Channel>,
}

/// Takes the events of a window down, up to a number of them.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    window: Range<u64>,
    most: usize,
    activities: [Activity; Unit::COUNT],
    users: Vec<Option<(Unit, u64)>>,
    signals: Signals,
}

impl Recorder {
    pub(crate) fn new(program: &Program, window: Range<u64>, most: usize) -> Self {
        let users = vec![None; program.machine.channels()];
        let window = window.start.max(program.machine.control.start)..window.end;
        let activities = [Activity::Off; Unit::COUNT];
        Self { window, most, activities, users, signals: Signals::default() }
    }

    /// A unit's state in a cycle.
    pub(crate) fn state(&mut self, cycle: u64, unit: Unit, activity: Activity) {
        let last = std::mem::replace(&mut self.activities[unit.index()], activity);
        let first = cycle == self.window.start;
        if self.window.contains(&cycle) && (first || last != activity) {
            let (layer, stall) = match activity {
                Activity::Busy(layer) => (Some(layer), None),
                Activity::Stalled(stall) => (None, Some(stall)),
                Activity::Off => (None, None),
            };
            self.signals.states.push(State { cycle, unit, layer, stall });
        }
    }

    pub(crate) fn request(&mut self, request: Request) {
        if self.window.contains(&request.cycle) {
            self.signals.requests.push(request);
        }
    }

    /// A channel's user from a cycle on.
    pub(crate) fn channel(&mut self, cycle: u64, channel: usize, user: Option<(Unit, u64)>) {
        self.users[channel] = user;
        if self.window.contains(&cycle) {
            self.signals.channels.push(Channel { cycle, channel: channel as u32, user });
        }
    }

    /// Records the values of the first cycle of the window when it comes; false when the window is over.
    pub(crate) fn begin_cycle(&mut self, cycle: u64) -> bool {
        if cycle == self.window.start {
            let held = |(channel, user): (usize, &Option<(Unit, u64)>)| {
                user.map(|user| Channel { cycle, channel: channel as u32, user: Some(user) })
            };
            self.signals.channels.extend(self.users.iter().enumerate().filter_map(held));
        }
        cycle < self.window.end
    }

    /// # Errors
    /// There are more events than wanted.
    pub(crate) fn check(&self, program: &Program) -> Result<(), SimError> {
        let Signals { states, requests, channels } = &self.signals;
        if states.len() + requests.len() + channels.len() <= self.most {
            return Ok(());
        }
        let Range { start, end } = self.window;
        let reason = ProgramError::Events { start, end, most: self.most };
        Err(SimError::Program { name: program.name.clone(), reason })
    }

    pub(crate) fn into_signals(self) -> Signals {
        self.signals
    }
}
