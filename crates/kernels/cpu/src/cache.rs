//! How large the processor's first cache is, and what follows for products.

/// Summands that a product packs at once, at most.
///
/// Few summands and the rows of a strip come from near; but the sums themselves go to memory and
/// back after each such part. Which weighs more was measured: the processors whose first cache has
/// 48 KiB (Sapphire Rapids) multiply two vectors a cycle and are up to a fifth faster with few; the
/// others (Zen 4, 32 KiB) multiply one, and lose some hundredths that way.
pub fn best_depth() -> usize {
    if first_data_cache().is_some_and(|bytes| bytes >= 48 << 10) { 384 } else { 1536 }
}

/// Bytes, if the processor says.
#[cfg(target_arch = "x86_64")]
fn first_data_cache() -> Option<usize> {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    // Intel's leaf, and AMD's of the same make.
    let leaves = [(0, 4), (0x8000_0000, 0x8000_001d)];
    leaves.into_iter().filter(|(base, leaf)| __cpuid(*base).eax >= *leaf).find_map(|(_, leaf)| {
        let caches = (0..4).map(|number| __cpuid_count(leaf, number));
        caches.map(|found| bytes_of([found.eax, found.ebx, found.ecx])).find_map(|bytes| bytes)
    })
}

/// Nobody has tried it elsewhere.
#[cfg(not(target_arch = "x86_64"))]
fn first_data_cache() -> Option<usize> {
    None
}

/// What the processor says of a cache, if it is the first and has data.
#[cfg(target_arch = "x86_64")]
fn bytes_of([a, b, c]: [u32; 3]) -> Option<usize> {
    let (kind, level) = (a & 0x1f, (a >> 5) & 7);
    let [ways, partitions, line] = [b >> 22, (b >> 12) & 0x3ff, b & 0xfff].map(|n| n as usize + 1);
    let sets = c as usize + 1;
    (matches!(kind, 1 | 3) && level == 1).then(|| ways * partitions * line * sets)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn caches_are_read_as_the_manuals_say() {
        // Sapphire Rapids: data of the first level, 12 ways of 64 sets; then its instructions.
        assert_eq!(bytes_of([0x121, 11 << 22 | 63, 63]), Some(48 << 10));
        assert_eq!(bytes_of([0x122, 7 << 22 | 63, 63]), None);
        // Zen 4: 8 ways of 64 sets; its second level.
        assert_eq!(bytes_of([0x121, 7 << 22 | 63, 63]), Some(32 << 10));
        assert_eq!(bytes_of([0x143, 7 << 22 | 63, 2047]), None);
        assert_eq!(bytes_of([0, 0, 0]), None);
    }

    #[test]
    fn this_processor_has_a_cache_of_likely_size() {
        if let Some(bytes) = first_data_cache() {
            assert!((8 << 10..=1 << 20).contains(&bytes), "{bytes}");
        }
    }
}
