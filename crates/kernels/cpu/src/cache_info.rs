//! L1 data cache size, and the GEMM blocking that follows from it.

/// Largest `kc`, the depth that an f32 GEMM packs at once.
///
/// With a small `kc` the rows of A stay in L1, but the accumulators go to memory and back once per block.
/// Measured: CPUs with 48 KiB of L1 (Sapphire Rapids) issue two vector FMAs per cycle and are up to 20 %
/// faster with a small one; CPUs with 32 KiB (Zen 4) issue one and lose a few percent.
pub fn max_kc() -> usize {
    if l1_data_bytes().is_some_and(|bytes| bytes >= 48 << 10) { 384 } else { 1536 }
}

/// Size of the L1 data cache, if CPUID reports it.
#[cfg(target_arch = "x86_64")]
fn l1_data_bytes() -> Option<usize> {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    // Intel's leaf, and AMD's with the same layout.
    let leaves = [(0, 4), (0x8000_0000, 0x8000_001d)];
    leaves.into_iter().filter(|(base, leaf)| __cpuid(*base).eax >= *leaf).find_map(|(_, leaf)| {
        let caches = (0..4).map(|index| __cpuid_count(leaf, index));
        caches.map(|found| parse_cache([found.eax, found.ebx, found.ecx])).find_map(|bytes| bytes)
    })
}

/// Only known on x86.
#[cfg(not(target_arch = "x86_64"))]
fn l1_data_bytes() -> Option<usize> {
    None
}

/// Size of the cache that CPUID describes, if it is an L1 data or unified cache.
#[cfg(target_arch = "x86_64")]
fn parse_cache([eax, ebx, ecx]: [u32; 3]) -> Option<usize> {
    let (kind, level) = (eax & 0x1f, (eax >> 5) & 7);
    let [ways, partitions, line] =
        [ebx >> 22, (ebx >> 12) & 0x3ff, ebx & 0xfff].map(|n| n as usize + 1);
    let sets = ecx as usize + 1;
    (matches!(kind, 1 | 3) && level == 1).then(|| ways * partitions * line * sets)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn cpuid_leaves_are_parsed() {
        // Sapphire Rapids: L1 data, 12 ways of 64 sets; then L1 instructions.
        assert_eq!(parse_cache([0x121, 11 << 22 | 63, 63]), Some(48 << 10));
        assert_eq!(parse_cache([0x122, 7 << 22 | 63, 63]), None);
        // Zen 4: L1 data, 8 ways of 64 sets; then L2.
        assert_eq!(parse_cache([0x121, 7 << 22 | 63, 63]), Some(32 << 10));
        assert_eq!(parse_cache([0x143, 7 << 22 | 63, 2047]), None);
        assert_eq!(parse_cache([0, 0, 0]), None);
    }

    #[test]
    fn l1_size_of_this_cpu_is_plausible() {
        if let Some(bytes) = l1_data_bytes() {
            assert!((8 << 10..=1 << 20).contains(&bytes), "{bytes}");
        }
    }
}
