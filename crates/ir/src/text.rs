//! The text form of a [`Program`] (`.tpuasm`): one line per instruction, and back to the very same program.
//!
//! ```text
//! tpuasm 1
//! program (batch=1 cache_peak_bytes=8192 ... name=digits predicted_cycles=2210 spill_bytes=0)
//! machine (array=(accumulators=1024 columns=128 ...) ...)
//! descriptor Matrix((codes=(hi=127 lo=-128 zero_point=-3) ...))
//! dtl0 layer=0 Transfer((bytes=256 ...))                                        ; 0 conv1
//! me layer=0 wait=[dtl0:1] Matrix((columns=16 input=<Cache:0 int8 8/8x8x1 1+0 0+8 0,0> ...))   ; 1 conv1
//! constants 0 512
//! 00ff...
//! ```
//!
//! A line is a word and values. A value is a number, a word, a quoted string, a list `[a b]`, a record `(key=value ...)`, a
//! variant `Name(value)`, or a view `<space:address dtype rows/height x width x channels pixel_bytes+channel_offset
//! first_row+stored_rows origin>`. A semicolon starts a comment. Constants stand last, in hexadecimal, by DDR address space.

use std::fmt::Write as _;

use serde_json::{Map, Number, Value};

use crate::error::{ProgramError, SyntaxError};
use crate::{Error, Program};

const VERSION: &str = "tpuasm 1";
/// Bytes of constants on a line.
const LINE: usize = 64;
/// Deepest nesting of values that is read.
const DEPTH: usize = 16;
/// Parts of a program with a line for each entry: the line's word and the program's field.
const LISTS: [(&str, &str); 5] = [
    ("input", "inputs"),
    ("output", "outputs"),
    ("layer", "layers"),
    ("descriptor", "descriptors"),
    ("allocation", "allocations"),
];
/// Parts with a line of their own.
const RECORDS: [&str; 2] = ["machine", "bounds"];
const INSTRUCTIONS: &str = "instructions";

impl Program {
    /// The text form; without `constants` it is for reading only.
    ///
    /// # Errors
    /// [`Error::Program`] when it cannot be expressed, which no valid program is.
    pub fn to_text(&self, constants: bool) -> Result<String, Error> {
        let value = serde_json::to_value(self).map_err(ProgramError::from)?;
        let Value::Object(mut fields) = value else {
            return Err(ProgramError::Record.into());
        };
        let mut out = format!("{VERSION}\n");
        let records = RECORDS.map(|key| (key, fields.remove(key).unwrap_or_default()));
        let lists = LISTS.map(|(word, key)| (word, fields.remove(key).unwrap_or_default()));
        let instructions = fields.remove(INSTRUCTIONS).unwrap_or_default();
        write_line(&mut out, "program", &Value::Object(fields));
        for (word, record) in &records {
            write_line(&mut out, word, record);
        }
        for (word, list) in &lists {
            list.as_array().into_iter().flatten().for_each(|entry| write_line(&mut out, word, entry));
        }
        for (number, (value, instruction)) in
            instructions.as_array().into_iter().flatten().zip(&self.instructions).enumerate()
        {
            let layer = self.layers.get(instruction.layer.index()).map_or("", |layer| layer.name.as_str());
            write_instruction(&mut out, value);
            let _ = writeln!(out, " ; {number} {}", layer.replace(char::is_control, " "));
        }
        for (space, bytes) in self.constants.iter().enumerate().filter(|_| constants) {
            let _ = writeln!(out, "constants {space} {}", bytes.len());
            for line in bytes.chunks(LINE) {
                line.iter().for_each(|byte| {
                    let _ = write!(out, "{byte:02x}");
                });
                out.push('\n');
            }
        }
        Ok(out)
    }

