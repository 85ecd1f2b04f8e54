//! Names in a folder of checkpoints. No I/O.

use std::path::{Path, PathBuf};

/// The description of a checkpoint.
pub const MANIFEST: &str = "checkpoint.json";
/// Its checksum, as `sha256sum` writes and checks it.
pub(super) const MANIFEST_SUM: &str = "checkpoint.json.sha256";
/// What the job that writes here holds.
pub(super) const LOCK: &str = "writer.lock";

/// What a folder is by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A whole checkpoint.
    Complete,
    /// Another one of this step takes its place at this moment.
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

/// The folder of a step.
pub(super) fn path(checkpoints: &Path, step: u64, role: Role) -> PathBuf {
    checkpoints.join(format!("step-{step:08}{}", role.suffix()))
}

/// Where a checkpoint of a step is put that nobody is to look for, the n-th of it.
pub(super) fn aside(step: u64, n: u64) -> String {
    format!("step-{step:08}.aside-{n}")
}

/// What a name in the checkpoints' folder says.
pub(super) fn parse(name: &str) -> Option<(u64, Role)> {
    let rest = name.strip_prefix("step-")?;
    let (digits, suffix) = rest.split_at(rest.find('.').unwrap_or(rest.len()));
    let roles = [Role::Complete, Role::Partial, Role::Removed, Role::Replaced];
    let role = roles.into_iter().find(|role| role.suffix() == suffix)?;
    let step = digits.parse().ok()?;
    // `step-1` and `step-+1` are not names of ours.
    (format!("{step:08}") == digits).then_some((step, role))
}

/// Whether a folder's name says that it was not completed.
pub(super) fn is_partial(folder: &Path) -> bool {
    let name = folder.file_name().and_then(|name| name.to_str());
    name.and_then(parse).is_some_and(|(_, role)| role == Role::Partial)
}

/// A rank's file of numbers.
pub(super) fn shard(rank: usize) -> String {
    format!("rank-{rank:05}.safetensors")
}

/// What a rank says about it.
pub(super) fn sidecar(rank: usize) -> String {
    format!("rank-{rank:05}.json")
}

/// The rank whose file of numbers this is.
pub(super) fn rank_of_shard(name: &str) -> Option<usize> {
    let rank = name.strip_prefix("rank-")?.strip_suffix(".safetensors")?.parse().ok()?;
    (shard(rank) == name).then_some(rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
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
