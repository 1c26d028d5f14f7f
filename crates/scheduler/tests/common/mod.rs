//! Small quantised graphs for tests: one method per operator, parameters drawn from a seed, and whole random networks.
#![allow(dead_code, clippy::unwrap_used, reason = "shared by several test files, each of which uses a part")]

mod machines;
mod moves;
pub mod operators;
mod packed;
mod random;
mod tables;
pub mod wild;

use tpuflow_ir::function::Step;
use tpuflow_ir::graph::GraphBuilder;
use tpuflow_ir::op::{Average, Divisor, Exponentials, FloatNorm, FloatReduction, FloatSlopes, Norm, Slopes};
use tpuflow_ir::{
    Arithmetic, BinaryKind, DType, Epilogue, Finish, Function, Graph, LinearTap, Machine, Op, Quant, Real, ReduceKind,
    Requant, TableEntry, Tensor, TensorId, Window,
};

#[allow(unused_imports, reason = "not every test file draws machines")]
pub use machines::*;
#[allow(unused_imports, reason = "not every test file draws whole networks")]
pub use random::*;

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn range(&mut self, low: i64, high: i64) -> i64 {
        low + (self.next() % (high - low + 1) as u64) as i64
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// A graph under construction.
pub struct Net {
    pub builder: GraphBuilder,
    pub random: Random,
    count: usize,
    /// Activations are int16.
    pub wide: bool,
    /// Activations are floats of this type.
    pub float: Option<DType>,
    /// Layers draw whether their results are int16.
    mixed: bool,
    /// All elements of a constant are its first.
    alike: bool,
}

impl Net {
    pub fn new(seed: u64) -> Self {
        let builder = GraphBuilder::new("net");
        Self { builder, random: Random(seed), count: 0, wide: false, mixed: false, float: None, alike: false }
    }

    fn name(&mut self, what: &str) -> String {
        self.count += 1;
        format!("{what}{}", self.count)
    }

    /// Lets every fourth network of integers have results of 8 and of 16 bits.
    fn mix(&mut self, seed: u64) {
        self.mixed = seed % 4 == 3 && self.float.is_none();
    }

    /// Draws the element type of the next results.
    fn draw_type(&mut self) {
        if self.mixed {
            self.wide = self.random.chance(50);
        }
    }

    fn dtype(&self) -> DType {
        self.float.unwrap_or(if self.wide { DType::I16 } else { DType::I8 })
    }

    /// A finish: sometimes a function (`x * sigmoid(x)`), sometimes a clamp.
    fn finish_of(&mut self) -> Finish {
        let function = self.random.chance(30).then(|| {
            let steps =
                vec![Step::Neg(0), Step::Exp(1), Step::Constant(Real::new(1.0)), Step::Add(3, 2), Step::Div(0, 4)];
            Function { steps }
        });
        let clamp = self.random.chance(30);
        Finish { function, lo: clamp.then(|| Real::new(-1.5)), hi: clamp.then(|| Real::new(6.0)) }
    }

    /// A single multiplier, or how floats finish.
    fn ending(&mut self, low_shift: i64) -> Arithmetic<Requant> {
        if self.float.is_some() {
            Arithmetic::Float(self.finish_of())
        } else {
            Arithmetic::Fixed(self.requant(1, self.dtype(), low_shift))
        }
    }

    fn number(&mut self, low: i64, high: i64) -> Real {
        Real::new(self.random.range(low, high) as f64 / 8.0)
    }

    pub fn shape(&self, id: TensorId) -> Vec<usize> {
        self.builder.peek(id).unwrap().shape.clone()
    }

    fn dtype_of(&self, id: TensorId) -> DType {
        self.builder.peek(id).unwrap().dtype
    }

    fn tensor(&mut self, name: &str, shape: &[usize], dtype: DType) -> Tensor {
        let zero_point = self.random.range(-20, 20) as i32;
        let quant = (!dtype.is_float()).then(|| Quant { scale: vec![0.05], zero_point });
        Tensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            dtype,
            quant,
            source: None,
            constant: None,
            packed: None,
        }
    }

    pub fn input(&mut self, shape: &[usize]) -> TensorId {
        let name = self.name("input");
        let tensor = self.tensor(&name, shape, self.dtype());
        self.builder.input(tensor).unwrap()
    }

    pub fn constant(&mut self, shape: &[usize], dtype: DType, low: i64, high: i64) -> TensorId {
        let name = self.name("constant");
        let mut tensor = self.tensor(&name, shape, dtype);
        if matches!(dtype, DType::I32 | DType::I64) {
            tensor.quant = None;
        } else if let Some(quant) = &mut tensor.quant {
            quant.zero_point = if self.random.chance(70) { 0 } else { quant.zero_point };
        }
        let (mut bytes, mut first) = (Vec::new(), None);
        for _ in 0..tensor.elements() {
            let drawn = self.random.range(low, high);
            let value = if self.alike { *first.get_or_insert(drawn) } else { drawn };
            if dtype.is_float() {
                bytes.extend(float_bytes(dtype, (value % 256) as f32 / 64.0));
            } else {
                bytes.extend_from_slice(&value.to_le_bytes()[..dtype.bytes()]);
            }
        }
        tensor.constant = Some(bytes.into());
        self.builder.constant(tensor).unwrap()
    }

    pub fn requant(&mut self, channels: usize, dtype: DType, low_shift: i64) -> Requant {
        let per_channel = channels > 1 && self.random.chance(50);
        let count = if per_channel { channels } else { 1 };
        let multiplier = (0..count).map(|_| self.random.range(1, 32767) as i32).collect();
        let shift = (0..count).map(|_| self.random.range(low_shift, low_shift + 4) as i8).collect();
        let (lo, hi) = dtype.range();
        Requant { multiplier, shift, zero_point: self.random.range(-9, 9) as i32, lo: lo as i32, hi: hi as i32 }
    }

    fn layer(&mut self, what: &str, op: Op, shape: &[usize], dtype: DType) -> TensorId {
        let name = self.name(what);
        let output = self.tensor(&format!("{name}:0"), shape, dtype);
        self.builder.layer(&name, op, output, vec![name.clone()]).unwrap()
    }

    /// As [`Self::layer`] where the output has the operand's quantisation.
    fn same(&mut self, what: &str, op: Op, shape: &[usize], like: TensorId) -> TensorId {
        let name = self.name(what);
        let (dtype, quant) = (self.dtype_of(like), self.builder.peek(like).unwrap().quant.clone());
        let mut output = self.tensor(&format!("{name}:0"), shape, dtype);
        output.quant = quant;
        self.builder.layer(&name, op, output, vec![name.clone()]).unwrap()
    }

    /// Of sums of scale `2^-shift`, of `wide` operands or not.
    fn epilogue(&mut self, channels: usize, dtype: DType, shift: i64, wide: bool) -> Arithmetic<Epilogue> {
        if self.float.is_some() {
            return Arithmetic::Float(self.finish_of());
        }
        let first = (wide && channels % 3 == 1).then(|| shift.min(channels as i64 % 17));
        let (first_shift, shift) = (first.map(|first| first as u8), shift - first.unwrap_or(0));
        if self.random.chance(20) {
            let requant = self.requant(channels, DType::I16, shift - 8);
            let table = Some(self.table(16, dtype));
            Arithmetic::Fixed(Epilogue { first_shift, requant, table })
        } else {
            Arithmetic::Fixed(Epilogue { first_shift, requant: self.requant(channels, dtype, shift), table: None })
        }
    }

    fn weights(&mut self, shape: &[usize]) -> (TensorId, DType) {
        let dtype = if self.wide && self.random.chance(70) { DType::I16 } else { DType::I8 };
        let dtype = self.float.unwrap_or(dtype);
        let (low, high) = if dtype.is_float() { (-60, 60) } else { dtype.range() };
        (self.constant(shape, dtype, low, high), dtype)
    }

    fn bias(&mut self, channels: usize, x: DType, w: DType) -> TensorId {
        let dtype = if x == DType::I8 && w == DType::I8 { DType::I32 } else { DType::I64 };
        let dtype = if x.is_float() { DType::F32 } else { dtype };
        self.constant(&[channels], dtype, -5000, 5000)
    }

    pub fn conv(&mut self, input: TensorId, out: usize, window: Window, groups: usize) -> TensorId {
        let x = self.shape(input);
        let [kh, kw] = window.kernel.map(|k| k as usize);
        let (weights, dtype) = self.weights(&[out, kh, kw, x[3] / groups]);
        let bias = self.bias(out, self.dtype_of(input), dtype);
        let [h, w] = window.output(x[1], x[2]).unwrap();
        let bits = 7 * self.dtype_of(input).bytes() + 8 * dtype.bytes();
        let wide = DType::I16 == dtype || DType::I16 == self.dtype_of(input);
        let epilogue = self.epilogue(out, self.dtype(), 7 + bits as i64, wide);
        let op = Op::Conv { input, weights, bias, window, groups: groups as u32, epilogue };
        self.layer("conv", op, &[x[0], h, w, out], self.dtype())
    }

    pub fn matmul(&mut self, a: TensorId, n: usize) -> TensorId {
        let mut shape = self.shape(a);
        let k = *shape.last().unwrap();
        let (b, dtype) = self.weights(&[k, n]);
        let bias = Some(self.bias(n, self.dtype_of(a), dtype));
        let wide = DType::I16 == dtype || DType::I16 == self.dtype_of(a);
        let epilogue = self.epilogue(n, self.dtype(), 22, wide);
        *shape.last_mut().unwrap() = n;
        self.layer("matmul", Op::MatMul { a, b, bias, epilogue, partial: false }, &shape, self.dtype())
    }

    pub fn product(&mut self, a: TensorId, b: TensorId) -> TensorId {
        let mut shape = self.shape(a);
        *shape.last_mut().unwrap() = *self.shape(b).last().unwrap();
        let wide = DType::I16 == self.dtype_of(a) || DType::I16 == self.dtype_of(b);
        let epilogue = self.epilogue(*shape.last().unwrap(), self.dtype(), 22, wide);
        self.layer("product", Op::MatMul { a, b, bias: None, epilogue, partial: false }, &shape, self.dtype())
    }

    pub fn max_pool(&mut self, input: TensorId, window: Window) -> TensorId {
        let x = self.shape(input);
        let [h, w] = window.output(x[1], x[2]).unwrap();
        self.same("max_pool", Op::MaxPool { input, window }, &[x[0], h, w, x[3]], input)
    }

    pub fn average_pool(&mut self, input: TensorId, window: Window, count_include_pad: bool) -> TensorId {
        let x = self.shape(input);
        let [h, w] = window.output(x[1], x[2]).unwrap();
        let most = window.kernel[0] * window.kernel[1];
        let divisor = |area: u32| {
            let (multiplier, shift) = tpuflow_ir::quant::approximate(0.9 / f64::from(area), 15, 47).unwrap();
            Divisor { area, multiplier, shift }
        };
        let fixed = Average {
            divisors: (1..=most).map(divisor).collect(),
            zero_point: 3,
            lo: self.dtype().range().0 as i32,
            hi: self.dtype().range().1 as i32,
        };
        let average = if self.float.is_some() { Arithmetic::Float(self.finish_of()) } else { Arithmetic::Fixed(fixed) };
        let op = Op::AveragePool { input, window, count_include_pad, beyond: [0, 0], average };
        self.layer("average_pool", op, &[x[0], h, w, x[3]], self.dtype())
    }

    pub fn binary(&mut self, kind: BinaryKind, a: TensorId, b: TensorId) -> TensorId {
        let shape = tpuflow_ir::shape::broadcast(&self.shape(a), &self.shape(b)).unwrap();
        if kind.compares() && self.float.is_some() {
            let requant = Arithmetic::Float(Finish::default());
            return self.layer("compare", Op::Binary { kind, a, b, ka: 1, kb: 1, requant }, &shape, DType::I8);
        }
        let plain = self.float.is_some() || matches!(kind, BinaryKind::Mul | BinaryKind::Div);
        let factor = |random: &mut Random| if plain { 1 } else { random.range(1, 255) as i32 };
        let (ka, kb) = (factor(&mut self.random), factor(&mut self.random));
        let shift = if kind == BinaryKind::Div { 10 } else { 20 };
        let requant = self.ending(shift);
        self.layer("binary", Op::Binary { kind, a, b, ka, kb, requant }, &shape, self.dtype())
    }

    pub fn unary(&mut self, input: TensorId) -> TensorId {
        let shape = self.shape(input);
        let function = if self.float.is_some() {
            let steps = vec![Step::Abs(0), Step::Log1P(1), Step::Sin(0), Step::Sub(2, 3)];
            Arithmetic::Float(Finish { function: Some(Function { steps }), ..self.finish_of() })
        } else {
            let bits = self.dtype_of(input).bits();
            Arithmetic::Fixed(self.table(bits, self.dtype()))
        };
        self.layer("unary", Op::Unary { input, function }, &shape, self.dtype())
    }

    pub fn rescale(&mut self, input: TensorId) -> TensorId {
        let requant = self.ending(14);
        let shape = self.shape(input);
        self.layer("rescale", Op::Rescale { input, requant }, &shape, self.dtype())
    }

    pub fn prelu(&mut self, input: TensorId) -> TensorId {
        let shape = self.shape(input);
        let positive = Requant { multiplier: vec![20000], shift: vec![14], ..self.requant(1, self.dtype(), 14) };
        let count = if self.random.chance(50) { *shape.last().unwrap() } else { 1 };
        if self.float.is_some() {
            let negative = (0..count).map(|_| self.number(-16, 16)).collect();
            let slopes = Arithmetic::Float(FloatSlopes { negative, finish: self.finish_of() });
            return self.layer("prelu", Op::PRelu { input, slopes }, &shape, self.dtype());
        }
        let negative_multiplier = (0..count).map(|_| self.random.range(-30000, 30000) as i32).collect();
        let slopes = Slopes { positive, negative_multiplier, negative_shift: vec![16; count] };
        let op = Op::PRelu { input, slopes: Arithmetic::Fixed(slopes) };
        self.layer("prelu", op, &shape, self.dtype())
    }

    pub fn softmax(&mut self, input: TensorId, masked: bool) -> TensorId {
        let mut narrow = self.shape(input);
        let rank = narrow.len();
        narrow[..rank - 1].fill(1);
        let mask = masked.then(|| self.constant(&narrow, DType::I8, 0, 1));
        self.softmax_by(input, mask)
    }

    pub fn softmax_by(&mut self, input: TensorId, mask: Option<TensorId>) -> TensorId {
        let shape = self.shape(input);
        let (lo, hi) = self.dtype().range();
        let fixed = Exponentials {
            coefficient: (std::f64::consts::LOG2_E * 0.05 * 2f64.powi(32)) as u64,
            multiplier: 32640,
            shift: 7,
            zero_point: lo as i32,
            lo: lo as i32,
            hi: hi as i32,
        };
        let exponentials =
            if self.float.is_some() { Arithmetic::Float(self.finish_of()) } else { Arithmetic::Fixed(fixed) };
        let op = Op::Softmax { input, exponentials, mask, statistics: None };
        self.layer("softmax", op, &shape, self.dtype())
    }

    pub fn layer_norm(&mut self, input: TensorId, center: bool) -> TensorId {
        let shape = self.shape(input);
        let n = *shape.last().unwrap();
        if self.float.is_some() {
            let gamma = self.constant(&[n], DType::F32, -100, 100);
            let beta = self.constant(&[n], DType::F32, -100, 100);
            let norm = Arithmetic::Float(FloatNorm { epsilon: Real::new(0.0625), finish: self.finish_of() });
            return self.layer("layer_norm", Op::LayerNorm { input, gamma, beta, center, norm }, &shape, self.dtype());
        }
        // In every third, all channels have the same, for which the program keeps one entry.
        self.alike = self.count.is_multiple_of(3);
        let gamma = self.constant(&[n], self.dtype(), -100, 100);
        let beta = self.constant(&[n], DType::I64, -3000, 3000);
        let mut requant = self.requant(n, self.dtype(), 20);
        if self.alike {
            requant.multiplier.truncate(1);
            requant.shift.truncate(1);
        }
        self.alike = false;
        let epsilon = 1000;
        let norm = Arithmetic::Fixed(Norm { epsilon, multiplier: 16384, shift: 2, requant });
        let op = Op::LayerNorm { input, gamma, beta, center, norm };
        self.layer("layer_norm", op, &shape, self.dtype())
    }

    pub fn reduce(&mut self, input: TensorId, kind: ReduceKind, axes: &[u32], keep: bool) -> TensorId {
        let x = self.shape(input);
        let shape: Vec<usize> = (0..x.len())
            .filter_map(|i| if axes.contains(&(i as u32)) { keep.then_some(1) } else { Some(x[i]) })
            .collect();
        let requant = if self.float.is_some() {
            let passes = matches!(kind, ReduceKind::Max | ReduceKind::Min);
            let finish = if passes { Finish::default() } else { self.finish_of() };
            Arithmetic::Float(FloatReduction { divisor: Real::new(3.0), finish })
        } else {
            Arithmetic::Fixed(self.requant(1, self.dtype(), 20))
        };
        let op = Op::Reduce { input, kind, axes: axes.to_vec(), requant };
        if matches!(kind, ReduceKind::Max | ReduceKind::Min) {
            self.same("reduce", op, &shape, input)
        } else {
            self.layer("reduce", op, &shape, self.dtype())
        }
    }

    pub fn arg_max(&mut self, input: TensorId, keep: bool) -> TensorId {
        let mut shape = self.shape(input);
        if keep {
            *shape.last_mut().unwrap() = 1;
        } else {
            shape.pop();
        }
        let op = Op::ArgMax { input, largest: self.random.chance(50), select_last: self.random.chance(50) };
        let name = self.name("arg_max");
        let mut output = self.tensor(&format!("{name}:0"), &shape, DType::I32);
        output.quant = None;
        self.builder.layer(&name, op, output, vec![]).unwrap()
    }

    /// Looks rows of a table of `rows` x `width` up by an int32 input of `shape`.
    pub fn embedding(&mut self, rows: usize, width: usize, shape: &[usize]) -> TensorId {
        let name = self.name("indices");
        let mut tensor = self.tensor(&name, shape, DType::I32);
        tensor.quant = None;
        let indices = self.builder.input(tensor).unwrap();
        let (lo, hi) = self.dtype().range();
        let table = self.constant(&[rows, width], self.dtype(), lo, hi);
        let mut out = shape.to_vec();
        out.push(width);
        self.same("embedding", Op::Embedding { table, indices, entry: TableEntry::Row }, &out, table)
    }

    pub fn resize(&mut self, input: TensorId, height: usize, width: usize) -> TensorId {
        let x = self.shape(input);
        let taps = |random: &mut Random, from: usize, to: usize| -> Vec<LinearTap> {
            (0..to)
                .map(|i| {
                    let first = i * from / to;
                    let second = (first + 1).min(from - 1);
                    LinearTap {
                        first: first as u32,
                        second: second as u32,
                        weight: Real::new(random.range(0, 2048) as f64 / 2048.0),
                    }
                })
                .collect()
        };
        let rows = taps(&mut self.random, x[1], height);
        let columns = taps(&mut self.random, x[2], width);
        self.same("resize", Op::ResizeLinear { input, rows, columns }, &[x[0], height, width, x[3]], input)
    }

    pub fn insert_zeros(&mut self, input: TensorId, stride: [u32; 2]) -> TensorId {
        let x = self.shape(input);
        let shape = [x[0], (x[1] - 1) * stride[0] as usize + 1, (x[2] - 1) * stride[1] as usize + 1, x[3]];
        self.same("insert_zeros", Op::InsertZeros { input, stride }, &shape, input)
    }

    pub fn select(&mut self, a: TensorId, b: TensorId) -> TensorId {
        let b = if self.dtype_of(a) == self.dtype_of(b) { b } else { a };
        let shape = self.shape(a);
        let condition = self.constant(&shape, DType::I8, 0, 1);
        self.same("select", Op::Select { condition, a, b }, &shape, a)
    }

    /// A constant with the quantisation of `like`.
    pub fn constant_like(&mut self, like: TensorId, shape: &[usize]) -> TensorId {
        let name = self.name("constant");
        let (dtype, quant) = (self.dtype_of(like), self.builder.peek(like).unwrap().quant.clone());
        let mut tensor = Tensor { quant, ..self.tensor(&name, shape, dtype) };
        let bytes = (0..tensor.elements()).flat_map(|_| {
            let code = self.random.range(-100, 100);
            if dtype.is_float() {
                float_bytes(dtype, code as f32 / 64.0)
            } else {
                code.to_le_bytes()[..dtype.bytes()].to_vec()
            }
        });
        tensor.constant = Some(bytes.collect::<Vec<u8>>().into());
        self.builder.constant(tensor).unwrap()
    }

    /// A choice with a condition of any shape that broadcasts.
    pub fn choose(&mut self, condition: &[usize], a: TensorId, b: TensorId) -> TensorId {
        let both = tpuflow_ir::shape::broadcast(&self.shape(a), &self.shape(b)).unwrap();
        let shape = tpuflow_ir::shape::broadcast(&both, condition).unwrap();
        let condition = self.constant(condition, DType::I8, 0, 1);
        self.same("choose", Op::Select { condition, a, b }, &shape, a)
    }

    /// A condition by a comparison of codes.
    pub fn compare(&mut self, kind: BinaryKind, a: TensorId, b: TensorId) -> TensorId {
        let shape = tpuflow_ir::shape::broadcast(&self.shape(a), &self.shape(b)).unwrap();
        let requant = Requant { multiplier: vec![1], shift: vec![0], zero_point: 0, lo: 0, hi: 1 };
        let op = Op::Binary { kind, a, b, ka: 1, kb: 1, requant: Arithmetic::Fixed(requant) };
        self.layer("compare", op, &shape, DType::I8)
    }

    /// Codes of a float tensor.
    pub fn quantize(&mut self, input: TensorId, dtype: DType) -> TensorId {
        let shape = self.shape(input);
        let (lo, hi) = dtype.range();
        let op = Op::Quantize { input, scale: Real::new(0.0625), zero_point: 3, lo: lo as i32, hi: hi as i32 };
        self.layer("quantize", op, &shape, dtype)
    }

    /// Floats of an integer tensor.
    pub fn dequantize(&mut self, input: TensorId, dtype: DType) -> TensorId {
        let shape = self.shape(input);
        let op = Op::Dequantize { input, scale: Real::new(0.0625), finish: self.finish_of() };
        self.layer("dequantize", op, &shape, dtype)
    }

    /// A choice by a computed condition.
    pub fn choose_by(&mut self, condition: TensorId, a: TensorId, b: TensorId) -> TensorId {
        let both = tpuflow_ir::shape::broadcast(&self.shape(a), &self.shape(b)).unwrap();
        let shape = tpuflow_ir::shape::broadcast(&both, &self.shape(condition)).unwrap();
        self.same("choose", Op::Select { condition, a, b }, &shape, a)
    }

    pub fn rearrange(&mut self, input: TensorId, op: Op, shape: &[usize]) -> TensorId {
        self.same("rearrange", op, shape, input)
    }

    pub fn finish(mut self, outputs: &[TensorId]) -> Graph {
        for &output in outputs {
            self.builder.output(output);
        }
        self.builder.finish().unwrap()
    }
}

