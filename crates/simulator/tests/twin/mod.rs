//! A second simulator of cycles, written from `docs/machine.md` for the eye: every cycle is visited, every access is an entry
//! of a list made in advance, waits are counted down. It shares no code with the units it checks, only the closed forms and
//! geometry of `tpuflow-ir`.

mod lookup;
mod packed;
mod state;

use std::collections::{BTreeSet, VecDeque};

use tpuflow_ir::access::accesses;
use tpuflow_ir::isa::{Direction, Matrix, MatrixDescriptor, Transfer, VectorOp};
use tpuflow_ir::timing;
use tpuflow_ir::{DType, Descriptor, Machine, Program, Space, Unit, View, Work};

/// Shared state of a cycle.
struct Shared<'p> {
    program: &'p Program,
    machine: &'p Machine,
    cycle: u64,
    /// Banks that have served somebody in this cycle.
    taken: BTreeSet<u64>,
    finished: [u32; Unit::COUNT],
    /// One past the last cycle of each instruction.
    ends: Vec<u64>,
    finishing: Vec<usize>,
}

impl Shared<'_> {
    fn request(&mut self, word: u64) -> bool {
        self.taken.insert(word / u64::from(self.machine.cache.words))
    }

    fn finish(&mut self, instruction: usize) {
        self.ends[instruction] = self.cycle + 1;
        self.finishing.push(instruction);
    }

    /// Takes the head of a queue if its tokens are there.
    fn take(&self, queue: &mut VecDeque<usize>) -> Option<usize> {
        let waits = &self.program.instructions[*queue.front()?].waits;
        if waits.iter().all(|w| self.finished[w.unit.index()] >= w.count) { queue.pop_front() } else { None }
    }
}

fn queue(program: &Program, unit: Unit) -> VecDeque<usize> {
    (0..program.instructions.len()).filter(|&n| program.instructions[n].unit == unit).collect()
}

enum Step {
    Index(u64),
    /// Channel, page, data cycles, and the data cycle and word of every access.
    Run(usize, u64, u64, VecDeque<(u64, u64)>),
}

fn steps(transfer: &Transfer, machine: &Machine) -> Vec<Step> {
    let word = machine.word() as u64;
    let step = |run: timing::PageRun| {
        let words: Vec<u64> = (run.local / word..=(run.local + run.bytes - 1) / word).collect();
        let n = words.len() as u64;
        let cycles = machine.ddr_cycles(run.bytes).max(n);
        let due = |i: u64| match transfer.direction {
            Direction::Load => ((i + 1) * cycles).div_ceil(n) - 1,
            Direction::Store => i * cycles / n,
        };
        let list = if transfer.local_space == Space::Cache {
            words.iter().enumerate().map(|(i, &w)| (due(i as u64), w)).collect()
        } else {
            VecDeque::new()
        };
        Step::Run(run.channel, run.page, cycles, list)
    };
    timing::page_runs(transfer, machine).into_iter().map(step).collect()
}

#[derive(Default)]
struct Line {
    queue: VecDeque<usize>,
    current: Option<usize>,
    countdown: u64,
    steps: VecDeque<Step>,
    since: Option<u64>,
    /// Cycles left to open the page, and the run's clock.
    active: Option<(u64, u64)>,
}

struct Dma {
    lines: [Line; 2],
    open: Vec<Option<u64>>,
}

/// Cycles more of a load from an address space that is not the device's own.
fn link(work: &Work, machine: &Machine) -> u64 {
    match work {
        Work::Transfer(t) if usize::from(t.ddr_space) >= machine.ddr_spaces() => machine.dma.link_latency,
        _ => 0,
    }
}

impl Dma {
    fn cycle(&mut self, s: &mut Shared<'_>) {
        for line in &mut self.lines {
            if line.current.is_none()
                && let Some(head) = s.take(&mut line.queue)
            {
                line.current = Some(head);
                line.countdown = s.machine.dma.start
                    + s.machine.dma.latency
                    + packed::lead(&s.program.instructions[head].work, s.machine)
                    + link(&s.program.instructions[head].work, s.machine);
                line.steps = match &s.program.instructions[head].work {
                    Work::Transfer(t) => state::steps(s.program, t).into(),
                    Work::Lookup(l) => lookup::lookup(l, s.machine).into(),
                    Work::Expand(e) => packed::expanded(e, s.machine).into(),
                    Work::PackedLookup(l) => lookup::packed_lookup(l, s.machine).into(),
                    _ => unreachable!("lines move data"),
                };
            }
            if line.current.is_some() && line.countdown == 0 && line.since.is_none() {
                line.since = Some(s.cycle);
            }
        }
        for channel in 0..self.open.len() {
            let wants = |line: &Line| matches!(line.steps.front(), Some(Step::Run(c, ..)) if *c == channel);
            if self.lines.iter().any(|line| line.active.is_some() && wants(line)) {
                continue;
            }
            let waiting = |i: &usize| self.lines[*i].since.is_some() && wants(&self.lines[*i]);
            if let Some(i) = [0, 1].into_iter().filter(waiting).min_by_key(|&i| (self.lines[i].since, i))
                && let Some(Step::Run(_, page, ..)) = self.lines[i].steps.front()
            {
                let miss = if self.open[channel] == Some(*page) { 0 } else { s.machine.page_miss() };
                self.open[channel] = Some(*page);
                self.lines[i].active = Some((miss, 0));
            }
        }
        for line in &mut self.lines {
            line.data(s);
            line.countdown = line.countdown.saturating_sub(1);
        }
    }
}

