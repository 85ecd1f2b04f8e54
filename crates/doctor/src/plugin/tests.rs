//! Tests of the judgement of a library.

use proptest::prelude::*;
use regatta_discover::loader::Dependency;

use super::kind::interfaces;
use super::releases::{RELEASES, Release};
use super::report::{LibraryFacts, LibraryReport, LoadResult, PluginReport, judge};
use super::{Interface, PluginKind};

fn facts(symbols: &[&str], load: LoadResult) -> LibraryFacts {
    let unread = LibraryFacts::unusable("/opt/libp.so".to_owned(), String::new());
    LibraryFacts { interfaces: interfaces(symbols), load, ..unread }
}

fn used(report: &LibraryReport, release: &str, kind: PluginKind) -> Option<u32> {
    let release = report.releases.iter().find(|r| r.release == release).unwrap();
    release.kinds.iter().find(|k| k.kind == kind).unwrap().used
}

fn missing(name: &str) -> Dependency {
    Dependency { name: name.to_owned(), path: None, needed_by: "libp.so".to_owned() }
}

#[test]
fn the_newest_common_version_is_used() {
    let symbols =
        ["ncclNetPlugin_v8", "ncclNetPlugin_v11", "ncclTunerPlugin_v3", "ncclProfiler_v4"];
    let report = judge(facts(&symbols, LoadResult::Loaded), &RELEASES);
    assert_eq!(used(&report, "NCCL 2.28", PluginKind::Net), Some(11));
    assert_eq!(used(&report, "NCCL 2.27", PluginKind::Net), Some(8));
    assert_eq!(used(&report, "NCCL 2.19", PluginKind::Net), None);
    assert_eq!(used(&report, "NCCL 2.26", PluginKind::Profiler), None);
    assert_eq!(used(&report, "NCCL 2.27", PluginKind::Profiler), Some(4));
    assert_eq!(used(&report, "RCCL of ROCm 6.3", PluginKind::Net), Some(8));
    assert_eq!(used(&report, "RCCL of ROCm 6.3", PluginKind::Tuner), None);
    assert!(report.usable);
    assert_eq!(report.verdict, "loads, and 18 of 21 known releases use it");
}

#[test]
fn the_reason_names_exported_and_needed_versions() {
    let release: &Release = "2.28".parse().unwrap();
    let verdict = |symbols: &[&str]| {
        let report = judge(facts(symbols, LoadResult::Loaded), std::slice::from_ref(release));
        (report.usable, report.verdict)
    };
    let expected = "loads, but is not used: exports net v4 v5, NCCL 2.28 needs v6 to v11";
    assert_eq!(verdict(&["ncclNetPlugin_v4", "ncclNetPlugin_v5"]), (false, expected.to_owned()));
    let expected = "loads, and NCCL 2.28 uses net v9, profiler v5".to_owned();
    assert_eq!(verdict(&["ncclNetPlugin_v9", "ncclProfiler_v5"]), (true, expected));
    let old: &Release = "2.20".parse().unwrap();
    let one = facts(&["ncclTunerPlugin_v3", "ncclProfiler_v1"], LoadResult::Loaded);
    let report = judge(one, std::slice::from_ref(old));
    let expected = "loads, but is not used: exports tuner v3, NCCL 2.20 needs v1; NCCL 2.20 has no \
                    profiler plug-ins";
    assert_eq!(report.verdict, expected);
}

#[test]
fn only_unknown_newer_versions_are_not_used() {
    let report = judge(facts(&["ncclNetPlugin_v99"], LoadResult::Loaded), &RELEASES);
    assert!(!report.usable);
    assert_eq!(report.verdict, "loads, but no known release uses the versions that it exports");
}

