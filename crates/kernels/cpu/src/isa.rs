//! Vector instruction sets, and runtime dispatch of kernels that are compiled for each of them.

#[cfg(target_arch = "x86_64")]
use crate::gemm::bf16::Kernel;

/// A vector instruction set that this CPU has. Only detection creates one, so a value is a proof of
/// availability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(IsaKind);

/// Instruction sets that kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IsaKind {
    /// The baseline of the target.
    Portable,
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, VL and DQ.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX-512 with conversion to bf16.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
}

impl Isa {
    /// The baseline of the target.
    pub const PORTABLE: Self = Self(IsaKind::Portable);

    /// All that this CPU has, the best one last.
    pub fn all() -> Vec<Self> {
        #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut))]
        let mut all = vec![Self::PORTABLE];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = Kernel::Avx2.is_available();
            let has_avx512dq = is_x86_feature_detected!("avx512dq");
            let avx512 = avx2 && Kernel::Avx512.is_available() && has_avx512dq;
            let bf16 = avx512 && Kernel::Avx512Bf16.is_available();
            all.extend(avx2.then_some(Self(IsaKind::Avx2)));
            all.extend(avx512.then_some(Self(IsaKind::Avx512)));
            all.extend(bf16.then_some(Self(IsaKind::Avx512Bf16)));
        }
        all
    }

    /// The best that this CPU has.
    pub fn best() -> Self {
        Self::all().pop().unwrap_or(Self::PORTABLE)
    }

    /// Which one it is.
    #[inline(always)]
    pub fn kind(self) -> IsaKind {
        self.0
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self.0 {
            IsaKind::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx512 | IsaKind::Avx512Bf16 => "avx512",
        }
    }
}

/// Turns functions that are generic over [`Lanes`](crate::lanes::Lanes) into ones that take an [`Isa`]
/// first and dispatch to a version compiled for it. Callees must be `#[inline(always)]`, otherwise
/// they are compiled for the baseline. An `unsafe fn` stays unsafe, with the kernel's own preconditions.
/// The body may assign to its arguments.
macro_rules! kernel {
    () => {};
    ($(#[$attribute:meta])* $vis:vis unsafe fn $($rest:tt)*) => {
        $crate::isa::kernel! { @define [$(#[$attribute])*] [$vis] [unsafe] $($rest)* }
    };
    ($(#[$attribute:meta])* $vis:vis fn $($rest:tt)*) => {
        $crate::isa::kernel! { @define [$(#[$attribute])*] [$vis] [] $($rest)* }
    };
    (@define [$($attribute:tt)*] [$($vis:tt)*] [$($safety:tt)?] $name:ident<$lanes:ident>(
        $($arg:ident: $type:ty),* $(,)?
    ) $(-> $result:ty)? $body:block $($rest:tt)*) => {
        $($attribute)*
        // Calls of a safe body need no unsafe block, those of an unsafe one do.
        #[allow(clippy::too_many_arguments, unused_unsafe)]
        $($vis)* $($safety)? fn $name(isa: $crate::isa::Isa, $($arg: $type),*) $(-> $result)? {
            use $crate::isa::IsaKind;

            #[inline(always)]
            #[allow(unused_mut)]
            $($safety)? fn body<$lanes: $crate::lanes::Lanes>($(mut $arg: $type),*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
            $($safety)? fn avx512($($arg: $type),*) $(-> $result)? {
                // SAFETY: the caller's promise.
                unsafe { body::<$crate::lanes_avx512::Avx512<false>>($($arg),*) }
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")]
            $($safety)? fn avx512_bf16($($arg: $type),*) $(-> $result)? {
                // SAFETY: the caller's promise.
                unsafe { body::<$crate::lanes_avx512::Avx512<true>>($($arg),*) }
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            $($safety)? fn avx2($($arg: $type),*) $(-> $result)? {
                // SAFETY: the caller's promise.
                unsafe { body::<$crate::lanes_avx2::Avx2>($($arg),*) }
            }

            // SAFETY: an `Isa` exists only where its features were detected; other preconditions are
            // the caller's promise.
            unsafe {
                match isa.kind() {
                    #[cfg(target_arch = "x86_64")]
                    IsaKind::Avx512Bf16 => avx512_bf16($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    IsaKind::Avx512 => avx512($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    IsaKind::Avx2 => avx2($($arg),*),
                    IsaKind::Portable => body::<$crate::lanes::Portable>($($arg),*),
                }
            }
        }

        $crate::isa::kernel! { $($rest)* }
    };
}
pub(crate) use kernel;
