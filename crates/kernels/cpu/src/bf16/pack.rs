//! Packing: operands are rounded to brain floats and laid out as the kernels read them.
//!
//! Both operands have *lanes*: rows of the left one, columns of the right one. Their numbers go in
//! pairs along `k`, in blocks of sixteen lanes by sixteen pairs; what is missing at the edges is
//! zero. The left operand keeps a line a lane (sixteen pairs of it), the lines of all lanes
//! together, one such group after the other along `k`. The right one keeps a line a pair (sixteen
//! lanes of it), the lines of all pairs together: a panel; one panel after the other.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use half::bf16;

use super::convert::fastest;
use super::kernel::{Kernel, Plan};
use super::lines::{Line, Lines, WORDS};
use super::operand::{Matrix, Numbers};
use super::pack_plain::{Number, gathered};
use super::tile::Left;

/// Numbers along `k` of a block.
pub const DEPTH: usize = 2 * WORDS;

/// What is packed.
pub struct Source<'a> {
    /// All numbers.
    pub numbers: Numbers<'a>,
    /// Where the first one is.
    pub first: usize,
    /// How many lanes there are, and from one to the next.
    pub lanes: usize,
    lane_stride: usize,
    /// How many numbers a lane has, and from one to the next.
    pub k: usize,
    k_stride: usize,
}

impl Source<'_> {
    /// Whether a line is loaded from one lane, not across lanes.
    fn is_line_a_lane(&self) -> bool {
        self.k_stride == 1 || self.lane_stride != 1
    }
}

/// How the lines are laid out.
#[derive(Clone, Copy)]
enum Layout {
    /// A line a lane. The stride leads to the next sixteen pairs.
    Left { stride: usize },
    /// A line a pair. The stride leads to the next panel.
    Right { stride: usize },
}

/// A line in whatever holds one best.
pub trait Vector: Copy {
    /// # Safety
    /// Here and below: the processor must have the instructions.
    ///
    /// From memory.
    unsafe fn of(line: Line) -> Self;
    /// Rows for columns.
    unsafe fn transposed(block: [Self; WORDS]) -> [Self; WORDS];
    /// To memory.
    unsafe fn write(self, to: &mut Line);
}

/// Numbers that are rounded to brain floats on their way into a line.
pub trait Rounds<N>: Vector {
    /// # Safety
    /// Here and below: the processor must have the instructions, and the numbers must be there.
    ///
    /// `count` numbers next to each other along `k`, then zeros.
    unsafe fn along(numbers: &[N], at: usize, count: usize) -> Self;
    /// Lanes next to each other: the even numbers of so many, and the odd ones of so many.
    unsafe fn across(numbers: &[N], at: [usize; 2], count: [usize; 2]) -> Self;
}

/// Lines from a panel of a right operand to the next. Odd, so that lines of two panels do not
/// compete for the same places of the cache.
pub fn panel_stride(k: usize) -> usize {
    (k.div_ceil(DEPTH) * WORDS) | 1
}

/// Does as many parts of something as it is told to, in any order or at the same time.
pub type Parts<'a> = dyn Fn(usize, &(dyn Fn(usize) + Sync)) + 'a;

/// Packs a right operand.
pub fn right(kernel: Kernel, b: &Matrix<'_>, [k, n]: [usize; 2], lines: &mut Lines) {
    let out = lines.at_least(n.div_ceil(WORDS) * panel_stride(k));
    right_lanes(kernel, b, k, 0..n, out);
}

/// The same in as many parts as are wanted, which `run` may do at the same time.
pub fn right_in_parts(
    kernel: Kernel,
    b: &Matrix<'_>,
    [k, n]: [usize; 2],
    lines: &mut Lines,
    parts: usize,
    run: &Parts<'_>,
) {
    let (stride, panels) = (panel_stride(k), n.div_ceil(WORDS));
    let each = panels.div_ceil(parts.max(1)).max(1);
    let out = lines.at_least(panels * stride);
    let parts: Vec<Mutex<&mut [Line]>> = out.chunks_mut(each * stride).map(Mutex::new).collect();
    run(parts.len(), &|part| {
        let lane = part * each * WORDS;
        let lanes = lane..n.min(lane + each * WORDS);
        let mut out = parts[part].lock().unwrap_or_else(PoisonError::into_inner);
        right_lanes(kernel, b, k, lanes, &mut out);
    });
}

