//! What the coordinator knows of its nodes: who is there, who ran what, who is lost. No I/O.

use std::collections::BTreeSet;
use std::hash::Hash;
use std::time::{Duration, Instant};

use super::message::{Down, Hello, Told, Up, Work};
use super::routes::Routes;
use crate::crew::{Event, Order};

/// What happens to the coordinator.
#[derive(Debug)]
pub enum Input<C> {
    /// One below us says something.
    Up(C, Up),
    /// A connection ended.
    Closed(C, String),
    /// Time passed.
    Tick,
}

/// What the coordinator is to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Output<C> {
    /// Say this to one below.
    Down(C, Down),
    /// This happened to the job.
    Event(Event),
}

/// Where a node stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It has not been heard of yet.
    Unheard,
    Here,
    /// The way to it broke then; it may find another.
    Silent(Instant),
    Lost,
}

#[derive(Debug)]
struct Node {
    host: String,
    state: State,
    hello: Option<Hello>,
    /// Its ranks in this start.
    ranks: Vec<u32>,
    /// Those whose end has been heard of.
    ended: BTreeSet<u32>,
    /// Whether they are over.
    over: bool,
}

/// The coordinator's roll of nodes.
#[derive(Debug)]
pub struct Roll<C> {
    nodes: Vec<Node>,
    routes: Routes<C>,
    attempt: u32,
    /// Whether a start is under way.
    running: bool,
    /// Nodes of which something is yet to be heard.
    open: BTreeSet<u32>,
    /// How long a node to which the way broke may look for another.
    rejoin: Duration,
}

impl<C: Copy + Eq + Hash> Roll<C> {
    /// A roll of nodes none of which has been heard of.
    pub fn new(hosts: &[String], rejoin: Duration) -> Self {
        let node = |host: &String| Node {
            host: host.clone(),
            state: State::Unheard,
            hello: None,
            ranks: Vec::new(),
            ended: BTreeSet::new(),
            over: true,
        };
        let nodes = hosts.iter().map(node).collect();
        Self {
            nodes,
            routes: Routes::default(),
            attempt: 0,
            running: false,
            open: BTreeSet::new(),
            rejoin,
        }
    }

    /// Who has not introduced themselves, or is gone.
    pub fn absent(&self) -> Vec<u32> {
        let gone = |n: &Node| n.state != State::Here || n.hello.is_none();
        let nodes = self.nodes.iter().enumerate();
        nodes.filter(|(_, n)| gone(n)).map(|(i, _)| i as u32).collect()
    }

    /// What a node said of itself.
    pub fn hello(&self, node: u32) -> Option<&Hello> {
        self.nodes.get(node as usize)?.hello.as_ref()
    }

    /// Starts ranks. All these nodes are here.
    pub fn begin(&mut self, attempt: u32, work: Vec<(u32, Work)>) -> Vec<Output<C>> {
        self.attempt = attempt;
        self.running = true;
        for (i, node) in self.nodes.iter_mut().enumerate() {
            (node.ranks, node.over) = (Vec::new(), true);
            node.ended.clear();
            if !matches!(node.state, State::Silent(_)) {
                self.open.remove(&(i as u32));
            }
        }
        let mut out = Vec::new();
        for (node, work) in work {
            let ranks = work.ranks.iter().map(|r| r.rank).collect();
            if let Some(entry) = self.nodes.get_mut(node as usize) {
                (entry.ranks, entry.over) = (ranks, false);
            }
            self.reckon(node);
            match self.routes.to(node) {
                Some(conn) => out.push(Output::Down(conn, Down::Start { node, work })),
                // It was lost just now, and does not know of its ranks.
                None => self.give_up(node, &mut out),
            }
        }
        self.finish(&mut out);
        out
    }

    /// Takes something for said by a node, which cannot say it itself.
    pub fn told_of(&mut self, node: u32, attempt: u32, what: Told) -> Vec<Output<C>> {
        let mut out = Vec::new();
        if attempt == self.attempt {
            self.told(node, what, &mut out);
            self.finish(&mut out);
        }
        out
    }

