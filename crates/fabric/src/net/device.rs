//! The NICs of a provider.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::settings::{Mode, PROVIDER_VARIABLE, Settings};
use super::{MAX_GROUPED_RECVS, NetResult, interface, sysfs, tag};
use crate::abi::{self, Info};
use crate::library::{InfoList, Library, Query, library};
use crate::provider_choice::ProviderChoice;

/// Messages of NCCL are at most this large in version 8 of its interface, which has no other limit.
const MIN_MAX_MESSAGE: usize = 1 << 30;
/// NCCL accepts nothing larger as a limit.
const MAX_MAX_MESSAGE: usize = 1 << 40;
/// Mbit/s, if nothing says it: as NCCL assumes for sockets.
const UNKNOWN_SPEED: u32 = 10_000;
/// Mbit/s within a node.
const SHM_SPEED: u32 = 100_000;

/// A NIC.
pub struct Device {
    /// Provider, with utility layers.
    pub provider: String,
    /// Domain, which is its name.
    pub domain: String,
    /// Path of its PCI device.
    pub pci_path: Option<PathBuf>,
    /// Mbit/s.
    pub speed: u32,
    /// Identifies the NIC.
    pub guid: u64,
    /// Whether it accesses memory of GPUs.
    pub gpu_memory: bool,
    /// Whether memory of GPUs can be registered by dma-buf.
    pub dma_buf: bool,
    /// Largest message.
    pub max_message: usize,
    /// Whether each connection has an endpoint of its own (`FI_EP_MSG`).
    pub is_connection_oriented: bool,
    info: InfoList,
}

// SAFETY: the info is only read, and copied for each endpoint.
unsafe impl Sync for Device {}

impl Device {
    /// A copy of what an endpoint is opened with.
    pub(super) fn info(&self) -> NetResult<InfoList> {
        self.info.get(0).ok_or_else(|| "out of memory for fi_info".to_owned())
    }

    /// Whether the processor moves the data, so that more threads move more.
    pub fn is_software(&self) -> bool {
        is_software(&self.provider)
    }

    /// Receives in a group at most.
    pub fn max_recvs(&self) -> usize {
        if self.is_connection_oriented { 1 } else { MAX_GROUPED_RECVS }
    }

    /// Whether its peers have IP addresses, and its name is that of an interface.
    pub fn is_ip(&self) -> bool {
        is_ip(&self.provider)
    }
}

/// Providers that move data with the processor.
const SOFTWARE: [&str; 5] = ["tcp", "net", "shm", "udp", "sockets"];

/// Whether a provider moves data with the processor.
fn is_software(provider: &str) -> bool {
    SOFTWARE.contains(&provider.split(';').next().unwrap_or_default())
}

/// Providers that register memory by dma-buf. Others take the descriptor for an address.
const DMA_BUF: [&str; 2] = ["efa", "verbs"];

fn takes_dma_buf(provider: &str) -> bool {
    DMA_BUF.contains(&provider.split(';').next().unwrap_or_default())
}

/// Providers that are used with connection-oriented endpoints, unless they are named with another layer. Each
/// connection of NCCL is then a TCP connection, so that an unexpected message blocks no other connection. That
/// makes the clear-to-send unnecessary, which takes as long as a small message. Reliable datagram endpoints have
/// one TCP connection for all messages to a peer.
const CONNECTION_ORIENTED: [&str; 2] = ["tcp", "net"];

fn is_ip(provider: &str) -> bool {
    ProviderChoice::parse(provider).has_ip_addresses()
}

