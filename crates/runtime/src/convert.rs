//! The model's numbers to stored elements and back: scaling and casting, element by element, in the order of the user's array.

#![allow(trivial_numeric_casts, clippy::unnecessary_cast, reason = "one body for numbers of every type")]

use std::borrow::Cow;

use tpuflow_ir::DType;
use tpuflow_kernels::{BF16, F16, Float as _};

/// Element type of a user's array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum User {
    Bool,
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F16,
    BF16,
    F32,
    F64,
}

impl User {
    /// The type NumPy calls `name`.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "bool" => Self::Bool,
            "int8" => Self::I8,
            "uint8" => Self::U8,
            "int16" => Self::I16,
            "uint16" => Self::U16,
            "int32" => Self::I32,
            "uint32" => Self::U32,
            "int64" => Self::I64,
            "uint64" => Self::U64,
            "float16" => Self::F16,
            "bfloat16" => Self::BF16,
            "float32" => Self::F32,
            "float64" => Self::F64,
            _ => return None,
        })
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Bool | Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// Smallest number of an integer type.
    fn min_value(self) -> Option<i64> {
        Some(match self {
            Self::I8 => i8::MIN.into(),
            Self::I16 => i16::MIN.into(),
            Self::I32 => i32::MIN.into(),
            Self::I64 => i64::MIN,
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => 0,
            Self::Bool | Self::F16 | Self::BF16 | Self::F32 | Self::F64 => return None,
        })
    }
}

/// The meaning of stored elements.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Meaning {
    /// The numbers themselves, as floats.
    Float,
    /// The integers themselves.
    Integer,
    /// The model's own codes, with this added.
    Codes(i64),
    /// `scale * (code - zero_point)`; one scale or one per channel.
    Scaled(Vec<f32>, i32),
}

impl Meaning {
    /// The meaning of elements of `code` to a model whose elements are `user`'s.
    pub(crate) fn of(user: User, code: DType, quant: Option<&tpuflow_ir::Quant>) -> Self {
        match (quant, user.min_value()) {
            _ if code.is_float() => Self::Float,
            (None, _) => Self::Integer,
            (Some(_), Some(least)) => Self::Codes(code.range().0.wrapping_sub(least)),
            (Some(quant), None) => Self::Scaled(quant.scale.clone(), quant.zero_point),
        }
    }
}

/// Which channel an element of the user's array belongs to: `number / stride % count`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Channel {
    pub(crate) stride: usize,
    pub(crate) count: usize,
}

/// 1.5 * 2^52: a float64 of less than 2^51 added to it loses its fraction, rounded half to even, and shows the integer in its
/// lowest bits.
const INTEGER: f64 = 6_755_399_441_055_744.0;

/// The elements of `$bytes`, numbers of the type `$user`, as a `Vec<$wide>`.
///
/// Code behind the conversion is compiled once for the wide type, not for every pair of types.
macro_rules! widened {
    ($user:expr, $bytes:expr, $wide:ty) => {{
        let bytes: &[u8] = $bytes;
        macro_rules! of {
            ($read:expr) => {
                bytes.as_chunks().0.iter().map(|b| $read(*b) as $wide).collect::<Vec<$wide>>()
            };
        }
        match $user {
            User::Bool => of!(|[b]: [u8; 1]| u8::from(b != 0)),
            User::I8 => of!(i8::from_le_bytes),
            User::U8 => of!(u8::from_le_bytes),
            User::I16 => of!(i16::from_le_bytes),
            User::U16 => of!(u16::from_le_bytes),
            User::I32 => of!(i32::from_le_bytes),
            User::U32 => of!(u32::from_le_bytes),
            User::I64 => of!(i64::from_le_bytes),
            User::U64 => of!(u64::from_le_bytes),
            User::F16 => of!(|b| F16(u16::from_le_bytes(b)).widen()),
            User::BF16 => of!(|b| BF16(u16::from_le_bytes(b)).widen()),
            User::F32 => of!(f32::from_le_bytes),
            User::F64 => of!(f64::from_le_bytes),
        }
    }};
}

