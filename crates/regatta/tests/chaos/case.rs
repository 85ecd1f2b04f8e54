//! Cases: a job, the faults injected into it, and the expected outcome, generated from a seed.

use std::fmt;

use regatta_model::result::RankExit;
use regatta_testbed::Random;

use crate::env_number;

/// What starts the agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentLauncher {
    Srun,
    Ssh,
}

/// A process of `regatta launch` or `regatta agent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessRole {
    Original,
    Reaper,
    Worker,
    /// The original process and the worker, as by `pkill -9 regatta`.
    AllButReaper,
}

const ROLES: [ProcessRole; 4] =
    [ProcessRole::Original, ProcessRole::Reaper, ProcessRole::Worker, ProcessRole::AllButReaper];

/// An injected fault. Nodes are counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobFault {
    Killed {
        rank: u32,
    },
    Exits {
        rank: u32,
        code: i32,
    },
    Agent {
        node: u32,
        role: ProcessRole,
    },
    Launcher {
        role: ProcessRole,
    },
    /// The worker of an agent is stopped.
    HungAgent {
        node: u32,
    },
    /// The worker of the launcher is stopped.
    HungLauncher,
    Cut {
        node: u32,
    },
    /// The network is restored after `ms` milliseconds.
    Flap {
        node: u32,
        ms: u32,
    },
    Crash {
        node: u32,
    },
    /// TERM to the launcher.
    Term,
    /// `scancel`.
    Cancel,
}

/// When faults are injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// As soon as the process exists.
    Starting,
    /// When every rank runs.
    Running,
    /// The first fault while running, the others while ranks ignore TERM.
    Ending,
}

/// A special condition of a job's ranks or files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// A rank ignores TERM.
    IgnoresTerm { rank: u32 },
    /// A rank starts daemons in their own sessions, one of which keeps its output open.
    Daemons { rank: u32 },
    /// Every rank writes this much before faults are injected.
    Writes { mib: u32 },
    /// A rank writes this much before it exits.
    WritesAtExit { rank: u32, mib: u32 },
    /// A rank's log is full.
    FullLog { rank: u32 },
    /// Size of the disk with the run folder, mounted on the login host only.
    SmallDisk { kib: u32 },
}

/// A job and its faults.
#[derive(Debug)]
pub struct Case {
    pub seed: u64,
    pub nodes: u32,
    pub ranks_per_node: u32,
    pub fan_out: u32,
    pub launcher: AgentLauncher,
    pub conditions: Vec<Condition>,
    pub faults: Vec<JobFault>,
    pub when: When,
    /// Milliseconds between the moment of `when` and the fault.
    pub pause: u32,
}

/// `--heartbeat-timeout` where nodes are lost; longer than delays on a busy machine.
pub const HEARTBEAT_TIMEOUT: u32 = 3;

/// How a job must end.
#[derive(Debug)]
pub enum ExpectedOutcome {
    Success,
    /// With one of these as the first failure.
    Failed(Vec<ExpectedFailure>),
    /// Before its ranks ran, or with this failure.
    NotStarted(ExpectedFailure),
    /// By TERM.
    Signalled,
    /// By Slurm's signals; ranks that exit cleanly are not failures.
    Cancelled,
    /// Without a report, because the launcher was killed.
    NoReport,
}

/// The first failure: a rank of this node, with this exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpectedFailure {
    pub node: u32,
    /// `None`: any rank of the node.
    pub rank: Option<u32>,
    pub exit: RankExit,
}

