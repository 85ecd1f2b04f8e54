//! Settings and error counters of the NICs.

use std::collections::BTreeMap;

use regatta_discover::{Sysroot, pcie_link};
use regatta_model::{Machine, Nic};

use crate::facts::{NicHealth, NodeFacts};

/// Counters of a network device that indicate a bad link. Drops are normal under load.
const NET_COUNTERS: [&str; 6] = [
    "carrier_down_count",
    "statistics/rx_crc_errors",
    "statistics/rx_errors",
    "statistics/rx_frame_errors",
    "statistics/tx_carrier_errors",
    "statistics/tx_errors",
];

/// Counters of an RDMA port that indicate a bad link.
const RDMA_COUNTERS: [&str; 7] = [
    "counters/excessive_buffer_overrun_errors",
    "counters/link_downed",
    "counters/link_error_recovery",
    "counters/local_link_integrity_errors",
    "counters/port_rcv_errors",
    "counters/symbol_error",
    "hw_counters/rx_icrc_encapsulated",
];

/// The error counters of all NICs, by NIC and counter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NicCounters(BTreeMap<String, BTreeMap<String, u64>>);

/// Reads the error counters now.
pub fn nic_counters(root: &Sysroot, machine: &Machine) -> NicCounters {
    NicCounters(machine.nics.iter().map(|nic| (nic.name.clone(), counters(root, nic))).collect())
}

/// Adds what the error counters increased by between two readings.
pub fn add_new_errors(facts: &mut NodeFacts, before: &NicCounters, after: &NicCounters) {
    for nic in &mut facts.nics {
        let (Some(before), Some(after)) = (before.0.get(&nic.name), after.0.get(&nic.name)) else {
            continue;
        };
        let increase = |(name, now): (&String, &u64)| {
            let new = now.saturating_sub(*before.get(name)?);
            (new > 0).then(|| (name.clone(), new))
        };
        nic.new_errors = after.iter().filter_map(increase).collect();
    }
}

pub(super) fn collect(root: &Sysroot, machine: &Machine) -> Vec<NicHealth> {
    machine.nics.iter().map(|nic| health(root, nic)).collect()
}

fn health(root: &Sysroot, nic: &Nic) -> NicHealth {
    let link = nic.pci.as_deref().map(|address| pcie_link(root, address)).unwrap_or_default();
    NicHealth {
        name: nic.name.clone(),
        mtu: root.read_value(&format!("/sys/class/net/{}/mtu", nic.name)),
        pcie_speed: link.speed,
        pcie_width: link.width,
        errors: counters(root, nic).into_iter().filter(|(_, count)| *count > 0).collect(),
        new_errors: Vec::new(),
    }
}

fn counters(root: &Sysroot, nic: &Nic) -> BTreeMap<String, u64> {
    let net = format!("/sys/class/net/{}", nic.name);
    // RDMA ports count from 1, `dev_port` from 0.
    let port = 1 + root.read_value::<u32>(&format!("{net}/dev_port")).unwrap_or(0);
    let rdma = nic.fabric_device.as_ref();
    let rdma = rdma.map(|device| format!("/sys/class/infiniband/{device}/ports/{port}"));
    let read = |dir: &str, file: &str| {
        let value: u64 = root.read_value(&format!("{dir}/{file}"))?;
        Some((file.rsplit('/').next()?.to_owned(), value))
    };
    let of_net = NET_COUNTERS.iter().filter_map(|file| read(&net, file));
    let of_rdma = RDMA_COUNTERS.iter().filter_map(|file| read(rdma.as_ref()?, file));
    of_net.chain(of_rdma).collect()
}

#[cfg(test)]
mod tests {
    use regatta_model::NicKind;

    use super::*;
    use crate::testing::TempTree;

    #[test]
    fn settings_and_new_errors_are_read() {
        let tree = TempTree::new();
        tree.file("/sys/class/net/ib0/mtu", "4092\n");
        tree.file("/sys/class/net/ib0/dev_port", "1\n");
        tree.file("/sys/class/net/ib0/statistics/rx_errors", "0\n");
        tree.file("/sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error", "99\n");
        let port = "/sys/class/infiniband/mlx5_0/ports/2";
        tree.file(&format!("{port}/counters/symbol_error"), "5\n");
        tree.file(&format!("{port}/counters/link_downed"), "1\n");
        let fabric_device = Some("mlx5_0".to_owned());
        let nic = Nic { fabric_device, ..Nic::new("ib0", NicKind::InfiniBand) };
        let machine = Machine { nics: vec![nic], ..Machine::default() };

        let mut facts = NodeFacts { nics: collect(&tree.root(), &machine), ..NodeFacts::default() };
        let named = |list: &[(&str, u64)]| -> Vec<(String, u64)> {
            list.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
        };
        assert_eq!(facts.nics[0].mtu, Some(4092));
        assert_eq!(facts.nics[0].errors, named(&[("link_downed", 1), ("symbol_error", 5)]));

        let before = nic_counters(&tree.root(), &machine);
        tree.file(&format!("{port}/counters/symbol_error"), "12\n");
        add_new_errors(&mut facts, &before, &nic_counters(&tree.root(), &machine));
        assert_eq!(facts.nics[0].new_errors, named(&[("symbol_error", 7)]));
    }
}
