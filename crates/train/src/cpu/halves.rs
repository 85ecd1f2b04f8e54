//! Matrix products of brain floats on all threads.

use std::sync::{Mutex, PoisonError};

use super::Cpu;
use super::bf16::{self, Ending, Kernel, Matrix, Numbers, NumbersMut, Output, Packed};
use super::lanes::WIDTH;
use super::level::Level;
use super::numbers::{Apart, Source, Target};
use super::packed::Start;
use super::pool::cut;
use super::product::{LEAST, Operand, Sizes};
use crate::memory::ViewMut;

/// What products of brain floats are made with.
#[derive(Debug)]
pub struct Halves {
    /// The instructions.
    pub kernel: Kernel,
    packed: Spare<Packed>,
    scratch: Spare<bf16::Scratch>,
}

impl Halves {
    /// With the best instructions of a level.
    pub fn new(level: Level) -> Self {
        let kernel = match level {
            Level::Plain => Kernel::Portable,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Kernel::Avx2,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => Kernel::best(),
        };
        Self { kernel, packed: Spare::default(), scratch: Spare::default() }
    }
}

/// Memory that was used before.
#[derive(Debug)]
struct Spare<T>(Mutex<Vec<T>>);

impl<T> Default for Spare<T> {
    fn default() -> Self {
        Self(Mutex::new(Vec::new()))
    }
}

impl<T: Default> Spare<T> {
    fn take(&self) -> T {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    fn give(&self, one: T) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(one);
    }
}

impl Operand<'_> {
    /// The same, from a row and a column on.
    fn halves(&self, row: usize, column: usize) -> Matrix<'_> {
        let first = row * self.row_stride + column * self.column_stride;
        let numbers = match Source::from(self.view.part(first..self.view.len())) {
            Source::F32(numbers) => Numbers::F32(numbers),
            Source::Bf16(numbers) => Numbers::Bf16(numbers),
        };
        let Self { row_stride, column_stride, .. } = *self;
        Matrix { numbers, row_stride, column_stride }
    }
}

impl Cpu {
    /// `c = start + a b`. The right matrix is packed first; each thread then multiplies some rows.
    pub(super) fn multiply_halves(
        &self,
        sizes: Sizes,
        a: Operand<'_>,
        b: Operand<'_>,
        c: ViewMut<'_>,
        start: Start<'_>,
    ) {
        let Sizes { m, n, k } = sizes;
        let parts = self.pool.parts(m.saturating_mul(n).saturating_mul(k), LEAST);
        // In pieces the right matrix is packed by all threads, but the left one for each piece.
        let pieces = if n > m { parts } else { 1 };
        let packed = self.pack_pieces(sizes, b, pieces);
        let c = Apart::new(c);
        self.pool.run(parts, |part| {
            let rows = cut(m, parts, part, WIDTH);
            if rows.is_empty() {
                return;
            }
            let mut scratch = self.halves.scratch.take();
            for (piece, packed) in packed.iter().enumerate() {
                let columns = cut(n, pieces, piece, 2 * WIDTH);
                if columns.is_empty() {
                    continue;
                }
                // SAFETY: rows are disjoint.
                let to = unsafe { c.part(rows.start * n + columns.start..rows.end * n) };
                let numbers = match to {
                    Target::F32(numbers) => NumbersMut::F32(numbers),
                    Target::Bf16(numbers) => NumbersMut::Bf16(numbers),
                };
                let ending = match start {
                    Start::Zero => Ending::Set,
                    Start::Add => Ending::Add,
                    Start::Row(row) => Ending::Bias(&row[columns]),
                };
                let (a, to) = (a.halves(rows.start, 0), Output::rows(numbers, n));
                bf16::product_packed(rows.len(), a, packed, ending, to, &mut scratch);
            }
            self.halves.scratch.give(scratch);
        });
        packed.into_iter().for_each(|packed| self.halves.packed.give(packed));
    }

    /// The right matrix in pieces of its columns.
    fn pack_pieces(&self, sizes: Sizes, b: Operand<'_>, pieces: usize) -> Vec<Packed> {
        let Sizes { n, k, .. } = sizes;
        let packed: Vec<Mutex<Packed>> =
            (0..pieces).map(|_| Mutex::new(self.halves.packed.take())).collect();
        self.pool.run(pieces, |piece| {
            let columns = cut(n, pieces, piece, 2 * WIDTH);
            if !columns.is_empty() {
                let mut packed = packed[piece].lock().unwrap_or_else(PoisonError::into_inner);
                packed.fill(self.halves.kernel, k, columns.len(), b.halves(0, columns.start));
            }
        });
        let inner = |one: Mutex<Packed>| one.into_inner().unwrap_or_else(PoisonError::into_inner);
        packed.into_iter().map(inner).collect()
    }
}
