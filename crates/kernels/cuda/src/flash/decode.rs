//! Attention of one query to a KV cache.

use regatta_device::ops::{AttentionShape, DecodeAttentionArgs};

use crate::elementwise::{is_bf16, to_u32};
use crate::{CudaDevice, Grid, Kernel, Ptr, Source};

pub(crate) static SOURCE: Source =
    Source { name: "attention_decode", text: include_str!("../../kernels/attention_decode.cu") };

/// `WARPS` of the source.
const WARPS: usize = 8;
/// Keys of a block, at least: fewer do not occupy its warps.
const MIN_SPLIT_KEYS: usize = 128;
/// Threads of a block that merges splits.
const MERGE_THREADS: u32 = 128;

impl CudaDevice {
    pub(crate) fn decode(&self, args: DecodeAttentionArgs<'_>) {
        let DecodeAttentionArgs { shape, q, keys, values, y } = args;
        let AttentionShape { heads, kv_heads, head_dim, .. } = shape;
        let row = kv_heads * head_dim;
        assert!(row > 0 && keys.len().is_multiple_of(row), "keys do not have the shape");
        assert_eq!(keys.len(), values.len(), "there are as many keys as values");
        assert_eq!((q.len(), y.len()), (shape.out_dim(), shape.out_dim()), "one query per head");
        let dtypes = [q.dtype(), keys.dtype(), values.dtype()];
        assert!(dtypes.iter().all(|dtype| *dtype == dtypes[0]), "dtypes differ: {dtypes:?}");
        let tokens = keys.len() / row;
        if tokens == 0 || self.has_failed() {
            return;
        }
        let dtypes = [q.dtype(), y.dtype()].map(is_bf16);
        let y = Ptr::of_mut(&y);
        let keys_per_split = split_keys(tokens, heads, self.sm_count() as usize);
        let splits = tokens.div_ceil(keys_per_split);
        let partial_bytes = heads * splits * (head_dim + 2) * size_of::<f32>();
        let partials = if splits > 1 { self.scratch(partial_bytes) } else { Ptr::NULL };
        let kernel = |function| {
            kernel(function, head_dim as u64, dtypes)
                .define("WARP_THREADS", self.warp_threads() as u64)
        };
        self.launch(
            &kernel("attention_decode"),
            Grid::planar([heads, splits], WARPS * self.warp_threads()),
            &[
                Ptr::of(q).into(),
                Ptr::of(keys).into(),
                Ptr::of(values).into(),
                y.into(),
                partials.into(),
                to_u32(tokens).into(),
                to_u32(keys_per_split).into(),
                to_u32(kv_heads).into(),
                ((1.0 / (head_dim as f64).sqrt()) as f32).into(),
            ],
        );
        if splits > 1 {
            self.launch(
                &kernel("attention_decode_merge"),
                Grid::new(to_u32(heads), MERGE_THREADS),
                &[partials.into(), y.into(), to_u32(splits).into()],
            );
        }
    }

    /// Threads of a warp.
    pub(crate) fn warp_threads(&self) -> usize {
        self.info().warp_size as usize
    }
}

/// Keys of a split: as many splits as occupy the GPU, but not too short ones.
fn split_keys(tokens: usize, heads: usize, multiprocessors: usize) -> usize {
    let splits = (2 * multiprocessors).div_ceil(heads.max(1));
    tokens.div_ceil(splits.max(1)).max(MIN_SPLIT_KEYS)
}

/// A kernel without `WARP_THREADS`.
fn kernel(function: &'static str, head_dim: u64, [in_bf16, out_bf16]: [bool; 2]) -> Kernel {
    Kernel::new(&SOURCE, function)
        .define("HEAD_DIM", head_dim)
        .define("IN_BF16", in_bf16.into())
        .define("OUT_BF16", out_bf16.into())
}

#[cfg(test)]
pub(super) fn kernels(head_dim: u64, bf16: u64, warp: u64) -> Vec<Kernel> {
    let kernel = kernel("attention_decode", head_dim, [bf16 == 1; 2]);
    vec![kernel.define("WARP_THREADS", warp)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_caches_are_split_over_the_gpu() {
        assert_eq!(split_keys(1, 12, 132), MIN_SPLIT_KEYS);
        assert_eq!(split_keys(4096, 32, 132), 4096usize.div_ceil(9));
        assert_eq!(split_keys(1000, 1000, 132), 1000);
    }
}
