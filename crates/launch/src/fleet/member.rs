//! What an agent does: joins the tree, starts and ends its node's ranks, passes on what is said
//! above and below it, and ends its ranks by itself when nobody above is left. No I/O.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::{Duration, Instant};

use regatta_model::result::Ending;

use super::message::{Down, Hello, Told, Up, Work};
use super::routes::Routes;
use super::tree::{Above, Tree};
use crate::crew::{Event, Order};
use crate::lines::Folder;
use crate::signals::asks_to_end;

/// How long things may take.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// How long ranks have to end when they are told to.
    pub grace: Duration,
    /// How long to look for somebody above at the start.
    pub join: Duration,
    /// How long to look for somebody above after the way there broke.
    pub rejoin: Duration,
}

/// What happens to an agent.
#[derive(Debug)]
pub enum Input<C> {
    /// Whom we called answered, and is of the job.
    Joined(C),
    /// Whom we called did not answer.
    CallFailed,
    /// One below us says something.
    Up(C, Up),
    /// The one above us says something.
    Down(Down),
    /// A connection ended.
    Closed(C, String),
    /// Something happened to our ranks.
    Ranks(Event),
    /// A signal came to this process.
    Caught(i32),
    /// Time passed.
    Tick,
}

/// What an agent is to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Output<C> {
    /// Call this one.
    Call(Above),
    /// Say this to the one above.
    Up(C, Up),
    /// Say this to one below.
    Down(C, Down),
    /// Start these ranks.
    Start(Work),
    /// Do this with our ranks.
    Ranks(Order),
    /// End this process.
    Leave,
}

/// How the one above is reached.
#[derive(Debug)]
enum Upward<C> {
    /// Looked for since then.
    Seeking {
        since: Instant,
        /// When the next call is due; `None` while one is made.
        call_at: Option<Instant>,
        calls: u32,
    },
    Joined(C),
}

/// The time between two calls, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// How long the one directly above is waited for at the start before others are tried.
const CLIMB_AFTER: Duration = Duration::from_secs(10);
/// How long a line waits for the same line of other ranks.
const FOLD: Duration = Duration::from_millis(50);
/// How often progress is told.
const PROGRESS: Duration = Duration::from_secs(1);
/// How much output may be on its way to the one above.
pub const WINDOW: u64 = 512 * 1024;

/// What is known of the ranks of the last start.
#[derive(Debug, Default)]
struct Ranks {
    /// Which start it was; `None`: there was none.
    attempt: Option<u32>,
    running: bool,
    /// How those that are over ended.
    endings: BTreeMap<u32, Ending>,
    /// What was told of them, to be told again if it was lost.
    told: Vec<Told>,
    /// When they are killed.
    kill_at: Option<Instant>,
}

/// An agent.
#[derive(Debug)]
pub struct Member<C> {
    hello: Hello,
    ancestors: Vec<Above>,
    patience: Patience,
    upward: Upward<C>,
    /// How the way up broke, if we had one.
    broke: Option<(Above, String)>,
    /// Whom the last call was made to.
    called: Above,
    routes: Routes<C>,
    /// What waits for somebody above.
    held: Vec<Up>,
    lines: Folder,
    /// Output on its way up.
    sent: u64,
    /// Output taken from those below and not yet acknowledged.
    owed: HashMap<C, u64>,
    ranks: Ranks,
    progress: Option<Instant>,
}

impl<C: Copy + Eq + Hash> Member<C> {
    /// An agent that is to join.
    pub fn new(hello: Hello, tree: Tree, patience: Patience, now: Instant) -> Self {
        let ancestors = tree.ancestors(hello.node);
        Self {
            called: ancestors[0],
            hello,
            ancestors,
            patience,
            upward: Upward::Seeking { since: now, call_at: Some(now), calls: 0 },
            broke: None,
            routes: Routes::default(),
            held: Vec::new(),
            lines: Folder::new(FOLD),
            sent: 0,
            owed: HashMap::new(),
            ranks: Ranks::default(),
            progress: None,
        }
    }

    /// Takes what happened and says what to do.
    pub fn handle(&mut self, input: Input<C>, now: Instant) -> Vec<Output<C>> {
        let mut out = Vec::new();
        match input {
            Input::Joined(conn) => self.joined(conn, &mut out),
            Input::CallFailed => self.call_failed(now),
            Input::Up(conn, up) => self.heard_below(conn, up, now, &mut out),
            Input::Down(down) => self.heard_above(down, now, &mut out),
            Input::Closed(conn, why) => self.closed(conn, why, now, &mut out),
            Input::Ranks(event) => self.of_ranks(event, now, &mut out),
            Input::Caught(signal) => self.caught(signal, now, &mut out),
            Input::Tick => self.tick(now, &mut out),
        }
        out
    }

    /// Whether what our ranks write has to wait.
    pub fn is_full(&self) -> bool {
        matches!(self.upward, Upward::Joined(_)) && self.sent >= WINDOW
    }

