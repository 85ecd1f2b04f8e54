//! A case: the script of the ranks and the fault, derived from a seed. Every rank derives its own part.

use regatta_comm::{CallKind, DType, ReduceOp};

use crate::seeded_rng::SeededRng;

/// Where the ranks run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Testbed {
    /// On this machine, with simulated nodes.
    SingleHost,
    /// On the nodes of a cluster with a network.
    Cluster,
}

/// The communicator under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommKind {
    Shm,
    Tcp,
    Hierarchical,
}

/// How the victim's call differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MismatchKind {
    Operation,
    Size,
    Type,
    Root,
    /// A call is skipped, so all later ones mismatch.
    Order,
}

/// The injected fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The victim is killed.
    Killed,
    /// The victim is killed during the bootstrap.
    KilledInBootstrap,
    /// The victim's process exits without closing its communicators.
    Exited,
    /// The victim is stopped permanently.
    Stopped,
    /// The victim is stopped until the other ranks have reported it, then resumed.
    Resumed,
    /// The victim is paused briefly.
    Paused,
    /// All ranks are stopped for longer than their timeouts, then resumed, as by `scontrol suspend`.
    AllPaused,
    /// The victim makes a mismatching call.
    Mismatch(MismatchKind),
    /// The victim stays alive but makes no calls until the other ranks have reported it.
    Late,
    /// The victim aborts on another thread.
    Aborted,
    /// The victim's node loses its network.
    NodeCut,
    /// The link between the victim's node and another is cut.
    LinkCut { other: usize },
    /// The victim's node is limited to 8 kbit/s.
    SlowNode,
}

/// One call of the script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChaosStep {
    /// `None` for a ring of messages in a group.
    pub kind: Option<CallKind>,
    pub dtype: DType,
    pub op: ReduceOp,
    /// The root's rank among the participants.
    pub root: u32,
    pub count: usize,
    /// Whether it runs on the split communicator.
    pub in_split: bool,
    pub background: bool,
}

impl ChaosStep {
    /// The part that must agree between ranks.
    fn signature(self) -> Self {
        let is = |yes: fn(CallKind) -> bool| self.kind.is_some_and(yes);
        Self {
            dtype: if is(|kind| kind == CallKind::Barrier) { DType::U8 } else { self.dtype },
            op: if is(CallKind::reduces) { self.op } else { ReduceOp::Sum },
            root: if is(CallKind::has_root) { self.root } else { 0 },
            background: false,
            ..self
        }
    }
}

#[derive(Debug, Clone)]
pub struct ChaosCase {
    pub seed: u64,
    pub comm: CommKind,
    pub testbed: Testbed,
    pub debug: bool,
    /// The node index of each rank.
    pub nodes: Vec<usize>,
    /// The number of colours of the split.
    pub colours: u32,
    pub script: Vec<ChaosStep>,
    pub fault: Fault,
    pub victim: usize,
    /// The step of the fault, and the delay after its start.
    pub at: usize,
    pub after_us: u64,
}

