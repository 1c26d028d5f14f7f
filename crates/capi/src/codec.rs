//! Inputs and outputs of a program: ports described, arrays packed into words and back.

use std::ffi::{CString, c_char};

use serde::Deserialize;
use tpuflow_ir::Image;
use tpuflow_runtime::{Codec, Port};

use crate::memory::{fill, free, give, path, shared, slice};
use crate::status::{Failure, guard, tpuflow_status};

/// Version of the file form of codecs.
const FORMAT: u32 = 1;

/// Element types.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, missing_docs, reason = "names are those of C, and say it all")]
pub enum tpuflow_dtype {
    Bool = 0,
    Int8 = 1,
    Uint8 = 2,
    Int16 = 3,
    Uint16 = 4,
    Int32 = 5,
    Uint32 = 6,
    Int64 = 7,
    Uint64 = 8,
    Float16 = 9,
    Bfloat16 = 10,
    Float32 = 11,
    Float64 = 12,
}

/// An input or output. All pointers live as long as the codec.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "names are those of C")]
pub struct tpuflow_port {
    /// Name in the model, UTF-8.
    pub name: *const c_char,
    /// Shape in the model: `rank` numbers.
    pub shape: *const usize,
    /// Number of axes.
    pub rank: usize,
    /// Element type in the model.
    pub dtype: tpuflow_dtype,
    /// Element type on the device.
    pub stored_dtype: tpuflow_dtype,
    /// `x = scale * (q - zero_point)`: one scale, or one per channel; none for indices, floats and words.
    pub scale: *const f32,
    /// Number of scales.
    pub scales: usize,
    /// Code of real zero.
    pub zero_point: i32,
    /// Bytes of the model's array.
    pub array_bytes: usize,
    /// Bytes of its cache words.
    pub words_bytes: usize,
    /// Bytes of one cache word.
    pub cache_word_length: usize,
}

/// Packs arrays into cache words and unpacks them.
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "names are those of C")]
pub struct tpuflow_codec {
    codec: Codec,
    inputs: Vec<CString>,
    outputs: Vec<CString>,
}

impl tpuflow_codec {
    pub(crate) fn new(codec: Codec) -> Self {
        let names = |ports: &[Port]| {
            ports.iter().map(|port| CString::new(port.name.replace('\0', "")).unwrap_or_default()).collect()
        };
        Self { inputs: names(&codec.inputs), outputs: names(&codec.outputs), codec }
    }
}

#[derive(Deserialize)]
struct File {
    format: u32,
    metadata: String,
}

fn read(path: &std::path::Path) -> Result<Codec, Failure> {
    let fail = |reason: String| Failure(tpuflow_status::File, format!("{}: {reason}", path.display()));
    let text = Image::read(path).map_err(|error| fail(format!("cannot be read: {error}")))?;
    let file: File = serde_json::from_slice(&text).map_err(|_| fail("not a codec, or cut short".to_owned()))?;
    if file.format != FORMAT {
        let age = if file.format > FORMAT { "newer" } else { "older" };
        let remedy = "write it again with `tpuflow raw --codec` of this version";
        let reason =
            format!("format {} of a codec is {age} than this build, which reads {FORMAT}: {remedy}", file.format);
        return Err(fail(reason));
    }
    let program: tpuflow_ir::Program =
        serde_json::from_str(&file.metadata).map_err(|error| fail(format!("not a codec: {error}")))?;
    program.machine.validate().map_err(|reason| fail(format!("its machine: {reason}")))?;
    Codec::new(&program).map_err(|error| fail(error.to_string()))
}

fn dtype(name: &str) -> Result<tpuflow_dtype, Failure> {
    use tpuflow_dtype as T;
    Ok(match name {
        "bool" => T::Bool,
        "int8" => T::Int8,
        "uint8" => T::Uint8,
        "int16" => T::Int16,
        "uint16" => T::Uint16,
        "int32" => T::Int32,
        "uint32" => T::Uint32,
        "int64" => T::Int64,
        "uint64" => T::Uint64,
        "float16" => T::Float16,
        "bfloat16" => T::Bfloat16,
        "float32" => T::Float32,
        "float64" => T::Float64,
        _ => return Err(Failure(tpuflow_status::Data, format!("element type {name} has no name in C"))),
    })
}

fn element_at<'a, T>(all: &'a [T], number: usize, what: &str) -> Result<&'a T, Failure> {
    let none = || Failure(tpuflow_status::Argument, format!("there is no {what} {number}, there are {}", all.len()));
    all.get(number).ok_or_else(none)
}