    /// Whether there ever was somebody above.
    pub fn has_joined(&self) -> bool {
        self.broke.is_some() || self.above().is_some()
    }

    /// The connection to the one above.
    pub fn above(&self) -> Option<C> {
        match self.upward {
            Upward::Joined(conn) => Some(conn),
            Upward::Seeking { .. } => None,
        }
    }

    fn joined(&mut self, conn: C, out: &mut Vec<Output<C>>) {
        self.upward = Upward::Joined(conn);
        self.sent = 0;
        match self.broke.take() {
            None => self.say(Up::Hello(self.hello.clone()), out),
            Some((through, why)) => {
                let through = match through {
                    Above::Node(node) => Some(node),
                    Above::Root => None,
                };
                let nodes: Vec<u32> = self.routes.nodes().collect();
                for node in std::iter::once(self.hello.node).chain(nodes) {
                    self.say(Up::Back { node, through, why: why.clone() }, out);
                }
            }
        }
        for up in std::mem::take(&mut self.held) {
            self.say(up, out);
        }
    }

    fn call_failed(&mut self, now: Instant) {
        if let Upward::Seeking { call_at, calls, .. } = &mut self.upward {
            *calls += 1;
            let pause = PAUSE.0.saturating_mul(1 << (*calls).min(10)).min(PAUSE.1);
            *call_at = Some(now + pause);
        }
    }

    /// Whom to call next: at first the one directly above, who may take a while to start; then
    /// all above in turn. Who is gone is called last: the others are more likely to answer.
    fn next_above(&self, since: Instant, calls: u32, now: Instant) -> Above {
        let first = match &self.broke {
            None if now.saturating_duration_since(since) < CLIMB_AFTER => return self.ancestors[0],
            None => 0,
            Some((gone, _)) => self.ancestors.iter().position(|a| a == gone).map_or(0, |at| at + 1),
        };
        self.ancestors[(first + calls as usize) % self.ancestors.len()]
    }

    /// How long one call may take, of the few that there is time for. A host that is gone does not
    /// refuse it.
    pub fn call_limit(&self) -> Duration {
        if self.broke.is_some() { self.patience.rejoin / 4 } else { CLIMB_AFTER / 2 }
    }

    fn heard_below(&mut self, conn: C, up: Up, now: Instant, out: &mut Vec<Output<C>>) {
        *self.owed.entry(conn).or_default() += up.weight();
        match &up {
            Up::Hello(Hello { node, .. }) | Up::Back { node, .. } => self.routes.heard(conn, *node),
            Up::Lost { node, below, .. } => {
                self.routes.forget(conn, node.iter().chain(below).copied());
            }
            _ => {}
        }
        match up {
            Up::Lines(lines) => lines.into_iter().for_each(|line| self.lines.push(line, now)),
            Up::Progress => self.made_progress(now, out),
            other => self.say(other, out),
        }
        self.settle_debts(out);
    }

    fn heard_above(&mut self, down: Down, now: Instant, out: &mut Vec<Output<C>>) {
        match down {
            Down::Start { node, work } if node == self.hello.node => {
                let attempt = Some(work.attempt);
                self.ranks = Ranks { attempt, running: true, ..Ranks::default() };
                out.push(Output::Start(work));
            }
            Down::Again { node, hello, attempt } if node == self.hello.node => {
                self.say_again(hello, attempt, out);
            }
            Down::Start { node, .. } | Down::Again { node, .. } => {
                out.extend(self.routes.to(node).map(|conn| Output::Down(conn, down)));
            }
            Down::All(order) => self.order(order, now, out),
            Down::Taken(bytes) => {
                self.sent = self.sent.saturating_sub(bytes);
                self.settle_debts(out);
            }
            Down::Leave => {
                out.extend(self.routes.all().map(|conn| Output::Down(conn, Down::Leave)));
                out.push(Output::Leave);
            }
        }
    }

    /// Does something with our ranks and those below. Whoever is told to end is killed after the
    /// grace, also if nobody above is left by then.
    fn order(&mut self, order: Order, now: Instant, out: &mut Vec<Output<C>>) {
        out.extend(self.routes.all().map(|conn| Output::Down(conn, Down::All(order))));
        if !self.ranks.running {
            return;
        }
        if matches!(order, Order::Signal(signal) if asks_to_end(signal)) {
            self.ranks.kill_at.get_or_insert(now + self.patience.grace);
        }
        out.push(Output::Ranks(order));
    }

    fn say_again(&mut self, hello: bool, attempt: u32, out: &mut Vec<Output<C>>) {
        if hello {
            self.say(Up::Hello(self.hello.clone()), out);
        }
        if self.ranks.attempt == Some(attempt) {
            for what in self.ranks.told.clone() {
                self.tell(what, out);
            }
        } else {
            // The order to start was lost: there are no ranks of it to wait for.
            let what = Told::Over(BTreeMap::new());
            self.say(Up::Told { node: self.hello.node, attempt, what }, out);
        }
    }

