//! An agent at work: carries out what [`Member`] decides.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::boot::{Boot, BootError};
use super::member::{Input, Member, Output};
use super::message::{Hello, Work, decode, encode};
use super::tree::Above;
use crate::crew::{Crew, Event};
use crate::folder::LogFolder;
use crate::local::{LocalCrew, Watch};
use crate::net::{ConnId, Net, NetEvent};
use crate::queue::Notify;
use crate::secret_file::{self, SecretFile};
use crate::signals::Caught;

/// Why an agent cannot work.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// It does not know enough.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// Nobody answered.
    #[error(
        "nobody answered at {tried} for {seconds} s: is the coordinator reached by TCP from here?"
    )]
    Alone {
        /// Where it was tried last.
        tried: String,
        /// For how long.
        seconds: u64,
    },
    /// The network cannot be used.
    #[error("the network cannot be used: {0}")]
    Net(#[from] io::Error),
}

/// How often time and signals are looked at.
const TICK: Duration = Duration::from_millis(50);

/// The addresses of a name.
pub type Resolve<'a> = &'a dyn Fn(&str) -> Vec<IpAddr>;

struct Agent<'a> {
    boot: &'a Boot,
    hosts: Vec<String>,
    resolve: Resolve<'a>,
    net: Net,
    member: Member<ConnId>,
    crew: Option<LocalCrew>,
    /// What our ranks know each other by. Where it cannot be written they have none.
    secret: Option<SecretFile>,
    notify: Notify,
    /// The call that is made, and the addresses to try after it.
    calling: Option<Call>,
    untried: VecDeque<SocketAddr>,
    left: bool,
}

/// A call that nobody has answered yet.
struct Call {
    conn: ConnId,
    address: SocketAddr,
    since: Instant,
}

/// Works as the agent of a node until the job is over or nobody is left to work for.
pub fn run(
    boot: &Boot,
    hello: Hello,
    resolve: Resolve,
    signals: &mut Caught,
) -> Result<(), AgentError> {
    let hosts = boot.hosts()?;
    let mut net = Net::new(boot.secret()?, boot.times().timing())?;
    let tree = boot.tree(hosts.len());
    if tree.has_below(hello.node) {
        listen(&mut net, &boot.ports);
    }
    let waker = net.waker();
    let notify: Notify = Arc::new(move || waker.wake());
    let member = Member::new(hello, tree, boot.patience(), Instant::now());
    let mut agent = Agent {
        boot,
        hosts,
        resolve,
        net,
        member,
        crew: None,
        secret: SecretFile::write(&std::env::temp_dir(), &boot.run, &boot.secret()?).ok(),
        notify,
        calling: None,
        untried: VecDeque::new(),
        left: false,
    };
    let ended = agent.work(signals);
    agent.crew = None;
    ended
}

/// Listens on the first port that is free. Where none is, those below find somebody higher up.
fn listen(net: &mut Net, ports: &[u16]) {
    let at = |port: &u16| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), *port);
    let _ = ports.iter().map(at).find_map(|address| net.listen(address).ok());
}

