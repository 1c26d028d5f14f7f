//! The values of a program as text.

use std::fmt::Write as _;

use serde_json::{Map, Value};

pub(super) fn write_line(out: &mut String, word: &str, value: &Value) {
    out.push_str(word);
    out.push(' ');
    write_value(out, value);
    out.push('\n');
}

pub(super) fn write_instruction(out: &mut String, value: &Value) {
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

pub(super) fn write_value(out: &mut String, value: &Value) {
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
