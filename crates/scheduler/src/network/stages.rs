//! Stages of a network: layers that are best cut alike.
//!
//! A *stage* is a stretch of the network whose images are of one size, or that ends in a single pixel all of the rest waits for.
//! Large images take few start-ups a row, small ones are over before a second piece has begun, so what is best for one stage is
//! rarely best for the next.

use tpuflow_ir::{TensorId, layout};

use super::Network;

/// Stages that can differ; those behind them are cut like the last of these.
pub(crate) const STAGES: usize = 32;

/// The stage of every step.
pub(crate) fn stages(network: &Network) -> Vec<u8> {
    let pixels = |tensor: TensorId| {
        let (_, height, width, _) = layout::image(&network.tensor(tensor).shape);
        height * width
    };
    let (mut stage, mut size, mut ended) = (0, None, false);
    let mut stages = Vec::with_capacity(network.steps.len());
    for step in &network.steps {
        let own = pixels(step.output);
        let resized = own > 1 && size.is_some_and(|size| size != own);
        if ended || resized {
            stage = (stage + 1).min(STAGES as u8 - 1);
        }
        stages.push(stage);
        size = if own > 1 {
            Some(own)
        } else if ended {
            None
        } else {
            size
        };
        ended = own == 1 && network.streams(&step.op).iter().any(|&t| pixels(t) > 1);
        if ended {
            size = None;
        }
    }
    stages
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{common, network::prepare};

    #[test]
    fn stages_end_where_images_change_size_or_all_of_one_is_awaited() {
        let mut net = common::Net::new(1);
        let x = net.input(&[1, 8, 8, 16]);
        let y = net.conv(x, 16, common::window(3, 1, 1), 1);
        let y = net.conv(y, 16, common::window(3, 2, 1), 1);
        let y = net.conv(y, 32, common::window(1, 1, 0), 1);
        let y = net.average_pool(y, common::window(4, 1, 0), false);
        let y = net.conv(y, 32, common::window(1, 1, 0), 1);
        let y = net.conv(y, 32, common::window(1, 1, 0), 1);
        let machine = tpuflow_ir::Machine::preset("128x128_asic").expect("known");
        let network = prepare(&net.finish(&[y]), &machine).expect("a sound graph");
        assert_eq!(stages(&network), [0, 1, 1, 1, 2, 2]);
    }
}
