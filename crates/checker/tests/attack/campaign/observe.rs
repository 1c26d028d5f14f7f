//! What a program computes, as its user sees it: the numbers of its outputs by name, in the model's layout, for five inputs; of
//! programs with states at five positions.

use std::sync::Arc;

use tpuflow_ir::{DType, Port, Program, Source};
use tpuflow_simulator::{Options, Serial, simulate};

use super::programs::{Random, float_bytes};

/// Inputs and outputs of a program, and what they mean.
pub struct Observer {
    program: Program,
    /// Codes by run and input.
    inputs: Vec<Vec<Vec<u8>>>,
    /// Codes by run and output.
    outputs: Vec<Vec<Vec<u8>>>,
}

/// What a program does that the sound one does not.
pub type Difference = String;

/// Runs of every program.
pub const RUNS: usize = 5;

impl Observer {
    /// Of a sound program. `rows` are those of the smallest table that indices look into.
    pub fn new(program: &Program, rows: i64) -> Result<Self, String> {
        let mut random = Random(77);
        let inputs: Vec<Vec<Vec<u8>>> = (0..RUNS)
            .map(|run| program.inputs.iter().map(|port| codes(port, run, rows, &mut random)).collect())
            .collect();
        let serial = serial(program)?;
        let run = |(n, codes): (usize, &Vec<Vec<u8>>)| {
            let own = placed(&serial, program, n).run(codes);
            own.map(|run| run.0).map_err(|error| error.to_string())
        };
        let outputs = inputs.iter().enumerate().map(run).collect::<Result<_, _>>()?;
        Ok(Self { program: program.clone(), inputs, outputs })
    }

    /// How a program differs from the sound one in what it computes, if it does; `timed`: also in which of its instructions
    /// may meet. Of the inputs `runs` are tried.
    pub fn difference(&self, program: &Program, timed: bool, runs: usize) -> Option<Difference> {
        self.compare(program, runs).err().or_else(|| if timed { hazard(program) } else { None })
    }

    fn compare(&self, program: &Program, runs: usize) -> Result<(), Difference> {
        let sound = &self.inputs[..runs];
        let inputs = if same_meaning(&program.inputs, &self.program.inputs) {
            None
        } else {
            Some(sound.iter().map(|codes| self.translated(program, codes)).collect::<Result<Vec<_>, _>>()?)
        };
        let alike = same_meaning(&program.outputs, &self.program.outputs);
        if program.outputs.len() != self.program.outputs.len() {
            return Err(format!("{} outputs", program.outputs.len()));
        }
        let serial = serial(program)?;
        for (n, (codes, sound)) in inputs.as_deref().unwrap_or(sound).iter().zip(&self.outputs).enumerate() {
            let (own, _) = placed(&serial, &self.program, n).run(codes).map_err(|error| error.to_string())?;
            for (i, (port, codes)) in program.outputs.iter().zip(&own).enumerate() {
                let same = if alike {
                    *codes == sound[i]
                } else {
                    let other = &self.program.outputs[i];
                    port.name == other.name
                        && identity(port) == identity(other)
                        && numbers(port, codes) == numbers(other, &sound[i])
                };
                if !same {
                    return Err(format!("run {n}: output {i} \"{}\" differs", port.name));
                }
            }
        }
        Ok(())
    }

    /// The numbers of the sound program's inputs as codes of another one, found by their names.
    fn translated(&self, program: &Program, codes: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, Difference> {
        let one = |port: &Port| {
            let known = self.program.inputs.iter().position(|own| own.name == port.name);
            let at = known.ok_or_else(|| format!("no input was called \"{}\"", port.name))?;
            let sound = &self.program.inputs[at];
            if identity(port) != identity(sound) {
                return Err(format!("input \"{}\" is of another model's tensor", port.name));
            }
            encode(port, &numbers(sound, &codes[at]).ok_or("an input without numbers")?)
                .ok_or_else(|| format!("input \"{}\" cannot hold its numbers", port.name))
        };
        if program.inputs.len() != self.program.inputs.len() {
            return Err(format!("{} inputs", program.inputs.len()));
        }
        program.inputs.iter().map(one).collect()
    }
}

fn same_meaning(a: &[Port], b: &[Port]) -> bool {
    let meaning = |port: &Port| Port {
        view: tpuflow_ir::View { address: 0, space: tpuflow_ir::Space::Cache, ..port.view },
        ..port.clone()
    };
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b || meaning(a) == meaning(b))
}

/// What a user finds a port by.
fn identity(port: &Port) -> Option<(&str, &[usize], &str)> {
    port.source.as_ref().map(|source| (&*source.name, &*source.shape, &*source.dtype))
}

/// A program to be run in serial order.
fn serial(program: &Program) -> Result<Serial, String> {
    Serial::new(Arc::new(program.clone())).map_err(|error| error.to_string())
}

/// A program to be run the time `n`: each at another position, the first as it stands.
fn placed(serial: &Serial, sound: &Program, n: usize) -> Serial {
    let last = sound.last_position().filter(|_| n > 0);
    last.map_or_else(|| serial.clone(), |last| serial.at([last, 0, last / 2, last.saturating_sub(1), last.min(1)][n]))
}

