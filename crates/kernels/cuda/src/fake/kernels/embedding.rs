//! `embedding.cu`.

use regatta_comm::DType;

use super::super::launch::Launch;
use super::{Run, VECTOR, for_elements, local_row};

pub(super) fn kernel(operation: &str) -> Option<Run> {
    Some(match operation {
        "embedding" => embedding,
        "add_position_embedding" => add_position_embedding,
        "embedding_backward_atomic" => embedding_backward_atomic,
        "sort_by_table_row" => sort_by_table_row,
        "add_sorted_rows" => add_sorted_rows,
        _ => return None,
    })
}

/// `SORT_THREADS` and `SORT_ROWS` of the source.
const SORT_THREADS: usize = 256;
const SORT_ROWS: usize = 256;

fn embedding(launch: &Launch<'_>) {
    let mut args = launch.args();
    let (tokens, first) = (args.ptr(), args.size());
    let (table, table_rows, y, dim) = (args.ptr(), args.size(), args.ptr(), args.size32());
    let (len, vectorised) = (args.size(), args.size());
    let tokens = launch.values::<i32>(tokens, len / dim);
    let table = launch.array(table, launch.dtypes[0], table_rows * dim);
    let y = launch.array(y, launch.dtypes[1], len);
    for_elements(launch, len, vectorised, |at, count| {
        let (row, column) = row_and_column(at, count, dim);
        let from = local_row(tokens.get(row), first, table_rows).map(|row| row * dim + column);
        y.assert_vector(at, count);
        if let Some(from) = from {
            table.assert_vector(from, count);
        }
        (0..count).for_each(|i| y.set(at + i, from.map_or(0.0, |from| table.get(from + i))));
    });
}

fn add_position_embedding(launch: &Launch<'_>) {
    let mut args = launch.args();
    let (positions, position_count) = (args.ptr(), args.size32());
    let (table, y, dim) = (args.ptr(), args.ptr(), args.size32());
    let (len, vectorised) = (args.size(), args.size());
    let positions = launch.values::<i32>(positions, position_count);
    let last = (0..position_count).map(|at| positions.get(at)).max();
    let table_rows = last.map_or(0, |last| last as usize + 1);
    let table = launch.array(table, launch.dtypes[0], table_rows * dim);
    let y = launch.array(y, launch.dtypes[1], len);
    for_elements(launch, len, vectorised, |at, count| {
        let (row, column) = row_and_column(at, count, dim);
        let from = positions.get(row % position_count) as usize * dim + column;
        table.assert_vector(from, count);
        y.assert_vector(at, count);
        (0..count).for_each(|i| y.add(at + i, table.get(from + i)));
    });
}

/// In the order of the tokens; a GPU adds in any order.
fn embedding_backward_atomic(launch: &Launch<'_>) {
    let mut args = launch.args();
    let (tokens, first, dy, dtable) = (args.ptr(), args.size(), args.ptr(), args.ptr());
    let (table_rows, dim) = (args.size(), args.size32());
    let (len, vectorised) = (args.size(), args.size());
    let tokens = launch.values::<i32>(tokens, len / dim);
    let dy = launch.array(dy, launch.dtypes[0], len);
    let dtable = launch.array(dtable, DType::F32, table_rows * dim);
    for_elements(launch, len, vectorised, |at, count| {
        let (row, column) = row_and_column(at, count, dim);
        let Some(row) = local_row(tokens.get(row), first, table_rows) else { return };
        dy.assert_vector(at, count);
        dtable.assert_vector(row * dim + column, count);
        (0..count).for_each(|i| dtable.add(row * dim + column + i, dy.get(at + i)));
    });
}

/// The row and the column of an element.
fn row_and_column(at: usize, count: usize, dim: usize) -> (usize, usize) {
    assert!(at % dim + count <= dim, "a vector crosses rows");
    (at / dim, at % dim)
}

/// Each block places the tokens of its table rows.
fn sort_by_table_row(launch: &Launch<'_>) {
    launch.assert_threads(SORT_THREADS);
    launch.assert_one_dimension();
    let mut args = launch.args();
    let (tokens, count, first) = (args.ptr(), args.size(), args.size());
    let (table_rows, order, starts) = (args.size(), args.ptr(), args.ptr());
    let tokens = launch.values::<i32>(tokens, count);
    let order = launch.values::<u32>(order, count);
    let starts = launch.values::<u32>(starts, table_rows + 1);
    let placed_rows = table_rows.min(launch.blocks[0] * SORT_ROWS);
    let mut by_row: Vec<Vec<u32>> = vec![Vec::new(); table_rows];
    for at in 0..count {
        if let Some(row) = local_row(tokens.get(at), first, table_rows) {
            by_row[row].push(at as u32);
        }
    }
    let mut place = 0;
    for (row, of_row) in by_row.iter().enumerate().take(placed_rows) {
        starts.set(row, place as u32);
        for at in of_row {
            order.set(place, *at);
            place += 1;
        }
    }
    if placed_rows == table_rows {
        starts.set(table_rows, place as u32);
    }
}

/// A block has a table row and some of its columns.
fn add_sorted_rows(launch: &Launch<'_>) {
    let mut args = launch.args();
    let (order, starts, dy, dtable) = (args.ptr(), args.ptr(), args.ptr(), args.ptr());
    let (count, batch, dim) = (args.size(), args.size(), args.size());
    let width = if args.flag() { VECTOR } else { 1 };
    let [table_rows, column_blocks, _] = launch.blocks;
    let order = launch.values::<u32>(order, count);
    let starts = launch.values::<u32>(starts, table_rows + 1);
    let dy = launch.array(dy, launch.dtypes[0], batch * count * dim);
    let dtable = launch.array(dtable, DType::F32, table_rows * dim);
    let columns = dim.min(column_blocks * launch.threads * width);
    assert!(dim.is_multiple_of(width), "a vector crosses rows");
    for table_row in 0..table_rows {
        let of_row = starts.get(table_row) as usize..starts.get(table_row + 1) as usize;
        let rows = of_row.flat_map(|at| {
            let row = order.get(at) as usize;
            (0..batch).map(move |sequence| sequence * count + row)
        });
        let rows: Vec<usize> = rows.collect();
        for column in (0..columns).filter(|_| !rows.is_empty()) {
            if column % width == 0 {
                dtable.assert_vector(table_row * dim + column, width);
                rows.iter().for_each(|row| dy.assert_vector(row * dim + column, width));
            }
            let added = rows.iter().map(|row| dy.get(row * dim + column)).sum::<f32>();
            dtable.add(table_row * dim + column, added);
        }
    }
}