    /// Has something done with all ranks.
    pub fn order(&self, order: Order) -> Vec<Output<C>> {
        self.routes.all().map(|conn| Output::Down(conn, Down::All(order))).collect()
    }

    /// Sends everybody home.
    pub fn leave(&self) -> Vec<Output<C>> {
        self.routes.all().map(|conn| Output::Down(conn, Down::Leave)).collect()
    }

    /// Takes what happened and says what to do.
    pub fn handle(&mut self, input: Input<C>, now: Instant) -> Vec<Output<C>> {
        let mut out = Vec::new();
        match input {
            Input::Up(conn, up) => self.heard(conn, up, now, &mut out),
            Input::Closed(conn, why) => {
                if let Some(cut) = self.routes.closed(conn) {
                    self.cut(cut.node, &cut.below, &why, now, &mut out);
                }
            }
            Input::Tick => self.tick(now, &mut out),
        }
        self.finish(&mut out);
        out
    }

    fn heard(&mut self, conn: C, up: Up, now: Instant, out: &mut Vec<Output<C>>) {
        let weight = up.weight();
        if weight > 0 {
            out.push(Output::Down(conn, Down::Taken(weight)));
        }
        match up {
            Up::Hello(hello) => self.here(conn, hello),
            Up::Back { node, through, why } => self.back(conn, node, through, &why, out),
            Up::Lost { node, why, below } => {
                self.routes.forget(conn, node.iter().chain(&below).copied());
                self.cut(node, &below, &why, now, out);
            }
            Up::Told { node, attempt, what } if attempt == self.attempt => {
                self.told(node, what, out);
            }
            Up::Told { .. } => {}
            Up::Lines(lines) => {
                out.extend(lines.into_iter().map(|line| Output::Event(Event::Line(line))));
            }
            Up::Wrote { rank, error, bytes } => {
                out.push(Output::Event(Event::Wrote { rank, error, bytes }));
            }
            Up::Progress => out.push(Output::Event(Event::Progress)),
            Up::Signal(signal) => out.push(Output::Event(Event::Signal(signal))),
            Up::Note(note) => out.push(Output::Event(Event::Note(note))),
        }
    }

    fn here(&mut self, conn: C, hello: Hello) {
        let Some(node) = self.nodes.get_mut(hello.node as usize) else { return };
        self.routes.heard(conn, hello.node);
        // One that was given up is not waited for any more, and cannot be used again.
        if node.state != State::Lost {
            node.state = State::Here;
        }
        let position = hello.node;
        node.hello = Some(hello);
        self.reckon(position);
    }

    /// A node lost its way to us and found another; it ends its ranks, for it could not know what
    /// became of the job. To be to blame is the one its way led through.
    fn back(
        &mut self,
        conn: C,
        node: u32,
        through: Option<u32>,
        why: &str,
        out: &mut Vec<Output<C>>,
    ) {
        let Some(entry) = self.nodes.get_mut(node as usize) else { return };
        self.routes.heard(conn, node);
        if entry.state != State::Lost {
            entry.state = State::Here;
        }
        let (hello, over) = (entry.hello.is_none(), entry.over);
        self.reckon(node);
        out.push(Output::Down(conn, Down::Again { node, hello, attempt: self.attempt }));
        if over {
            return;
        }
        let name = |n: u32| self.nodes.get(n as usize).map_or("?", |n| n.host.as_str());
        let (blamed, what) = match through {
            Some(other) => {
                (other, format!("{} lost its connection to {}", name(node), name(other)))
            }
            None => (node, format!("{} lost its connection to the coordinator", name(node))),
        };
        self.broken(blamed, node, format!("{what}: {why}"), out);
    }

    /// Tells of a failure by the blamed node's first rank, or the other's if it has none.
    fn broken(&self, blamed: u32, other: u32, why: String, out: &mut Vec<Output<C>>) {
        let first = |n: u32| self.nodes.get(n as usize).and_then(|n| n.ranks.first());
        if let Some(&rank) = first(blamed).or_else(|| first(other)) {
            out.push(Output::Event(Event::Broken { rank, why }));
        }
    }

