//! Scales of a step as f32, which all rows of a tile share.

use lockstep_backend::FactorType;

use super::GroupLanes;
use super::layout::{Layout, Places};
use crate::gemm::tile::{LANES, PANEL};
use crate::quantize::Parts;

/// Scales and minimums of a step of a panel, as f32.
#[repr(align(64))]
pub(super) struct Scales([[[f32; PANEL]; 2]; Parts::MOST]);

/// Words from the scales of a group to those of the next.
const GROUP_STRIDE: usize = 2 * PANEL;

impl Scales {
    /// Scales (0) or minimums (1) of the columns of half `half` in group `group`.
    ///
    /// # Safety
    /// `room` is valid for all scales.
    #[inline(always)]
    pub(super) unsafe fn at(room: *mut Self, group: usize, kind: usize, half: usize) -> *mut f32 {
        // SAFETY: the caller's promise, and places lie inside.
        unsafe {
            let first: *mut f32 = (&raw mut (*room).0).cast();
            first.add(group * GROUP_STRIDE + kind * PANEL + half * LANES)
        }
    }
}

/// Computes the scales of a step, in `count` halves of a panel from `first` on, from the numbers
/// behind its codes.
///
/// # Safety
/// The conditions of [`GroupLanes`]; `numbers` are those of a step of `layout`.
#[inline(always)]
pub(super) unsafe fn expand<L: GroupLanes>(
    layout: &Layout,
    numbers: *const u8,
    halves: [usize; 2],
    room: *mut Scales,
) {
    // SAFETY: forwarded to the caller.
    unsafe {
        match layout.factors {
            FactorType::F16 => factors::<L, F16>(layout, numbers, halves, room),
            FactorType::Bf16 => factors::<L, Bf16>(layout, numbers, halves, room),
            FactorType::F32 => factors::<L, F32>(layout, numbers, halves, room),
        }
    }
}

#[inline(always)]
unsafe fn factors<L: GroupLanes, F: Factors>(
    layout: &Layout,
    numbers: *const u8,
    [first, count]: [usize; 2],
    room: *mut Scales,
) {
    for half in first..first + count {
        // SAFETY: forwarded to the caller.
        unsafe {
            let scales = Scales::at(room, 0, 0, half);
            let places = (layout.factor, layout.multiple);
            kind::<L, F>(layout.groups, places, half, numbers, scales);
            if let Some(factor) = layout.min_factor {
                let mins = Scales::at(room, 0, 1, half);
                let places = (factor, layout.min_multiple);
                kind::<L, F>(layout.groups, places, half, numbers, mins);
            }
        }
    }
}

/// Writes factors times multiples of a half of a panel, group after group, to `to`.
#[inline(always)]
unsafe fn kind<L: GroupLanes, F: Factors>(
    groups: usize,
    (factor, multiple): (Places, Option<Places>),
    half: usize,
    numbers: *const u8,
    to: *mut f32,
) {
    let lane = half * LANES;
    // SAFETY: forwarded to the caller.
    unsafe {
        let numbers_at = |group: usize| numbers.add(factor.at(group) + lane * F::BYTES);
        match multiple {
            None => {
                for group in 0..groups {
                    L::store(
                        to.add(group * GROUP_STRIDE),
                        F::load::<L>(numbers_at(group)),
                    );
                }
            }
            Some(multiple) if factor.is_shared() => {
                let factors = F::load::<L>(numbers_at(0));
                for group in 0..groups {
                    let multiples = L::small(numbers.add(multiple.at(group) + lane));
                    L::store(to.add(group * GROUP_STRIDE), L::product(factors, multiples));
                }
            }
            Some(multiple) => {
                for group in 0..groups {
                    let multiples = L::small(numbers.add(multiple.at(group) + lane));
                    let scales = L::product(F::load::<L>(numbers_at(group)), multiples);
                    L::store(to.add(group * GROUP_STRIDE), scales);
                }
            }
        }
    }
}

/// Factors of one type.
///
/// # Safety
/// The conditions of [`GroupLanes`]; 16 factors are readable.
trait Factors {
    const BYTES: usize;
    unsafe fn load<L: GroupLanes>(from: *const u8) -> L::Floats;
}

struct F16;
struct Bf16;
struct F32;

impl Factors for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<L: GroupLanes>(from: *const u8) -> L::Floats {
        // SAFETY: the caller's promise.
        unsafe { L::f16(from) }
    }
}

impl Factors for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<L: GroupLanes>(from: *const u8) -> L::Floats {
        // SAFETY: the caller's promise.
        unsafe { L::bfloat16(from) }
    }
}

impl Factors for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<L: GroupLanes>(from: *const u8) -> L::Floats {
        // SAFETY: the caller's promise.
        unsafe { L::load(from.cast()) }
    }
}