    fn closed(&mut self, conn: C, why: String, now: Instant, out: &mut Vec<Output<C>>) {
        if self.above() == Some(conn) {
            self.broke = Some((self.called, why));
            self.upward = Upward::Seeking { since: now, call_at: Some(now), calls: 0 };
            self.order(Order::Signal(libc::SIGTERM), now, out);
            return;
        }
        self.owed.remove(&conn);
        if let Some(cut) = self.routes.closed(conn) {
            self.say(Up::Lost { node: cut.node, why, below: cut.below }, out);
        }
    }

    fn of_ranks(&mut self, event: Event, now: Instant, out: &mut Vec<Output<C>>) {
        let what = match event {
            Event::Line(line) => {
                self.made_progress(now, out);
                return self.lines.push(line, now);
            }
            Event::Wrote { rank, error, bytes } => {
                return self.say(Up::Wrote { rank, error, bytes }, out);
            }
            Event::Progress => return self.made_progress(now, out),
            Event::Note(note) => return self.say(Up::Note(note), out),
            Event::Started { rank, pid } => Told::Started { rank, pid },
            Event::Unstarted { rank, why } => Told::Unstarted { rank, why },
            Event::Ended(rank, ending) => {
                self.ranks.endings.insert(rank, ending);
                Told::Ended(rank, ending)
            }
            Event::Tail(rank, lines) => Told::Tail(rank, lines),
            Event::Doing(what) => Told::Doing(what),
            Event::Over => {
                self.ranks.running = false;
                self.ranks.kill_at = None;
                // What was written before the end is to be read before it.
                self.say_lines(true, now, out);
                Told::Over(std::mem::take(&mut self.ranks.endings))
            }
            Event::Signal(_) | Event::Broken { .. } | Event::Lost { .. } => return,
        };
        if !matches!(what, Told::Started { .. } | Told::Doing(_)) {
            self.ranks.told.push(what.clone());
        }
        self.tell(what, out);
    }

    fn caught(&mut self, signal: i32, now: Instant, out: &mut Vec<Output<C>>) {
        match self.upward {
            Upward::Joined(_) => self.say(Up::Signal(signal), out),
            // Nobody is there to decide.
            Upward::Seeking { .. } => {
                self.order(Order::Signal(signal), now, out);
                if asks_to_end(signal) && !self.ranks.running {
                    out.push(Output::Leave);
                }
            }
        }
    }

    fn tick(&mut self, now: Instant, out: &mut Vec<Output<C>>) {
        self.say_lines(false, now, out);
        if self.ranks.running && self.ranks.kill_at.is_some_and(|at| now >= at) {
            out.push(Output::Ranks(Order::Kill));
        }
        let Upward::Seeking { since, call_at, calls } = self.upward else { return };
        let limit = if self.broke.is_some() { self.patience.rejoin } else { self.patience.join };
        if now.saturating_duration_since(since) >= limit && !self.ranks.running {
            out.push(Output::Leave);
        } else if call_at.is_some_and(|at| now >= at) {
            self.called = self.next_above(since, calls, now);
            self.upward = Upward::Seeking { since, call_at: None, calls };
            out.push(Output::Call(self.called));
        }
    }

    /// Passes lines on, as far as the one above takes them.
    fn say_lines(&mut self, all: bool, now: Instant, out: &mut Vec<Output<C>>) {
        if self.is_full() && !all {
            return;
        }
        let lines = if all { self.lines.finish() } else { self.lines.ready(now) };
        if !lines.is_empty() {
            self.say(Up::Lines(lines), out);
        }
    }

    fn made_progress(&mut self, now: Instant, out: &mut Vec<Output<C>>) {
        let fresh = |last: Instant| now.saturating_duration_since(last) < PROGRESS;
        if !self.progress.is_some_and(fresh) {
            self.progress = Some(now);
            self.say(Up::Progress, out);
        }
    }

    fn tell(&mut self, what: Told, out: &mut Vec<Output<C>>) {
        let attempt = self.ranks.attempt.unwrap_or_default();
        self.say(Up::Told { node: self.hello.node, attempt, what }, out);
    }

    /// Says something to the one above, or keeps it until there is one. Lines are for people who
    /// look on, and they lose the sight of us.
    fn say(&mut self, up: Up, out: &mut Vec<Output<C>>) {
        match self.upward {
            Upward::Joined(conn) => {
                self.sent += up.weight();
                out.push(Output::Up(conn, up));
            }
            Upward::Seeking { .. } if up.weight() > 0 || up == Up::Progress => {}
            Upward::Seeking { .. } => self.held.push(up),
        }
    }

    /// Lets those below send more, unless we have too much on its way ourselves.
    fn settle_debts(&mut self, out: &mut Vec<Output<C>>) {
        if self.is_full() {
            return;
        }
        let owed = self.owed.iter_mut().filter(|(_, bytes)| **bytes > 0);
        out.extend(owed.map(|(&c, bytes)| Output::Down(c, Down::Taken(std::mem::take(bytes)))));
    }
}

#[cfg(test)]
#[path = "member_tests.rs"]
mod tests;