/// Instructions that meet, on the machine itself and on ones whose lines or units are slow.
fn hazard(program: &Program) -> Option<Difference> {
    let options = Options { values: false, ..Options::default() };
    let slow = |change: fn(&mut tpuflow_ir::Machine)| {
        let mut slow = program.clone();
        change(&mut slow.machine);
        slow
    };
    let lines = slow(|machine| machine.dma.latency += 20_000);
    let units = slow(|machine| (machine.ewp.start, machine.pdp.start) = (20_000, 20_000));
    let array = slow(|machine| machine.array.setup += 20_000);
    [program, &lines, &units, &array]
        .into_iter()
        .find_map(|program| simulate(program, &[], &options).err())
        .map(|error| error.to_string())
}

/// Codes of a port: random, extreme, the batch's entries alike and unlike.
fn codes(port: &Port, run: usize, rows: i64, random: &mut Random) -> Vec<u8> {
    let (lo, hi) = match port.dtype {
        DType::I32 => (0, rows - 1),
        dtype if dtype.is_float() => (-255, 255),
        dtype => dtype.range(),
    };
    let count: usize = port.shape.iter().product();
    let entry = count / port.shape.first().copied().unwrap_or(1).max(1);
    let mut bytes = Vec::new();
    for n in 0..count {
        let any = random.range(lo, hi);
        let code = match run {
            0 | 1 => any,
            2 => {
                if random.chance(50) {
                    lo
                } else {
                    hi
                }
            }
            3 => {
                if (n / entry.max(1)).is_multiple_of(2) {
                    any
                } else {
                    lo
                }
            }
            _ => lo + (n as i64 * 7) % (hi - lo + 1),
        };
        if port.dtype.is_float() {
            bytes.extend(float_bytes(port.dtype, code as f32 / 64.0));
        } else {
            bytes.extend_from_slice(&code.to_le_bytes()[..port.dtype.bytes()]);
        }
    }
    bytes
}

/// What codes mean: numbers in the order of the model's tensor. `None`: nothing.
fn numbers(port: &Port, codes: &[u8]) -> Option<Vec<u64>> {
    let size = port.dtype.bytes();
    let (scale, zero) = match &port.quant {
        Some(quant) => (f64::from(*quant.scale.first()?), i64::from(quant.zero_point)),
        None => (1.0, 0),
    };
    if codes.len() != size * port.shape.iter().product::<usize>() {
        return None;
    }
    let number = |code: &[u8]| match port.dtype {
        DType::F32 => f64::from(f32::from_le_bytes(code.try_into().unwrap_or_default())),
        // Other floats are told apart by their bits.
        dtype if dtype.is_float() => f64::from(u16::from_le_bytes(code.try_into().unwrap_or_default())),
        _ => {
            let negative = code.last().is_some_and(|&top| top >= 0x80);
            let mut wide = if negative { [0xff; 8] } else { [0; 8] };
            wide[..size].copy_from_slice(code);
            (i64::from_le_bytes(wide) - zero) as f64 * scale
        }
    };
    let order = model_order(port)?;
    Some(order.into_iter().map(|at| number(&codes[at * size..][..size]).to_bits()).collect())
}

/// Codes of numbers in the model's order; the inverse of [`numbers`].
fn encode(port: &Port, numbers: &[u64]) -> Option<Vec<u8>> {
    let size = port.dtype.bytes();
    let (scale, zero) = match &port.quant {
        Some(quant) => (f64::from(*quant.scale.first()?), f64::from(quant.zero_point)),
        None => (1.0, 0.0),
    };
    let (lo, hi) = if port.dtype.is_float() { (0, 0) } else { port.dtype.range() };
    let order = model_order(port)?;
    let mut codes = vec![0; order.len() * size];
    if order.len() != numbers.len() {
        return None;
    }
    for (at, &number) in order.into_iter().zip(numbers) {
        let number = f64::from_bits(number);
        let code = match port.dtype {
            DType::F32 => u64::from((number as f32).to_bits()),
            dtype if dtype.is_float() => number as u64,
            _ => ((number / scale).round_ties_even() + zero).clamp(lo as f64, hi as f64) as i64 as u64,
        };
        codes[at * size..][..size].copy_from_slice(&code.to_le_bytes()[..size]);
    }
    Some(codes)
}

/// For every element of the model's tensor, in its order, the place of its code.
fn model_order(port: &Port) -> Option<Vec<usize>> {
    let count = port.shape.iter().product();
    let Some(Source { shape, permutation, .. }) = &port.source else { return Some((0..count).collect()) };
    let mut sorted = permutation.clone();
    sorted.sort_unstable();
    if !sorted.iter().copied().eq(0..shape.len()) || shape.iter().product::<usize>() != count {
        return None;
    }
    let mut order = vec![0; count];
    for own in 0..count {
        // Coordinates along the model's axes: own axis `i` is the model's axis `permutation[i]`.
        let mut rest = own;
        let mut along = vec![0; shape.len()];
        for &axis in permutation.iter().rev() {
            along[axis] = rest % shape[axis];
            rest /= shape[axis];
        }
        let place = along.iter().zip(shape).fold(0, |at, (&i, &extent)| at * extent + i);
        order[place] = own;
    }
    Some(order)
}
