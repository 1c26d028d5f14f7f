//! The machine a program runs on: every size and timing constant, read from TOML.
//!
//! ```text
//!             DDR0 --+-- DTL0 --\                       /-- weight port --> ME: rows x columns PEs, two weight registers,
//!                    X           +--- shared cache ----+--- row feeder -->   accumulators, output pipe --> cache
//!             DDR1 --+-- DTL1 --/   single-port banks   +--- EWP: elementwise, softmax, norms, moves
//!                                                       +--- PDP: pooling, depthwise
//!                              EWP cache (bias, scale, tables)               CU: issue queues, tokens
//! ```
//!
//! `docs/machine.md` is the normative text. `machine_file` reads machines from files.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::MachineError;

/// All parameters of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Name, used in file names.
    pub name: String,
    /// Clock of everything but the DDR, Hz.
    pub clock_hz: u64,
    /// Control unit.
    pub control: Control,
    /// Systolic array.
    pub array: Array,
    /// Row feeder of the array.
    pub feeder: Feeder,
    /// Elementwise unit.
    pub ewp: Ewp,
    /// Pooling and depthwise unit.
    pub pdp: Pdp,
    /// Shared cache.
    pub cache: Cache,
    /// Parameter cache.
    pub ewp_cache: EwpCache,
    /// DMA lines.
    pub dma: Dma,
    /// External memory.
    pub ddr: Ddr,
}

macro_rules! section {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }
    };
}

section! {
    /// Control unit.
    Control {
        /// Cycles before the first instruction.
        start: u64,
        /// Cycles to issue an instruction while its unit is busy.
        issue: u64,
        /// Cycles to issue an instruction to an idle matrix engine.
        issue_cold: u64,
    }
}
fn one() -> u64 {
    1
}

fn eight() -> u64 {
    8
}

