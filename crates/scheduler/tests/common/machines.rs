//! Machines that make small networks hard.

use tpuflow_ir::Machine;

use super::Random;

/// A machine with words of 8 bytes and `banks` x 64 words of cache.
pub fn tiny(banks: u32) -> Machine {
    let mut machine = Machine::preset("32x32_fpga").unwrap();
    machine.name = format!("tiny{banks}");
    (machine.array.rows, machine.array.columns, machine.array.accumulators) = (8, 8, 32);
    (machine.cache.word_bytes, machine.cache.banks, machine.cache.words) = (8, banks, 64);
    (machine.pdp.lanes, machine.ewp.lanes) = (8, 4);
    machine.ewp_cache.words = 512;
    machine
}

/// A preset or a machine with next to no cache, some of whose numbers are others.
pub fn machine(seed: u64) -> Machine {
    let mut random = Random(seed ^ 0x5eed);
    let mut machine = match random.below(8) {
        small @ 0..4 => tiny(8 << small),
        _ => Machine::preset(&Machine::presets()[random.below(Machine::presets().len())]).unwrap_or_else(|_| tiny(64)),
    };
    for _ in 0..3 {
        match random.below(9) {
            0 => machine.ddr.word_bytes = [4, 8, 16, 64][random.below(4)],
            1 => (machine.dma.start, machine.dma.latency) = (random.below(80) as u64, random.below(20) as u64),
            2 => (machine.ewp.start, machine.ewp.latency) = (1 + random.below(150) as u64, 1 + random.below(90) as u64),
            3 => (machine.pdp.start, machine.pdp.latency) = (1 + random.below(80) as u64, 1 + random.below(90) as u64),
            4 => machine.control.issue = 1 + random.below(40) as u64,
            5 => machine.control.issue_cold = 1 + random.below(60) as u64,
            6 => machine.pdp.taps = 1 + random.below(9) as u32,
            7 => machine.feeder.words = 1 + random.below(4) as u32,
            _ => machine.array.setup = random.below(90) as u64,
        }
    }
    machine
}
