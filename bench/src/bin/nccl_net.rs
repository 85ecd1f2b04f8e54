//! `regatta bench all-reduce --backend nccl` over NCCL's own sockets and over the network plug-in,
//! alternating: the ratio per size. Fails if a size of at least 64 KiB is slower beyond noise.
//!
//! `nccl_net PROVIDER [ROUNDS] [-- OPTIONS]` measures with a libfabric provider, such as `shm` or `tcp`, and
//! with these options of `regatta bench`, such as `--ranks 4 -b 8 -e 256M -f 4 -n 20`. Ranks that share a GPU
//! need `--launch "--wrap 'env NCCL_HOSTID={rank}'"`. Uses the `regatta` binary next to this program, and the
//! plug-in that it contains.

use anyhow::{Result, ensure};
use regatta_benchmarks::nccl_compare::{Comparison, arguments, install_plugins, print};
use regatta_nccl_tuning::Function;

/// Smaller messages are not bound by bandwidth.
const MIN_BYTES: u64 = 64 << 10;

fn main() -> Result<()> {
    let (provider, rounds, options) = arguments("usage: nccl_net PROVIDER [ROUNDS] [-- OPTIONS]")?;
    let folder = install_plugins()?;
    let plugin = folder.path().join("libnccl-net-regatta.so");
    let peer = vec![("NCCL_NET_PLUGIN", Some("none".into())), ("NCCL_NET", Some("Socket".into()))];
    let own = vec![
        ("NCCL_NET_PLUGIN", Some(plugin.into())),
        ("NCCL_NET", Some("Regatta".into())),
        ("REGATTA_NET", Some("require".into())),
        ("REGATTA_FABRIC", Some(provider.into())),
    ];
    let functions = vec![Function::AllReduce];
    let compared = Comparison { functions, options, peer, own }.run(rounds)?;
    print(&compared, "Socket", "Regatta");
    let slower = compared.iter().filter(|one| one.is_slower && one.bytes >= MIN_BYTES).count();
    ensure!(slower == 0, "the plug-in is slower than NCCL's sockets at {slower} sizes");
    Ok(())
}
