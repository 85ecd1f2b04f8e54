//! Cases: a job, the faults injected into it, and the expected outcome, generated from a seed.

use std::fmt;

use regatta_model::result::RankExit;
use regatta_testbed::{Cluster, Random};

use crate::chaos::scenario::SCENARIOS;

/// What starts the agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentLauncher {
    Srun,
    /// `srun` in a batch job: the launcher runs on the first node.
    Batch,
    Ssh,
}

/// A process of `regatta launch` or `regatta agent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessRole {
    Original,
    Reaper,
    Worker,
    /// All processes named `regatta` on the host.
    All,
}

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
    /// TERM to `timeout`, which sends it to the launcher and to its process group.
    TimeoutTerm,
    /// A second TERM to the launcher after `us` microseconds.
    TermTwice {
        us: u32,
    },
    /// TSTP to the launcher's process group, CONT after [`PAUSE`].
    Pause,
    /// `scontrol suspend`, `scontrol resume` after [`PAUSE`].
    Suspend,
    /// STOP without CONT.
    RankHangs {
        rank: u32,
    },
    AgentHangs {
        node: u32,
        role: ProcessRole,
    },
    LauncherHangs {
        role: ProcessRole,
    },
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
    /// Every rank writes this many numbered lines and exits at once.
    Lines { count: u32 },
    /// Every rank takes this long to save after TERM.
    Saves { ms: u32 },
}

/// A job and its faults.
#[derive(Debug)]
pub struct Case {
    pub seed: u64,
    pub nodes: u32,
    pub ranks_per_node: u32,
    /// Nodes without ranks, which replace lost ones.
    pub spares: u32,
    pub fan_out: u32,
    pub launcher: AgentLauncher,
    pub conditions: Vec<Condition>,
    pub faults: Vec<JobFault>,
    pub when: When,
    /// Milliseconds between the moment of `when` and the fault.
    pub pause: u32,
}

/// `--heartbeat-timeout` of cases in which it matters; longer than delays on a busy machine.
pub const HEARTBEAT_TIMEOUT: u32 = 3;
/// Duration of a pause in milliseconds: longer than the heartbeat timeout.
pub const PAUSE: u32 = HEARTBEAT_TIMEOUT * 1000 + 500;

/// How a job must end.
#[derive(Debug)]
pub enum ExpectedOutcome {
    Success,
    /// By TERM, after all ranks have saved.
    Saved,
    /// After a restart with a spare.
    Restarted,
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

impl Case {
    /// Generates the case of a seed.
    pub fn of(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut case = Self {
            seed,
            nodes: random.within(2, 8),
            ranks_per_node: random.within(1, 3),
            spares: 0,
            fan_out: random.within(2, 3),
            launcher: random.pick(&[AgentLauncher::Srun, AgentLauncher::Ssh]),
            conditions: Vec::new(),
            faults: Vec::new(),
            when: When::Running,
            pause: random.pick(&[0, 0, 20, 200]),
        };
        SCENARIOS[(seed % SCENARIOS.len() as u64) as usize](&mut case, &mut random);
        case
    }

    pub fn ranks(&self) -> u32 {
        (self.nodes - self.spares) * self.ranks_per_node
    }

    pub fn rank(&self, random: &mut Random) -> u32 {
        random.within(0, self.ranks() - 1)
    }

    /// A node with ranks.
    pub fn node(&self, random: &mut Random) -> u32 {
        random.within(0, self.nodes - self.spares - 1)
    }

    pub fn exit(&self, random: &mut Random) -> JobFault {
        JobFault::Exits { rank: self.rank(random), code: random.within(1, 123) as i32 }
    }

    /// A rank that ignores TERM, and is not the one that exits.
    pub fn ignores_term(&self, preferred: u32) -> Condition {
        let exits = |f: &JobFault| matches!(f, JobFault::Exits { rank, .. } if *rank == preferred);
        let next = u32::from(self.faults.iter().any(exits));
        Condition::IgnoresTerm { rank: (preferred + next) % self.ranks() }
    }

