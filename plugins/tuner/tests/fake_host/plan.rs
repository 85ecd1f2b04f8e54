//! Random tables and requests, and what the plug-in has to do with them.

use std::ffi::c_int;

use regatta_nccl_tuning::{
    Algorithm, Choice, Communicator, Function, Protocol, Row, SizeRange, Table,
};

use crate::plugin::Request;

/// A generator of random numbers (splitmix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// A size: any power of two, or around one.
    fn bytes(&mut self) -> u64 {
        let power = 1u64 << self.below(64);
        power.wrapping_add(self.below(3)).wrapping_sub(1)
    }
}

/// Sizes of communicators; the table has rows for most of them.
pub const COMMUNICATORS: [Communicator; 4] = [
    Communicator { ranks: 2, nodes: 1 },
    Communicator { ranks: 16, nodes: 2 },
    Communicator { ranks: 16, nodes: 16 },
    Communicator { ranks: 8, nodes: 8 },
];

/// A random table.
pub fn table(seed: u64) -> Table {
    let mut random = Random::new(seed);
    let mut rows = Vec::new();
    while rows.len() < 60 {
        let function = random.pick(&Function::ALL);
        let (algorithm, protocol) = (random.pick(&Algorithm::ALL), random.pick(&Protocol::ALL));
        if !algorithm.supports(function, protocol) {
            continue;
        }
        let has_channels = algorithm.has_channel_choice() && random.below(2) == 0;
        let channels = if has_channels { 1 + random.below(64) as u8 } else { 0 };
        let (a, b) = (random.bytes(), random.bytes());
        rows.push(Row {
            function,
            communicator: random.pick(&COMMUNICATORS[..3]),
            sizes: SizeRange { first: a.min(b), last: a.max(b) },
            choice: Choice { algorithm, protocol, channels },
        });
    }
    Table { comments: vec!["random".to_owned()], rows }
}

/// A random request: mostly as NCCL's, sometimes of versions to come.
pub fn request(random: &mut Random) -> Request {
    let function = if random.below(8) > 0 { random.below(5) } else { random.below(20) } as c_int;
    let algorithms = random.pick(&[7, 7, 7, 1, 5, 9]);
    let protocols = random.pick(&[3, 3, 3, 1, 2, 4]);
    let mut cost = |_| match random.below(12) {
        0..5 => -1.0,
        5 => 0.0,
        6 => f32::NAN,
        7 => 1024.0 * 1024.0,
        8 => f32::INFINITY,
        _ => 1.0 + random.below(1000) as f32,
    };
    let costs = (0..algorithms * protocols).map(&mut cost).collect();
    Request {
        function: if random.below(50) == 0 {
            random.pick(&[-1, c_int::MIN, c_int::MAX])
        } else {
            function
        },
        bytes: random.bytes() as usize,
        pipe_ops: random.pick(&[1, 1, 1, 0, 2, 100]),
        costs,
        algorithms,
        protocols,
        registered: random.below(2) as c_int,
    }
}

/// What the plug-in has to choose, by the definition of a table.
pub fn expected(table: &Table, communicator: Communicator, request: &Request) -> Option<Choice> {
    let lowest = request.costs.iter().copied().filter(|cost| *cost >= 0.0).fold(f32::MAX, f32::min);
    let is_chosen = |row: &&Row| {
        let (algorithm, protocol) = (row.choice.algorithm as i32, row.choice.protocol as i32);
        if algorithm >= request.algorithms || protocol >= request.protocols {
            return false;
        }
        let cost = request.costs[(algorithm * request.protocols + protocol) as usize];
        row.communicator == communicator
            && row.function as i32 == request.function
            && (row.sizes.first..=row.sizes.last).contains(&(request.bytes as u64))
            && cost >= 0.0
            && (cost <= lowest * 100.0 || cost == 0.0)
    };
    let row = table.rows.iter().find(is_chosen)?;
    (request.pipe_ops <= 1).then_some(row.choice)
}
