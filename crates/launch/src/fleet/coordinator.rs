//! The coordinator at work: has agents started, and carries out what [`Roll`] decides.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use super::boot::{REJOIN, Times};
use super::message::{Down, Hello, Told, Up, Work, decode, encode};
use super::roll::{Input, Output, Roll};
use crate::crew::{Crew, Event, Order};
use crate::net::{ConnId, Net, NetEvent};
use regatta_wire::secret::Secret;

/// How long a kill is waited for before it is ordered again.
const KILL_AGAIN: Duration = Duration::from_secs(1);

/// The agents of a job, as the coordinator sees them.
pub struct Fleet {
    net: Net,
    roll: Roll<ConnId>,
    events: VecDeque<Event>,
    /// What ranks wrote, and whom to thank for it when it has been taken.
    output: VecDeque<Event>,
    owed: Vec<(ConnId, Down)>,
    came: Vec<NetEvent>,
    killed: Option<Instant>,
    port: u16,
}

impl Fleet {
    /// Listens for the agents of these hosts.
    pub fn listen(hosts: &[String], secret: Secret, times: Times) -> io::Result<Self> {
        let mut net = Net::new(secret, times.timing())?;
        let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        let (_, address) = net.listen(any)?;
        Ok(Self {
            net,
            roll: Roll::new(hosts, REJOIN),
            events: VecDeque::new(),
            output: VecDeque::new(),
            owed: Vec::new(),
            came: Vec::new(),
            killed: None,
            port: address.port(),
        })
    }

    /// The port agents are to call.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Hears what comes for a moment.
    pub fn poll(&mut self, timeout: Duration) {
        let mut came = std::mem::take(&mut self.came);
        if self.net.poll(timeout, &mut came).is_err() {
            std::thread::sleep(timeout);
        }
        for event in came.drain(..) {
            self.of_net(event);
        }
        self.came = came;
        for refusal in self.net.refusals() {
            let what = format!("refused a connection from {}: {}", refusal.peer, refusal.why);
            self.events.push_back(Event::Note(what));
        }
        let outputs = self.roll.handle(Input::Tick, Instant::now());
        self.carry_out(outputs);
    }

    /// Who has not introduced themselves, or is gone.
    pub fn absent(&self) -> Vec<u32> {
        self.roll.absent()
    }

    /// What a node said of itself.
    pub fn hello(&self, node: u32) -> Option<&Hello> {
        self.roll.hello(node)
    }

    /// Has ranks started.
    pub fn begin(&mut self, attempt: u32, work: Vec<(u32, Work)>) {
        self.killed = None;
        let outputs = self.roll.begin(attempt, work);
        self.carry_out(outputs);
    }

    /// Sends all agents home.
    pub fn leave(mut self) {
        let outputs = self.roll.leave();
        self.carry_out(outputs);
        // They would notice our absence, too, but later.
        let _ = self.net.finish(KILL_AGAIN);
    }

    fn of_net(&mut self, event: NetEvent) {
        let input = match event {
            NetEvent::Ready { .. } => return,
            NetEvent::Frame { conn, payload } => match decode::<Up>(&payload) {
                Ok(up) => Input::Up(conn, up),
                Err(error) => {
                    self.net.abort(conn);
                    Input::Closed(conn, error.to_string())
                }
            },
            NetEvent::Closed { conn, why } => Input::Closed(conn, why.to_string()),
        };
        let outputs = self.roll.handle(input, Instant::now());
        self.carry_out(outputs);
    }

    fn carry_out(&mut self, outputs: Vec<Output<ConnId>>) {
        for output in outputs {
            match output {
                Output::Event(event @ (Event::Line(_) | Event::Wrote { .. })) => {
                    self.output.push_back(event);
                }
                Output::Event(event) => self.events.push_back(event),
                Output::Down(conn, down @ Down::Taken(_)) => self.owed.push((conn, down)),
                Output::Down(conn, down) => self.say(conn, &down),
            }
        }
    }

    fn say(&mut self, conn: ConnId, down: &Down) {
        match (encode(down), down) {
            (Ok(payload), _) if self.net.send(conn, &payload) => {}
            // Nobody would tell us of ranks that nobody was told to start.
            (Ok(_), Down::Start { node, work }) => {
                self.unstarted(*node, work, "the order is too long, or the connection is gone");
            }
            (Err(error), Down::Start { node, work }) => {
                self.unstarted(*node, work, &error.to_string());
            }
            _ => {}
        }
    }

    fn unstarted(&mut self, node: u32, work: &Work, why: &str) {
        for rank in &work.ranks {
            let what = Told::Unstarted { rank: rank.rank, why: why.to_owned() };
            self.told(node, work.attempt, what);
        }
        self.told(node, work.attempt, Told::Over(Default::default()));
    }

    /// Takes something for said by a node.
    fn told(&mut self, node: u32, attempt: u32, what: Told) {
        let outputs = self.roll.told_of(node, attempt, what);
        self.carry_out(outputs);
    }

    /// Lets the agents send more when all they sent has been taken.
    fn settle_debts(&mut self) {
        for (conn, down) in std::mem::take(&mut self.owed) {
            self.say(conn, &down);
        }
    }

    /// The next event; the end of it all only when nothing is left to be taken.
    fn take(&mut self, held: bool) -> Option<Event> {
        match self.events.front() {
            Some(Event::Over) if !self.output.is_empty() => {}
            None => {}
            Some(_) => return self.events.pop_front(),
        }
        if held {
            return None;
        }
        let output = self.output.pop_front();
        if self.output.is_empty() {
            self.settle_debts();
        }
        output
    }
}

impl Crew for Fleet {
    fn next(&mut self, timeout: Duration, held: bool) -> Option<Event> {
        let event = self.take(held);
        if event.is_some() {
            // Before more is taken in, what came is dealt with; but orders and signs of life go out.
            self.net.send_only();
            return event;
        }
        self.poll(timeout);
        self.take(held)
    }

    fn order(&mut self, order: Order) {
        if order == Order::Kill {
            if self.killed.is_some_and(|at| at.elapsed() < KILL_AGAIN) {
                return;
            }
            self.killed = Some(Instant::now());
        }
        let outputs = self.roll.order(order);
        self.carry_out(outputs);
    }
}
