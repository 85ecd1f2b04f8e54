//! The PCI tree: host bridges, root ports, switches and devices.

use regatta_model::{Distance, GpuVendor, Machine, NicKind};

use super::cpu::OnlineCpus;
use super::{IntelDriver, SysfsOptions, SysfsTree};

/// A device or bridge.
pub struct Device {
    pub address: String,
    /// Parents, host bridge first.
    path: Vec<String>,
    model: DeviceModel,
    numa: Option<u32>,
}

impl Device {
    /// Its folder below /sys/devices.
    pub fn folder(&self) -> String {
        format!("/sys/devices/{}/{}", self.path.join("/"), self.address)
    }
}

/// All devices, and the indices of the GPUs and NICs.
#[derive(Default)]
pub struct PciTree {
    devices: Vec<Device>,
    gpus: Vec<usize>,
    nics: Vec<usize>,
    /// Number of host bridges in domain 0.
    roots: u32,
    no_numa: bool,
}

/// A device model, before it has an address.
#[derive(Clone, Copy)]
struct DeviceModel {
    class: u32,
    vendor: u16,
    device: u16,
    driver: &'static str,
}

const fn model(class: u32, vendor: u16, device: u16, driver: &'static str) -> DeviceModel {
    DeviceModel { class, vendor, device, driver }
}

const ROOT_PORT: DeviceModel = model(0x060400, 0x1022, 0x14ab, "pcieport");
const SWITCH_PORT: DeviceModel = model(0x060400, 0x1000, 0xc030, "pcieport");
const SLINGSHOT: DeviceModel = model(0x020000, 0x17db, 0x0501, "cxi_ss1");
const CONNECTX: DeviceModel = model(0x020700, 0x15b3, 0x1021, "mlx5_core");
const MANAGEMENT: DeviceModel = model(0x020000, 0x8086, 0x1533, "igb");
const SCREEN: DeviceModel = model(0x030000, 0x1a03, 0x2000, "ast");
const DISK: DeviceModel = model(0x010802, 0x144d, 0xa80a, "nvme");

fn gpu_model(vendor: GpuVendor, name: &str, options: &SysfsOptions) -> DeviceModel {
    match vendor {
        GpuVendor::Nvidia if name.contains("A100") => model(0x030200, 0x10de, 0x20b0, "nvidia"),
        GpuVendor::Nvidia if name.contains("GH200") => model(0x030200, 0x10de, 0x2342, "nvidia"),
        GpuVendor::Nvidia => model(0x030200, 0x10de, 0x2330, "nvidia"),
        GpuVendor::Amd if name.contains("MI300A") => model(0x120000, 0x1002, 0x74a0, "amdgpu"),
        GpuVendor::Amd => model(0x038000, 0x1002, 0x7408, "amdgpu"),
        GpuVendor::Intel => {
            let driver = if options.intel == IntelDriver::Xe { "xe" } else { "i915" };
            model(0x038000, 0x8086, 0x0bd5, driver)
        }
    }
}

fn nic_model(kind: NicKind) -> DeviceModel {
    if kind == NicKind::Slingshot { SLINGSHOT } else { CONNECTX }
}

impl PciTree {
    /// Builds the tree: cards in the order of their GPUs, each with its attached NICs, then the other
    /// NICs, then management devices.
    pub fn new(machine: &Machine, options: &SysfsOptions) -> PciTree {
        let mut tree = PciTree { no_numa: options.no_pci_numa, ..PciTree::default() };
        let grace = machine.cpu_model.as_deref().is_some_and(|m| m.contains("Grace"));
        let mut nics: Vec<Option<usize>> = vec![None; machine.nics.len()];
        let cards = machine.gpus.iter().map(|g| g.card + 1).max().unwrap_or(0);
        for card in 0..cards {
            let gpus: Vec<_> = machine.gpus.iter().filter(|g| g.card == card).collect();
            let attached: Vec<usize> = (0..machine.nics.len())
                .filter(|&n| gpus.iter().any(|g| g.nic_distance[n] == Distance::Switch))
                .collect();
            // Tiles of one card are one PCI device, GCDs are one each.
            let distinct = if gpus[0].vendor == GpuVendor::Intel { 1 } else { gpus.len() };
            let gpu_model = gpu_model(gpus[0].vendor, &gpus[0].name, options);
            let mut models = vec![gpu_model; distinct];
            // Grace has a PCI domain per device: NICs are local by NUMA node only.
            if !grace {
                models.extend(attached.iter().map(|&n| nic_model(machine.nics[n].kind)));
            }
            let placed = tree.root(grace.then_some(9 + 16 * card), &models, gpus[0].numa);
            tree.gpus.extend((0..gpus.len()).map(|i| placed[i.min(distinct - 1)]));
            if !grace {
                attached.iter().zip(&placed[distinct..]).for_each(|(&n, &d)| nics[n] = Some(d));
            }
        }
        for (n, nic) in machine.nics.iter().enumerate() {
            let domain = grace.then_some(1 + 16 * n as u32);
            let own = |tree: &mut PciTree| tree.root(domain, &[nic_model(nic.kind)], nic.numa)[0];
            nics[n] = nics[n].or_else(|| Some(own(&mut tree)));
        }
        tree.nics = nics.into_iter().flatten().collect();
        tree.root(Some(0x10000), &[MANAGEMENT, SCREEN, DISK], Some(0));
        tree
    }

