//! `/dev/shm`.

use regatta_model::units::format_bytes;

use super::findings::{Findings, upper_median};
use crate::diagnosis::{Check, CheckResult, Verdict};
use crate::facts::{JobFacts, NodeFacts};

const MIB: u64 = 1 << 20;
/// Size that NCCL needs for several GPUs, and the default of containers.
const FAIL_TOTAL: u64 = 64 * MIB;
const WARN_TOTAL: u64 = 1 << 30;
/// Less than this share of the other nodes' size.
const MIN_SHARE: f64 = 0.5;
/// Free space that a rank needs at least.
const FAIL_FREE: u64 = 16 * MIB;
/// Less than this share of the other nodes' free space, if it is also little.
const WARN_FREE: (f64, u64) = (0.25, 1 << 30);

const SIZE_FIX: &str = "`mount -o remount,size=50% /dev/shm` as root; in containers --shm-size=8g or \
                        --ipc=host";
const FREE_FIX: &str = "remove files of earlier jobs: `ls -l /dev/shm`, `rm /dev/shm/nccl-*`";

pub(super) fn judge(facts: &JobFacts) -> CheckResult {
    let os = || facts.nodes.iter().map(|node| &node.os);
    if os().all(|os| os.shm_total.is_none() && os.shm_error.is_none()) {
        return CheckResult::skipped(Check::SharedMemory, "unknown");
    }
    let total = upper_median(os().filter_map(|os| os.shm_total).map(|total| total as f64));
    let free = upper_median(os().filter_map(|os| os.shm_free).map(|free| free as f64));
    let mut findings = Findings::default();
    for node in &facts.nodes {
        if let Some(error) = &node.os.shm_error {
            let what = "cannot create files in /dev/shm";
            findings.add(Verdict::Fail, &node.host, what, error, FREE_FIX);
            continue;
        }
        judge_total(node, total.unwrap_or(0.0), &mut findings);
        judge_free(node, free.unwrap_or(0.0), &mut findings);
    }
    let summary = total.map(|total| format!("/dev/shm of {}", format_bytes(total as u64)));
    CheckResult::new(Check::SharedMemory, summary.unwrap_or_default(), findings.into_list())
}

fn judge_total(node: &NodeFacts, usual: f64, findings: &mut Findings) {
    let Some(total) = node.os.shm_total else { return };
    let has_gpus = !node.machine.gpus.is_empty();
    let (verdict, what) = match total {
        _ if (total as f64) < MIN_SHARE * usual => {
            let usual = format_bytes(usual as u64);
            (Verdict::Fail, format!("/dev/shm is smaller than the other nodes' {usual}"))
        }
        ..FAIL_TOTAL if has_gpus => {
            (Verdict::Fail, format!("/dev/shm is smaller than {}", format_bytes(FAIL_TOTAL)))
        }
        ..WARN_TOTAL if has_gpus => {
            (Verdict::Warn, format!("/dev/shm is smaller than {}", format_bytes(WARN_TOTAL)))
        }
        _ => return,
    };
    findings.add(verdict, &node.host, what, format_bytes(total), SIZE_FIX);
}

fn judge_free(node: &NodeFacts, usual: f64, findings: &mut Findings) {
    let (Some(free), Some(total)) = (node.os.shm_free, node.os.shm_total) else { return };
    let (share, limit) = WARN_FREE;
    let verdict = match free {
        // A small /dev/shm is a finding of its own.
        ..FAIL_FREE if total >= FAIL_TOTAL => Verdict::Fail,
        _ if (free as f64) < share * usual && free < limit && free < total / 2 => Verdict::Warn,
        _ => return,
    };
    let what = "little free space in /dev/shm";
    let value = format!("{} of {}", format_bytes(free), format_bytes(total));
    findings.add(verdict, &node.host, what, value, FREE_FIX);
}
