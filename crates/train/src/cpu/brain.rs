//! Matrix products of brain floats, cut between the threads, where the processor multiplies them
//! faster than single precision.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Cpu;
use super::bf16::{
    Ending, Kernel, Matrix, Numbers, NumbersMut, Output, Packed, Scratch, product_packed,
};
use super::numbers::{Apart, Target};
use super::packed::Start;
use super::pool::cut;
use super::product::{Operand, Sizes};
use crate::memory::{Format, View, ViewMut};

/// Multiplications that are worth another thread.
const LEAST: usize = 256 * 1024;

/// Rows that kernels take at once: threads get multiples of them.
const ROWS: usize = 32;

/// What products of brain floats need.
#[derive(Debug)]
pub struct Brain {
    pub kernel: Kernel,
    /// The right operand, packed for all threads.
    right: Mutex<Packed>,
    /// What each thread packs into.
    threads: Vec<Mutex<Scratch>>,
}

impl Brain {
    /// For so many threads, if the processor has a kernel that pays.
    pub fn new(threads: usize) -> Option<Self> {
        let kernel = Kernel::best();
        let threads = (0..threads.max(1)).map(|_| Mutex::default()).collect();
        kernel.pays().then(|| Self { kernel, right: Mutex::default(), threads })
    }
}

impl Cpu {
    /// `c = start + a b`, of brain floats; sizes were checked, and none is 0.
    pub(super) fn product_brain(
        &self,
        brain: &Brain,
        sizes: Sizes,
        a: Operand<'_>,
        b: Operand<'_>,
        c: ViewMut<'_>,
        start: Start<'_>,
    ) {
        let Sizes { m, n, k } = sizes;
        let mut right = lock(&brain.right);
        right.fill(brain.kernel, k, n, matrix(b));
        let (right, c) = (&*right, Apart::new(c));
        let work = m.saturating_mul(n).saturating_mul(k);
        let parts = self.pool.parts(work, LEAST).min(brain.threads.len());
        self.pool.run(parts, |part| {
            let rows = cut(m, parts, part, ROWS);
            if rows.is_empty() {
                return;
            }
            let left = Operand { view: from(a.view, rows.start * a.row_stride), ..a };
            // SAFETY: rows are disjoint.
            let c = unsafe { c.part(rows.start * n..rows.end * n) };
            let numbers = match c {
                Target::F32(numbers) => NumbersMut::F32(numbers),
                Target::Bf16(numbers) => NumbersMut::Bf16(numbers),
            };
            let mut scratch = lock(&brain.threads[part]);
            let output = Output::rows(numbers, n);
            product_packed(rows.len(), matrix(left), right, ending(start), output, &mut scratch);
        });
    }
}

/// The numbers from a place on.
fn from(view: View<'_>, place: usize) -> View<'_> {
    view.part(place..view.len())
}

fn matrix(operand: Operand<'_>) -> Matrix<'_> {
    let Operand { view, row_stride, column_stride } = operand;
    let numbers = match view.format() {
        Format::Bf16 => Numbers::Bf16(view.host()),
        _ => Numbers::F32(view.host()),
    };
    Matrix { numbers, row_stride, column_stride }
}

fn ending(start: Start<'_>) -> Ending<'_> {
    match start {
        Start::Zero => Ending::Set,
        Start::Add => Ending::Add,
        Start::Row(row) => Ending::Bias(row),
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
