//! What a connection transfers: both ranks derive it from the seed and the name of the connection.

use regatta_testbed::Random;

/// The most bytes of a group.
pub const MAX_GROUP_BYTES: usize = 4 << 20;
/// Bytes of the pattern, a prime.
const PATTERN_BYTES: usize = 1_048_583;
/// Bytes that a receive must not change.
pub const CANARY: u8 = 0xc5;

/// A message of a group.
#[derive(Debug, Clone, Copy)]
pub struct Message {
    pub tag: i32,
    /// Bytes of the send.
    pub send: usize,
    /// Bytes of the receive, at least as many.
    pub recv: usize,
}

/// Receives that are posted by one `irecv`.
#[derive(Debug, Clone)]
pub struct Group {
    pub sequence: u64,
    pub messages: Vec<Message>,
    /// The completion of the receive is optional.
    pub is_optional: bool,
}

/// The groups of a connection.
pub struct Plan {
    random: Random,
    pub connection: u64,
    sequence: u64,
    amount: Amount,
    /// Receives of a group at most.
    max_recvs: u32,
}

/// How much a connection transfers.
#[derive(Debug, Clone, Copy)]
pub enum Amount {
    /// Groups of any size, until there are this many bytes.
    Bytes(u64),
    /// This many small messages.
    Messages(u64),
}

impl Amount {
    fn is_nothing(self) -> bool {
        matches!(self, Self::Bytes(0) | Self::Messages(0))
    }

    /// The bytes or messages that remain after a group.
    fn minus(self, bytes: usize) -> Self {
        match self {
            Self::Bytes(left) => Self::Bytes(left.saturating_sub(bytes.max(64) as u64)),
            Self::Messages(left) => Self::Messages(left - 1),
        }
    }
}

impl Plan {
    pub fn new(seed: u64, connection: u64, amount: Amount, max_recvs: u32) -> Self {
        let random = Random::new(seed.wrapping_mul(0x9e37_79b9) ^ connection.rotate_left(32));
        Self { random, connection, sequence: 0, amount, max_recvs }
    }

    fn size(&mut self, limit: usize) -> usize {
        let size = match self.random.below(10) {
            0 => 0,
            1..4 => self.random.below(64),
            4..6 => self.random.below(8 << 10),
            // Around the limit of eager messages.
            6 => (16 << 10) - 64 + self.random.below(128),
            7..9 => self.random.below(300 << 10),
            _ => self.random.below(MAX_GROUP_BYTES as u64),
        };
        (size as usize).min(limit)
    }
}

impl Iterator for Plan {
    type Item = Group;

    fn next(&mut self) -> Option<Group> {
        if self.amount.is_nothing() {
            return None;
        }
        let is_small = matches!(self.amount, Amount::Messages(_));
        let is_grouped = !is_small && self.random.below(2) == 0;
        let count = if is_grouped { self.random.within(1, self.max_recvs) } else { 1 };
        let base = self.random.pick(&[0, 1, 1000, i32::MIN, i32::MAX - 8, -4]);
        let mut left = if is_small { 64 } else { MAX_GROUP_BYTES };
        let mut messages: Vec<Message> = Vec::new();
        for tag in 0..count as i32 {
            let send = self.size(left);
            let spare = self.random.pick(&[0, 0, 1, 100, 5000]);
            left -= send;
            messages.push(Message { tag: base + tag, send, recv: send + spare });
        }
        shuffle(&mut self.random, &mut messages);
        let total: usize = messages.iter().map(|message| message.send).sum();
        self.amount = self.amount.minus(total);
        self.sequence += 1;
        let is_optional = self.random.below(4) == 0;
        Some(Group { sequence: self.sequence, messages, is_optional })
    }
}

/// A random order.
pub fn shuffle<T>(random: &mut Random, items: &mut [T]) {
    for end in (1..items.len()).rev() {
        items.swap(end, random.below(end as u64 + 1) as usize);
    }
}

/// The contents of messages.
pub struct Pattern(Vec<u8>);

impl Pattern {
    pub fn new() -> Self {
        let mut random = Random::new(1);
        Self((0..PATTERN_BYTES).map(|_| random.below(256) as u8).collect())
    }

    /// The parts of a message, from its connection, sequence number and index.
    fn parts(&self, id: (u64, u64, usize), length: usize) -> impl Iterator<Item = &[u8]> {
        let (connection, sequence, index) = id;
        let mut mix = Random::new(connection << 40 ^ sequence << 8 ^ index as u64);
        let mut at = mix.below(PATTERN_BYTES as u64) as usize;
        let mut left = length;
        std::iter::from_fn(move || {
            let part = &self.0[at..PATTERN_BYTES.min(at + left)];
            (at, left) = (0, left - part.len());
            (!part.is_empty()).then_some(part)
        })
    }

    pub fn fill(&self, id: (u64, u64, usize), into: &mut [u8]) {
        let mut at = 0;
        for part in self.parts(id, into.len()) {
            into[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
    }

    pub fn matches(&self, id: (u64, u64, usize), bytes: &[u8]) -> bool {
        let mut at = 0;
        self.parts(id, bytes.len()).all(|part| {
            at += part.len();
            bytes[at - part.len()..at] == *part
        })
    }
}
