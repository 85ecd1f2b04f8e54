//! What is done to a job, chosen by a seed, and how the job must then end.

use std::fmt;

use regatta_model::result::Ending;

use crate::number;
use crate::random::Random;

/// What starts the agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    Srun,
    Ssh,
}

/// Which process of a regatta is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    Worker,
    Warden,
    Both,
}

/// What befalls a job. Nodes are counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Killed {
        rank: u32,
    },
    Exits {
        rank: u32,
        code: i32,
    },
    Agent {
        node: u32,
        half: Half,
    },
    Coordinator {
        half: Half,
    },
    Cut {
        node: u32,
    },
    /// The cable is put back after so many milliseconds.
    Flap {
        node: u32,
        ms: u32,
    },
    Crash {
        node: u32,
    },
    /// The launcher is told to end.
    Term,
    /// Slurm is told to end the job.
    Cancel,
}

/// When it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// As soon as something of it is there.
    Starting,
    /// When every rank has begun.
    Running,
    /// The first fault then; the others when the ranks are told to end, and do not.
    Ending,
}

/// What is special about a job's ranks or files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trait {
    /// A rank ignores TERM.
    Stubborn { rank: u32 },
    /// A rank starts daemons in sessions of their own, one of which holds its output open.
    Daemons { rank: u32 },
    /// Every rank writes this much before it is where a fault may hit it.
    Writes { mib: u32 },
    /// A rank writes this much before it ends.
    Pours { rank: u32, mib: u32 },
    /// No byte fits into a rank's log.
    FullLog { rank: u32 },
    /// The disk with the run folder, which only the coordinator sees, takes this much.
    SmallDisk { kib: u32 },
}

/// One job and what becomes of it.
#[derive(Debug)]
pub struct Case {
    pub seed: u64,
    pub nodes: u32,
    pub each: u32,
    pub fan_out: u32,
    pub by: By,
    pub traits: Vec<Trait>,
    pub faults: Vec<Fault>,
    pub when: When,
    /// Milliseconds between the moment of `when` and the fault.
    pub pause: u32,
}

/// Seconds after which a node is lost that nobody tells of; more than a busy machine makes one wait.
pub const LOST_AFTER: u32 = 3;

/// How a job must end.
#[derive(Debug)]
pub enum Verdict {
    Good,
    /// Because of one of these.
    Failed(Vec<Blame>),
    /// Before its ranks ran, or because of this.
    NotStarted(Blame),
    /// By TERM.
    Signalled,
    /// By whatever signals Slurm sends to whom; ranks that then end well are no failure.
    Cancelled,
    /// Without a word: the one who would tell is dead.
    Silent,
}

/// The first failure: a rank of this node, which ended so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blame {
    pub node: u32,
    /// `None`: whichever of the node's.
    pub rank: Option<u32>,
    pub ending: Ending,
}