/// Stored elements of a user's numbers, in the same order. `Err`: the number of an element that does not fit.
pub(crate) fn to_stored<'a>(
    bytes: &'a [u8],
    user: User,
    code: DType,
    meaning: &Meaning,
    channel: Channel,
) -> Result<Cow<'a, [u8]>, usize> {
    let same = match meaning {
        Meaning::Float => {
            matches!((user, code), (User::F16, DType::F16) | (User::BF16, DType::BF16) | (User::F32, DType::F32))
        }
        Meaning::Integer => matches!(
            (user, code),
            (User::I8 | User::Bool, DType::I8)
                | (User::I16, DType::I16)
                | (User::I32, DType::I32)
                | (User::I64, DType::I64)
        ),
        Meaning::Codes(offset) => *offset == 0 && user.bytes() == code.bytes(),
        Meaning::Scaled(..) => false,
    };
    if same {
        return Ok(Cow::Borrowed(bytes));
    }
    let stored = match meaning {
        Meaning::Float => floats(widened!(user, bytes, f64).into_iter().map(|x| x as f32), code),
        Meaning::Integer => {
            let (lo, hi) = code.range();
            let wide = widened!(user, bytes, i128);
            if let Some(at) = wide.iter().position(|x| !(i128::from(lo)..=i128::from(hi)).contains(x)) {
                return Err(at);
            }
            integers(wide.into_iter().map(|x| x as i64), code)
        }
        Meaning::Codes(-128) if (user, code) == (User::U8, DType::I8) => bytes.iter().map(|b| b ^ 0x80).collect(),
        Meaning::Codes(offset) => {
            integers(widened!(user, bytes, i64).into_iter().map(|x| x.wrapping_add(*offset)), code)
        }
        Meaning::Scaled(scale, zero) => {
            let (lo, hi) = code.range();
            let zero = i64::from(*zero);
            let (least, most) = ((lo - zero) as f64, (hi - zero) as f64);
            // Clamping to integers before rounding equals clamping afterwards. Comparisons are written as the processor has
            // them, so that the loop over float32 becomes vector instructions.
            let nearest = move |x: f64, scale: f64| -> i32 {
                let quotient = if x.is_nan() { 0.0 } else { x } / scale;
                let low = if quotient > least { quotient } else { least };
                let kept = if low < most { low } else { most };
                (kept + INTEGER).to_bits() as i32
            };
            let rounded = move |x: f64, scale: f64| i64::from(nearest(x, scale)) + zero;
            if let [scale] = scale[..] {
                let scale = f64::from(scale);
                if user == User::F32 && code.is_code() {
                    let (singles, zero) = (bytes.as_chunks().0, zero as i32);
                    let codes = singles.iter().map(|b| nearest(f32::from_le_bytes(*b).into(), scale) + zero);
                    return Ok(Cow::Owned(match code {
                        DType::I8 => codes.map(|q| q as u8).collect(),
                        _ => bytes_of(codes.map(|q| (q as i16).to_le_bytes())),
                    }));
                }
                integers(widened!(user, bytes, f64).into_iter().map(|x| rounded(x, scale)), code)
            } else {
                let numbers = widened!(user, bytes, f64).into_iter().enumerate();
                integers(numbers.map(|(n, x)| rounded(x, scale_of(scale, channel, n))), code)
            }
        }
    };
    Ok(Cow::Owned(stored))
}

