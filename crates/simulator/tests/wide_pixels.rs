//! What a layer says of its zeros is believed only where they are there.

use std::sync::Arc;

use crate::common::{Net, window};
use crate::trial::inputs;
use tpuflow_ir::{Arithmetic, Graph, Op, Window};
use tpuflow_simulator::interpret::{Interpreter, Keep};

fn outputs(graph: &Graph) -> Vec<Vec<u8>> {
    let tensors = Interpreter::new(Arc::new(graph.clone())).unwrap().run(inputs(graph, 5), Keep::Outputs).unwrap();
    graph.outputs.iter().map(|&id| tensors.get(id).unwrap().to_le_bytes()).collect()
}

#[test]
fn terms_that_do_not_hold_change_nothing() {
    for seed in 0..24 {
        let mut net = Net::new(seed);
        let x = net.input(&[1, 12, 40, 3]);
        // Windows that meet, windows with columns between them that none reads, and taps apart.
        let (across, step, dilation) = [(6, 4, 1), (3, 4, 1), (6, 4, 2)][seed as usize % 3];
        let kernel = Window { kernel: [3, across], stride: [1, step], dilation: [1, dilation], ..window(1, 1, 0) };
        let y = net.conv(x, 8, kernel, 1);
        let z = net.conv(y, 8, window(1, 1, 0), 1);
        let graph = net.finish(&[y, z]);
        let expected = outputs(&graph);
        for terms in [0, 1, 9, 18, 27, 36, 45, 54, 63, u32::MAX] {
            let mut lying = graph.clone();
            lying.layers.iter_mut().for_each(|layer| layer.terms = Some(terms));
            assert_eq!(outputs(&lying), expected, "seed {seed}, {terms} terms");
            // Those that no operator of this depth has are refused with the graph.
            assert_eq!(lying.verify().is_empty(), (1..=8).contains(&terms), "{terms} terms");
        }
    }
}

/// Kernels as lowering makes them, of two pixels and the second shifted by a stride: of single pixels where taps lie side by side, and
/// nothing of the kind where they lie apart.
#[test]
fn shifted_kernels_are_single_pixels_only_where_taps_are_side_by_side() {
    for dilation in [1, 2] {
        let mut net = Net::new(2);
        let x = net.input(&[1, 12, 40, 3]);
        let kernel = Window { kernel: [3, 5], stride: [1, 4], dilation: [1, dilation], ..window(1, 1, 0) };
        let y = net.conv(x, 8, kernel, 1);
        let mut graph = net.finish(&[y]);
        let Op::Conv { weights, bias, epilogue: Arithmetic::Fixed(epilogue), .. } = &mut graph.layers[0].op else {
            unreachable!("a convolution")
        };
        let (weights, bias) = (weights.index(), bias.index());
        epilogue.requant.multiplier.truncate(1);
        epilogue.requant.shift.truncate(1);
        let zero = graph.tensors[weights].zero_point() as i8;
        let code = |index: usize| {
            let (output, row, column, channel) = (index / 45, index / 15 % 3, index / 3 % 5, index % 3);
            let shift = output / 4 * 2;
            let own = (shift..shift + 3).contains(&column);
            let code = (output % 4 * 31 + row * 17 + column.wrapping_sub(shift) % 5 * 7 + channel) % 100;
            if own { code as i8 - 50 } else { zero }
        };
        let codes: Vec<u8> = (0..8 * 45).map(|index| code(index).cast_unsigned()).collect();
        graph.tensors[weights].constant = Some(codes.into());
        let size = graph.tensors[bias].bytes();
        graph.tensors[bias].constant = Some(vec![0; size].into());
        let expected = outputs(&graph);
        graph.layers[0].terms = Some(27);
        assert_eq!(outputs(&graph), expected, "taps {dilation} apart");
    }
}
