//! What NVML, NVIDIA's management library, says. It is opened at run time.

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml, cuda_driver_version_major, cuda_driver_version_minor};
use regatta_model::{GpuLink, LinkKind, PciDevice};

use super::nvidia;
use crate::pci;

/// What NVML tells of the node.
pub(super) struct Report {
    pub(super) gpus: Vec<NvmlGpu>,
    pub(super) driver: Option<String>,
    pub(super) cuda: Option<String>,
    pub(super) notes: Vec<String>,
}

/// What NVML tells of a GPU.
pub(super) struct NvmlGpu {
    pub(super) address: String,
    pub(super) name: String,
    pub(super) uuid: Option<String>,
    pub(super) memory_bytes: Option<u64>,
    pub(super) minor: Option<u32>,
    pub(super) mig: bool,
    /// The far ends of its active NVLinks, one entry a link.
    pub(super) remotes: Vec<Remote>,
}

/// The far end of an NVLink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Remote {
    /// A GPU at this address.
    Gpu(String),
    /// A switch that joins all GPUs.
    Switch,
    /// A processor, or a GPU that this process cannot see.
    Other,
}

/// No GPU has more links; NVML refuses higher numbers before that.
const MAX_LINKS: u32 = 36;

/// Asks NVML for everything; an error if it cannot be opened or does not start.
pub(super) fn read(devices: &[PciDevice]) -> Result<Report, NvmlError> {
    let nvml = Nvml::init()?;
    let mut report = Report {
        gpus: Vec::new(),
        driver: nvml.sys_driver_version().ok(),
        cuda: None,
        notes: Vec::new(),
    };
    report.cuda = nvml.sys_cuda_driver_version().ok().map(|version| {
        let (major, minor) =
            (cuda_driver_version_major(version), cuda_driver_version_minor(version));
        format!("{major}.{minor}")
    });
    for index in 0..nvml.device_count()? {
        match nvml.device_by_index(index).and_then(|device| gpu(&device, devices)) {
            Ok(gpu) => report.gpus.push(gpu),
            Err(error) => report.notes.push(format!("NVML cannot read GPU {index}: {error}")),
        }
    }
    report.gpus.sort_by_key(|g| pci::key(&g.address));
    Ok(report)
}

fn gpu(device: &Device<'_>, devices: &[PciDevice]) -> Result<NvmlGpu, NvmlError> {
    let info = device.pci_info()?;
    Ok(NvmlGpu {
        address: pci::address(info.domain, info.bus, info.device, 0),
        name: device.name()?,
        uuid: device.uuid().ok(),
        memory_bytes: device.memory_info().ok().map(|m| m.total),
        minor: device.minor_number().ok(),
        mig: device.mig_mode().is_ok_and(|mode| mode.current != 0),
        remotes: remotes(device, info.pci_device_id, devices),
    })
}

/// The far ends of the active links. Their addresses tell what they are; the wrapper's question
/// for the remote device's type loses the answer.
fn remotes(device: &Device<'_>, own_model: u32, devices: &[PciDevice]) -> Vec<Remote> {
    let mut found = Vec::new();
    for number in 0..MAX_LINKS {
        let link = device.link_wrapper_for(number);
        match link.is_active() {
            Ok(true) => {}
            Ok(false) => continue,
            Err(NvmlError::InvalidArg | NvmlError::NotSupported) => break,
            Err(_) => continue,
        }
        found.push(match link.remote_pci_info() {
            Ok(far) => {
                let address = pci::address(far.domain, far.bus, far.device, 0);
                remote(address, far.pci_device_id == own_model, devices)
            }
            Err(_) => Remote::Other,
        });
    }
    found
}