/// Packs some columns of a right operand: whole panels, but for the last.
fn right_lanes(kernel: Kernel, b: &Matrix<'_>, k: usize, lanes: Range<usize>, out: &mut [Line]) {
    let source = Source {
        numbers: b.numbers,
        first: lanes.start * b.column_stride,
        lanes: lanes.len(),
        lane_stride: b.column_stride,
        k,
        k_stride: b.row_stride,
    };
    dispatch(kernel, &source, Layout::Right { stride: panel_stride(k) }, out);
}

/// Some rows and columns of a left operand: from where they are if the kernel can, else packed.
pub fn left(
    kernel: Kernel,
    plan: &Plan,
    a: &Matrix<'_>,
    rows: Range<usize>,
    ks: Range<usize>,
    lines: &mut Lines,
) -> Left {
    if let Some(left) = in_place(plan, a, &rows, &ks) {
        return left;
    }
    // A tile may read, but not use, more rows than there are. The rest of the stride spreads the
    // groups of a tile over the cache. It is a multiple of sixteen, so whole blocks fit.
    let stride = (rows.len() + plan.rows - 1 + 47) / 64 * 64 + 16;
    let count = ks.len().div_ceil(DEPTH) * stride;
    let source = Source {
        numbers: a.numbers,
        first: rows.start * a.row_stride + ks.start * a.column_stride,
        lanes: rows.len(),
        lane_stride: a.row_stride,
        k: ks.len(),
        k_stride: a.column_stride,
    };
    let (narrow, wide) = lines.at_least(count * (1 + plan.left_widens * 2)).split_at_mut(count);
    dispatch(kernel, &source, Layout::Left { stride }, narrow);
    if wide.is_empty() {
        return packed_left(narrow, stride, 1);
    }
    widen_lines(narrow, wide);
    packed_left(wide, 2 * stride, 2)
}

/// A row a line, or two if they are widened.
fn packed_left(lines: &[Line], stride: usize, lines_of_row: usize) -> Left {
    let [row, step] = [lines_of_row, stride].map(|lines| lines * size_of::<Line>());
    Left { start: lines.as_ptr(), row, step }
}

/// Rows of brain floats that a kernel reads from where they are: whole tiles of whole lines, for it
/// would read what is beside others.
fn in_place(plan: &Plan, a: &Matrix<'_>, rows: &Range<usize>, ks: &Range<usize>) -> Option<Left> {
    let Numbers::Bf16(numbers) = a.numbers else { return None };
    let whole = rows.len().is_multiple_of(plan.rows) && ks.len().is_multiple_of(DEPTH);
    if !(plan.in_place && whole && a.column_stride == 1) || ks.is_empty() {
        return None;
    }
    let start = numbers[rows.start * a.row_stride + ks.start..].as_ptr().cast();
    Some(Left { start, row: a.row_stride * size_of::<bf16>(), step: size_of::<Line>() })
}

/// Each line becomes two: the first numbers of its pairs, then the second ones.
fn widen_lines(narrow: &[Line], wide: &mut [Line]) {
    fastest(
        #[inline(always)]
        || {
            for (line, wide) in narrow.iter().zip(wide.as_chunks_mut::<2>().0) {
                for i in 0..WORDS {
                    wide[0].0[i] = line.0[i] << 16;
                    wide[1].0[i] = line.0[i] & 0xffff_0000;
                }
            }
        },
    );
}

fn dispatch(kernel: Kernel, source: &Source<'_>, layout: Layout, out: &mut [Line]) {
    match kernel {
        #[cfg(target_arch = "x86_64")]
        Kernel::Amx | Kernel::Avx512Bf16 => {
            use super::pack_avx512::{By, native};
            // SAFETY: whoever chose the kernel has made sure of its instructions.
            unsafe {
                native(
                    #[inline(always)]
                    || pack::<By<true>>(source, layout, out),
                )
            }
        }
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx512 => {
            use super::pack_avx512::{By, plain};
            // SAFETY: as above.
            unsafe {
                plain(
                    #[inline(always)]
                    || pack::<By<false>>(source, layout, out),
                )
            }
        }
        _ => fastest(
            #[inline(always)]
            || {
                // SAFETY: plain words need no instructions of their own.
                unsafe { pack::<Line>(source, layout, out) }
            },
        ),
    }
}

/// Asks for format and order once, so that nothing is asked again for every block.
#[inline(always)]
unsafe fn pack<V: Rounds<f32> + Rounds<bf16>>(
    source: &Source<'_>,
    layout: Layout,
    out: &mut [Line],
) {
    // SAFETY: as the caller says.
    unsafe {
        match source.numbers {
            Numbers::F32(numbers) => pack_numbers::<f32, V>(numbers, source, layout, out),
            Numbers::Bf16(numbers) => pack_numbers::<bf16, V>(numbers, source, layout, out),
        }
    }
}