/// Finds the NICs that the settings select, or says why there are none.
pub fn discover(settings: &Settings, root: &Path) -> NetResult<Vec<Device>> {
    if settings.mode == Mode::Off {
        return Err("REGATTA_NET is off".to_owned());
    }
    if settings.provider == ProviderChoice::Tcp {
        return Err("REGATTA_FABRIC is off".to_owned());
    }
    let library = library()?;
    let mut why = String::new();
    for (gpu_memory, connection_oriented) in queries(&settings.provider) {
        match devices(library, settings, (*gpu_memory, *connection_oriented), root) {
            Ok(devices) if !devices.is_empty() => return Ok(devices),
            Ok(_) => {}
            Err(error) => why = format!(" ({error})"),
        }
    }
    let available = available(&crate::available_providers()?).join(", ");
    let wanted = match &settings.provider {
        ProviderChoice::Named { provider, domain: None } => format!("provider {provider}"),
        ProviderChoice::Named { provider, domain: Some(domain) } => {
            format!("domain {domain} of provider {provider}")
        }
        _ => "high-speed provider that NCCL has no transport for".to_owned(),
    };
    Err(format!(
        "libfabric has no {wanted} on this node{why}; available, to be named in {PROVIDER_VARIABLE}: \
         {available}"
    ))
}

/// `PROVIDER/DOMAIN` pairs by the names that select them. A layer would select the slower endpoints of
/// [`CONNECTION_ORIENTED`] providers.
fn available(pairs: &[String]) -> Vec<String> {
    let name = |pair: &String| {
        let (provider, domain) = pair.split_once('/').unwrap_or((pair, ""));
        let core = provider.split(';').next().unwrap_or(provider);
        let is_core = CONNECTION_ORIENTED.contains(&core);
        format!("{}/{domain}", if is_core { core } else { provider })
    };
    pairs.iter().map(name).collect::<BTreeSet<_>>().into_iter().collect()
}

/// The queries for providers, in order of preference: whether they need `FI_HMEM`, and `FI_EP_MSG`.
fn queries(choice: &ProviderChoice) -> &'static [(bool, bool)] {
    match choice {
        ProviderChoice::Named { provider, .. }
            if CONNECTION_ORIENTED.contains(&provider.as_str()) =>
        {
            &[(false, true), (false, false)]
        }
        // Software copies memory of GPUs through the host: NCCL's own copies are faster.
        ProviderChoice::Named { provider, .. } if is_software(provider) => &[(false, false)],
        _ => &[(true, false), (false, false)],
    }
}

fn devices(
    library: &'static Library,
    settings: &Settings,
    (gpu_memory, connection_oriented): (bool, bool),
    root: &Path,
) -> NetResult<Vec<Device>> {
    let provider = match &settings.provider {
        ProviderChoice::Named { provider, .. } => Some(provider.as_str()),
        _ => None,
    };
    let (registration, remote_read) = (true, gpu_memory);
    let query = Query {
        provider,
        source: None,
        registration,
        gpu_memory,
        remote_read,
        connection_oriented,
    };
    let infos = library.infos(&query)?;
    let names = infos.names();
    let selected = settings.provider.for_nccl().domains(&names);
    let has_other = selected.iter().any(|index| !interface::is_virtual(&names[*index].1));
    let mut devices = Vec::new();
    for index in selected {
        let (provider, domain) = &names[index];
        let is_unwanted = is_ip(provider)
            && (!interface::matches(domain, settings.interfaces.as_deref())
                || (interface::is_virtual(domain) && has_other && settings.interfaces.is_none()));
        let Some(info) = infos.get(index).filter(|_| !is_unwanted) else { continue };
        devices.push(device(library, (provider, domain), info, gpu_memory, root)?);
    }
    Ok(devices)
}

