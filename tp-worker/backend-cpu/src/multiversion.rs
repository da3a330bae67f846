//! One plain-Rust body compiled once per instruction set.

/// Defines `fn name(isa: Isa, args…)` that runs `$body` compiled for `isa`.
///
/// The body is safe Rust that the compiler vectorises. The compiler never contracts a
/// multiplication and an addition, so every instruction set gives the same bits. Reductions
/// keep 16 partial results and fold them in one fixed order.
macro_rules! multiversion {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name(isa: $crate::isa::Isa, $($arg: $type),*) $(-> $ret)? {
            #[inline(always)]
            fn body($($arg: $type),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            fn avx512($($arg: $type),*) $(-> $ret)? {
                body($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $type),*) $(-> $ret)? {
                body($($arg),*)
            }
            match isa.vectors() {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: a backend is built only for an instruction set this machine runs.
                $crate::isa::Isa::Avx512 | $crate::isa::Isa::Avx512Bf16 => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                $crate::isa::Isa::Avx2 => unsafe { avx2($($arg),*) },
                _ => body($($arg),*),
            }
        }
    };
}

pub(crate) use multiversion;