impl ChaosCase {
    pub fn new(seed: u64, testbed: Testbed) -> Self {
        use CommKind::{Hierarchical, Shm, Tcp};
        let mut seeded = SeededRng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xc0a5);
        let s = &mut seeded;
        let comm = match testbed {
            Testbed::SingleHost => s.choose(&[Shm, Tcp, Hierarchical, Hierarchical]),
            Testbed::Cluster => s.choose(&[Tcp, Hierarchical]),
        };
        let nodes = layout(s, testbed, comm);
        let (ranks, colours) = (nodes.len(), s.choose(&[1, 2, 2, 3]));
        let victim = s.below(ranks as u64) as usize;
        let fault = match testbed {
            Testbed::SingleHost => fault_of_process(s),
            Testbed::Cluster => fault_of_network(s, &nodes, victim),
        };
        let script: Vec<ChaosStep> = (0..2 + s.below(6)).map(|_| step(s, ranks, colours)).collect();
        let mut case = Self {
            seed,
            comm,
            testbed,
            debug: s.below(4) == 0,
            nodes,
            colours,
            script,
            fault,
            victim,
            at: s.below(12) as usize,
            after_us: s.choose(&[0, 50, 300, 1000, 5000]),
        };
        if matches!(case.fault, Fault::Mismatch(_)) && !case.differs() {
            case.fault = Fault::Late;
        }
        case
    }

    /// Whether the mismatch is detectable: the calls differ, and another rank takes part.
    fn differs(&self) -> bool {
        let (right, mismatch) = (self.step(self.at), self.step_of(self.at, self.victim));
        let seen = |s: ChaosStep| self.members(self.victim, s).len() > 1 && s.kind.is_some();
        // Calls on different communicators are not ordered.
        let one = self.fault != Fault::Mismatch(MismatchKind::Order)
            || self.script.iter().all(|s| !s.in_split);
        one && seen(right) && seen(mismatch) && right.signature() != mismatch.signature()
    }

    pub fn ranks(&self) -> usize {
        self.nodes.len()
    }

    pub fn all_ranks(&self) -> Vec<usize> {
        (0..self.ranks()).collect()
    }

    /// Whether a rank exists and runs on this host.
    pub fn is_on(&self, rank: usize, host: &str) -> bool {
        rank < self.ranks() && self.host(rank) == host
    }

    pub fn host(&self, rank: usize) -> String {
        format!("node{}", self.nodes[rank] + 1)
    }

    /// The call of a step.
    pub fn step(&self, number: usize) -> ChaosStep {
        self.script[number % self.script.len()]
    }

    /// The call that a rank makes in a step, which may be the mismatching one.
    pub fn step_of(&self, number: usize, rank: usize) -> ChaosStep {
        let step = self.step(number);
        match self.fault {
            Fault::Mismatch(MismatchKind::Order) if rank == self.victim && number >= self.at => {
                self.step(number + 1)
            }
            Fault::Mismatch(mismatch) if rank == self.victim && number == self.at => {
                changed(step, mismatch, self.members(rank, step).len() as u32)
            }
            _ => step,
        }
    }

    /// The participants of a step that this rank takes part in.
    pub fn members(&self, rank: usize, step: ChaosStep) -> Vec<usize> {
        let colour = |rank: usize| rank as u32 % self.colours;
        (0..self.ranks()).filter(|r| !step.in_split || colour(*r) == colour(rank)).collect()
    }

    /// Whether the ranks must all succeed.
    pub fn must_succeed(&self) -> bool {
        matches!(self.fault, Fault::Paused | Fault::AllPaused)
    }

    /// Whether the ranks may all succeed.
    pub fn may_succeed(&self) -> bool {
        // A hierarchical collective without debug mode may not notice a wrong root, or a wrong order
        // if one of the calls is empty and waits for no other node.
        use MismatchKind::{Order, Root};
        let harmless = matches!(self.fault, Fault::Mismatch(Root | Order));
        let unseen = self.comm == CommKind::Hierarchical && !self.debug && harmless;
        let slow = matches!(self.fault, Fault::LinkCut { .. } | Fault::SlowNode);
        unseen || slow || self.must_succeed()
    }

    /// The ranks that can join again.
    pub fn survivors(&self) -> Vec<usize> {
        let gone = |rank: &usize| match self.fault {
            Fault::Killed | Fault::KilledInBootstrap | Fault::Exited | Fault::Stopped => {
                *rank == self.victim
            }
            Fault::NodeCut | Fault::SlowNode => self.nodes[*rank] == self.nodes[self.victim],
            Fault::LinkCut { other } => self.nodes[*rank] == other,
            _ => false,
        };
        (0..self.ranks()).filter(|rank| !gone(rank)).collect()
    }
}

