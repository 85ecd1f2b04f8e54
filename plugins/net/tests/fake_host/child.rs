//! What the ranks of the tests do, each in a process of its own.

use std::path::PathBuf;

use regatta_testbed::Random;

use crate::arena::Arena;
use crate::comm::{Comm, End, Milestone, publish};
use crate::config;
use crate::handshake;
use crate::plan::{Amount, Pattern};
use crate::plugin::{Plugin, messages};

/// Environment variable with the task of a rank.
pub const VARIABLE: &str = "REGATTA_TEST_FAKE_HOST";

/// Bytes after which faults are injected.
const MILESTONE: u64 = 20 << 20;
/// More than is transferred before a fault.
const ENDLESS: Amount = Amount::Bytes(u64::MAX);
/// More than the sequence numbers of groups.
const MANY: Amount = Amount::Messages(70_000);

/// The task of a rank.
#[derive(Debug, Clone)]
pub struct Task {
    pub scenario: Scenario,
    pub version: u32,
    pub seed: u64,
    pub rank: u64,
    /// Bytes of each connection.
    pub bytes: u64,
    /// Where ranks exchange handles.
    pub folder: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Several communicators at once; the library is closed and opened again.
    Schedule,
    /// As before, with both ranks in one process.
    OneProcess,
    /// So many small messages that sequence numbers begin again.
    Wrap,
    /// Communicators are aborted with requests in flight.
    Abort,
    /// Transfers until the peer ends or the network fails; then a communicator with another peer.
    Survivor,
    /// Transfers until it is killed.
    Victim,
    /// The second rank of the survivor's second communicator.
    Replacement,
    /// Transfers until the network fails.
    CutOff,
    /// Rank 1 stops itself for a while.
    Stop,
    /// Listeners and connections that never meet.
    Handshake,
    /// Prints what the plug-in says about itself.
    Config,
    /// Calls all functions with NULL.
    Null,
}

const SCENARIOS: [Scenario; 12] = [
    Scenario::Schedule,
    Scenario::OneProcess,
    Scenario::Wrap,
    Scenario::Abort,
    Scenario::Survivor,
    Scenario::Victim,
    Scenario::Replacement,
    Scenario::CutOff,
    Scenario::Stop,
    Scenario::Handshake,
    Scenario::Config,
    Scenario::Null,
];

impl Task {
    pub fn to_text(&self) -> String {
        let Self { scenario, version, seed, rank, bytes, folder } = self;
        format!("{} {version} {seed} {rank} {bytes} {}", *scenario as usize, folder.display())
    }

