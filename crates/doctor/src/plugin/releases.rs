//! Releases of NCCL and RCCL with the interface versions that they look for.
//!
//! From the symbols that each release passes to `dlsym`. A library looks for its newest version
//! first, so the newest version that both sides know is used.

use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::kind::PluginKind;

/// A library of collectives that opens plug-ins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CollectiveLibrary {
    /// NVIDIA's.
    Nccl,
    /// AMD's.
    Rccl,
}

impl CollectiveLibrary {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Nccl, Self::Rccl];
}

/// Major and minor version.
type Version = (u32, u32);

/// First and last version of an interface; (0, 0): the release does not have it.
type Interfaces = (u32, u32);

/// One release, or several that look for the same versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// The library.
    pub library: CollectiveLibrary,
    /// First release: of NCCL itself, or of ROCm for RCCL.
    first: Version,
    /// Last release.
    last: Version,
    /// The version of NCCL that it is, or that RCCL is compatible with.
    nccl: Version,
    /// Distributions that ship it.
    pub ships_in: &'static str,
    net: Interfaces,
    tuner: Interfaces,
    profiler: Interfaces,
}

const NONE: Interfaces = (0, 0);
/// Releases after the last known one are like it.
const LATER: Version = (u32::MAX, u32::MAX);

const fn nccl(
    minor: u32,
    ships_in: &'static str,
    net: Interfaces,
    tuner: Interfaces,
    profiler: Interfaces,
) -> Release {
    let version = (2, minor);
    let library = CollectiveLibrary::Nccl;
    Release {
        library,
        first: version,
        last: version,
        nccl: version,
        ships_in,
        net,
        tuner,
        profiler,
    }
}

const fn rccl(
    (first, last): (Version, Version),
    nccl_minor: u32,
    net: Interfaces,
    tuner: Interfaces,
    profiler: Interfaces,
) -> Release {
    let (library, nccl, ships_in) = (CollectiveLibrary::Rccl, (2, nccl_minor), "");
    Release { library, first, last, nccl, ships_in, net, tuner, profiler }
}

/// All known releases: those of NCCL, then those of RCCL, in ascending order.
pub const RELEASES: [Release; 21] = [
    nccl(18, "PyTorch 2.1", (4, 6), NONE, NONE),
    nccl(19, "PyTorch 2.2", (5, 7), (1, 1), NONE),
    nccl(20, "PyTorch 2.3, 2.4", (5, 8), (1, 1), NONE),
    nccl(21, "PyTorch 2.5, 2.6", (5, 8), (2, 2), NONE),
    nccl(22, "", (5, 8), (2, 3), NONE),
    nccl(23, "", (5, 8), (2, 3), (1, 1)),
    nccl(24, "", (5, 9), (2, 4), (1, 2)),
    nccl(25, "", (5, 9), (2, 4), (1, 2)),
    nccl(26, "PyTorch 2.7", (6, 10), (2, 4), (1, 3)),
    nccl(27, "PyTorch 2.8, 2.9, 2.10 (CUDA 12)", (6, 10), (2, 4), (1, 4)),
    nccl(28, "PyTorch 2.10 (CUDA 13), 2.11", (6, 11), (2, 5), (1, 5)),
    nccl(29, "PyTorch 2.12, 2.13", (6, 11), (2, 5), (1, 6)),
    nccl(30, "", (6, 12), (2, 6), (1, 6)),
    nccl(31, "", (6, 12), (2, 6), (1, 7)),
    rccl(((6, 0), (6, 1)), 18, (4, 6), NONE, NONE),
    rccl(((6, 2), (6, 2)), 20, (5, 8), (1, 1), NONE),
    rccl(((6, 3), (6, 3)), 21, (5, 8), (2, 2), NONE),
    rccl(((6, 4), (6, 4)), 22, (5, 8), (2, 3), NONE),
    rccl(((7, 0), (7, 0)), 26, (6, 10), (2, 4), (1, 3)),
    rccl(((7, 1), (7, 2)), 27, (6, 10), (2, 4), (1, 4)),
    rccl(((7, 11), LATER), 28, (6, 11), (2, 5), (1, 5)),
];

impl Release {
    /// The versions of a kind that it looks for; `None` if it does not have this kind.
    pub fn supported(&self, kind: PluginKind) -> Option<RangeInclusive<u32>> {
        let (first, last) = match kind {
            PluginKind::Net => self.net,
            PluginKind::Tuner => self.tuner,
            PluginKind::Profiler => self.profiler,
        };
        (last > 0).then_some(first..=last)
    }

    /// Whether it looks for a kind in the library of the net plug-in, if the kind's own is not found.
    pub fn looks_in_net_library(&self, kind: PluginKind) -> bool {
        match kind {
            PluginKind::Net => true,
            PluginKind::Tuner => self.nccl >= (2, 21),
            PluginKind::Profiler => self.nccl >= (2, 28),
        }
    }

    /// The name in reports: `NCCL 2.28`, `RCCL of ROCm 7.1 to 7.2`.
    pub fn name(&self) -> String {
        let text = |(major, minor): Version| format!("{major}.{minor}");
        let (first, last) = (text(self.first), text(self.last));
        match self.library {
            CollectiveLibrary::Nccl => format!("NCCL {first}"),
            CollectiveLibrary::Rccl if self.last == LATER => {
                format!("RCCL of ROCm {first} and later")
            }
            CollectiveLibrary::Rccl if first == last => format!("RCCL of ROCm {first}"),
            CollectiveLibrary::Rccl => format!("RCCL of ROCm {first} to {last}"),
        }
    }

