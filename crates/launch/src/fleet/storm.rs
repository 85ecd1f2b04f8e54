//! Agents and a coordinator in a network that delays, breaks and loses, under virtual time.
//!
//! Messages of one connection keep their order, as TCP's do; between connections there is none. A
//! connection that breaks loses what is on its way, and its two ends hear of it at different times.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use regatta_model::MemoryPolicy;
use regatta_model::result::Ending;

use super::member::{self, Member, Patience};
use super::message::{Down, Hello, RankWork, Up, Work, decode, encode};
use super::roll::{self, Roll};
use super::tree::{Above, Tree};
use crate::bind::Binding;
use crate::crew::{Event, Order};
use crate::supervise::{self, Action, Limits, Supervisor};

type Conn = u32;
const GRACE: Duration = Duration::from_secs(10);
const REJOIN: Duration = Duration::from_secs(5);
/// The end of a rank that never began.
const NEVER: Ending = Ending::Exit(127);
/// Each looks for another way up when the one above it has given up: one after the other, in the
/// worst case all of them in a row.
const LEAVE: Duration = Duration::from_secs(100);

/// A generator of numbers that is the same for the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % sides.max(1)
    }
}

/// The upper end of a connection, or the lower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum End {
    Root,
    Node(u32),
}

enum Parcel {
    Bytes(Vec<u8>),
    Closed,
}

struct Wire {
    lower: u32,
    upper: End,
    up: VecDeque<Parcel>,
    down: VecDeque<Parcel>,
    broken: bool,
}

/// The ranks of a node, as they really are.
#[derive(Default)]
struct Ranks {
    running: BTreeSet<u32>,
    stubborn: bool,
    over_told: bool,
}

struct Site {
    member: Option<Member<Conn>>,
    ranks: Ranks,
    cut: bool,
    /// Whether it left by itself.
    left: bool,
}

struct World {
    dice: Dice,
    now: Instant,
    sites: Vec<Site>,
    wires: HashMap<Conn, Wire>,
    next: Conn,
    /// The coordinator, while it lives.
    root: Option<(Roll<Conn>, Supervisor)>,
    truth: BTreeMap<u32, Ending>,
    overs: usize,
    each: u32,
    harmed: bool,
}

impl World {
    fn new(nodes: u32, fan_out: u32, each: u32, seed: u64) -> Self {
        let now = Instant::now();
        let tree = Tree { nodes, fan_out };
        let patience = Patience { grace: GRACE, join: Duration::from_secs(60), rejoin: REJOIN };
        let site = |node| {
            let hello = Hello { node, machine: String::new(), port: None };
            let member = Some(Member::new(hello, tree, patience, now));
            Site { member, ranks: Ranks::default(), cut: false, left: false }
        };
        let hosts: Vec<String> = (0..nodes).map(|n| format!("n{n}")).collect();
        let limits = Limits { grace: GRACE, hang_after: None };
        let supervisor = Supervisor::new(nodes * each, limits, now);
        Self {
            dice: Dice(seed | 1),
            now,
            sites: (0..nodes).map(site).collect(),
            wires: HashMap::new(),
            next: 0,
            root: Some((Roll::new(&hosts, REJOIN), supervisor)),
            truth: BTreeMap::new(),
            overs: 0,
            each,
            harmed: false,
        }
    }

    /// Lets something happen: a message arrives, or time passes.
    fn step(&mut self) {
        let busy: Vec<(Conn, bool)> = self
            .wires
            .iter()
            .flat_map(|(&c, w)| [(c, true, w.up.is_empty()), (c, false, w.down.is_empty())])
            .filter(|(.., empty)| !empty)
            .map(|(c, up, _)| (c, up))
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        if busy.is_empty() || self.dice.roll(8) == 0 {
            let time = Duration::from_millis(self.dice.roll(400) as u64);
            return self.pass(time);
        }
        let (conn, up) = busy[self.dice.roll(busy.len())];
        let Some(wire) = self.wires.get_mut(&conn) else { return };
        let parcel = if up { wire.up.pop_front() } else { wire.down.pop_front() };
        let (lower, upper) = (wire.lower, wire.upper);
        match (parcel, up) {
            (None, _) => {}
            (Some(Parcel::Bytes(bytes)), true) => self.arrive(upper, conn, &bytes),
            (Some(Parcel::Bytes(bytes)), false) => {
                let down = decode::<Down>(&bytes).unwrap();
                if self.sites[lower as usize].member.as_ref().and_then(|m| m.above()) == Some(conn)
                {
                    self.tell(lower, member::Input::Down(down));
                }
            }
            (Some(Parcel::Closed), true) => self.hear_close(upper, conn),
            (Some(Parcel::Closed), false) => self.hear_close(End::Node(lower), conn),
        }
    }

