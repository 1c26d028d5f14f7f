//! Rows that stay on the device between runs: what an inference holds of a program's states.
//!
//! A state is an input (the past) and the output a run appends to it. Its rows are kept as they lie in DDR, so programs of one
//! network share them, whatever their contexts: the rows of a shorter past are the first ones of a longer.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tpuflow_ir::program::Port as Described;
use tpuflow_ir::{DType, Program, Quant, Source, StateRegion};

use crate::port::{Error, Port};

/// Version of the saved form.
const VERSION: u32 = 1;

/// Why a state cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what every field is")]
pub enum StateError {
    /// A program without states.
    #[error("program \"{0}\" has no state")]
    Absent(String),
    /// A state of other rows.
    #[error("state of another program: {found}, this one has {expected}")]
    Other { expected: String, found: String },
    /// A position the program does not reach.
    #[error("position {position} lies beyond the context: the program reaches {last} rows before a run")]
    Context { position: u32, last: u32 },
    /// A position behind rows that were never written.
    #[error("position {position} lies behind the {rows} rows of the state")]
    Position { position: u32, rows: u32 },
    /// A state there is not.
    #[error("the program has no state \"{0}\"")]
    Name(String),
    /// Bytes that are no saved state.
    #[error("not a saved state, or one that was cut or altered")]
    Altered,
}

/// The properties that programs must share to share a state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Form {
    name: String,
    dtype: DType,
    quant: Option<Quant>,
    /// Shape of a row, its axis left out.
    row: Vec<usize>,
    /// Bytes of a row in DDR.
    stride: u64,
}

impl Form {
    fn of(program: &Program) -> Vec<(Self, StateRegion)> {
        let states = program.states.iter().filter_map(|state| Some((state, state.region(program)?)));
        states
            .map(|(state, region)| {
                let port = &program.inputs[state.input as usize];
                let mut row = port.shape.clone();
                row.remove(state.axis as usize);
                let name = port.source.as_ref().map_or(&port.name, |source| &source.name).clone();
                let quant = port.quant.clone();
                (Self { name, dtype: port.dtype, quant, row, stride: region.stride }, region)
            })
            .collect()
    }

    fn list(forms: &[Self]) -> String {
        let one = |form: &Self| format!("{} {} {:?} of {} bytes", form.name, form.dtype.name(), form.row, form.stride);
        match forms {
            [] => "none".to_owned(),
            [first, ..] => format!("{} of them, first {}", forms.len(), one(first)),
        }
    }
}

/// The saved form but for the rows, which follow its line.
#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    rows: u32,
    sha256: String,
    states: Vec<Form>,
}

/// Rows of every state of a program.
#[derive(Clone, Debug)]
pub struct StateMemory {
    forms: Vec<Form>,
    bytes: Vec<Vec<u8>>,
    rows: u32,
}

impl StateMemory {
    /// No rows yet of the states of a program.
    ///
    /// # Errors
    /// [`StateError::Absent`].
    pub fn new(program: &Program) -> Result<Self, Error> {
        let forms: Vec<Form> = Form::of(program).into_iter().map(|(form, _)| form).collect();
        if forms.is_empty() {
            return Err(StateError::Absent(program.name.clone()).into());
        }
        Ok(Self { bytes: vec![vec![]; forms.len()], forms, rows: 0 })
    }

