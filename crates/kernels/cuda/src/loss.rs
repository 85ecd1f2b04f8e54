//! Cross-entropy, also vocabulary-parallel.

use std::ops::Range;

use regatta_comm::DType;
use regatta_device::LossOps;
use regatta_device::ops::{
    CrossEntropyArgs, CrossEntropyBackwardArgs, CrossEntropyPartialsArgs, TOKEN_DTYPE,
    logit_row_len,
};
use regatta_device::tensor::{View, ViewMut, row_count};

use crate::elementwise::{is_vectorised, kernel_name, to_u32};
use crate::{Arg, CudaDevice, Grid, Kernel, Ptr, Source};

pub(crate) static SOURCE: Source = Source {
    name: "loss",
    text: concat!(include_str!("../kernels/e4m3.cuh"), include_str!("../kernels/loss.cu")),
};

/// `MAX_THREADS` of the source.
const MAX_THREADS: usize = 1024;

/// Shared memory that a block uses besides that for its row, and that the driver reserves for it.
const RESERVED_SHARED_BYTES: usize = 2048;

/// Bytes of a vector.
const VECTOR_BYTES: usize = 16;

/// Elements of a row of partials.
const PARTIALS_PER_ROW: usize = 3;

impl LossOps for CudaDevice {
    fn cross_entropy(&self, args: CrossEntropyArgs<'_>) {
        if !self.cross_entropy_fused(&args, None) {
            self.cross_entropy_whole(args);
        }
    }

    fn cross_entropy_partials(&self, args: CrossEntropyPartialsArgs<'_>) {
        let CrossEntropyPartialsArgs { targets, vocab, logits, partials } = args;
        assert_targets(targets);
        assert_partials(partials.view(), targets.len());
        if !targets.is_empty() {
            let (rows, to) = (LogitRows { targets, vocab, logits }, Ptr::of_mut(&partials));
            self.launch_rows("cross_entropy_partials", rows, None, to.into());
        }
    }

    fn merge_cross_entropy_partials(
        &self,
        partials: View<'_>,
        merged: ViewMut<'_>,
        loss: Option<ViewMut<'_>>,
    ) {
        if merged.is_empty() {
            return;
        }
        let rows = row_count(merged.len(), PARTIALS_PER_ROW);
        let sets = row_count(partials.len(), merged.len());
        let is_f32 = partials.dtype() == DType::F32 && merged.dtype() == DType::F32;
        assert!(is_f32, "partials are f32");
        let losses = match &loss {
            Some(_) => self.scratch(rows * size_of::<f64>()),
            None => Ptr::NULL,
        };
        self.launch_merge(Ptr::of(partials), rows, sets, Ptr::of_mut(&merged), losses);
        if let Some(loss) = loss {
            self.add_scalars(losses, rows, &loss);
        }
    }

    fn cross_entropy_backward(&self, args: CrossEntropyBackwardArgs<'_>) {
        let CrossEntropyBackwardArgs { targets, vocab, merged, logits, grad_scale } = args;
        assert_targets(targets);
        assert_partials(merged, targets.len());
        if !targets.is_empty() {
            let rows = LogitRows { targets, vocab, logits: logits.view() };
            let (merged, scale) = (Ptr::of(merged), (grad_scale as f32).into());
            self.launch_rows("cross_entropy_backward", rows, Some(merged), scale);
        }
    }
}

impl CudaDevice {
    /// Loss and gradient by one kernel with rows in shared memory, and the gradient in fp8 if its addresses
    /// are given. Returns false, without effects, if there is no gradient or rows do not fit.
    pub(crate) fn cross_entropy_fused(
        &self,
        args: &CrossEntropyArgs<'_>,
        fp8: Option<[Ptr; 2]>,
    ) -> bool {
        let CrossEntropyArgs { targets, vocab, ref logits, grad_scale, ref loss } = *args;
        let Some(grad_scale) = grad_scale else { return false };
        assert_targets(targets);
        if targets.is_empty() {
            return true;
        }
        let rows = targets.len();
        let row_len = logit_row_len(logits.len(), rows, vocab);
        let shared_bytes = row_bytes(row_len, logits.dtype());
        let max_shared_bytes = self.max_shared_bytes() as usize;
        let is_aligned = fp8.is_none() || is_vectorised(&[row_len], &[Ptr::of_mut(logits)]);
        if shared_bytes + RESERVED_SHARED_BYTES > max_shared_bytes || !is_aligned {
            return false;
        }
        let losses = self.scratch(rows * size_of::<f64>());
        let two_fit = 2 * (shared_bytes + RESERVED_SHARED_BYTES) <= max_shared_bytes;
        let max_threads = if two_fit { MAX_THREADS / 2 } else { MAX_THREADS };
        let threads = row_threads(row_len, logits.dtype(), max_threads);
        let function = if fp8.is_some() { "cross_entropy_fp8" } else { "cross_entropy" };
        let mut args = vec![
            Arg::from(Ptr::of(targets)),
            Ptr::of_mut(logits).into(),
            to_u32(vocab).into(),
            to_u32(row_len).into(),
            (grad_scale as f32).into(),
            losses.into(),
        ];
        args.extend(fp8.into_iter().flatten().map(Arg::from));
        self.launch(
            &Kernel::new(&SOURCE, kernel_name(function, [logits.dtype()])),
            Grid::new(to_u32(rows), threads).shared(shared_bytes as u32),
            &args,
        );
        self.add_scalars(losses, rows, loss);
        true
    }

