//! What an interpreter holds of a graph's states between runs: the rows of the past, as the graph's inputs have them.

use std::sync::Arc;

use tpuflow_ir::{DType, Graph, State, Tensor};
use tpuflow_kernels::Values;

use crate::SimError;
use crate::error::StateError;

/// Rows of every state, as many as the longest past of some graphs of one network; those that were never written, and those
/// behind the position of a run, stand for zero.
#[derive(Clone, Debug)]
pub struct StateRows {
    states: Vec<Rows>,
    /// Rows there can be.
    capacity: usize,
    /// Rows that were written.
    count: usize,
}

/// Rows of one state.
#[derive(Clone, Debug)]
struct Rows {
    form: Form,
    /// Shared with a run while that lasts.
    values: Arc<Values>,
}

/// What graphs must have in common to share a state.
#[derive(Clone, Debug, PartialEq)]
struct Form {
    name: String,
    dtype: DType,
    scale: Vec<f32>,
    zero_point: i32,
    /// Elements of a row.
    row: usize,
}

impl Form {
    fn of(tensor: &Tensor, axis: usize) -> Self {
        let scale = tensor.quant.as_ref().map_or_else(Vec::new, |quant| quant.scale.clone());
        let row = tensor.shape[axis + 1..].iter().product();
        Self { name: tensor.name.clone(), dtype: tensor.dtype, scale, zero_point: tensor.zero_point(), row }
    }
}

/// The past of a state, and its rows.
fn past<'g>(graph: &'g Graph, state: &State) -> (&'g Tensor, usize) {
    let tensor = graph.tensor(graph.inputs[state.input as usize]);
    (tensor, tensor.shape[state.axis as usize])
}

impl StateRows {
    /// For graphs of one network that have states: none has rows yet.
    ///
    /// # Errors
    /// [`SimError::State`] when there is no graph with states, or their states differ in more than the number of rows;
    /// [`SimError::Graph`] when the rows exceed the memory limit.
    pub fn new<'g>(graphs: impl IntoIterator<Item = &'g Graph>) -> Result<Self, SimError> {
        let mut made: Option<Self> = None;
        for graph in graphs {
            let capacity = graph.states.first().map_or(0, |state| past(graph, state).1);
            for (tensor, _) in graph.states.iter().map(|state| past(graph, state)) {
                let bytes = tensor.elements() as u64 * tensor.dtype.bytes() as u64;
                tpuflow_ir::memory::check(&format!("state \"{}\", of shape {:?},", tensor.name, tensor.shape), bytes)
                    .map_err(|reason| SimError::Graph { name: graph.name.clone(), reason })?;
            }
            if let Some(made) = made.as_mut() {
                made.check(graph)?;
                made.capacity = made.capacity.max(capacity);
                continue;
            }
            let form = |state: &State| Form::of(past(graph, state).0, state.axis as usize);
            let rows = |state| Rows { form: form(state), values: Arc::new(Values::zeros(DType::I8, 0)) };
            made = Some(Self { states: graph.states.iter().map(rows).collect(), capacity, count: 0 });
        }
        let mut made = made.filter(|made| !made.states.is_empty()).ok_or(SimError::State(StateError::Absent))?;
        for Rows { form, values } in &mut made.states {
            let mut zeros = Values::zeros(form.dtype, made.capacity * form.row);
            fill(&mut zeros, 0, form.zero_point);
            *values = Arc::new(zeros);
        }
        Ok(made)
    }

    /// Rows that were written.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Forgets the rows from number `count` on.
    pub fn truncate(&mut self, count: usize) {
        if count < self.count {
            for Rows { form, values } in &mut self.states {
                fill(Arc::make_mut(values), count * form.row, form.zero_point);
            }
            self.count = count;
        }
    }

    /// Replaces all rows by the first `count` of others, one array per state.
    ///
    /// # Errors
    /// [`SimError::State`] when the arrays are others than those of the longest past, or do not have so many rows.
    pub fn write(&mut self, arrays: Vec<Values>, count: usize) -> Result<(), SimError> {
        let fits = |(rows, array): (&Rows, &Values)| {
            array.dtype() == rows.form.dtype && array.len() == self.capacity * rows.form.row
        };
        if arrays.len() != self.states.len() || count > self.capacity || !self.states.iter().zip(&arrays).all(fits) {
            return Err(SimError::State(StateError::Arrays));
        }
        for (rows, array) in self.states.iter_mut().zip(arrays) {
            rows.values = Arc::new(array);
        }
        self.count = self.capacity;
        self.truncate(count);
        Ok(())
    }

    /// That a graph can be run behind `position` rows.
    pub(super) fn check_position(&self, graph: &Graph, position: usize) -> Result<(), SimError> {
        self.check(graph)?;
        let last = graph.states.first().map_or(0, |state| past(graph, state).1);
        if position > last {
            return Err(SimError::State(StateError::Context { position, last }));
        }
        if position > self.count {
            return Err(SimError::State(StateError::Position { position, rows: self.count }));
        }
        Ok(())
    }

    /// The past of state number `index` as a graph takes it.
    pub(super) fn past(&self, graph: &Graph, index: usize) -> Arc<Values> {
        let (Rows { form, values }, (_, rows)) = (&self.states[index], past(graph, &graph.states[index]));
        if rows == self.capacity { Arc::clone(values) } else { Arc::new(part(values, rows * form.row)) }
    }

    /// Writes the new rows of state number `index` at a position; those beyond the longest past are not kept.
    pub(super) fn append(&mut self, index: usize, position: usize, new: &Values) {
        let Rows { form, values } = &mut self.states[index];
        let rows = new.len().checked_div(form.row).unwrap_or(0).min(self.capacity - position);
        let range = position * form.row..(position + rows) * form.row;
        copy(Arc::make_mut(values), range.start, new, range.len());
        self.count = self.count.max(position + rows);
    }

    fn check(&self, graph: &Graph) -> Result<(), SimError> {
        let forms = graph.states.iter().map(|state| Form::of(past(graph, state).0, state.axis as usize));
        let same =
            graph.states.len() == self.states.len() && forms.zip(&self.states).all(|(form, rows)| form == rows.form);
        if same { Ok(()) } else { Err(SimError::State(StateError::Other { graph: graph.name.clone() })) }
    }
}

