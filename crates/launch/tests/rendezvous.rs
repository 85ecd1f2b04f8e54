//! A whole fleet in one thread: the coordinator and hundreds of agents in a tree, over real
//! connections. The benchmark of the same name does this with ten thousand.

#![allow(clippy::unwrap_used)]

#[path = "../../../bench/src/flock.rs"]
mod flock;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use flock::{Common, Flock, free_port};
use regatta_launch::bind::Binding;
use regatta_launch::crew::{Crew, Event};
use regatta_launch::fleet::boot::Times;
use regatta_launch::fleet::coordinator::Fleet;
use regatta_launch::fleet::message::{RankWork, Work};
use regatta_launch::fleet::tree::Tree;
use regatta_model::MemoryPolicy;
use regatta_wire::secret::Secret;

const AGENTS: u32 = 300;
const FAN_OUT: u32 = 8;
/// Nothing times out, however slow the machine is.
const LONG: Duration = Duration::from_secs(120);
const TURN: Duration = Duration::from_millis(1);

struct World {
    fleet: Fleet,
    flock: Flock,
}

impl World {
    fn new() -> Self {
        let times = Times { grace: LONG, join: LONG, lost_after: LONG };
        let hosts: Vec<String> = (0..AGENTS).map(|i| format!("node{i}")).collect();
        let secret = Secret::generate().unwrap();
        let fleet = Fleet::listen(&hosts, secret.clone(), times).unwrap();
        let common = Common {
            tree: Tree { nodes: AGENTS, fan_out: FAN_OUT },
            root: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), fleet.port()),
            port: free_port().unwrap(),
            secret,
            times,
            machine: "a machine\n".repeat(1000),
        };
        let nodes: Vec<u32> = (0..AGENTS).collect();
        Self { fleet, flock: Flock::new(&nodes, common).unwrap() }
    }

    /// Lets both sides act until it is so.
    fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Fleet) -> bool) {
        let start = Instant::now();
        while !is_so(&mut self.fleet) {
            assert!(start.elapsed() < LONG, "waited in vain: {what}");
            self.fleet.poll(TURN);
            self.flock.turn(TURN).unwrap();
        }
    }
}

/// One rank on each node, with the node's number.
fn work(attempt: u32) -> Vec<(u32, Work)> {
    let binding = Binding::new(&Default::default(), &MemoryPolicy::System);
    let one = |rank: u32| Work {
        attempt,
        command: vec!["true".into()],
        folder: "/".into(),
        base: Vec::new(),
        without: Vec::new(),
        common: Vec::new(),
        progress: false,
        ranks: vec![RankWork { rank, command: None, env: Vec::new(), binding: binding.clone() }],
    };
    (0..AGENTS).map(|node| (node, one(node))).collect()
}

#[test]
fn hundreds_of_agents_join_run_two_jobs_and_leave() {
    let mut world = World::new();
    world.until("all agents are there", |fleet| fleet.absent().is_empty());
    for node in 0..AGENTS {
        assert_eq!(
            world.fleet.hello(node).map(|h| (h.node, h.machine.len())),
            Some((node, 10_000))
        );
    }
    for attempt in 0..2 {
        world.fleet.begin(attempt, work(attempt));
        let (mut started, mut ended) = (Vec::new(), Vec::new());
        world.until("the job is over", |fleet| {
            while let Some(event) = fleet.next(Duration::ZERO, false) {
                match event {
                    Event::Started { rank, .. } => started.push(rank),
                    Event::Ended(rank, ending) if ending.is_good() => ended.push(rank),
                    Event::Over => return true,
                    other => panic!("an empty job does not do this: {other:?}"),
                }
            }
            false
        });
        let all: Vec<u32> = (0..AGENTS).collect();
        started.sort_unstable();
        ended.sort_unstable();
        assert_eq!((&started, &ended), (&all, &all));
    }
    let World { fleet, mut flock } = world;
    let leaving = std::thread::spawn(move || fleet.leave());
    let start = Instant::now();
    while !flock.has_left() {
        assert!(start.elapsed() < LONG, "agents stayed");
        flock.turn(TURN).unwrap();
    }
    leaving.join().unwrap();
    flock.finish().unwrap();
}
