//! What ranks do and what befalls them, chosen by a seed: a rank finds out by itself what it has to
//! do.

use regatta_comm::{CallKind, DType, ReduceOp};

use crate::seeded::Seeded;

/// Where ranks are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// All on this machine; nodes are made up.
    Machine,
    /// On the nodes of a cluster, with a network between them.
    Network,
}

/// How ranks are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    Memory,
    Tcp,
    Host,
}

/// What a rank calls that should call something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    Operation,
    Size,
    Type,
    Root,
    /// A call is left out, so that all that follow come too early.
    Order,
}

/// What befalls the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A rank is killed.
    Killed,
    /// A rank is killed while ranks come to know each other.
    KilledEarly,
    /// A rank's process ends without a word.
    Exits,
    /// A rank is stopped for good.
    Stopped,
    /// A rank is stopped until the others have given it up, and then goes on.
    Woken,
    /// A rank is stopped for a moment.
    Paused,
    /// A rank calls something else than the others.
    Calls(Wrong),
    /// A rank lives and calls nothing any more.
    Silent,
    /// A rank gives up, by another of its threads.
    Aborts,
    /// The cable of the victim's node is pulled.
    Cut,
    /// Nothing goes between the victim's node and another, and all else does.
    CutBetween { other: usize },
    /// The victim's node sends at eight thousand bits a second.
    Slow,
}

/// One call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// `None`: a ring of messages, in a group.
    pub kind: Option<CallKind>,
    pub dtype: DType,
    pub op: ReduceOp,
    /// By the number among those who take part.
    pub root: u32,
    pub count: usize,
    /// Whether only those of the same colour take part.
    pub in_part: bool,
    pub background: bool,
}

