//! Packing: operands are rounded to bf16 and laid out as the kernels read them.
//!
//! Both operands have *lanes*: rows of A, columns of B. Elements are packed in pairs along `k`, in blocks of
//! sixteen lanes by sixteen pairs, padded with zeros. In A a line has sixteen pairs of one lane; the lines of
//! all lanes are adjacent, one such group after the other along `k`. In B a line has one pair of sixteen
//! lanes; the lines of all pairs are adjacent and form a panel, one panel after the other.

use std::ops::Range;

use half::bf16;

use super::aligned_lines::{AlignedLines, CacheLine, WORDS};
use super::convert::{Element, with_widest_vectors};
use super::kernel::{Blocking, Kernel};
use super::matrix::MatrixSlice;
use super::microkernel::PanelA;
#[cfg(target_arch = "x86_64")]
use super::pack_avx512::ZmmLine;
use super::pack_portable::gather_line;
use crate::slice::Slice;
use crate::thread_pool::task_range;

/// Elements along `k` of a block.
pub const DEPTH: usize = 2 * WORDS;

/// An operand to pack.
struct PackSource<'a> {
    elements: Slice<'a>,
    /// Index of the first element.
    first: usize,
    lanes: usize,
    lane_stride: usize,
    k: usize,
    k_stride: usize,
}

impl PackSource<'_> {
    /// Whether lines are loaded along `k`, not across lanes.
    fn loads_along_k(&self) -> bool {
        self.k_stride == 1 || self.lane_stride != 1
    }
}

/// Layout of the packed lines.
#[derive(Clone, Copy)]
enum PackedLayout {
    /// A line per lane; the stride is between groups of sixteen pairs.
    A { stride: usize },
    /// A line per pair; the stride is between panels.
    B { stride: usize },
}

/// A line in a register, or in memory.
///
/// # Safety
/// All methods need the CPU to have the instructions.
pub trait LineVector: Copy {
    /// From memory.
    unsafe fn from_line(line: CacheLine) -> Self;
    /// Transposes a 16 by 16 matrix of words.
    unsafe fn transpose(block: [Self; WORDS]) -> [Self; WORDS];
    /// To memory.
    unsafe fn store(self, to: &mut CacheLine);
}

/// Loads of a line, with rounding to bf16.
///
/// # Safety
/// All methods need the CPU to have the instructions, and the elements to be in bounds.
pub trait LoadLine<T>: LineVector {
    /// `count` adjacent elements along `k`, padded with zeros.
    unsafe fn load_along_k(elements: &[T], at: usize, count: usize) -> Self;
    /// Adjacent lanes: their even elements from `at[0]` on, their odd ones from `at[1]` on.
    unsafe fn load_across_lanes(elements: &[T], at: [usize; 2], count: [usize; 2]) -> Self;
}

/// Lines between panels of B. Odd, to avoid cache conflicts between two panels.
pub fn panel_stride(k: usize) -> usize {
    (k.div_ceil(DEPTH) * WORDS) | 1
}

/// Runs a number of tasks, in any order or in parallel.
pub type ParallelFor<'a> = dyn Fn(usize, &(dyn Fn(usize) + Sync)) + 'a;

/// Tasks per thread, at most: a thread that is delayed leaves some to others.
const TASKS_PER_THREAD: usize = 4;

/// Packed lines, of which tasks write different blocks at the same time.
#[derive(Debug, Clone, Copy)]
struct LinesPtr {
    start: *mut CacheLine,
    len: usize,
}

// SAFETY: lines are reached only by `block`, whose callers promise disjoint blocks.
unsafe impl Send for LinesPtr {}
// SAFETY: as above.
unsafe impl Sync for LinesPtr {}

impl LinesPtr {
    fn new(lines: &mut [CacheLine]) -> Self {
        Self { start: lines.as_mut_ptr(), len: lines.len() }
    }

