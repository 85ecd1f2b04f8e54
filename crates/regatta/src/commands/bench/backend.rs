//! Connects the ranks by what is to be measured.

use std::time::Duration;

use anyhow::{Result, bail};
use regatta_comm::background::Background;
use regatta_comm::fabric::Choice;
use regatta_comm::join::{self, Settings};
use regatta_comm::nccl::{self, Vendor};
use regatta_comm::{Collectives, Comm, ReduceOp, host};

use super::args::Backend;

/// Ranks that are connected, and what connects them.
pub struct Connected {
    pub comm: Background,
    pub name: &'static str,
    /// On which device buffers lie; none if in host memory.
    pub device: Option<u32>,
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
            match vendor_of_all(&meeting)? {
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

/// Whose devices all ranks have, if they do.
fn vendor_of_all(meeting: &Background) -> Result<Option<Vendor>> {
    let has = |vendor| i32::from(nccl::devices(vendor).is_ok_and(|count| count > 0));
    let mut all = [has(Vendor::Nvidia), has(Vendor::Amd)];
    meeting.all_reduce(&mut all, ReduceOp::Min)?;
    Ok(match all {
        [1, _] => Some(Vendor::Nvidia),
        [_, 1] => Some(Vendor::Amd),
        _ => None,
    })
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
    // A rank that has its own device only sees it as the first.
    let count = nccl::devices(vendor)?.max(1);
    let device = local_rank % count;
    // As nccl-tests: a benchmark is to show what the library can do.
    let settings = nccl::Settings { vendor, device, desync_after, debug: false, blocking: true };
    if meeting.rank() == 0 && meeting.size() > count {
        note_shared(&meeting, count);
    }
    let comm = nccl::over(Box::new(meeting), settings)?;
    Ok(Connected { comm, name, device: Some(device), version: Some(version) })
}

/// Says what to do where several ranks of a node have one device, which the library refuses unless
/// they look like nodes of their own.
fn note_shared(meeting: &Background, devices: u32) {
    let host = meeting.peer(0).host;
    let here = (0..meeting.size()).filter(|rank| meeting.peer(*rank).host == host).count();
    if here > devices as usize && std::env::var_os("NCCL_HOSTID").is_none() {
        crate::output::complain(&format!(
            "note: {here} ranks of {host} share {devices} GPUs, which NCCL refuses: start them by \
             `regatta launch --wrap 'env NCCL_HOSTID={{rank}}'`, and take no figure for a network's\n"
        ));
    }
}