impl Step {
    /// What must be the same for all.
    fn essence(self) -> Self {
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

/// A world and what befalls it.
#[derive(Debug)]
pub struct Case {
    pub seed: u64,
    pub by: By,
    pub place: Place,
    pub debug: bool,
    /// The node of each rank.
    pub nodes: Vec<usize>,
    /// Of how many colours the parts are.
    pub colours: u32,
    pub script: Vec<Step>,
    pub fault: Fault,
    pub victim: usize,
    /// In which step it happens, and how long after that begins.
    pub at: usize,
    pub after_us: u64,
}

impl Case {
    pub fn new(seed: u64, place: Place) -> Self {
        let mut seeded = Seeded(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xc0a5);
        let s = &mut seeded;
        let by = match place {
            Place::Machine => s.one(&[By::Memory, By::Tcp, By::Host, By::Host]),
            Place::Network => s.one(&[By::Tcp, By::Host]),
        };
        let nodes = layout(s, place, by);
        let (ranks, colours) = (nodes.len(), s.one(&[1, 2, 2, 3]));
        let victim = s.below(ranks as u64) as usize;
        let fault = match place {
            Place::Machine => fault_of_process(s),
            Place::Network => fault_of_network(s, &nodes, victim),
        };
        let script: Vec<Step> = (0..2 + s.below(6)).map(|_| step(s, ranks, colours)).collect();
        let mut case = Self {
            seed,
            by,
            place,
            debug: s.below(4) == 0,
            nodes,
            colours,
            script,
            fault,
            victim,
            at: s.below(12) as usize,
            after_us: s.one(&[0, 50, 300, 1000, 5000]),
        };
        if matches!(case.fault, Fault::Calls(_)) && !case.differs() {
            case.fault = Fault::Silent;
        }
        case
    }

    /// Whether the wrong thing is another one than the right one, and somebody is there to see it.
    fn differs(&self) -> bool {
        let (right, wrong) = (self.step(self.at), self.step_of(self.at, self.victim));
        let seen = |step: Step| self.members(self.victim, step).len() > 1 && step.kind.is_some();
        // Between communicators there is no order.
        let one =
            self.fault != Fault::Calls(Wrong::Order) || self.script.iter().all(|s| !s.in_part);
        one && seen(right) && seen(wrong) && right.essence() != wrong.essence()
    }

    pub fn ranks(&self) -> usize {
        self.nodes.len()
    }

    /// The name of a rank's node.
    pub fn host(&self, rank: usize) -> String {
        format!("node{}", self.nodes[rank] + 1)
    }

    /// What all call in a step.
    pub fn step(&self, number: usize) -> Step {
        self.script[number % self.script.len()]
    }

    /// What a rank calls in a step, which may be wrong.
    pub fn step_of(&self, number: usize, rank: usize) -> Step {
        let step = self.step(number);
        match self.fault {
            Fault::Calls(Wrong::Order) if rank == self.victim && number >= self.at => {
                self.step(number + 1)
            }
            Fault::Calls(wrong) if rank == self.victim && number == self.at => {
                changed(step, wrong, self.members(rank, step).len() as u32)
            }
            _ => step,
        }
    }

    /// Who takes part in a step that this rank takes part in.
    pub fn members(&self, rank: usize, step: Step) -> Vec<usize> {
        let colour = |rank: usize| rank as u32 % self.colours;
        (0..self.ranks()).filter(|r| !step.in_part || colour(*r) == colour(rank)).collect()
    }

    /// Whether ranks go on as if nothing had happened, or may.
    pub fn may_end_well(&self) -> bool {
        // In two levels a wrong root may change nothing for anybody, nor need another order, where
        // one call goes through the network and the other, of nothing, waits for nobody there.
        let harmless = matches!(self.fault, Fault::Calls(Wrong::Root | Wrong::Order));
        let unseen = self.by == By::Host && !self.debug && harmless;
        unseen || matches!(self.fault, Fault::Paused | Fault::CutBetween { .. } | Fault::Slow)
    }

    /// Who can join again afterwards.
    pub fn survivors(&self) -> Vec<usize> {
        let gone = |rank: &usize| match self.fault {
            Fault::Killed | Fault::KilledEarly | Fault::Exits | Fault::Stopped => {
                *rank == self.victim
            }
            Fault::Cut => self.nodes[*rank] == self.nodes[self.victim],
            Fault::CutBetween { other } => self.nodes[*rank] == other,
            Fault::Slow => self.nodes[*rank] == self.nodes[self.victim],
            _ => false,
        };
        (0..self.ranks()).filter(|rank| !gone(rank)).collect()
    }
}

fn layout(s: &mut Seeded, place: Place, by: By) -> Vec<usize> {
    let ranks = match place {
        Place::Machine => 2 + s.below(8) as usize,
        Place::Network => 3 + s.below(6) as usize,
    };
    let nodes = match (place, by) {
        (Place::Network, _) => 4.min(ranks),
        (_, By::Memory) => 1,
        _ => 1 + s.below(4.min(ranks as u64)) as usize,
    };
    let mut all: Vec<usize> = match s.below(3) {
        0 => (0..ranks).map(|rank| rank * nodes / ranks).collect(),
        1 => (0..ranks).map(|rank| rank % nodes).collect(),
        // Rank 0 is on the first, so that nodes are in the order of their first ranks or not.
        _ => (0..ranks)
            .map(|rank| if rank == 0 { 0 } else { s.below(nodes as u64) as usize })
            .collect(),
    };
    // What befalls a network befalls nobody who does not need it.
    if place == Place::Network && all.iter().all(|node| *node == all[0]) {
        all[ranks - 1] = 1;
    }
    all
}

fn fault_of_process(s: &mut Seeded) -> Fault {
    let wrong = [Wrong::Operation, Wrong::Size, Wrong::Type, Wrong::Root, Wrong::Order];
    match s.below(20) {
        0..6 => Fault::Killed,
        6 => Fault::KilledEarly,
        7..9 => Fault::Exits,
        9 => Fault::Stopped,
        10 => Fault::Woken,
        11 => Fault::Paused,
        12..16 => Fault::Calls(s.one(&wrong)),
        16 => Fault::Silent,
        _ => Fault::Aborts,
    }
}

fn fault_of_network(s: &mut Seeded, nodes: &[usize], victim: usize) -> Fault {
    let others: Vec<usize> =
        nodes.iter().copied().filter(|n| *n != nodes[victim] && *n != nodes[0]).collect();
    match s.below(6) {
        0 => Fault::Killed,
        1 | 2 => Fault::Cut,
        3 | 4 if !others.is_empty() && nodes[victim] != nodes[0] => {
            Fault::CutBetween { other: s.one(&others) }
        }
        _ => Fault::Slow,
    }
}

fn step(s: &mut Seeded, ranks: usize, colours: u32) -> Step {
    let in_part = s.below(3) == 0 && colours > 1;
    let least = if in_part { ranks / colours as usize } else { ranks };
    let number = s.below(10) as usize;
    let kind = CallKind::ALL.get(number).copied();
    let count = s.one(&[0, 1, 7, 1000, 20_000, 300_000]);
    Step {
        kind,
        dtype: s.one(&DType::ALL),
        op: s.one(&ReduceOp::ALL),
        root: s.below(least.max(1) as u64) as u32,
        count: if kind == Some(CallKind::Barrier) { 0 } else { count },
        in_part,
        background: kind.is_some() && s.below(3) == 0,
    }
}

/// The same with something else in it.
fn changed(step: Step, wrong: Wrong, members: u32) -> Step {
    let other_kind = match step.kind {
        Some(CallKind::AllReduce) => CallKind::Barrier,
        _ => CallKind::AllReduce,
    };
    match wrong {
        Wrong::Size if step.kind == Some(CallKind::Barrier) => step,
        Wrong::Size => Step { count: step.count + 1, ..step },
        Wrong::Type if step.dtype == DType::U8 => Step { dtype: DType::F64, ..step },
        Wrong::Type => Step { dtype: DType::U8, ..step },
        Wrong::Root => Step { root: (step.root + 1) % members, ..step },
        Wrong::Operation | Wrong::Order => {
            let count = if other_kind == CallKind::Barrier { 0 } else { step.count };
            Step { kind: Some(other_kind), count, ..step }
        }
    }
}