    /// The lines from an index on.
    fn from(self, first: usize) -> Self {
        assert!(first <= self.len, "line {first} of {}", self.len);
        Self { start: self.start.wrapping_add(first), len: self.len - first }
    }

    /// Sixteen lines.
    ///
    /// # Safety
    /// The lines must be borrowed mutably for as long as this pointer exists, and no other thread may access the
    /// block.
    #[inline(always)]
    unsafe fn block<'a>(self, at: usize) -> &'a mut [CacheLine] {
        assert!(at + WORDS <= self.len, "block at line {at} of {}", self.len);
        // SAFETY: in bounds; the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), WORDS) }
    }
}

/// How packing B is split into tasks.
struct PackTasks {
    /// Parts of the depth.
    depths: usize,
    /// Parts of the columns.
    columns: usize,
}

impl PackTasks {
    /// For a number of threads. Tasks have the whole depth of columns, or all columns of a depth, as far as
    /// possible: those are adjacent in memory.
    fn new(b: &MatrixSlice<'_>, [k, n]: [usize; 2], threads: usize) -> Self {
        let tasks = if threads > 1 { TASKS_PER_THREAD * threads } else { 1 };
        let (groups, panels) = (k.div_ceil(DEPTH), n.div_ceil(WORDS));
        if b.column_stride == 1 && b.row_stride != 1 {
            let depths = tasks.min(groups).max(1);
            Self { depths, columns: (threads / depths).clamp(1, panels.max(1)) }
        } else {
            Self { depths: 1, columns: tasks.min(panels).max(1) }
        }
    }

    /// The depth and the columns of a task.
    fn part(&self, [k, n]: [usize; 2], task: usize) -> (Range<usize>, Range<usize>) {
        let depth = task_range(k, self.depths, task % self.depths, DEPTH);
        (depth, task_range(n, self.columns, task / self.depths, WORDS))
    }
}

/// Packs B on a number of threads, by `parallel_for`.
pub fn pack_b_parallel(
    kernel: Kernel,
    b: &MatrixSlice<'_>,
    [k, n]: [usize; 2],
    lines: &mut AlignedLines,
    threads: usize,
    parallel_for: &ParallelFor<'_>,
) {
    let stride = panel_stride(k);
    let out = LinesPtr::new(lines.at_least(n.div_ceil(WORDS) * stride));
    let tasks = PackTasks::new(b, [k, n], threads);
    parallel_for(tasks.depths * tasks.columns, &|task| {
        let (ks, columns) = tasks.part([k, n], task);
        if ks.is_empty() || columns.is_empty() {
            return;
        }
        let out = out.from(columns.start / WORDS * stride + ks.start / DEPTH * WORDS);
        // SAFETY: parts are disjoint.
        unsafe { pack_lanes(kernel, b, ks, columns, PackedLayout::B { stride }, out) };
    });
}

/// Packs some lanes, from the start of a panel on, and a part of their depth, from the start of a block on. The
/// lanes are columns of `b`: for A, it is transposed.
///
/// # Safety
/// Nothing else may access the lines that these lanes are packed into.
unsafe fn pack_lanes(
    kernel: Kernel,
    b: &MatrixSlice<'_>,
    ks: Range<usize>,
    lanes: Range<usize>,
    layout: PackedLayout,
    out: LinesPtr,
) {
    let source = PackSource {
        elements: b.elements,
        first: lanes.start * b.column_stride + ks.start * b.row_stride,
        lanes: lanes.len(),
        lane_stride: b.column_stride,
        k: ks.len(),
        k_stride: b.row_stride,
    };
    // SAFETY: the caller's promise.
    unsafe { dispatch(kernel, &source, layout, out) };
}