fn layout(s: &mut SeededRng, testbed: Testbed, comm: CommKind) -> Vec<usize> {
    let ranks = match testbed {
        Testbed::SingleHost => 2 + s.below(8) as usize,
        Testbed::Cluster => 3 + s.below(6) as usize,
    };
    let nodes = match (testbed, comm) {
        (Testbed::Cluster, _) => 4.min(ranks),
        (_, CommKind::Shm) => 1,
        _ => 1 + s.below(4.min(ranks as u64)) as usize,
    };
    let mut all: Vec<usize> = match s.below(3) {
        0 => (0..ranks).map(|rank| rank * nodes / ranks).collect(),
        1 => (0..ranks).map(|rank| rank % nodes).collect(),
        // Rank 0 is on the first node; the others are placed randomly.
        _ => (0..ranks)
            .map(|rank| if rank == 0 { 0 } else { s.below(nodes as u64) as usize })
            .collect(),
    };
    // A network fault needs at least two nodes.
    if testbed == Testbed::Cluster && all.iter().all(|node| *node == all[0]) {
        all[ranks - 1] = 1;
    }
    all
}

fn fault_of_process(s: &mut SeededRng) -> Fault {
    use MismatchKind::{Operation, Order, Root, Size, Type};
    match s.below(20) {
        0..5 => Fault::Killed,
        5 => Fault::AllPaused,
        6 => Fault::KilledInBootstrap,
        7..9 => Fault::Exited,
        9 => Fault::Stopped,
        10 => Fault::Resumed,
        11 => Fault::Paused,
        12..16 => Fault::Mismatch(s.choose(&[Operation, Size, Type, Root, Order])),
        16 => Fault::Late,
        _ => Fault::Aborted,
    }
}

fn fault_of_network(s: &mut SeededRng, nodes: &[usize], victim: usize) -> Fault {
    let others: Vec<usize> =
        nodes.iter().copied().filter(|n| *n != nodes[victim] && *n != nodes[0]).collect();
    match s.below(6) {
        0 => Fault::Killed,
        1 | 2 => Fault::NodeCut,
        3 | 4 if !others.is_empty() && nodes[victim] != nodes[0] => {
            Fault::LinkCut { other: s.choose(&others) }
        }
        _ => Fault::SlowNode,
    }
}

fn step(s: &mut SeededRng, ranks: usize, colours: u32) -> ChaosStep {
    let in_split = s.below(3) == 0 && colours > 1;
    let least = if in_split { ranks / colours as usize } else { ranks };
    let number = s.below(10) as usize;
    let kind = CallKind::ALL.get(number).copied();
    let count = s.choose(&[0, 1, 7, 1000, 20_000, 300_000]);
    ChaosStep {
        kind,
        dtype: s.choose(&DType::ALL),
        op: s.choose(&ReduceOp::ALL),
        root: s.below(least.max(1) as u64) as u32,
        count: if kind == Some(CallKind::Barrier) { 0 } else { count },
        in_split,
        background: kind.is_some() && s.below(3) == 0,
    }
}

/// The step with a mismatch.
fn changed(step: ChaosStep, mismatch: MismatchKind, members: u32) -> ChaosStep {
    let other_kind = match step.kind {
        Some(CallKind::AllReduce) => CallKind::Barrier,
        _ => CallKind::AllReduce,
    };
    match mismatch {
        MismatchKind::Size if step.kind == Some(CallKind::Barrier) => step,
        MismatchKind::Size => ChaosStep { count: step.count + 1, ..step },
        MismatchKind::Type if step.dtype == DType::U8 => ChaosStep { dtype: DType::F64, ..step },
        MismatchKind::Type => ChaosStep { dtype: DType::U8, ..step },
        MismatchKind::Root => ChaosStep { root: (step.root + 1) % members, ..step },
        MismatchKind::Operation | MismatchKind::Order => {
            let count = if other_kind == CallKind::Barrier { 0 } else { step.count };
            ChaosStep { kind: Some(other_kind), count, ..step }
        }
    }
}
