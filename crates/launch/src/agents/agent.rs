//! The agent process: drives the [`AgentState`].

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::agent_state::{AgentInput, AgentOutput, AgentState};
use super::bootstrap_document::{BootstrapDocument, BootstrapError};
use super::message::{NodeLaunch, Registration, decode, encode};
use crate::cache_dir;
use crate::cpu_binding;
use crate::event_queue::Notify;
use crate::host;
use crate::job_host::JobHost;
use crate::local::{LocalOptions, LocalWorkers};
use crate::process::RankSpec;
use crate::rank_files::{BuiltInFile, NodeFiles, RankFile, RankFileError};
use crate::reaper;
use crate::run_folder::LogFolder;
use crate::secret_file::{self, SecretFile, SecretFileError};
use crate::signal_catcher::SignalCatcher;
use crate::worker_group::{JobEvent, WorkerGroup};
use regatta_wire::clock;
use regatta_wire::link::MAX_FRAME_LEN;
use regatta_wire::reactor::{ConnId, NetEvent, Reactor};

/// Why an agent failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum AgentError {
    /// The bootstrap document is unusable.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// The coordinator could not be reached.
    #[error(
        "timed out after {seconds} s connecting to the coordinator at {addresses}: check that this \
         node can reach it by TCP"
    )]
    Unreachable { addresses: String, seconds: u64 },
    /// A socket operation failed.
    #[error("network error: {0}")]
    Net(#[from] io::Error),
}

/// Interval of timeout and signal checks.
const TICK: Duration = Duration::from_millis(50);
/// Maximum number of rank events handled before the network is polled again.
const MAX_RANK_EVENTS: usize = 1024;

/// Adapts ranks to a node that does not see the run folder. Returns a warning for the user.
pub type AdaptRanks<'a> = &'a dyn Fn(&mut [RankSpec]) -> Option<String>;

/// What the program of the agent does for a node.
#[derive(Clone, Copy)]
pub struct NodeHooks<'a> {
    /// Adapts ranks to a node that does not see the run folder.
    pub without_run_folder: AdaptRanks<'a>,
    /// Finds the files that the program contains.
    pub built_in_file: BuiltInFile<'a>,
}

struct Agent<'a> {
    bootstrap: &'a BootstrapDocument,
    hosts: Vec<String>,
    hooks: NodeHooks<'a>,
    net: Reactor,
    state: AgentState<ConnId>,
    workers: Option<LocalWorkers>,
    files: NodeFiles,
    /// The file with the ranks' secret.
    secret: Result<SecretFile, SecretFileError>,
    notify: Notify,
    /// The connection attempt in progress, and the addresses to try after it.
    attempt: Option<ConnectAttempt>,
    untried: VecDeque<SocketAddr>,
    exiting: bool,
}

struct ConnectAttempt {
    conn: ConnId,
    address: SocketAddr,
    since: Instant,
}

/// Runs the agent of a node until the job is finished or all ancestors are lost.
pub fn run(
    bootstrap: &BootstrapDocument,
    registration: Registration,
    hooks: NodeHooks<'_>,
    signals: &mut SignalCatcher,
) -> Result<(), AgentError> {
    let hosts = bootstrap.hosts()?;
    let mut net = Reactor::new(bootstrap.secret()?, bootstrap.timeouts.timing())?;
    let tree = bootstrap.tree(hosts.len());
    if tree.has_children(registration.node) {
        listen(&mut net, &bootstrap.ports);
    }
    let waker = net.waker();
    let notify: Notify = Arc::new(move || waker.wake());
    let state = AgentState::new(registration, tree, bootstrap.timeouts, clock::now());
    let secret = SecretFile::write(&std::env::temp_dir(), &bootstrap.secret()?);
    let mut agent = Agent {
        bootstrap,
        hosts,
        hooks,
        net,
        state,
        workers: None,
        files: NodeFiles::default(),
        secret,
        notify,
        attempt: None,
        untried: VecDeque::new(),
        exiting: false,
    };
    let result = agent.run(signals);
    agent.workers = None;
    result
}

/// Listens on the first free port. Without one, the children connect to another ancestor.
fn listen(net: &mut Reactor, ports: &[u16]) {
    let address = |port: &u16| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), *port);
    let _ = ports.iter().map(address).find_map(|address| net.listen(address).ok());
}

