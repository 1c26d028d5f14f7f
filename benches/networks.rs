//! Published networks as int8 graphs: ResNet-50 and MobileNetV2, and four small ones.
//!
//! Sources of the tables: He et al., "Deep Residual Learning for Image Recognition" (table 1; strides in the 3x3 convolutions,
//! as frameworks ship it; section 4.2 for images of CIFAR-10), Sandler et al., "MobileNetV2: Inverted Residuals and Linear
//! Bottlenecks" (table 2), Howard et al., "MobileNets" (table 1), and Banbury et al., "MLPerf Tiny Benchmark" (ResNet-8, a
//! quarter of MobileNetV1 for images of 96x96, an autoencoder of dense layers).

use tpuflow_ir::Arithmetic::Fixed;
use tpuflow_ir::graph::GraphBuilder;
use tpuflow_ir::{BinaryKind, DType, Epilogue, Graph, Op, Quant, ReduceKind, Requant, Tensor, TensorId, Window};

use crate::Random;

/// ResNet-50 for images of 224x224.
#[must_use]
pub fn resnet50() -> Graph {
    let mut net = Network::new("resnet50");
    let image = net.input(&[1, 224, 224, 3]);
    let stem = net.conv(image, 64, 7, 2, Form::Dense, true);
    let mut x = net.max_pool(stem, 3, 2);
    for (width, blocks, stride) in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)] {
        for block in 0..blocks {
            let stride = if block == 0 { stride } else { 1 };
            let y = net.conv(x, width, 1, 1, Form::Dense, true);
            let y = net.conv(y, width, 3, stride, Form::Dense, true);
            let y = net.conv(y, 4 * width, 1, 1, Form::Dense, false);
            let shortcut = if block == 0 { net.conv(x, 4 * width, 1, stride, Form::Dense, false) } else { x };
            x = net.add(shortcut, y, true);
        }
    }
    net.classifier(x, 1000)
}

/// MobileNetV2 for images of 224x224.
#[must_use]
pub fn mobilenet_v2() -> Graph {
    let mut net = Network::new("mobilenet_v2");
    let image = net.input(&[1, 224, 224, 3]);
    let mut x = net.conv(image, 32, 3, 2, Form::Dense, true);
    let table =
        [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)];
    for (expansion, channels, blocks, stride) in table {
        for block in 0..blocks {
            let stride = if block == 0 { stride } else { 1 };
            let input = net.channels(x);
            let wide = if expansion == 1 { x } else { net.conv(x, expansion * input, 1, 1, Form::Dense, true) };
            let y = net.conv(wide, expansion * input, 3, stride, Form::Depthwise, true);
            let y = net.conv(y, channels, 1, 1, Form::Dense, false);
            x = if stride == 1 && input == channels { net.add(x, y, false) } else { y };
        }
    }
    let x = net.conv(x, 1280, 1, 1, Form::Dense, true);
    net.classifier(x, 1000)
}

/// The residual network for images of CIFAR-10 with `blocks` blocks in each of its three stages.
fn cifar_resnet(name: &str, blocks: usize) -> Graph {
    let mut net = Network::new(name);
    let image = net.input(&[1, 32, 32, 3]);
    let mut x = net.conv(image, 16, 3, 1, Form::Dense, true);
    for (width, stride) in [(16, 1), (32, 2), (64, 2)] {
        for block in 0..blocks {
            let stride = if block == 0 { stride } else { 1 };
            let y = net.conv(x, width, 3, stride, Form::Dense, true);
            let y = net.conv(y, width, 3, 1, Form::Dense, false);
            let shortcut = if stride == 2 { net.conv(x, width, 1, stride, Form::Dense, false) } else { x };
            x = net.add(shortcut, y, true);
        }
    }
    net.classifier(x, 10)
}

/// ResNet-8 for images of 32x32.
#[must_use]
pub fn resnet8() -> Graph {
    cifar_resnet("resnet8", 1)
}

/// ResNet-20 for images of 32x32.
#[must_use]
pub fn resnet20() -> Graph {
    cifar_resnet("resnet20", 3)
}

