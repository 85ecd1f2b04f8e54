//! AMX kernel, in assembly because the standard library has no stable intrinsics for it.
//!
//! Of the eight tiles of 16 rows by 64 bytes, four accumulate 32 rows by 32 columns, two hold A and two hold
//! B. The packing matches: sixteen consecutive lines are a tile of either operand.

use std::arch::asm;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;

use super::aligned_lines::{CacheLine, WORDS};
use super::epilogue::{Accumulators, TILE_COLUMNS, TileOutput, write_tile};
use super::kernel::Blocking;
use super::microkernel::{GemmTile, MicroKernelFn};
use super::microkernel_x86::NativeRounding;
use crate::gemm::Epilogue;
use crate::gemm::small_f32::MatrixPtrMut;
use crate::gemm::task_grid::BlockSize;

/// Rows of a tile.
const TILE_ROWS: usize = 16;
/// Bytes of a row of a tile, and of a line.
const ROW_BYTES: usize = size_of::<CacheLine>();

/// Blocking parameters of AMX.
pub fn blocking(run: MicroKernelFn) -> Blocking {
    Blocking {
        tile_rows: 2 * TILE_ROWS,
        tile_panels: 2,
        kc: 1024,
        widen_a: false,
        a_in_place: true,
        max_block: Some(MAX_BLOCK),
        run,
    }
}

/// Rows that use a panel of B before it leaves the cache, and columns that use rows of A: at a depth of `kc`,
/// 256 KiB of A and 2 MiB of B, which are read only once.
const MAX_BLOCK: BlockSize = BlockSize { rows: 128, columns: 1024 };

/// Whether the CPU has AMX and the operating system lets this process use it.
pub fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| has_instructions() && has_xsave_state() && is_permitted())
}

fn has_instructions() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    let needed = AMX_BF16 | AMX_TILE;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & needed == needed
}

/// Whether the operating system saves tile state on context switches.
fn has_xsave_state() -> bool {
    #[target_feature(enable = "xsave")]
    fn xcr0() -> u64 {
        // SAFETY: XCR0 exists where the operating system uses `xsave`.
        unsafe { std::arch::x86_64::_xgetbv(0) }
    }
    const TILE_CONFIG: u64 = 1 << 17;
    const TILE_DATA: u64 = 1 << 18;
    let needed = TILE_CONFIG | TILE_DATA;
    // SAFETY: detection of `xsave` includes its use by the operating system.
    is_x86_feature_detected!("xsave") && unsafe { xcr0() } & needed == needed
}

/// Linux allocates the large tile state only for processes that request it.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two integers and no pointers.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// Only Linux is supported.
#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// Keeps this thread's tiles configured. Dropping the last one releases them, so that context switches save
/// less state.
pub struct TileConfigGuard {
    /// Not `Send`: the configuration belongs to the thread.
    not_send: PhantomData<*const ()>,
}

thread_local! {
    static GUARDS: GuardCount = const { GuardCount(Cell::new(0)) };
}

/// Guards of this thread. Configuring tiles takes longer than a small GEMM.
struct GuardCount(Cell<usize>);

impl GuardCount {
    /// Whether it is the first.
    fn acquire(&self) -> bool {
        self.0.replace(self.0.get() + 1) == 0
    }

    /// Whether it was the last.
    fn release(&self) -> bool {
        self.0.set(self.0.get() - 1);
        self.0.get() == 0
    }
}

/// Operand of `ldtilecfg`.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

const _: () = assert!(size_of::<TileConfig>() == 64);