impl Line {
    fn data(&mut self, s: &mut Shared<'_>) {
        let Some(instruction) = self.current else { return };
        if self.countdown > 0 {
            return;
        }
        match (self.steps.front_mut(), &mut self.active) {
            (Some(Step::Index(word)), _) => {
                if !s.request(*word) {
                    return;
                }
            }
            (Some(Step::Run(_, _, cycles, list)), Some((miss, clock))) => {
                if *miss > 0 {
                    *miss -= 1;
                    return;
                }
                if let Some((due, word)) = list.front()
                    && due <= clock
                {
                    if !s.request(*word) {
                        return;
                    }
                    list.pop_front();
                }
                *clock += 1;
                if *clock < *cycles {
                    return;
                }
            }
            _ => return,
        }
        self.steps.pop_front();
        (self.active, self.since) = (None, None);
        if self.steps.is_empty() {
            self.current = None;
            s.finish(instruction);
        }
    }
}

/// Due time and word of every access of a stream.
type List = VecDeque<(u64, u64)>;

struct Job {
    instruction: usize,
    last: u64,
    writes: List,
    reads: Vec<List>,
}

struct Stream {
    queue: VecDeque<usize>,
    start: u64,
    latency: u64,
    issue: Option<(usize, u64)>,
    jobs: VecDeque<Job>,
    clock: u64,
    free: u64,
}

/// Words of rows; of pixels of several words those that hold the view's channels.
fn row_words(view: &View, first: u32, count: u32, word: usize) -> Vec<u64> {
    let per_row = view.row_bytes(word) / word as u64;
    let pixel = u64::from(view.pixel_bytes);
    let own = u64::from(view.channel_offset)..u64::from(view.channel_offset) + view.payload() as u64;
    let holds = |w: u64| {
        let at = w * word as u64 % pixel;
        pixel <= word as u64 || (at < own.end && own.start < at + word as u64)
    };
    (first..first + count)
        .flat_map(|r| {
            (0..per_row)
                .filter(|w| holds(*w))
                .map(move |w| view.row_address(r, word) / word as u64 + w)
                .collect::<Vec<_>>()
        })
        .collect()
}

impl Stream {
    fn job(&self, s: &Shared<'_>, instruction: usize) -> Job {
        let (program, word) = (s.program, s.machine.word());
        let work = &program.instructions[instruction].work;
        let timing::Streams { cycles, reads, writes } = timing::streams(work, &program.descriptors, s.machine).unwrap();
        let touched = accesses(&program.instructions[instruction], &program.descriptors, s.machine);
        let stretch =
            |t: &tpuflow_ir::access::Stretch| -> Vec<u64> { (t.start / word as u64..t.end / word as u64).collect() };
        let (inputs, output): (Vec<Vec<u64>>, Vec<u64>) = match work {
            Work::Pool(p) => {
                let Descriptor::Pool(d) = program.descriptor(p.descriptor) else { unreachable!("a pool") };
                let mut lines = Vec::new();
                for row in p.first_row..p.first_row + p.rows {
                    for tap in 0..d.window.kernel[0] {
                        let line = (row % p.output.height * d.window.stride[0] + tap * d.window.dilation[0]) as i64
                            - i64::from(d.window.pads[0]);
                        if line >= 0 && line < i64::from(p.input.height) {
                            let image = row / p.output.height;
                            lines.extend(row_words(&p.input, image * p.input.height + line as u32, 1, word));
                        }
                    }
                }
                (vec![lines], row_words(&p.output, p.first_row, p.rows, word))
            }
            Work::Vector(v) => {
                let Descriptor::Vector(op) = program.descriptor(v.descriptor) else { unreachable!("a vector") };
                // Over a part of an operand: one stretch from the first word to the last.
                let whole = op.reduces() || matches!(op, VectorOp::Move { .. } | VectorOp::Gather { .. });
                let in_cache = touched.reads.iter().filter(|read| read.space == Space::Cache);
                let inputs = v.inputs.iter().zip(in_cache).map(|(view, read)| {
                    let is_part = whole || view.rows != v.output.rows;
                    if is_part { stretch(read) } else { row_words(view, v.first_row, v.rows, word) }
                });
                let output = if whole {
                    touched.writes.iter().flat_map(stretch).collect()
                } else {
                    row_words(&v.output, v.first_row, v.rows, word)
                };
                (inputs.collect(), output)
            }
            _ => unreachable!("streams"),
        };
        let begin = self.clock;
        let at = |words: &[u64], i: u64, n: u64| words[(i * words.len() as u64 / n) as usize];
        Job {
            instruction,
            last: begin + cycles + self.latency - 1,
            writes: (0..writes)
                .map(|i| (begin + ((i + 1) * cycles).div_ceil(writes) - 1 + self.latency, at(&output, i, writes)))
                .collect(),
            reads: inputs
                .iter()
                .zip(reads)
                .map(|(words, n)| (0..n).map(|i| (begin + i * cycles / n, at(words, i, n))).collect())
                .collect(),
        }
    }

