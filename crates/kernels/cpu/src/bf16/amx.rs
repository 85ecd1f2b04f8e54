//! Tiles of AMX. Their instructions are not in the standard library, so they are written out here.
//!
//! Eight tiles of sixteen rows by 64 bytes: four for the sums of 32 rows by 32 columns, two for the
//! left operand, two for the right one. The packing is theirs: sixteen lines in a row are a tile of
//! either operand.

use std::arch::asm;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;

use super::finish::{COLUMNS, Goal, Sums, finish};
use super::kernel::Plan;
use super::lines::{Line, WORDS};
use super::tile::{Run, Tile};
use super::x86::Natively;

/// Rows of a tile.
const TILE_ROWS: usize = 16;
/// Bytes of a row of a tile, and of a line.
const ROW_BYTES: usize = size_of::<Line>();

/// How AMX cuts products.
pub fn plan(run: Run) -> Plan {
    Plan { rows: 2 * TILE_ROWS, panels: 2, depth: 512, left_widens: 0, in_place: true, run }
}

/// Whether the processor has it and the kernel lets this process use it.
pub fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| has_instructions() && has_state() && is_permitted())
}

fn has_instructions() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    let wanted = AMX_BF16 | AMX_TILE;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & wanted == wanted
}

/// Whether the system saves tiles when it switches threads.
fn has_state() -> bool {
    #[target_feature(enable = "xsave")]
    fn enabled() -> u64 {
        // SAFETY: register 0 is there where the system uses `xsave`.
        unsafe { std::arch::x86_64::_xgetbv(0) }
    }
    const TILE_CONFIG: u64 = 1 << 17;
    const TILE_DATA: u64 = 1 << 18;
    let wanted = TILE_CONFIG | TILE_DATA;
    // SAFETY: detection of `xsave` says that the processor has it and the system uses it.
    is_x86_feature_detected!("xsave") && unsafe { enabled() } & wanted == wanted
}

/// Tiles are large, so Linux gives the memory for them only to processes that ask.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// Nobody has tried it elsewhere.
#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// The shapes of this thread's tiles, until the last of them is dropped. Then the system has less to
/// save.
pub struct Configured {
    /// It is of one thread.
    stays: PhantomData<*const ()>,
}

thread_local! {
    static HOLDERS: Holders = const { Holders(Cell::new(0)) };
}

/// How many hold this thread's tiles. Configuring them takes longer than a small product.
struct Holders(Cell<usize>);

impl Holders {
    /// Whether it is the first.
    fn enter(&self) -> bool {
        self.0.replace(self.0.get() + 1) == 0
    }

    /// Whether it was the last.
    fn leave(&self) -> bool {
        self.0.set(self.0.get() - 1);
        self.0.get() == 0
    }
}

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

const _: () = assert!(size_of::<Configuration>() == 64);

/// Eight whole tiles; the other places are reserved.
const WHOLE_TILES: Configuration = Configuration {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: {
        let mut row_bytes = [0; 16];
        let mut tile = 0;
        while tile < 8 {
            row_bytes[tile] = ROW_BYTES as u16;
            tile += 1;
        }
        row_bytes
    },
    rows: {
        let mut rows = [0; 16];
        let mut tile = 0;
        while tile < 8 {
            rows[tile] = TILE_ROWS as u8;
            tile += 1;
        }
        rows
    },
};

impl Configured {
    /// Configures the tiles. Only where AMX is available.
    pub fn new() -> Self {
        assert!(is_available(), "tiles are configured where there are none");
        if HOLDERS.with(Holders::enter) {
            // SAFETY: there are tiles, and the configuration is one of palette 1.
            unsafe { asm!("ldtilecfg [{}]", in(reg) &WHOLE_TILES, options(nostack, readonly)) };
        }
        Self { stays: PhantomData }
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        if HOLDERS.with(Holders::leave) {
            // SAFETY: there are tiles; nothing is left in them.
            unsafe { asm!("tilerelease", options(nostack, nomem)) };
        }
    }
}

