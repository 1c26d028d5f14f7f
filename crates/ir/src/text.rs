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

mod reader;
mod writer;

use std::fmt::Write as _;

use serde_json::{Map, Value};

use crate::error::{ProgramError, SyntaxError};
use crate::{Error, Program};
use reader::Reader;
use writer::{write_instruction, write_line};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::{Codes, Scaling, VectorOp};
    use crate::isa::{Direction, Lookup, Transfer, Unit, Wait, Work};
    use crate::op::ReduceKind;
    use crate::program::{Allocation, LayerSummary, Port, PortPart};
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
                parts: vec![PortPart { first_pixel: 2, space: Space::Ddr(1), address: 640 }],
            }],
            outputs: vec![],
            states: vec![],
            exchanges: vec![],
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
            stream: None,
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
