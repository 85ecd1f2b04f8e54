//! Matrix products of brain floats on all threads.

use std::sync::{Mutex, PoisonError};

use crate::Cpu;
use crate::attention::HeadMemory;
use crate::bf16::{self, Ending, Kernel, Matrix, NumbersMut, Output, Packed};
use crate::level::Level;
use crate::numbers::{Apart, Source, Target};
use crate::packed::Start;
use crate::pool::cut;
use crate::product::{LEAST, Operand, Sizes};
use regatta_device::memory::ViewMut;

/// Multiplications that a thread does in some ten microseconds.
const MUCH: usize = 8 << 20;

/// What products of brain floats are made with.
#[derive(Debug)]
pub struct Halves {
    /// The instructions.
    pub kernel: Kernel,
    packed: Spare<Packed>,
    scratch: Spare<bf16::Scratch>,
    /// For heads of attention.
    pub heads: Spare<HeadMemory>,
}

impl Halves {
    /// With the best instructions of a level.
    pub fn new(level: Level) -> Self {
        let kernel = match level {
            Level::Plain => Kernel::Portable,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Kernel::Avx2,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Avx512Bf16 => Kernel::best(),
        };
        Self::of(kernel)
    }

    /// With instructions that the processor must have.
    pub fn of(kernel: Kernel) -> Self {
        let (packed, scratch, heads) = Default::default();
        Self { kernel, packed, scratch, heads }
    }
}

/// Memory that was used before.
#[derive(Debug)]
pub struct Spare<T>(Mutex<Vec<T>>);

impl<T> Default for Spare<T> {
    fn default() -> Self {
        Self(Mutex::new(Vec::new()))
    }
}

impl<T: Default> Spare<T> {
    /// One of them, or a new one.
    pub fn take(&self) -> T {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Keeps one for later.
    pub fn give(&self, one: T) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(one);
    }
}

impl Operand<'_> {
    /// The same, from a row on.
    fn halves(&self, row: usize) -> Matrix<'_> {
        let first = row * self.row_stride;
        let numbers = Source::from(self.view.part(first..self.view.len())).into();
        let Self { row_stride, column_stride, .. } = *self;
        Matrix { numbers, row_stride, column_stride }
    }
}

impl Cpu {
    /// `c = start + a b`. The right matrix is packed first, by all threads; each then multiplies some rows.
    pub(super) fn multiply_halves(
        &self,
        sizes: Sizes,
        a: Operand<'_>,
        b: Operand<'_>,
        c: ViewMut<'_>,
        start: Start<'_>,
    ) {
        let Sizes { m, n, k } = sizes;
        let parts = self.pool.parts(sizes.work(), LEAST);
        let mut packed = self.halves.packed.take();
        let run = |parts: usize, work: &(dyn Fn(usize) + Sync)| self.pool.run(parts, work);
        packed.fill_in_parts(self.halves.kernel, [k, n], b.halves(0), parts, &run);
        let c = Apart::new(c);
        let parts = self.pool.many_parts(sizes.work(), LEAST, MUCH);
        self.pool.run(parts, |part| {
            let rows = cut(m, parts, part, bf16::ROWS);
            if rows.is_empty() {
                return;
            }
            // SAFETY: rows are disjoint.
            let numbers = match unsafe { c.part(rows.start * n..rows.end * n) } {
                Target::F32(numbers) => NumbersMut::F32(numbers),
                Target::Bf16(numbers) => NumbersMut::Bf16(numbers),
            };
            let ending = match start {
                Start::Zero => Ending::Set,
                Start::Add => Ending::Add,
                Start::Row(row) => Ending::Bias(row),
            };
            let mut scratch = self.halves.scratch.take();
            let (a, to) = (a.halves(rows.start), Output::rows(numbers, n));
            bf16::product_packed(rows.len(), a, &packed, ending, to, &mut scratch);
            self.halves.scratch.give(scratch);
        });
        self.halves.packed.give(packed);
    }
}