/// Where the four corners of a tile come from and go to.
struct Corners {
    /// Upper and lower sixteen rows of the left operand.
    left: [*const Line; 2],
    /// Bytes from a row of it to the next.
    left_row: usize,
    /// Bytes from sixteen pairs to the next.
    left_step: usize,
    /// The two panels of the right operand.
    right: [*const Line; 2],
    /// How often sixteen pairs there are.
    steps: usize,
    /// Upper and lower sixteen rows of the result.
    to: [*mut f32; 2],
    /// Bytes from a row of it to the next.
    to_row: usize,
}

impl Corners {
    fn of(tile: &Tile, sums: &mut Sums, goal: &mut Goal<'_>) -> Self {
        // Without a second panel the first is taken twice: those sums are not used.
        let second = (tile.panels - 1) * tile.right_stride;
        let (to, stride) =
            straight(tile, goal).unwrap_or((sums.0.as_flattened_mut().as_mut_ptr(), COLUMNS));
        Self {
            left: [0, TILE_ROWS].map(|row| tile.left.at_row(row).start),
            left_row: tile.left.row,
            left_step: tile.left.step,
            right: [tile.right, tile.right.wrapping_add(second)],
            steps: tile.pairs.div_ceil(WORDS),
            to: [to, to.wrapping_add(TILE_ROWS * stride)],
            to_row: stride * size_of::<f32>(),
        }
    }
}

/// Where a whole tile goes, if not to sums first.
fn straight(tile: &Tile, goal: &mut Goal<'_>) -> Option<(*mut f32, usize)> {
    let is_whole = tile.rows == 2 * TILE_ROWS;
    if is_whole { goal.straight(tile.rows, COLUMNS) } else { None }
}

/// # Safety
/// See [`Run`]; and this thread's tiles must be configured.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub unsafe fn run(tile: &Tile, sums: &mut Sums, mut goal: Goal<'_>) {
    let Corners { left, left_row, left_step, right, steps, to, to_row } =
        Corners::of(tile, sums, &mut goal);
    // SAFETY: the caller vouches for configured tiles and for operands of that many steps; what
    // is written has room for four tiles. Nothing but this uses the tiles.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "test {steps}, {steps}",
            "jz 4f",
            "tileloadd tmm6, [{right_0} + {row}*1]",
            "tileloadd tmm4, [{left_0} + {left_row}*1]",
            "tileloadd tmm7, [{right_1} + {row}*1]",
            "tileloadd tmm5, [{left_1} + {left_row}*1]",
            "dec {steps}",
            "jz 3f",
            "2:",
            "add {left_0}, {left_step}",
            "add {left_1}, {left_step}",
            "add {right_0}, 1024",
            "add {right_1}, 1024",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm4, [{left_0} + {left_row}*1]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tileloadd tmm6, [{right_0} + {row}*1]",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "tileloadd tmm5, [{left_1} + {left_row}*1]",
            "tileloadd tmm7, [{right_1} + {row}*1]",
            "dec {steps}",
            "jnz 2b",
            "3:",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "4:",
            "tilestored [{upper} + {to_row}*1], tmm0",
            "tilestored [{upper} + {to_row}*1 + 64], tmm1",
            "tilestored [{lower} + {to_row}*1], tmm2",
            "tilestored [{lower} + {to_row}*1 + 64], tmm3",
            left_0 = inout(reg) left[0] => _,
            left_1 = inout(reg) left[1] => _,
            left_row = in(reg) left_row,
            left_step = in(reg) left_step,
            right_0 = inout(reg) right[0] => _,
            right_1 = inout(reg) right[1] => _,
            row = in(reg) ROW_BYTES,
            steps = inout(reg) steps => _,
            upper = in(reg) to[0],
            lower = in(reg) to[1],
            to_row = in(reg) to_row,
            options(nostack),
        );
    }
    if straight(tile, &mut goal).is_none() {
        // SAFETY: as the caller says.
        unsafe { finish::<Natively>(sums, tile.rows, goal) };
    }
}

#[cfg(test)]
pub mod emulated;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_holder_configures_and_the_last_releases() {
        let holders = Holders(Cell::new(0));
        assert!(holders.enter());
        assert!(!holders.enter());
        assert!(!holders.leave());
        assert!(holders.leave());
        assert!(holders.enter());
    }
}
