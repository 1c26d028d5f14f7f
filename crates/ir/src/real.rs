//! Real constants of operators: compared and hashed by their bits, written so that every bit comes back.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A float64 constant. Equality is that of the bits, so operators that hold one can be compared and hashed. In JSON a
/// number, or one of the words `inf`, `-inf`, `nan`; in binary forms the bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Real(u64);

impl Real {
    /// The constant.
    #[must_use]
    pub fn new(value: f64) -> Self {
        Self(value.to_bits())
    }

    /// Its value.
    #[must_use]
    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }

    /// Its value as a float32, if it is one.
    #[must_use]
    pub fn single(self) -> Option<f32> {
        let single = self.get() as f32;
        (f64::from(single) == self.get() || single.is_nan()).then_some(single)
    }
}

impl From<f32> for Real {
    fn from(value: f32) -> Self {
        Self::new(value.into())
    }
}

impl std::fmt::Debug for Real {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.get())
    }
}

impl Serialize for Real {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            return serializer.serialize_u64(self.0);
        }
        match self.get() {
            value if value.is_finite() => serializer.serialize_f64(value),
            value if value.is_nan() => serializer.serialize_str("nan"),
            value => serializer.serialize_str(if value > 0.0 { "inf" } else { "-inf" }),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number, \"inf\", \"-inf\" or \"nan\"")]
enum Written {
    Number(f64),
    Word(Word),
}

#[derive(Deserialize)]
enum Word {
    #[serde(rename = "inf")]
    Infinity,
    #[serde(rename = "-inf")]
    NegativeInfinity,
    #[serde(rename = "nan")]
    Nan,
}

impl<'de> Deserialize<'de> for Real {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return u64::deserialize(deserializer).map(Self);
        }
        Ok(Self::new(match Written::deserialize(deserializer)? {
            Written::Number(value) => value,
            Written::Word(Word::Infinity) => f64::INFINITY,
            Written::Word(Word::NegativeInfinity) => f64::NEG_INFINITY,
            Written::Word(Word::Nan) => f64::NAN,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_comes_back() {
        for value in [0.0, -0.0, 0.1, 1e-310, f64::MAX, f64::from(0.1f32), f64::INFINITY, f64::NEG_INFINITY] {
            let text = serde_json::to_string(&Real::new(value)).expect("written");
            assert_eq!(serde_json::from_str::<Real>(&text).expect("read"), Real::new(value), "{text}");
        }
        assert!(serde_json::from_str::<Real>("\"nan\"").expect("read").get().is_nan());
        assert!(serde_json::from_str::<Real>("\"many\"").is_err());
    }

    #[test]
    fn singles_are_told_apart() {
        assert_eq!(Real::from(0.1f32).single(), Some(0.1f32));
        assert_eq!(Real::new(0.1).single(), None);
        assert_eq!(Real::new(f64::INFINITY).single(), Some(f32::INFINITY));
    }
}
