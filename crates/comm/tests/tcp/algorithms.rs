//! Every algorithm that there is, over real connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use regatta_comm::background::{Abort, Background, Engine};
use regatta_comm::error::Peer;
use regatta_comm::join::engine;
use regatta_comm::schedule::Algorithm;
use regatta_comm::tcp::TcpEngine;
use regatta_comm::{Call, CommError, DType, Kind, ReduceOp};

use crate::{settings, suite};

/// Does calls by one algorithm after the other.
struct InTurn {
    engine: TcpEngine,
    which: Arc<AtomicUsize>,
}

impl Engine for InTurn {
    fn rank(&self) -> u32 {
        self.engine.rank()
    }

    fn peers(&self) -> Vec<Peer> {
        self.engine.peers()
    }

    fn run(&mut self, call: Call<'_>) -> Result<(), CommError> {
        self.engine.run_by(call, Algorithm::ALL[self.which.load(Ordering::SeqCst)])
    }

    fn split(
        &mut self,
        colour: Option<u32>,
        key: i64,
    ) -> Result<Option<Box<dyn Engine>>, CommError> {
        self.engine.split(colour, key)
    }

    fn abort(&self) -> Abort {
        self.engine.abort()
    }
}

#[test]
fn every_algorithm_gives_what_the_reference_gives() {
    let which = Arc::new(AtomicUsize::new(0));
    // Two ranks on a node, and one alone.
    let mut all = settings(5);
    all.iter_mut().for_each(|rank| rank.node = format!("node {}", rank.rank / 2));
    let engines = std::thread::scope(|scope| {
        let threads: Vec<_> = all.into_iter().map(|rank| scope.spawn(|| engine(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect::<Vec<_>>()
    });
    let world: Vec<Background> = engines
        .into_iter()
        .map(|engine| Background::new(Box::new(InTurn { engine, which: which.clone() })))
        .collect();
    // The last is cut into segments.
    for (turn, count) in [1, 1003, 150_003].into_iter().enumerate() {
        for kind in Kind::ALL {
            let whole = matches!(kind, Kind::AllReduce | Kind::Reduce | Kind::Broadcast);
            let count = if whole { count } else { count / 5 + 1 };
            for (at, algorithm) in Algorithm::ALL.into_iter().enumerate() {
                if !algorithm.does(kind) {
                    continue;
                }
                which.store(at, Ordering::SeqCst);
                let (dtype, op, root) = (DType::F32, ReduceOp::Sum, at as u32 % 5);
                let (sizes, in_place) = (suite::Sizes::Equal(count), (turn + at) % 2 == 0);
                let case = suite::Case { kind, dtype, op, root, sizes, in_place, seed: 0 };
                case.check_on(&world);
            }
        }
    }
}