/// The kinds of cases; consecutive seeds go through all of them.
const KINDS: [fn(&mut Case, &mut Random); 27] = [
    |c, r| c.traits = vec![Trait::Daemons { rank: c.rank(r) }],
    |c, r| c.faults = vec![Fault::Killed { rank: c.rank(r) }],
    |c, r| c.faults = vec![c.exit(r)],
    |c, r| c.faults = vec![Fault::Agent { node: c.node(r), half: Half::Worker }],
    |c, r| c.faults = vec![Fault::Agent { node: c.node(r), half: Half::Warden }],
    |c, r| c.faults = vec![Fault::Agent { node: c.node(r), half: Half::Both }],
    |c, _| c.faults = vec![Fault::Coordinator { half: Half::Worker }],
    |c, _| c.faults = vec![Fault::Coordinator { half: Half::Warden }],
    |c, _| c.faults = vec![Fault::Coordinator { half: Half::Both }],
    |c, _| c.faults = vec![Fault::Cut { node: c.nodes - 1 }],
    |c, r| {
        (c.nodes, c.fan_out) = (r.within(4, 8), 2);
        c.faults = vec![Fault::Cut { node: r.within(0, c.nodes / 2 - 2) }];
    },
    |c, r| c.faults = vec![Fault::Crash { node: c.node(r) }],
    |c, r| c.faults = vec![Fault::Flap { node: c.node(r), ms: 300 }],
    |c, r| {
        let ms = LOST_AFTER * 1000 + r.within(500, 4000);
        c.faults = vec![Fault::Flap { node: c.node(r), ms }];
    },
    |c, r| c.traits = vec![Trait::FullLog { rank: c.rank(r) }],
    |c, _| c.traits = vec![Trait::SmallDisk { kib: 256 }, Trait::Writes { mib: 1 }],
    |c, r| {
        c.faults = vec![c.exit(r)];
        c.traits = vec![c.stubborn(0)];
    },
    |c, r| {
        c.nodes = r.within(2, 3);
        c.traits = vec![Trait::Pours { rank: c.rank(r), mib: flood() }];
    },
    |c, r| {
        let rank = c.rank(r);
        c.faults = vec![Fault::Killed { rank }];
        c.traits = vec![Trait::Daemons { rank: c.rank(r) }, Trait::Daemons { rank }];
    },
    |c, r| {
        let node = c.node(r);
        c.faults = vec![Fault::Agent { node, half: r.pick(&[Half::Worker, Half::Warden]) }];
        c.traits = vec![Trait::Daemons { rank: node * c.each }];
    },
    |c, r| {
        c.faults = vec![Fault::Coordinator { half: r.pick(&[Half::Worker, Half::Warden]) }];
        c.traits = vec![Trait::Daemons { rank: c.rank(r) }];
    },
    two_at_once,
    |c, r| {
        c.when = When::Starting;
        c.faults = vec![Fault::Agent { node: c.node(r), half: c.half(r) }];
    },
    |c, r| {
        c.when = When::Starting;
        c.faults = vec![Fault::Coordinator { half: c.half(r) }];
    },
    while_ending,
    |c, r| {
        c.faults = vec![Fault::Term];
        c.traits = vec![Trait::Daemons { rank: c.rank(r) }];
    },
    |c, r| {
        c.by = By::Srun;
        c.faults = vec![Fault::Cancel];
        c.traits = vec![Trait::Daemons { rank: c.rank(r) }];
    },
];

/// How many kinds of cases there are.
pub const KIND_COUNT: u64 = KINDS.len() as u64;

/// How much a rank writes that writes much.
fn flood() -> u32 {
    number("REGATTA_CHAOS_MIB", 16) as u32
}

fn two_at_once(c: &mut Case, r: &mut Random) {
    c.nodes = r.within(3, 8);
    let mut any = |node: u32, rank: u32| match r.within(0, 4) {
        0 => Fault::Killed { rank },
        1 => Fault::Exits { rank, code: 9 },
        2 => Fault::Agent { node, half: Half::Worker },
        3 => Fault::Agent { node, half: Half::Warden },
        _ => Fault::Crash { node },
    };
    c.faults = vec![any(0, 0), any(c.nodes - 1, c.nodes * c.each - 1)];
    c.traits = vec![Trait::Daemons { rank: c.each }];
}

fn while_ending(c: &mut Case, r: &mut Random) {
    c.when = When::Ending;
    // On the node that is harmed a rank is still there, with a process below it, which nobody finds
    // if both halves of the agent are killed.
    let node = r.within(1, c.nodes - 1);
    let second = match r.within(0, 3) {
        0 => Fault::Agent { node, half: r.pick(&[Half::Worker, Half::Warden]) },
        1 => Fault::Coordinator { half: c.half(r) },
        2 => Fault::Cut { node },
        _ => Fault::Crash { node },
    };
    c.faults = vec![Fault::Exits { rank: 0, code: 17 }, second];
    c.traits = vec![c.stubborn(node * c.each)];
}

impl Case {
    /// The case of a seed.
    pub fn of(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut case = Self {
            seed,
            nodes: random.within(2, 8),
            each: random.within(1, 3),
            fan_out: random.within(2, 3),
            by: random.pick(&[By::Srun, By::Ssh]),
            traits: Vec::new(),
            faults: Vec::new(),
            when: When::Running,
            pause: random.pick(&[0, 0, 20, 200]),
        };
        KINDS[(seed % KIND_COUNT) as usize](&mut case, &mut random);
        case
    }

    pub fn ranks(&self) -> u32 {
        self.nodes * self.each
    }

    fn rank(&self, random: &mut Random) -> u32 {
        random.within(0, self.ranks() - 1)
    }

