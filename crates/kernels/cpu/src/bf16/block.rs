//! The loops around the tiles: blocks of rows whose packed left operand stays in the second-level
//! cache, and under them two panels of the right operand that stay in the first.

use std::ops::Range;

use super::Right;
use super::finish::{Ending, Goal, Sums};
use super::kernel::Plan;
use super::lines::{Line, Lines, WORDS};
use super::operand::{Matrix, NumbersMut, Output};
use super::pack;
use super::tile::{Left, Tile};

/// Bytes that a packed block of the left operand may have.
const BLOCK_BYTES: usize = 256 << 10;

/// `c = a b`, ended as `ending` says.
pub fn product(
    m: usize,
    a: Matrix<'_>,
    b: Right<'_>,
    ending: Ending<'_>,
    mut c: Output<'_>,
    left: &mut Lines,
    sums: &mut Sums,
) {
    a.assert_holds(m, b.k);
    c.assert_holds(m, b.n);
    if let Ending::Bias(bias) = ending {
        assert!(bias.len() >= b.n, "{} columns have {} biases", b.n, bias.len());
    }
    if m == 0 || b.n == 0 {
        return;
    }
    let kernel = b.packed.kernel;
    let plan = kernel.plan();
    let _ready = kernel.made_ready();
    // Brain floats would be rounded after every part of the sums.
    let depth = if matches!(c.numbers, NumbersMut::F32(_)) { plan.depth } else { usize::MAX };
    for rows in even_parts(0..m, most_rows(&plan, b.k.min(depth))) {
        let mut first = 0_usize;
        loop {
            let ks = first..b.k.min(first.saturating_add(depth));
            let ending = if first == 0 { ending } else { Ending::Add };
            let left = pack::left(kernel, &plan, &a, rows.clone(), ks.clone(), left);
            let block = Block { plan: &plan, left, rows: rows.clone(), right: b, ks };
            block.multiply(ending, &mut c, sums);
            first = block.ks.end;
            if first == b.k {
                break;
            }
        }
    }
}

/// Whole tiles, at least one.
fn most_rows(plan: &Plan, depth: usize) -> usize {
    (BLOCK_BYTES / (2 * depth.max(1))).max(plan.rows) / plan.rows * plan.rows
}

/// Parts of nearly the same length, none longer than `most`: a last small one would be slow.
fn even_parts(whole: Range<usize>, most: usize) -> impl Iterator<Item = Range<usize>> {
    let (start, len) = (whole.start, whole.len());
    let parts = len.div_ceil(most);
    (0..parts).map(move |i| start + i * len / parts..start + (i + 1) * len / parts)
}

/// Some rows, all columns and a part of the sums.
struct Block<'a> {
    plan: &'a Plan,
    left: Left,
    rows: Range<usize>,
    right: Right<'a>,
    ks: Range<usize>,
}

impl Block<'_> {
    fn multiply(&self, ending: Ending<'_>, c: &mut Output<'_>, sums: &mut Sums) {
        let panels = self.right.n.div_ceil(WORDS);
        for panel in (0..panels).step_by(self.plan.panels) {
            let panels = panel..panels.min(panel + self.plan.panels);
            for rows in even_parts(self.rows.clone(), self.plan.rows) {
                let tile = self.tile(&rows, &panels);
                let columns = panels.start * WORDS..self.right.n.min(panels.end * WORDS);
                let goal = goal(c, ending, rows.start, columns);
                // SAFETY: the kernel's instructions were looked for when the right operand was
                // packed for it, and the tile is inside of what is packed.
                unsafe { (self.plan.run)(&tile, sums, goal) };
            }
        }
    }

    fn tile(&self, rows: &Range<usize>, panels: &Range<usize>) -> Tile {
        let packed = self.right.packed;
        let right_stride = pack::panel_stride(packed.k);
        let first_pair = (self.right.first + self.ks.start) / 2;
        let right = &packed.lines.all()[panels.start * right_stride + first_pair..];
        Tile {
            rows: rows.len(),
            panels: panels.len(),
            left: self.left.at_row(rows.start - self.rows.start),
            right: right.as_ptr().cast::<Line>(),
            right_stride,
            pairs: self.ks.len().div_ceil(2),
        }
    }
}

/// Where the tile from a row on goes.
fn goal<'a>(
    c: &'a mut Output<'_>,
    ending: Ending<'a>,
    row: usize,
    columns: Range<usize>,
) -> Goal<'a> {
    let at = row * c.row_stride + columns.start;
    let numbers = match &mut c.numbers {
        NumbersMut::F32(numbers) => NumbersMut::F32(&mut numbers[at..]),
        NumbersMut::Bf16(numbers) => NumbersMut::Bf16(&mut numbers[at..]),
    };
    let ending = match ending {
        Ending::Bias(bias) => Ending::Bias(&bias[columns.start..]),
        other => other,
    };
    Goal { numbers, stride: c.row_stride, columns: columns.len(), ending }
}