    fn arrive(&mut self, at: End, conn: Conn, bytes: &[u8]) {
        let up = decode::<Up>(bytes).unwrap();
        match at {
            End::Node(node) => self.tell(node, member::Input::Up(conn, up)),
            End::Root => self.tell_root(roll::Input::Up(conn, up)),
        }
    }

    fn hear_close(&mut self, at: End, conn: Conn) {
        match at {
            End::Node(node) => self.tell(node, member::Input::Closed(conn, "broke".to_owned())),
            End::Root => self.tell_root(roll::Input::Closed(conn, "broke".to_owned())),
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        for node in 0..self.sites.len() as u32 {
            self.tell(node, member::Input::Tick);
        }
        self.tell_root(roll::Input::Tick);
        if let Some((_, supervisor)) = &mut self.root {
            let actions = supervisor.handle(supervise::Input::Tick, self.now);
            self.act(actions);
        }
    }

    fn tell(&mut self, node: u32, input: member::Input<Conn>) {
        let Some(member) = &mut self.sites[node as usize].member else { return };
        for output in member.handle(input, self.now) {
            self.of_member(node, output);
        }
    }

    fn of_member(&mut self, node: u32, output: member::Output<Conn>) {
        match output {
            member::Output::Call(above) => self.call(node, above),
            member::Output::Up(conn, up) => self.post(conn, true, encode(&up).unwrap()),
            member::Output::Down(conn, down) => self.post(conn, false, encode(&down).unwrap()),
            member::Output::Start(work) => {
                let ranks = work.ranks.iter().map(|r| r.rank).collect();
                let stubborn = self.dice.roll(4) == 0;
                self.sites[node as usize].ranks =
                    Ranks { running: ranks, stubborn, over_told: false };
            }
            member::Output::Ranks(order) => self.order(node, order),
            member::Output::Leave => {
                self.sites[node as usize].left = true;
                self.end_site(node, true);
            }
        }
    }

    fn order(&mut self, node: u32, order: Order) {
        let site = &self.sites[node as usize];
        let ending = match order {
            Order::Signal(signal) if !site.ranks.stubborn => Ending::Signal(signal),
            Order::Kill => Ending::Signal(9),
            _ => return,
        };
        for rank in site.ranks.running.clone() {
            self.end_rank(node, rank, ending);
        }
    }

    fn end_rank(&mut self, node: u32, rank: u32, ending: Ending) {
        let ranks = &mut self.sites[node as usize].ranks;
        if !ranks.running.remove(&rank) {
            return;
        }
        let over = ranks.running.is_empty() && !std::mem::replace(&mut ranks.over_told, false);
        self.truth.insert(rank, ending);
        self.tell(node, member::Input::Ranks(Event::Ended(rank, ending)));
        if over {
            self.tell(node, member::Input::Ranks(Event::Over));
        }
    }

    /// Whether two points can reach each other now.
    fn reaches(&self, end: End) -> bool {
        match end {
            End::Root => self.root.is_some(),
            End::Node(node) => {
                let site = &self.sites[node as usize];
                site.member.is_some() && !site.cut
            }
        }
    }

    fn call(&mut self, node: u32, above: Above) {
        let upper = match above {
            Above::Root => End::Root,
            Above::Node(parent) => End::Node(parent),
        };
        if !self.reaches(upper) || !self.reaches(End::Node(node)) {
            return self.tell(node, member::Input::CallFailed);
        }
        self.next += 1;
        let wire =
            Wire { lower: node, upper, up: VecDeque::new(), down: VecDeque::new(), broken: false };
        self.wires.insert(self.next, wire);
        self.tell(node, member::Input::Joined(self.next));
    }

    fn post(&mut self, conn: Conn, up: bool, bytes: Vec<u8>) {
        let Some(wire) = self.wires.get_mut(&conn) else { return };
        let queue = if up { &mut wire.up } else { &mut wire.down };
        // What is sent into a connection that broke arrives nowhere.
        if !wire.broken {
            queue.push_back(Parcel::Bytes(bytes));
        }
    }

    /// Breaks a connection; what is on its way is lost, or some of it, unless it is closed in order.
    fn snap(&mut self, conn: Conn, orderly: bool) {
        let kept = (self.dice.roll(3), self.dice.roll(3));
        let kept = if orderly { (usize::MAX, usize::MAX) } else { kept };
        let Some(wire) = self.wires.get_mut(&conn) else { return };
        if std::mem::replace(&mut wire.broken, true) {
            return;
        }
        for (queue, kept) in [(&mut wire.up, kept.0), (&mut wire.down, kept.1)] {
            queue.truncate(kept);
            queue.push_back(Parcel::Closed);
        }
    }

    fn wires_of(&self, end: End) -> Vec<Conn> {
        let touches = |w: &Wire| w.upper == end || End::Node(w.lower) == end;
        let mut found: Vec<Conn> =
            self.wires.iter().filter(|(_, w)| touches(w)).map(|(c, _)| *c).collect();
        found.sort_unstable();
        found
    }

    /// An agent is no more, and nothing of its ranks.
    fn end_site(&mut self, node: u32, orderly: bool) {
        let site = &mut self.sites[node as usize];
        site.member = None;
        for rank in std::mem::take(&mut site.ranks.running) {
            self.truth.insert(rank, Ending::Signal(9));
        }
        for conn in self.wires_of(End::Node(node)) {
            self.snap(conn, orderly);
        }
    }

    fn tell_root(&mut self, input: roll::Input<Conn>) {
        let Some((roll, _)) = &mut self.root else { return };
        let outputs = roll.handle(input, self.now);
        self.of_root(outputs);
    }

    fn of_root(&mut self, outputs: Vec<roll::Output<Conn>>) {
        for output in outputs {
            match output {
                roll::Output::Down(conn, down) => self.post(conn, false, encode(&down).unwrap()),
                roll::Output::Event(event) => self.of_job(event),
            }
        }
    }

    fn of_job(&mut self, event: Event) {
        let inputs: Vec<supervise::Input> = match event {
            Event::Ended(rank, ending) => vec![supervise::Input::Ended(rank, ending)],
            Event::Broken { rank, .. } => vec![supervise::Input::Broken(rank)],
            Event::Unstarted { rank, .. } => vec![supervise::Input::Ended(rank, NEVER)],
            Event::Lost { ranks, .. } => {
                ranks.into_iter().map(|r| supervise::Input::Ended(r, Ending::Lost)).collect()
            }
            Event::Over => {
                self.overs += 1;
                Vec::new()
            }
            _ => Vec::new(),
        };
        for input in inputs {
            let Some((_, supervisor)) = &mut self.root else { return };
            let actions = supervisor.handle(input, self.now);
            self.act(actions);
        }
    }

    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            let order = match action {
                Action::SignalRanks(signal) => Order::Signal(signal),
                Action::Kill => Order::Kill,
                Action::Look => Order::Look,
                Action::Finish => continue,
            };
            let Some((roll, _)) = &self.root else { return };
            let outputs = roll.order(order);
            self.of_root(outputs);
        }
    }

    fn begin(&mut self) {
        let each = self.each;
        let rank = |rank| RankWork {
            rank,
            command: None,
            env: Vec::new(),
            binding: Binding::new(&Default::default(), &MemoryPolicy::System),
        };
        let work = |node: u32| Work {
            attempt: 0,
            command: Vec::new(),
            folder: Default::default(),
            base: Vec::new(),
            without: Vec::new(),
            common: Vec::new(),
            progress: false,
            ranks: (node * each..(node + 1) * each).map(rank).collect(),
        };
        let all = (0..self.sites.len() as u32).map(|n| (n, work(n))).collect();
        if let Some((roll, _)) = &mut self.root {
            let outputs = roll.begin(0, all);
            self.of_root(outputs);
        }
    }

    /// Something goes wrong.
    fn harm(&mut self) {
        let node = self.dice.roll(self.sites.len()) as u32;
        self.harmed = true;
        match self.dice.roll(6) {
            0 => self.end_site(node, false),
            1 => {
                self.sites[node as usize].cut = true;
                self.wires_of(End::Node(node)).into_iter().for_each(|c| self.snap(c, false));
            }
            2 => self.sites[node as usize].cut = false,
            3 => {
                let running = self.sites[node as usize].ranks.running.first().copied();
                running.into_iter().for_each(|r| self.end_rank(node, r, Ending::Exit(3)));
            }
            _ => {
                let conns = self.wires_of(End::Node(node));
                if !conns.is_empty() {
                    let conn = conns[self.dice.roll(conns.len())];
                    self.snap(conn, false);
                }
            }
        }
    }

    fn all_here(&self) -> bool {
        self.root.as_ref().is_some_and(|(roll, _)| roll.absent().is_empty())
    }

    /// Steps until something holds, for so much virtual time.
    fn until(&mut self, limit: Duration, holds: impl Fn(&Self) -> bool) -> bool {
        let end = self.now + limit;
        while !holds(self) {
            if self.now >= end {
                return false;
            }
            self.step();
        }
        true
    }

    fn let_ranks_end(&mut self) {
        for node in 0..self.sites.len() as u32 {
            for rank in self.sites[node as usize].ranks.running.clone() {
                if self.dice.roll(3) == 0 {
                    self.end_rank(node, rank, Ending::Exit(0));
                }
            }
        }
    }

    fn quiet(&self) -> bool {
        self.sites.iter().all(|s| s.member.is_none() && s.ranks.running.is_empty())
    }
}

