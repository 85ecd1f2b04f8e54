//! A rank of `regatta doctor`, one per node: collects the facts of its node. Whatever fails is a
//! fact, so that a rank always exits successfully.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use regatta_comm::gpu_runtime::Vendor;
use regatta_discover::{Env, Sysroot};
use regatta_doctor::collect::{self, CollectOptions, JobIdentity};
use regatta_doctor::facts::{DirectoryUse, NodeFacts};
use regatta_doctor::peers::{PeerLimits, PeerTest};
use regatta_doctor::request::{DoctorRequest, NodeReport, NodeTests};
use regatta_measure::roofline::{node_rates, rank_threads};
use regatta_model::{GpuVendor, Machine};

use crate::args::plugin::LOAD_LIMIT;
use crate::commands::plugin::load_library;
use crate::commands::rank_request::RankContext;

/// Bytes of the write test of a file system.
const WRITE_BYTES: u64 = 64 << 20;
/// Time limit of a section of the facts.
const SECTION_LIMIT: Duration = Duration::from_secs(20);
/// Time of each measurement on the CPUs.
const RATE_TIME: Duration = Duration::from_millis(400);

/// Runs the rank.
pub fn run(request: &DoctorRequest, context: RankContext) -> Result<ExitCode> {
    let mut channel =
        context.channel.context("this command is for the ranks of `regatta doctor`")?;
    let env = Env::from_process();
    let rank = env.get("RANK").and_then(|rank| rank.parse().ok()).unwrap_or(0);
    let root = Sysroot::live();
    // First, to answer other nodes, which may be ready earlier.
    let is_needed = request.tests.network && request.table.nodes.len() > 1;
    let start = || PeerTest::start(&request.table, rank, PeerLimits::default());
    let peer_test = is_needed.then(start).transpose();
    let machine = context.machine.unwrap_or_else(|| regatta_discover::discover(&root, &env));
    let before = collect::nic_counters(&root, &machine);
    // Before the other tests, which nodes end at different times.
    let connections = peer_test.map(|test| test.map(PeerTest::run).unwrap_or_default());
    let after = collect::nic_counters(&root, &machine);
    let options = CollectOptions {
        directories: directories(&request.tests, &env),
        write_bytes: WRITE_BYTES,
        limit: SECTION_LIMIT,
        job: JobIdentity::of_process(&env),
    };
    let mut facts = collect::collect(&root, &env, machine, &options);
    collect::add_new_errors(&mut facts, &before, &after);
    if let Some(plugin) = facts.net_plugin.as_mut().filter(|plugin| plugin.load_error.is_none()) {
        plugin.load_error = plugin_load_error(&plugin.path);
    }
    if let Some(node) = request.table.nodes.get(rank) {
        facts.host.clone_from(&node.host);
    }
    match connections {
        Ok(peers) => facts.peers = peers,
        Err(error) => facts.notes.push(format!("the network was not tested: {error}")),
    }
    channel.send(&NodeReport::Collected(Box::new(facts.clone())))?;
    if request.tests.speed {
        measure(&mut facts);
    }
    channel.send(&NodeReport::Complete(Box::new(facts)))?;
    Ok(ExitCode::SUCCESS)
}

/// Why the network plug-in cannot be loaded. A failure to start the child process is not its fault.
fn plugin_load_error(path: &str) -> Option<String> {
    let (result, _) = load_library(Path::new(path), &[], LOAD_LIMIT).ok()?;
    result.reason().map(str::to_owned)
}

/// The directories that jobs write to.
fn directories(tests: &NodeTests, env: &Env) -> Vec<(DirectoryUse, PathBuf)> {
    let variable = |name: &str| env.get(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let temporary = variable("TMPDIR").unwrap_or_else(|| PathBuf::from("/tmp"));
    let fixed = [
        Some((DirectoryUse::Work, tests.work_dir.clone())),
        variable("HOME").map(|home| (DirectoryUse::Home, home)),
        Some((DirectoryUse::Temporary, temporary)),
    ];
    let given = tests.paths.iter().map(|path| (DirectoryUse::Given, path.clone()));
    fixed.into_iter().flatten().chain(given).collect()
}

/// Measures cores, memory and GPUs.
fn measure(facts: &mut NodeFacts) {
    match node_rates::cpus(rank_threads(), RATE_TIME) {
        Ok(rates) => facts.rates.extend(rates),
        Err(error) => facts.notes.push(format!("the CPUs were not measured: {error}")),
    }
    if let Some(vendor) = gpu_vendor(&facts.machine) {
        let count = facts.machine.visible_gpus().len() as u32;
        let (rates, notes) = node_rates::gpus(vendor, count);
        facts.rates.extend(rates);
        facts.notes.extend(notes);
    }
}

/// The vendor whose runtime measures the GPUs.
fn gpu_vendor(machine: &Machine) -> Option<Vendor> {
    match machine.gpus.first()?.vendor {
        GpuVendor::Nvidia => Some(Vendor::Nvidia),
        GpuVendor::Amd => Some(Vendor::Amd),
        GpuVendor::Intel => None,
    }
}
