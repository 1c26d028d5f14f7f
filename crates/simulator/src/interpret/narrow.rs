//! Convolutions that compute neighbouring pixels beside each other, as the convolutions of single pixels they are made of: a processor
//! has no columns to fill and does better without the zeros. The codes are the same, and lie in the same order.

use tpuflow_ir::{Arithmetic, Graph, Layer, Op, Tensor, Window};

use super::prepare::image;

/// A convolution of single pixels.
pub(super) struct Narrow {
    pub weights: Tensor,
    pub window: Window,
    /// Its outputs, of which biases and factors are the first.
    pub outputs: usize,
}

/// What a layer is made of if it has zeros by construction, and these and all that repeats are as such a layer has them.
pub(super) fn narrow(graph: &Graph, layer: &Layer) -> Option<Narrow> {
    let Op::Conv { input, weights, bias, window, groups: 1, epilogue: Arithmetic::Fixed(epilogue) } = &layer.op else {
        return None;
    };
    let (terms, wide) = (layer.terms? as usize, graph.tensor(*weights));
    let [columns, rows, reach, channels] = image(wide);
    let across =
        terms.checked_div(rows * channels).filter(|&across| across > 0 && across * rows * channels == terms)?;
    let step = window.stride[1] as usize;
    // The windows of neighbours reach one stride further each.
    let stride = step.checked_sub(reach.checked_sub(across)?).filter(|&stride| stride > 0)?;
    let count = step / stride;
    if count < 2 || count * stride != step || columns % count != 0 || window.dilation[1] != 1 {
        return None;
    }
    let outputs = columns / count;
    let [_, _, width, _] = image(graph.tensor(layer.output));
    let [_, h, w, _] = image(graph.tensor(*input));
    let right = ((width * count - 1) * stride + across).saturating_sub(w + window.pads[1] as usize);
    let single = Window {
        kernel: [rows as u32, across as u32],
        stride: [window.stride[0], stride as u32],
        pads: [window.pads[0], window.pads[1], window.pads[2], right as u32],
        ..*window
    };
    let [height, _] = window.output(h, w)?;
    if single.output(h, w) != Some([height, width * count]) {
        return None;
    }
    let (codes, size) = (wide.constant.as_deref()?, wide.dtype.bytes());
    let zero = &wide.zero_point().to_le_bytes()[..size];
    let pixel = |output: usize, row: usize, column: usize| {
        let start = ((output * rows + row) * reach + column) * channels * size;
        &codes[start..start + channels * size]
    };
    let mut kernels = Vec::with_capacity(outputs * terms * size);
    for output in 0..outputs {
        for row in 0..rows {
            (0..across).for_each(|column| kernels.extend_from_slice(pixel(output, row, column)));
            for place in 0..count {
                let own = place * stride..place * stride + across;
                for column in 0..reach {
                    let found = pixel(place * outputs + output, row, column);
                    let is_right = if own.contains(&column) {
                        found == pixel(output, row, column - own.start)
                    } else {
                        found.chunks_exact(size).all(|code| code == zero)
                    };
                    if !is_right {
                        return None;
                    }
                }
            }
        }
    }
    let requant = &epilogue.requant;
    let repeat = repeats(&graph.tensor(*bias).integers(), outputs)
        && repeats(&requant.multiplier, outputs)
        && repeats(&requant.shift, outputs);
    let weights = Tensor {
        shape: vec![outputs, rows, across, channels],
        constant: Some(kernels.into()),
        quant: wide.quant.clone(),
        name: wide.name.clone(),
        source: None,
        packed: None,
        dtype: wide.dtype,
    };
    repeat.then_some(Narrow { weights, window: single, outputs })
}

/// Whether a list is the same for every so many channels: of one entry, or a repetition.
fn repeats<T: PartialEq>(list: &[T], channels: usize) -> bool {
    list.len() == 1 || list.chunks(channels).all(|part| part == &list[..channels.min(list.len())])
}