    /// Loss and gradient by kernels that read rows from global memory.
    pub(crate) fn cross_entropy_whole(&self, args: CrossEntropyArgs<'_>) {
        let CrossEntropyArgs { targets, vocab, logits, grad_scale, loss } = args;
        assert_targets(targets);
        if targets.is_empty() {
            return;
        }
        let rows = targets.len();
        let losses = self.scratch(rows * (size_of::<f64>() + PARTIALS_PER_ROW * size_of::<f32>()));
        let partials = losses.offset_bytes(rows * size_of::<f64>());
        let all = || LogitRows { targets, vocab: 0..vocab, logits: logits.view() };
        self.launch_rows("cross_entropy_partials", all(), None, partials.into());
        self.launch_merge(partials, rows, 1, Ptr::NULL, losses);
        if let Some(grad_scale) = grad_scale {
            let scale = (grad_scale as f32).into();
            self.launch_rows("cross_entropy_backward", all(), Some(partials), scale);
        }
        self.add_scalars(losses, rows, &loss);
    }

    /// Launches a kernel of the partials of rows of logits, or of their gradient, which reads merged partials.
    fn launch_rows(&self, function: &str, rows: LogitRows<'_>, merged: Option<Ptr>, last: Arg) {
        let LogitRows { targets, vocab, logits } = rows;
        let row_len = logit_row_len(logits.len(), targets.len(), vocab.len());
        let threads = row_threads(row_len, logits.dtype(), MAX_THREADS / 2);
        let mut args = vec![Arg::from(Ptr::of(targets)), (vocab.start as u64).into()];
        args.extend(merged.map(Arg::from));
        let sizes = [vocab.len(), row_len].map(to_u32);
        args.extend([Arg::from(Ptr::of(logits)), sizes[0].into(), sizes[1].into(), last]);
        let kernel = Kernel::new(&SOURCE, kernel_name(function, [logits.dtype()]));
        self.launch(&kernel, Grid::new(to_u32(targets.len()), threads), &args);
    }

    fn launch_merge(&self, partials: Ptr, rows: usize, sets: usize, merged: Ptr, losses: Ptr) {
        self.launch(
            &Kernel::new(&SOURCE, "merge_partials"),
            Grid::linear(rows, 1),
            &[
                partials.into(),
                (rows as u64).into(),
                to_u32(sets).into(),
                merged.into(),
                losses.into(),
            ],
        );
    }
}

/// Rows of logits of some tokens.
struct LogitRows<'a> {
    targets: View<'a>,
    vocab: Range<usize>,
    logits: View<'a>,
}

/// Bytes of the aligned vectors that contain a row, wherever it starts.
fn row_bytes(columns: usize, dtype: DType) -> usize {
    ((columns - 1) * dtype.size()).next_multiple_of(VECTOR_BYTES) + VECTOR_BYTES
}

/// Threads for a row: one per vector, in whole warps of any device.
fn row_threads(columns: usize, dtype: DType, max_threads: usize) -> u32 {
    let vectors = row_bytes(columns, dtype) / VECTOR_BYTES;
    vectors.next_multiple_of(64).min(max_threads) as u32
}

fn assert_targets(targets: View<'_>) {
    assert!(targets.dtype() == TOKEN_DTYPE, "targets are {TOKEN_DTYPE}, not {}", targets.dtype());
}

fn assert_partials(partials: View<'_>, rows: usize) {
    assert_eq!(partials.len(), PARTIALS_PER_ROW * rows, "partials have three elements per row");
    assert!(partials.dtype() == DType::F32, "partials are f32");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_holds_rows_of_any_alignment() {
        for (dtype, len) in [(DType::F32, 4usize), (DType::Bf16, 8)] {
            for columns in 1..40 {
                let vectors = (0..len).map(|start| (start + columns).div_ceil(len)).max().unwrap();
                assert_eq!(row_bytes(columns, dtype), vectors * VECTOR_BYTES, "{columns}");
            }
        }
    }

    #[test]
    fn two_rows_of_gpt2_fit_on_an_h200() {
        let bytes = row_bytes(50_304, DType::Bf16) + RESERVED_SHARED_BYTES;
        assert!(2 * bytes <= 227 * 1024);
        assert_eq!(row_threads(50_304, DType::Bf16, MAX_THREADS / 2), 512);
        assert_eq!(row_threads(65, DType::Bf16, MAX_THREADS), 64);
    }
}