fn describe_port(port: &Port, name: &CString) -> Result<tpuflow_port, Failure> {
    Ok(tpuflow_port {
        name: name.as_ptr(),
        shape: port.shape.as_ptr(),
        rank: port.shape.len(),
        dtype: dtype(&port.dtype)?,
        stored_dtype: dtype(port.stored.name())?,
        scale: port.scale.as_ptr(),
        scales: port.scale.len(),
        zero_point: port.zero_point,
        array_bytes: port.user_bytes(),
        words_bytes: port.word_bytes(),
        cache_word_length: port.word,
    })
}

/// Loads the codec of a raw program, as `tpuflow raw --codec` writes it. Free it with tpuflow_codec_free.
///
/// # Safety
/// `path` is a string; `codec` leads to room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpuflow_codec_load(path: *const c_char, codec: *mut *mut tpuflow_codec) -> tpuflow_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let found = read(unsafe { self::path(path) }?)?;
        let found = Box::new(tpuflow_codec::new(found));
        if codec.is_null() {
            return Err(Failure(tpuflow_status::Argument, "codec is null".to_owned()));
        }
        // SAFETY: the caller's promise.
        unsafe { give(codec, "codec", Box::into_raw(found)) }
    })
}

/// Frees a codec that tpuflow_codec_load gave; null is nothing.
///
/// # Safety
/// `codec` came from `tpuflow_codec_load`, is freed once, and nobody uses it or its ports any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpuflow_codec_free(codec: *mut tpuflow_codec) {
    guard(|| {
        // SAFETY: the caller's promise.
        unsafe { free(codec) };
        Ok(())
    });
}

/// Number of inputs; 0 of null.
///
/// # Safety
/// `codec` is a codec or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpuflow_codec_inputs(codec: *const tpuflow_codec) -> usize {
    // SAFETY: the caller's promise.
    unsafe { codec.as_ref() }.map_or(0, |codec| codec.inputs.len())
}

/// Number of outputs; 0 of null.
///
/// # Safety
/// `codec` is a codec or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpuflow_codec_outputs(codec: *const tpuflow_codec) -> usize {
    // SAFETY: the caller's promise.
    unsafe { codec.as_ref() }.map_or(0, |codec| codec.outputs.len())
}

/// Describes an input, in the model's order.
///
/// # Safety
/// `codec` is a codec; `port` leads to room for a port.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpuflow_codec_input(
    codec: *const tpuflow_codec,
    number: usize,
    port: *mut tpuflow_port,
) -> tpuflow_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let codec = unsafe { shared(codec, "codec") }?;
        let found = element_at(&codec.codec.inputs, number, "input")?;
        // SAFETY: the caller's promise.
        unsafe { give(port, "port", describe_port(found, &codec.inputs[number])?) }
    })
}

/// Describes an output, in the model's order.
///
/// # Safety
/// `codec` is a codec; `port` leads to room for a port.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpuflow_codec_output(
    codec: *const tpuflow_codec,
    number: usize,
    port: *mut tpuflow_port,
) -> tpuflow_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let codec = unsafe { shared(codec, "codec") }?;
        let found = element_at(&codec.codec.outputs, number, "output")?;
        // SAFETY: the caller's promise.
        unsafe { give(port, "port", describe_port(found, &codec.outputs[number])?) }
    })
}

/// Packs the array of an input into cache words: scales, casts, pads.
///
/// # Safety
/// `codec` is a codec; `array` leads to `array_bytes` bytes, `words` to `words_bytes` that nobody else uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpuflow_codec_pack(
    codec: *const tpuflow_codec,
    input: usize,
    array: *const u8,
    array_bytes: usize,
    words: *mut u8,
    words_bytes: usize,
) -> tpuflow_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let port = element_at(&unsafe { shared(codec, "codec") }?.codec.inputs, input, "input")?;
        // SAFETY: the caller's promise.
        let packed = port.pack(unsafe { slice(array, array_bytes, "array") }?)?;
        // SAFETY: the caller's promise.
        unsafe { fill(words, words_bytes, &packed, &format!("words of input \"{}\"", port.name)) }
    })
}

/// Takes the array of an output out of cache words: drops the padding, scales, casts.
///
/// # Safety
/// `codec` is a codec; `words` leads to `words_bytes` bytes, `array` to `array_bytes` that nobody else uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tpuflow_codec_unpack(
    codec: *const tpuflow_codec,
    output: usize,
    words: *const u8,
    words_bytes: usize,
    array: *mut u8,
    array_bytes: usize,
) -> tpuflow_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let port = element_at(&unsafe { shared(codec, "codec") }?.codec.outputs, output, "output")?;
        // SAFETY: the caller's promise.
        let found = port.unpack(unsafe { slice(words, words_bytes, "words") }?)?;
        // SAFETY: the caller's promise.
        unsafe { fill(array, array_bytes, &found, &format!("array of output \"{}\"", port.name)) }
    })
}