/// The scenarios; consecutive seeds cycle through them.
const SCENARIOS: [fn(&mut Case, &mut Random); 31] = [
    |c, r| c.conditions = vec![Condition::Daemons { rank: c.rank(r) }],
    |c, r| c.faults = vec![JobFault::Killed { rank: c.rank(r) }],
    |c, r| c.faults = vec![c.exit(r)],
    |c, r| c.faults = vec![JobFault::Agent { node: c.node(r), role: ProcessRole::Worker }],
    |c, r| c.faults = vec![JobFault::Agent { node: c.node(r), role: ProcessRole::Reaper }],
    |c, r| c.faults = vec![JobFault::Agent { node: c.node(r), role: ProcessRole::Original }],
    |c, r| c.faults = vec![JobFault::Agent { node: c.node(r), role: ProcessRole::AllButReaper }],
    |c, _| c.faults = vec![JobFault::Launcher { role: ProcessRole::Worker }],
    |c, _| c.faults = vec![JobFault::Launcher { role: ProcessRole::Reaper }],
    |c, _| c.faults = vec![JobFault::Launcher { role: ProcessRole::Original }],
    |c, _| c.faults = vec![JobFault::Launcher { role: ProcessRole::AllButReaper }],
    |c, r| c.faults = vec![JobFault::HungAgent { node: c.node(r) }],
    |c, _| c.faults = vec![JobFault::HungLauncher],
    |c, _| c.faults = vec![JobFault::Cut { node: c.nodes - 1 }],
    |c, r| {
        (c.nodes, c.fan_out) = (r.within(4, 8), 2);
        c.faults = vec![JobFault::Cut { node: r.within(0, c.nodes / 2 - 2) }];
    },
    |c, r| c.faults = vec![JobFault::Crash { node: c.node(r) }],
    |c, r| c.faults = vec![JobFault::Flap { node: c.node(r), ms: 300 }],
    |c, r| {
        let ms = HEARTBEAT_TIMEOUT * 1000 + r.within(500, 4000);
        c.faults = vec![JobFault::Flap { node: c.node(r), ms }];
    },
    |c, r| c.conditions = vec![Condition::FullLog { rank: c.rank(r) }],
    |c, _| c.conditions = vec![Condition::SmallDisk { kib: 256 }, Condition::Writes { mib: 1 }],
    |c, r| {
        c.faults = vec![c.exit(r)];
        c.conditions = vec![c.ignores_term(0)];
    },
    |c, r| {
        c.nodes = r.within(2, 3);
        c.conditions = vec![Condition::WritesAtExit { rank: c.rank(r), mib: large_output() }];
    },
    |c, r| {
        let rank = c.rank(r);
        c.faults = vec![JobFault::Killed { rank }];
        c.conditions = vec![Condition::Daemons { rank: c.rank(r) }, Condition::Daemons { rank }];
    },
    |c, r| {
        let node = c.node(r);
        c.faults = vec![JobFault::Agent { node, role: r.pick(&ROLES) }];
        c.conditions = vec![Condition::Daemons { rank: node * c.ranks_per_node }];
    },
    |c, r| {
        c.faults = vec![JobFault::Launcher { role: r.pick(&ROLES) }];
        c.conditions = vec![Condition::Daemons { rank: c.rank(r) }];
    },
    two_faults,
    |c, r| {
        c.when = When::Starting;
        c.faults = vec![JobFault::Agent { node: c.node(r), role: r.pick(&ROLES) }];
    },
    |c, r| {
        c.when = When::Starting;
        c.faults = vec![JobFault::Launcher { role: r.pick(&ROLES) }];
    },
    fault_while_ending,
    |c, r| {
        c.faults = vec![JobFault::Term];
        c.conditions = vec![Condition::Daemons { rank: c.rank(r) }];
    },
    |c, r| {
        c.launcher = AgentLauncher::Srun;
        c.faults = vec![JobFault::Cancel];
        c.conditions = vec![Condition::Daemons { rank: c.rank(r) }];
    },
];

/// Number of scenarios.
pub const SCENARIO_COUNT: u64 = SCENARIOS.len() as u64;

/// Size of a large output, in MiB.
fn large_output() -> u32 {
    env_number("REGATTA_CHAOS_MIB", 16) as u32
}

fn two_faults(c: &mut Case, r: &mut Random) {
    c.nodes = r.within(3, 8);
    let mut any = |node: u32, rank: u32| match r.within(0, 4) {
        0 => JobFault::Killed { rank },
        1 => JobFault::Exits { rank, code: 9 },
        2 => JobFault::Agent { node, role: ProcessRole::Worker },
        3 => JobFault::Agent { node, role: ProcessRole::Reaper },
        _ => JobFault::Crash { node },
    };
    c.faults = vec![any(0, 0), any(c.nodes - 1, c.nodes * c.ranks_per_node - 1)];
    c.conditions = vec![Condition::Daemons { rank: c.ranks_per_node }];
}

fn fault_while_ending(c: &mut Case, r: &mut Random) {
    c.when = When::Ending;
    let node = r.within(1, c.nodes - 1);
    let second = match r.within(0, 3) {
        0 => JobFault::Agent { node, role: r.pick(&ROLES) },
        1 => JobFault::Launcher { role: r.pick(&ROLES) },
        2 => JobFault::Cut { node },
        _ => JobFault::Crash { node },
    };
    c.faults = vec![JobFault::Exits { rank: 0, code: 17 }, second];
    c.conditions = vec![c.ignores_term(node * c.ranks_per_node)];
}

impl Case {
    /// Generates the case of a seed.
    pub fn of(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut case = Self {
            seed,
            nodes: random.within(2, 8),
            ranks_per_node: random.within(1, 3),
            fan_out: random.within(2, 3),
            launcher: random.pick(&[AgentLauncher::Srun, AgentLauncher::Ssh]),
            conditions: Vec::new(),
            faults: Vec::new(),
            when: When::Running,
            pause: random.pick(&[0, 0, 20, 200]),
        };
        SCENARIOS[(seed % SCENARIO_COUNT) as usize](&mut case, &mut random);
        case
    }

    pub fn ranks(&self) -> u32 {
        self.nodes * self.ranks_per_node
    }

    fn rank(&self, random: &mut Random) -> u32 {
        random.within(0, self.ranks() - 1)
    }

    fn node(&self, random: &mut Random) -> u32 {
        random.within(0, self.nodes - 1)
    }