/// Packs some rows and columns of A, or returns them in place if the kernel can read them there.
pub fn pack_a(
    kernel: Kernel,
    blocking: &Blocking,
    a: &MatrixSlice<'_>,
    rows: Range<usize>,
    ks: Range<usize>,
    lines: &mut AlignedLines,
) -> PanelA {
    if let Some(panel) = in_place(blocking, a, &rows, &ks) {
        return panel;
    }
    let packed = packed_rows(blocking, rows.len(), ks.len());
    let widened_lines = if blocking.widen_a { 2 * packed.lines } else { 0 };
    let lines = lines.at_least(packed.lines + widened_lines);
    let (lines, widened) = lines.split_at_mut(packed.lines);
    let layout = PackedLayout::A { stride: packed.stride };
    // SAFETY: the lines are borrowed mutably.
    unsafe { pack_lanes(kernel, &a.transposed(), ks, rows, layout, LinesPtr::new(lines)) };
    if widened.is_empty() {
        return packed_panel(lines, packed.stride, 1);
    }
    widen_lines(lines, widened);
    packed_panel(widened, 2 * packed.stride, 2)
}

/// Lines of packed rows of A, and between groups of sixteen pairs.
struct PackedRows {
    lines: usize,
    stride: usize,
}

fn packed_rows(blocking: &Blocking, rows: usize, depth: usize) -> PackedRows {
    // A tile may read, but not use, rows past the end. The rest of the stride spreads the groups of a tile
    // over the cache sets. It is a multiple of sixteen, so that full blocks fit.
    let stride = (rows + blocking.tile_rows - 1 + 47) / 64 * 64 + 16;
    PackedRows { lines: depth.div_ceil(DEPTH) * stride, stride }
}

/// A, packed once for tasks that multiply the same rows by different columns of B.
#[derive(Debug, Default)]
pub struct PackedA {
    lines: AlignedLines,
    /// Lines of a block of rows.
    block_lines: usize,
    /// Lines between groups of sixteen pairs.
    stride: usize,
}

impl PackedA {
    /// Packs blocks of rows of equal length, but for the last, on all threads.
    pub fn pack_parallel(
        &mut self,
        kernel: Kernel,
        a: &MatrixSlice<'_>,
        row_blocks: &[Range<usize>],
        k: usize,
        parallel_for: &ParallelFor<'_>,
    ) {
        let rows = row_blocks.iter().map(Range::len).max().unwrap_or(0);
        let packed = packed_rows(&kernel.blocking(), rows, k);
        (self.block_lines, self.stride) = (packed.lines, packed.stride);
        let out = LinesPtr::new(self.lines.at_least(row_blocks.len() * packed.lines));
        let (columns, layout) = (a.transposed(), PackedLayout::A { stride: packed.stride });
        parallel_for(row_blocks.len(), &|at| {
            let (rows, out) = (row_blocks[at].clone(), out.from(at * packed.lines));
            // SAFETY: blocks are disjoint.
            unsafe { pack_lanes(kernel, &columns, 0..k, rows, layout, out) };
        });
    }

    /// A block of rows.
    pub fn block(&self, at: usize) -> PanelA {
        let lines = &self.lines.as_slice()[at * self.block_lines..][..self.block_lines];
        packed_panel(lines, self.stride, 1)
    }
}

/// Whether a kernel reads blocks of full tiles of A in place, all of the depth.
pub fn reads_in_place(kernel: Kernel, a: &MatrixSlice<'_>, k: usize) -> bool {
    let blocking = kernel.blocking();
    in_place(&blocking, a, &(0..blocking.tile_rows), &(0..k)).is_some()
}

/// A packed panel with one line per row and group, or two if widened.
fn packed_panel(lines: &[CacheLine], stride: usize, row_lines: usize) -> PanelA {
    let [row_bytes, step_bytes] = [row_lines, stride].map(|lines| lines * size_of::<CacheLine>());
    PanelA { start: lines.as_ptr(), row_bytes, step_bytes }
}

