//! The interfaces of a node that are compared and tested. No I/O.

use regatta_model::machine::best_nics;
use regatta_model::{LinkState, Nic, NicKind};

/// Interfaces of containers, bridges and tunnels, by the start of their name: they differ between
/// healthy nodes.
const LOCAL_NAMES: [&str; 17] = [
    "docker",
    "br-",
    "virbr",
    "veth",
    "cni",
    "flannel",
    "cali",
    "lxc",
    "lxd",
    "tun",
    "tap",
    "podman",
    "kube",
    "dummy",
    "vnet",
    "wg",
    "tailscale",
];

/// The NICs of the fabric: those of the best kind that is up, without interfaces of the node itself.
pub(crate) fn fabric(nics: &[Nic]) -> Vec<&Nic> {
    let is_local = |nic: &&Nic| {
        nic.kind == NicKind::Virtual && LOCAL_NAMES.iter().any(|name| nic.name.starts_with(name))
    };
    let up = nics.iter().filter(|nic| nic.state != LinkState::Down && !is_local(nic));
    best_nics(up.collect())
}
