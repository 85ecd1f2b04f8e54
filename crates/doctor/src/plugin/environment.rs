//! The plug-ins that the variables of a job select.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::kind::PluginKind;
use super::names;
use super::releases::{CollectiveLibrary, Release};
use super::report::LibraryReport;

/// What the environment selects for a kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelectedPlugin {
    /// The kind.
    pub kind: PluginKind,
    /// The value of its variable, if that is set; `NCCL_NET_PLUGIN` may be a list, of which this is one.
    pub value: Option<String>,
    /// The names that the loader gets, in order; none if the value is `none`.
    pub names: Vec<String>,
    /// The file that the loader finds.
    pub path: Option<String>,
    /// Whether the file is that of the net plug-in, because the kind has no library of its own.
    pub in_net_library: bool,
    /// Why nothing is used although the variable asks for it, or a library is found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl SelectedPlugin {
    /// Whether the variable disables the kind.
    pub fn is_disabled(&self) -> bool {
        self.names.is_empty()
    }

    /// Why nothing is used although the variable asks for it, or a library is found.
    pub fn find_problem(&self, libraries: &[LibraryReport]) -> Option<String> {
        let Some(path) = self.path.as_ref().filter(|_| !self.in_net_library) else {
            let value = self.value.as_ref().filter(|_| !self.is_disabled())?;
            let names = self.names.join(", ");
            return Some(format!("{}={value}: not found as {names}", self.kind.variable()));
        };
        let report = libraries.iter().find(|library| library.facts.path == *path)?;
        let kind = self.kind.name();
        if report.is_usable_for(self.kind) {
            return None;
        }
        let exports = report.facts.interfaces.iter().any(|i| i.kind == self.kind);
        Some(match (report.facts.load.reason(), exports) {
            (Some(_), _) | (None, true) => format!("{kind}: {path} {}", report.verdict),
            (None, false) => format!("{kind}: {path} exports no {kind} plug-in"),
        })
    }
}

/// The plug-ins that an environment selects for a release, or for any. `find` is the loader's search.
pub fn selected_plugins(
    release: Option<&Release>,
    variable: impl Fn(&str) -> Option<String>,
    find: impl Fn(&str) -> Option<String>,
) -> Vec<SelectedPlugin> {
    let libraries = release.map_or(CollectiveLibrary::ALL.to_vec(), |r| vec![r.library]);
    let mut found: Vec<SelectedPlugin> = Vec::new();
    for kind in PluginKind::ALL {
        let value = variable(kind.variable()).filter(|value| !value.is_empty());
        for value in values(kind, value) {
            let names = names(kind, &libraries, value.as_deref());
            let path = names.iter().find_map(|name| find(name));
            let in_net_library = false;
            found.push(SelectedPlugin { kind, value, names, path, in_net_library, problem: None });
        }
    }
    let is_net = |selected: &SelectedPlugin| selected.kind == PluginKind::Net;
    let net = found.iter().filter(|selected| is_net(selected)).find_map(|net| net.path.clone());
    for selected in found.iter_mut().filter(|selected| !is_net(selected)) {
        let looks = release.is_none_or(|release| release.looks_in_net_library(selected.kind));
        if selected.path.is_none() && !selected.is_disabled() && looks {
            selected.in_net_library = net.is_some();
            selected.path.clone_from(&net);
        }
    }
    found
}

/// The plug-ins in the value of a variable: NCCL 2.27 and later take a list of net plug-ins.
fn values(kind: PluginKind, value: Option<String>) -> Vec<Option<String>> {
    match value {
        Some(list) if kind == PluginKind::Net && list.contains(',') => {
            let names = list.split(',').filter(|name| !name.is_empty());
            names.map(|name| Some(name.to_owned())).collect()
        }
        value => vec![value],
    }
}