    fn node(&self, random: &mut Random) -> u32 {
        random.within(0, self.nodes - 1)
    }

    fn half(&self, random: &mut Random) -> Half {
        random.pick(&[Half::Worker, Half::Warden, Half::Both])
    }

    fn exit(&self, random: &mut Random) -> Fault {
        Fault::Exits { rank: self.rank(random), code: random.within(1, 123) as i32 }
    }

    /// A rank that ignores TERM, and is not the one that exits.
    fn stubborn(&self, wanted: u32) -> Trait {
        let exits = |r: u32| {
            self.faults.iter().any(|f| matches!(f, Fault::Exits { rank, .. } if *rank == r))
        };
        Trait::Stubborn { rank: if exits(wanted) { (wanted + 1) % self.ranks() } else { wanted } }
    }

    pub fn node_of(&self, rank: u32) -> u32 {
        rank / self.each
    }

    /// Whether nothing befalls the job that it does not survive.
    pub fn ends_well(&self) -> bool {
        self.faults.iter().all(|f| matches!(f, Fault::Flap { .. }) && !f.is_a_loss())
    }

    pub fn has(&self, what: impl Fn(&Trait) -> bool) -> bool {
        self.traits.iter().any(what)
    }

    /// How it must end.
    pub fn verdict(&self) -> Verdict {
        let harmed = self.faults.iter().any(|f| matches!(f, Fault::Coordinator { .. }));
        match (self.when, self.faults.as_slice()) {
            _ if harmed => Verdict::Silent,
            _ if self.ends_well() => Verdict::Good,
            (_, [Fault::Term]) => Verdict::Signalled,
            (_, [Fault::Cancel]) => Verdict::Cancelled,
            (When::Starting, [fault, ..]) => Verdict::NotStarted(self.blame(*fault)),
            (When::Ending, [fault, ..]) => Verdict::Failed(vec![self.blame(*fault)]),
            (_, all) => Verdict::Failed(all.iter().map(|f| self.blame(*f)).collect()),
        }
    }

    fn blame(&self, fault: Fault) -> Blame {
        let rank = |rank, ending| Blame { node: self.node_of(rank), rank: Some(rank), ending };
        match fault {
            Fault::Killed { rank: r } => rank(r, Ending::Signal(libc::SIGKILL)),
            Fault::Exits { rank: r, code } => rank(r, Ending::Exit(code)),
            Fault::Agent { node, .. }
            | Fault::Cut { node }
            | Fault::Flap { node, .. }
            | Fault::Crash { node } => Blame { node, rank: None, ending: Ending::Lost },
            Fault::Coordinator { .. } | Fault::Term | Fault::Cancel => {
                unreachable!("nobody is to blame")
            }
        }
    }

    /// Whether the ranks of a node may end without a word.
    pub fn is_lost(&self, at: u32) -> bool {
        self.faults.iter().any(|f| match *f {
            Fault::Agent { node, .. } => node == at,
            Fault::Cut { node } | Fault::Crash { node } | Fault::Flap { node, .. } => {
                f.is_a_loss() && node == at
            }
            _ => false,
        })
    }

    /// Whether a node falls silent. Slurm takes its time to find such a node good again, so the
    /// cluster serves no other case.
    pub fn spoils(&self) -> bool {
        self.faults.iter().any(Fault::is_a_loss)
    }
}

impl Fault {
    /// Whether nothing is heard of a node for so long that it counts as lost.
    fn is_a_loss(&self) -> bool {
        match self {
            Fault::Crash { .. } | Fault::Cut { .. } => true,
            Fault::Flap { ms, .. } => *ms >= LOST_AFTER * 1000,
            _ => false,
        }
    }
}

/// In one line, so that a failure's report says what was done.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, nodes, each, fan_out, by, pause, .. } = self;
        write!(f, "seed {seed}: {nodes} nodes by {by:?}, fan-out {fan_out}, {each} ranks a node")?;
        self.traits.iter().try_for_each(|t| write!(f, ", {t:?}"))?;
        if self.faults.is_empty() {
            return write!(f, "; no fault");
        }
        write!(f, "; {:?}, after {pause} ms:", self.when)?;
        self.faults.iter().try_for_each(|fault| write!(f, " {fault:?}"))
    }
}