    /// Reads the text form.
    ///
    /// # Errors
    /// [`Error::Program`] naming the line and what is wrong with it.
    pub fn from_text(text: &str) -> Result<Self, Error> {
        let mut fields = Map::new();
        for (_, key) in LISTS {
            fields.insert(key.to_owned(), Value::Array(Vec::new()));
        }
        fields.insert(INSTRUCTIONS.to_owned(), Value::Array(Vec::new()));
        let mut constants: Vec<(Vec<u8>, usize)> = Vec::new();
        let mut lines = text.lines().enumerate().map(|(i, line)| (i + 1, line));
        let first = lines.next().map_or("", |(_, line)| line.trim());
        if first != VERSION {
            let (expected, found) = (VERSION, first.to_owned());
            let versioned = first.starts_with("tpuasm ");
            let error = if versioned {
                ProgramError::Version { expected, found }
            } else {
                ProgramError::OtherText { expected, found }
            };
            return Err(error.into());
        }
        for (number, line) in lines {
            read_line(line, &mut fields, &mut constants)
                .map_err(|source| ProgramError::Line { line: number, source })?;
        }
        for field in RECORDS {
            fields.get(field).ok_or(ProgramError::Missing(field))?;
        }
        let mut program: Self = serde_json::from_value(Value::Object(fields)).map_err(ProgramError::Fields)?;
        program.machine.validate().map_err(ProgramError::Machine)?;
        for (space, (bytes, size)) in constants.iter().enumerate() {
            if bytes.len() != *size {
                let (announced, found) = (*size, bytes.len());
                return Err(ProgramError::ConstantBytes { space, announced, found }.into());
            }
        }
        if constants.len() != program.ddr_bytes.len() {
            let (found, expected) = (constants.len(), program.ddr_bytes.len());
            return Err(ProgramError::Constants { found, expected }.into());
        }
        program.constants = constants.into_iter().map(|(bytes, _)| bytes.into()).collect();
        program.check_limits().and_then(|()| program.check_references()).map_err(ProgramError::from)?;
        Ok(program)
    }
}

fn read_line(
    line: &str,
    fields: &mut Map<String, Value>,
    constants: &mut Vec<(Vec<u8>, usize)>,
) -> Result<(), SyntaxError> {
    let mut reader = Reader { rest: line };
    let Some(word) = reader.word() else {
        return reader.end();
    };
    if word == "constants" {
        let (space, size) = (reader.unsigned_integer()?, reader.unsigned_integer()?);
        if space != constants.len() as u64 {
            return Err(SyntaxError::Space { found: space, expected: constants.len() });
        }
        let size = usize::try_from(size)?;
        constants.push((Vec::new(), size));
        return reader.end();
    }
    if word == "program" || RECORDS.contains(&word) {
        let value = reader.value(DEPTH)?;
        match value {
            Value::Object(record) if word == "program" => fields.extend(record),
            Value::Object(_) => drop(fields.insert(word.to_owned(), value)),
            _ => return Err(SyntaxError::Record(word.to_owned())),
        }
        return reader.end();
    }
    if let Some((_, key)) = LISTS.iter().find(|(name, _)| *name == word) {
        let value = reader.value(DEPTH)?;
        push(fields, key, value);
        return reader.end();
    }
    if let Some((bytes, size)) = constants.last_mut() {
        let _ = reader.end();
        let left = *size - bytes.len();
        let line = decode(line.trim())?;
        if line.len() > left {
            return Err(SyntaxError::Bytes(line.len() - left));
        }
        bytes.extend(line);
        return Ok(());
    }
    let instruction = reader.instruction(word)?;
    push(fields, INSTRUCTIONS, instruction);
    reader.end()
}

fn push(fields: &mut Map<String, Value>, key: &str, value: Value) {
    if let Some(Value::Array(list)) = fields.get_mut(key) {
        list.push(value);
    }
}

fn decode(text: &str) -> Result<Vec<u8>, SyntaxError> {
    let digit = |byte: u8| char::from(byte).to_digit(16).ok_or(SyntaxError::Hexadecimal);
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| match *pair {
            [high, low] => Ok((digit(high)? * 16 + digit(low)?) as u8),
            _ => Err(SyntaxError::OddDigits),
        })
        .collect()
}

// Writing.

fn write_line(out: &mut String, word: &str, value: &Value) {
    out.push_str(word);
    out.push(' ');
    write_value(out, value);
    out.push('\n');
}

fn write_instruction(out: &mut String, value: &Value) {
    let _ = write!(out, "{} layer={}", value["unit"].as_str().unwrap_or_default(), value["layer"]);
    let waits = value["waits"].as_array().map_or(&[][..], Vec::as_slice);
    if !waits.is_empty() {
        let waits: Vec<String> =
            waits.iter().map(|w| format!("{}:{}", w["unit"].as_str().unwrap_or_default(), w["count"])).collect();
        let _ = write!(out, " wait=[{}]", waits.join(" "));
    }
    out.push(' ');
    write_value(out, &value["work"]);
}

fn is_bare_word(text: &str) -> bool {
    let first = text.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    first
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | '-'))
        && !["none", "true", "false"].contains(&text)
}