/// Eight full tiles; the other entries are reserved.
const FULL_TILES: TileConfig = {
    let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
    let mut tile = 0;
    while tile < 8 {
        row_bytes[tile] = ROW_BYTES as u16;
        rows[tile] = TILE_ROWS as u8;
        tile += 1;
    }
    TileConfig { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
};

/// `asm!` that clobbers all tiles. The compiler never allocates tiles itself, because no function enables
/// AMX, so the configuration persists between these blocks.
macro_rules! tile_asm {
    ($($arg:tt)*) => {
        asm!(
            $($arg)*
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

impl TileConfigGuard {
    /// Configures the tiles.
    ///
    /// # Panics
    /// If AMX is not available.
    pub fn new() -> Self {
        assert!(is_available(), "AMX is not available");
        if GUARDS.with(GuardCount::acquire) {
            // SAFETY: AMX is available, and the configuration is valid. It zeroes the tiles, in which nothing
            // is live between blocks.
            unsafe { tile_asm!("ldtilecfg [{}]", in(reg) &FULL_TILES,) };
        }
        Self { not_send: PhantomData }
    }
}

impl Drop for TileConfigGuard {
    fn drop(&mut self) {
        if GUARDS.with(GuardCount::release) {
            // SAFETY: AMX is available, and nothing is live in the tiles.
            unsafe { tile_asm!("tilerelease",) };
        }
    }
}

/// Addresses and strides of the 2 by 2 tiles of a micro-kernel.
struct TileOperands {
    /// Upper and lower sixteen rows of A.
    a: [*const CacheLine; 2],
    /// Bytes between rows of A.
    a_row: usize,
    /// Bytes between groups of sixteen pairs of A.
    a_step: usize,
    /// The two panels of B.
    b: [*const CacheLine; 2],
    /// Lines of B that are used next.
    prefetch: *const CacheLine,
    /// Number of groups of sixteen pairs.
    steps: usize,
    /// What the accumulators start with instead of zeros.
    start: Option<MatrixPtrMut>,
    /// Where they are stored.
    c: MatrixPtrMut,
    /// Whether that is the output, not `acc`.
    is_direct: bool,
}

impl TileOperands {
    /// Changes the epilogue of a tile whose accumulators start with the output.
    ///
    /// # Safety
    /// See [`MicroKernelFn`].
    unsafe fn new(tile: &GemmTile, acc: &mut Accumulators, output: &mut TileOutput<'_>) -> Self {
        // Without a second panel, the first is read twice and its second result is not used.
        let second = (tile.panels - 1) * tile.b_stride;
        let is_full = tile.rows == 2 * TILE_ROWS && output.columns == TILE_COLUMNS;
        let mut start = tile.sums;
        if let Some(c) = output.accumulated() {
            // In a partial tile too, so that sums do not depend on how rows are split.
            output.epilogue = Epilogue::Store;
            if !is_full {
                // SAFETY: the caller's promise.
                unsafe { acc.load(tile.rows, output.columns, c) };
            }
            start = Some(if is_full { c } else { acc.as_mut_ptr() });
        }
        let direct = output.direct_store(TILE_COLUMNS).filter(|_| is_full);
        Self {
            a: [0, TILE_ROWS].map(|row| tile.a.at_row(row).start),
            a_row: tile.a.row_bytes,
            a_step: tile.a.step_bytes,
            b: [tile.b, tile.b.wrapping_add(second)],
            prefetch: tile.prefetch,
            steps: tile.pairs.div_ceil(WORDS),
            start,
            c: direct.unwrap_or_else(|| acc.as_mut_ptr()),
            is_direct: direct.is_some(),
        }
    }

    /// Accumulates the products of all steps.
    ///
    /// # Safety
    /// See [`run`].
    #[inline(always)]
    unsafe fn multiply(&self) {
        // SAFETY: the caller promises configured tiles and operands of that many steps. Prefetches may have any
        // address.
        unsafe {
            tile_asm!(
                "test {steps}, {steps}",
                "jz 3f",
                "2:",
                "tileloadd tmm6, [{b_0} + {row}*1]",
                "tileloadd tmm4, [{a_0} + {a_row}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b_1} + {row}*1]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{a_1} + {a_row}*1]",
                "prefetcht1 [{next}]",
                "prefetcht1 [{next} + 64]",
                "prefetcht1 [{next} + 128]",
                "prefetcht1 [{next} + 192]",
                "prefetcht1 [{next} + 256]",
                "prefetcht1 [{next} + 320]",
                "prefetcht1 [{next} + 384]",
                "prefetcht1 [{next} + 448]",
                "add {next}, 512",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "add {a_0}, {a_step}",
                "add {a_1}, {a_step}",
                "add {b_0}, 1024",
                "add {b_1}, 1024",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "dec {steps}",
                "jnz 2b",
                "3:",
                a_0 = inout(reg) self.a[0] => _,
                a_1 = inout(reg) self.a[1] => _,
                a_row = in(reg) self.a_row,
                a_step = in(reg) self.a_step,
                b_0 = inout(reg) self.b[0] => _,
                b_1 = inout(reg) self.b[1] => _,
                row = in(reg) ROW_BYTES,
                next = inout(reg) self.prefetch => _,
                steps = inout(reg) self.steps => _,
            );
        }
    }
}

/// # Safety
/// See [`MicroKernelFn`]; and a [`TileConfigGuard`] must exist on this thread.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub unsafe fn run(tile: &GemmTile, acc: &mut Accumulators, mut output: TileOutput<'_>) {
    // SAFETY: the caller promises operands and an output of this size, and configured tiles, which keep their
    // contents between these blocks.
    unsafe {
        let operands = TileOperands::new(tile, acc, &mut output);
        match operands.start {
            None => tile_asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",),
            Some(start) => load_accumulators(start),
        }
        operands.multiply();
        store_accumulators(operands.c);
        if !operands.is_direct {
            write_tile::<NativeRounding>(acc, tile.rows, output);
        }
    }
}

/// # Safety
/// See [`run`]; there must be 32 by 32 elements.
#[inline(always)]
unsafe fn load_accumulators(from: MatrixPtrMut) {
    // SAFETY: the caller's promise.
    unsafe {
        tile_asm!(
            "tileloadd tmm0, [{upper} + {row}*1]",
            "tileloadd tmm1, [{upper} + {row}*1 + 64]",
            "tileloadd tmm2, [{lower} + {row}*1]",
            "tileloadd tmm3, [{lower} + {row}*1 + 64]",
            upper = in(reg) from.ptr,
            lower = in(reg) from.at_row(TILE_ROWS).ptr,
            row = in(reg) from.row_stride * size_of::<f32>(),
        );
    }
}

/// # Safety
/// As [`load_accumulators`].
#[inline(always)]
unsafe fn store_accumulators(to: MatrixPtrMut) {
    // SAFETY: the caller's promise.
    unsafe {
        tile_asm!(
            "tilestored [{upper} + {row}*1], tmm0",
            "tilestored [{upper} + {row}*1 + 64], tmm1",
            "tilestored [{lower} + {row}*1], tmm2",
            "tilestored [{lower} + {row}*1 + 64], tmm3",
            upper = in(reg) to.ptr,
            lower = in(reg) to.at_row(TILE_ROWS).ptr,
            row = in(reg) to.row_stride * size_of::<f32>(),
        );
    }
}

#[cfg(test)]
pub mod emulated;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_guard_configures_and_last_guard_releases() {
        let guards = GuardCount(Cell::new(0));
        assert!(guards.acquire());
        assert!(!guards.acquire());
        assert!(!guards.release());
        assert!(guards.release());
        assert!(guards.acquire());
    }
}
