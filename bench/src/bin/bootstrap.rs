//! The bootstrap of 10,000 ranks over loopback, and a rendezvous during a flood of unauthenticated
//! connections.
//!
//! Rank 0 is real, with its rendezvous and control plane; the other ranks are distributed over a few
//! processes of this program.

use std::collections::VecDeque;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use regatta_benchmarks::RunTimes;
use regatta_benchmarks::processes::{LineProcess, request};
use regatta_benchmarks::sim_ranks::{SimRanks, SimRanksConfig};
use regatta_comm::bootstrap::{BootstrapConfig, join, listen};
use regatta_comm::libfabric::ProviderChoice;
use regatta_wire::secret::Secret;

const RANKS: u32 = 10_000;
const PROCESSES: u32 = 2;
/// Unauthenticated connections, and the ranks that join meanwhile.
const FLOOD: usize = 10_000;
const FLOOD_THREADS: usize = 16;
const FLOODED_RANKS: u32 = 16;
const ROUNDS: usize = 5;
const TICK: Duration = Duration::from_millis(50);

/// Arguments of the other processes.
const AS_RANKS: &str = "ranks";
const AS_FLOOD: &str = "flood";

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    match (args.next().as_deref(), args.next()) {
        (Some(AS_RANKS), Some(index)) => run_ranks(index.parse()?),
        (Some(AS_FLOOD), None) => run_flood(),
        (None, None) => measure(),
        _ => bail!("this program takes no arguments"),
    }
}

fn measure() -> Result<()> {
    let bootstraps: Vec<Duration> = (0..ROUNDS).map(|_| bootstrap()).collect::<Result<_>>()?;
    print(&format!("bootstrap of {RANKS} ranks"), bootstraps);
    let (mut quiet, mut flooded) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        quiet.push(rendezvous(false)?);
        flooded.push(rendezvous(true)?);
    }
    print(&format!("rendezvous of {FLOODED_RANKS} ranks"), quiet);
    print(&format!("with {FLOOD} unauthenticated connections"), flooded);
    Ok(())
}

fn print(what: &str, times: Vec<Duration>) {
    let best = times.iter().min().copied().unwrap_or_default().as_secs_f64();
    let median = RunTimes::of(times).median.as_secs_f64();
    println!("{what}: best {best:.3} s, median {median:.3} s");
}

/// The time until all ranks have the world table.
fn bootstrap() -> Result<Duration> {
    let kinds = (0..PROCESSES).map(|index| vec![AS_RANKS.to_owned(), index.to_string()]);
    let mut processes = LineProcess::spawn_own(kinds)?;
    let (root, listener) = root_config(RANKS)?;
    let start = Instant::now();
    begin(&mut processes, listener, &root)?;
    let comm = join(BootstrapConfig { fabric: ProviderChoice::Tcp, ..root })?;
    let time = start.elapsed();
    LineProcess::finish(processes)?;
    drop(comm);
    Ok(time)
}

/// The time in which some ranks join, which are threads of this process, without a flood or in the
/// middle of one.
fn rendezvous(flood: bool) -> Result<Duration> {
    let mut processes = LineProcess::spawn_own(flood.then(|| vec![AS_FLOOD.to_owned()]))?;
    let (root, address) = root_config(FLOODED_RANKS)?;
    let (port, secret) = (root.master_port, root.secret.clone());
    begin(&mut processes, address, &root)?;
    std::thread::scope(|scope| {
        let mut ranks = vec![scope.spawn(|| join(root))];
        processes.iter_mut().try_for_each(|process| process.read_line().map(drop))?;
        let start = Instant::now();
        ranks.extend((1..FLOODED_RANKS).map(|rank| {
            let config =
                BootstrapConfig::new(rank, FLOODED_RANKS, "127.0.0.1", port, secret.clone());
            scope.spawn(|| join(config))
        }));
        let joined = ranks.into_iter().map(|rank| match rank.join() {
            Ok(comm) => Ok(comm?),
            Err(_) => bail!("a rank panicked"),
        });
        let comms = joined.collect::<Result<Vec<_>>>()?;
        let time = start.elapsed();
        drop(comms);
        Ok(time)
    })
}

/// The configuration of rank 0, and its address.
fn root_config(ranks: u32) -> Result<(BootstrapConfig, SocketAddr)> {
    let listener: TcpListener = listen((Ipv4Addr::LOCALHOST, 0).into())?;
    let address = listener.local_addr()?;
    let secret = Secret::generate()?;
    let mut root = BootstrapConfig::new(0, ranks, "127.0.0.1", address.port(), secret);
    root.listener = Some(listener);
    Ok((root, address))
}

/// Tells processes to begin.
fn begin(processes: &mut [LineProcess], root: SocketAddr, config: &BootstrapConfig) -> Result<()> {
    let line = format!("{root} {} {}", config.table_fanout, config.secret.to_hex());
    processes.iter_mut().try_for_each(|process| process.write_line(&line))
}

/// The request that a process gets when it is to begin.
fn begin_request() -> Result<(SocketAddr, u32, Secret)> {
    let [root, fanout, secret] = request()?;
    Ok((root.parse()?, fanout.parse()?, Secret::from_hex(&secret)?))
}

/// Runs every `PROCESSES`-th rank until the input ends.
fn run_ranks(index: u32) -> Result<()> {
    let (root, fanout, secret) = begin_request()?;
    let ranks: Vec<u32> = (1 + index..RANKS).step_by(PROCESSES as usize).collect();
    let config = SimRanksConfig { world_size: RANKS, fanout, root, secret };
    let mut ranks = SimRanks::start(&ranks, config)?;
    let input = std::thread::spawn(|| std::io::stdin().read_to_end(&mut Vec::new()));
    while !input.is_finished() {
        ranks.poll(TICK)?;
    }
    Ok(ranks.shutdown()?)
}

/// Opens connections that send nothing, and replaces the oldest, until this process is killed.
fn run_flood() -> Result<()> {
    let (root, ..) = begin_request()?;
    let opened = AtomicUsize::new(0);
    let open = || {
        let mut streams = VecDeque::new();
        loop {
            if let Ok(stream) = TcpStream::connect(root) {
                streams.push_back(stream);
                // The other processes begin in the middle of the flood.
                if opened.fetch_add(1, Ordering::Relaxed) == FLOOD / 2 {
                    println!("flooding");
                }
            }
            if streams.len() >= FLOOD / FLOOD_THREADS {
                streams.pop_front();
            }
        }
    };
    std::thread::scope(|scope| {
        (0..FLOOD_THREADS).for_each(|_| drop(scope.spawn(open)));
    });
    Ok(())
}
