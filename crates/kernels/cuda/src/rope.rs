//! Rotary position embedding.

use regatta_device::ops::{AttentionShape, RopeArgs, RopeDirection, TOKEN_DTYPE};

use crate::elementwise::{is_vectorised, kernel_name, to_u32};
use crate::{CudaDevice, Grid, Kernel, Ptr, Source};

pub(crate) static SOURCE: Source =
    Source { name: "rope", text: include_str!("../kernels/rope.cu") };

/// `THREADS` of the source.
const THREADS: usize = 256;

/// Blocks per multiprocessor that hide the latency of the angles.
const BLOCKS_PER_SM: usize = 16;

impl CudaDevice {
    pub(crate) fn rope(&self, args: RopeArgs<'_>) {
        let RopeArgs { shape, theta, positions, direction, qkv } = args;
        let AttentionShape { batch, seq_len, heads, kv_heads, head_dim } = shape;
        assert_eq!(positions.len(), seq_len, "there is one position per token of a sequence");
        assert!(positions.dtype() == TOKEN_DTYPE, "positions are {TOKEN_DTYPE}");
        assert_eq!(qkv.len(), shape.rows() * shape.qkv_dim(), "qkv does not have the shape");
        let half = head_dim / 2;
        if qkv.is_empty() || half == 0 {
            return;
        }
        let pointer = Ptr::of_mut(&qkv);
        let is_vectorised = is_vectorised(&[half, shape.qkv_dim()], &[pointer]);
        let sequence_blocks = (BLOCKS_PER_SM * self.sm_count() as usize).div_ceil(seq_len);
        let grid = Grid::planar([seq_len, sequence_blocks.min(batch)], THREADS);
        let sign: f32 = if direction == RopeDirection::Forward { 1.0 } else { -1.0 };
        self.launch(
            &Kernel::new(&SOURCE, kernel_name("rope", [qkv.dtype()])),
            grid.shared(to_u32(2 * half * size_of::<f32>())),
            &[
                pointer.into(),
                Ptr::of(positions).into(),
                to_u32(batch).into(),
                to_u32(seq_len).into(),
                to_u32(heads + kv_heads).into(),
                to_u32(head_dim).into(),
                (shape.qkv_dim() as u64).into(),
                (-theta.log2() / half as f64).into(),
                sign.into(),
                u32::from(is_vectorised).into(),
            ],
        );
    }
}