fn variant(record: &Map<String, Value>) -> Option<(&String, &Value)> {
    let (key, value) = record.iter().next()?;
    (record.len() == 1 && key.starts_with(|c: char| c.is_ascii_uppercase())).then_some((key, value))
}

fn write_value(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("none"),
        Value::String(text) if is_bare_word(text) => out.push_str(text),
        Value::Array(list) => {
            out.push('[');
            write_list(out, list, write_value);
            out.push(']');
        }
        Value::Object(record) => {
            if let Some((name, content)) = variant(record) {
                let _ = write!(out, "{name}(");
                write_value(out, content);
                out.push(')');
            } else if write_view(out, record).is_none() {
                out.push('(');
                write_list(out, record, |out, (key, entry)| {
                    // Keys of records are field names, which are bare words.
                    let _ = write!(out, "{key}=");
                    write_value(out, entry);
                });
                out.push(')');
            }
        }
        // Numbers, booleans and quoted strings look as in JSON.
        _ => {
            let _ = write!(out, "{value}");
        }
    }
}

fn write_list<T>(out: &mut String, entries: impl IntoIterator<Item = T>, write: impl Fn(&mut String, T)) {
    for (i, entry) in entries.into_iter().enumerate() {
        if i > 0 {
            out.push(' ');
        }
        write(out, entry);
    }
}

/// A view in its short form, if the record is one.
fn write_view(out: &mut String, record: &Map<String, Value>) -> Option<()> {
    let origin = record.get("origin")?.as_array()?;
    let (space, dtype) = (record.get("space")?, record.get("dtype")?.as_str()?);
    let of = |key: &str| record.get(key).and_then(Value::as_u64);
    let numbers = [
        of("rows")?,
        of("height")?,
        of("width")?,
        of("channels")?,
        of("pixel_bytes")?,
        of("channel_offset")?,
        of("first_row")?,
        of("stored_rows")?,
    ];
    let [rows, height, width, channels, pixel, offset, first, stored] = numbers;
    out.push('<');
    write_value(out, space);
    let _ = write!(out, ":{} {dtype} {rows}/{height}x{width}x{channels} {pixel}+{offset} ", of("address")?);
    let _ = write!(out, "{first}+{stored} {},{}>", origin.first()?, origin.get(1)?);
    Some(())
}

