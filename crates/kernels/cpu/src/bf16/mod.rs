//! Matrix products of brain floats, summed in single precision, by the best instructions that the
//! processor has.
//!
//! Both operands are packed first: rounded to brain floats, two neighbours along `k` in one word,
//! sixteen words in one line of the cache. All kernels read the same packing, whatever the
//! order and format of what was packed, so transposed operands cost nothing more. AMX can also read
//! rows of the left operand from where they are, if they are brain floats already. Read
//! `pack` for the layout, `block` for the loops, `tile` for the heart of them.
//!
//! There are no threads here. A product whose rows are cut in any way has the same bits.

mod block;
mod convert;
mod finish;
mod kernel;
mod lines;
mod operand;
mod pack;
mod pack_plain;
mod tile;

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod pack_avx512;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
mod tests;

pub use convert::{round_to, widen};
pub use finish::{Ending, ROWS};
pub use kernel::Kernel;
pub use operand::{Matrix, Numbers, NumbersMut, Output};
pub use pack::Parts;

use std::ops::Range;

use finish::Sums;
use lines::Lines;

/// How large a product is: `m` times `k` by `k` times `n`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Rows of the left operand and of the result.
    pub m: usize,
    /// Columns of the right operand and of the result.
    pub n: usize,
    /// Columns of the left operand, rows of the right one.
    pub k: usize,
}

/// Memory that products pack their operands into: one a thread, used again by every call.
#[derive(Debug, Default)]
pub struct Scratch {
    left: Lines,
    right: Packed,
    sums: Box<Sums>,
}

/// A right operand, packed once for many products. Threads may share it.
#[derive(Debug)]
pub struct Packed {
    kernel: Kernel,
    k: usize,
    n: usize,
    lines: Lines,
}

impl Default for Packed {
    /// Nothing yet: no rows, no columns.
    fn default() -> Self {
        Self { kernel: Kernel::Portable, k: 0, n: 0, lines: Lines::default() }
    }
}

impl Packed {
    /// Packs an operand of `k` rows and `n` columns for a kernel, over what was here.
    ///
    /// # Panics
    /// If the operand is not that large, or the processor lacks the kernel's instructions.
    pub fn fill(&mut self, kernel: Kernel, k: usize, n: usize, b: Matrix<'_>) {
        self.becomes(kernel, [k, n], &b);
        pack::right(kernel, &b, [k, n], &mut self.lines);
    }

    /// The same in at most so many parts, which `run` is given to do, in any order or at the same
    /// time.
    ///
    /// # Panics
    /// As above.
    pub fn fill_in_parts(
        &mut self,
        kernel: Kernel,
        [k, n]: [usize; 2],
        b: Matrix<'_>,
        parts: usize,
        run: &Parts<'_>,
    ) {
        self.becomes(kernel, [k, n], &b);
        pack::right_in_parts(kernel, &b, [k, n], &mut self.lines, parts, run);
    }

    fn becomes(&mut self, kernel: Kernel, [k, n]: [usize; 2], b: &Matrix<'_>) {
        kernel.assert_available();
        b.assert_holds(k, n);
        (self.kernel, self.k, self.n) = (kernel, k, n);
    }

    /// The kernel that it is packed for.
    pub fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// Some of its rows and the first `n` of its columns. Rows that share a step of 32 with the
    /// last one are multiplied by zeros, so they must be finite.
    ///
    /// # Panics
    /// If they are not there, or the first one is none that a step of 32 begins with.
    pub fn part(&self, rows: Range<usize>, n: usize) -> Right<'_> {
        let inside = rows.start <= rows.end && rows.end <= self.k && n <= self.n;
        assert!(inside, "{rows:?} by {n} is no part of {} by {}", self.k, self.n);
        assert!(rows.start.is_multiple_of(pack::DEPTH), "a step of rows begins before {rows:?}");
        Right { packed: self, first: rows.start, k: rows.len(), n }
    }
}

/// A right operand, or a part of it.
#[derive(Debug, Clone, Copy)]
pub struct Right<'a> {
    packed: &'a Packed,
    /// The first of its rows.
    first: usize,
    k: usize,
    n: usize,
}

impl<'a> From<&'a Packed> for Right<'a> {
    fn from(packed: &'a Packed) -> Self {
        Self { packed, first: 0, k: packed.k, n: packed.n }
    }
}

/// `c = a b`, ended as `ending` says. Operands in single precision are rounded to brain floats.
///
/// # Panics
/// If an operand is not as large as said, or the processor lacks the kernel's instructions.
pub fn product(
    kernel: Kernel,
    sizes: Sizes,
    a: Matrix<'_>,
    b: Matrix<'_>,
    ending: Ending<'_>,
    c: Output<'_>,
    scratch: &mut Scratch,
) {
    let Scratch { left, right, sums } = scratch;
    right.fill(kernel, sizes.k, sizes.n, b);
    block::product(sizes.m, a, (&*right).into(), ending, c, left, sums);
}

/// The same of `m` rows and a right operand that is packed already, or a part of one.
///
/// # Panics
/// If an operand is not as large as said.
pub fn product_packed<'b>(
    m: usize,
    a: Matrix<'_>,
    b: impl Into<Right<'b>>,
    ending: Ending<'_>,
    c: Output<'_>,
    scratch: &mut Scratch,
) {
    block::product(m, a, b.into(), ending, c, &mut scratch.left, &mut scratch.sums);
}