/// MobileNetV1 with a quarter of the channels, for images of 96x96 and two classes.
#[must_use]
pub fn mobilenet_v1_quarter() -> Graph {
    let mut net = Network::new("mobilenet_v1_quarter");
    let image = net.input(&[1, 96, 96, 3]);
    let mut x = net.conv(image, 8, 3, 2, Form::Dense, true);
    let tail = [(128, 1); 5].into_iter().chain([(256, 2), (256, 1)]);
    for (channels, stride) in [(16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2)].into_iter().chain(tail) {
        let input = net.channels(x);
        let y = net.conv(x, input, 3, stride, Form::Depthwise, true);
        x = net.conv(y, channels, 1, 1, Form::Dense, true);
    }
    net.classifier(x, 2)
}

/// Dense layers that narrow 640 features to 8 and widen them again.
#[must_use]
pub fn autoencoder() -> Graph {
    let mut net = Network::new("autoencoder");
    let mut x = net.input(&[1, 640]);
    for width in [128, 128, 128, 128, 8, 128, 128, 128, 128] {
        x = net.dense(x, width, true);
    }
    let x = net.dense(x, 640, false);
    net.finish(x)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Dense,
    Depthwise,
}

/// A graph under construction; every activation is int8 with one scale.
struct Network {
    builder: GraphBuilder,
    random: Random,
    layers: usize,
}

const VALID: &str = "the tables describe valid layers";

impl Network {
    fn new(name: &str) -> Self {
        Self { builder: GraphBuilder::new(name), random: Random(1), layers: 0 }
    }

    fn shape(&self, id: TensorId) -> Vec<usize> {
        self.builder.peek(id).expect(VALID).shape.clone()
    }

    fn channels(&self, id: TensorId) -> usize {
        self.shape(id)[3]
    }

