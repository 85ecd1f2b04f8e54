//! The L3 cache of this rank's cores.

use regatta_model::CpuSet;

/// No single L3 cache is known: the rank may run on cores with different ones.
pub const UNKNOWN: u64 = 0;

/// Identifies the L3 cache of these CPUs among those of the node.
pub fn id(cpus: &CpuSet) -> u64 {
    if is_unreliable() {
        return UNKNOWN;
    }
    of_cpus(cpus, |cpu| {
        let file = format!("/sys/devices/system/cpu/cpu{cpu}/cache/index3/shared_cpu_list");
        std::fs::read_to_string(file).ok()?.trim().parse().ok()
    })
}

/// [`id`], where `sharing` are the CPUs that share the L3 cache of a CPU.
fn of_cpus(cpus: &CpuSet, sharing: impl Fn(usize) -> Option<CpuSet>) -> u64 {
    let Some(shared) = cpus.first().and_then(sharing) else { return UNKNOWN };
    match shared.first() {
        Some(first) if cpus.is_subset(&shared) => first as u64 + 1,
        _ => UNKNOWN,
    }
}

/// Whether the CPUs are those of a virtual machine on a processor with several L3 caches. Its
/// hypervisor may report one cache for virtual CPUs that run on cores with different ones, and move
/// them.
fn is_unreliable() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::__cpuid;
        const HYPERVISOR: u32 = 1 << 31;
        // The first four characters of "AuthenticAMD".
        const AMD: u32 = u32::from_le_bytes(*b"Auth");
        __cpuid(0).ebx == AMD && __cpuid(1).ecx & HYPERVISOR != 0
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_of_one_cache_have_its_id() {
        let set = |text: &str| text.parse::<CpuSet>().unwrap();
        let sharing = |cpu: usize| Some(set(if cpu < 8 { "0-7" } else { "8-15" }));
        assert_eq!(of_cpus(&set("3"), sharing), of_cpus(&set("0-7"), sharing));
        assert_ne!(of_cpus(&set("3"), sharing), of_cpus(&set("9"), sharing));
        assert_eq!(of_cpus(&set("7-8"), sharing), UNKNOWN);
        assert_eq!(of_cpus(&set("0-15"), |_| None), UNKNOWN);
    }
}