/// Rows of bf16 elements that a kernel can read in place: only full tiles of full lines, because it would
/// read past the end of others.
fn in_place(
    blocking: &Blocking,
    a: &MatrixSlice<'_>,
    rows: &Range<usize>,
    ks: &Range<usize>,
) -> Option<PanelA> {
    let Slice::Bf16(elements) = a.elements else { return None };
    let full = rows.len().is_multiple_of(blocking.tile_rows) && ks.len().is_multiple_of(DEPTH);
    if !(blocking.a_in_place && full && a.column_stride == 1) || ks.is_empty() {
        return None;
    }
    let start = elements[rows.start * a.row_stride + ks.start..].as_ptr().cast();
    let row_bytes = a.row_stride * size_of::<bf16>();
    Some(PanelA { start, row_bytes, step_bytes: size_of::<CacheLine>() })
}

/// Widens each line to two of f32: the first elements of its pairs, then the second ones.
fn widen_lines(packed: &[CacheLine], widened: &mut [CacheLine]) {
    with_widest_vectors(
        #[inline(always)]
        || {
            for (line, widened) in packed.iter().zip(widened.as_chunks_mut::<2>().0) {
                for i in 0..WORDS {
                    widened[0].0[i] = line.0[i] << 16;
                    widened[1].0[i] = line.0[i] & 0xffff_0000;
                }
            }
        },
    );
}

