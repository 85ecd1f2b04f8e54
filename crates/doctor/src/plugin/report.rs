//! What a library is as a plug-in, and which releases would use it.

use regatta_discover::loader::Dependency;
use regatta_model::document::Document;
use serde::{Deserialize, Serialize};

use super::environment::SelectedPlugin;
use super::kind::{Interface, PluginKind, version_list};
use super::notes::notes;
use super::releases::Release;

/// Whether a library loads as NCCL loads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "result", content = "reason")]
pub enum LoadResult {
    /// It does.
    Loaded,
    /// The loader's error.
    Failed(String),
    /// Its initialisers ended the process.
    Crashed(String),
    /// Its initialisers did not end in time.
    TimedOut(String),
    /// It is no library for this machine.
    NotTried(String),
}

impl LoadResult {
    /// Why it does not load.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Loaded => None,
            Self::Failed(why) | Self::Crashed(why) | Self::TimedOut(why) | Self::NotTried(why) => {
                Some(why)
            }
        }
    }
}

/// What is known of a library from its file and from loading it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryFacts {
    /// The file.
    pub path: String,
    /// Its architecture, as in `uname -m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// Its name for other libraries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soname: Option<String>,
    /// The oldest glibc that it runs with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glibc: Option<String>,
    /// Kinds of plug-ins that it exports.
    pub interfaces: Vec<Interface>,
    /// Other interfaces of NCCL: `collnet v8`.
    pub other_interfaces: Vec<String>,
    /// Libraries that it needs, directly or by another one.
    pub dependencies: Vec<Dependency>,
    /// Whether it loads.
    pub load: LoadResult,
}

impl LibraryFacts {
    /// A file that is not loaded.
    pub fn unusable(path: String, reason: String) -> Self {
        Self {
            path,
            architecture: None,
            soname: None,
            glibc: None,
            interfaces: Vec::new(),
            other_interfaces: Vec::new(),
            dependencies: Vec::new(),
            load: LoadResult::NotTried(reason),
        }
    }

    /// The libraries that are missing. What the loader loads misses nothing.
    pub fn missing(&self) -> impl Iterator<Item = &Dependency> {
        let loaded = self.load == LoadResult::Loaded;
        self.dependencies.iter().filter(move |d| !loaded && d.path.is_none())
    }
}

/// What a release does with a kind that a library exports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindUse {
    /// The kind.
    pub kind: PluginKind,
    /// First and last version that the release looks for; `None` if it does not have this kind.
    pub needs: Option<(u32, u32)>,
    /// The version that the release would use.
    pub used: Option<u32>,
    /// Why it would use none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What a release does with a library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseUse {
    /// The release: `NCCL 2.28`.
    pub release: String,
    /// Distributions that ship it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ships_in: String,
    /// The kinds that the library exports.
    pub kinds: Vec<KindUse>,
}

impl ReleaseUse {
    /// Whether the release would use the library for a kind.
    pub fn is_used(&self) -> bool {
        self.kinds.iter().any(|kind| kind.used.is_some())
    }
}

/// A library and the releases that would use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryReport {
    /// Facts.
    #[serde(flatten)]
    pub facts: LibraryFacts,
    /// Whether it loads and at least one of the releases uses it.
    pub usable: bool,
    /// The verdict in a sentence.
    pub verdict: String,
    /// The releases.
    pub releases: Vec<ReleaseUse>,
    /// Advice.
    pub notes: Vec<String>,
}

impl LibraryReport {
    /// Whether it loads and at least one of the releases uses it for this kind.
    pub fn is_usable_for(&self, kind: PluginKind) -> bool {
        let uses = |used: &KindUse| used.kind == kind && used.used.is_some();
        self.facts.load == LoadResult::Loaded
            && self.releases.iter().any(|release| release.kinds.iter().any(uses))
    }
}

/// The report of `regatta plugin check`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginReport {
    /// What the environment selects, if no library was named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub selected: Vec<SelectedPlugin>,
    /// The libraries.
    pub libraries: Vec<LibraryReport>,
}

impl Document for PluginReport {
    const KIND: &'static str = "plugin-check";
    const VERSION: u32 = 1;
    const WRITTEN_BY: &'static str = "regatta plugin check --json";
}

/// The version of a kind that a release would use, or why none.
pub fn kind_use(release: &Release, interface: &Interface) -> KindUse {
    let (kind, name) = (interface.kind, interface.kind.name());
    let Some(supported) = release.supported(kind) else {
        let reason = Some(format!("{} has no {name} plug-ins", release.name()));
        return KindUse { kind, needs: None, used: None, reason };
    };
    let (first, last) = (*supported.start(), *supported.end());
    let used = interface.versions.iter().rev().find(|version| supported.contains(version)).copied();
    let reason = used.is_none().then(|| {
        let exported = version_list(&interface.versions);
        let needed =
            if first == last { format!("v{first}") } else { format!("v{first} to v{last}") };
        format!("exports {name} {exported}, {} needs {needed}", release.name())
    });
    KindUse { kind, needs: Some((first, last)), used, reason }
}

/// Judges a library for these releases: all known ones, or the one that the job has.
pub fn judge(facts: LibraryFacts, releases: &[Release]) -> LibraryReport {
    let release_use = |release: &Release| ReleaseUse {
        release: release.name(),
        ships_in: release.ships_in.to_owned(),
        kinds: facts.interfaces.iter().map(|interface| kind_use(release, interface)).collect(),
    };
    let releases: Vec<ReleaseUse> = releases.iter().map(release_use).collect();
    let is_used = releases.iter().any(ReleaseUse::is_used);
    let usable = facts.load == LoadResult::Loaded && is_used;
    let (verdict, notes) = (verdict(&facts, &releases), notes(&facts));
    LibraryReport { facts, usable, verdict, releases, notes }
}

fn verdict(facts: &LibraryFacts, releases: &[ReleaseUse]) -> String {
    if facts.interfaces.is_empty() && !matches!(facts.load, LoadResult::NotTried(_)) {
        return "exports none of ncclNetPlugin_v*, ncclTunerPlugin_v* and ncclProfiler_v*"
            .to_owned();
    }
    let missing: Vec<&str> = facts.missing().map(|missing| missing.name.as_str()).collect();
    match (&facts.load, &missing[..]) {
        (LoadResult::Failed(_), [one]) => return format!("does not load: {one} is missing"),
        (LoadResult::Failed(_), [_, ..]) => {
            return format!("does not load: {} are missing", missing.join(", "));
        }
        (LoadResult::NotTried(why), _) => return why.clone(),
        (result, _) => {
            if let Some(why) = result.reason() {
                return format!("does not load: {why}");
            }
        }
    }
    match releases {
        [one] => verdict_for_release(one),
        all => match all.iter().filter(|release| release.is_used()).count() {
            0 => "loads, but no known release uses the versions that it exports".to_owned(),
            used if used == all.len() => "loads, and all known releases use it".to_owned(),
            used => format!("loads, and {used} of {} known releases use it", all.len()),
        },
    }
}

fn verdict_for_release(release: &ReleaseUse) -> String {
    let name = |kind: &KindUse| Some(format!("{} v{}", kind.kind.name(), kind.used?));
    let used: Vec<String> = release.kinds.iter().filter_map(name).collect();
    if used.is_empty() {
        let reasons: Vec<&str> = release.kinds.iter().filter_map(|k| k.reason.as_deref()).collect();
        return format!("loads, but is not used: {}", reasons.join("; "));
    }
    format!("loads, and {} uses {}", release.release, used.join(", "))
}
