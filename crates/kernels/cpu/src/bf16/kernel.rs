//! Which instructions products are made of: looked for once, chosen at run time.

use std::sync::OnceLock;

use super::tile::{self, Lanes, Portable, Run};
#[cfg(target_arch = "x86_64")]
use super::{amx, x86};

/// What multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Tiles of AMX: Sapphire Rapids and later.
    Amx,
    /// Pairs of brain floats in vectors of 512 bits: Cooper Lake, Zen 4 and later.
    Avx512Bf16,
    /// Vectors of 512 bits; brain floats are widened to single precision.
    Avx512,
    /// The same with 256 bits.
    Avx2,
    /// Plain loops.
    Portable,
    /// The tiles of AMX, played by plain loops.
    #[cfg(test)]
    AmxEmulated,
}

/// How a kernel cuts products.
pub struct Plan {
    /// Rows of its tallest tile.
    pub rows: usize,
    /// Panels of its widest.
    pub panels: usize,
    /// Numbers of `k` after which sums go to memory, a multiple of 32.
    pub depth: usize,
    /// 1 if it wants the left operand widened, else 0.
    pub left_widens: usize,
    /// Whether it reads rows of brain floats from wherever they are.
    pub in_place: bool,
    /// Computes a tile.
    pub run: Run,
}

impl Kernel {
    /// All, best first.
    pub const ALL: [Self; 5] =
        [Self::Amx, Self::Avx512Bf16, Self::Avx512, Self::Avx2, Self::Portable];

    /// The best that this processor has.
    pub fn best() -> Self {
        static BEST: OnceLock<Kernel> = OnceLock::new();
        let found = || Self::ALL.into_iter().find(|kernel| kernel.is_available());
        *BEST.get_or_init(|| found().unwrap_or(Self::Portable))
    }

    /// What it is called.
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

    /// Whether this processor has its instructions.
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

    /// Whether this processor has its instructions.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn is_available(self) -> bool {
        !matches!(self, Self::Amx | Self::Avx512Bf16 | Self::Avx512 | Self::Avx2)
    }

    /// Whether its instructions multiply brain floats, rather than what they are widened to.
    pub fn multiplies_halves(self) -> bool {
        match self {
            Self::Amx | Self::Avx512Bf16 => true,
            Self::Avx512 | Self::Avx2 | Self::Portable => false,
            #[cfg(test)]
            Self::AmxEmulated => true,
        }
    }

    /// # Panics
    /// If it is not available.
    pub(super) fn assert_available(self) {
        assert!(self.is_available(), "this processor has no {}", self.name());
    }

    /// How it cuts products.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn plan(self) -> Plan {
        match self {
            Self::Amx => amx::plan(amx::run),
            Self::Avx512Bf16 => plan::<x86::Avx512Bf16>(x86::run_avx512_bf16),
            Self::Avx512 => plan::<x86::Avx512>(x86::run_avx512),
            Self::Avx2 => plan::<x86::Avx2>(x86::run_avx2),
            Self::Portable => plan::<Portable>(tile::run::<Portable>),
            #[cfg(test)]
            Self::AmxEmulated => amx::plan(amx::emulated::run),
        }
    }

    /// How it cuts products.
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn plan(self) -> Plan {
        plan::<Portable>(tile::run::<Portable>)
    }

    /// What this thread must have while it multiplies. Products see to it themselves; who holds it
    /// over many small ones spares each of them the time.
    #[cfg(target_arch = "x86_64")]
    pub(in super::super) fn made_ready(self) -> Option<amx::Configured> {
        (self == Self::Amx).then(amx::Configured::new)
    }

    /// What this thread must have while it multiplies: nothing.
    #[cfg(not(target_arch = "x86_64"))]
    pub(in super::super) fn made_ready(self) {}
}

fn plan<L: Lanes>(run: Run) -> Plan {
    let left_widens = L::LEFT_LINES - 1;
    let (rows, panels, in_place) = (L::ROWS, L::PANELS, false);
    Plan { rows, panels, depth: 1024, left_widens, in_place, run }
}
