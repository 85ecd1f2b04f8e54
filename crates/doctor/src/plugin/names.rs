//! The file names that NCCL and RCCL give to the dynamic loader for a plug-in.

use super::kind::PluginKind;
use super::releases::CollectiveLibrary;

/// The names that a library of collectives tries for the value of a kind's variable, `None` if it is
/// not set, in the order in which the loader gets them: the value itself, then as a suffix of the default
/// name. None for the value `none`: no library is opened.
pub fn names(kind: PluginKind, library: CollectiveLibrary, value: Option<&str>) -> Vec<String> {
    let prefixes = kind.file_prefixes(library);
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return prefixes.iter().map(|prefix| format!("{prefix}.so")).collect();
    };
    if value.eq_ignore_ascii_case("none") {
        return Vec::new();
    }
    let mut names = vec![value.to_owned()];
    if is_suffix(value) {
        names.extend(prefixes.iter().map(|prefix| format!("{prefix}-{value}.so")));
    }
    names
}

/// The names that any variable of these libraries would try for a value.
pub fn all_names(libraries: &[CollectiveLibrary], value: &str) -> Vec<String> {
    let mut names = vec![value.to_owned()];
    for library in libraries {
        for kind in PluginKind::ALL {
            let tried = self::names(kind, *library, Some(value));
            tried.into_iter().for_each(|name| {
                if !names.contains(&name) {
                    names.push(name);
                }
            });
        }
    }
    names
}

/// Neither a path nor a file name of a library.
fn is_suffix(value: &str) -> bool {
    let is_file_name = value.starts_with("lib") && value.ends_with(".so");
    !is_file_name && !value.contains('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_paths_file_names_or_suffixes() {
        use CollectiveLibrary::{Nccl, Rccl};
        use PluginKind::{Net, Profiler, Tuner};
        assert_eq!(names(Net, Nccl, None), ["libnccl-net.so"]);
        assert_eq!(names(Tuner, Nccl, Some("")), ["libnccl-tuner.so"]);
        assert_eq!(names(Net, Rccl, None), ["librccl-net.so"]);
        assert_eq!(names(Net, Nccl, Some("ofi")), ["ofi", "libnccl-net-ofi.so"]);
        assert_eq!(names(Net, Nccl, Some("/opt/x.so")), ["/opt/x.so"]);
        assert_eq!(names(Net, Nccl, Some("libx.so")), ["libx.so"]);
        let versioned = ["libx.so.1", "libnccl-profiler-libx.so.1.so"];
        assert_eq!(names(Profiler, Nccl, Some("libx.so.1")), versioned);
        assert!(names(Net, Nccl, Some("None")).is_empty(), "disabled");
    }

    #[test]
    fn a_name_is_tried_for_all_kinds_once() {
        let names = all_names(&[CollectiveLibrary::Nccl], "ofi");
        let kinds = ["net", "tuner", "profiler"].map(|kind| format!("libnccl-{kind}-ofi.so"));
        assert_eq!(names, [&["ofi".to_owned()], &kinds[..]].concat());
        assert_eq!(all_names(&[CollectiveLibrary::Rccl], "./a.so"), ["./a.so"]);
    }
}
