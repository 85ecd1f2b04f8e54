//! Connects the ranks by what is to be measured.

use std::time::Duration;

use anyhow::{Result, bail};
use regatta_comm::background::Background;
use regatta_comm::fabric::Choice;
use regatta_comm::join::{self, Settings};
use regatta_comm::nccl::{self, Vendor};
use regatta_comm::{Collectives, Comm, host};
use regatta_model::units;

use super::args::Backend;

/// Ranks that are connected, and what connects them.
pub struct Connected {
    pub comm: Background,
    pub name: &'static str,
    /// On which device buffers lie; none if in host memory.
    pub device: Option<(Vendor, u32)>,
    /// The library's version, where there is one.
    pub version: Option<String>,
}

/// Connects this rank with the others.
pub fn connect(backend: Backend, timeout: Option<u64>) -> Result<Connected> {
    let mut settings = settings(timeout)?;
    let in_memory = |comm, name| Connected { comm, name, device: None, version: None };
    let limits = (settings.local_rank, settings.desync_after);
    Ok(match backend {
        Backend::Host => in_memory(host::join(settings)?, "host"),
        Backend::Tcp => {
            settings.fabric = Choice::Tcp;
            in_memory(join::join(settings)?, "tcp")
        }
        Backend::Libfabric => libfabric(settings)?,
        Backend::Nccl => on_devices(join::join(settings)?, Vendor::Nvidia, limits)?,
        Backend::Rccl => on_devices(join::join(settings)?, Vendor::Amd, limits)?,
        Backend::Auto => {
            let meeting = host::join(settings)?;
            match vendor_of_all(&meeting, limits.0)? {
                Some(vendor) => on_devices(meeting, vendor, limits)?,
                None => in_memory(meeting, "host"),
            }
        }
    })
}

/// How ranks are connected, by their environment; a call that takes longer is an error.
pub fn settings(timeout: Option<u64>) -> Result<Settings> {
    let mut settings = Settings::from_environment()?;
    if let Some(seconds) = timeout {
        settings.desync_after = Duration::from_secs(seconds);
    }
    Ok(settings)
}

fn libfabric(settings: Settings) -> Result<Connected> {
    let engine = join::engine(settings)?;
    let carried = engine.carried().to_owned();
    if carried.contains("TCP") {
        bail!(
            "libfabric is not used: {carried}; name a provider by REGATTA_FABRIC, as in \
             REGATTA_FABRIC=tcp, and the library by REGATTA_LIBFABRIC"
        );
    }
    let comm = Background::new(Box::new(engine));
    Ok(Connected { comm, name: "libfabric", device: None, version: Some(carried) })
}

/// Whose devices all ranks have, each its own, if they do.
fn vendor_of_all(meeting: &Background, local_rank: u32) -> Result<Option<Vendor>> {
    for vendor in [Vendor::Nvidia, Vendor::Amd] {
        let buses = buses(meeting, device_of(vendor, local_rank).map(|device| (vendor, device)))?;
        let places: Vec<(String, &str)> = (0..)
            .map(|rank| meeting.peer(rank).host)
            .zip(buses.iter().map(String::as_str))
            .collect();
        let each_its_own = places.iter().all(|place| {
            !place.1.is_empty() && places.iter().filter(|other| *other == place).count() == 1
        });
        if each_its_own {
            return Ok(Some(vendor));
        }
    }
    Ok(None)
}

/// The device of a rank of a node. One that has its own only sees it as the first.
fn device_of(vendor: Vendor, local_rank: u32) -> Option<u32> {
    let count = nccl::devices(vendor).ok().filter(|count| *count > 0)?;
    Some(local_rank % count)
}

/// Where the devices of all ranks are plugged in; empty of those that have none.
pub fn buses(comm: &dyn Comm, own: Option<(Vendor, u32)>) -> Result<Vec<String>> {
    let own = own.and_then(|(vendor, device)| nccl::bus(vendor, device).ok()).unwrap_or_default();
    let mut said = [0u8; nccl::BUS_BYTES];
    let length = own.len().min(said.len());
    said[..length].copy_from_slice(&own.as_bytes()[..length]);
    let mut all = vec![0u8; said.len() * comm.size() as usize];
    comm.all_gather(&said, &mut all)?;
    let text = |said: &[u8]| String::from_utf8_lossy(said).trim_end_matches('\0').to_owned();
    Ok(all.chunks_exact(said.len()).map(text).collect())
}

fn on_devices(
    meeting: Background,
    vendor: Vendor,
    (local_rank, desync_after): (u32, Duration),
) -> Result<Connected> {
    let (name, version) = match vendor {
        Vendor::Nvidia => ("nccl", nccl::version(vendor)?),
        Vendor::Amd => ("rccl", nccl::version(vendor)?),
    };
    let count = nccl::devices(vendor)?.max(1);
    let device = local_rank % count;
    // As nccl-tests: a benchmark is to show what the library can do.
    let settings = nccl::Settings { vendor, device, desync_after, debug: false, blocking: true };
    if meeting.rank() == 0 && meeting.size() > count {
        note_shared(&meeting, count);
    }
    let comm = nccl::over(Box::new(meeting), settings)?;
    Ok(Connected { comm, name, device: Some((vendor, device)), version: Some(version) })
}

/// Says what to do where several ranks of a node have one device, which the library refuses unless
/// they look like nodes of their own.
fn note_shared(meeting: &Background, devices: u32) {
    let host = meeting.peer(0).host;
    let here = (0..meeting.size()).filter(|rank| meeting.peer(*rank).host == host).count();
    if here > devices as usize && std::env::var_os("NCCL_HOSTID").is_none() {
        let gpus = units::count(devices as usize, "GPU");
        crate::output::complain(&format!(
            "note: {here} ranks of {host} share {gpus}, which NCCL refuses: start them by \
             `regatta launch --wrap 'env NCCL_HOSTID={{rank}}'`, and take no figure for a network's\n"
        ));
    }
}
