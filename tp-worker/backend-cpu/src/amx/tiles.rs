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
/// Tiles of a thread.
const TILES: usize = 8;

/// Operand of `ldtilecfg`: the shapes of all tiles.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes of a row of each tile.
    bytes: [u16; 16],
    rows: [u8; 16],
}

/// The work that a thread's tiles have shapes for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shaped {
    Nothing,
    /// This number of rows of inputs; see [`shape`].
    Rows(usize),
    /// This number of query rows; see [`shape_few`].
    FewQueries(usize),
}

thread_local! {
    static SHAPED: Cell<Shaped> = const { Cell::new(Shaped::Nothing) };
}

/// The reason why this process has no tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoTiles {
    /// CPUID doesn't name AMX.
    #[error("its processor, or what a virtual machine shows of it, has no AMX")]
    Processor,
    /// XCR0 doesn't have the states of tiles.
    #[error("its system does not switch AMX on; Linux does from 5.16 on")]
    System,
    /// Linux refuses tiles to this process.
    #[error(
        "its system does not let this process use AMX (error {0}); Linux does from 5.16 on, \
         where no sandbox or seccomp filter refuses arch_prctl"
    )]
    Process(i64),
}

/// Checks that the processor has tiles for bf16 and 8-bit integers, and that the system lets
/// this process use them.
///
/// Asks Linux for tiles once: the permission is the process's and holds for threads that
/// were started before. Other systems give none.
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

/// Reads XCR0: the states that the system saves of a thread's registers.
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
    if SHAPED.get() == Shaped::Rows(rows) {
        return;
    }
    let first = rows.clamp(1, ROWS) as u8;
    let others = match rows {
        0..=ROWS => ROWS,
        _ => (rows - ROWS).min(ROWS),
    } as u8;
    let of_tiles = [first, first, others, others, first, others, 16, 16];
    // SAFETY: the process may use tiles, and no shape is larger than a tile.
    unsafe { load(Shaped::Rows(rows), [64; TILES], of_tiles) };
}

/// Gives this thread's tiles the shapes for attention of `rows` (1 to 16) query rows:
///
/// | Tile | Holds | Rows | Columns of 4 bytes |
/// |---|---|---|---|
/// | 0 | scores, keys row by row | 16 | query rows, rounded up to fours |
/// | 1 | queries | 16 | as many |
/// | 2 | keys, or values | 16 | 16 |
/// | 3 | sums | query rows | 16 |
/// | 4 | weights | as many | 16 |
///
/// # Safety
/// [`permission`] was given.
#[inline]
pub(crate) unsafe fn shape_few(rows: usize) {
    debug_assert!((1..=ROWS).contains(&rows), "{rows} rows of a tile");
    if SHAPED.get() == Shaped::FewQueries(rows) {
        return;
    }
    let (high, wide) = (rows as u8, 4 * rows.next_multiple_of(4) as u16);
    let bytes = [wide, wide, 64, 64, 64, 0, 0, 0];
    let of_tiles = [16, 16, 16, high, high, 0, 0, 0];
    // SAFETY: as above.
    unsafe { load(Shaped::FewQueries(rows), bytes, of_tiles) };
}

/// Loads shapes: bytes of a row of each tile, and its rows.
///
/// # Safety
/// [`permission`] was given; rows have up to 64 bytes, and there are up to 16.
unsafe fn load(shaped: Shaped, bytes: [u16; TILES], rows: [u8; TILES]) {
    grow_signal_stack();
    let mut shapes = Shapes {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        bytes: [0; 16],
        rows: [0; 16],
    };
    shapes.bytes[..TILES].copy_from_slice(&bytes);
    shapes.rows[..TILES].copy_from_slice(&rows);
    // SAFETY: the caller's promise.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const shapes, options(nostack, readonly)) };
    SHAPED.set(shaped);
}

/// Lets go of this thread's tiles, and waits until other threads see the data that this
/// thread has written past the caches.
#[inline]
pub(crate) fn release() {
    if SHAPED.replace(Shaped::Nothing) != Shaped::Nothing {
        // SAFETY: every x86-64 processor has it.
        unsafe { _mm_sfence() };
        // SAFETY: this thread has used tiles, so it may.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
