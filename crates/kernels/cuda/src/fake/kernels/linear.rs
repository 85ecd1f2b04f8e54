//! `linear.cu`.

use regatta_comm::DType;

use super::super::launch::Launch;
use super::{Run, sum};

pub(super) fn kernel(operation: &str) -> Option<Run> {
    Some(match operation {
        "add_bias" => add_bias,
        "column_sums" => column_sums,
        "add_partial_sums" => add_partial_sums,
        _ => return None,
    })
}

/// `LANES`, `GROUPS` and `PARTIAL_GROUPS` of the source.
const LANES: usize = 32;
const GROUPS: usize = 8;
const PARTIAL_GROUPS: usize = 32;

/// The columns that a grid covers.
fn covered_columns(launch: &Launch<'_>, columns: usize) -> usize {
    assert!(columns.is_multiple_of(launch.width), "a vector crosses rows");
    columns.min(launch.blocks[0] * LANES * launch.width)
}

fn add_bias(launch: &Launch<'_>) {
    launch.assert_threads(LANES * GROUPS);
    let mut args = launch.args();
    let (y, bias, rows, columns) = (args.ptr(), args.ptr(), args.size(), args.size());
    let y = launch.array(y, launch.dtypes[0], rows * columns);
    let bias = launch.array(bias, launch.dtypes[1], columns);
    let covered = covered_columns(launch, columns);
    bias.assert_vector(0, launch.width);
    for row in 0..rows {
        y.assert_vector(row * columns, launch.width);
        (0..covered).for_each(|column| y.add(row * columns + column, bias.get(column)));
    }
}

fn column_sums(launch: &Launch<'_>) {
    launch.assert_threads(LANES * GROUPS);
    let mut args = launch.args();
    let (x, rows, columns) = (args.ptr(), args.size(), args.size());
    let (block_rows, partials) = (args.size(), args.ptr());
    let x = launch.array(x, launch.dtypes[0], rows * columns);
    let partials = launch.array(partials, DType::F32, launch.blocks[1] * columns);
    (0..rows).for_each(|row| x.assert_vector(row * columns, launch.width));
    for block in 0..launch.blocks[1] {
        let of_block = block * block_rows..rows.min((block + 1) * block_rows);
        for column in 0..covered_columns(launch, columns) {
            let sum = sum(of_block.clone().map(|row| x.get(row * columns + column)));
            partials.set(block * columns + column, sum);
        }
    }
}

/// Partial sums are used once: they are overwritten, so that a later operation cannot read them.
fn add_partial_sums(launch: &Launch<'_>) {
    launch.assert_threads(LANES * PARTIAL_GROUPS);
    launch.assert_one_dimension();
    let mut args = launch.args();
    let (partials, count, columns) = (args.ptr(), args.size(), args.size());
    let partials = launch.array(partials, DType::F32, count * columns);
    let sums = args.array(DType::F32, columns);
    for column in 0..covered_columns(launch, columns) {
        let rows = 0..count;
        sums.add(column, sum(rows.map(|row| partials.get(row * columns + column))));
    }
    (0..count * columns).for_each(|at| partials.set(at, f32::NAN));
}
