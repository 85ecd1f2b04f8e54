//! Layers that multiply by a weight.

use crate::Cpu;
use crate::lanes::WIDTH;
use crate::level::kernel;
use crate::numbers::{Apart, Source, Target, get, put};
use crate::packed::Start;
use crate::product::{Operand, Sizes};
use regatta_device::device::Linear;
use regatta_device::memory::{View, ViewMut};

/// A thread gets at least so many numbers.
const LEAST: usize = 8 * 1024;

impl Cpu {
    pub(super) fn linear_forward(
        &self,
        of: Linear,
        x: View<'_>,
        weight: View<'_>,
        bias: Option<View<'_>>,
        y: ViewMut<'_>,
    ) {
        let Linear { rows, inputs, outputs } = of;
        let sizes = Sizes { m: rows, n: outputs, k: inputs };
        let (x, weight) = (Operand::rows(x, inputs), Operand::columns(weight, inputs));
        let start = bias.map_or(Start::Zero, |bias| Start::Row(bias.host()));
        self.product(sizes, x, weight, y, start);
    }

    pub(super) fn linear_backward_input(
        &self,
        of: Linear,
        dy: View<'_>,
        weight: View<'_>,
        dx: ViewMut<'_>,
        add: bool,
    ) {
        let Linear { rows, inputs, outputs } = of;
        let sizes = Sizes { m: rows, n: inputs, k: outputs };
        let (dy, weight) = (Operand::rows(dy, outputs), Operand::rows(weight, inputs));
        self.product(sizes, dy, weight, dx, if add { Start::Add } else { Start::Zero });
    }

    pub(super) fn linear_backward_weight(
        &self,
        of: Linear,
        x: View<'_>,
        dy: View<'_>,
        dweight: ViewMut<'_>,
        dbias: Option<ViewMut<'_>>,
    ) {
        let Linear { rows, inputs, outputs } = of;
        if let Some(dbias) = dbias {
            self.add_rows(rows, dy, dbias);
        }
        let sizes = Sizes { m: outputs, n: inputs, k: rows };
        let (dy, x) = (Operand::columns(dy, outputs), Operand::rows(x, inputs));
        self.product(sizes, dy, x, dweight, Start::Add);
    }

    /// Every row of `y` becomes the same.
    pub(super) fn fill_rows(&self, row: &[f32], y: ViewMut<'_>) {
        let width = row.len();
        let rows = super::elementwise::rows(y.len(), width);
        let y = Apart::new(y);
        self.pool.run_ranges(rows, LEAST.div_ceil(width), 1, |range| {
            for at in range {
                // SAFETY: rows are disjoint.
                let y = unsafe { y.part(at * width..(at + 1) * width) };
                match y {
                    Target::F32(y) => y.copy_from_slice(row),
                    y => super::elementwise::copy(self.level, Source::F32(row), y),
                }
            }
        });
    }

    /// Adds all rows to one. Cut by columns: the order is the same whatever the number of threads.
    fn add_rows(&self, rows: usize, x: View<'_>, sums: ViewMut<'_>) {
        let width = sums.len();
        assert_eq!(x.len(), rows * width, "rows of another width");
        let (x, sums) = (Source::from(x), Apart::new(sums));
        self.pool.run_ranges(width, LEAST.div_ceil(rows.max(1)), WIDTH, |columns| {
            // SAFETY: columns are disjoint.
            let sums = unsafe { sums.reals(columns.clone()) };
            add_columns(self.level, x, width, columns.start, sums);
        });
    }
}

kernel! {
    /// Adds to each sum its column of all rows, four vectors of columns at a time.
    fn add_columns<V>(x: Source<'_>, width: usize, first: usize, sums: &mut [f32]) {
        const MANY: usize = 4 * WIDTH;
        let rows = x.len() / width.max(1);
        let whole = sums.len() / MANY * MANY;
        for at in (0..whole).step_by(MANY) {
            let mut four: [V; 4] = std::array::from_fn(|v| get(sums, at + v * WIDTH));
            for row in 0..rows {
                let x = x.part(row * width + first + at..row * width + first + at + MANY);
                for (v, sum) in four.iter_mut().enumerate() {
                    *sum = sum.plus(x.get(v * WIDTH));
                }
            }
            for (v, sum) in four.into_iter().enumerate() {
                put(sums, at + v * WIDTH, sum);
            }
        }
        for at in (whole..sums.len()).step_by(WIDTH) {
            let end = sums.len().min(at + WIDTH);
            let mut sum: V = get(sums, at);
            for row in 0..rows {
                sum = sum.plus(x.part(row * width + first + at..row * width + first + end).get(0));
            }
            put(sums, at, sum);
        }
    }
}
