//! A coordinator and hundreds of agents in a tree, in one thread and over real connections. The
//! benchmark `agent_startup` does this with ten thousand.

#[path = "../../../../bench/src/sim_agents.rs"]
mod sim_agents;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use regatta_launch::agents::bootstrap_document::JobTimeouts;
use regatta_launch::agents::coordinator::Coordinator;
use regatta_launch::agents::message::{NodeLaunch, RankLaunch};
use regatta_launch::agents::tree::Tree;
use regatta_launch::cpu_binding::Binding;
use regatta_launch::worker_group::{JobEvent, WorkerGroup};
use regatta_model::MemoryPolicy;
use regatta_wire::secret::Secret;
use sim_agents::{SimAgents, SimConfig, free_port};

const AGENTS: u32 = 300;
const FAN_OUT: u32 = 8;
/// Number of lines that each rank writes before it exits.
const LINES: usize = 20;
/// A timeout that does not expire even on a slow machine.
const LONG: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(1);

struct Cluster {
    coordinator: Coordinator,
    agents: SimAgents,
}

impl Cluster {
    fn new() -> Self {
        let times = JobTimeouts { grace: LONG, join: LONG, lost_after: LONG };
        let hosts: Vec<String> = (0..AGENTS).map(|i| format!("node{i}")).collect();
        let secret = Secret::generate().unwrap();
        let coordinator = Coordinator::listen(&hosts, secret.clone(), times).unwrap();
        let common = SimConfig {
            tree: Tree { nodes: AGENTS, fan_out: FAN_OUT },
            root: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), coordinator.port()),
            port: free_port().unwrap(),
            secret,
            times,
            machine: "a machine\n".repeat(1000),
        };
        let nodes: Vec<u32> = (0..AGENTS).collect();
        Self { coordinator, agents: SimAgents::new(&nodes, common).unwrap() }
    }

    /// Polls both sides until the condition holds.
    fn wait_until(&mut self, what: &str, mut condition: impl FnMut(&mut Coordinator) -> bool) {
        let start = Instant::now();
        while !condition(&mut self.coordinator) {
            assert!(start.elapsed() < LONG, "timed out waiting until {what}");
            self.coordinator.poll(POLL);
            self.agents.poll(POLL).unwrap();
        }
    }
}

/// One rank per node, which writes [`LINES`] lines.
fn launches(attempt: u32) -> Vec<(u32, NodeLaunch)> {
    let words = (0..=LINES).map(|n| n.to_string().into());
    let binding = Binding::new(&Default::default(), &MemoryPolicy::Default);
    let launch = |rank: u32| NodeLaunch {
        attempt,
        command: words.clone().collect(),
        cwd: "/".into(),
        ranks: vec![RankLaunch { rank, command: None, env: Vec::new(), binding: binding.clone() }],
        ..NodeLaunch::default()
    };
    (0..AGENTS).map(|node| (node, launch(node))).collect()
}

#[test]
fn hundreds_of_agents_join_run_two_attempts_with_all_their_output_and_exit() {
    let mut cluster = Cluster::new();
    cluster.wait_until("all agents are registered", |c| c.missing().is_empty());
    for node in 0..AGENTS {
        let registration = cluster.coordinator.registration(node);
        assert_eq!(registration.map(|r| (r.node, r.machine.len())), Some((node, 10_000)));
    }
    for attempt in 0..2 {
        cluster.coordinator.start(attempt, launches(attempt));
        let (mut started, mut exited) = (Vec::new(), Vec::new());
        let mut lines = vec![Vec::new(); AGENTS as usize];
        cluster.wait_until("the attempt is finished", |coordinator| {
            while let Some(event) = coordinator.next(Duration::ZERO, false) {
                match event {
                    JobEvent::Started { rank, .. } => started.push(rank),
                    JobEvent::Exited(rank, exit) if exit.is_success() => exited.push(rank),
                    JobEvent::Line(line) => {
                        let number: usize = line.text.parse().unwrap();
                        line.ranks.iter().for_each(|&rank| lines[rank as usize].push(number));
                    }
                    JobEvent::Progress => {}
                    JobEvent::Finished => return true,
                    other => panic!("unexpected event: {other:?}"),
                }
            }
            false
        });
        let all: Vec<u32> = (0..AGENTS).collect();
        started.sort_unstable();
        exited.sort_unstable();
        assert_eq!((&started, &exited), (&all, &all));
        for (rank, lines) in lines.iter().enumerate() {
            assert!(lines.iter().copied().eq(1..=LINES), "lines of rank {rank}: {lines:?}");
        }
    }
    let Cluster { coordinator, mut agents } = cluster;
    let shutdown = std::thread::spawn(move || coordinator.shutdown());
    let start = Instant::now();
    while !agents.has_left() {
        assert!(start.elapsed() < LONG, "agents are still running");
        agents.poll(POLL).unwrap();
    }
    shutdown.join().unwrap();
    agents.finish().unwrap();
}