#[inline(always)]
unsafe fn pack_numbers<N: Number, V: Rounds<N>>(
    numbers: &[N],
    source: &Source<'_>,
    layout: Layout,
    out: &mut [Line],
) {
    let Source { lane_stride, k_stride, .. } = *source;
    // SAFETY: as the caller says; all places are inside, for the operand holds its last number, and
    // what is not there is not read.
    unsafe {
        if k_stride == 1 {
            pack_blocks(
                source,
                layout,
                out,
                #[inline(always)]
                |at, [lanes, depth], i| {
                    let count = if i < lanes { depth } else { 0 };
                    V::along(numbers, at, count)
                },
            );
        } else if lane_stride == 1 {
            pack_blocks(
                source,
                layout,
                out,
                #[inline(always)]
                |at, [lanes, depth], i| {
                    let count = |k: usize| if k < depth { lanes } else { 0 };
                    let counts = [count(2 * i), count(2 * i + 1)];
                    V::across(numbers, [at, at + k_stride], counts)
                },
            );
        } else {
            pack_blocks(source, layout, out, |at, [lanes, depth], i| {
                let count = if i < lanes { depth } else { 0 };
                V::of(gathered(numbers, at, k_stride, count))
            });
        }
    }
}

/// Block by block, along what lies together in memory. `line` loads a line whose first number is
/// at a place, of a block of so many lanes and so many numbers of each; then it is told which line.
#[inline(always)]
unsafe fn pack_blocks<V: Vector>(
    source: &Source<'_>,
    layout: Layout,
    out: &mut [Line],
    line: impl Fn(usize, [usize; 2], usize) -> V,
) {
    let (groups, depths) = (source.lanes.div_ceil(WORDS), source.k.div_ceil(DEPTH));
    let along = source.k_stride == 1;
    let step = if source.is_line_a_lane() { source.lane_stride } else { 2 * source.k_stride };
    let (outer, inner) = if along { (groups, depths) } else { (depths, groups) };
    for i in 0..outer {
        for j in 0..inner {
            let (group, depth) = if along { (i, j) } else { (j, i) };
            let to = match layout {
                Layout::Left { stride } => depth * stride + group * WORDS,
                Layout::Right { stride } => group * stride + depth * WORDS,
            };
            // All of them, also those of lanes that are missing: there is room.
            let to = &mut out[to..to + WORDS];
            let [lane, k] = [group * WORDS, depth * DEPTH];
            let at = source.first + lane * source.lane_stride + k * source.k_stride;
            let counts = [(source.lanes - lane).min(WORDS), (source.k - k).min(DEPTH)];
            let turned = source.is_line_a_lane() != matches!(layout, Layout::Left { .. });
            // SAFETY: as the caller says.
            unsafe {
                // Whole blocks are the most; counts that are known need no masks.
                if counts == [WORDS, DEPTH] {
                    pack_block(
                        turned,
                        to,
                        [at, step],
                        #[inline(always)]
                        |at, i| line(at, [WORDS, DEPTH], i),
                    );
                } else {
                    pack_block(
                        turned,
                        to,
                        [at, step],
                        #[inline(always)]
                        |at, i| line(at, counts, i),
                    );
                }
            }
        }
    }
}

/// Sixteen lanes by sixteen pairs, a line a lane or a line a pair as they lie in memory. The loop has
/// sixteen turns whatever is there, so that the block stays in registers.
#[inline(always)]
unsafe fn pack_block<V: Vector>(
    turned: bool,
    out: &mut [Line],
    [mut at, step]: [usize; 2],
    line: impl Fn(usize, usize) -> V,
) {
    // SAFETY: as the caller says.
    unsafe {
        let mut block = [V::of(Line::ZERO); WORDS];
        for (i, to) in block.iter_mut().enumerate() {
            *to = line(at, i);
            at += step;
        }
        // Written in either case, so that the block never goes to memory in between.
        if turned {
            write_lines(V::transposed(block), out);
        } else {
            write_lines(block, out);
        }
    }
}

#[inline(always)]
unsafe fn write_lines<V: Vector>(block: [V; WORDS], out: &mut [Line]) {
    for (line, to) in block.iter().zip(out) {
        // SAFETY: as the caller says.
        unsafe { line.write(to) };
    }
}