/// A user's numbers of stored elements, in the same order.
pub(crate) fn from_stored<'a>(
    bytes: Cow<'a, [u8]>,
    user: User,
    code: DType,
    meaning: &Meaning,
    channel: Channel,
) -> Cow<'a, [u8]> {
    let stored = match code {
        DType::I8 => User::I8,
        DType::I16 => User::I16,
        DType::I32 => User::I32,
        DType::I64 => User::I64,
        DType::F16 => User::F16,
        DType::BF16 => User::BF16,
        DType::F32 => User::F32,
    };
    let numbers = match meaning {
        Meaning::Float | Meaning::Integer if user == stored => return bytes,
        Meaning::Codes(0) if user.bytes() == stored.bytes() => return bytes,
        Meaning::Float => float_bytes(widened!(stored, &bytes, f64).into_iter(), user),
        Meaning::Integer if user.min_value().is_none() => float_bytes(widened!(stored, &bytes, f64).into_iter(), user),
        Meaning::Integer => integer_bytes(widened!(stored, &bytes, i64).into_iter(), user),
        Meaning::Codes(-128) if (user, code) == (User::U8, DType::I8) => bytes.iter().map(|b| b ^ 0x80).collect(),
        Meaning::Codes(offset) => {
            integer_bytes(widened!(stored, &bytes, i64).into_iter().map(|x| x.wrapping_sub(*offset)), user)
        }
        Meaning::Scaled(scale, zero) => {
            let zero = i64::from(*zero);
            let real = |x: i64, scale: f64| (x - zero) as i32 as f64 * scale;
            if let [scale] = scale[..] {
                let scale = f64::from(scale);
                let single = |q: i32| ((f64::from(q - zero as i32) * scale) as f32).to_le_bytes();
                match (user, code) {
                    (User::F32, DType::I8) => bytes_of(bytes.iter().map(|&b| single(b.cast_signed().into()))),
                    (User::F32, DType::I16) => {
                        bytes_of(bytes.as_chunks().0.iter().map(|b| single(i16::from_le_bytes(*b).into())))
                    }
                    _ => float_bytes(widened!(stored, &bytes, i64).into_iter().map(|x| real(x, scale)), user),
                }
            } else {
                let numbers = widened!(stored, &bytes, i64).into_iter().enumerate();
                float_bytes(numbers.map(|(n, x)| real(x, scale_of(scale, channel, n))), user)
            }
        }
    };
    Cow::Owned(numbers)
}

fn scale_of(scale: &[f32], channel: Channel, number: usize) -> f64 {
    f64::from(scale.get(number / channel.stride % channel.count).copied().unwrap_or(1.0))
}

fn bytes_of<const S: usize>(elements: impl Iterator<Item = [u8; S]>) -> Vec<u8> {
    let chunks: Vec<[u8; S]> = elements.collect();
    chunks.into_flattened()
}

fn floats(numbers: impl Iterator<Item = f32>, code: DType) -> Vec<u8> {
    match code {
        DType::F16 => bytes_of(numbers.map(|x| F16::nearest_single(x).0.to_le_bytes())),
        DType::BF16 => bytes_of(numbers.map(|x| BF16::nearest_single(x).0.to_le_bytes())),
        _ => bytes_of(numbers.map(f32::to_le_bytes)),
    }
}

fn integers(numbers: impl Iterator<Item = i64>, code: DType) -> Vec<u8> {
    match code {
        DType::I8 => numbers.map(|x| x as u8).collect(),
        DType::I16 => bytes_of(numbers.map(|x| (x as i16).to_le_bytes())),
        DType::I32 => bytes_of(numbers.map(|x| (x as i32).to_le_bytes())),
        _ => bytes_of(numbers.map(i64::to_le_bytes)),
    }
}

/// Integers as a user's integers (or truth values).
fn integer_bytes(numbers: impl Iterator<Item = i64>, user: User) -> Vec<u8> {
    match user {
        User::Bool => numbers.map(|x| u8::from(x != 0)).collect(),
        User::I16 | User::U16 | User::F16 | User::BF16 => bytes_of(numbers.map(|x| (x as i16).to_le_bytes())),
        User::I32 | User::U32 | User::F32 => bytes_of(numbers.map(|x| (x as i32).to_le_bytes())),
        User::I64 | User::U64 | User::F64 => bytes_of(numbers.map(i64::to_le_bytes)),
        User::I8 | User::U8 => numbers.map(|x| x as u8).collect(),
    }
}

/// Real numbers as a user's floats, rounded once (integers: towards zero).
fn float_bytes(numbers: impl Iterator<Item = f64>, user: User) -> Vec<u8> {
    match user {
        User::Bool => numbers.map(|x| u8::from(x != 0.0)).collect(),
        User::F16 => bytes_of(numbers.map(|x| F16::nearest(x).0.to_le_bytes())),
        User::BF16 => bytes_of(numbers.map(|x| BF16::nearest(x).0.to_le_bytes())),
        User::F32 => bytes_of(numbers.map(|x| (x as f32).to_le_bytes())),
        User::F64 => bytes_of(numbers.map(f64::to_le_bytes)),
        _ => integer_bytes(numbers.map(|x| x as i64), user),
    }
}