/// Bytes of a number that every float type holds.
pub fn float_bytes(dtype: DType, value: f32) -> Vec<u8> {
    let bits = value.to_bits();
    match dtype {
        DType::F32 => bits.to_le_bytes().to_vec(),
        DType::BF16 => ((bits >> 16) as u16).to_le_bytes().to_vec(),
        _ => {
            let sign = (bits >> 16) as u16 & 0x8000;
            let exponent = (bits >> 23 & 0xFF) as i32 - 127 + 15;
            let fraction = (bits >> 13) as u16 & 0x3FF;
            let magnitude = if exponent > 0 { (exponent as u16) << 10 | fraction } else { 0 };
            (sign | magnitude).to_le_bytes().to_vec()
        }
    }
}

/// Convolutions of a line too long for the machine, padded by more than their windows: some stretches see nothing but padding.
pub fn padded_lines() -> (Machine, Vec<Graph>) {
    let mut machine = Machine::preset("32x32_fpga").unwrap();
    machine.cache.words = 64;
    let graphs = [[64, 0], [0, 64], [70, 90]].map(|[left, right]| {
        let mut net = Net::new(u64::from(left));
        let x = net.input(&[1, 1, 300, 512]);
        let window = Window { kernel: [1, 3], stride: [1, 1], dilation: [1, 1], pads: [0, left, 0, right] };
        let y = net.conv(x, 32, window, 1);
        net.builder.output(y);
        net.builder.finish().unwrap()
    });
    (machine, graphs.into())
}

pub fn window(kernel: u32, stride: u32, pad: u32) -> Window {
    Window { kernel: [kernel; 2], stride: [stride; 2], dilation: [1; 2], pads: [pad; 4] }
}
