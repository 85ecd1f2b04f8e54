//! Connects the ranks over the backend under test.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Result, bail};
use regatta_comm::bootstrap::{self, BootstrapConfig};
use regatta_comm::communicator::Communicator;
use regatta_comm::engine::Engine as _;
use regatta_comm::libfabric::ProviderChoice;
use regatta_comm::nccl::{self, Vendor};
use regatta_comm::{Collectives, Comm, hierarchical};
use regatta_model::units;

use super::args::{Backend, BenchRankArgs};
use super::net_plugin;
use crate::commands::rank_worker::note_unrecorded;

/// A communicator over a backend.
pub struct Connection {
    pub comm: Communicator,
    pub name: &'static str,
    /// Device of the buffers; `None` for host memory.
    pub device: Option<(Vendor, u32)>,
    /// Version of the library, if any.
    pub version: Option<String>,
}

/// Connects this rank.
pub fn connect(ranks: &BenchRankArgs, timeout: Option<u64>) -> Result<Connection> {
    let settings = settings(ranks, timeout)?;
    let in_memory = |comm, name| Connection { comm, name, device: None, version: None };
    let limits = (settings.local_rank, settings.desync_after);
    let connection = match ranks.backend {
        Backend::Host => in_memory(hierarchical::join(settings)?, "host"),
        Backend::Tcp => in_memory(bootstrap::join(settings)?, "tcp"),
        Backend::Libfabric => libfabric(settings)?,
        Backend::NetPlugin => over_net_plugin(settings)?,
        Backend::Nccl => over_nccl(bootstrap::join(settings)?, Vendor::Nvidia, limits)?,
        Backend::Rccl => over_nccl(bootstrap::join(settings)?, Vendor::Amd, limits)?,
        Backend::Auto => {
            let bootstrap = hierarchical::join(settings)?;
            match common_vendor(&bootstrap, limits.0)? {
                Some(vendor) => over_nccl(bootstrap, vendor, limits)?,
                None => in_memory(bootstrap, "host"),
            }
        }
    };
    note_unrecorded();
    Ok(connection)
}

/// Communicator settings from the environment; `timeout` overrides the call timeout.
pub fn settings(ranks: &BenchRankArgs, timeout: Option<u64>) -> Result<BootstrapConfig> {
    let mut settings = BootstrapConfig::from_env()?;
    if let Some(seconds) = timeout {
        settings.desync_after = Duration::from_secs(seconds);
    }
    match ranks.backend {
        Backend::NetPlugin => settings.net_plugin = Some(net_plugin::of_rank(ranks)?),
        Backend::Tcp => (settings.fabric, settings.net_plugin) = (ProviderChoice::Tcp, None),
        Backend::Libfabric => settings.net_plugin = None,
        Backend::Auto | Backend::Host | Backend::Nccl | Backend::Rccl => {}
    }
    Ok(settings)
}

/// All ranks over the plug-in, also those of a node.
fn over_net_plugin(settings: BootstrapConfig) -> Result<Connection> {
    let engine = bootstrap::engine(settings)?;
    let plugin = engine.transport_name().trim_start_matches("net plug-in: ").to_owned();
    let comm = Communicator::recorded(Box::new(engine));
    Ok(Connection { comm, name: "net-plugin", device: None, version: Some(plugin) })
}

fn libfabric(settings: BootstrapConfig) -> Result<Connection> {
    let engine = bootstrap::engine(settings)?;
    let carried = engine.transport_name();
    if carried.contains("TCP") {
        bail!(
            "libfabric is not in use: {carried}; select a provider with REGATTA_FABRIC, e.g. \
             REGATTA_FABRIC=tcp, and the library with REGATTA_LIBFABRIC"
        );
    }
    let comm = Communicator::recorded(Box::new(engine));
    Ok(Connection { comm, name: "libfabric", device: None, version: Some(carried) })
}

/// The vendor of which every rank has a GPU of its own, if there is one.
fn common_vendor(bootstrap: &Communicator, local_rank: u32) -> Result<Option<Vendor>> {
    for vendor in [Vendor::Nvidia, Vendor::Amd] {
        let buses = buses(bootstrap, device_of(vendor, local_rank).map(|device| (vendor, device)))?;
        let hosts = (0..).map(|rank| bootstrap.peer(rank).host);
        let locations: HashSet<_> = hosts.zip(&buses).collect();
        if locations.len() == buses.len() && buses.iter().all(|bus| !bus.is_empty()) {
            return Ok(Some(vendor));
        }
    }
    Ok(None)
}

/// The device of a local rank, among the visible ones.
fn device_of(vendor: Vendor, local_rank: u32) -> Option<u32> {
    let count = nccl::device_count(vendor).ok().filter(|count| *count > 0)?;
    Some(local_rank % count)
}

/// PCI bus ids of all ranks' devices; empty for ranks without one.
pub fn buses(comm: &dyn Comm, own: Option<(Vendor, u32)>) -> Result<Vec<String>> {
    let own = own.and_then(|(vendor, device)| nccl::pci_bus_id(vendor, device).ok());
    let mut own_bytes = [0u8; nccl::PCI_BUS_ID_BYTES];
    own_bytes.iter_mut().zip(own.unwrap_or_default().bytes()).for_each(|(to, from)| *to = from);
    let mut all = vec![own_bytes; comm.size() as usize];
    comm.all_gather(&own_bytes, all.as_flattened_mut())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
    Ok(all.iter().map(|bytes| text(bytes)).collect())
}

fn over_nccl(
    bootstrap: Communicator,
    vendor: Vendor,
    (local_rank, desync_after): (u32, Duration),
) -> Result<Connection> {
    let name = if vendor == Vendor::Nvidia { "nccl" } else { "rccl" };
    let version = nccl::version(vendor)?;
    let count = nccl::device_count(vendor)?.max(1);
    let device = local_rank % count;
    // Blocking, as in nccl-tests: measures the library, not our polling.
    let settings = nccl::NcclConfig { vendor, device, desync_after, debug: false, blocking: true };
    if bootstrap.rank() == 0 && bootstrap.size() > count {
        warn_shared_gpus(&bootstrap, count);
    }
    let comm = nccl::init(Box::new(bootstrap), settings)?;
    Ok(Connection { comm, name, device: Some((vendor, device)), version: Some(version) })
}

/// Warns if ranks of a node share a GPU, which NCCL refuses unless they look like separate hosts.
fn warn_shared_gpus(bootstrap: &Communicator, devices: u32) {
    let host = bootstrap.peer(0).host;
    let local = (0..bootstrap.size()).filter(|rank| bootstrap.peer(*rank).host == host).count();
    if local > devices as usize && std::env::var_os("NCCL_HOSTID").is_none() {
        let gpus = units::pluralize(devices as usize, "GPU");
        crate::output::eprint(&format!(
            "note: {local} ranks on {host} share {gpus}, which NCCL refuses: launch them with \
             `regatta launch --wrap 'env NCCL_HOSTID={{rank}}'`; the results then do not reflect the network\n"
        ));
    }
}