    fn exit(&self, random: &mut Random) -> JobFault {
        JobFault::Exits { rank: self.rank(random), code: random.within(1, 123) as i32 }
    }

    /// A rank that ignores TERM, and is not the one that exits.
    fn ignores_term(&self, preferred: u32) -> Condition {
        let exits = |f: &JobFault| matches!(f, JobFault::Exits { rank, .. } if *rank == preferred);
        let next = u32::from(self.faults.iter().any(exits));
        Condition::IgnoresTerm { rank: (preferred + next) % self.ranks() }
    }

    pub fn node_of(&self, rank: u32) -> u32 {
        rank / self.ranks_per_node
    }

    /// Whether the job survives all faults.
    pub fn succeeds(&self) -> bool {
        self.faults.iter().all(|f| matches!(f, JobFault::Flap { .. }) && !f.loses_node())
    }

    pub fn has_small_disk(&self) -> bool {
        self.has(|t| matches!(t, Condition::SmallDisk { .. }))
    }

    pub fn has(&self, condition: impl Fn(&Condition) -> bool) -> bool {
        self.conditions.iter().any(condition)
    }

    /// The expected outcome.
    pub fn expected_outcome(&self) -> ExpectedOutcome {
        let kills_launcher =
            |f: &JobFault| matches!(f, JobFault::Launcher { .. } | JobFault::HungLauncher);
        let launcher_killed = self.faults.iter().any(kills_launcher);
        match (self.when, self.faults.as_slice()) {
            _ if launcher_killed => ExpectedOutcome::NoReport,
            _ if self.succeeds() => ExpectedOutcome::Success,
            (_, [JobFault::Term]) => ExpectedOutcome::Signalled,
            (_, [JobFault::Cancel]) => ExpectedOutcome::Cancelled,
            (When::Starting, [first, ..]) => {
                ExpectedOutcome::NotStarted(self.expected_failure(first))
            }
            (When::Ending, [first, ..]) => {
                ExpectedOutcome::Failed(vec![self.expected_failure(first)])
            }
            (_, all) => {
                ExpectedOutcome::Failed(all.iter().map(|f| self.expected_failure(f)).collect())
            }
        }
    }

    fn expected_failure(&self, fault: &JobFault) -> ExpectedFailure {
        let rank =
            |rank, exit| ExpectedFailure { node: self.node_of(rank), rank: Some(rank), exit };
        match *fault {
            JobFault::Killed { rank: r } => rank(r, RankExit::Signal(libc::SIGKILL)),
            JobFault::Exits { rank: r, code } => rank(r, RankExit::Exit(code)),
            JobFault::Agent { node, .. }
            | JobFault::HungAgent { node }
            | JobFault::Cut { node }
            | JobFault::Flap { node, .. }
            | JobFault::Crash { node } => {
                ExpectedFailure { node, rank: None, exit: RankExit::NodeLost }
            }
            JobFault::Launcher { .. }
            | JobFault::HungLauncher
            | JobFault::Term
            | JobFault::Cancel => {
                unreachable!("not a failure of a rank")
            }
        }
    }

    /// Whether the ranks of a node may be lost.
    pub fn is_lost(&self, at: u32) -> bool {
        self.faults.iter().any(|f| match *f {
            JobFault::Agent { node, .. } | JobFault::HungAgent { node } => node == at,
            JobFault::Cut { node } | JobFault::Crash { node } | JobFault::Flap { node, .. } => {
                f.loses_node() && node == at
            }
            _ => false,
        })
    }

    /// Whether a failure is noticed by missing heartbeats.
    pub fn needs_heartbeats(&self) -> bool {
        let hung = |f: &JobFault| matches!(f, JobFault::HungAgent { .. } | JobFault::HungLauncher);
        self.loses_node() || self.faults.iter().any(hung)
    }

    /// Whether a node is lost. Slurm takes long to mark such a node as up again, so the cluster is not
    /// reused.
    pub fn loses_node(&self) -> bool {
        self.faults.iter().any(JobFault::loses_node)
    }
}

impl JobFault {
    /// Whether a node misses heartbeats for so long that it counts as lost.
    fn loses_node(&self) -> bool {
        match self {
            JobFault::Crash { .. } | JobFault::Cut { .. } => true,
            JobFault::Flap { ms, .. } => *ms >= HEARTBEAT_TIMEOUT * 1000,
            _ => false,
        }
    }
}

/// One line for failure reports.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, nodes, ranks_per_node: ranks, fan_out, launcher, pause, .. } = self;
        write!(
            f,
            "seed {seed}: {nodes} nodes, {launcher:?}, fan-out {fan_out}, {ranks} ranks per node"
        )?;
        self.conditions.iter().try_for_each(|t| write!(f, ", {t:?}"))?;
        if self.faults.is_empty() {
            return write!(f, "; no fault");
        }
        write!(f, "; {:?}, after {pause} ms:", self.when)?;
        self.faults.iter().try_for_each(|fault| write!(f, " {fault:?}"))
    }
}
