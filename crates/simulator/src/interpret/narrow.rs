//! Convolutions that compute neighbouring pixels beside each other, or have zeros around their windows, as the convolutions of
//! single pixels they are made of: a processor has no columns to fill and does better without the zeros. The codes are the same,
//! and lie in the same order.

use tpuflow_ir::{Arithmetic, Graph, Layer, Op, Tensor, TensorId, Window};

use super::prepare::image;

/// A convolution of single pixels.
pub(super) struct Narrow {
    pub weights: Tensor,
    pub window: Window,
    /// Its outputs, of which biases and factors are the first.
    pub outputs: usize,
}

/// Where the kernels of neighbours lie in a window of several: so many, a stride apart, the first behind so many columns of zeros.
#[derive(Clone, Copy, Debug)]
struct Places {
    count: usize,
    stride: usize,
    before: usize,
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
    if window.dilation[1] != 1 {
        return None;
    }
    let step = window.stride[1] as usize;
    // As many neighbours as can be: one would do for any layer with zeros in front or behind.
    let counts = (1..=step).rev().filter(|count| step.is_multiple_of(*count) && columns.is_multiple_of(*count));
    counts
        .flat_map(|count| {
            let stride = step / count;
            let slack = reach.checked_sub(across + step - stride);
            let places = slack.into_iter().flat_map(move |slack| 0..=slack);
            places.map(move |before| Places { count, stride, before })
        })
        .filter(|places| places.count > 1 || reach > across)
        .find_map(|places| {
            let outputs = columns / places.count;
            let requant = &epilogue.requant;
            let repeat = repeats(&graph.tensor(*bias).integers(), outputs)
                && repeats(&requant.multiplier, outputs)
                && repeats(&requant.shift, outputs);
            let single = single_window(graph, layer, [*input, *weights], window, across, places)?;
            let kernels = if repeat { kernels(wide, across, places)? } else { return None };
            let weights = Tensor {
                shape: vec![outputs, rows, across, channels],
                constant: Some(kernels.into()),
                quant: wide.quant.clone(),
                name: wide.name.clone(),
                source: None,
                packed: None,
                dtype: wide.dtype,
            };
            Some(Narrow { weights, window: single, outputs })
        })
}

/// The window of a single pixel, if its results are those of the layer.
fn single_window(
    graph: &Graph,
    layer: &Layer,
    [input, weights]: [TensorId; 2],
    window: &Window,
    across: usize,
    places: Places,
) -> Option<Window> {
    let Places { count, stride, before } = places;
    let [_, height, width, _] = image(graph.tensor(layer.output));
    let [_, h, w, _] = image(graph.tensor(input));
    let rows = image(graph.tensor(weights))[1];
    let left = window.pads[1].checked_sub(before as u32)?;
    let right = ((width * count - 1) * stride + across).saturating_sub(w + left as usize);
    let single = Window {
        kernel: [rows as u32, across as u32],
        stride: [window.stride[0], stride as u32],
        pads: [window.pads[0], left, window.pads[2], right as u32],
        ..*window
    };
    (single.output(h, w) == Some([height, width * count])).then_some(single)
}

/// The kernels of a single pixel, if those of its neighbours are the same and there are zeros everywhere else.
fn kernels(wide: &Tensor, across: usize, places: Places) -> Option<Vec<u8>> {
    let Places { count, stride, before } = places;
    let [columns, rows, reach, channels] = image(wide);
    let outputs = columns / count;
    let (codes, size) = (wide.constant.as_deref()?, wide.dtype.bytes());
    let zero = &wide.zero_point().to_le_bytes()[..size];
    let pixel = |output: usize, row: usize, column: usize| {
        let start = ((output * rows + row) * reach + column) * channels * size;
        &codes[start..start + channels * size]
    };
    let mut kernels = Vec::with_capacity(outputs * rows * across * channels * size);
    for output in 0..outputs {
        for row in 0..rows {
            (before..before + across).for_each(|column| kernels.extend_from_slice(pixel(output, row, column)));
            for place in 0..count {
                let own = before + place * stride..before + place * stride + across;
                for column in 0..reach {
                    let found = pixel(place * outputs + output, row, column);
                    let is_right = if own.contains(&column) {
                        found == pixel(output, row, before + column - own.start)
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
    Some(kernels)
}

/// Whether a list is the same for every so many channels: of one entry, or a repetition.
fn repeats<T: PartialEq>(list: &[T], channels: usize) -> bool {
    list.len() == 1 || list.chunks(channels).all(|part| part == &list[..channels.min(list.len())])
}
