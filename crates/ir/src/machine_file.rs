//! Machine files: TOML, whole or as what differs from a preset that `base` names.
//!
//! ```toml
//! base = "128x128_asic"
//! name = "128x128_dual_ddr"
//!
//! [ddr]
//! interleave_bytes = 4096
//! ```
//!
//! A machine inherits every parameter it does not state. The presets under `machines/` are ordinary machine files.

use toml::{Table, Value};

use crate::error::MachineError;
use crate::{Error, Machine};

const PRESETS: [&str; 5] = [
    include_str!("../machines/128x128_asic.toml"),
    include_str!("../machines/128x128_dual_ddr.toml"),
    include_str!("../machines/64x64_edge.toml"),
    include_str!("../machines/32x32_fpga.toml"),
    include_str!("../machines/256x256_dc.toml"),
];

impl Machine {
    /// Names of the presets, the default first.
    #[must_use]
    pub fn presets() -> Vec<String> {
        PRESETS.iter().filter_map(|text| name(text)).collect()
    }

    /// The TOML text of a preset.
    #[must_use]
    pub fn preset_text(name: &str) -> Option<&'static str> {
        PRESETS.iter().copied().find(|text| self::name(text).as_deref() == Some(name))
    }

    /// A preset by name.
    ///
    /// # Errors
    /// [`Error::Machine`] listing the presets.
    pub fn preset(name: &str) -> Result<Self, Error> {
        let unknown =
            || Error::Machine { name: name.to_owned(), reason: MachineError::Unknown { presets: Self::presets() } };
        Self::parse(name, Self::preset_text(name).ok_or_else(unknown)?)
    }

    /// Reads and validates a machine file. `origin` names it in errors. What a file states that no law uses is left out.
    ///
    /// # Errors
    /// [`Error::Machine`] with the field at fault.
    pub fn parse(origin: &str, text: &str) -> Result<Self, Error> {
        let fail = |reason| Error::Machine { name: origin.to_owned(), reason };
        let told = |e: toml::de::Error| {
            // What a base and a file make together has no line: that of the base stands for it.
            let start = e.span().map_or_else(|| text.find("base").unwrap_or(0), |span| span.start);
            let line = text[..start.min(text.len())].lines().count().max(1);
            fail(MachineError::Syntax { line, message: e.message().replace('\n', " ") })
        };
        let own: Table = text.parse().map_err(told)?;
        let mut machine: Self = if own.contains_key("base") {
            merge_base(own).map_err(fail)?.try_into().map_err(told)?
        } else {
            toml::from_str(text).map_err(told)?
        };
        machine.validate().map_err(fail)?;
        machine.array.parameter_tiles = None;
        Ok(machine)
    }
}

/// The name a machine file states.
fn name(text: &str) -> Option<String> {
    let table: Table = text.parse().ok()?;
    table.get("name")?.as_str().map(str::to_owned)
}

/// All parameters of a file with a base: those it states, the rest from the base.
fn merge_base(mut own: Table) -> Result<Table, MachineError> {
    let Some(base) = own.remove("base") else { return Ok(own) };
    let base = base.as_str().ok_or_else(|| wrong_type("base", &base, &Value::String(String::new())))?;
    let Some(text) = Machine::preset_text(base) else {
        return Err(MachineError::UnknownBase { name: base.to_owned(), presets: Machine::presets() });
    };
    if !own.contains_key("name") {
        return Err(MachineError::Unnamed { base: base.to_owned() });
    }
    let mut whole = merge_base(text.parse().expect("presets are valid TOML"))?;
    for (key, value) in own {
        let Some(inherited) = whole.get_mut(&key) else { return Err(unknown(&key, &whole)) };
        match (inherited, value) {
            (Value::Table(table), Value::Table(changes)) => {
                for (field, value) in changes {
                    let path = format!("{key}.{field}");
                    match table.get_mut(&field) {
                        Some(inherited) => replace(&path, inherited, value)?,
                        None if path == UNUSED => {}
                        None => return Err(unknown(&path, table)),
                    }
                }
            }
            (inherited, value) => replace(&key, inherited, value)?,
        }
    }
    Ok(whole)
}

/// A parameter of older files that no law uses.
const UNUSED: &str = "array.parameter_tiles";

/// Puts a value in the place of an inherited one of its type.
fn replace(field: &str, inherited: &mut Value, value: Value) -> Result<(), MachineError> {
    if !inherited.same_type(&value) {
        return Err(wrong_type(field, &value, inherited));
    }
    *inherited = value;
    Ok(())
}

fn wrong_type(field: &str, value: &Value, inherited: &Value) -> MachineError {
    let expected = match inherited {
        Value::Table(_) => "a table",
        Value::String(_) => "a text",
        _ => "a whole number",
    };
    MachineError::Type { field: field.to_owned(), expected, value: value.to_string() }
}

fn unknown(field: &str, known: &Table) -> MachineError {
    MachineError::UnknownField { field: field.to_owned(), known: known.keys().cloned().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_sound() {
        assert_eq!(Machine::presets().len(), PRESETS.len());
        for text in PRESETS {
            let machine = Machine::parse("preset", text).expect("a preset is valid");
            assert_eq!(Machine::preset(&machine.name).expect("known"), machine);
        }
    }

    #[test]
    fn a_machine_has_the_parameters_of_its_base_but_for_its_own() {
        let text = "base = \"128x128_dual_ddr\"\nname = \"mine\"\n[ddr]\nword_bytes = 64\n";
        let base = Machine::preset("128x128_dual_ddr").expect("known");
        let mut expected = base.clone();
        expected.name = "mine".to_owned();
        expected.ddr.word_bytes = 64;
        assert_eq!(Machine::parse("mine.toml", text).expect("valid"), expected);
        assert_eq!(base.ddr.interleave_bytes, 4096, "the base has a base itself");
    }

    #[test]
    fn what_is_wrong_with_a_base_is_named() {
        for (text, words) in [
            ("base = \"tpu9\"\nname = \"x\"", "base: \"tpu9\" is unknown; give one of 128x128_asic, "),
            ("base = 3\nname = \"x\"", "base: a text is expected, not 3"),
            ("base = \"128x128_asic\"", "name is missing"),
            ("base = \"128x128_asic\"\nname = \"x\"\nddr = 3", "ddr: a table is expected, not 3"),
            (
                "base = \"128x128_asic\"\nname = \"x\"\n[ddr]\nchannel = 3",
                "ddr.channel is unknown; there are capacity_bytes, channels, ",
            ),
            ("base = \"128x128_asic\"\nname = \"x\"\n[dram]\nchannels = 3", "dram is unknown; there are "),
            (
                "base = \"128x128_asic\"\nname = \"x\"\n[ddr]\nchannels = \"two\"",
                "ddr.channels: a whole number is expected, not \"two\"",
            ),
            ("base = \"128x128_asic\"\nname = \"x\"\n[ddr]\nchannels = -1", "line 1: invalid value"),
            ("base = \"128x128_asic\"\nname = \"x\"\n[array]\nrows = 100", "array.rows 100"),
        ] {
            let message = Machine::parse("my.toml", text).expect_err(text).to_string();
            assert!(message.contains(words) && message.contains("my.toml"), "{message}");
        }
    }
}
