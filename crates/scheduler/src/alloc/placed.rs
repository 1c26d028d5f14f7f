//! Buffers with addresses, found by when they live.

use super::Item;

/// Blocks of time there are at most.
const MOST_BLOCKS: usize = 256;

/// A buffer with an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacedBuffer {
    pub offset: u64,
    pub item: Item,
}

impl PlacedBuffer {
    /// One past its last unit.
    pub fn end(&self) -> u64 {
        self.offset + self.item.size
    }
}

/// Time is cut into blocks, and a buffer is listed where it starts and in the blocks it lives on in. Whoever meets a buffer
/// lives on into its first block, or starts in one of its blocks.
pub(crate) struct Placed {
    moments: u32,
    starting: Vec<Vec<PlacedBuffer>>,
    living_on: Vec<Vec<PlacedBuffer>>,
    /// Those the last one met, to be used again.
    meeting: Vec<PlacedBuffer>,
    pub height: u64,
}

impl Placed {
    /// Room for buffers that live like `items`.
    pub fn new(items: &[Item]) -> Self {
        let end = items.iter().map(|item| item.last).max().unwrap_or(0);
        let blocks = (items.len() / 16).clamp(1, MOST_BLOCKS) as u32;
        let moments = end / blocks + 1;
        let blocks = (end / moments + 1) as usize;
        Self {
            moments,
            starting: vec![Vec::new(); blocks],
            living_on: vec![Vec::new(); blocks],
            meeting: Vec::new(),
            height: 0,
        }
    }

    /// All that live at the same time as `item`, by address.
    pub fn meeting(&mut self, item: Item) -> &[PlacedBuffer] {
        let (first, last) = self.blocks(item);
        self.meeting.clear();
        let met = self.starting[first..=last].iter().flatten().chain(&self.living_on[first]);
        self.meeting.extend(met.filter(|other| other.item.meets(&item)));
        self.meeting.sort_unstable_by_key(|other| (other.offset, other.item.size));
        &self.meeting
    }

    /// Puts an item at an address.
    pub fn add(&mut self, item: Item, offset: u64) {
        let (first, last) = self.blocks(item);
        let taken = PlacedBuffer { offset, item };
        self.starting[first].push(taken);
        for block in &mut self.living_on[first + 1..=last] {
            block.push(taken);
        }
        self.height = self.height.max(offset + item.size);
    }

    fn blocks(&self, item: Item) -> (usize, usize) {
        ((item.first / self.moments) as usize, (item.last / self.moments) as usize)
    }
}
