//! The symbolic value of every byte while the checker walks a program, its writer, and its readers since.
//!
//! Memories are maps from addresses to runs of consecutive values. A run remembers its writer and, per unit, the last reader:
//! units finish in order, so the last reader of a unit stands for all of its readers.

use std::collections::BTreeMap;

use tpuflow_ir::{DType, Real, Space};

use crate::packed::PackedImage;

/// Byte of a tensor, counted as the tensor lies in memory: pixels of `payload` bytes, `pixel` bytes apart. A row of pixels is
/// then one run, padding included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    pub(crate) tensor: u32,
    payload: u32,
    pixel: u32,
    byte: u64,
}

impl Element {
    /// Byte `within` of pixel `index`.
    pub(crate) fn new(tensor: u32, payload: u32, pixel: u32, index: u64, within: u64) -> Self {
        // Without padding every shape counts alike.
        let (payload, pixel, byte) = if payload == pixel {
            (1, 1, index * u64::from(pixel) + within)
        } else {
            (payload, pixel, index * u64::from(pixel) + within)
        };
        Self { tensor, payload, pixel, byte }
    }

    /// Byte `byte` of the dense row-major elements.
    pub(crate) fn dense(tensor: u32, byte: u64) -> Self {
        Self { tensor, payload: 1, pixel: 1, byte }
    }

    /// The dense byte (`None` in padding), and for how many bytes that goes on.
    pub(crate) fn place(self) -> (Option<u64>, u64) {
        if self.pixel == 1 {
            return (Some(self.byte), u64::MAX);
        }
        let (payload, pixel) = (u64::from(self.payload), u64::from(self.pixel));
        let (index, within) = (self.byte / pixel, self.byte % pixel);
        if within < payload { (Some(index * payload + within), payload - within) } else { (None, pixel - within) }
    }
}

/// The value of a byte; a run holds consecutive bytes of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// An element of a tensor.
    Element(Element),
    /// Byte `byte` of the constants of a DDR address space.
    Image { space: u8, byte: u64 },
    /// Element `byte` of those that packed weights stand for.
    Expanded { image: PackedImage, byte: u64 },
    /// Byte `byte` of an element of `size` bytes that is this code (fills).
    Code { code: i32, size: u8, byte: u8 },
    /// Byte `byte` of a float element that is this number, rounded to its type (fills).
    Number { number: Real, dtype: DType, byte: u8 },
    /// Byte `byte` of the running results of a reduction to `tensor`, with `terms` terms of each element.
    Running { tensor: u32, terms: u64, byte: u64 },
    /// Defined, but nobody may depend on it (padding, or values of a program checked without its graph).
    Any,
    /// Never written, or overwritten with what never was; who reads it along with its neighbours still counts.
    Undefined,
}

impl Value {
    /// Tensor and byte of an element counted without padding.
    pub(crate) fn dense(self) -> Option<(u32, u64)> {
        match self {
            Self::Element(Element { tensor, pixel: 1, byte, .. }) => Some((tensor, byte)),
            _ => None,
        }
    }

    /// The tensor it is part of.
    pub(crate) fn tensor(self) -> Option<u32> {
        match self {
            Self::Element(element) => Some(element.tensor),
            Self::Running { tensor, .. } => Some(tensor),
            _ => None,
        }
    }

    /// The same part of another tensor, if it is part of one.
    pub(crate) fn with_tensor(self, tensor: u32) -> Self {
        match self {
            Self::Element(element) => Self::Element(Element { tensor, ..element }),
            Self::Running { terms, byte, .. } => Self::Running { tensor, terms, byte },
            other => other,
        }
    }

    /// Address space and byte of a constant, and the packed weights it is an element of, if it is.
    pub(crate) fn constant(self) -> Option<(u8, u64, Option<PackedImage>)> {
        match self {
            Self::Image { space, byte } => Some((space, byte, None)),
            Self::Expanded { image, byte } => Some((image.space, byte, Some(image))),
            _ => None,
        }
    }

    /// How far bytes from `at` on, at most to `end`, are defined where the byte at `start` holds this: padding between pixels
    /// need not have been written.
    pub(crate) fn defined_to(self, start: u64, at: u64, end: u64) -> u64 {
        let Self::Element(element) = self else { return end };
        let mut at = at;
        while at < end {
            let element = Element { byte: element.byte + (at - start), ..element };
            let (Some(_), run) = element.place() else { break };
            at = at.saturating_add(run).min(end);
        }
        at
    }

    /// Whether `bytes` bytes from here on are padding between pixels.
    pub(crate) fn is_padding(self, bytes: u64) -> bool {
        matches!(self, Self::Element(element) if matches!(element.place(), (None, run) if bytes <= run))
    }