    pub fn gpu(&self, index: usize) -> &Device {
        &self.devices[self.gpus[index]]
    }

    pub fn nic(&self, index: usize) -> &Device {
        &self.devices[self.nics[index]]
    }

    /// The management Ethernet port.
    pub fn management(&self) -> &Device {
        self.devices.iter().find(|d| d.model.driver == "igb").unwrap()
    }

    fn add(
        &mut self,
        address: String,
        path: &[String],
        model: DeviceModel,
        numa: Option<u32>,
    ) -> usize {
        let numa = numa.filter(|_| !self.no_numa);
        self.devices.push(Device { address, path: path.to_vec(), model, numa });
        self.devices.len() - 1
    }

    /// Adds a host bridge with one root port; several devices share it through a switch. Buses are
    /// numbered depth first, like the kernel does.
    fn root(
        &mut self,
        domain: Option<u32>,
        models: &[DeviceModel],
        numa: Option<u32>,
    ) -> Vec<usize> {
        // Domain 0 has a host bridge every 16 buses.
        let (domain, bus) = match domain {
            Some(domain) => (domain, 0),
            None => (0, 16 * self.roots),
        };
        self.roots += u32::from(domain == 0);
        let name = |bus: u32, device: u32| format!("{domain:04x}:{bus:02x}:{device:02x}.0");
        let mut path = vec![format!("pci{domain:04x}:{bus:02x}")];
        self.add(name(bus, 1), &path, ROOT_PORT, numa);
        path.push(name(bus, 1));
        if let [only] = models {
            return vec![self.add(name(bus + 1, 0), &path, *only, numa)];
        }
        self.add(name(bus + 1, 0), &path, SWITCH_PORT, numa);
        path.push(name(bus + 1, 0));
        let mut placed = Vec::new();
        for (port, model) in (0..).zip(models) {
            self.add(name(bus + 2, port), &path, SWITCH_PORT, numa);
            let below: Vec<String> = path.iter().cloned().chain([name(bus + 2, port)]).collect();
            placed.push(self.add(name(bus + 3 + port, 0), &below, *model, numa));
        }
        placed
    }

    pub fn write(&self, tree: &SysfsTree, cpus: &OnlineCpus<'_>) {
        for device in &self.devices {
            let folder = device.folder();
            let file = |name: &str, text: String| tree.file(&format!("{folder}/{name}"), text);
            file("class", format!("{:#08x}", device.model.class));
            file("vendor", format!("{:#06x}", device.model.vendor));
            file("device", format!("{:#06x}", device.model.device));
            file("revision", "0x01".to_owned());
            file("numa_node", device.numa.map_or(-1, i64::from).to_string());
            // Without a NUMA node, all CPUs are local.
            let local = device.numa.map_or_else(|| cpus.online.clone(), |n| cpus.of_node(n));
            file("local_cpulist", local.to_string());
            file("current_link_speed", "16.0 GT/s PCIe".to_owned());
            file("current_link_width", "16".to_owned());
            let driver = format!("/sys/bus/pci/drivers/{}", device.model.driver);
            tree.folder(&driver);
            tree.link(&format!("{folder}/driver"), &driver);
            tree.link(&format!("/sys/bus/pci/devices/{}", device.address), &folder);
        }
    }
}