fn link_latency() -> u64 {
    500
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_usual_link(latency: &u64) -> bool {
    *latency == link_latency()
}

section! {
    /// Systolic array.
    Array {
        /// PEs along K; equals the cache word, so that a word is one row vector.
        rows: u32,
        /// PEs along N.
        columns: u32,
        /// Cycles of pipe set-up, paid after a drain.
        setup: u64,
        /// Accumulator entries of `columns` 32-bit sums (half as many 48-bit ones).
        accumulators: u32,
        /// In older files alone; no law uses it. Kept where a program carries it, so that its machine's hash stays what it was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parameter_tiles: Option<u32>,
    }
}
section! {
    /// Row feeder.
    Feeder {
        /// Cache words taken per cycle, each from another bank.
        words: u32,
    }
}
section! {
    /// Elementwise unit; the `u64` rates are cycles per `lanes` elements.
    Ewp {
        /// 8- or 16-bit elements per cycle; 32-bit ones take two.
        lanes: u32,
        /// Cycles of start-up.
        start: u64,
        /// Cycles from read to write.
        latency: u64,
        /// Add, multiply, copy, cast, table, nearest.
        r#move: u64,
        /// Linear resize.
        bilinear: u64,
        /// Softmax.
        softmax: u64,
        /// Layer normalisation.
        layer_norm: u64,
        /// RMS normalisation.
        rms_norm: u64,
        /// Reductions.
        reduce: u64,
        /// A step of a function of floats that is one operation.
        #[serde(default = "one")]
        step: u64,
        /// A step of a function of floats that is a series: exponential, logarithm, sine, error function.
        #[serde(default = "eight")]
        series: u64,
    }
}
section! {
    /// Pooling and depthwise unit.
    Pdp {
        /// Bytes (channels of 8 bits) per cycle: one word.
        lanes: u32,
        /// Window taps per cycle.
        taps: u32,
        /// Cycles of start-up.
        start: u64,
        /// Cycles from read to write.
        latency: u64,
    }
}
section! {
    /// Shared cache.
    Cache {
        /// Single-port banks.
        banks: u32,
        /// Words per bank.
        words: u32,
        /// Bytes per word.
        word_bytes: u32,
    }
}
section! {
    /// Parameter cache, with words of the shared cache's size.
    EwpCache {
        /// Banks.
        banks: u32,
        /// Words per bank.
        words: u32,
    }
}
section! {
    /// DMA lines.
    Dma {
        /// Lines, one transfer each at a time.
        lines: u32,
        /// Cycles of start-up per transfer.
        start: u64,
        /// Cycles from start to first datum.
        latency: u64,
        /// Cycles more that a load from another device takes to its first datum.
        #[serde(default = "link_latency", skip_serializing_if = "is_usual_link")]
        link_latency: u64,
    }
}
section! {
    /// External memory.
    Ddr {
        /// Channels: 1, 2, 4 or 8. Of more than two, halves work in lockstep, see [`Machine::gang`].
        channels: u32,
        /// Bytes per DDR clock and channel.
        word_bytes: u32,
        /// DDR clock, Hz.
        clock_hz: u64,
        /// Capacity of a channel, bytes.
        capacity_bytes: u64,
        /// Bytes of a page; one is open per channel.
        page_bytes: u64,
        /// Time to open another page, ns.
        page_miss_ns: u64,
        /// 0: channels are addressed apart. Else all memory is one address space whose blocks of this size alternate.
        interleave_bytes: u64,
    }
}

/// Most cycles, or nanoseconds, that one thing takes.
const LONGEST: u64 = 1_000_000;
/// Highest clock, Hz.
const FASTEST: u64 = 1_000_000_000_000;
/// Largest memory, bytes.
const LARGEST: u64 = 1 << 42;
/// Largest cache, bytes: instructions name places in it by 32 bits.
const LARGEST_CACHE: u64 = 1 << 32;
/// Most banks of a cache.
const BANKS: u64 = 1 << 16;
/// Most accumulators, words fed a cycle and taps a cycle.
const MOST: u64 = 1 << 20;

impl Machine {
    /// Checks that all parameters make sense.
    ///
    /// # Errors
    /// The parameter and why it cannot be so.
    pub fn validate(&self) -> Result<(), MachineError> {
        let positive = [
            ("clock_hz", self.clock_hz),
            ("array.rows", self.array.rows.into()),
            ("array.columns", self.array.columns.into()),
            ("feeder.words", self.feeder.words.into()),
            ("ewp.lanes", self.ewp.lanes.into()),
            ("ewp.move", self.ewp.r#move),
            ("pdp.taps", self.pdp.taps.into()),
            ("cache.banks", self.cache.banks.into()),
            ("cache.words", self.cache.words.into()),
            ("ewp_cache.banks", self.ewp_cache.banks.into()),
            ("ewp_cache.words", self.ewp_cache.words.into()),
            ("ddr.channels", self.ddr.channels.into()),
            ("ddr.word_bytes", self.ddr.word_bytes.into()),
            ("ddr.clock_hz", self.ddr.clock_hz),
        ];
        if let Some((field, _)) = positive.iter().find(|(_, v)| *v == 0) {
            return Err(MachineError::Zero(field));
        }
        let word = self.cache.word_bytes;
        if !word.is_power_of_two() || !(8..=1024).contains(&word) {
            return Err(MachineError::Word(word));
        }
        self.validate_sizes()?;
        if self.array.rows != word || self.pdp.lanes != word {
            return Err(MachineError::RowVector { rows: self.array.rows, lanes: self.pdp.lanes, word });
        }
        let within_word = |field, found| {
            let error = MachineError::Exceeds { field, found, other: "cache.word_bytes", limit: word };
            if found > word { Err(error) } else { Ok(()) }
        };
        within_word("array.columns", self.array.columns)?;
        if self.array.accumulators < 4 {
            return Err(MachineError::Accumulators);
        }
        within_word("ewp.lanes", self.ewp.lanes)?;
        if self.dma.lines != 2 {
            return Err(MachineError::Lines(self.dma.lines));
        }
        if ![1, 2, 4, 8].contains(&self.ddr.channels) {
            return Err(MachineError::Channels(self.ddr.channels));
        }
        if !self.ddr.page_bytes.is_power_of_two() || self.ddr.page_bytes < u64::from(word) {
            return Err(MachineError::Page(self.ddr.page_bytes));
        }
        if !self.ddr.interleave_bytes.is_multiple_of(self.page_bytes()) {
            return Err(MachineError::Interleave(self.ddr.interleave_bytes, self.page_bytes()));
        }
        Ok(())
    }

    /// Sums of cycles and bytes must stay far from 64 bits, whatever the network.
    fn validate_sizes(&self) -> Result<(), MachineError> {
        let (control, ewp, pdp, ddr) = (&self.control, &self.ewp, &self.pdp, &self.ddr);
        let times = [
            ("control.start", control.start),
            ("control.issue", control.issue),
            ("control.issue_cold", control.issue_cold),
            ("array.setup", self.array.setup),
            ("ewp.start", ewp.start),
            ("ewp.latency", ewp.latency),
            ("ewp.move", ewp.r#move),
            ("ewp.bilinear", ewp.bilinear),
            ("ewp.softmax", ewp.softmax),
            ("ewp.layer_norm", ewp.layer_norm),
            ("ewp.rms_norm", ewp.rms_norm),
            ("ewp.reduce", ewp.reduce),
            ("ewp.step", ewp.step),
            ("ewp.series", ewp.series),
            ("pdp.start", pdp.start),
            ("pdp.latency", pdp.latency),
            ("dma.start", self.dma.start),
            ("dma.latency", self.dma.latency),
            ("dma.link_latency", self.dma.link_latency),
            ("ddr.page_miss_ns", ddr.page_miss_ns),
        ];
        if let Some(&(field, found)) = times.iter().find(|(_, found)| *found > LONGEST) {
            return Err(MachineError::TooLarge { field, found, limit: LONGEST });
        }
        if self.clock_hz > FASTEST || ddr.clock_hz < self.clock_hz.div_ceil(LONGEST) || ddr.clock_hz > FASTEST {
            let (clock, ddr) = (self.clock_hz, ddr.clock_hz);
            return Err(MachineError::Clocks { clock, ddr, fastest: FASTEST, ratio: LONGEST });
        }
        let caches =
            [("cache", self.cache.banks, self.cache.words), ("ewp_cache", self.ewp_cache.banks, self.ewp_cache.words)];
        for (cache, banks, words) in caches {
            if u64::from(banks) * u64::from(words) > LARGEST_CACHE / u64::from(self.cache.word_bytes) {
                return Err(MachineError::Cache { cache, banks, words, limit: LARGEST_CACHE });
            }
        }
        let counts = [
            ("cache.banks", self.cache.banks, BANKS),
            ("ewp_cache.banks", self.ewp_cache.banks, BANKS),
            ("array.accumulators", self.array.accumulators, MOST),
            ("feeder.words", self.feeder.words, MOST),
            ("pdp.taps", self.pdp.taps, MOST),
        ];
        if let Some(&(field, found, limit)) = counts.iter().find(|(_, found, limit)| u64::from(*found) > *limit) {
            return Err(MachineError::TooLarge { field, found: found.into(), limit });
        }
        let spaces = [
            ("ddr.capacity_bytes", ddr.capacity_bytes),
            ("ddr.page_bytes", ddr.page_bytes),
            ("ddr.interleave_bytes", ddr.interleave_bytes),
        ];
        if let Some(&(field, found)) = spaces.iter().find(|(_, found)| *found > LARGEST) {
            return Err(MachineError::TooLarge { field, found, limit: LARGEST });
        }
        Ok(())
    }

    /// SHA-256 of all parameters (not of comments), in hexadecimal; programs carry it.
    #[must_use]
    pub fn hash(&self) -> String {
        let text = serde_json::to_string(self).unwrap_or_default();
        Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Cache word in bytes.
    #[must_use]
    pub fn word(&self) -> usize {
        self.cache.word_bytes as usize
    }

    /// Shared cache in bytes.
    #[must_use]
    pub fn cache_bytes(&self) -> u64 {
        u64::from(self.cache.banks) * u64::from(self.cache.words) * u64::from(self.cache.word_bytes)
    }

    /// Parameter cache in bytes.
    #[must_use]
    pub fn ewp_cache_bytes(&self) -> u64 {
        u64::from(self.ewp_cache.banks) * u64::from(self.ewp_cache.words) * u64::from(self.cache.word_bytes)
    }

    /// Bank of a cache byte address.
    #[must_use]
    pub fn bank(&self, address: u64) -> usize {
        (address / (u64::from(self.cache.words) * u64::from(self.cache.word_bytes))) as usize
    }

    /// Rows (output pixels) one matrix instruction may cover: half the accumulators, a quarter with 48-bit sums.
    #[must_use]
    pub fn matrix_rows(&self, wide: bool) -> usize {
        self.array.accumulators as usize / if wide { 4 } else { 2 }
    }

    /// Channels that transfers see: there are as many as DMA lines at most. Further ones are ganged.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.ddr.channels.min(self.dma.lines) as usize
    }

    /// Physical channels that work in lockstep as one: every access uses all of them, a page is as many times as long, and data
    /// come as many times as fast.
    #[must_use]
    pub fn gang(&self) -> u32 {
        (self.ddr.channels / self.dma.lines).max(1)
    }

    /// Bytes of a page of a channel, over all it gangs.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        self.ddr.page_bytes * u64::from(self.gang())
    }

    /// Bytes of an address space of the DDR.
    #[must_use]
    pub fn ddr_capacity(&self) -> u64 {
        self.ddr.capacity_bytes * u64::from(self.gang()) * (self.channels() / self.ddr_spaces()) as u64
    }

    /// Address spaces of the DDR: one per channel, or a single one when interleaved.
    #[must_use]
    pub fn ddr_spaces(&self) -> usize {
        if self.ddr.interleave_bytes > 0 { 1 } else { self.channels() }
    }

    /// Channel that serves byte `address` of address space `space`.
    #[must_use]
    pub fn channel(&self, space: usize, address: u64) -> usize {
        address.checked_div(self.ddr.interleave_bytes).map_or(space, |b| (b % self.channels() as u64) as usize)
    }

    /// Cycles a channel needs for `bytes`, rounded up.
    #[must_use]
    pub fn ddr_cycles(&self, bytes: u64) -> u64 {
        let per_second = u128::from(self.ddr.word_bytes) * u128::from(self.gang()) * u128::from(self.ddr.clock_hz);
        (u128::from(bytes) * u128::from(self.clock_hz)).div_ceil(per_second) as u64
    }

    /// Cycles to open another page.
    #[must_use]
    pub fn page_miss(&self) -> u64 {
        (self.ddr.page_miss_ns * self.clock_hz).div_ceil(1_000_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_constants() {
        let machine = Machine::preset("128x128_asic").expect("known");
        assert_eq!(machine.cache_bytes(), 16 << 20);
        assert_eq!(machine.ewp_cache_bytes(), 1 << 20);
        assert_eq!(machine.ddr_cycles(4096), 160);
        assert_eq!(machine.page_miss(), 24);
        assert_eq!(Machine::preset("32x32_fpga").expect("known").page_miss(), 5);
        assert_eq!(Machine::preset("64x64_edge").expect("known").cache_bytes(), 8 << 20);
    }

    /// A field of earlier versions is read, and means nothing; a program that carries it keeps its hash.
    #[test]
    fn a_field_without_a_law_is_read_and_left_out() {
        let old = Machine::preset_text("128x128_asic")
            .expect("known")
            .replace("accumulators = 1024", "parameter_tiles = 32\naccumulators = 1024");
        let machine = Machine::parse("old.toml", &old).expect("read");
        assert_eq!(machine, Machine::preset("128x128_asic").expect("known"));
        let mut carried = machine.clone();
        carried.array.parameter_tiles = Some(32);
        assert_ne!(carried.hash(), machine.hash());
        assert!(
            serde_json::to_string(&carried).expect("text").contains("\"accumulators\":1024,\"parameter_tiles\":32}")
        );
        assert!(!serde_json::to_string(&machine).expect("text").contains("parameter_tiles"));
    }

    #[test]
    fn errors_name_the_field() {
        let text = Machine::preset_text("128x128_asic").expect("known").replace("rows = 128 ", "rows = 100 ");
        let message = Machine::parse("my.toml", &text).expect_err("rows differ").to_string();
        assert!(message.contains("my.toml") && message.contains("array.rows 100"), "{message}");
        let message = Machine::parse("my.toml", "name = 3").expect_err("wrong type").to_string();
        assert!(message.contains("line 1"), "{message}");
        let most = format!("= {} #", i64::MAX);
        for (line, field) in [
            ("page_miss_ns = ", "ddr.page_miss_ns"),
            ("capacity_bytes = ", "ddr.capacity_bytes"),
            ("clock_hz = ", "clock_hz"),
            ("words = 4096", "cache.words"),
            ("softmax = ", "ewp.softmax"),
        ] {
            let value = if field == "cache.words" { "= 4294967295 # " } else { &most };
            let text =
                Machine::preset_text("128x128_asic").expect("known").replacen(line, &line.replace("= ", value), 1);
            let message = Machine::parse("my.toml", &text).expect_err(field).to_string();
            assert!(message.contains(field), "{message}");
        }
        assert!(Machine::preset("tpu9").expect_err("unknown").to_string().contains("128x128_asic"));
    }
}
