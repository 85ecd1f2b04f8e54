//! The GPUs that processes see, and why they do not see one.

use anyhow::Result;
use regatta_comm::gather::all_gather;
use regatta_comm::nccl::Vendor;
use regatta_comm::{Collectives, Comm, ReduceOp};
use regatta_kernels_cuda::{CountDevicesError, count_devices, device_count, has_driver_library};

/// Variables with which a user hides GPUs from a process.
const VISIBLE_DEVICES: [&str; 3] =
    ["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"];

/// The vendor of the GPUs that every rank sees.
pub fn common_vendor(comm: &dyn Comm) -> Result<Option<Vendor>> {
    let mut missing = Vendor::ALL.map(|vendor| i32::from(device_count(vendor) == 0));
    comm.all_reduce(&mut missing, ReduceOp::Max)?;
    let mut vendors = Vendor::ALL.into_iter().zip(missing);
    Ok(vendors.find(|(_, missing)| *missing == 0).map(|(vendor, _)| vendor))
}

/// The vendor of the GPUs that this process sees.
pub fn local_vendor() -> Option<Vendor> {
    Vendor::ALL.into_iter().find(|vendor| device_count(*vendor) > 0)
}

/// That a process sees no GPU, why, and what to check, or to do instead.
pub fn sees_no_gpu(alternative: &str) -> String {
    let is_amd = Vendor::Amd.has_kernel_driver() && !Vendor::Nvidia.has_kernel_driver();
    let vendor = if is_amd { Vendor::Amd } else { Vendor::Nvidia };
    let cause = count_devices(vendor).err();
    format!("{}, or {alternative}", no_gpu_text(vendor, cause))
}

fn no_gpu_text(vendor: Vendor, cause: Option<CountDevicesError>) -> String {
    let (name, check) = match vendor {
        Vendor::Amd => ("AMD", "rocm-smi, ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES"),
        Vendor::Nvidia => ("NVIDIA", "nvidia-smi and CUDA_VISIBLE_DEVICES"),
    };
    let cause = cause.map(|cause| format!(" ({})", cause.why)).unwrap_or_default();
    format!("sees no {name} GPU{cause}: check {check}")
}

/// What is known about the GPUs of a vendor.
#[derive(Debug, Clone, PartialEq, Eq)]
struct VendorFacts {
    vendor: Vendor,
    has_kernel_driver: bool,
    has_driver_library: bool,
    /// The visible GPUs, or why they cannot be counted.
    count: Result<u32, CountDevicesError>,
}

impl VendorFacts {
    fn read(vendor: Vendor) -> Self {
        Self {
            vendor,
            has_kernel_driver: vendor.has_kernel_driver(),
            has_driver_library: has_driver_library(vendor),
            count: count_devices(vendor),
        }
    }

    /// Why GPUs that are probably there cannot be used; `None` if they can, or if there is none. A driver
    /// library without a kernel driver is that of a GPU (as in WSL) only if the runtime does not know better.
    fn unusable(&self) -> Option<String> {
        let is_present = self.has_kernel_driver || self.has_driver_library && !self.finds_none();
        let cause = self.count.as_ref().err().cloned();
        let sees_none = !matches!(self.count, Ok(1..));
        (is_present && sees_none).then(|| no_gpu_text(self.vendor, cause))
    }

    /// Whether the runtime works and says that there is no GPU.
    fn finds_none(&self) -> bool {
        matches!(self.count, Ok(0) | Err(CountDevicesError { finds_none: true, .. }))
    }
}

/// Why this process does not use GPUs that are probably there.
pub fn unusable_gpu() -> Option<String> {
    let is_hidden = |name: &&str| {
        std::env::var(name).is_ok_and(|devices| devices.is_empty() || devices.trim() == "-1")
    };
    if VISIBLE_DEVICES.iter().any(is_hidden) {
        return None;
    }
    Vendor::ALL.into_iter().find_map(|vendor| VendorFacts::read(vendor).unusable())
}

/// A note if `train.device=auto` selects CPUs although a rank has a GPU, the same on all ranks.
pub fn unused_gpu_note(comm: &dyn Comm) -> Result<Option<String>> {
    let reason = match local_vendor() {
        Some(_) => Some("has a GPU, but not all ranks see GPUs of one vendor".to_owned()),
        None => unusable_gpu(),
    };
    common_note(reason, comm)
}

/// The note of the first rank with a reason not to use its GPU, on all ranks.
fn common_note(reason: Option<String>, comm: &dyn Comm) -> Result<Option<String>> {
    let reasons = (0..).zip(all_gather(comm, &reason)?);
    let mut notes = reasons.filter_map(|(rank, reason)| {
        let (peer, reason) = (comm.peer(rank), reason?);
        Some(format!(
            "training on CPUs: {peer} {reason}; train.device=gpu makes this an error, train.device=cpu \
             silences this note"
        ))
    });
    Ok(notes.next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ranks_have_the_note_of_the_first_rank_with_a_reason() {
        let notes = |reasons: [Option<&str>; 3]| {
            let world = regatta_testbed::in_process::world(3);
            std::thread::scope(|scope| {
                let note = |(comm, reason): (_, Option<&str>)| {
                    let reason = reason.map(str::to_owned);
                    scope.spawn(move || common_note(reason, &comm).unwrap())
                };
                let ranks: Vec<_> = world.into_iter().zip(reasons).map(note).collect();
                ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
            })
        };
        assert_eq!(notes([None; 3]), [None, None, None]);
        let some = notes([None, Some("sees no NVIDIA GPU"), Some("has a GPU")]);
        let note = some[0].as_ref().unwrap();
        assert!(note.starts_with("training on CPUs: rank 1 on "), "{note}");
        assert!(
            note.contains(" sees no NVIDIA GPU; train.device=gpu makes this an error"),
            "{note}"
        );
        assert_eq!(some, vec![some[0].clone(); 3]);
        let long = "é".repeat(1024);
        assert!(
            notes([None, None, Some(&long)])[1].as_ref().is_some_and(|note| note.contains(&long))
        );
    }

    fn facts(kernel: bool, library: bool, count: Result<u32, CountDevicesError>) -> Option<String> {
        let [has_kernel_driver, has_driver_library] = [kernel, library];
        VendorFacts { vendor: Vendor::Nvidia, has_kernel_driver, has_driver_library, count }
            .unusable()
    }

    #[test]
    fn only_gpus_that_cannot_be_used_are_reported() {
        let error = |finds_none, why: &str| CountDevicesError { finds_none, why: why.to_owned() };
        let missing = error(false, "libcudart.so.13: cannot open shared object file");
        let none = error(true, "no CUDA-capable device is detected");
        // No GPU at all, with and without an installed driver or toolkit.
        assert_eq!(facts(false, false, Err(missing.clone())), None);
        assert_eq!(facts(false, true, Err(none.clone())), None);
        assert_eq!(facts(false, true, Ok(0)), None);
        // A GPU that works.
        assert_eq!(facts(true, true, Ok(1)), None);
        let reason = facts(true, true, Err(missing)).unwrap();
        let expected = "sees no NVIDIA GPU (libcudart.so.13: cannot open shared object file): check nvidia-smi";
        assert!(reason.starts_with(expected), "{reason}");
        for unusable in [facts(true, false, Ok(0)), facts(true, true, Err(none))] {
            assert!(unusable.is_some());
        }
        assert!(facts(false, true, Err(error(false, "driver version is insufficient"))).is_some());
    }
}