#[test]
fn libraries_that_do_not_load_are_not_usable() {
    let verdict = |dependencies: Vec<Dependency>, load: LoadResult| {
        let facts = LibraryFacts { dependencies, ..facts(&["ncclNetPlugin_v8"], load) };
        let report = judge(facts, &RELEASES);
        assert!(!report.usable);
        report.verdict
    };
    let failed = || LoadResult::Failed("libfabric.so.1: cannot open".to_owned());
    let one = vec![missing("libfabric.so.1")];
    assert_eq!(verdict(one, failed()), "does not load: libfabric.so.1 is missing");
    let two = vec![missing("liba.so"), missing("libb.so")];
    assert_eq!(verdict(two, failed()), "does not load: liba.so, libb.so are missing");
    let crashed = LoadResult::Crashed("SIGSEGV".to_owned());
    assert_eq!(verdict(vec![], crashed), "does not load: SIGSEGV");
    let other = LoadResult::NotTried("not an ELF file".to_owned());
    assert_eq!(verdict(vec![], other), "not an ELF file");
}

#[test]
fn what_the_loader_loads_misses_nothing() {
    let dependencies = vec![missing("libcudart.so.12")];
    let facts = LibraryFacts { dependencies, ..facts(&["ncclNetPlugin_v8"], LoadResult::Loaded) };
    assert_eq!(facts.missing().count(), 0);
    assert!(judge(facts, &RELEASES).usable);
    let none = judge(self::facts(&["main"], LoadResult::Loaded), &RELEASES);
    assert!(!none.usable && none.verdict.starts_with("exports none of"), "{}", none.verdict);
}

#[test]
fn notes_say_what_to_set() {
    let notes = |symbols: &[&str], dependencies: Vec<Dependency>, load: LoadResult| {
        judge(LibraryFacts { dependencies, ..facts(symbols, load) }, &RELEASES).notes
    };
    let all = notes(&["ncclNetPlugin_v8", "ncclProfiler_v4"], vec![], LoadResult::Loaded);
    let select = "select it by NCCL_NET_PLUGIN=/opt/libp.so NCCL_PROFILER_PLUGIN=/opt/libp.so";
    assert_eq!(all[0], select);
    assert!(all[1].contains("also used for the profiler (NCCL 2.28 and later)"), "{all:?}");
    let failed = || LoadResult::Failed(String::new());
    let cuda = notes(&["ncclTunerPlugin_v3"], vec![missing("libcudart.so.12")], failed());
    assert!(cuda.len() == 1 && cuda[0].contains("has loaded libcudart.so.12 before"), "{cuda:?}");
    let other = notes(&["ncclTunerPlugin_v3"], vec![missing("libfabric.so.1")], failed());
    assert!(other.len() == 1 && other[0].contains("LD_LIBRARY_PATH, on all nodes"), "{other:?}");
}

fn any_interfaces() -> impl Strategy<Value = Vec<Interface>> {
    let versions = prop::collection::btree_set(0u32..20, 1..6);
    let kinds =
        prop::collection::btree_map(prop::sample::select(&PluginKind::ALL[..]), versions, 0..3);
    kinds.prop_map(|kinds| {
        let interface = |(kind, versions): (PluginKind, std::collections::BTreeSet<u32>)| {
            Interface { kind, versions: versions.into_iter().collect(), name: None }
        };
        kinds.into_iter().map(interface).collect()
    })
}

proptest! {
    #[test]
    fn used_versions_are_known_to_both_sides(interfaces in any_interfaces()) {
        let facts = LibraryFacts { interfaces, ..facts(&[], LoadResult::Loaded) };
        let report = judge(facts, &RELEASES);
        for (release, found) in RELEASES.iter().zip(&report.releases) {
            for (kind, interface) in found.kinds.iter().zip(&report.facts.interfaces) {
                let common = |v: &&u32| release.supported(kind.kind).is_some_and(|r| r.contains(v));
                prop_assert_eq!(kind.used, interface.versions.iter().filter(common).max().copied());
                prop_assert_eq!(kind.used.is_none(), kind.reason.is_some());
            }
        }
        let report = PluginReport { selected: vec![], libraries: vec![report] };
        let json = regatta_model::document::to_json(&report).unwrap();
        prop_assert_eq!(regatta_model::document::from_json::<PluginReport>(&json).unwrap(), report);
    }
}
