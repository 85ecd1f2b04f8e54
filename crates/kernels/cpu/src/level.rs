//! Which vector instructions the processor has. A kernel is written once, and compiled for each.

/// Which vector instructions to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// What every processor of the kind has.
    Plain,
    /// AVX2 and fused multiplication.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// The same with rounding to brain floats.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
}

impl Level {
    /// Those that this processor has, the best last. Others must not be used.
    pub fn all() -> Vec<Self> {
        #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut))]
        let mut all = vec![Self::Plain];
        #[cfg(target_arch = "x86_64")]
        {
            let fused = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let wide = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq");
            all.extend(fused.then_some(Self::Avx2));
            all.extend((fused && wide).then_some(Self::Avx512));
            let rounds = is_x86_feature_detected!("avx512bf16");
            all.extend((fused && wide && rounds).then_some(Self::Avx512Bf16));
        }
        all
    }

    /// The best.
    pub fn best() -> Self {
        Self::all().pop().unwrap_or(Self::Plain)
    }

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 | Self::Avx512Bf16 => "avx512",
        }
    }
}

/// Makes a function, whose first argument is the level, of a kernel that is generic over lanes. What
/// the kernel calls must be `#[inline(always)]`, or it is not compiled for the level.
macro_rules! kernel {
    ($(#[$attribute:meta])* $vis:vis fn $name:ident<$lanes:ident>(
        $($arg:ident: $type:ty),* $(,)?
    ) $(-> $result:ty)? $body:block) => {
        $(#[$attribute])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name(level: $crate::level::Level, $($arg: $type),*) $(-> $result)? {
            #[inline(always)]
            fn body<$lanes: $crate::lanes::Lanes>($($arg: $type),*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
            fn avx512($($arg: $type),*) $(-> $result)? {
                body::<$crate::lanes_avx512::Avx512<false>>($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")]
            fn avx512_bf16($($arg: $type),*) $(-> $result)? {
                body::<$crate::lanes_avx512::Avx512<true>>($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $type),*) $(-> $result)? {
                body::<$crate::lanes_avx2::Avx2>($($arg),*)
            }

            match level {
                // SAFETY: only levels that the processor has are used.
                #[cfg(target_arch = "x86_64")]
                $crate::level::Level::Avx512Bf16 => unsafe { avx512_bf16($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::level::Level::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::level::Level::Avx2 => unsafe { avx2($($arg),*) },
                $crate::level::Level::Plain => {
                    body::<$crate::lanes::Plain>($($arg),*)
                }
            }
        }
    };
}
pub(crate) use kernel;
