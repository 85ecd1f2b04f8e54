//! Connects the ranks over the backend under test.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use regatta_comm::bootstrap::{self, BootstrapConfig};
use regatta_comm::engine::Engine as _;
use regatta_comm::gather::all_gather;
use regatta_comm::libfabric::ProviderChoice;
use regatta_comm::nccl::{self, Vendor};
use regatta_comm::transports::NetworkName;
use regatta_comm::{Comm, Communicator, hierarchical};
use regatta_model::units;

use super::{BenchError, OnEvent, Result};
use crate::collectives::BenchEvent;
use crate::request::{Backend, BenchRequest};

/// Names the net plug-in that the launcher installed.
const NET_PLUGIN_VARIABLE: &str = "NCCL_NET_PLUGIN";

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
pub fn connect(request: &BenchRequest, on_event: OnEvent<'_>) -> Result<Connection> {
    let settings = settings(request)?;
    let limits = (settings.local_rank, settings.desync_after);
    let in_memory = |comm, name| Connection { comm, name, device: None, version: None };
    Ok(match request.backend {
        Backend::Host => in_memory(hierarchical::join(settings)?, "host"),
        Backend::Tcp => in_memory(bootstrap::join(settings)?, "tcp"),
        Backend::Libfabric | Backend::NetPlugin => over_network(request.backend, settings)?,
        Backend::Nccl => over_nccl(bootstrap::join(settings)?, Vendor::Nvidia, limits, on_event)?,
        Backend::Rccl => over_nccl(bootstrap::join(settings)?, Vendor::Amd, limits, on_event)?,
        Backend::Auto => {
            let comm = hierarchical::join(settings)?;
            match common_vendor(&comm, limits.0)? {
                Some(vendor) => over_nccl(comm, vendor, limits, on_event)?,
                None => in_memory(comm, "host"),
            }
        }
    })
}

/// Communicator settings from the environment.
pub fn settings(request: &BenchRequest) -> Result<BootstrapConfig> {
    let mut settings = BootstrapConfig::from_env()?;
    settings.desync_after = request.timeout.unwrap_or(settings.desync_after);
    match request.backend {
        Backend::NetPlugin => settings.net_plugin = Some(net_plugin(request)?),
        Backend::Tcp => (settings.fabric, settings.net_plugin) = (ProviderChoice::Tcp, None),
        Backend::Libfabric => settings.net_plugin = None,
        Backend::Auto | Backend::Host | Backend::Nccl | Backend::Rccl => {}
    }
    Ok(settings)
}

/// The library that a rank of the backend net-plugin loads.
fn net_plugin(request: &BenchRequest) -> Result<PathBuf> {
    let installed = || std::env::var_os(NET_PLUGIN_VARIABLE).map(PathBuf::from);
    request.net_plugin.clone().or_else(installed).ok_or(BenchError::NoNetPlugin)
}

/// All ranks over the network, also those of a node.
fn over_network(backend: Backend, settings: BootstrapConfig) -> Result<Connection> {
    let engine = bootstrap::engine(settings)?;
    let version = match engine.transports().network {
        Some(NetworkName::NetPlugin(plugin)) => plugin,
        Some(network @ NetworkName::Libfabric(_)) => network.to_string(),
        _ => return Err(BenchError::NoLibfabric(engine.transports().to_string())),
    };
    let comm = Communicator::recorded(Box::new(engine));
    Ok(Connection { comm, name: backend.name(), device: None, version: Some(version) })
}

/// The vendor of which every rank has a GPU of its own, if there is one.
fn common_vendor(bootstrap: &Communicator, local_rank: u32) -> Result<Option<Vendor>> {
    for vendor in Vendor::ALL {
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
    Ok(all_gather(comm, &own.unwrap_or_default())?)
}

fn over_nccl(
    bootstrap: Communicator,
    vendor: Vendor,
    (local_rank, desync_after): (u32, Duration),
    on_event: OnEvent<'_>,
) -> Result<Connection> {
    let name = if vendor == Vendor::Nvidia { "nccl" } else { "rccl" };
    let version = nccl::version(vendor)?;
    let count = nccl::device_count(vendor)?.max(1);
    let device = local_rank % count;
    // Blocking, as in nccl-tests: measures the library, not our polling.
    let settings = nccl::NcclConfig { vendor, device, desync_after, debug: false, blocking: true };
    if let Some(note) = shared_gpus(&bootstrap, count) {
        on_event(BenchEvent::Note(note));
    }
    let comm = nccl::init(Box::new(bootstrap), settings)?;
    Ok(Connection { comm, name, device: Some((vendor, device)), version: Some(version) })
}

/// A note if ranks of rank 0's node share a GPU, which NCCL refuses unless they look like separate hosts.
fn shared_gpus(bootstrap: &Communicator, devices: u32) -> Option<String> {
    let host = bootstrap.peer(0).host;
    let local = (0..bootstrap.size()).filter(|rank| bootstrap.peer(*rank).host == host).count();
    let is_refused = local > devices as usize && std::env::var_os("NCCL_HOSTID").is_none();
    let gpus = units::pluralize(devices as usize, "GPU");
    is_refused.then(|| {
        format!(
            "{local} ranks on {host} share {gpus}, which NCCL refuses: launch them with \
             `regatta launch --wrap 'env NCCL_HOSTID={{rank}}'`; the results then do not reflect the network"
        )
    })
}
