//! NVML, NVIDIA's management library, loaded at run time.

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml, cuda_driver_version_major, cuda_driver_version_minor};
use regatta_model::{GpuLink, LinkKind, PciDevice};

use super::nvidia::{self, NvidiaGpu};
use crate::pci;

/// NVML's view of the node.
pub(super) struct NvmlReport {
    pub(super) gpus: Vec<NvidiaGpu>,
    pub(super) driver: Option<String>,
    pub(super) cuda: Option<String>,
    pub(super) notes: Vec<String>,
}

/// The remote end of an NVLink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NvLinkRemote {
    /// The GPU at this address.
    Gpu(String),
    /// An NVSwitch.
    Switch,
    /// A CPU, or a GPU that is not visible to this process.
    Other,
}

/// Upper bound; NVML rejects higher link indices before that.
const MAX_LINKS: u32 = 36;

/// Queries NVML; an error if it cannot be loaded or initialised.
pub(super) fn read(devices: &[PciDevice]) -> Result<NvmlReport, NvmlError> {
    let nvml = Nvml::init()?;
    let cuda = nvml.sys_cuda_driver_version().ok().map(|version| {
        let minor = cuda_driver_version_minor(version);
        format!("{}.{minor}", cuda_driver_version_major(version))
    });
    let driver = nvml.sys_driver_version().ok();
    let mut report = NvmlReport { gpus: Vec::new(), driver, cuda, notes: Vec::new() };
    for index in 0..nvml.device_count()? {
        match nvml.device_by_index(index).and_then(|device| gpu(&device, devices)) {
            Ok(gpu) => report.gpus.push(gpu),
            Err(error) => report.notes.push(format!("NVML cannot read GPU {index}: {error}")),
        }
    }
    report.gpus.sort_by_key(|g| pci::parse_address(&g.address));
    Ok(report)
}

fn gpu(device: &Device<'_>, devices: &[PciDevice]) -> Result<NvidiaGpu, NvmlError> {
    let info = device.pci_info()?;
    Ok(NvidiaGpu {
        address: pci::format_address(info.domain, info.bus, info.device, 0),
        name: Some(device.name()?),
        uuid: device.uuid().ok(),
        memory_bytes: device.memory_info().ok().map(|m| m.total),
        minor: device.minor_number().ok(),
        mig: device.mig_mode().is_ok_and(|mode| mode.current != 0),
        remotes: remotes(device, info.pci_device_id, devices),
        ..NvidiaGpu::default()
    })
}

/// The remote ends of the active links, identified by address, because the wrapper's query for the
/// remote device type loses the answer.
fn remotes(device: &Device<'_>, device_id: u32, devices: &[PciDevice]) -> Vec<NvLinkRemote> {
    let mut found = Vec::new();
    for number in 0..MAX_LINKS {
        let link = device.link_wrapper_for(number);
        match link.is_active() {
            Ok(true) => {}
            Err(NvmlError::InvalidArg | NvmlError::NotSupported) => break,
            Ok(false) | Err(_) => continue,
        }
        found.push(match link.remote_pci_info() {
            Ok(far) => {
                let address = pci::format_address(far.domain, far.bus, far.device, 0);
                remote(address, far.pci_device_id == device_id, devices)
            }
            Err(_) => NvLinkRemote::Other,
        });
    }
    found
}

/// The type of a remote end. An NVSwitch need not be on this node's PCI bus: it is hidden from
/// guests, and in a rack-scale system it is in another enclosure. A device that is neither a GPU
/// nor of another vendor is therefore a switch.
fn remote(address: String, same_model: bool, devices: &[PciDevice]) -> NvLinkRemote {
    match pci::find(devices, &address) {
        Some(device) if device.vendor != nvidia::VENDOR => NvLinkRemote::Other,
        Some(device) if nvidia::is_gpu(device) => NvLinkRemote::Gpu(address),
        Some(_) => NvLinkRemote::Switch,
        None if same_model => NvLinkRemote::Other,
        None => NvLinkRemote::Switch,
    }
}

/// The links between the GPUs, by index.
pub(super) fn links(gpus: &[NvidiaGpu]) -> Vec<GpuLink> {
    let switched: Vec<u32> = gpus.iter().map(|g| link_count(g, &NvLinkRemote::Switch)).collect();
    let mut links = Vec::new();
    for (a, left) in gpus.iter().enumerate() {
        for (b, right) in gpus.iter().enumerate().skip(a + 1) {
            // Both ends should agree; one of them may be inaccessible.
            let direct = link_count(left, &NvLinkRemote::Gpu(right.address.clone()))
                .max(link_count(right, &NvLinkRemote::Gpu(left.address.clone())));
            let count = direct.max(switched[a].min(switched[b]));
            if count > 0 {
                let (a, b, count, kind) = (a as u32, b as u32, Some(count), LinkKind::NvLink);
                links.push(GpuLink { a, b, kind, count, megabytes_per_second: None });
            }
        }
    }
    links
}

fn link_count(gpu: &NvidiaGpu, far: &NvLinkRemote) -> u32 {
    gpu.remotes.iter().filter(|r| *r == far).count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(address: &str, remotes: Vec<NvLinkRemote>) -> NvidiaGpu {
        NvidiaGpu { address: address.to_owned(), remotes, ..NvidiaGpu::default() }
    }

    fn pairs(gpus: &[NvidiaGpu]) -> Vec<(u32, u32, Option<u32>)> {
        links(gpus).iter().map(|l| (l.a, l.b, l.count)).collect()
    }

    #[test]
    fn nvswitch_links_all_its_gpus() {
        let on = |address, links| gpu(address, vec![NvLinkRemote::Switch; links]);
        let gpus = [on("0000:18:00.0", 18), on("0000:2a:00.0", 17), on("0000:3a:00.0", 0)];
        assert_eq!(pairs(&gpus), [(0, 1, Some(17))]);
    }

    #[test]
    fn direct_links_count_from_either_end() {
        let far = |address: &str| NvLinkRemote::Gpu(address.to_owned());
        let gpus = [
            gpu("0000:03:00.0", vec![far("0000:41:00.0"); 4]),
            gpu("0000:41:00.0", vec![NvLinkRemote::Other, far("0000:82:00.0")]),
            gpu("0000:82:00.0", vec![]),
        ];
        assert_eq!(pairs(&gpus), [(0, 1, Some(4)), (1, 2, Some(1))]);
    }

    #[test]
    fn remote_ends_are_classified() {
        let device = |address: &str, vendor, class| {
            let address = address.to_owned();
            PciDevice { address, path: vec![], class, vendor, device: 0, numa: None }
        };
        let devices = [
            device("0000:18:00.0", nvidia::VENDOR, 0x030200),
            device("0000:05:00.0", nvidia::VENDOR, 0x068000),
            device("0006:00:00.0", 0x1014, 0x068000),
        ];
        let at = |address: &str, same| remote(address.to_owned(), same, &devices);
        assert_eq!(at("0000:18:00.0", true), NvLinkRemote::Gpu("0000:18:00.0".to_owned()));
        assert_eq!(at("0000:05:00.0", false), NvLinkRemote::Switch);
        assert_eq!(at("0006:00:00.0", false), NvLinkRemote::Other, "the NPU of a POWER9");
        assert_eq!(at("0000:99:00.0", true), NvLinkRemote::Other, "a GPU outside of this guest");
        assert_eq!(at("0000:99:00.0", false), NvLinkRemote::Switch);
    }
}
