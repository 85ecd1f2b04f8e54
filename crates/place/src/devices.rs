//! Which local rank gets which GPU.

use regatta_model::units::count;
use regatta_model::{Job, Machine, Visibility, Warning};

use crate::PlaceError;

/// A rank's GPUs and why.
pub(crate) struct Devices {
    pub gpus: Vec<u32>,
    pub reason: String,
}

/// Local rank *i* takes device *i*: programs assume it. More ranks than GPUs share them round
/// robin, which is what `LOCAL_RANK % device_count` in a program gives.
pub(crate) fn devices(
    machine: &Machine,
    ranks: u32,
    job: &Job,
) -> Result<Vec<Devices>, PlaceError> {
    let visible = machine.visible_gpus();
    let gpus = visible.len() as u32;
    let each = job.gpus_per_rank.max(1);
    let none = |reason: &str| {
        let reason = reason.to_owned();
        (0..ranks).map(|_| Devices { gpus: Vec::new(), reason: reason.clone() }).collect()
    };
    if !job.use_gpus {
        return Ok(none("no GPU was asked for"));
    }
    if gpus == 0 && each == 1 {
        return Ok(none("the node has no GPU"));
    }
    if ranks.saturating_mul(each) <= gpus {
        return Ok((0..ranks).map(|i| own(&visible, i, each)).collect());
    }
    if each > 1 {
        let host = machine.host.clone();
        return Err(PlaceError::TooFewGpus { host, ranks, per_rank: each, gpus });
    }
    let shared = |i: u32| Devices {
        gpus: vec![visible[(i % gpus) as usize]],
        reason: format!(
            "{ranks} ranks share {}: local rank {i} takes device {i} mod {gpus} = {}",
            count(gpus as usize, "GPU"),
            i % gpus
        ),
    };
    Ok((0..ranks).map(shared).collect())
}

fn own(visible: &[u32], i: u32, each: u32) -> Devices {
    let gpus = visible[(i * each) as usize..((i + 1) * each) as usize].to_vec();
    let reason = match each {
        1 => format!("local rank {i} takes device {i}: programs assume cuda:LOCAL_RANK"),
        _ => format!("{each} devices a rank, in the runtime's order"),
    };
    Devices { gpus, reason }
}

/// Several ranks on one GPU: it works, but not by itself well.
pub(crate) fn sharing_warning(machine: &Machine, ranks: u32, job: &Job) -> Option<Warning> {
    let gpus = machine.visible_gpus().len() as u32;
    let shared = job.use_gpus && gpus > 0 && ranks > gpus;
    shared.then(|| Warning {
        code: "shared-gpus".to_owned(),
        what: format!("{ranks} ranks share {} on {}", count(gpus as usize, "GPU"), machine.host),
        hint: "NCCL refuses two ranks on one GPU, and without MPS they take turns; \
               use at most one rank a GPU for training"
            .to_owned(),
    })
}

/// What each way of showing GPUs to a rank breaks.
pub(crate) fn visibility_warning(machine: &Machine, job: &Job) -> Option<Warning> {
    if !job.use_gpus || machine.visible_gpus().len() < 2 {
        return None;
    }
    let (what, hint) = match job.visibility {
        Visibility::All => (
            "every rank sees all GPUs of its node, which keeps peer-to-peer copies",
            "a program that does not select device LOCAL_RANK puts all its ranks on GPU 0; \
             --visibility own gives such a program one GPU a rank",
        ),
        Visibility::Own => (
            "every rank sees its own GPU only, as device 0",
            "a program that selects device LOCAL_RANK fails on every local rank but 0, and some \
             libraries lose peer-to-peer copies; --visibility all shows every GPU to every rank",
        ),
    };
    Some(Warning { code: "visibility".to_owned(), what: what.to_owned(), hint: hint.to_owned() })
}
