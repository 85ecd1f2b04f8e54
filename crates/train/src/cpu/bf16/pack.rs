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

use super::convert::{fastest, rounded};
use super::kernel::{Kernel, Plan};
use super::lines::{Line, Lines, WORDS};
use super::operand::{Matrix, Numbers};

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
    /// Here and below: the processor must have the instructions, and the numbers must be there.
    ///
    /// `count` numbers next to each other along `k`, then zeros.
    unsafe fn along(numbers: Numbers<'_>, at: usize, count: usize) -> Self;
    /// Lanes next to each other: the even numbers of so many, and the odd ones of so many.
    unsafe fn across(numbers: Numbers<'_>, at: [usize; 2], count: [usize; 2]) -> Self;
    /// From memory.
    unsafe fn of(line: Line) -> Self;
    /// Rows for columns.
    unsafe fn transposed(block: [Self; WORDS]) -> [Self; WORDS];
    /// To memory.
    unsafe fn write(self, to: &mut Line);
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

/// A part of the left operand, packed.
pub struct Left {
    /// Its first line.
    pub lines: *const Line,
    /// Lines from there to the next sixteen pairs.
    pub stride: usize,
}

/// Packs some rows and columns of a left operand.
pub fn left(
    kernel: Kernel,
    plan: &Plan,
    a: &Matrix<'_>,
    rows: Range<usize>,
    ks: Range<usize>,
    lines: &mut Lines,
) -> Left {
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
        return Left { lines: narrow.as_ptr(), stride };
    }
    widen_lines(narrow, wide);
    Left { lines: wide.as_ptr(), stride: 2 * stride }
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

/// Block by block, along what lies together in memory.
#[inline(always)]
unsafe fn pack<V: Vector>(source: &Source<'_>, layout: Layout, out: &mut [Line]) {
    let (groups, depths) = (source.lanes.div_ceil(WORDS), source.k.div_ceil(DEPTH));
    let along = source.k_stride == 1;
    let (outer, inner) = if along { (groups, depths) } else { (depths, groups) };
    for i in 0..outer {
        for j in 0..inner {
            let (group, depth) = if along { (i, j) } else { (j, i) };
            // SAFETY: as the caller says.
            unsafe { pack_block::<V>(source, group, depth, layout, out) };
        }
    }
}

#[inline(always)]
unsafe fn pack_block<V: Vector>(
    source: &Source<'_>,
    group: usize,
    depth: usize,
    layout: Layout,
    out: &mut [Line],
) {
    let lanes = (source.lanes - group * WORDS).min(WORDS);
    let (to, line_a_lane) = match layout {
        Layout::Left { stride } => (depth * stride + group * WORDS, true),
        Layout::Right { stride } => (group * stride + depth * WORDS, false),
    };
    // All of them, also those of lanes that are missing: there is room, and a number of lines that
    // is known keeps the block in registers.
    let out = &mut out[to..to + WORDS];
    // SAFETY: as the caller says.
    unsafe {
        let block = load::<V>(source, group * WORDS, lanes, depth * DEPTH);
        // Written in either case, so that the block never goes to memory in between.
        if source.is_line_a_lane() == line_a_lane {
            write_lines(block, out);
        } else {
            write_lines(V::transposed(block), out);
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

/// Sixteen lanes by sixteen pairs, a line a lane or a line a pair as they lie in memory. All loops
/// have sixteen turns, so that the block stays in registers; what is not there is not read.
#[inline(always)]
unsafe fn load<V: Vector>(source: &Source<'_>, lane: usize, lanes: usize, k: usize) -> [V; WORDS] {
    let Source { numbers, first, lane_stride, k_stride, .. } = *source;
    let at = first + lane * lane_stride + k * k_stride;
    let depth = (source.k - k).min(DEPTH);
    // SAFETY: as the caller says; all places are inside, for the operand holds its last number.
    unsafe {
        let mut block = [V::of(Line::ZERO); WORDS];
        for (i, line) in block.iter_mut().enumerate() {
            let count = if i < lanes { depth } else { 0 };
            if k_stride == 1 {
                *line = V::along(numbers, at + i * lane_stride, count);
            } else if lane_stride == 1 {
                let even = at + 2 * i * k_stride;
                let count = [2 * i, 2 * i + 1].map(|k| if k < depth { lanes } else { 0 });
                *line = V::across(numbers, [even, even + k_stride], count);
            } else {
                *line = V::of(gathered(numbers, at + i * lane_stride, k_stride, count));
            }
        }
        block
    }
}

/// A line of numbers that do not lie together.
fn gathered(numbers: Numbers<'_>, at: usize, stride: usize, count: usize) -> Line {
    let bits = |i: usize| match numbers {
        _ if i >= count => 0,
        Numbers::F32(numbers) => u32::from(rounded(numbers[at + i * stride])),
        Numbers::Bf16(numbers) => u32::from(numbers[at + i * stride].to_bits()),
    };
    Line(std::array::from_fn(|word| bits(2 * word) | bits(2 * word + 1) << 16))
}

impl Vector for Line {
    #[inline(always)]
    unsafe fn along(numbers: Numbers<'_>, at: usize, count: usize) -> Self {
        let mut halves = [0; DEPTH];
        let here = at..at + count;
        match numbers {
            Numbers::F32(from) => round_all(&mut halves, from, here, |n| rounded(*n)),
            Numbers::Bf16(from) => round_all(&mut halves, from, here, |n: &bf16| n.to_bits()),
        }
        Self(std::array::from_fn(|i| u32::from(halves[2 * i]) | u32::from(halves[2 * i + 1]) << 16))
    }

    #[inline(always)]
    unsafe fn across(numbers: Numbers<'_>, at: [usize; 2], count: [usize; 2]) -> Self {
        let mut line = Self::ZERO;
        let halves = [0, 1].map(|i| at[i]..at[i] + count[i]);
        match numbers {
            Numbers::F32(from) => interleave(&mut line, from, halves, |n| rounded(*n)),
            Numbers::Bf16(from) => interleave(&mut line, from, halves, |n: &bf16| n.to_bits()),
        }
        line
    }

    #[inline(always)]
    unsafe fn of(line: Line) -> Self {
        line
    }

    #[inline(always)]
    unsafe fn transposed(block: [Self; WORDS]) -> [Self; WORDS] {
        let mut out = block;
        for (i, line) in block.iter().enumerate() {
            for (j, word) in line.0.iter().enumerate() {
                out[j].0[i] = *word;
            }
        }
        out
    }

    #[inline(always)]
    unsafe fn write(self, to: &mut Line) {
        *to = self;
    }
}

/// Whole lines are the most, and their length is known to the compiler.
#[inline(always)]
fn round_all<T>(
    halves: &mut [u16; DEPTH],
    from: &[T],
    here: Range<usize>,
    bits: impl Fn(&T) -> u16,
) {
    let numbers = from.get(here).unwrap_or_default();
    if let Some(numbers) = numbers.first_chunk::<DEPTH>() {
        for (half, number) in halves.iter_mut().zip(numbers) {
            *half = bits(number);
        }
    } else {
        for (half, number) in halves.iter_mut().zip(numbers) {
            *half = bits(number);
        }
    }
}

#[inline(always)]
fn interleave<T>(line: &mut Line, from: &[T], halves: [Range<usize>; 2], bits: impl Fn(&T) -> u16) {
    for (shift, half) in [0, 16].into_iter().zip(halves) {
        for (word, number) in line.0.iter_mut().zip(from.get(half).unwrap_or_default()) {
            *word |= u32::from(bits(number)) << shift;
        }
    }
}