    fn cycle(&mut self, s: &mut Shared<'_>) {
        if let Some((instruction, 0)) = self.issue
            && self.clock >= self.free
        {
            let job = self.job(s, instruction);
            self.free = job.last + 1 - self.latency;
            self.jobs.push_back(job);
            self.issue = None;
        }
        if self.issue.is_none() {
            self.issue = s.take(&mut self.queue).map(|head| (head, self.start));
        }
        let mut refused = false;
        for job in &mut self.jobs {
            for list in std::iter::once(&mut job.writes).chain(&mut job.reads) {
                while let Some((due, word)) = list.front()
                    && *due <= self.clock
                {
                    if !s.request(*word) {
                        refused = true;
                        break;
                    }
                    list.pop_front();
                }
            }
        }
        if !refused {
            while self.jobs.front().is_some_and(|job| job.last <= self.clock) {
                let job = self.jobs.pop_front().unwrap();
                s.finish(job.instruction);
            }
            self.clock += 1;
        }
        if let Some((_, left)) = &mut self.issue {
            *left = left.saturating_sub(1);
        }
    }
}

/// Words of each array row, last first, and words of each pixel.
type TileWords = (VecDeque<VecDeque<u64>>, Vec<BTreeSet<u64>>);

struct MatrixJob {
    instruction: usize,
    number: u32,
    tiles: Vec<TileWords>,
    /// Whether a pixel begins an output row.
    begins: Vec<bool>,
    outputs: VecDeque<(usize, u64)>,
    entries: Vec<u64>,
}

fn matrix_job(m: &Matrix, d: &MatrixDescriptor, machine: &Machine, instruction: usize, number: u32) -> MatrixJob {
    let word = machine.word() as u64;
    let (size, weight_size) = (m.input.dtype.bytes() as u64, d.weight_dtype.bytes() as u64);
    let begins: Vec<bool> = (0..m.pixels).map(|p| (m.first_pixel + p).is_multiple_of(m.output.width)).collect();
    let mut tiles = Vec::new();
    for block in timing::blocks(d, &m.input, m.first_column, m.columns, machine) {
        let passes = if m.input.dtype.is_float() { 1 } else { size * weight_size };
        for _ in 0..passes {
            let lanes: Vec<(u32, u32)> = (block.first_tap..block.first_tap + block.taps)
                .flat_map(|tap| (0..block.channels).map(move |c| (tap, block.first_channel + c)))
                .collect();
            let mut rows: VecDeque<VecDeque<u64>> = lanes
                .iter()
                .map(|(tap, channel)| {
                    let row = m.weights.address
                        + u64::from(tap * d.group_in + channel % d.group_in) * u64::from(m.weights.row_bytes);
                    (row / word..=(row + u64::from(m.columns) * weight_size - 1) / word).collect()
                })
                .collect();
            // Every element has as many array rows as bytes, each with a cycle for a word of its weights.
            let in_their_cycles: usize = rows.iter().map(|words| words.len().min(size as usize)).sum();
            rows.resize(rows.len() + machine.array.rows as usize - in_their_cycles, VecDeque::new());
            let pixels = (m.first_pixel..m.first_pixel + m.pixels).map(|pixel| {
                let (row, column) = (pixel / m.output.width, pixel % m.output.width);
                let mut words = BTreeSet::new();
                for (tap, channel) in &lanes {
                    let (kh, kw) = (tap / d.window.kernel[1], tap % d.window.kernel[1]);
                    let y = i64::from(row % m.output.height * d.window.stride[0] + kh) - i64::from(d.window.pads[0]);
                    let x = i64::from(column * d.window.stride[1] + kw) - i64::from(d.window.pads[1]);
                    if (0..i64::from(m.input.height)).contains(&y) && (0..i64::from(m.input.width)).contains(&x) {
                        let at = m.input.pixel_address(y as u32, x as u32, machine.word()) + u64::from(*channel) * size;
                        words.insert(at / word);
                    }
                }
                words
            });
            tiles.push((rows.into_iter().rev().collect(), pixels.collect()));
        }
    }
    let mut outputs: VecDeque<(usize, u64)> = VecDeque::new();
    for pixel in 0..m.pixels {
        let at = m.first_pixel + pixel;
        let start = m.output.pixel_address(at / m.output.width, at % m.output.width, machine.word());
        let size = m.output.dtype.bytes() as u64;
        let channels = u64::from(m.output_channel)..u64::from(m.output_channel + m.columns);
        for byte in channels.start * size..channels.end * size {
            let taken = (start + byte) / word;
            match outputs.back_mut() {
                Some((complete, last)) if *last == taken => *complete = pixel as usize,
                _ => outputs.push_back((pixel as usize, taken)),
            }
        }
    }
    MatrixJob { instruction, number, tiles, begins, outputs, entries: vec![] }
}