    /// The host of the launcher.
    pub fn launcher_host<'a>(&self, cluster: &'a Cluster) -> &'a str {
        match self.launcher {
            AgentLauncher::Batch => &cluster.nodes()[0],
            AgentLauncher::Srun | AgentLauncher::Ssh => "login",
        }
    }

    pub fn node_of(&self, rank: u32) -> u32 {
        rank / self.ranks_per_node
    }

    /// Whether the job survives all faults.
    pub fn succeeds(&self) -> bool {
        let harmless = |f: &JobFault| match f {
            JobFault::Flap { .. } => !f.loses_node(),
            JobFault::Pause | JobFault::Suspend => true,
            // Only the worker is needed for the job to end.
            JobFault::AgentHangs { role, .. } | JobFault::LauncherHangs { role } => {
                *role != ProcessRole::Worker
            }
            _ => false,
        };
        self.faults.iter().all(harmless)
    }

    pub fn has_small_disk(&self) -> bool {
        self.has(|t| matches!(t, Condition::SmallDisk { .. }))
    }

    pub fn has(&self, condition: impl Fn(&Condition) -> bool) -> bool {
        self.conditions.iter().any(condition)
    }

    /// The expected outcome.
    pub fn expected_outcome(&self) -> ExpectedOutcome {
        use JobFault::{Launcher, LauncherHangs, TermTwice, TimeoutTerm};
        let of_launcher = |f: &JobFault| matches!(f, Launcher { .. } | LauncherHangs { .. });
        match (self.when, self.faults.as_slice()) {
            _ if self.succeeds() => ExpectedOutcome::Success,
            (_, faults) if faults.iter().any(of_launcher) => ExpectedOutcome::NoReport,
            _ if self.spares > 0 => ExpectedOutcome::Restarted,
            (_, [TimeoutTerm | TermTwice { .. }]) => ExpectedOutcome::Saved,
            (_, [JobFault::Term]) => ExpectedOutcome::Signalled,
            (_, [JobFault::Cancel]) => ExpectedOutcome::Cancelled,
            (When::Starting, [first, ..]) => {
                ExpectedOutcome::NotStarted(self.expected_failure(first))
            }
            (When::Ending, [first, ..]) => {
                ExpectedOutcome::Failed(vec![self.expected_failure(first)])
            }
            (_, all) => {
                // A rank that hangs is not a failure by itself.
                let failures = all.iter().filter(|f| !matches!(f, JobFault::RankHangs { .. }));
                ExpectedOutcome::Failed(failures.map(|f| self.expected_failure(f)).collect())
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
            | JobFault::AgentHangs { node, .. }
            | JobFault::Cut { node }
            | JobFault::Flap { node, .. }
            | JobFault::Crash { node } => {
                ExpectedFailure { node, rank: None, exit: RankExit::NodeLost }
            }
            other => unreachable!("{other:?} is not a failure of a rank"),
        }
    }

    /// Whether the ranks of a node may be lost.
    pub fn is_lost(&self, at: u32) -> bool {
        self.faults.iter().any(|f| match *f {
            JobFault::Agent { node, .. } | JobFault::AgentHangs { node, .. } => node == at,
            JobFault::Cut { node } | JobFault::Crash { node } | JobFault::Flap { node, .. } => {
                f.loses_node() && node == at
            }
            _ => false,
        })
    }

    /// Whether a node is lost. Slurm takes long to mark such a node as up again, so the cluster is not
    /// reused.
    pub fn loses_node(&self) -> bool {
        self.faults.iter().any(JobFault::loses_node)
    }
}

impl JobFault {
    /// Whether the heartbeat timeout decides the outcome.
    pub fn needs_short_timeout(&self) -> bool {
        use JobFault::{AgentHangs, LauncherHangs, Pause, Suspend};
        let silent = matches!(self, AgentHangs { .. } | LauncherHangs { .. } | Pause | Suspend);
        silent || self.loses_node()
    }

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
        if self.spares > 0 {
            write!(f, ", {} spare", self.spares)?;
        }
        self.conditions.iter().try_for_each(|t| write!(f, ", {t:?}"))?;
        if self.faults.is_empty() {
            return write!(f, "; no fault");
        }
        write!(f, "; {:?}, after {pause} ms:", self.when)?;
        self.faults.iter().try_for_each(|fault| write!(f, " {fault:?}"))
    }
}