/// Evaluates the body with the vectors of values of a type that states may have.
macro_rules! elements {
    ($values:expr, $v:ident => $body:expr) => {
        match $values {
            Values::I8($v) => $body,
            Values::I16($v) => $body,
            Values::I32($v) => $body,
            Values::I64($v) => $body,
            Values::F16($v) => $body,
            Values::BF16($v) => $body,
            Values::F32($v) => $body,
        }
    };
}

/// Fills with zeros of codes with a zero point from an element on; floats have none.
fn fill(values: &mut Values, from: usize, zero_point: i32) {
    match values {
        Values::I8(v) => v[from..].fill(zero_point as i8),
        Values::I16(v) => v[from..].fill(zero_point as i16),
        other => elements!(other, v => v[from..].fill(Default::default())),
    }
}

/// The first elements.
fn part(values: &Values, count: usize) -> Values {
    let mut taken = Values::zeros(values.dtype(), count);
    copy(&mut taken, 0, values, count);
    taken
}

/// Copies the first `count` elements of values of the same type to `at`.
fn copy(to: &mut Values, at: usize, from: &Values, count: usize) {
    match (to, from) {
        (Values::I8(to), Values::I8(from)) => to[at..][..count].copy_from_slice(&from[..count]),
        (Values::I16(to), Values::I16(from)) => to[at..][..count].copy_from_slice(&from[..count]),
        (Values::I32(to), Values::I32(from)) => to[at..][..count].copy_from_slice(&from[..count]),
        (Values::I64(to), Values::I64(from)) => to[at..][..count].copy_from_slice(&from[..count]),
        (Values::F16(to), Values::F16(from)) => to[at..][..count].copy_from_slice(&from[..count]),
        (Values::BF16(to), Values::BF16(from)) => to[at..][..count].copy_from_slice(&from[..count]),
        (Values::F32(to), Values::F32(from)) => to[at..][..count].copy_from_slice(&from[..count]),
        (to, from) => unreachable!("rows of {} in a state of {}", from.dtype().name(), to.dtype().name()),
    }
}
