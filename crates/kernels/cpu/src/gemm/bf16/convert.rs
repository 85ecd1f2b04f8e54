//! Conversion between f32 and bf16. Single elements are converted by the `half` crate; loops use the
//! functions here, which have no branches and therefore vectorise.

use half::bf16;

use super::epilogue::TILE_COLUMNS;
use crate::lanes::Lanes;

/// Bits of the nearest bf16, ties to even. NaNs become quiet.
#[inline(always)]
pub fn round_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    // Rounding could turn a NaN into infinity, truncation could clear its payload.
    let quiet = (bits >> 16) | 0x40;
    // Compared as an integer: `is_nan` would move lanes between vector types in loops.
    let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
    (if is_nan { quiet } else { rounded }) as u16
}

/// An element type of tensors that kernels load and store.
pub trait Element: Copy + Default {
    /// As f32.
    fn to_f32(self) -> f32;
    /// From f32, rounded to nearest even.
    fn from_f32(value: f32) -> Self;
    /// Bits as bf16, rounded to nearest even.
    fn to_bf16_bits(self) -> u16;
    /// Loads sixteen elements.
    ///
    /// # Safety
    /// They must be readable.
    unsafe fn load<V: Lanes>(from: *const Self) -> V;
    /// Stores sixteen elements.
    ///
    /// # Safety
    /// They must be writable.
    unsafe fn store<V: Lanes>(lanes: V, to: *mut Self);
    /// Stores a row of a tile.
    ///
    /// # Safety
    /// The CPU must have the instructions of the rounding.
    unsafe fn store_row<R: Rounding>(from: &[f32; TILE_COLUMNS], to: &mut [Self; TILE_COLUMNS]);
}

impl Element for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }
    #[inline(always)]
    fn to_bf16_bits(self) -> u16 {
        round_to_bf16(self)
    }
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const Self) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load(from) }
    }
    #[inline(always)]
    unsafe fn store<V: Lanes>(lanes: V, to: *mut Self) {
        // SAFETY: the caller's promise.
        unsafe { lanes.store(to) }
    }
    #[inline(always)]
    unsafe fn store_row<R: Rounding>(from: &[f32; TILE_COLUMNS], to: &mut [Self; TILE_COLUMNS]) {
        *to = *from;
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        // Not `bf16::to_f32`, which has a branch for NaNs.
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        Self::from_f32(value)
    }
    #[inline(always)]
    fn to_bf16_bits(self) -> u16 {
        self.to_bits()
    }
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const Self) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_bf16(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store<V: Lanes>(lanes: V, to: *mut Self) {
        // SAFETY: the caller's promise.
        unsafe { lanes.store_bf16(to.cast()) }
    }
    #[inline(always)]
    unsafe fn store_row<R: Rounding>(from: &[f32; TILE_COLUMNS], to: &mut [Self; TILE_COLUMNS]) {
        // SAFETY: the caller's promise.
        unsafe { R::round_row(from, to) };
    }
}

/// How a kernel rounds a row of a tile to bf16.
pub trait Rounding {
    /// # Safety
    /// The CPU must have its instructions.
    unsafe fn round_row(from: &[f32; TILE_COLUMNS], to: &mut [bf16; TILE_COLUMNS]);
}

/// Vectorised by the compiler for the kernel's instructions.
pub struct PortableRounding;

impl Rounding for PortableRounding {
    #[inline(always)]
    unsafe fn round_row(from: &[f32; TILE_COLUMNS], to: &mut [bf16; TILE_COLUMNS]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = bf16::from_bits(round_to_bf16(*from));
        }
    }
}

/// Runs a loop compiled for the widest vectors that the CPU has.
#[inline(always)]
pub fn with_widest_vectors(run: impl FnOnce()) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl") {
            // SAFETY: the CPU has these features.
            return unsafe { with_avx512(run) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the CPU has this feature.
            return unsafe { with_avx2(run) };
        }
    }
    run();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn with_avx512(run: impl FnOnce()) {
    run();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2(run: impl FnOnce()) {
    run();
}
