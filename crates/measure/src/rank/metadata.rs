//! Metadata of a run, collected before anything is measured.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::time::{SystemTime, UNIX_EPOCH};

use regatta_comm::Comm;
use regatta_comm::gather::all_gather;
use regatta_model::bench::{BenchDevice, BenchMachine, BenchParameters, BenchProgram, BenchShape};
use regatta_model::run_folder;
use regatta_model::{BenchResult, Machine};

use super::connect::{self, Connection};
use super::{NodeContext, Result};
use crate::labels::default_label;
use crate::request::{BenchRequest, Workload};

/// Collects the metadata of a run. Collective.
pub fn collect(
    connection: &Connection,
    request: &BenchRequest,
    node: &NodeContext<'_>,
) -> Result<BenchResult> {
    let comm = &connection.comm;
    let mut hosts: Vec<String> = Vec::new();
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for host in (0..comm.size()).map(|rank| comm.peer(rank).host) {
        let count = counts.entry(host.clone()).or_default();
        *count += 1;
        if *count == 1 {
            hosts.push(host);
        }
    }
    let each = counts.values().next().copied();
    let own = ("regatta".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    let library = connection.version.clone().map(|version| (connection.name.to_owned(), version));
    let versions = [own].into_iter().chain(library).collect();
    let shape = BenchShape {
        ranks: Some(comm.size()),
        nodes: Some(hosts.len() as u32),
        ranks_per_node: each.filter(|each| counts.values().all(|count| count == each)),
        nccl_nodes: nccl_nodes(connection)?,
        hosts,
    };
    let label = request.label.clone();
    let label = label.unwrap_or_else(|| default_label(connection.name, &shape));
    // Rank 0 reports the metadata; the others only take part in the collectives.
    let machine = (comm.rank() == 0).then(node.machine).flatten();
    let transport = comm.transports().to_string();
    Ok(BenchResult {
        transport: Some(transport).filter(|name| !name.is_empty()),
        program: BenchProgram::Regatta,
        label,
        command: Some(node.command_line.join(" ")),
        started_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|t| t.as_secs()),
        devices: devices(connection, machine.as_ref())?,
        machine: machine.as_ref().map(summarize),
        shape,
        backend: Some(connection.name.to_owned()),
        settings: settings(std::env::vars_os()),
        versions,
        parameters: parameters(&request.workload),
        ..BenchResult::default()
    })
}

/// The number of nodes as NCCL counts them: by `NCCL_HOSTID`, else by host. `None` without NCCL.
fn nccl_nodes(connection: &Connection) -> Result<Option<u32>> {
    let comm = &connection.comm;
    if connection.device.is_none() {
        return Ok(None);
    }
    let id = std::env::var_os("NCCL_HOSTID").filter(|id| !id.is_empty());
    let id = id.map(|id| id.to_string_lossy().into_owned());
    let host = id.is_none().then(|| comm.peer(comm.rank()).host);
    let all: BTreeSet<_> = all_gather(comm, &(id, host))?.into_iter().collect();
    Ok(u32::try_from(all.len()).ok())
}

/// The parameters of a collective benchmark, as nccl-tests prints them.
fn parameters(workload: &Workload) -> Option<BenchParameters> {
    let Workload::Collectives { config, sizes, .. } = workload else { return None };
    Some(BenchParameters {
        threads: 1,
        devices: 1,
        min_bytes: sizes.min,
        max_bytes: sizes.max,
        step: sizes.step,
        warmup: u64::from(config.iterations.warmup),
        iterations: u64::from(config.iterations.timed),
        check: u64::from(config.iterations.check),
        ..BenchParameters::default()
    })
}

/// Process and device of each rank. Nodes are assumed to be identical.
fn devices(connection: &Connection, machine: Option<&Machine>) -> Result<Vec<BenchDevice>> {
    let comm = &connection.comm;
    let number = connection.device.map_or(0, |(_, number)| number);
    let all = all_gather(comm, &(std::process::id(), number))?;
    let buses = connect::buses(comm, connection.device)?;
    // Device indices depend on what a process sees, so GPUs are matched by bus id.
    let gpu = |bus: &str| machine?.gpus.iter().find(|gpu| gpu.pci.as_deref() == Some(bus));
    let processor = machine.and_then(|machine| machine.cpu_model.as_deref());
    let one = |(rank, ((pid, device), bus)): (u32, ((u32, u32), &String))| BenchDevice {
        rank,
        group: Some(0),
        pid: u64::from(pid),
        host: comm.peer(rank).host,
        device,
        bus: if bus.is_empty() { "host".to_owned() } else { bus.clone() },
        name: gpu(bus).map_or(processor.unwrap_or("memory"), |gpu| &gpu.name).to_owned(),
    };
    Ok((0..).zip(all.into_iter().zip(&buses)).map(one).collect())
}

fn summarize(machine: &Machine) -> BenchMachine {
    BenchMachine {
        processor: machine.cpu_model.clone().unwrap_or_default(),
        cores: machine.cores.len() as u32,
        memory_bytes: machine.numa.iter().map(|node| node.memory_bytes).sum(),
        gpus: machine.gpus.iter().map(|gpu| gpu.name.clone()).collect(),
        nics: machine.nics.iter().map(|nic| nic.name.clone()).collect(),
        name: machine.host.clone(),
    }
}

/// Environment variables that affect the measurement, without possible secrets: results are shared.
fn settings(all: impl Iterator<Item = (OsString, OsString)>) -> BTreeMap<String, String> {
    const FAMILIES: [&str; 8] =
        ["NCCL_", "RCCL_", "FI_", "REGATTA_", "HSA_", "CUDA_", "HIP_", "ROCR_"];
    const SECRET: [&str; 6] = ["TOKEN", "PASS", "KEY", "CRED", "AUTH", "SECRET"];
    let is_relevant = |name: &str| {
        let upper = name.to_ascii_uppercase();
        FAMILIES.iter().any(|family| name.starts_with(family))
            && !SECRET.iter().any(|word| upper.contains(word))
            && name != run_folder::VARIABLE
    };
    let text = |(name, value): (OsString, OsString)| {
        let name = name.into_string().ok().filter(|name| is_relevant(name))?;
        Some((name, value.to_string_lossy().into_owned()))
    };
    all.filter_map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn settings_are_the_relevant_variables_without_secrets() {
        let omitted = "NCCL_API_TOKEN FI_USER_password REGATTA_SECRET_FILE REGATTA_RUN_DIR \
                       NCCL_AUTHORITY CUDA_KEY HSA_CREDENTIALS HOME";
        let mut all: Vec<(OsString, OsString)> =
            omitted.split_whitespace().map(|name| (name.into(), "x".into())).collect();
        let foreign = || OsString::from_vec(b"NCCL_\xff".to_vec());
        all.push((foreign(), "x".into()));
        all.push(("FI_PROVIDER".into(), foreign()));
        all.push(("NCCL_ALGO".into(), "Ring".into()));
        let found: Vec<_> = settings(all.into_iter()).into_iter().collect();
        let expected = [("FI_PROVIDER", "NCCL_\u{fffd}"), ("NCCL_ALGO", "Ring")];
        assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}