    /// Rows that count.
    #[must_use]
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Names of the states, those of their inputs.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.forms.iter().map(|form| form.name.as_str())
    }

    /// Forgets rows from `rows` on.
    pub fn truncate(&mut self, rows: u32) {
        self.rows = self.rows.min(rows);
    }

    /// Whether a program can run on these rows at a position.
    ///
    /// # Errors
    /// [`StateError`].
    pub(crate) fn check(&self, program: &Program, position: u32) -> Result<(), Error> {
        self.check_forms(&Form::of(program).into_iter().map(|(form, _)| form).collect::<Vec<_>>())?;
        let last = program.last_position().unwrap_or(0);
        if position > last {
            return Err(StateError::Context { position, last }.into());
        }
        if position > self.rows {
            return Err(StateError::Position { position, rows: self.rows }.into());
        }
        Ok(())
    }

    fn check_forms(&self, expected: &[Form]) -> Result<(), StateError> {
        if self.forms == expected {
            return Ok(());
        }
        Err(StateError::Other { expected: Form::list(expected), found: Form::list(&self.forms) })
    }

    /// The rows a past has space for, of the state with this number; rows that do not count are any bytes.
    pub(crate) fn past_rows(&mut self, state: usize, region: &StateRegion) -> &[u8] {
        let bytes = (u64::from(region.past) * region.stride) as usize;
        let own = &mut self.bytes[state];
        own.resize(own.len().max(bytes), 0);
        &own[..bytes]
    }

    /// Writes the rows of an output at a position.
    pub(crate) fn append(&mut self, state: usize, position: u32, words: &[u8]) {
        let start = (u64::from(position) * self.forms[state].stride) as usize;
        let own = &mut self.bytes[state];
        own.resize(own.len().max(start + words.len()), 0);
        own[start..start + words.len()].copy_from_slice(words);
    }

    /// So many rows count from now on; all of them were written.
    pub(crate) fn count(&mut self, rows: u32) {
        self.rows = rows;
    }

    /// The rows of a state that count, as the model's array: its shape and its bytes.
    ///
    /// # Errors
    /// [`StateError::Name`], [`Error::Port`].
    pub fn read(&self, program: &Program, name: &str) -> Result<(Vec<usize>, Vec<u8>), Error> {
        let (number, port) = self.port(program, name, self.rows)?;
        let port = match port {
            Ok(port) => port,
            Err(shape) => return Ok((shape, vec![])),
        };
        let mut words = self.bytes[number][..(u64::from(self.rows) * self.forms[number].stride) as usize].to_vec();
        words.resize(port.word_bytes(), 0);
        let array = port.unpack(&words)?;
        Ok((port.shape, array))
    }

    /// Replaces all rows: an array of as many for every state, in the order of their names.
    ///
    /// # Errors
    /// [`Error`]: arrays of other sizes.
    pub fn write(&mut self, program: &Program, rows: u32, arrays: &[&[u8]]) -> Result<(), Error> {
        if arrays.len() != self.forms.len() {
            return Err(Error::Count { given: arrays.len(), expected: self.forms.len() });
        }
        let names: Vec<String> = self.names().map(str::to_owned).collect();
        let packed = names.iter().zip(arrays).map(|(name, array)| match self.port(program, name, rows)?.1 {
            Ok(port) => port.pack(array),
            Err(_) => Ok(vec![]),
        });
        self.bytes = packed.collect::<Result<_, Error>>()?;
        self.rows = rows;
        Ok(())
    }

    /// The number of a state, and the port of so many rows of it; without rows only its shape in the model.
    #[allow(clippy::type_complexity, reason = "a port, or the shape of none")]
    fn port(&self, program: &Program, name: &str, rows: u32) -> Result<(usize, Result<Port, Vec<usize>>), Error> {
        let number = self.forms.iter().position(|form| form.name == name);
        let state = number.and_then(|number| program.states.get(number).map(|state| (number, state)));
        let (number, state) = state.ok_or_else(|| StateError::Name(name.to_owned()))?;
        let (axis, mut port): (usize, Described) = (state.axis as usize, program.inputs[state.input as usize].clone());
        if let Some(source) = &mut port.source
            && let Some(own) = model_axis(source, &port.shape, axis)
        {
            source.shape[own] = rows as usize;
        }
        port.shape[axis] = rows as usize;
        if rows == 0 {
            return Ok((number, Err(port.source.map_or(port.shape, |source| source.shape))));
        }
        let (word, view) = (program.machine.word(), port.view);
        port.view = tpuflow_ir::View::whole(&port.shape, port.dtype, word, view.space, view.address);
        Ok((number, Ok(Port::new(&port, word)?)))
    }

    /// All rows that count as bytes, which [`Self::restore`] reads.
    ///
    /// # Errors
    /// [`StateError::Altered`]: a scale that is no number.
    pub fn save(&self) -> Result<Vec<u8>, Error> {
        let own = |(form, bytes): (&Form, &Vec<u8>)| bytes[..(u64::from(self.rows) * form.stride) as usize].to_vec();
        let rows: Vec<u8> = self.forms.iter().zip(&self.bytes).flat_map(own).collect();
        let header = Header { version: VERSION, rows: self.rows, sha256: digest(&rows), states: self.forms.clone() };
        let mut saved = serde_json::to_vec(&header).map_err(|_| StateError::Altered)?;
        saved.push(b'\n');
        saved.extend(rows);
        Ok(saved)
    }

    /// Takes the rows that were saved of the same states.
    ///
    /// # Errors
    /// [`StateError::Other`], [`StateError::Altered`]; the rows stay as they were.
    pub fn restore(&mut self, saved: &[u8]) -> Result<(), Error> {
        let line = saved.iter().position(|&byte| byte == b'\n').ok_or(StateError::Altered)?;
        let header: Header = serde_json::from_slice(&saved[..line]).map_err(|_| StateError::Altered)?;
        let rows = &saved[line + 1..];
        if header.version != VERSION || header.sha256 != digest(rows) {
            return Err(StateError::Altered.into());
        }
        Self { forms: header.states, bytes: vec![], rows: 0 }.check_forms(&self.forms)?;
        let sizes: Vec<usize> = self.forms.iter().map(|form| header.rows as usize * form.stride as usize).collect();
        if rows.len() != sizes.iter().sum::<usize>() {
            return Err(StateError::Altered.into());
        }
        let mut left = rows;
        for (own, size) in self.bytes.iter_mut().zip(sizes) {
            let (taken, rest) = left.split_at(size);
            (*own, left) = (taken.to_vec(), rest);
        }
        self.rows = header.rows;
        Ok(())
    }
}