impl Agent<'_> {
    fn work(&mut self, signals: &mut Caught) -> Result<(), AgentError> {
        let mut events = Vec::new();
        let mut more = false;
        while !self.left {
            self.net.poll(if more { Duration::ZERO } else { TICK }, &mut events)?;
            for event in events.drain(..) {
                self.of_net(event);
            }
            self.give_up_call();
            // Before the ranks: they may have died of the same signal.
            for signal in signals.pending() {
                self.handle(Input::Caught(signal));
            }
            more = self.of_ranks();
            self.handle(Input::Tick);
        }
        self.net.finish(self.boot.times().timing().beat)?;
        if self.member.has_joined() {
            return Ok(());
        }
        let tried: Vec<String> = self.boot.root.iter().map(ToString::to_string).collect();
        let seconds = self.boot.times().join.as_secs();
        Err(AgentError::Alone { tried: tried.join(", "), seconds })
    }

    /// Hears what happened to ranks; whether there may be more of it. Not for ever: what comes over
    /// the network is to be heard, too.
    fn of_ranks(&mut self) -> bool {
        for _ in 0..1024 {
            let held = self.member.is_full();
            let event = self.crew.as_mut().and_then(|crew| crew.poll(held));
            let Some(event) = event else { return false };
            self.handle(Input::Ranks(event));
        }
        true
    }

    fn of_net(&mut self, event: NetEvent) {
        match event {
            NetEvent::Ready { conn, listener: None, .. } => {
                self.calling = None;
                self.handle(Input::Joined(conn));
            }
            NetEvent::Ready { .. } => {}
            NetEvent::Frame { conn, payload } => self.frame(conn, &payload),
            NetEvent::Closed { conn, .. } if self.is_calling(conn) => self.try_next(),
            NetEvent::Closed { conn, why } => self.handle(Input::Closed(conn, why.to_string())),
        }
    }

    fn frame(&mut self, conn: ConnId, payload: &[u8]) {
        let input = match self.member.above() == Some(conn) {
            true => decode(payload).map(Input::Down),
            false => decode(payload).map(|up| Input::Up(conn, up)),
        };
        match input {
            Ok(input) => self.handle(input),
            Err(error) => {
                self.net.abort(conn);
                self.handle(Input::Closed(conn, error.to_string()));
            }
        }
    }

    fn handle(&mut self, input: Input<ConnId>) {
        for output in self.member.handle(input, Instant::now()) {
            self.carry_out(output);
        }
    }

    fn carry_out(&mut self, output: Output<ConnId>) {
        match output {
            Output::Call(above) => {
                self.untried = self.addresses(above);
                self.try_next();
            }
            Output::Up(conn, up) => self.send(conn, encode(&up).unwrap_or_default()),
            Output::Down(conn, down) => self.send(conn, encode(&down).unwrap_or_default()),
            Output::Start(work) => self.start(&work),
            Output::Ranks(order) => {
                if let Some(crew) = &mut self.crew {
                    crew.order(order);
                }
            }
            Output::Leave => self.left = true,
        }
    }

    /// A connection that is gone will be heard of as an event.
    fn send(&mut self, conn: ConnId, payload: Vec<u8>) {
        self.net.send(conn, &payload);
    }

    fn addresses(&self, above: Above) -> VecDeque<SocketAddr> {
        let Above::Node(node) = above else { return self.boot.root.iter().copied().collect() };
        let addresses = self.hosts.get(node as usize).map(|host| (self.resolve)(host));
        let at = |port: &u16| {
            let addresses = addresses.iter().flatten();
            addresses.map(|a| SocketAddr::new(*a, *port)).collect::<Vec<_>>()
        };
        self.boot.ports.iter().flat_map(at).collect()
    }

    fn is_calling(&self, conn: ConnId) -> bool {
        self.calling.as_ref().is_some_and(|call| call.conn == conn)
    }

    fn try_next(&mut self) {
        self.calling = self.untried.pop_front().map(|address| Call {
            conn: self.net.connect(address),
            address,
            since: Instant::now(),
        });
        if self.calling.is_none() {
            self.handle(Input::CallFailed);
        }
    }

    /// One who does not answer at one port does not at another: the host is gone.
    fn give_up_call(&mut self) {
        let limit = self.member.call_limit();
        let Some(call) = self.calling.take_if(|call| call.since.elapsed() >= limit) else { return };
        self.net.abort(call.conn);
        self.untried.retain(|address| address.ip() != call.address.ip());
        self.try_next();
    }

    fn start(&mut self, work: &Work) {
        // Before the next ones are started, nothing of the last ones is left.
        self.crew = None;
        let marker = self.boot.marker();
        let folder = marker.parent().filter(|_| marker.exists());
        let watch = Watch {
            logs: folder.map(|folder| LogFolder::at(folder.to_owned())),
            attempt: work.attempt,
            progress: work.progress,
            notify: Some(self.notify.clone()),
        };
        let mut specs = work.specs();
        if let Some(secret) = &self.secret {
            let path = secret.path().to_string_lossy().into_owned();
            let setting = (secret_file::VARIABLE.to_owned(), Some(path));
            specs.iter_mut().for_each(|spec| spec.env.push(setting.clone()));
        }
        match LocalCrew::start(&specs, &watch) {
            Ok(crew) => self.crew = Some(crew),
            Err(error) => {
                for rank in &work.ranks {
                    let why = error.to_string();
                    self.handle(Input::Ranks(Event::Unstarted { rank: rank.rank, why }));
                }
                self.handle(Input::Ranks(Event::Over));
            }
        }
    }
}