// Reading.

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn skip(&mut self) {
        self.rest = self.rest.trim_start();
        if self.rest.starts_with(';') {
            self.rest = "";
        }
    }

    fn end(&mut self) -> Result<(), SyntaxError> {
        self.skip();
        if self.rest.is_empty() { Ok(()) } else { Err(SyntaxError::Rest(self.sample())) }
    }

    /// Something else stands where this must.
    fn unexpected_token(&self, what: impl Into<String>) -> SyntaxError {
        SyntaxError::Expected { expected: what.into(), before: self.sample() }
    }

    fn sample(&self) -> String {
        self.rest.chars().take(20).collect()
    }

    fn take(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        let length = self.rest.find(|c| !wanted(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        taken
    }

    fn word(&mut self) -> Option<&'a str> {
        self.skip();
        let taken = self.take(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | '-'));
        (!taken.is_empty()).then_some(taken)
    }

    fn peek(&mut self, token: char) -> bool {
        self.skip();
        self.rest.starts_with(token)
    }

    fn accept(&mut self, token: char) -> bool {
        let found = self.peek(token);
        if found {
            self.rest = &self.rest[token.len_utf8()..];
        }
        found
    }

    fn expect(&mut self, token: char) -> Result<(), SyntaxError> {
        if self.accept(token) { Ok(()) } else { Err(self.unexpected_token(format!("'{token}'"))) }
    }

    fn unsigned_integer(&mut self) -> Result<u64, SyntaxError> {
        self.skip();
        let digits = self.take(|c| c.is_ascii_digit());
        digits.parse().map_err(|_| self.unexpected_token("a number"))
    }

    fn instruction(&mut self, unit: &str) -> Result<Value, SyntaxError> {
        let mut waits = Vec::new();
        let mut layer = None;
        loop {
            let before = self.rest;
            match self.word() {
                Some("layer") if self.accept('=') => layer = Some(self.unsigned_integer()?),
                Some("wait") if self.accept('=') => {
                    self.expect('[')?;
                    while !self.accept(']') {
                        let unit = self.word().ok_or(SyntaxError::Name("a unit"))?;
                        self.expect(':')?;
                        waits.push(serde_json::json!({"unit": unit, "count": self.unsigned_integer()?}));
                    }
                }
                _ => {
                    self.rest = before;
                    break;
                }
            }
        }
        let layer = layer.ok_or_else(|| SyntaxError::Word(unit.to_owned()))?;
        let work = self.value(DEPTH)?;
        Ok(serde_json::json!({"unit": unit, "layer": layer, "waits": waits, "work": work}))
    }

    fn value(&mut self, depth: usize) -> Result<Value, SyntaxError> {
        let deeper = depth.checked_sub(1).ok_or(SyntaxError::Depth)?;
        if self.accept('[') {
            let mut list = Vec::new();
            while !self.accept(']') {
                list.push(self.value(deeper)?);
            }
            return Ok(Value::Array(list));
        }
        if self.accept('(') {
            let mut record = Map::new();
            while !self.accept(')') {
                let key = self.word().ok_or_else(|| self.unexpected_token("a key"))?;
                self.expect('=')?;
                if record.insert(key.to_owned(), self.value(deeper)?).is_some() {
                    return Err(SyntaxError::Twice(key.to_owned()));
                }
            }
            return Ok(Value::Object(record));
        }
        if self.accept('<') {
            return self.view(deeper);
        }
        if self.peek('"') {
            let mut stream = serde_json::Deserializer::from_str(self.rest).into_iter::<String>();
            let text = stream.next().and_then(Result::ok).ok_or(SyntaxError::String)?;
            self.rest = &self.rest[stream.byte_offset()..];
            return Ok(Value::String(text));
        }
        if self.rest.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
            let text = self.take(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+'));
            return text.parse::<Number>().map(Value::Number).map_err(|_| SyntaxError::Number(text.to_owned()));
        }
        let word = self.word().ok_or_else(|| self.unexpected_token("a value"))?;
        Ok(match word {
            "none" => Value::Null,
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            _ if self.rest.starts_with('(') => {
                self.expect('(')?;
                let content = self.value(deeper)?;
                self.expect(')')?;
                Value::Object(Map::from_iter([(word.to_owned(), content)]))
            }
            _ => Value::String(word.to_owned()),
        })
    }

    fn view(&mut self, depth: usize) -> Result<Value, SyntaxError> {
        let space = self.value(depth)?;
        self.expect(':')?;
        let address = self.unsigned_integer()?;
        let dtype = self.word().ok_or(SyntaxError::Name("an element type"))?;
        let rows = self.unsigned_integer()?;
        self.expect('/')?;
        let height = self.unsigned_integer()?;
        self.expect('x')?;
        let width = self.unsigned_integer()?;
        self.expect('x')?;
        let channels = self.unsigned_integer()?;
        let pixel_bytes = self.unsigned_integer()?;
        self.expect('+')?;
        let channel_offset = self.unsigned_integer()?;
        let first_row = self.unsigned_integer()?;
        self.expect('+')?;
        let stored_rows = self.unsigned_integer()?;
        let pixel = self.unsigned_integer()?;
        self.expect(',')?;
        let channel = self.unsigned_integer()?;
        self.expect('>')?;
        Ok(serde_json::json!({
            "space": space, "address": address, "dtype": dtype, "rows": rows, "height": height, "width": width,
            "channels": channels, "pixel_bytes": pixel_bytes, "channel_offset": channel_offset,
            "first_row": first_row, "stored_rows": stored_rows, "origin": [pixel, channel],
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::{Codes, Scaling, VectorOp};
    use crate::isa::{Direction, Lookup, Transfer, Unit, Wait, Work};
    use crate::op::ReduceKind;
    use crate::program::{Allocation, LayerSummary, Port};
    use crate::{Bounds, DType, Descriptor, Instruction, LayerId, Machine, Quant, Space, View};

    fn program() -> Program {
        let view = View::whole(&[2, 3, 4], DType::I8, 128, Space::Ddr(1), 4096);
        let transfer = Transfer {
            direction: Direction::Load,
            ddr_space: 1,
            ddr_address: u64::from(u32::MAX) + 5,
            local_space: Space::Cache,
            local_address: 0,
            bytes: 7,
            counts: [1, 2],
            ddr_strides: [0, 9],
            local_strides: [0, 128],
        };
        let lookup = Lookup { table: view, indices: view, output: view, first: 0, count: 3 };
        let codes = Codes { zero_point: -3, lo: -128, hi: 127 };
        let reduce = VectorOp::Reduce {
            partial: false,
            kind: ReduceKind::Sum,
            shape: vec![2, 3, 4],
            axes: vec![1],
            input_zero: -1,
            scaling: Scaling { multiplier: 31, shift: -2, codes },
        };
        let wait = Wait { unit: Unit::Dtl0, count: 1 };
        let instruction = |unit, waits: &[Wait], work| Instruction {
            unit,
            layer: LayerId(0),
            waits: waits.iter().copied().collect(),
            work,
        };
        Program {
            name: "a \"net\"; with none".to_owned(),
            machine: Machine::preset("128x128_asic").expect("known"),
            batch: 1,
            level: 5,
            fallback: None,
            descriptors: vec![Descriptor::Vector(reduce), Descriptor::Vector(VectorOp::Select)],
            instructions: vec![
                instruction(Unit::Dtl0, &[], Work::Transfer(transfer)),
                instruction(Unit::Dtl1, &[wait], Work::Lookup(lookup)),
            ],
            constants: vec![(0..=200).collect::<Vec<u8>>().into(), Vec::new().into()],
            ddr_bytes: vec![256, 0],
            spill_bytes: 0,
            cache_peak_bytes: 12,
            inputs: vec![Port {
                name: "none".to_owned(),
                shape: vec![2, 3, 4],
                dtype: DType::I8,
                quant: Some(Quant { scale: vec![0.1, 1e-7], zero_point: 4 }),
                source: None,
                view,
            }],
            outputs: vec![],
            states: vec![],
            position: None,
            tilings: vec![],
            layers: vec![LayerSummary {
                name: "layer/1".to_owned(),
                op: "reduce".to_owned(),
                dtype: DType::I8,
                unit: Unit::Ewp,
                macs: 0,
                bound: 3,
                binding: "ewp".to_owned(),
                nodes: vec!["ReduceMean_0".to_owned(), String::new()],
            }],
            bounds: Bounds { array: 1, ..Bounds::default() },
            predicted_cycles: 77,
            allocations: vec![Allocation { name: "weights of x".to_owned(), address: 0, bytes: 12, first: 0, last: 1 }],
        }
    }

    #[test]
    fn text_comes_back_as_the_same_program() {
        let text = program().to_text(true).expect("expressed");
        assert_eq!(Program::from_text(&text).expect("read"), program());
        assert!(text.contains("<Ddr(1):4096 int8 2/2x3x4 4+0 0+2 0,0>"), "{text}");
        assert!(text.contains("dtl1 layer=0 wait=[dtl0:1] Lookup("), "{text}");
    }

    #[test]
    fn comments_and_empty_lines_are_nothing() {
        let text = program().to_text(true).expect("expressed");
        let text = text.replacen("bounds", "; a comment\n\n   bounds", 1);
        assert_eq!(Program::from_text(&text).expect("read"), program());
    }

    #[test]
    fn without_constants_it_is_for_reading_only() {
        let text = program().to_text(false).expect("expressed");
        let message = Program::from_text(&text).expect_err("incomplete").to_string();
        assert!(message.contains("incomplete"), "{message}");
    }

    #[test]
    fn errors_name_the_line() {
        let text = program().to_text(true).expect("expressed");
        for (from, to, line, reason) in [
            ("tpuasm 1", "tpuasm 2", "line 1", "begins with"),
            ("dtl0 layer=0", "dtl0 layer=x", "line 10", "expected a number"),
            ("dtl0 layer=0", "hello", "line 10", "begins no line"),
            ("counts=[1 2]", "counts=[1 2", "line 10", "expected a value"),
            ("machine (", "machine [", "line 3", "expected a value"),
            ("constants 0 201", "constants 0 9999", "constants 0", "9999 bytes announced"),
            ("constants 0 201", "constants 0 20", "line 13", "more than announced"),
            ("constants 1 0", "constants 1 0\nzz", "line 18", "hexadecimal"),
        ] {
            assert!(text.contains(from), "{from}");
            let message = Program::from_text(&text.replacen(from, to, 1)).expect_err(to).to_string();
            assert!(message.contains(line) && message.contains(reason), "{to}: {message}");
        }
    }

    #[test]
    fn no_text_panics() {
        let text = program().to_text(true).expect("expressed");
        for end in (0..text.len()).filter(|&end| text.is_char_boundary(end)).step_by(7) {
            let _ = Program::from_text(&text[..end]);
        }
        let _ = Program::from_text(&format!("tpuasm 1\nprogram {}", "(".repeat(100_000)));
    }
}