/// The axis of the model's tensor that is this axis of the stored one: as long, with as many elements behind it.
fn model_axis(source: &Source, stored: &[usize], axis: usize) -> Option<usize> {
    let ordered: Vec<usize> = source.permutation.iter().map(|&own| source.shape[own]).collect();
    let behind = |shape: &[usize], axis: usize| shape[axis + 1..].iter().product::<usize>();
    let is_same = |&at: &usize| ordered[at] == stored[axis] && behind(&ordered, at) == behind(stored, axis);
    // Of a single row other axes of one element look the same; in a model rows are behind heads.
    (0..ordered.len()).filter(is_same).map(|at| source.permutation[at]).max()
}

fn digest(rows: &[u8]) -> String {
    Sha256::digest(rows).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_in_the_shape_of_the_model() {
        let axis = |shape: [usize; 4], permutation: [usize; 4], stored: [usize; 4], axis| {
            let (name, dtype) = ("past".to_owned(), "float32".to_owned());
            let source = Source { name, shape: shape.to_vec(), permutation: permutation.to_vec(), dtype };
            model_axis(&source, &stored, axis)
        };
        let order = [0, 2, 1, 3];
        assert_eq!(axis([1, 2, 5, 3], order, [1, 1, 5, 6], 2), Some(2), "a row is a pixel");
        assert_eq!(axis([1, 2, 5, 3], order, [1, 5, 2, 3], 1), Some(2), "a row is an image row");
        assert_eq!(axis([1, 5, 5, 3], order, [1, 1, 5, 15], 2), Some(2), "as many heads as rows");
        assert_eq!(axis([1, 2, 1, 3], order, [1, 1, 1, 6], 2), Some(2), "a single row");
        assert_eq!(axis([1, 1, 1, 3], order, [1, 1, 1, 3], 2), Some(2), "and a single head");
        assert_eq!(axis([1, 5, 2, 3], [0, 1, 2, 3], [1, 5, 2, 3], 1), Some(1), "in the model's own order");
        assert_eq!(axis([1, 5, 2, 3], order, [1, 1, 4, 6], 2), None);
    }
}
