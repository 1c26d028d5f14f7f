//! The two arithmetics an operator may have: fixed point on codes, or IEEE floating point.
//!
//! The geometry of an operator is the same in both; what turns its result into an element is a field of this type. Which one
//! it is must agree with the element types of operands and output ([`crate::shape`] checks it).

use serde::de::Error as _;
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Finish;

/// How a result becomes an element. In JSON the fixed-point form is `F` itself, the other one `{"float": R}`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Arithmetic<F, R = Finish> {
    /// Exact integers, rounded as `F` says.
    Fixed(F),
    /// Float32, step by step, rounded once to the output's type.
    Float(R),
}

impl<F, R> Arithmetic<F, R> {
    /// The fixed-point parameters, `None` for floats.
    #[must_use]
    pub fn fixed(&self) -> Option<&F> {
        match self {
            Self::Fixed(fixed) => Some(fixed),
            Self::Float(_) => None,
        }
    }

    /// The float parameters, `None` for codes.
    #[must_use]
    pub fn float(&self) -> Option<&R> {
        match self {
            Self::Fixed(_) => None,
            Self::Float(float) => Some(float),
        }
    }
}

const FLOAT: &str = "float";

impl<F: Serialize, R: Serialize> Serialize for Arithmetic<F, R> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed(fixed) => fixed.serialize(serializer),
            Self::Float(float) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry(FLOAT, float)?;
                map.end()
            }
        }
    }
}

impl<'de, F: for<'a> Deserialize<'a>, R: for<'a> Deserialize<'a>> Deserialize<'de> for Arithmetic<F, R> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut value = serde_json::Value::deserialize(deserializer)?;
        match value.as_object_mut().and_then(|fields| fields.remove(FLOAT)) {
            Some(float) if value.as_object().is_some_and(serde_json::Map::is_empty) => {
                serde_json::from_value(float).map(Self::Float).map_err(D::Error::custom)
            }
            Some(_) => Err(D::Error::custom("fields beside \"float\"")),
            None => serde_json::from_value(value).map(Self::Fixed).map_err(D::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Requant;

    fn read(text: &str) -> Result<Arithmetic<Requant>, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn both_forms_read_back() {
        for text in [
            r#"{"multiplier":[1],"shift":[0],"zero_point":0,"lo":-128,"hi":127}"#,
            r#"{"float":{}}"#,
            r#"{"float":{"lo":0.0,"hi":6.0}}"#,
        ] {
            assert_eq!(serde_json::to_string(&read(text).expect("read")).expect("written"), text);
        }
    }

    #[test]
    fn errors_name_the_field() {
        assert!(read(r#"{"multiplier":[1]}"#).expect_err("refused").contains("missing field `shift`"));
        assert!(read(r#"{"float":{"low":0}}"#).expect_err("refused").contains("unknown field `low`"));
        assert!(read(r#"{"float":{},"lo":0}"#).expect_err("refused").contains("fields beside"));
    }
}