    pub fn from_env() -> Option<Self> {
        let text = std::env::var(VARIABLE).ok()?;
        let words: Vec<&str> = text.splitn(6, ' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        Some(Self {
            scenario: SCENARIOS[number(0) as usize],
            version: number(1) as u32,
            seed: number(2),
            rank: number(3),
            bytes: number(4),
            folder: words[5].into(),
        })
    }

    pub fn run(&self) {
        match self.scenario {
            Scenario::Schedule => self.schedule(&[self.rank]),
            Scenario::OneProcess => self.schedule(&[0, 1]),
            Scenario::Wrap => self.wrap(),
            Scenario::Abort => self.abort(),
            Scenario::Survivor => {
                self.fault();
                self.transfer(1);
            }
            Scenario::Victim => self.fault(),
            Scenario::Replacement => self.transfer(1),
            Scenario::CutOff => {
                self.transfer(1);
                self.fault();
            }
            Scenario::Stop => self.stop(),
            Scenario::Handshake => handshake::run(self),
            Scenario::Config => config::report(self),
            Scenario::Null => config::call_with_null(self),
        }
    }

    /// Opens the library, and checks its NICs.
    pub fn open(&self) -> Plugin {
        let mut plugin = Plugin::open(self.version);
        plugin.init().unwrap();
        assert!(plugin.devices().unwrap() > 0, "{:?}", messages());
        config::check_properties(&plugin);
        plugin
    }

    fn comm<'a>(&'a self, plugin: &'a Plugin, pattern: &'a Pattern, id: u64) -> Comm<'a> {
        let (folder, rank, seed) = (&*self.folder, self.rank, self.seed);
        let (connections, amount, end) = (2, Amount::Bytes(self.bytes), End::Complete);
        Comm { plugin, pattern, folder, id, rank, seed, connections, amount, end }
    }

    /// Communicators at once, each with its own threads, and again after the library was closed.
    fn schedule(&self, ranks: &[u64]) {
        let pattern = Pattern::new();
        for round in 0..2 {
            let plugin = self.open();
            std::thread::scope(|scope| {
                for (id, rank) in (0..2).flat_map(|id| ranks.iter().map(move |rank| (id, *rank))) {
                    let comm = self.comm(&plugin, &pattern, round * 2 + id);
                    let comm = Comm { rank, connections: 1 + (self.seed + id) % 3, ..comm };
                    scope.spawn(move || comm.run(None));
                }
            });
            plugin.close();
        }
        assert_logged_once();
    }

    fn wrap(&self) {
        let (pattern, plugin) = (Pattern::new(), self.open());
        let comm = self.comm(&plugin, &pattern, 0);
        Comm { connections: 1, amount: MANY, ..comm }.run(None);
        plugin.close();
    }

    /// Aborts communicators, at one side or both; later ones work, and do not touch the memory of earlier
    /// ones.
    fn abort(&self) {
        let (pattern, plugin) = (Pattern::new(), self.open());
        let mut given_back: Vec<Arena> = Vec::new();
        for round in 0..2u64 {
            let mut random = Random::new(self.seed ^ round << 20);
            let aborting = random.pick(&[[true, false], [false, true], [true, true]]);
            let after = 1 + random.below(2000);
            let end = if aborting[self.rank as usize] { End::Abort(after) } else { End::Errors };
            let comm = self.comm(&plugin, &pattern, 2 * round);
            given_back.extend(Comm { amount: ENDLESS, end, ..comm }.run(None));
            let next = self.comm(&plugin, &pattern, 2 * round + 1).run(None);
            assert!(
                given_back.iter().all(Arena::is_unchanged),
                "memory that was given back changed"
            );
            drop(next);
        }
        plugin.close();
    }

    /// Transfers until there is an error.
    fn fault(&self) {
        let (pattern, plugin) = (Pattern::new(), self.open());
        let comm = self.comm(&plugin, &pattern, 0);
        let action = || publish(&self.busy_path(), b"");
        let milestone = Milestone { bytes: MILESTONE, action: Box::new(action) };
        let memory = Comm { amount: ENDLESS, end: End::Errors, ..comm }.run(Some(milestone));
        assert!(memory.iter().all(Arena::is_unchanged));
        plugin.close();
        // The test's name is on the first line.
        messages().iter().for_each(|(level, text)| println!("\n{level}: {text}"));
    }

    /// Written by the rank in the middle of its traffic.
    pub fn busy_path(&self) -> PathBuf {
        self.folder.join(format!("busy-{}", self.rank))
    }

    /// Transfers everything.
    fn transfer(&self, id: u64) {
        let (pattern, plugin) = (Pattern::new(), self.open());
        self.comm(&plugin, &pattern, id).run(None);
        plugin.close();
    }

    /// Rank 1 stops in the middle, until the test continues it.
    fn stop(&self) {
        let (pattern, plugin) = (Pattern::new(), self.open());
        // SAFETY: stops this process.
        let action = || assert_eq!(unsafe { libc::raise(libc::SIGSTOP) }, 0);
        let milestone = Milestone { bytes: MILESTONE, action: Box::new(action) };
        let is_stopped = self.rank == 1;
        self.comm(&plugin, &pattern, 0).run(is_stopped.then_some(milestone));
        plugin.close();
    }
}

/// One line says what is used, whatever was opened since, besides those with defaults of libfabric.
fn assert_logged_once() {
    let mut messages = messages();
    messages.retain(|(_, text)| !text.contains(config::DEFAULT));
    let [(3, text)] = &messages[..] else { panic!("one line: {messages:?}") };
    let parts = ["NET/Regatta: libfabric ", ", provider ", " NIC", " Gb/s", ", GPUDirect RDMA: "];
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
}