    /// Whether no padding of `bytes` bytes from here on takes the place of an `old` value that may still be needed: what lies
    /// there is nothing, pixels of the same size, whose padding is padding still, or beside the padding.
    pub(crate) fn may_replace(self, old: Self, bytes: u64) -> bool {
        let Self::Element(element) = self else { return true };
        let beside = matches!(element.place(), (Some(_), run) if bytes <= run);
        let alike = |e: Element| {
            let (payload, pixel) = (u64::from(element.payload), u64::from(element.pixel));
            (u64::from(e.payload), u64::from(e.pixel)) == (payload, pixel) && e.byte % pixel == element.byte % pixel
        };
        beside || old == Self::Any || matches!(old, Self::Element(e) if alike(e))
    }

    /// Byte `within` of an element that is a code.
    pub(crate) fn code(code: i32, dtype: DType, within: u64) -> Self {
        Self::Code { code, size: dtype.bytes() as u8, byte: within as u8 }
    }

    /// Byte `within` of an element that is a number.
    pub(crate) fn number(number: Real, dtype: DType, within: u64) -> Self {
        Self::Number { number, dtype, byte: within as u8 }
    }

    /// The value `bytes` further on.
    pub(crate) fn advance(self, bytes: u64) -> Self {
        match self {
            Self::Element(element) => Self::Element(Element { byte: element.byte + bytes, ..element }),
            Self::Image { space, byte } => Self::Image { space, byte: byte + bytes },
            Self::Expanded { image, byte } => Self::Expanded { image, byte: byte + bytes },
            Self::Running { tensor, terms, byte } => Self::Running { tensor, terms, byte: byte + bytes },
            Self::Code { code, size, byte } => {
                Self::Code { code, size, byte: ((u64::from(byte) + bytes) % u64::from(size)) as u8 }
            }
            Self::Number { number, dtype, byte } => {
                let byte = ((u64::from(byte) + bytes) % dtype.bytes() as u64) as u8;
                Self::Number { number, dtype, byte }
            }
            Self::Any | Self::Undefined => self,
        }
    }
}

/// An instruction as the memories know it: its unit and its number within the unit, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Actor {
    pub(crate) unit: usize,
    pub(crate) number: u32,
}

/// Tokens of every unit.
pub(crate) type Tokens = [u32; tpuflow_ir::Unit::COUNT];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) end: u64,
    pub(crate) value: Value,
    pub(crate) writer: Option<Actor>,
    pub(crate) readers: Tokens,
}

/// Defined stretch of a read: `start .. end` holds `value` onwards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) value: Value,
}

/// All memories.
#[derive(Clone, Default)]
pub(crate) struct Memories {
    spaces: BTreeMap<Space, BTreeMap<u64, Run>>,
    /// Runs that were read or replaced.
    access_count: u64,
}

impl Memories {
    /// The values of `start .. end`, defined stretches only, in order; `reader` is remembered, and `written` raised to the
    /// tokens that prove the writers finished.
    pub(crate) fn read(
        &mut self,
        space: Space,
        start: u64,
        end: u64,
        reader: Option<Actor>,
        written: &mut Tokens,
    ) -> Vec<Piece> {
        let memory = self.spaces.entry(space).or_default();
        split(memory, start);
        split(memory, end);
        if reader.is_some() {
            fill(memory, start, end);
        }
        let mut pieces: Vec<Piece> = Vec::new();
        for (&at, run) in memory.range_mut(start..end) {
            self.access_count += 1;
            if let Some(writer) = run.writer {
                written[writer.unit] = written[writer.unit].max(writer.number);
            }
            if let Some(reader) = reader {
                run.readers[reader.unit] = run.readers[reader.unit].max(reader.number);
            }
            if run.value == Value::Undefined {
                continue;
            }
            match pieces.last_mut() {
                Some(last) if last.end == at && last.value.advance(at - last.start) == run.value => last.end = run.end,
                _ => pieces.push(Piece { start: at, end: run.end, value: run.value }),
            }
        }
        pieces
    }

    /// Whether every byte holds the same, by the same writers and readers.
    pub(crate) fn has_same_contents(&self, other: &Self) -> bool {
        self.spaces == other.spaces
    }

    /// Puts other values in place of some; writers and readers stay.
    pub(crate) fn replace(&mut self, other: impl Fn(Space, u64, Value) -> Option<Value>) {
        for (&space, memory) in &mut self.spaces {
            for (&start, run) in memory {
                run.value = other(space, start, run.value).unwrap_or(run.value);
            }
        }
    }

    /// All runs by memory and first byte.
    pub(crate) fn all_runs(&self) -> impl Iterator<Item = (Space, u64, &Run)> {
        self.spaces.iter().flat_map(|(&space, memory)| memory.iter().map(move |(&start, run)| (space, start, run)))
    }

    /// How many runs were read or replaced until now.
    pub(crate) fn access_count(&self) -> u64 {
        self.access_count
    }