impl Agent<'_> {
    fn run(&mut self, signals: &mut SignalCatcher) -> Result<(), AgentError> {
        let mut events = Vec::new();
        let mut more = false;
        while !self.exiting {
            self.net.poll(if more { Duration::ZERO } else { TICK }, &mut events)?;
            for event in events.drain(..) {
                self.on_net_event(event);
            }
            self.check_connect_timeout();
            // Before the ranks' events: they may have been killed by the same signal.
            for signal in signals.signals() {
                self.handle(AgentInput::Signal(signal));
            }
            more = self.poll_ranks();
            self.handle(AgentInput::Tick);
        }
        reaper::suspend_heartbeats();
        let timeouts = self.bootstrap.timeouts;
        self.net.shutdown(timeouts.timing().heartbeat)?;
        if self.state.has_joined() {
            return Ok(());
        }
        let addresses: Vec<String> = self.bootstrap.root.iter().map(ToString::to_string).collect();
        let (addresses, seconds) = (addresses.join(", "), timeouts.join.as_secs());
        Err(AgentError::Unreachable { addresses, seconds })
    }

    /// Handles events of the ranks; returns whether more may be pending.
    fn poll_ranks(&mut self) -> bool {
        for _ in 0..MAX_RANK_EVENTS {
            let paused = self.state.is_window_full();
            let event = self.workers.as_mut().and_then(|workers| workers.poll(paused));
            let Some(event) = event else { return false };
            self.handle(AgentInput::Ranks(event));
        }
        true
    }

    fn on_net_event(&mut self, event: NetEvent) {
        match event {
            NetEvent::Ready { conn, listener: None, .. } => {
                self.attempt = None;
                self.handle(AgentInput::Connected(conn));
            }
            NetEvent::Ready { .. } => {}
            NetEvent::Frame { conn, payload } => self.on_frame(conn, &payload),
            NetEvent::Closed { conn, .. } if self.is_connecting(conn) => self.connect_next(),
            NetEvent::Closed { conn, why } => {
                self.handle(AgentInput::Closed(conn, why.to_string()))
            }
        }
    }

    fn on_frame(&mut self, conn: ConnId, payload: &[u8]) {
        let input = match self.state.parent_conn() == Some(conn) {
            true => decode(payload).map(AgentInput::Downstream),
            false => decode(payload).map(|message| AgentInput::Upstream(conn, message)),
        };
        match input {
            Ok(input) => self.handle(input),
            Err(error) => {
                self.net.abort(conn);
                self.handle(AgentInput::Closed(conn, error.to_string()));
            }
        }
    }

    fn handle(&mut self, input: AgentInput<ConnId>) {
        for output in self.state.handle(input, clock::now()) {
            self.apply(output);
        }
    }

    fn apply(&mut self, output: AgentOutput<ConnId>) {
        match output {
            AgentOutput::Connect(parent) => {
                self.untried = self.addresses(parent);
                self.connect_next();
            }
            AgentOutput::Upstream(conn, message) => self.send(conn, &message),
            AgentOutput::Downstream(conn, message) => self.send(conn, &message),
            AgentOutput::Start(launch) => self.start(&launch),
            AgentOutput::Control(control) => {
                if let Some(workers) = &mut self.workers {
                    workers.control(control);
                }
            }
            AgentOutput::Exit => self.exiting = true,
        }
    }

    /// Sends a message. A closed connection is reported as an event; one with a message that cannot be
    /// sent is closed, because the peer would wait for it forever.
    fn send(&mut self, conn: ConnId, message: &impl Serialize) {
        let why = match encode(message) {
            Ok(payload) if payload.len() <= MAX_FRAME_LEN => {
                self.net.send(conn, &payload);
                return;
            }
            Ok(payload) => format!("a message of {} bytes is too long", payload.len()),
            Err(error) => error.to_string(),
        };
        self.net.abort(conn);
        self.handle(AgentInput::Closed(conn, why));
    }

    fn addresses(&self, parent: Option<u32>) -> VecDeque<SocketAddr> {
        let Some(node) = parent else {
            return self.bootstrap.root.iter().copied().collect();
        };
        let addresses = self.hosts.get(node as usize).map(|host| host::resolve(host));
        let addresses = addresses.unwrap_or_default();
        let with_port = |&port| addresses.iter().map(move |&ip| SocketAddr::new(ip, port));
        self.bootstrap.ports.iter().flat_map(with_port).collect()
    }

    fn is_connecting(&self, conn: ConnId) -> bool {
        self.attempt.as_ref().is_some_and(|attempt| attempt.conn == conn)
    }

    fn connect_next(&mut self) {
        self.attempt = self.untried.pop_front().map(|address| ConnectAttempt {
            conn: self.net.connect(address),
            address,
            since: clock::now(),
        });
        if self.attempt.is_none() {
            self.handle(AgentInput::ConnectFailed);
        }
    }

    /// A host that does not respond on one port is down, so its other ports are skipped.
    fn check_connect_timeout(&mut self) {
        let limit = self.state.connect_timeout();
        let expired = |attempt: &mut ConnectAttempt| clock::elapsed(attempt.since) >= limit;
        let Some(attempt) = self.attempt.take_if(expired) else { return };
        self.net.abort(attempt.conn);
        self.untried.retain(|address| address.ip() != attempt.address.ip());
        self.connect_next();
    }

    fn start(&mut self, launch: &NodeLaunch) {
        // Drops the ranks of the previous attempt before the next are started.
        self.workers = None;
        let marker = self.bootstrap.marker();
        let folder = marker.parent().filter(|_| marker.exists());
        let options = LocalOptions {
            logs: folder.map(|folder| LogFolder::at(folder.to_owned())),
            attempt: launch.attempt,
            report_progress: launch.report_progress,
            notify: Some(self.notify.clone()),
        };
        let mut specs = launch.specs();
        if options.logs.is_none()
            && let Some(warning) = (self.hooks.without_run_folder)(&mut specs)
        {
            self.warn(JobEvent::RunFolderUnseen, &warning);
        }
        if let Err(error) = self.provide_files(&launch.files, &mut specs) {
            return self.fail_start(launch, &error.to_string());
        }
        // Ranks with a channel are of this program, which has no code caches.
        if launch.input.is_none() {
            let values = specs.iter_mut().flat_map(|s| s.env.iter_mut().map(|(_, value)| value));
            if let Some(warning) = cache_dir::secure(&launch.cache_dir, values) {
                self.warn(JobEvent::Warning, &warning);
            }
        }
        let setting = secret_file::setting(self.secret.as_ref().ok());
        specs.iter_mut().for_each(|spec| spec.env.push(setting.clone()));
        if let Err(error) = &self.secret {
            let error = error.to_string();
            if launch.needs_secret {
                return self.fail_start(launch, &error);
            }
            self.warn(JobEvent::Warning, &error);
        }
        // Without the host, so that the same note of all nodes is shown once.
        if let Some(note) = cpu_binding::unavailable(specs.iter().map(|spec| &spec.binding)) {
            self.handle(AgentInput::Ranks(JobEvent::Warning(note)));
        }
        match LocalWorkers::start(&specs, &options) {
            Ok(workers) => self.workers = Some(workers),
            Err(error) => self.fail_start(launch, &error.to_string()),
        }
    }

    /// Makes sure that the ranks find their files.
    fn provide_files(
        &mut self,
        files: &[RankFile],
        specs: &mut [RankSpec],
    ) -> Result<(), RankFileError> {
        let parent = std::env::temp_dir();
        let copied = self.files.provide(files, specs, &parent, self.hooks.built_in_file)?;
        if !copied.is_empty() {
            // Without the host, so that the same note of all nodes is shown once.
            let note = format!(
                "nodes that do not see the run folder use copies in their TMPDIR: {}",
                copied.join(", ")
            );
            self.handle(AgentInput::Ranks(JobEvent::Warning(note)));
        }
        Ok(())
    }

    fn fail_start(&mut self, launch: &NodeLaunch, why: &str) {
        for rank in &launch.ranks {
            let (rank, why) = (rank.rank, why.to_owned());
            self.handle(AgentInput::Ranks(JobEvent::StartFailed { rank, why }));
        }
        self.handle(AgentInput::Ranks(JobEvent::Finished));
    }

    /// Sends the user a warning that names this node.
    fn warn(&mut self, event: fn(String) -> JobEvent, text: &str) {
        let node = self.state.node() as usize;
        let host = self.hosts.get(node).map_or("?", String::as_str);
        self.handle(AgentInput::Ranks(event(format!("{host}: {text}"))));
    }
}