fn device(
    library: &Library,
    (provider, domain): (&str, &str),
    info: InfoList,
    gpu_memory: bool,
    root: &Path,
) -> NetResult<Device> {
    let Some(entry) = info.iter().next() else { return Err("no fi_info".to_owned()) };
    // SAFETY: the attributes of an fi_info are never null.
    let attributes = unsafe { &*entry.ep_attr };
    let (max_message, is_connection_oriented) =
        (attributes.max_msg_size, attributes.kind == abi::EP_MSG);
    let bits = u64::BITS - attributes.mem_tag_format.leading_zeros();
    if bits < tag::BITS && !is_connection_oriented {
        return Err(format!("{provider} has {bits} tag bits, {} are needed", tag::BITS));
    }
    if max_message < MIN_MAX_MESSAGE {
        return Err(format!("messages of {provider} have at most {max_message} bytes"));
    }
    let nic = nic_attributes(entry);
    let pci_path = match &nic.pci {
        Some(address) => sysfs::pci_device(root, address),
        None if is_ip(provider) => sysfs::interface_device(root, domain),
        None => None,
    };
    let speed = match nic.speed {
        Some(speed) => speed,
        None if is_ip(provider) => sysfs::interface_speed(root, domain).unwrap_or(UNKNOWN_SPEED),
        None if provider.starts_with("shm") => SHM_SPEED,
        None => UNKNOWN_SPEED,
    };
    Ok(Device {
        provider: provider.to_owned(),
        domain: domain.to_owned(),
        guid: guid(nic.pci.as_deref().unwrap_or(domain)),
        pci_path,
        speed,
        gpu_memory,
        dma_buf: gpu_memory && library.has_dma_buf() && takes_dma_buf(provider),
        max_message: max_message.min(MAX_MAX_MESSAGE),
        is_connection_oriented,
        info,
    })
}

/// What libfabric says about the hardware.
struct NicAttributes {
    /// PCI address.
    pci: Option<String>,
    /// Mbit/s.
    speed: Option<u32>,
}

fn nic_attributes(entry: &Info) -> NicAttributes {
    // SAFETY: NULL, or attributes that live as long as the entry.
    let (bus, link) = unsafe {
        let nic = entry.nic.as_ref();
        (nic.and_then(|nic| nic.bus_attr.as_ref()), nic.and_then(|nic| nic.link_attr.as_ref()))
    };
    let pci = bus.filter(|bus| bus.kind == abi::BUS_PCI).map(|bus| {
        format!("{:04x}:{:02x}:{:02x}.{:x}", bus.domain, bus.bus, bus.device, bus.function)
    });
    let speed = link.and_then(|link| u32::try_from(link.speed / 1_000_000).ok());
    NicAttributes { pci, speed: speed.filter(|speed| *speed > 0) }
}

/// FNV-1a.
fn guid(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// One line for the log: provider, NICs, speed, and whether GPUs are accessed directly.
pub fn describe(version: (u32, u32), devices: &[Device]) -> String {
    let (major, minor) = version;
    let provider = devices.first().map_or("none", |device| device.provider.as_str());
    let names: Vec<&str> = devices.iter().map(|device| device.domain.as_str()).collect();
    let unit = if names.len() == 1 { "NIC" } else { "NICs" };
    let mut line = format!("libfabric {major}.{minor}, provider {provider}");
    let _ = write!(line, ", {} {unit} ({})", names.len(), names.join(", "));
    let slowest = devices.iter().map(|device| device.speed).min().unwrap_or(0);
    let fastest = devices.iter().map(|device| device.speed).max().unwrap_or(0);
    let each = if devices.len() > 1 { " each" } else { "" };
    let _ = match slowest == fastest {
        true => write!(line, ", {} Gb/s{each}", gigabits(slowest)),
        false => write!(line, ", {} to {} Gb/s", gigabits(slowest), gigabits(fastest)),
    };
    let direct = match devices.first() {
        Some(device) if device.dma_buf => "yes (dma-buf)".to_owned(),
        Some(device) if device.gpu_memory => "yes".to_owned(),
        _ => format!("no ({provider} does not access memory of GPUs)"),
    };
    let _ = write!(line, ", GPUDirect RDMA: {direct}");
    line
}

fn gigabits(megabits: u32) -> String {
    let gigabits = f64::from(megabits) / 1000.0;
    if megabits.is_multiple_of(1000) { format!("{gigabits:.0}") } else { format!("{gigabits:.1}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_are_listed_by_the_names_that_select_them() {
        let pairs =
            ["net/lo", "net;ofi_rxm/lo", "shm/shm", "tcp;ofi_rxm/lo", "verbs;ofi_rxm/mlx5_0"];
        let listed = available(&pairs.map(str::to_owned));
        assert_eq!(listed, ["net/lo", "shm/shm", "tcp/lo", "verbs;ofi_rxm/mlx5_0"]);
    }
}
