//! A reader of the words and values of a line.

use serde_json::{Map, Number, Value};

use super::DEPTH;
use crate::error::SyntaxError;

pub(super) struct Reader<'a> {
    pub(super) rest: &'a str,
}

impl<'a> Reader<'a> {
    fn skip(&mut self) {
        self.rest = self.rest.trim_start();
        if self.rest.starts_with(';') {
            self.rest = "";
        }
    }

    pub(super) fn end(&mut self) -> Result<(), SyntaxError> {
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

    pub(super) fn word(&mut self) -> Option<&'a str> {
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

    pub(super) fn unsigned_integer(&mut self) -> Result<u64, SyntaxError> {
        self.skip();
        let digits = self.take(|c| c.is_ascii_digit());
        digits.parse().map_err(|_| self.unexpected_token("a number"))
    }

    pub(super) fn instruction(&mut self, unit: &str) -> Result<Value, SyntaxError> {
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

    pub(super) fn value(&mut self, depth: usize) -> Result<Value, SyntaxError> {
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