    fn cut(
        &mut self,
        node: Option<u32>,
        below: &[u32],
        why: &str,
        now: Instant,
        out: &mut Vec<Output<C>>,
    ) {
        for &silent in node.iter().chain(below) {
            if let Some(entry) = self.nodes.get_mut(silent as usize)
                && entry.state == State::Here
            {
                entry.state = State::Silent(now);
            }
            self.reckon(silent);
        }
        let Some(entry) = node.and_then(|n| self.nodes.get(n as usize)) else { return };
        match entry.over {
            false => {
                let ranks = entry.ranks.iter().map(|&r| r as usize);
                let ranks: regatta_model::CpuSet = ranks.collect();
                let what = format!("{} with rank {ranks} was lost: {why}", entry.host);
                self.broken(node.unwrap_or_default(), 0, what, out);
            }
            true if self.running => {
                let what = format!("{}, which runs no rank any more, was lost: {why}", entry.host);
                out.push(Output::Event(Event::Note(what)));
            }
            true => {}
        }
    }

    fn told(&mut self, node: u32, what: Told, out: &mut Vec<Output<C>>) {
        let Some(entry) = self.nodes.get_mut(node as usize) else { return };
        let event = match what {
            Told::Started { rank, pid } => Event::Started { rank, pid },
            Told::Unstarted { rank, why } => {
                entry.ended.insert(rank);
                Event::Unstarted { rank, why: format!("{}: {why}", entry.host) }
            }
            Told::Ended(rank, ending) => match entry.ended.insert(rank) {
                true => Event::Ended(rank, ending),
                false => return,
            },
            Told::Tail(rank, lines) => Event::Tail(rank, lines),
            Told::Doing(what) => Event::Doing(what),
            Told::Over(endings) => {
                entry.over = true;
                let unheard = endings.into_iter().filter(|(rank, _)| entry.ended.insert(*rank));
                out.extend(unheard.map(|(rank, end)| Output::Event(Event::Ended(rank, end))));
                // Those that never were.
                let why = format!("{}: the order to start it was lost on its way", entry.host);
                let never = entry.ranks.iter().filter(|rank| entry.ended.insert(**rank));
                let event = |&rank: &u32| Event::Unstarted { rank, why: why.clone() };
                out.extend(never.map(event).map(Output::Event));
                return self.reckon(node);
            }
        };
        out.push(Output::Event(event));
    }

    fn tick(&mut self, now: Instant, out: &mut Vec<Output<C>>) {
        let late = |n: &Node| match n.state {
            State::Silent(since) => now.saturating_duration_since(since) >= self.rejoin,
            _ => false,
        };
        let nodes = self.nodes.iter().enumerate();
        let lost: Vec<u32> = nodes.filter(|(_, n)| late(n)).map(|(i, _)| i as u32).collect();
        for node in lost {
            self.give_up(node, out);
        }
    }

    /// A node is gone for good.
    fn give_up(&mut self, node: u32, out: &mut Vec<Output<C>>) {
        let Some(entry) = self.nodes.get_mut(node as usize) else { return };
        entry.state = State::Lost;
        let ranks = if entry.over { Vec::new() } else { entry.ranks.clone() };
        entry.over = true;
        self.reckon(node);
        if self.running {
            out.push(Output::Event(Event::Lost { node, ranks }));
        }
    }

    /// Whether something is yet to be heard of a node: what its ranks do, or, if it is out of
    /// sight, whether it is there for the next start.
    fn reckon(&mut self, node: u32) {
        let Some(entry) = self.nodes.get(node as usize) else { return };
        match !entry.over || matches!(entry.state, State::Silent(_)) {
            true => self.open.insert(node),
            false => self.open.remove(&node),
        };
    }

    /// Tells once that nothing more is to come of this start.
    fn finish(&mut self, out: &mut Vec<Output<C>>) {
        if self.running && self.open.is_empty() {
            self.running = false;
            out.push(Output::Event(Event::Over));
        }
    }
}
