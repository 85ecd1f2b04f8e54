//! Startup time of 10,000 agents, and the time of a job whose ranks do nothing: over loopback,
//! in the default tree and with all agents connected directly to the coordinator.
//!
//! Coordinator, agent state machines and connections are real; the agents are distributed over a
//! few processes of this program.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use regatta_benchmarks::processes::{LineProcess, request};
use regatta_benchmarks::sim_agents::{SimAgents, SimConfig, free_port};
use regatta_benchmarks::{Contender, RunTimes, interleave, report};
use regatta_launch::agents::bootstrap_document::JobTimeouts;
use regatta_launch::agents::coordinator::Coordinator;
use regatta_launch::agents::message::{NodeLaunch, RankLaunch};
use regatta_launch::agents::tree::Tree;
use regatta_launch::cpu_binding::Binding;
use regatta_launch::worker_group::{JobEvent, WorkerGroup};
use regatta_model::{MemoryPolicy, document};
use regatta_wire::secret::Secret;

const AGENTS: u32 = 10_000;
/// The default of `regatta launch`.
const FAN_OUT: u32 = 32;
const PROCESSES: u32 = 4;
const ROUNDS: usize = 5;
/// The defaults of `regatta launch`.
const TIMES: JobTimeouts = JobTimeouts {
    grace: Duration::from_secs(30),
    join: Duration::from_secs(120),
    lost_after: Duration::from_secs(30),
};
const TICK: Duration = Duration::from_millis(50);
/// Argument of an agent process.
const AS_AGENTS: &str = "agents";

fn main() -> Result<()> {
    raise_file_limit()?;
    let mut args = std::env::args().skip(1);
    match (args.next().as_deref(), args.next()) {
        (Some(AS_AGENTS), Some(index)) => run_agents(index.parse()?),
        (None, None) => compare(),
        _ => bail!("this program takes no arguments"),
    }
}

/// Startup and empty job, with the tree and without.
fn compare() -> Result<()> {
    println!("{AGENTS} agents, each with {} bytes of description", machine()?.len());
    let (mut tree, mut direct) = (Vec::new(), Vec::new());
    let mut contenders = [contender(FAN_OUT, &mut tree), contender(AGENTS, &mut direct)];
    let joins = interleave(&mut contenders, ROUNDS)?;
    drop(contenders);
    report("startup of 10000 agents", joins[0], &[("without a tree", joins[1])])?;
    let [tree, direct] = [tree, direct].map(RunTimes::of);
    report("empty job on 10000 agents", tree, &[("without a tree", direct)])
}

/// One startup and one job, whose time is appended to `jobs`.
fn contender(fan_out: u32, jobs: &mut Vec<Duration>) -> Contender<'_> {
    let work = move || {
        let (join, job) = start_agents(fan_out)?;
        jobs.push(job);
        Ok(join)
    };
    Contender { every: 1, work: Box::new(work) }
}

fn start_agents(fan_out: u32) -> Result<(Duration, Duration)> {
    let arguments = |index: u32| vec![AS_AGENTS.to_owned(), index.to_string()];
    let mut processes = LineProcess::spawn_own((0..PROCESSES).map(arguments))?;
    let hosts: Vec<String> = (0..AGENTS).map(|i| format!("node{i}")).collect();
    let (secret, port) = (Secret::generate()?, free_port()?);

    let start = Instant::now();
    let mut coordinator = Coordinator::listen(&hosts, secret.clone(), TIMES)?;
    let request = format!("{} {fan_out} {port} {}", coordinator.port(), secret.to_hex());
    processes.iter_mut().try_for_each(|process| process.write_line(&request))?;
    while !coordinator.missing().is_empty() {
        coordinator.poll(TICK);
        if start.elapsed() > TIMES.join {
            bail!("{} agents never connected", coordinator.missing().len());
        }
    }
    let join = start.elapsed();

    let start = Instant::now();
    coordinator.start(0, (0..AGENTS).map(|node| (node, work(node))).collect());
    let mut ended = 0;
    loop {
        match coordinator.next(TICK, false) {
            Some(JobEvent::Exited(_, exit)) if exit.is_success() => ended += 1,
            Some(JobEvent::Finished) => break,
            Some(JobEvent::Started { .. }) | None => {}
            // Without a tree, some connections are rejected at first, which is logged.
            Some(JobEvent::Warning(_)) => {}
            Some(other) => bail!("unexpected event of an empty job: {other:?}"),
        }
    }
    let job = start.elapsed();
    if ended != AGENTS {
        bail!("{ended} of {AGENTS} ranks exited successfully");
    }
    coordinator.shutdown();
    LineProcess::finish(processes)?;
    Ok((join, job))
}

/// One rank with a typical number of environment variables.
fn work(node: u32) -> NodeLaunch {
    let value = "a value of typical length";
    let setting = |i: u32| (format!("REGATTA_VARIABLE_{i}"), Some(value.into()));
    let binding = Binding::new(&(0..8).collect(), &MemoryPolicy::Prefer(vec![0]));
    let env = (30..40).map(setting).collect();
    NodeLaunch {
        attempt: 0,
        command: ["python", "train.py", "--config", "large.toml"].map(Into::into).to_vec(),
        cwd: "/scratch/project/run".into(),
        cache_dir: "/tmp/regatta-user-1".into(),
        base_env: Vec::new(),
        env_remove_prefixes: Vec::new(),
        common_env: (0..30).map(setting).collect(),
        files: Vec::new(),
        report_progress: false,
        input: None,
        needs_secret: false,
        ranks: vec![RankLaunch { rank: node, command: None, env, binding }],
    }
}

/// The machine description that an agent reports.
fn machine() -> Result<String> {
    Ok(document::to_json_line(&regatta_discover::systems::system("lumi-g")?)?)
}

/// Runs every `PROCESSES`-th agent until all are dismissed.
fn run_agents(index: u32) -> Result<()> {
    let (machine, times) = (machine()?, TIMES);
    let [root, fan_out, port, secret] = request()?;
    let tree = Tree { nodes: AGENTS, fan_out: fan_out.parse()? };
    let root = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), root.parse()?);
    let (port, secret) = (port.parse()?, Secret::from_hex(&secret)?);
    let config = SimConfig { tree, root, port, secret, times, machine };
    let nodes: Vec<u32> = (index..AGENTS).step_by(PROCESSES as usize).collect();
    let mut agents = SimAgents::new(&nodes, config)?;
    while !agents.has_left() {
        agents.poll(TICK)?;
    }
    Ok(agents.finish()?)
}

/// An agent process has one file per connection, more than a real agent.
fn raise_file_limit() -> Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context("raising the open file limit")
}
