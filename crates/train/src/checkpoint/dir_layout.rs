//! Names in a checkpoint directory. No I/O.

use std::path::{Path, PathBuf};

/// The manifest.
pub const MANIFEST: &str = "checkpoint.json";
/// Its checksum, in the format of `sha256sum`.
pub(super) const MANIFEST_SUM: &str = "checkpoint.json.sha256";
/// Lock file of the writing job.
pub(super) const LOCK: &str = "writer.lock";

/// The role of a directory, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A complete checkpoint.
    Complete,
    /// About to be replaced by another one of the same step.
    Replaced,
    /// Being written.
    Partial,
    /// Being removed.
    Removed,
}

impl Role {
    fn suffix(self) -> &'static str {
        match self {
            Self::Complete => "",
            Self::Partial => ".partial",
            Self::Removed => ".removed",
            Self::Replaced => ".replaced",
        }
    }
}

/// The directory of a step.
pub(super) fn path(checkpoints: &Path, step: u64, role: Role) -> PathBuf {
    checkpoints.join(format!("step-{step:08}{}", role.suffix()))
}

/// The name of the n-th checkpoint of a step that was moved aside.
pub(super) fn aside(step: u64, n: u64) -> String {
    format!("step-{step:08}.aside-{n}")
}

/// Parses a name in the checkpoint directory.
pub(super) fn parse(name: &str) -> Option<(u64, Role)> {
    let rest = name.strip_prefix("step-")?;
    let (digits, suffix) = rest.split_at(rest.find('.').unwrap_or(rest.len()));
    let roles = [Role::Complete, Role::Partial, Role::Removed, Role::Replaced];
    let role = roles.into_iter().find(|role| role.suffix() == suffix)?;
    let step = digits.parse().ok()?;
    // Only the canonical form, not `step-1` or `step-+1`.
    (format!("{step:08}") == digits).then_some((step, role))
}

/// Whether a directory is an incomplete checkpoint.
pub(super) fn is_partial(folder: &Path) -> bool {
    let name = folder.file_name().and_then(|name| name.to_str());
    name.and_then(parse).is_some_and(|(_, role)| role == Role::Partial)
}

/// A rank's safetensors file.
pub(super) fn shard(rank: usize) -> String {
    format!("rank-{rank:05}.safetensors")
}

/// A rank's sidecar file.
pub(super) fn sidecar(rank: usize) -> String {
    format!("rank-{rank:05}.json")
}

/// The rank of a safetensors file.
pub(super) fn rank_of_shard(name: &str) -> Option<usize> {
    let rank = name.strip_prefix("rank-")?.strip_suffix(".safetensors")?.parse().ok()?;
    (shard(rank) == name).then_some(rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        let roles = [Role::Complete, Role::Partial, Role::Removed, Role::Replaced];
        for role in roles {
            for step in [0, 1000, u64::MAX] {
                let path = path(Path::new("/c"), step, role);
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                assert_eq!(parse(name), Some((step, role)), "{name}");
            }
        }
        assert_eq!(parse(&aside(1, 1)), None);
        for other in ["step-1", "step-+0000001", "step-00000001.other", "rank-00000001", ""] {
            assert_eq!(parse(other), None, "{other}");
        }
        assert_eq!(rank_of_shard("rank-00003.safetensors"), Some(3));
        assert_eq!(rank_of_shard("rank-123456.safetensors"), Some(123456));
        assert_eq!(rank_of_shard("../rank-00003.safetensors"), None);
        assert_eq!(rank_of_shard("rank-3.safetensors"), None);
    }
}