    /// How many runs there are.
    pub(crate) fn runs(&self) -> u64 {
        self.spaces.values().map(|memory| memory.len() as u64).sum()
    }

    /// End of the last byte that was read or written.
    pub(crate) fn end(&self, space: Space) -> u64 {
        self.spaces.get(&space).and_then(|memory| memory.values().next_back()).map_or(0, |run| run.end)
    }

    /// Puts `value` onwards into `start .. end`; `prior_accesses` is raised to the tokens that prove earlier readers and writers
    /// of these bytes finished. Whether the writer itself has read some of them.
    pub(crate) fn write(
        &mut self,
        space: Space,
        start: u64,
        end: u64,
        value: Value,
        writer: Option<Actor>,
        prior_accesses: &mut Tokens,
    ) -> bool {
        if start >= end {
            return false;
        }
        let mut own = false;
        let memory = self.spaces.entry(space).or_default();
        split(memory, start);
        split(memory, end);
        let covered: Vec<u64> = memory.range(start..end).map(|(&at, _)| at).collect();
        self.access_count += covered.len() as u64;
        for at in covered {
            if let Some(run) = memory.remove(&at) {
                if let Some(writer) = run.writer {
                    prior_accesses[writer.unit] = prior_accesses[writer.unit].max(writer.number);
                }
                own |= writer.is_some_and(|writer| run.readers[writer.unit] == writer.number);
                for (needed, reader) in prior_accesses.iter_mut().zip(run.readers) {
                    *needed = (*needed).max(reader);
                }
            }
        }
        if let Some((&at, last)) = memory.range_mut(..start).next_back()
            && last.end == start
            && last.writer == writer
            && last.readers == Tokens::default()
            && last.value.advance(start - at) == value
        {
            last.end = end;
            return own;
        }
        memory.insert(start, Run { end, value, writer, readers: Tokens::default() });
        own
    }
}

/// Puts undefined runs into the gaps of `start .. end`.
fn fill(memory: &mut BTreeMap<u64, Run>, start: u64, end: u64) {
    let mut gaps = Vec::new();
    let mut at = start;
    for (&from, run) in memory.range(start..end) {
        if from > at {
            gaps.push((at, from));
        }
        at = run.end;
    }
    if at < end {
        gaps.push((at, end));
    }
    for (from, to) in gaps {
        memory.insert(from, Run { end: to, value: Value::Undefined, writer: None, readers: Tokens::default() });
    }
}

/// Makes a run border at `at`.
fn split(memory: &mut BTreeMap<u64, Run>, at: u64) {
    let Some((&start, run)) = memory.range_mut(..at).next_back() else { return };
    if run.end > at {
        let tail = Run { value: run.value.advance(at - start), ..*run };
        run.end = at;
        memory.insert(at, tail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(byte: u64) -> Value {
        Value::Element(Element::dense(7, byte))
    }

    #[test]
    fn padding_counts_but_is_nothing() {
        let at = |index, within| Element::new(3, 5, 8, index, within).place();
        assert_eq!(at(0, 0), (Some(0), 5));
        assert_eq!(at(2, 3), (Some(13), 2));
        assert_eq!(at(2, 6), (None, 2));
        assert_eq!(Element::new(3, 8, 8, 2, 1), Element::dense(3, 17));
    }

    #[test]
    fn reads_join_and_leave_gaps() {
        let mut memories = Memories::default();
        let (mut written, mut prior_accesses) = (Tokens::default(), Tokens::default());
        let first = Some(Actor { unit: 2, number: 3 });
        memories.write(Space::Cache, 10, 20, element(0), first, &mut prior_accesses);
        memories.write(Space::Cache, 20, 30, element(10), Some(Actor { unit: 1, number: 9 }), &mut prior_accesses);
        memories.write(Space::Cache, 40, 50, element(0), None, &mut prior_accesses);
        assert_eq!(prior_accesses, Tokens::default());
        let pieces = memories.read(Space::Cache, 15, 45, Some(Actor { unit: 4, number: 1 }), &mut written);
        assert_eq!(written, [0, 9, 3, 0, 0]);
        let seen: Vec<_> = pieces.iter().map(|p| (p.start, p.end, p.value)).collect();
        assert_eq!(seen, [(15, 30, element(5)), (40, 45, element(0))]);
        memories.write(Space::Cache, 0, 16, element(100), first, &mut prior_accesses);
        assert_eq!(prior_accesses, [0, 0, 3, 0, 1]);
        // Nor may the gap be written while it is still read along.
        let mut prior_accesses = Tokens::default();
        memories.write(Space::Cache, 32, 35, element(0), first, &mut prior_accesses);
        assert_eq!(prior_accesses, [0, 0, 0, 0, 1]);
    }
}