enum Register {
    Free,
    Loading(VecDeque<VecDeque<u64>>),
    Full,
}

struct Feed {
    job: u32,
    pixels: Vec<BTreeSet<u64>>,
    is_last: bool,
    next: usize,
    missing: Option<BTreeSet<u64>>,
    age: u64,
    /// Cycles a pixel stays, and how many are left of the last one's.
    phases: u64,
    left: u64,
}

struct MatrixEngine {
    queue: VecDeque<usize>,
    /// Instruction, cycles left, whether it is set up.
    issue: Option<(usize, u64, bool)>,
    jobs: VecDeque<MatrixJob>,
    /// Job and tile in the second register, or to be loaded next.
    tile: (u32, usize),
    entered: u32,
    register: Register,
    feed: Option<Feed>,
}

impl MatrixEngine {
    fn cycle(&mut self, s: &mut Shared<'_>) {
        let rows = u64::from(s.machine.array.rows);
        if let Some((_, left @ 0, set_up @ false)) = &mut self.issue {
            *set_up = true;
            *left = if self.jobs.is_empty() { s.machine.array.setup } else { 0 };
        }
        if self
            .feed
            .as_ref()
            .is_some_and(|feed| feed.next == feed.pixels.len() && feed.age >= rows * feed.phases && feed.left == 0)
        {
            self.feed = None;
        }
        let (number, tile) = self.tile;
        if self.feed.is_none() && matches!(self.register, Register::Full) && (tile > 0 || self.room(s, number)) {
            let job = self.jobs.iter().find(|job| job.number == number).unwrap();
            let is_last = tile + 1 == job.tiles.len();
            let pixels = job.tiles[tile].1.clone();
            let Work::Matrix(m) = &s.program.instructions[job.instruction].work else { unreachable!("a product") };
            let phases = match m.input.dtype {
                DType::F16 | DType::BF16 => 4,
                DType::F32 => 16,
                _ => 1,
            };
            self.feed = Some(Feed { job: number, pixels, is_last, next: 0, missing: None, age: 0, phases, left: 0 });
            self.register = Register::Free;
            self.tile = if is_last { (number + 1, 0) } else { (number, tile + 1) };
        }
        self.fetch(s);
        if matches!(self.register, Register::Free) {
            if self.tile.0 == self.entered
                && let Some((instruction, 0, true)) = self.issue
            {
                let Work::Matrix(m) = &s.program.instructions[instruction].work else { unreachable!("a product") };
                let Descriptor::Matrix(d) = s.program.descriptor(m.descriptor) else { unreachable!("a product") };
                self.jobs.push_back(matrix_job(m, d, s.machine, instruction, self.entered));
                self.entered += 1;
                self.issue = None;
            }
            if let Some(job) = self.jobs.iter().find(|job| job.number == self.tile.0) {
                self.register = Register::Loading(job.tiles[self.tile.1].0.clone());
            }
        }
        if self.issue.is_none() {
            let cycles = if self.jobs.is_empty() { s.machine.control.issue_cold } else { s.machine.control.issue };
            self.issue = s.take(&mut self.queue).map(|head| (head, cycles, false));
        }
        if let Register::Loading(rows) = &mut self.register {
            let row = rows.front_mut().unwrap();
            if row.front().is_none_or(|word| s.request(*word)) {
                row.pop_front();
                if row.is_empty() {
                    rows.pop_front();
                }
            }
            if rows.is_empty() {
                self.register = Register::Full;
            }
        }
        self.write(s);
        if let Some((_, left, _)) = &mut self.issue {
            *left = left.saturating_sub(1);
        }
        if let Some(feed) = &mut self.feed {
            feed.age += 1;
            feed.left = feed.left.saturating_sub(1);
        }
    }