    fn tensor(name: &str, shape: &[usize], dtype: DType) -> Tensor {
        let quant = (dtype == DType::I8).then(|| Quant { scale: vec![0.05], zero_point: 0 });
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

    fn input(&mut self, shape: &[usize]) -> TensorId {
        self.builder.input(Self::tensor("image", shape, DType::I8)).expect(VALID)
    }

    fn constant(&mut self, what: &str, shape: &[usize], dtype: DType) -> TensorId {
        let mut tensor = Self::tensor(&format!("{what}{}", self.layers), shape, dtype);
        let count = tensor.elements();
        let bytes = match dtype {
            DType::I8 => self.random.bytes(count),
            // Biases as large as the sum of a few products.
            _ => (0..count).flat_map(|_| (self.random.below(8192) as i32 - 4096).to_le_bytes()).collect(),
        };
        tensor.constant = Some(bytes.into());
        self.builder.constant(tensor).expect(VALID)
    }

    fn layer(&mut self, what: &str, op: Op, shape: &[usize]) -> TensorId {
        let name = format!("{what}{}", self.layers);
        self.layers += 1;
        let output = Self::tensor(&format!("{name}:0"), shape, DType::I8);
        self.builder.layer(&name, op, output, vec![]).expect(VALID)
    }

    /// Sums of `terms` products come out with a spread of a few dozen codes.
    fn requant(channels: usize, terms: usize, rectified: bool) -> Requant {
        let spread = (terms as f64).sqrt() * 74.0 * 74.0;
        let (multiplier, shift) = tpuflow_ir::quant::approximate(40.0 / spread, 15, 31).expect("a factor below one");
        let lo = if rectified { 0 } else { -128 };
        Requant { multiplier: vec![multiplier; channels], shift: vec![shift; channels], zero_point: 0, lo, hi: 127 }
    }

    fn conv(&mut self, input: TensorId, out: usize, kernel: u32, stride: u32, form: Form, rectified: bool) -> TensorId {
        let x = self.shape(input);
        let groups = if form == Form::Depthwise { x[3] } else { 1 };
        let window = Window { kernel: [kernel; 2], stride: [stride; 2], dilation: [1; 2], pads: [(kernel - 1) / 2; 4] };
        let [h, w] = window.output(x[1], x[2]).expect(VALID);
        let side = kernel as usize;
        let weights = self.constant("weights", &[out, side, side, x[3] / groups], DType::I8);
        let bias = self.constant("bias", &[out], DType::I32);
        let requant = Self::requant(out, side * side * x[3] / groups, rectified);
        let epilogue = Fixed(Epilogue { first_shift: None, requant, table: None });
        let op = Op::Conv { input, weights, bias, window, groups: groups as u32, epilogue };
        self.layer("conv", op, &[x[0], h, w, out])
    }

    fn max_pool(&mut self, input: TensorId, kernel: u32, stride: u32) -> TensorId {
        let x = self.shape(input);
        let window = Window { kernel: [kernel; 2], stride: [stride; 2], dilation: [1; 2], pads: [1; 4] };
        let [h, w] = window.output(x[1], x[2]).expect(VALID);
        self.layer("max_pool", Op::MaxPool { input, window }, &[x[0], h, w, x[3]])
    }

    fn add(&mut self, a: TensorId, b: TensorId, rectified: bool) -> TensorId {
        let shape = self.shape(a);
        let lo = if rectified { 0 } else { -128 };
        // Half the sum: (128 a + 128 b) / 2^8.
        let requant = Fixed(Requant { multiplier: vec![1], shift: vec![8], zero_point: 0, lo, hi: 127 });
        self.layer("add", Op::Binary { kind: BinaryKind::Add, a, b, ka: 128, kb: 128, requant }, &shape)
    }

    /// Global average pool and a dense layer.
    fn classifier(mut self, input: TensorId, classes: usize) -> Graph {
        let x = self.shape(input);
        let (multiplier, shift) =
            tpuflow_ir::quant::approximate(1.0 / (x[1] * x[2]) as f64, 15, 31).expect("a factor below one");
        let requant =
            Fixed(Requant { multiplier: vec![multiplier], shift: vec![shift], zero_point: 0, lo: -128, hi: 127 });
        let op = Op::Reduce { input, kind: ReduceKind::Sum, axes: vec![1, 2], requant };
        let pooled = self.layer("mean", op, &[x[0], x[3]]);
        let logits = self.dense(pooled, classes, false);
        self.finish(logits)
    }

    fn dense(&mut self, input: TensorId, width: usize, rectified: bool) -> TensorId {
        let shape = self.shape(input);
        let (rows, depth) = (shape[0], shape[1]);
        let b = self.constant("weights", &[depth, width], DType::I8);
        let bias = self.constant("bias", &[width], DType::I32);
        let epilogue =
            Fixed(Epilogue { first_shift: None, requant: Self::requant(width, depth, rectified), table: None });
        let op = Op::MatMul { a: input, b, bias: Some(bias), epilogue, partial: false };
        self.layer("dense", op, &[rows, width])
    }

    fn finish(mut self, output: TensorId) -> Graph {
        self.builder.output(output);
        self.builder.finish().expect(VALID)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published sizes (without batch normalisation, which is folded; biases are not counted).
    #[test]
    fn sizes_are_the_published_ones() {
        let weights = |graph: &Graph| {
            let constants = graph.tensors.iter().filter(|t| t.constant.is_some() && t.dtype == DType::I8);
            constants.map(Tensor::elements).sum::<usize>()
        };
        let (resnet, mobilenet) = (resnet50(), mobilenet_v2());
        assert_eq!(weights(&resnet), 25_502_912);
        assert_eq!(weights(&mobilenet), 3_469_760);
        let macs = |graph: &Graph| graph.layers.iter().map(|layer| graph.macs(layer)).sum::<u64>();
        assert_eq!(macs(&resnet) / 1_000_000, 4_089);
        assert_eq!(macs(&mobilenet) / 1_000_000, 300);
        let small = [resnet8(), resnet20(), mobilenet_v1_quarter(), autoencoder()];
        assert_eq!(small.each_ref().map(weights), [77_360, 270_896, 208_112, 264_192]);
        assert_eq!(small.each_ref().map(|graph| macs(graph) / 100_000), [125, 408, 74, 2]);
    }
}
