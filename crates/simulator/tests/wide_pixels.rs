//! What a layer says of its zeros is believed only where they are there.

use std::sync::Arc;

use crate::common::{Net, window};
use crate::trial::inputs;
use tpuflow_ir::{Graph, Window};
use tpuflow_simulator::interpret::{Interpreter, Keep};

fn outputs(graph: &Graph) -> Vec<Vec<u8>> {
    let tensors = Interpreter::new(Arc::new(graph.clone())).unwrap().run(inputs(graph, 5), Keep::Outputs).unwrap();
    graph.outputs.iter().map(|&id| tensors.get(id).unwrap().to_le_bytes()).collect()
}

#[test]
fn terms_that_do_not_hold_change_nothing() {
    for seed in 0..8 {
        let mut net = Net::new(seed);
        let x = net.input(&[1, 12, 40, 3]);
        let kernel = Window { kernel: [3, 6], stride: [1, 4], ..window(1, 1, 0) };
        let y = net.conv(x, 8, kernel, 1);
        let z = net.conv(y, 8, window(1, 1, 0), 1);
        let graph = net.finish(&[y, z]);
        let expected = outputs(&graph);
        for terms in [0, 1, 9, 18, 27, 36, 45, 54, 63, u32::MAX] {
            let mut lying = graph.clone();
            lying.layers.iter_mut().for_each(|layer| layer.terms = Some(terms));
            assert_eq!(outputs(&lying), expected, "seed {seed}, {terms} terms");
        }
    }
}
