//! Token and position embeddings.

use regatta_comm::DType;
use regatta_device::EmbeddingOps;
use regatta_device::ops::{
    EmbeddingBackwardArgs, PositionBackwardArgs, TOKEN_DTYPE, positioned_rows,
};
use regatta_device::tensor::{View, ViewMut, row_count};

use crate::elementwise::{Elements, is_vectorised, kernel_name, to_u32};
use crate::{Arg, CudaDevice, Grid, Kernel, Ptr, Source};

pub(crate) static SOURCE: Source =
    Source { name: "embedding", text: include_str!("../kernels/embedding.cu") };

/// `SORT_THREADS` and `SORT_ROWS` of the source.
const SORT_THREADS: u32 = 256;
const SORT_ROWS: usize = 256;

/// Threads of a block that sums the rows of a token.
const SUM_THREADS: usize = 128;

impl EmbeddingOps for CudaDevice {
    fn embedding(&self, tokens: View<'_>, first: usize, table: View<'_>, y: ViewMut<'_>) {
        assert_tokens(tokens);
        if tokens.is_empty() {
            return;
        }
        let dim = row_count(y.len(), tokens.len());
        let table_rows = row_count(table.len(), dim);
        let name = kernel_name("embedding", [table.dtype(), y.dtype()]);
        let (table, y_ptr) = (Ptr::of(table), Ptr::of_mut(&y));
        let elements = Elements::in_rows(y.len(), &[dim], &[table, y_ptr]);
        let args: [Arg; 6] = [
            Ptr::of(tokens).into(),
            (first as u64).into(),
            table.into(),
            (table_rows as u64).into(),
            y_ptr.into(),
            to_u32(dim).into(),
        ];
        self.launch_elements(&SOURCE, name, elements, &[], &args);
    }

    fn embedding_backward(&self, args: EmbeddingBackwardArgs<'_>) {
        let EmbeddingBackwardArgs { tokens, first, dy, dtable } = args;
        assert_tokens(tokens);
        if tokens.is_empty() {
            return;
        }
        let dim = row_count(dy.len(), tokens.len());
        let table_rows = row_count(dtable.len(), dim);
        assert!(dtable.dtype() == DType::F32, "gradients of parameters are f32");
        if self.deterministic {
            return self.add_rows_in_order(dim, EmbeddingBackwardArgs { dtable, ..args });
        }
        let name = kernel_name("embedding_backward_atomic", [dy.dtype()]);
        let (dy_ptr, dtable_ptr) = (Ptr::of(dy), Ptr::of_mut(&dtable));
        let elements = Elements::in_rows(dy.len(), &[dim], &[dy_ptr, dtable_ptr]);
        let args: [Arg; 6] = [
            Ptr::of(tokens).into(),
            (first as u64).into(),
            dy_ptr.into(),
            dtable_ptr.into(),
            (table_rows as u64).into(),
            to_u32(dim).into(),
        ];
        self.launch_elements(&SOURCE, name, elements, &[], &args);
    }

    fn add_position_embedding(&self, dim: usize, pos: View<'_>, table: View<'_>, y: ViewMut<'_>) {
        assert_tokens(pos);
        if y.is_empty() {
            return;
        }
        positioned_rows(y.len(), dim, pos.len());
        row_count(table.len(), dim);
        let name = kernel_name("add_position_embedding", [table.dtype(), y.dtype()]);
        let (table, y_ptr) = (Ptr::of(table), Ptr::of_mut(&y));
        let elements = Elements::in_rows(y.len(), &[dim], &[table, y_ptr]);
        let args: [Arg; 5] = [
            Ptr::of(pos).into(),
            to_u32(pos.len()).into(),
            table.into(),
            y_ptr.into(),
            to_u32(dim).into(),
        ];
        self.launch_elements(&SOURCE, name, elements, &[], &args);
    }

    /// In a fixed order: positions may occur several times, as with context parallelism.
    fn position_embedding_backward(&self, args: PositionBackwardArgs<'_>) {
        let PositionBackwardArgs { dim, positions: tokens, dy, dtable } = args;
        assert_tokens(tokens);
        if dy.is_empty() {
            return;
        }
        positioned_rows(dy.len(), dim, tokens.len());
        assert!(dtable.dtype() == DType::F32, "gradients of parameters are f32");
        self.add_rows_in_order(dim, EmbeddingBackwardArgs { tokens, first: 0, dy, dtable });
    }
}

impl CudaDevice {
    /// Adds rows of `dy` to their rows of `dtable`, in a fixed order. The tokens repeat for every
    /// sequence of `dy`.
    fn add_rows_in_order(&self, dim: usize, args: EmbeddingBackwardArgs<'_>) {
        let EmbeddingBackwardArgs { tokens, first, dy, dtable } = args;
        let (count, table_rows) = (tokens.len(), row_count(dtable.len(), dim));
        let batch = row_count(dy.len(), dim) / count;
        to_u32(count);
        let order = self.scratch((count + table_rows + 1) * size_of::<u32>());
        let starts = order.offset_bytes(count * size_of::<u32>());
        self.launch(
            &Kernel::new(&SOURCE, "sort_by_table_row"),
            Grid::new(to_u32(table_rows.div_ceil(SORT_ROWS)), SORT_THREADS),
            &[
                Ptr::of(tokens).into(),
                (count as u64).into(),
                (first as u64).into(),
                (table_rows as u64).into(),
                order.into(),
                starts.into(),
            ],
        );
        let (dy_ptr, dtable_ptr) = (Ptr::of(dy), Ptr::of_mut(&dtable));
        let is_vectorised = is_vectorised(&[dim], &[dy_ptr, dtable_ptr]);
        let columns_per_block = SUM_THREADS * if is_vectorised { 8 } else { 1 };
        self.launch(
            &Kernel::new(&SOURCE, kernel_name("add_sorted_rows", [dy.dtype()])),
            Grid::planar([table_rows, dim.div_ceil(columns_per_block)], SUM_THREADS),
            &[
                order.into(),
                starts.into(),
                dy_ptr.into(),
                dtable_ptr.into(),
                (count as u64).into(),
                (batch as u64).into(),
                (dim as u64).into(),
                u32::from(is_vectorised).into(),
            ],
        );
    }
}

fn assert_tokens(tokens: View<'_>) {
    assert!(tokens.dtype() == TOKEN_DTYPE, "tokens are {TOKEN_DTYPE}, not {}", tokens.dtype());
}
