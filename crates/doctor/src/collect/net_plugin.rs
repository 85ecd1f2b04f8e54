//! The network plug-in of NCCL or RCCL: which interface versions it exports.

use regatta_discover::Sysroot;
use regatta_discover::loader::elf::exported_symbols;
use regatta_model::Machine;
use regatta_model::hash::fnv1a;

use crate::facts::NetPlugin;
use crate::plugin::PluginKind;
use crate::plugin::kind::{named, versions};

/// Larger files are not plug-ins.
const MAX_LEN: u64 = 1 << 30;

/// The plug-in that the job would load, from its file. [`NetPlugin::load_error`] is set only if the
/// file is unreadable or no library.
pub(super) fn collect(root: &Sysroot, machine: &Machine) -> Option<NetPlugin> {
    let path = machine.software.net_plugin.clone()?;
    let file = root.resolve(&path).unwrap_or_else(|| path.clone());
    let read = || -> Result<Vec<u8>, std::io::Error> {
        let file = root.path(&file);
        match std::fs::metadata(&file)?.len() > MAX_LEN {
            true => Err(std::io::Error::other("larger than 1 GiB")),
            false => std::fs::read(file),
        }
    };
    Some(match read() {
        Ok(bytes) => inspect(path, &bytes),
        Err(error) => {
            NetPlugin { path, load_error: Some(error.to_string()), ..NetPlugin::default() }
        }
    })
}

fn inspect(path: String, bytes: &[u8]) -> NetPlugin {
    let digest = Some(format!("{:016x}", fnv1a(bytes.iter().copied())));
    let plugin = NetPlugin { path, digest, ..NetPlugin::default() };
    match exported_symbols(bytes) {
        Ok(symbols) => NetPlugin {
            net_versions: versions(&symbols, PluginKind::Net.symbol_prefix()),
            collnet_versions: versions(&symbols, "ncclCollNetPlugin_v"),
            other_interfaces: other_interfaces(&symbols),
            ..plugin
        },
        Err(error) => NetPlugin { load_error: Some(error.to_string()), ..plugin },
    }
}

fn other_interfaces(symbols: &[&str]) -> Vec<String> {
    let of_kind = |kind: PluginKind| named(symbols, kind.name(), kind.symbol_prefix());
    [PluginKind::Tuner, PluginKind::Profiler].into_iter().flat_map(of_kind).collect()
}

#[cfg(test)]
mod tests {
    use super::super::libraries::library;
    use super::*;
    use crate::testing::TempTree;

    fn plugin(tree: &TempTree) -> NetPlugin {
        let mut machine = Machine::default();
        machine.software.net_plugin = Some("/opt/lib/libnccl-net.so".to_owned());
        collect(&tree.root(), &machine).unwrap()
    }

    #[test]
    fn interface_versions_are_read() {
        let tree = TempTree::new();
        let symbols = [
            ("ncclNetPlugin_v10", true),
            ("ncclNetPlugin_v8", true),
            ("ncclNetPlugin_v9", false),
            ("ncclCollNetPlugin_v8", true),
            ("ncclTunerPlugin_v3", true),
            ("ncclProfiler_v4", true),
        ];
        tree.file("/opt/lib/libnccl-net-ofi.so.1", library(&symbols));
        tree.link("/opt/lib/libnccl-net.so", "libnccl-net-ofi.so.1");
        let plugin = plugin(&tree);
        assert_eq!(
            (&plugin.net_versions[..], &plugin.collnet_versions[..]),
            (&[8, 10][..], &[8][..])
        );
        assert_eq!(plugin.other_interfaces, ["tuner v3", "profiler v4"]);
        assert!(plugin.digest.is_some() && plugin.load_error.is_none());
    }

    #[test]
    fn unreadable_plugins_have_an_error() {
        let tree = TempTree::new();
        assert!(plugin(&tree).load_error.unwrap().contains("No such file"));
        tree.file("/opt/lib/libnccl-net.so", "INPUT(libnccl-net-ofi.so)");
        assert_eq!(plugin(&tree).load_error.as_deref(), Some("not an ELF file"));
    }
}