    /// Whether the accumulators hold the sums of everything unfinished up to job `number`.
    fn room(&self, s: &Shared<'_>, number: u32) -> bool {
        let mut entries = 0;
        for job in self.jobs.iter().filter(|job| job.number <= number) {
            let Work::Matrix(m) = &s.program.instructions[job.instruction].work else { unreachable!("a product") };
            let Descriptor::Matrix(d) = s.program.descriptor(m.descriptor) else { unreachable!("a product") };
            let wide = !m.input.dtype.is_float() && m.input.dtype.bytes() * d.weight_dtype.bytes() > 1;
            entries += m.pixels * if wide { 2 } else { 1 };
        }
        entries <= s.machine.array.accumulators
    }

    fn fetch(&mut self, s: &mut Shared<'_>) {
        let Some(feed) = &mut self.feed else { return };
        if feed.next == feed.pixels.len() || feed.left > 0 {
            return;
        }
        let job = self.jobs.iter_mut().find(|job| job.number == feed.job).unwrap();
        let none = BTreeSet::new();
        let held = if feed.next == 0 || job.begins[feed.next] { &none } else { &feed.pixels[feed.next - 1] };
        let missing = feed.missing.get_or_insert_with(|| feed.pixels[feed.next].difference(held).copied().collect());
        let mut taken = 0;
        missing.retain(|word| {
            let granted = taken < s.machine.feeder.words && s.request(*word);
            taken += u32::from(granted);
            !granted
        });
        if missing.is_empty() {
            if feed.is_last {
                job.entries.push(s.cycle + feed.phases - 1);
            }
            feed.left = feed.phases;
            feed.missing = None;
            feed.next += 1;
        }
    }

    fn write(&mut self, s: &mut Shared<'_>) {
        let depth = timing::array_depth(s.machine);
        let Some(job) = self.jobs.front_mut() else { return };
        let (pixel, word) = job.outputs[0];
        if job.entries.get(pixel).is_some_and(|entry| entry + depth <= s.cycle) && s.request(word) {
            job.outputs.pop_front();
            if job.outputs.is_empty() {
                s.finish(job.instruction);
                self.jobs.pop_front();
            }
        }
    }
}

/// One past the last cycle of every instruction.
pub fn ends(program: &Program) -> Vec<u64> {
    let machine = &program.machine;
    let count = program.instructions.len();
    let mut s = Shared {
        program,
        machine,
        cycle: machine.control.start,
        taken: BTreeSet::new(),
        finished: [0; Unit::COUNT],
        ends: vec![0; count],
        finishing: vec![],
    };
    let line = |unit| Line { queue: queue(program, unit), ..Line::default() };
    let mut dma = Dma { lines: [line(Unit::Dtl0), line(Unit::Dtl1)], open: vec![None; machine.channels()] };
    let mut matrix = MatrixEngine {
        queue: queue(program, Unit::Me),
        issue: None,
        jobs: VecDeque::new(),
        tile: (0, 0),
        entered: 0,
        register: Register::Free,
        feed: None,
    };
    let stream = |unit, start, latency| Stream {
        queue: queue(program, unit),
        start,
        latency,
        issue: None,
        jobs: VecDeque::new(),
        clock: 0,
        free: 0,
    };
    let mut ewp = stream(Unit::Ewp, machine.ewp.start, machine.ewp.latency);
    let mut pdp = stream(Unit::Pdp, machine.pdp.start, machine.pdp.latency);
    while s.ends.contains(&0) {
        assert!(s.cycle < 10_000_000, "the program does not end");
        s.taken.clear();
        dma.cycle(&mut s);
        matrix.cycle(&mut s);
        ewp.cycle(&mut s);
        pdp.cycle(&mut s);
        for instruction in std::mem::take(&mut s.finishing) {
            s.finished[program.instructions[instruction].unit.index()] += 1;
        }
        s.cycle += 1;
    }
    s.ends
}