/// # Safety
/// Nothing else may access the lines that the source is packed into.
unsafe fn dispatch(kernel: Kernel, source: &PackSource<'_>, layout: PackedLayout, out: LinesPtr) {
    match kernel {
        // SAFETY: `PackedB` checked that the CPU supports the kernel.
        #[cfg(target_arch = "x86_64")]
        Kernel::Amx | Kernel::Avx512Bf16 => unsafe { pack_avx512_bf16(source, layout, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx512 => unsafe { pack_avx512(source, layout, out) },
        _ => with_widest_vectors(
            #[inline(always)]
            || {
                // SAFETY: a line in memory needs no particular instructions.
                unsafe { pack::<CacheLine>(source, layout, out) }
            },
        ),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn pack_avx512_bf16(source: &PackSource<'_>, layout: PackedLayout, out: LinesPtr) {
    // SAFETY: the instructions are enabled; the caller's promise.
    unsafe { pack::<ZmmLine<true>>(source, layout, out) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pack_avx512(source: &PackSource<'_>, layout: PackedLayout, out: LinesPtr) {
    // SAFETY: the instructions are enabled; the caller's promise.
    unsafe { pack::<ZmmLine<false>>(source, layout, out) }
}

/// Dispatches on the dtype once for all blocks.
#[inline(always)]
unsafe fn pack<V: LoadLine<f32> + LoadLine<bf16>>(
    source: &PackSource<'_>,
    layout: PackedLayout,
    out: LinesPtr,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match source.elements {
            Slice::F32(elements) => pack_elements::<f32, V>(elements, source, layout, out),
            Slice::Bf16(elements) => pack_elements::<bf16, V>(elements, source, layout, out),
        }
    }
}

/// Dispatches on the strides once for all blocks.
#[inline(always)]
unsafe fn pack_elements<T: Element, V: LoadLine<T>>(
    elements: &[T],
    source: &PackSource<'_>,
    layout: PackedLayout,
    out: LinesPtr,
) {
    let PackSource { lane_stride, k_stride, .. } = *source;
    // SAFETY: the caller promises the instructions. The operand's last element is in bounds, and padding is
    // not read.
    unsafe {
        if k_stride == 1 {
            pack_blocks(
                source,
                layout,
                out,
                #[inline(always)]
                |at, block, i| V::load_along_k(elements, at, block.lane_len(i)),
            );
        } else if lane_stride == 1 {
            pack_blocks(
                source,
                layout,
                out,
                #[inline(always)]
                |at, block, i| {
                    let counts = [block.k_len(2 * i), block.k_len(2 * i + 1)];
                    V::load_across_lanes(elements, [at, at + k_stride], counts)
                },
            );
        } else {
            pack_blocks(source, layout, out, |at, block, i| {
                V::from_line(gather_line(elements, at, k_stride, block.lane_len(i)))
            });
        }
    }
}

/// Lanes and depth of a block within the operand; all else is padding.
#[derive(Clone, Copy, PartialEq, Eq)]
struct BlockExtent {
    lanes: usize,
    depth: usize,
}

impl BlockExtent {
    const FULL: Self = Self { lanes: WORDS, depth: DEPTH };

    /// Elements of a lane.
    #[inline(always)]
    fn lane_len(self, lane: usize) -> usize {
        if lane < self.lanes { self.depth } else { 0 }
    }

    /// Lanes that have an element at `k`.
    #[inline(always)]
    fn k_len(self, k: usize) -> usize {
        if k < self.depth { self.lanes } else { 0 }
    }
}

/// Packs block by block, in the order of memory. `load` loads a line of a block: given the index of its first
/// element, the block's extent, and the index of the line in the block.
#[inline(always)]
unsafe fn pack_blocks<V: LineVector>(
    source: &PackSource<'_>,
    layout: PackedLayout,
    out: LinesPtr,
    load: impl Fn(usize, BlockExtent, usize) -> V,
) {
    let (groups, depths) = (source.lanes.div_ceil(WORDS), source.k.div_ceil(DEPTH));
    let k_contiguous = source.k_stride == 1;
    let step = if source.loads_along_k() { source.lane_stride } else { 2 * source.k_stride };
    let (outer, inner) = if k_contiguous { (groups, depths) } else { (depths, groups) };
    for i in 0..outer {
        for j in 0..inner {
            let (group, depth) = if k_contiguous { (i, j) } else { (j, i) };
            let to = match layout {
                PackedLayout::A { stride } => depth * stride + group * WORDS,
                PackedLayout::B { stride } => group * stride + depth * WORDS,
            };
            // All lines, including padding.
            // SAFETY: the caller's promise.
            let to = unsafe { out.block(to) };
            let [lane, k] = [group * WORDS, depth * DEPTH];
            let at = source.first + lane * source.lane_stride + k * source.k_stride;
            let block = BlockExtent {
                lanes: (source.lanes - lane).min(WORDS),
                depth: (source.k - k).min(DEPTH),
            };
            let transposed = source.loads_along_k() != matches!(layout, PackedLayout::A { .. });
            // SAFETY: the caller's promise.
            unsafe {
                // Most blocks are full; a constant extent needs no masks.
                if block == BlockExtent::FULL {
                    pack_block(
                        transposed,
                        to,
                        [at, step],
                        #[inline(always)]
                        |at, i| load(at, BlockExtent::FULL, i),
                    );
                } else {
                    pack_block(
                        transposed,
                        to,
                        [at, step],
                        #[inline(always)]
                        |at, i| load(at, block, i),
                    );
                }
            }
        }
    }
}

/// Sixteen lanes by sixteen pairs, loaded as they are in memory. The loop always has sixteen iterations, so
/// that the block stays in registers.
#[inline(always)]
unsafe fn pack_block<V: LineVector>(
    transposed: bool,
    out: &mut [CacheLine],
    [mut at, step]: [usize; 2],
    load: impl Fn(usize, usize) -> V,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut block = [V::from_line(CacheLine::ZERO); WORDS];
        for (i, line) in block.iter_mut().enumerate() {
            *line = load(at, i);
            at += step;
        }
        // Stored in both branches, so that the block is not spilled in between.
        if transposed {
            store_lines(V::transpose(block), out);
        } else {
            store_lines(block, out);
        }
    }
}

#[inline(always)]
unsafe fn store_lines<V: LineVector>(block: [V; WORDS], out: &mut [CacheLine]) {
    for (line, to) in block.iter().zip(out) {
        // SAFETY: the caller's promise.
        unsafe { line.store(to) };
    }
}