/// What is at the far end. A switch need not be on this node's PCI bus: it is hidden from guests,
/// and in a rack-scale system it is in another box. So what is neither a GPU nor another
/// vendor's device is a switch.
fn remote(address: String, same_model: bool, devices: &[PciDevice]) -> Remote {
    match pci::find(devices, &address) {
        Some(device) if device.vendor != nvidia::VENDOR => Remote::Other,
        Some(device) if nvidia::is_gpu(device) => Remote::Gpu(address),
        Some(_) => Remote::Switch,
        None if same_model => Remote::Other,
        None => Remote::Switch,
    }
}

/// The links between the GPUs, numbered by their position.
pub(super) fn links(gpus: &[NvmlGpu]) -> Vec<GpuLink> {
    let switched: Vec<u32> = gpus.iter().map(|g| count(g, &Remote::Switch)).collect();
    let mut links = Vec::new();
    for (a, left) in gpus.iter().enumerate() {
        for (b, right) in gpus.iter().enumerate().skip(a + 1) {
            // Both ends should tell the same; one of them may be refused to us.
            let direct = count(left, &Remote::Gpu(right.address.clone()))
                .max(count(right, &Remote::Gpu(left.address.clone())));
            let count = direct.max(switched[a].min(switched[b]));
            if count > 0 {
                links.push(GpuLink {
                    a: a as u32,
                    b: b as u32,
                    kind: LinkKind::NvLink,
                    count: Some(count),
                    megabytes_per_second: None,
                });
            }
        }
    }
    links
}

fn count(gpu: &NvmlGpu, far: &Remote) -> u32 {
    gpu.remotes.iter().filter(|r| *r == far).count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(address: &str, remotes: Vec<Remote>) -> NvmlGpu {
        NvmlGpu {
            address: address.to_owned(),
            name: "NVIDIA A100".to_owned(),
            uuid: None,
            memory_bytes: None,
            minor: None,
            mig: false,
            remotes,
        }
    }

    fn pairs(gpus: &[NvmlGpu]) -> Vec<(u32, u32, Option<u32>)> {
        links(gpus).iter().map(|l| (l.a, l.b, l.count)).collect()
    }

    #[test]
    fn a_switch_joins_all_gpus_on_it() {
        let on = |address, links| gpu(address, vec![Remote::Switch; links]);
        let gpus = [on("0000:18:00.0", 18), on("0000:2a:00.0", 17), on("0000:3a:00.0", 0)];
        assert_eq!(pairs(&gpus), [(0, 1, Some(17))]);
    }

    #[test]
    fn direct_links_are_counted_from_either_end() {
        let far = |address: &str| Remote::Gpu(address.to_owned());
        let gpus = [
            gpu("0000:03:00.0", vec![far("0000:41:00.0"); 4]),
            gpu("0000:41:00.0", vec![Remote::Other, far("0000:82:00.0")]),
            gpu("0000:82:00.0", vec![]),
        ];
        assert_eq!(pairs(&gpus), [(0, 1, Some(4)), (1, 2, Some(1))]);
    }

    #[test]
    fn far_ends_are_told_apart() {
        let device = |address: &str, vendor, class| PciDevice {
            address: address.to_owned(),
            path: Vec::new(),
            class,
            vendor,
            device: 0,
            numa: None,
        };
        let devices = [
            device("0000:18:00.0", nvidia::VENDOR, 0x030200),
            device("0000:05:00.0", nvidia::VENDOR, 0x068000),
            device("0006:00:00.0", 0x1014, 0x068000),
        ];
        let at = |address: &str, same| remote(address.to_owned(), same, &devices);
        assert_eq!(at("0000:18:00.0", true), Remote::Gpu("0000:18:00.0".to_owned()));
        assert_eq!(at("0000:05:00.0", false), Remote::Switch);
        assert_eq!(at("0006:00:00.0", false), Remote::Other, "the NPU of a POWER9");
        assert_eq!(at("0000:99:00.0", true), Remote::Other, "a GPU outside this guest");
        assert_eq!(at("0000:99:00.0", false), Remote::Switch);
    }
}
