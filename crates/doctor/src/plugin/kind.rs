//! Kinds of plug-ins and the symbols that export them.

use serde::{Deserialize, Serialize};

use super::releases::CollectiveLibrary;

/// A kind of plug-in. Each has a variable that selects its library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PluginKind {
    /// The network: `ncclNetPlugin_vN`.
    Net,
    /// Choice of algorithm and protocol: `ncclTunerPlugin_vN`.
    Tuner,
    /// Events of collectives: `ncclProfiler_vN`.
    Profiler,
}

impl PluginKind {
    /// All kinds, in the order in which NCCL loads them.
    pub const ALL: [Self; 3] = [Self::Net, Self::Tuner, Self::Profiler];

    /// The name in file names and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Net => "net",
            Self::Tuner => "tuner",
            Self::Profiler => "profiler",
        }
    }

    /// The environment variable that selects the library.
    pub fn variable(self) -> &'static str {
        match self {
            Self::Net => "NCCL_NET_PLUGIN",
            Self::Tuner => "NCCL_TUNER_PLUGIN",
            Self::Profiler => "NCCL_PROFILER_PLUGIN",
        }
    }

    /// The exported symbol without its version.
    pub fn symbol_prefix(self) -> &'static str {
        match self {
            Self::Net => "ncclNetPlugin_v",
            Self::Tuner => "ncclTunerPlugin_v",
            Self::Profiler => "ncclProfiler_v",
        }
    }

    /// The exported symbol of a version.
    pub fn symbol(self, version: u32) -> String {
        format!("{}{version}", self.symbol_prefix())
    }

    /// File names without `.so`; RCCL has changed those of tuner and profiler between releases.
    pub fn file_prefixes(self, library: CollectiveLibrary) -> &'static [&'static str] {
        match (library, self) {
            (CollectiveLibrary::Nccl, Self::Net) => &["libnccl-net"],
            (CollectiveLibrary::Nccl, Self::Tuner) => &["libnccl-tuner"],
            (CollectiveLibrary::Nccl, Self::Profiler) => &["libnccl-profiler"],
            (CollectiveLibrary::Rccl, Self::Net) => &["librccl-net"],
            (CollectiveLibrary::Rccl, Self::Tuner) => &["librccl-tuner", "libnccl-tuner"],
            (CollectiveLibrary::Rccl, Self::Profiler) => &["librccl-profiler", "libnccl-profiler"],
        }
    }
}

/// The versions of one kind that a library exports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// The kind.
    pub kind: PluginKind,
    /// Exported versions in ascending order, at least one.
    pub versions: Vec<u32>,
    /// The name that the newest table with a name has, as in NCCL's log; known after loading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// The kinds that these symbols export.
pub fn interfaces(symbols: &[&str]) -> Vec<Interface> {
    let of_kind = |kind: PluginKind| {
        let versions = versions(symbols, kind.symbol_prefix());
        (!versions.is_empty()).then_some(Interface { kind, versions, name: None })
    };
    PluginKind::ALL.into_iter().filter_map(of_kind).collect()
}

/// Interfaces that NCCL looks for in the library of the net plug-in or in libraries of their own.
const OTHER_INTERFACES: [(&str, &str); 4] = [
    ("collnet", "ncclCollNetPlugin_v"),
    ("gin", "ncclGinPlugin_v"),
    ("rma", "ncclRmaPlugin_v"),
    ("env", "ncclEnvPlugin_v"),
];

/// Other interfaces of NCCL that these symbols export: `collnet v8`.
pub fn other_interfaces(symbols: &[&str]) -> Vec<String> {
    OTHER_INTERFACES.into_iter().flat_map(|(name, prefix)| named(symbols, name, prefix)).collect()
}

/// The versions after a prefix with the name of their interface: `collnet v8`.
pub(crate) fn named(symbols: &[&str], name: &str, prefix: &str) -> Vec<String> {
    versions(symbols, prefix).iter().map(|version| format!("{name} v{version}")).collect()
}

/// The versions after a prefix, in ascending order.
pub(crate) fn versions(symbols: &[&str], prefix: &str) -> Vec<u32> {
    let version = |symbol: &&str| {
        let digits = symbol.strip_prefix(prefix)?;
        // `parse` also accepts a sign and leading zeros, which are other symbols.
        let version: u32 = digits.parse().ok()?;
        (version.to_string() == digits).then_some(version)
    };
    let mut found: Vec<u32> = symbols.iter().filter_map(version).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Versions as text: `v6 v7`.
pub fn version_list(versions: &[u32]) -> String {
    let versions: Vec<String> = versions.iter().map(|version| format!("v{version}")).collect();
    versions.join(" ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn kinds_and_versions_come_from_symbols() {
        let symbols = [
            "ncclNetPlugin_v10",
            "ncclNetPlugin_v9",
            "ncclNetPlugin_v",
            "ncclNetPlugin_v+8",
            "ncclNetPlugin_v08",
            "ncclProfiler_v4",
            "ncclCollNetPlugin_v8",
            "ncclGinPlugin_v11",
            "my_ncclNetPlugin_v3",
        ];
        let found = interfaces(&symbols);
        let expected = [(PluginKind::Net, vec![9, 10]), (PluginKind::Profiler, vec![4])];
        let found: Vec<_> = found.into_iter().map(|i| (i.kind, i.versions)).collect();
        assert_eq!(found, expected);
        assert_eq!(other_interfaces(&symbols), ["collnet v8", "gin v11"]);
    }

    proptest! {
        #[test]
        fn exported_versions_round_trip(
            mut exported in prop::collection::btree_set(any::<u32>(), 0..8),
            kind in prop::sample::select(&PluginKind::ALL[..]),
        ) {
            let symbols: Vec<String> = exported.iter().rev().map(|v| kind.symbol(*v)).collect();
            let symbols: Vec<&str> = symbols.iter().map(String::as_str).collect();
            for interface in interfaces(&symbols) {
                prop_assert_eq!(interface.kind, kind);
                for version in interface.versions {
                    prop_assert!(exported.remove(&version));
                }
            }
            prop_assert!(exported.is_empty());
        }
    }
}
