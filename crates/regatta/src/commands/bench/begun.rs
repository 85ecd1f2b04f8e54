//! What is known of a run before anything is measured.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use regatta_comm::{Collectives, Comm};
use regatta_model::bench::{BenchDevice, BenchMachine, BenchParameters, BenchShape, Program};
use regatta_model::{BenchResult, Machine, units};

use super::asked::{Asked, Job};
use super::backend::Connected;
use super::part;
use crate::options::SourceArgs;
use crate::plan::Survey;

/// All that is known before anything is measured.
pub fn begun(connected: &Connected, asked: &Asked<'_>) -> Result<BenchResult> {
    let comm = &connected.comm;
    let mut hosts: Vec<String> = Vec::new();
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for rank in 0..comm.size() {
        let host = comm.peer(rank).host;
        if !counts.contains_key(&host) {
            hosts.push(host.clone());
        }
        *counts.entry(host).or_default() += 1;
    }
    let each = counts.values().next().copied();
    let is_own = |word: &str| word == "--events" || part::is_option(word);
    let command: Vec<String> = std::env::args().filter(|word| !is_own(word)).collect();
    let mut versions =
        BTreeMap::from([("regatta".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
    if let Some(version) = &connected.version {
        versions.insert(connected.name.to_owned(), version.clone());
    }
    let shape = BenchShape {
        ranks: Some(comm.size()),
        nodes: Some(hosts.len() as u32),
        ranks_per_node: each.filter(|each| counts.values().all(|count| count == each)),
        hosts,
    };
    let label = asked.output.label.clone().unwrap_or_else(|| {
        let ranks = units::count(comm.size() as usize, "rank");
        let nodes = units::count(shape.hosts.len(), "node");
        format!("{}, {ranks} on {nodes}", connected.name)
    });
    let machine = machine();
    Ok(BenchResult {
        program: Program::Regatta,
        label,
        command: Some(command.join(" ")),
        started_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|t| t.as_secs()),
        devices: devices(connected, machine.as_ref())?,
        machine: machine.as_ref().map(in_short),
        shape,
        backend: Some(connected.name.to_owned()),
        settings: settings(),
        versions,
        parameters: parameters(&asked.job),
        ..BenchResult::default()
    })
}

/// The options of nccl-tests, where they are what was asked for.
fn parameters(job: &Job) -> Option<BenchParameters> {
    let Job::Tables { plan, sizes, .. } = job else { return None };
    Some(BenchParameters {
        threads: 1,
        devices: 1,
        min_bytes: sizes.min,
        max_bytes: sizes.max,
        step: sizes.step,
        warmup: u64::from(plan.rounds.warmup),
        iterations: u64::from(plan.rounds.iterations),
        check: u64::from(plan.rounds.check),
        ..BenchParameters::default()
    })
}

/// What each rank works with. Nodes are taken to be alike.
fn devices(connected: &Connected, machine: Option<&Machine>) -> Result<Vec<BenchDevice>> {
    let comm = &connected.comm;
    let own = [i64::from(std::process::id()), connected.device.map_or(-1, i64::from)];
    let mut all = vec![0i64; 2 * comm.size() as usize];
    comm.all_gather(&own, &mut all)?;
    let gpu = |number: i64| machine?.gpus.get(usize::try_from(number).ok()?);
    let processor = machine.and_then(|machine| machine.cpu_model.as_deref());
    let one = |(rank, said): (u32, &[i64])| BenchDevice {
        rank,
        group: Some(0),
        pid: said[0].unsigned_abs(),
        host: comm.peer(rank).host,
        device: u32::try_from(said[1]).unwrap_or(0),
        bus: gpu(said[1]).and_then(|gpu| gpu.pci.clone()).unwrap_or_else(|| "host".to_owned()),
        name: gpu(said[1]).map_or(processor.unwrap_or("memory"), |gpu| &gpu.name).to_owned(),
    };
    Ok((0..).zip(all.chunks_exact(2)).map(one).collect())
}

/// This machine. A benchmark does not fail because something of it cannot be read.
fn machine() -> Option<Machine> {
    let survey = Survey::take(&SourceArgs::default(), 0).ok()?;
    survey.machines.into_iter().next()
}

fn in_short(machine: &Machine) -> BenchMachine {
    BenchMachine {
        processor: machine.cpu_model.clone().unwrap_or_default(),
        cores: machine.cores.len() as u32,
        memory_bytes: machine.numa.iter().map(|node| node.memory_bytes).sum(),
        gpus: machine.gpus.iter().map(|gpu| gpu.name.clone()).collect(),
        nics: machine.nics.iter().map(|nic| nic.name.clone()).collect(),
        name: machine.host.clone(),
    }
}

/// Variables that change what is measured.
fn settings() -> BTreeMap<String, String> {
    const FAMILIES: [&str; 8] =
        ["NCCL_", "RCCL_", "FI_", "REGATTA_", "HSA_", "CUDA_", "HIP_", "ROCR_"];
    let matters = |name: &str| {
        FAMILIES.iter().any(|family| name.starts_with(family)) && !name.contains("SECRET")
    };
    std::env::vars().filter(|(name, _)| matters(name)).collect()
}
