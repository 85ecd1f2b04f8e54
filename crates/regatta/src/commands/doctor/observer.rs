//! Receives the facts of the nodes while their ranks run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use regatta_doctor::JobFacts;
use regatta_doctor::facts::{MissingNode, NodeFacts};
use regatta_doctor::peers::{self, PeerNode, PeerTable};
use regatta_doctor::request::{DoctorRequest, NodeReport, NodeTests};
use regatta_launch::attempt::AttemptSpec;
use regatta_launch::channel;
use regatta_launch::config::JobConfig;
use regatta_launch::error::PartError;
use regatta_launch::parts::JobPart;
use regatta_launch::status::{FrameRecord, JobObserver, JobStatus};
use regatta_model::hostlist;
use regatta_model::units::pluralize;
use regatta_model::{Machine, Nic};
use regatta_place::rendezvous;
use regatta_wire::secret::Secret;

use crate::cli::FAINT;
use crate::commands::launcher::QueuedStreams;
use crate::commands::rank_request::{self, RankRequest, RankTask};
use crate::commands::reporter_output::ReporterOutput;
use crate::commands::self_launch;
use regatta_launch::discovery::Discovery;

/// Ports that a node tries to listen on.
const PORTS: usize = 8;
/// Time between two lines of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// Why a node is missing, unless more is known.
const NO_REPORT: &str = "the node did not report: its rank failed or was lost";
const NO_MEASUREMENT: &str = "the rank of the node failed or was lost in the measurements";

/// Collects the reports.
pub struct DoctorObserver {
    tests: NodeTests,
    /// All hosts of the allocation, in its order.
    hosts: Vec<String>,
    /// The machine, if the only rank runs on this one.
    machine: Option<Machine>,
    /// The facts by host; whether they are complete.
    reports: BTreeMap<String, (NodeFacts, bool)>,
    /// Hosts that were given up, with the reason.
    excluded: BTreeMap<String, String>,
    last_progress: Instant,
    output: ReporterOutput,
}

impl DoctorObserver {
    pub fn new(tests: NodeTests, discovery: &Discovery) -> Self {
        let hosts = discovery.allocation.nodes.iter().map(|node| node.host.clone()).collect();
        Self {
            tests,
            hosts,
            machine: (!discovery.needs_agents()).then(|| discovery.machines[0].clone()),
            reports: BTreeMap::new(),
            excluded: BTreeMap::new(),
            last_progress: Instant::now(),
            output: ReporterOutput::queued(),
        }
    }

    /// Sets the command of the ranks. Their input follows when the addresses of the nodes are known.
    pub fn set_request(&self, config: &mut JobConfig, discovery: &Discovery) -> Result<()> {
        let table = PeerTable { token: String::new(), ports: Vec::new(), nodes: Vec::new() };
        let task = RankTask::Doctor(Box::new(DoctorRequest { tests: self.tests.clone(), table }));
        self_launch::set_request(config, discovery, task)
    }

    /// The part of the job that completes the request.
    pub fn request(&self) -> Box<dyn JobPart> {
        let (tests, machine) = (self.tests.clone(), self.machine.clone());
        Box::new(PeerRequest { tests, machine, output: self.output.streams() })
    }

    /// The facts of all nodes, and why some have none.
    pub fn finish(mut self) -> JobFacts {
        let mut facts = JobFacts::default();
        for host in std::mem::take(&mut self.hosts) {
            match self.reports.remove(&host) {
                Some((node, true)) => facts.nodes.push(node),
                report => {
                    let default = if report.is_some() { NO_MEASUREMENT } else { NO_REPORT };
                    let reason = self.excluded.remove(&host).unwrap_or_else(|| default.to_owned());
                    facts.missing.push(MissingNode { host, reason });
                }
            }
        }
        facts
    }

    fn show_progress(&mut self) {
        let complete = self.reports.values().filter(|(_, is_complete)| *is_complete).count();
        let total = self.hosts.len();
        if total < 2 || complete == total || self.last_progress.elapsed() < PROGRESS_INTERVAL {
            return;
        }
        self.last_progress = Instant::now();
        let done =
            |host: &&String| self.reports.get(*host).is_some_and(|(_, is_complete)| *is_complete);
        let waiting: BTreeSet<&str> =
            self.hosts.iter().filter(|host| !done(host)).map(String::as_str).collect();
        let waiting = hostlist::compress(&waiting.into_iter().collect::<Vec<_>>());
        let text = format!("{complete} of {total} nodes tested; waiting for {waiting}");
        self.output.eprint(&format!("{FAINT}{text}{FAINT:#}\n"));
    }
}

impl JobObserver for DoctorObserver {
    fn on_frame(&mut self, rank: u32, bytes: &[u8], _: &mut FrameRecord) {
        match channel::decode_from(rank, bytes) {
            Ok(NodeReport::Collected(facts)) => {
                self.reports.insert(facts.host.clone(), (*facts, false));
            }
            Ok(NodeReport::Complete(facts)) => {
                self.reports.insert(facts.host.clone(), (*facts, true));
            }
            Err(error) => self.output.note(&error.to_string()),
        }
        self.show_progress();
    }

    fn on_status(&mut self, status: &JobStatus<'_>) {
        if let JobStatus::Excluded(nodes) = status {
            self.excluded.extend(nodes.iter().cloned());
        }
    }
}

/// The request of the ranks, for which the addresses of the nodes must be known.
struct PeerRequest {
    tests: NodeTests,
    machine: Option<Machine>,
    output: Option<QueuedStreams>,
}

impl JobPart for PeerRequest {
    fn plan(&mut self, attempt: &mut AttemptSpec, _: &Path) -> Result<(), PartError> {
        let placed = &attempt.job.placement.nodes;
        let text = format!("checking {}", pluralize(placed.len(), "node"));
        let text = format!("{FAINT}{text}{FAINT:#}\n");
        self.output.iter().for_each(|streams| streams.stderr.print(&text));
        let nics: Vec<&[Nic]> =
            placed.iter().map(|node| attempt.job.nics(node).unwrap_or_default()).collect();
        let networks = peers::networks(&nics);
        let token = Secret::generate()?.to_hex();
        let first = rendezvous::job_port(&token);
        let node = |(host, networks): (&String, _)| PeerNode { host: host.clone(), networks };
        let table = PeerTable {
            ports: rendezvous::fallback_ports(first).take(PORTS).collect(),
            nodes: placed.iter().map(|node| &node.host).zip(networks).map(node).collect(),
            token,
        };
        let task = DoctorRequest { tests: self.tests.clone(), table };
        let request = RankRequest {
            task: RankTask::Doctor(Box::new(task)),
            command_line: rank_request::command_line(),
            machine: self.machine.clone(),
        };
        attempt.set_input(&channel::encode(&request)?.into());
        Ok(())
    }
}
