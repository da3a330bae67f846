//! Detection, permission and shapes of tiles ("Intel Architecture Instruction
//! Set Extensions Programming Reference", chapter 3; Linux, "Using XSTATE
//! features in user space applications").

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _mm_sfence, _xgetbv};
use std::cell::Cell;
use std::sync::LazyLock;

use super::signal_stack::grow_signal_stack;

/// Rows of a tile.
const ROWS: usize = 16;

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes of a row of each tile.
    bytes: [u16; 16],
    rows: [u8; 16],
}

thread_local! {
    /// Rows that this thread's tiles have shapes for; 0 = none.
    static SHAPED: Cell<usize> = const { Cell::new(0) };
}

/// Why this process has no tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoTiles {
    /// CPUID doesn't name them.
    #[error("its processor, or what a virtual machine shows of it, has no AMX")]
    Processor,
    /// XCR0 doesn't have them.
    #[error("its system does not switch AMX on; Linux does from 5.16 on")]
    System,
    /// This process may not use them.
    #[error(
        "its system does not let this process use AMX (error {0}); Linux does from 5.16 on, \
         where no sandbox or seccomp filter refuses arch_prctl"
    )]
    Process(i64),
}

/// Whether the processor has tiles for bf16 and 8-bit integers, and the system
/// lets this process use them.
///
/// Asks Linux for them once: the permission is the process's and holds for
/// threads that were started before. Elsewhere there are none.
pub(crate) fn permission() -> Result<(), NoTiles> {
    static PERMISSION: LazyLock<Result<(), NoTiles>> =
        LazyLock::new(|| has_tiles().and_then(|()| ask()));
    *PERMISSION
}

fn has_tiles() -> Result<(), NoTiles> {
    const OSXSAVE: u32 = 1 << 27;
    const AMX: u32 = 1 << 22 | 1 << 24 | 1 << 25; // BF16, TILE, INT8
    const TILE_STATE: u64 = 3 << 17;
    if __cpuid(0).eax < 7 || __cpuid_count(7, 0).edx & AMX != AMX {
        return Err(NoTiles::Processor);
    }
    let xsave = __cpuid(1).ecx & OSXSAVE != 0;
    // SAFETY: the system has switched XSAVE on.
    if !xsave || unsafe { enabled_states() } & TILE_STATE != TILE_STATE {
        return Err(NoTiles::System);
    }
    Ok(())
}

/// XCR0: what the system saves of a thread's registers.
#[target_feature(enable = "xsave")]
fn enabled_states() -> u64 {
    // SAFETY: register 0 exists wherever XSAVE does.
    unsafe { _xgetbv(0) }
}

#[cfg(target_os = "linux")]
fn ask() -> Result<(), NoTiles> {
    const ARCH_PRCTL: i64 = 158;
    const REQUEST_PERMISSION: u64 = 0x1023;
    const TILE_DATA: u64 = 18;
    let answer: i64;
    // SAFETY: `arch_prctl(ARCH_REQ_XCOMP_PERM)` changes nothing but what this
    // process may use; a kernel that doesn't know it answers with an error.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => answer,
            in("rdi") REQUEST_PERMISSION,
            in("rsi") TILE_DATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    match answer {
        0 => Ok(()),
        error => Err(NoTiles::Process(-error)),
    }
}

#[cfg(not(target_os = "linux"))]
fn ask() -> Result<(), NoTiles> {
    Err(NoTiles::System)
}

/// Gives this thread's tiles the shapes for `rows` (1 to 32) rows of inputs:
///
/// | Tiles | Hold | Rows |
/// |---|---|---|
/// | 0, 1 | sums of the first rows | up to 16 |
/// | 2, 3 | sums of the others | what is left; 16 if nothing is |
/// | 4, 5 | inputs of the first and of the others | as many |
/// | 6, 7 | weights | 16 |
///
/// # Safety
/// [`permission`] was given.
#[inline]
pub(crate) unsafe fn shape(rows: usize) {
    if SHAPED.get() == rows {
        return;
    }
    grow_signal_stack();
    let first = rows.clamp(1, ROWS) as u8;
    let others = match rows {
        0..=ROWS => ROWS,
        _ => (rows - ROWS).min(ROWS),
    } as u8;
    let shapes = Shapes {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        bytes: std::array::from_fn(|tile| if tile < 8 { 64 } else { 0 }),
        rows: [
            first, first, others, others, first, others, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0,
        ],
    };
    // SAFETY: the process may use tiles, and the shapes are valid.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const shapes, options(nostack, readonly)) };
    SHAPED.set(rows);
}

/// Lets go of this thread's tiles, and waits until others see what it has written
/// past the caches.
#[inline]
pub(crate) fn release() {
    if SHAPED.replace(0) != 0 {
        // SAFETY: every x86-64 processor has it.
        unsafe { _mm_sfence() };
        // SAFETY: this thread has used tiles, so it may.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
