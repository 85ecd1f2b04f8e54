//! File systems writable, with free space and inodes, and mounted everywhere.

use regatta_model::units::format_bytes;

use super::findings::{Findings, by_key};
use super::majority::Groups;
use crate::diagnosis::{Check, CheckResult, Verdict};
use crate::facts::{DirectoryUse, FileSystem, JobFacts, NodeFacts};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Free space, below which writing fails soon: absolute, or as a share if it is also little.
const FAIL_FREE: u64 = 64 * MIB;
const FAIL_SHARE: (f64, u64) = (0.01, GIB);
const WARN_SHARE: (f64, u64) = (0.05, 10 * GIB);
/// Free inodes.
const FAIL_INODES: u64 = 100;
const WARN_INODES: (f64, u64) = (0.01, 10_000);

pub(super) fn judge(facts: &JobFacts) -> CheckResult {
    if facts.nodes.iter().all(|node| node.file_systems.is_empty()) {
        return CheckResult::skipped(Check::FileSystems, "not tested");
    }
    let mut findings = Findings::default();
    for node in &facts.nodes {
        for fs in &node.file_systems {
            judge_writable(node, fs, &mut findings);
            judge_inodes(node, fs, &mut findings);
        }
    }
    judge_mounts(facts, &mut findings);
    CheckResult::new(Check::FileSystems, summary(facts), findings.into_list())
}

/// A job can often do without its home directory and caches.
fn severity(fs: &FileSystem) -> Verdict {
    match fs.used_for {
        DirectoryUse::Home | DirectoryUse::Cache => Verdict::Warn,
        DirectoryUse::Work | DirectoryUse::Temporary | DirectoryUse::Given => Verdict::Fail,
    }
}

/// Free and total amount. File systems that do not count them report zeros, although a file could be
/// written.
fn counted(fs: &FileSystem, free: Option<u64>, total: Option<u64>) -> Option<(u64, u64)> {
    let was_written = fs.sync_seconds.is_some();
    free.zip(total).filter(|(free, total)| *total > 0 && (*free > 0 || !was_written))
}

fn judge_writable(node: &NodeFacts, fs: &FileSystem, findings: &mut Findings) {
    let path = &fs.path;
    let fix = format!("remove files (`du -xsh {path}/*`), or use another directory");
    if let Some((free, total)) = counted(fs, fs.free_bytes, fs.total_bytes) {
        let is_below =
            |(share, limit): (f64, u64)| (free as f64) < share * total as f64 && free < limit;
        let verdict = match free {
            ..FAIL_FREE => Some(severity(fs)),
            _ if is_below(FAIL_SHARE) => Some(severity(fs)),
            _ if is_below(WARN_SHARE) => Some(Verdict::Warn),
            _ => None,
        };
        if let Some(verdict) = verdict {
            let what = format!("little free space in {path}");
            let value = format!("{} of {}", format_bytes(free), format_bytes(total));
            findings.add(verdict, &node.host, what, value, fix);
            return;
        }
    }
    if let Some(error) = &fs.error {
        let fix = match fs.timed_out {
            true => "the file system does not answer: exclude the node and report it to the site"
                .to_owned(),
            false => format!("check mount, quota and permissions of {path}"),
        };
        findings.add(severity(fs), &node.host, format!("cannot write to {path}"), error, fix);
    }
}

fn judge_inodes(node: &NodeFacts, fs: &FileSystem, findings: &mut Findings) {
    let Some((free, total)) = counted(fs, fs.free_inodes, fs.total_inodes) else { return };
    let (share, limit) = WARN_INODES;
    let verdict = match free {
        ..FAIL_INODES => severity(fs),
        _ if (free as f64) < share * total as f64 && free < limit => Verdict::Warn,
        _ => return,
    };
    let what = format!("few free inodes in {}", fs.path);
    let fix = format!("remove or archive small files below {}", fs.path);
    findings.add(verdict, &node.host, what, format!("{free} of {total}"), fix);
}

/// A directory whose file system is not mounted on a node is on another type there.
fn judge_mounts(facts: &JobFacts, findings: &mut Findings) {
    let by_path = by_key(facts, |node| node.file_systems.iter().map(|fs| (&fs.path, &fs.kind)));
    for (path, kinds) in by_path {
        let kinds = kinds.iter().map(|(node, kind)| (node.host.as_str(), kind.as_deref()));
        let what = format!("type of the file system of {path}");
        let fix = format!("mount the file system of {path}, or exclude the node");
        findings.add_differing(Verdict::Fail, &what, &Groups::new(kinds), &fix);
    }
}

fn summary(facts: &JobFacts) -> String {
    let count = facts.nodes.iter().map(|node| node.file_systems.len()).max().unwrap_or(0);
    format!("{count} {} writable", if count == 1 { "directory" } else { "directories" })
}
