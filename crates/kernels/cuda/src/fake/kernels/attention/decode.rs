//! `attention_decode.cu`.

use regatta_comm::DType;

use super::super::super::launch::Launch;
use super::{add_row, dot};

/// `WARPS` of the source.
const WARPS: usize = 8;

/// A block has a head and a split of the keys.
pub(super) fn run(launch: &Launch<'_>) {
    launch.assert_threads(WARPS * launch.define("WARP_THREADS"));
    let mut args = launch.args();
    let [q, keys, values, y, partials] = [(); 5].map(|()| args.ptr());
    let [tokens, keys_per_split, kv_heads] = [(); 3].map(|()| args.size32());
    let scale = args.f32();
    let (head_dim, [heads, splits, _]) = (launch.define("HEAD_DIM"), launch.blocks);
    let (dtype, stride) = (launch.dtype("IN_BF16"), kv_heads * head_dim);
    let q = launch.array(q, dtype, heads * head_dim);
    let [keys, values] = [keys, values].map(|of| launch.array(of, dtype, tokens * stride));
    let y = launch.array(y, launch.dtype("OUT_BF16"), heads * head_dim);
    let partial_len = head_dim + 2;
    let partials = launch.optional_array(partials, DType::F32, heads * splits * partial_len);
    for (head, split) in (0..heads).flat_map(|head| (0..splits).map(move |split| (head, split))) {
        let query = q.row(head * head_dim, head_dim, 1);
        let start = head / (heads / kv_heads) * head_dim;
        let of_split = split * keys_per_split..tokens.min((split + 1) * keys_per_split);
        let scores: Vec<f32> = of_split
            .clone()
            .map(|key| dot(&query, &keys.row(key * stride + start, head_dim, 1)) * scale)
            .collect();
        let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let (mut sum, mut output) = (0.0, vec![0.0; head_dim]);
        for (key, score) in of_split.zip(scores) {
            let p = (score - max).exp();
            sum += p;
            add_row(&mut output, p, &values.row(key * stride + start, head_dim, 1));
        }
        match partials.filter(|_| splits > 1) {
            None => (0..head_dim).for_each(|d| y.set(head * head_dim + d, output[d] / sum)),
            Some(partials) => {
                let to = partials.from((head * splits + split) * partial_len);
                output.extend([max, sum]);
                output.iter().enumerate().for_each(|(at, x)| to.set(at, *x));
            }
        }
    }
}

/// Merges the splits of a head.
pub(super) fn merge(launch: &Launch<'_>) {
    launch.assert_one_dimension();
    let mut args = launch.args();
    let (partials, y, splits) = (args.ptr(), args.ptr(), args.size32());
    let (head_dim, heads) = (launch.define("HEAD_DIM"), launch.blocks[0]);
    let partial_len = head_dim + 2;
    let partials = launch.array(partials, DType::F32, heads * splits * partial_len);
    let y = launch.array(y, launch.dtype("OUT_BF16"), heads * head_dim);
    for head in 0..heads {
        let partial =
            |split: usize, at: usize| partials.get((head * splits + split) * partial_len + at);
        let all = 0..splits;
        let max = all.clone().map(|split| partial(split, head_dim)).fold(f32::MIN, f32::max);
        let weight = |split: usize| (partial(split, head_dim) - max).exp();
        let sum: f32 = all.clone().map(|split| partial(split, head_dim + 1) * weight(split)).sum();
        for d in 0..head_dim {
            let o: f32 = all.clone().map(|split| partial(split, d) * weight(split)).sum();
            y.set(head * head_dim + d, o / sum);
        }
    }
}
