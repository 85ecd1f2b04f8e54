//! How long 10,000 agents take until the coordinator knows them all, and how long a job takes whose
//! ranks do nothing: on this machine over loopback, in a tree as it is, and with all agents
//! calling the coordinator directly.
//!
//! The coordinator, the agents' decisions and the connections are the real ones; the agents are
//! shared out among a few processes, which this program starts of itself.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use regatta_benchmarks::flock::{Common, Flock, free_port};
use regatta_benchmarks::{Turn, report, take_turns};
use regatta_launch::bind::Binding;
use regatta_launch::crew::{Crew, Event};
use regatta_launch::fleet::boot::Times;
use regatta_launch::fleet::coordinator::Fleet;
use regatta_launch::fleet::message::{RankWork, Work};
use regatta_launch::fleet::tree::Tree;
use regatta_model::{MemoryPolicy, document};
use regatta_wire::secret::Secret;

const AGENTS: u32 = 10_000;
/// As `regatta launch` has it.
const FAN_OUT: u32 = 32;
const PROCESSES: u32 = 4;
const ROUNDS: usize = 5;
/// As `regatta launch` has them.
const TIMES: Times = Times {
    grace: Duration::from_secs(30),
    join: Duration::from_secs(120),
    lost_after: Duration::from_secs(30),
};
const TICK: Duration = Duration::from_millis(50);
/// The argument that makes this program a process of agents.
const AS_AGENTS: &str = "agents";

fn main() -> Result<()> {
    raise_file_limit()?;
    let mut args = std::env::args().skip(1);
    match (args.next().as_deref(), args.next()) {
        (Some(AS_AGENTS), Some(share)) => be_agents(share.parse()?),
        (None, None) => compare(),
        _ => bail!("this program takes no arguments"),
    }
}

/// Rendezvous and empty job, in the tree and directly.
fn compare() -> Result<()> {
    println!("{AGENTS} agents, each with {} bytes of description", machine()?.len());
    let mut jobs = [Vec::new(), Vec::new()];
    let [tree_jobs, direct_jobs] = &mut jobs;
    let joins = take_turns(&mut [turn(FAN_OUT, tree_jobs), turn(AGENTS, direct_jobs)], ROUNDS)?;
    report("rendezvous of 10000 agents", joins[0], &[("without a tree", joins[1])])?;
    let [tree, direct] = jobs.map(regatta_benchmarks::Times::of);
    report("empty job on 10000 agents", tree, &[("without a tree", direct)])
}

/// One rendezvous and one job; the job's time is kept aside.
fn turn(fan_out: u32, jobs: &mut Vec<Duration>) -> Turn<'_> {
    let work = move || {
        let (join, job) = rendezvous(fan_out)?;
        jobs.push(job);
        Ok(join)
    };
    Turn { every: 1, work: Box::new(work) }
}

fn rendezvous(fan_out: u32) -> Result<(Duration, Duration)> {
    let mut shares = Shares::start()?;
    let hosts: Vec<String> = (0..AGENTS).map(|i| format!("node{i}")).collect();
    let (secret, port) = (Secret::generate()?, free_port()?);

    let start = Instant::now();
    let mut fleet = Fleet::listen(&hosts, secret.clone(), TIMES)?;
    shares.go(&format!("{} {fan_out} {port} {}", fleet.port(), secret.to_hex()))?;
    while !fleet.absent().is_empty() {
        fleet.poll(TICK);
        if start.elapsed() > TIMES.join {
            bail!("{} agents never connected", fleet.absent().len());
        }
    }
    let join = start.elapsed();

    let start = Instant::now();
    fleet.begin(0, (0..AGENTS).map(|node| (node, work(node))).collect());
    let mut ended = 0;
    loop {
        match fleet.next(TICK, false) {
            Some(Event::Ended(_, ending)) if ending.is_good() => ended += 1,
            Some(Event::Over) => break,
            Some(Event::Started { .. }) | None => {}
            // Directly, some are turned away at first, which is told.
            Some(Event::Note(_)) => {}
            Some(other) => bail!("an empty job does not do this: {other:?}"),
        }
    }
    let job = start.elapsed();
    if ended != AGENTS {
        bail!("{ended} of {AGENTS} ranks ended well");
    }
    fleet.leave();
    shares.wait()?;
    Ok((join, job))
}

/// One rank, with as many variables as ranks have.
fn work(node: u32) -> Work {
    let setting =
        |i: u32| (format!("REGATTA_VARIABLE_{i}"), Some("a value of usual length".into()));
    let cpus = (0..8).collect();
    let binding = Binding::new(&cpus, &MemoryPolicy::Prefer(vec![0]));
    Work {
        attempt: 0,
        command: ["python", "train.py", "--config", "large.toml"].map(Into::into).to_vec(),
        folder: "/scratch/project/run".into(),
        base: Vec::new(),
        without: Vec::new(),
        common: (0..30).map(setting).collect(),
        progress: false,
        ranks: vec![RankWork {
            rank: node,
            command: None,
            env: (30..40).map(setting).collect(),
            binding,
        }],
    }
}

/// What an agent says of its machine.
fn machine() -> Result<String> {
    Ok(document::to_json_line(&regatta_discover::systems::system("lumi-g")?)?)
}

/// The processes of agents.
struct Shares(Vec<Child>);

impl Shares {
    /// Starts them, and waits until all are prepared.
    fn start() -> Result<Self> {
        let program = std::env::current_exe()?;
        let mut shares = Self(Vec::new());
        for share in 0..PROCESSES {
            let mut command = Command::new(&program);
            command.args([AS_AGENTS, &share.to_string()]);
            let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
            shares.0.push(child);
        }
        for child in &mut shares.0 {
            let output = child.stdout.take().context("a process without output")?;
            BufReader::new(output).read_line(&mut String::new())?;
        }
        Ok(shares)
    }

    fn go(&mut self, orders: &str) -> Result<()> {
        for child in &mut self.0 {
            let mut input = child.stdin.take().context("a process without input")?;
            writeln!(input, "{orders}")?;
        }
        Ok(())
    }

    fn wait(mut self) -> Result<()> {
        for mut child in self.0.drain(..) {
            let status = child.wait()?;
            if !status.success() {
                bail!("a process of agents failed with {status}");
            }
        }
        Ok(())
    }
}

impl Drop for Shares {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Every so-manieth agent, until all are sent home.
fn be_agents(share: u32) -> Result<()> {
    let machine = machine()?;
    println!("prepared");
    let mut orders = String::new();
    std::io::stdin().read_line(&mut orders)?;
    let [root, fan_out, port, secret] = orders.split_whitespace().collect::<Vec<_>>()[..] else {
        bail!("these are no orders: {orders}");
    };
    let tree = Tree { nodes: AGENTS, fan_out: fan_out.parse()? };
    let common = Common {
        tree,
        root: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), root.parse()?),
        port: port.parse()?,
        secret: Secret::from_hex(secret)?,
        times: TIMES,
        machine,
    };
    let nodes: Vec<u32> = (share..AGENTS).step_by(PROCESSES as usize).collect();
    let mut flock = Flock::new(&nodes, common)?;
    while !flock.has_left() {
        flock.turn(TICK)?;
    }
    Ok(flock.finish()?)
}

/// A process of agents has a file for each connection, which is more than a real agent has.
fn raise_file_limit() -> Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context("the limit of open files")
}
