//! GEMM kernels and their runtime detection.

use std::sync::OnceLock;

use super::microkernel::{self, MicroKernel, MicroKernelFn, Portable};
#[cfg(target_arch = "x86_64")]
use super::{amx, microkernel_x86};
use crate::gemm::task_grid::BlockSize;

/// A GEMM kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// AMX tiles: Sapphire Rapids and later.
    Amx,
    /// AVX512_BF16 dot products: Cooper Lake, Zen 4 and later.
    Avx512Bf16,
    /// AVX-512, with operands widened to f32.
    Avx512,
    /// AVX2, with operands widened to f32.
    Avx2,
    /// Scalar loops.
    Portable,
    /// AMX tiles emulated by scalar loops.
    #[cfg(test)]
    AmxEmulated,
}

/// Blocking parameters and micro-kernel of a kernel.
pub struct Blocking {
    /// Rows of the largest tile.
    pub tile_rows: usize,
    /// Panels of the largest tile.
    pub tile_panels: usize,
    /// Depth after which accumulators go to memory, a multiple of 32.
    pub kc: usize,
    /// Whether the micro-kernel needs A widened to f32.
    pub widen_a: bool,
    /// Whether the micro-kernel reads rows of bf16 elements in place, without packing.
    pub a_in_place: bool,
    /// Largest block of the output that a task computes, if tasks have blocks and not rows.
    pub max_block: Option<BlockSize>,
    /// Computes a tile.
    pub run: MicroKernelFn,
}

impl Kernel {
    /// All, the fastest first.
    pub const ALL: [Self; 5] =
        [Self::Amx, Self::Avx512Bf16, Self::Avx512, Self::Avx2, Self::Portable];

    /// The fastest that this CPU supports.
    pub fn best() -> Self {
        static BEST: OnceLock<Kernel> = OnceLock::new();
        let detect = || Self::ALL.into_iter().find(|kernel| kernel.is_available());
        *BEST.get_or_init(|| detect().unwrap_or(Self::Portable))
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amx => "amx-bf16",
            Self::Avx512Bf16 => "avx512-bf16",
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::Portable => "portable",
            #[cfg(test)]
            Self::AmxEmulated => "amx-bf16 emulated",
        }
    }

    /// Whether this CPU supports it.
    #[cfg(target_arch = "x86_64")]
    pub fn is_available(self) -> bool {
        match self {
            Self::Amx => Self::Avx512Bf16.is_available() && amx::is_available(),
            Self::Avx512Bf16 => {
                Self::Avx512.is_available() && is_x86_feature_detected!("avx512bf16")
            }
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
            }
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            _ => true,
        }
    }

    /// Whether this CPU supports it.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn is_available(self) -> bool {
        !matches!(self, Self::Amx | Self::Avx512Bf16 | Self::Avx512 | Self::Avx2)
    }

    /// Whether it multiplies bf16 elements without widening them first.
    pub fn has_bf16_instructions(self) -> bool {
        match self {
            Self::Amx | Self::Avx512Bf16 => true,
            Self::Avx512 | Self::Avx2 | Self::Portable => false,
            #[cfg(test)]
            Self::AmxEmulated => true,
        }
    }

    /// # Panics
    /// If this CPU does not support it.
    pub(super) fn assert_available(self) {
        assert!(self.is_available(), "this CPU does not support {}", self.name());
    }

    /// Its blocking parameters.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn blocking(self) -> Blocking {
        use microkernel_x86::{Avx2, Avx512, Avx512Bf16, run_avx2, run_avx512, run_avx512_bf16};
        match self {
            Self::Amx => amx::blocking(amx::run),
            Self::Avx512Bf16 => blocking::<Avx512Bf16>(run_avx512_bf16),
            Self::Avx512 => blocking::<Avx512>(run_avx512),
            Self::Avx2 => blocking::<Avx2>(run_avx2),
            Self::Portable => blocking::<Portable>(microkernel::run::<Portable>),
            #[cfg(test)]
            Self::AmxEmulated => amx::blocking(amx::emulated::run),
        }
    }

    /// Its blocking parameters.
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn blocking(self) -> Blocking {
        blocking::<Portable>(microkernel::run::<Portable>)
    }

    /// Whether it reads full rows of bf16 elements in place, without packing.
    pub(crate) fn reads_in_place(self) -> bool {
        self.blocking().a_in_place
    }

    /// Largest block of the output that a task computes, if tasks have blocks and not rows.
    pub(crate) fn max_block(self) -> Option<BlockSize> {
        self.blocking().max_block
    }

    /// Configures this thread's AMX tiles, if the kernel uses them, until the guard is dropped. GEMMs do so
    /// themselves; holding a guard over many small ones avoids the cost for each.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn configure_thread(self) -> Option<amx::TileConfigGuard> {
        (self == Self::Amx).then(amx::TileConfigGuard::new)
    }

    /// Nothing to configure.
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn configure_thread(self) {}
}

fn blocking<M: MicroKernel>(run: MicroKernelFn) -> Blocking {
    Blocking {
        tile_rows: M::ROWS,
        tile_panels: M::PANELS,
        kc: 1024,
        widen_a: M::A_LINES == 2,
        a_in_place: false,
        max_block: None,
        run,
    }
}
