//! Software prefetches: hints that have no effect on memory.

const LINE_BYTES: usize = 64;

/// Loads the cache line of an address for reading.
#[inline]
pub fn read(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch of any address is permitted.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Loads the cache line of an address for writing.
#[inline]
pub fn write(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address is permitted; processors without this one ignore it.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Loads all cache lines of a slice for reading.
#[inline]
pub fn read_slice(bytes: &[u8]) {
    bytes.chunks(LINE_BYTES).for_each(|line| read(line.as_ptr()));
}