fn started(nodes: u32, fan_out: u32, each: u32, seed: u64) -> World {
    let mut world = World::new(nodes, fan_out, each, seed);
    assert!(world.until(Duration::from_secs(60), World::all_here), "not all agents joined");
    world.begin();
    world
}

proptest! {
    /// Whatever breaks, the coordinator hears how every rank ended or gives it up, and the job is
    /// over once; then everybody goes home, and nothing runs anywhere.
    #[test]
    fn every_job_ends(
        nodes in 1u32..14, fan_out in 1u32..4, each in 1u32..3, seed: u64, harms in 0usize..5,
    ) {
        let mut world = started(nodes, fan_out, each, seed);
        for _ in 0..harms {
            for _ in 0..world.dice.roll(40) {
                world.step();
            }
            world.harm();
        }
        let mut rounds = 0;
        while world.overs == 0 {
            world.let_ranks_end();
            world.until(Duration::from_secs(2), |w| w.overs > 0);
            rounds += 1;
            prop_assert!(rounds < 200, "the job does not end");
        }
        let (roll, supervisor) = world.root.as_ref().unwrap();
        prop_assert_eq!(supervisor.endings().len() as u32, nodes * each);
        for (rank, told) in supervisor.endings() {
            let truth = world.truth.get(rank).copied().unwrap_or(NEVER);
            prop_assert!(*told == Ending::Lost || truth == *told);
        }
        if !world.harmed {
            prop_assert_eq!(supervisor.code(), 0);
        }
        let bad = world.truth.values().any(|e| !e.is_good());
        prop_assert!(!bad || supervisor.code() != 0);
        let outputs = roll.leave();
        world.of_root(outputs);
        // The coordinator's process ends after it.
        world.until(Duration::from_millis(500), World::quiet);
        world.root = None;
        world.wires_of(End::Root).into_iter().for_each(|c| world.snap(c, false));
        prop_assert!(world.until(LEAVE, World::quiet), "somebody stays");
        prop_assert_eq!(world.overs, 1);
    }

    /// If the coordinator dies, all agents end their ranks and go.
    #[test]
    fn nothing_outlives_the_coordinator(
        nodes in 1u32..14, fan_out in 1u32..4, seed: u64, steps in 0usize..200,
    ) {
        let mut world = started(nodes, fan_out, 2, seed);
        for _ in 0..steps {
            world.step();
        }
        world.root = None;
        world.wires_of(End::Root).into_iter().for_each(|c| world.snap(c, false));
        prop_assert!(world.until(LEAVE, World::quiet), "somebody stays");
        prop_assert!(world.sites.iter().all(|s| s.left));
    }
}