fn names(kind: PluginKind, libraries: &[CollectiveLibrary], value: Option<&str>) -> Vec<String> {
    let tried = libraries.iter().flat_map(|library| names::names(kind, *library, value));
    let mut seen = HashSet::new();
    tried.filter(|name| seen.insert(name.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::kind::interfaces;
    use crate::plugin::report::{LibraryFacts, LoadResult, judge};
    use crate::plugin::{Interface, RELEASES};

    fn selected(release: Option<&str>, variables: &[(&str, &str)]) -> Vec<SelectedPlugin> {
        let release: Option<&Release> = release.map(|text| text.parse().unwrap());
        let variable = |name: &str| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let files = ["libnccl-net.so", "libnccl-net-ofi.so", "/opt/libprof.so"];
        let find = |name: &str| files.contains(&name).then(|| format!("/lib/{name}"));
        selected_plugins(release, variable, find)
    }

    fn paths(selected: &[SelectedPlugin]) -> Vec<Option<&str>> {
        selected.iter().map(|selected| selected.path.as_deref()).collect()
    }

    #[test]
    fn default_names_are_searched_without_variables() {
        let all = selected(Some("2.28"), &[]);
        assert_eq!(paths(&all), [Some("/lib/libnccl-net.so"); 3]);
        assert!(!all[0].in_net_library && all[1].in_net_library && all[2].in_net_library);
        // Before 2.28, the profiler is not looked for in the net plug-in.
        let all = selected(Some("2.27"), &[]);
        assert_eq!(all[2].path, None);
        assert_eq!(all[2].names, ["libnccl-profiler.so"]);
        assert_eq!(selected(Some("rocm-6.4"), &[])[0].names, ["librccl-net.so"]);
        assert_eq!(selected(None, &[])[0].names, ["libnccl-net.so", "librccl-net.so"]);
    }

    #[test]
    fn variables_select_and_disable() {
        let variables = [
            ("NCCL_NET_PLUGIN", "ofi"),
            ("NCCL_TUNER_PLUGIN", "none"),
            ("NCCL_PROFILER_PLUGIN", "/opt/libprof.so"),
        ];
        let all = selected(Some("2.28"), &variables);
        let expected = [Some("/lib/libnccl-net-ofi.so"), None, Some("/lib//opt/libprof.so")];
        assert_eq!(paths(&all), expected);
        assert!(all[1].is_disabled() && all[1].find_problem(&[]).is_none());
        let list = selected(Some("2.28"), &[("NCCL_NET_PLUGIN", "gone,ofi")]);
        assert_eq!(paths(&list)[..2], [None, Some("/lib/libnccl-net-ofi.so")]);
        assert_eq!(list.len(), 4);
        let problem = list[0].find_problem(&[]).unwrap();
        assert_eq!(problem, "NCCL_NET_PLUGIN=gone: not found as gone, libnccl-net-gone.so");
        // The net plug-in replaces a library that is not found, which is still a problem.
        let tuner = &selected(None, &[("NCCL_TUNER_PLUGIN", "/gone.so")])[1];
        assert!(tuner.in_net_library);
        assert!(
            tuner.find_problem(&[]).unwrap().starts_with("NCCL_TUNER_PLUGIN=/gone.so: not found")
        );
    }

    #[test]
    fn a_found_library_must_be_usable_for_its_kind() {
        let problem = |interfaces: Vec<Interface>, load: LoadResult| {
            let facts = LibraryFacts::unusable("/lib/libnccl-net.so".to_owned(), String::new());
            let report = judge(LibraryFacts { interfaces, load, ..facts }, &RELEASES);
            let all = selected(Some("2.28"), &[]);
            assert_eq!(all[1].find_problem(std::slice::from_ref(&report)), None, "only looked for");
            all[0].find_problem(&[report])
        };
        let net = || interfaces(&["ncclNetPlugin_v8"]);
        assert_eq!(problem(net(), LoadResult::Loaded), None);
        let tuner = interfaces(&["ncclTunerPlugin_v3"]);
        let expected = "net: /lib/libnccl-net.so exports no net plug-in";
        assert_eq!(problem(tuner, LoadResult::Loaded).unwrap(), expected);
        let expected = "net: /lib/libnccl-net.so does not load: SIGSEGV";
        assert_eq!(problem(net(), LoadResult::Crashed("SIGSEGV".to_owned())).unwrap(), expected);
    }
}