    /// The release of NCCL with this version, `2.28.9`.
    pub fn of_nccl(version: &str) -> Option<&'static Self> {
        let version = major_minor(version)?;
        of_library(CollectiveLibrary::Nccl).find(|release| release.nccl == version)
    }

    /// The release of RCCL in this version of ROCm, `6.4.1`.
    pub fn of_rocm(version: &str) -> Option<&'static Self> {
        let version = major_minor(version)?;
        of_library(CollectiveLibrary::Rccl).find(|r| (r.first..=r.last).contains(&version))
    }

    /// The release of RCCL with this version of its own, `2.22.3`: that of the NCCL it follows.
    pub fn of_rccl(version: &str) -> Option<&'static Self> {
        let version = major_minor(version)?;
        let is_it = |release: &&Self| {
            release.nccl == version || release.last == LATER && version > release.nccl
        };
        of_library(CollectiveLibrary::Rccl).find(is_it)
    }
}

fn of_library(library: CollectiveLibrary) -> impl Iterator<Item = &'static Release> {
    RELEASES.iter().filter(move |release| release.library == library)
}

fn major_minor(version: &str) -> Option<Version> {
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// Why a text names no known release.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no known release {0:?}: give NCCL 2.18 to 2.31 as 2.28 or 2.28.9, RCCL by its ROCm (6.0 to 6.4, \
     7.0 to 7.2, 7.11 and later) as rocm-6.4"
)]
pub struct UnknownRelease(pub String);

/// Parses `2.28`, `nccl-2.28.9`, `rocm-6.4`, `rccl-2.22.3`.
impl FromStr for &'static Release {
    type Err = UnknownRelease;

    fn from_str(text: &str) -> Result<Self, UnknownRelease> {
        let lower = text.trim().to_ascii_lowercase();
        let after = |prefix: &str| Some(lower.strip_prefix(prefix)?.trim_start_matches(['-', ' ']));
        let found = if let Some(version) = after("rocm") {
            Release::of_rocm(version)
        } else if let Some(version) = after("rccl") {
            Release::of_rccl(version)
        } else {
            Release::of_nccl(after("nccl").unwrap_or(&lower))
        };
        found.ok_or_else(|| UnknownRelease(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(release: &Release, kind: PluginKind) -> Option<(u32, u32)> {
        release.supported(kind).map(|range| (*range.start(), *range.end()))
    }

    #[test]
    fn releases_are_found_by_their_versions() {
        let name = |text: &str| text.parse::<&'static Release>().map(Release::name);
        assert_eq!(name("2.28.9").unwrap(), "NCCL 2.28");
        assert_eq!(name("NCCL 2.18.1").unwrap(), "NCCL 2.18");
        assert_eq!(name("rocm-6.4.1").unwrap(), "RCCL of ROCm 6.4");
        assert_eq!(name("rocm7.2").unwrap(), "RCCL of ROCm 7.1 to 7.2");
        assert_eq!(name("rocm-8.0").unwrap(), "RCCL of ROCm 7.11 and later");
        assert_eq!(name("rccl-2.22.3").unwrap(), "RCCL of ROCm 6.4");
        assert_eq!(name("rccl-2.30.4").unwrap(), "RCCL of ROCm 7.11 and later");
        for unknown in ["2.17", "2.32", "2", "x", "rocm-5.7", "rocm-7.3", "rccl-2.25", ""] {
            assert_eq!(name(unknown), Err(UnknownRelease(unknown.to_owned())));
        }
    }

    #[test]
    fn supported_versions_follow_the_sources() {
        use PluginKind::{Net, Profiler, Tuner};
        let of = |text: &str| text.parse::<&'static Release>().unwrap();
        assert_eq!(range(of("2.27.5"), Net), Some((6, 10)));
        assert_eq!(range(of("2.31"), Profiler), Some((1, 7)));
        assert_eq!(range(of("2.22"), Profiler), None);
        assert_eq!(range(of("rocm-6.3"), Net), Some((5, 8)));
        assert_eq!(range(of("rocm-6.3"), Tuner), Some((2, 2)));
        assert_eq!(range(of("rocm-7.12"), Net), Some((6, 11)));
        assert!(of("2.28").looks_in_net_library(Profiler));
        assert!(
            !of("2.27").looks_in_net_library(Profiler) && of("2.27").looks_in_net_library(Tuner)
        );
        assert!(!of("rocm-6.2").looks_in_net_library(Tuner));
    }

    #[test]
    fn versions_never_decrease_with_releases() {
        for library in CollectiveLibrary::ALL {
            let releases: Vec<&Release> = of_library(library).collect();
            for pair in releases.windows(2) {
                assert!(pair[0].last < pair[1].first && pair[0].nccl < pair[1].nccl);
                for kind in PluginKind::ALL {
                    let [old, new] = [pair[0], pair[1]].map(|r| range(r, kind).unwrap_or_default());
                    assert!(old.0 <= new.0 && old.1 <= new.1, "{}", pair[1].name());
                }
            }
        }
    }
}
