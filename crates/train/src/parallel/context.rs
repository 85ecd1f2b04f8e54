//! Context parallelism (ring attention): ranks shard every sequence. Keys and values circulate around
//! a ring of the ranks, and each rank's queries attend to them as they pass.
//!
//! A sequence is split into two chunks per rank, and rank *i* of *n* has chunks *i* and *2n-1-i*:
//! causal attention of late tokens costs more, and this balances the load. A rank's rows are those of
//! its first chunk of all sequences, then those of its second.

use std::borrow::Cow;
use std::ops::Range;

use regatta_comm::{CallKind, CommError};

use super::p2p::P2pTransfer;
use super::{P2pLink, Result, WaitTime};
use crate::buffer_pool::PooledTensor;
use crate::model::PassCtx;
use regatta_device::ops::{
    AttentionChunkArgs, AttentionChunkBackwardArgs, AttentionChunkShape, AttentionDropout,
    AttentionSaved, AttentionShape, Device,
};
use regatta_device::tensor::{Tensor, View};
use regatta_predict::shape::Shard;

/// A rank of a context-parallel group.
#[derive(Clone)]
pub struct ContextParallel {
    ring: P2pLink,
    /// This rank's shard of the sequences.
    pub shard: Shard,
    /// Time blocked on the ring.
    pub wait_time: WaitTime,
}

impl ContextParallel {
    /// No context parallelism.
    pub fn disabled() -> Self {
        Self::new(P2pLink::default(), Shard::UNSHARDED)
    }

    /// Context parallelism over a ring.
    pub fn new(ring: P2pLink, shard: Shard) -> Self {
        Self { ring, shard, wait_time: WaitTime::default() }
    }

    /// Whether sequences are sharded.
    pub fn is_enabled(&self) -> bool {
        self.shard.ranks > 1
    }

    /// The positions of a rank's tokens in sequences of `seq_len` tokens.
    pub fn chunks(&self, rank: usize, seq_len: usize) -> Vec<Range<usize>> {
        let ranks = self.shard.ranks;
        if ranks == 1 {
            return std::iter::once(0..seq_len).collect();
        }
        let len = seq_len / (2 * ranks);
        [rank, 2 * ranks - 1 - rank].map(|chunk| chunk * len..(chunk + 1) * len).to_vec()
    }

    /// This rank's tokens of full sequences.
    pub fn local_tokens<'t>(&self, tokens: &'t [u32], seq_len: usize) -> Cow<'t, [u32]> {
        if !self.is_enabled() {
            return Cow::Borrowed(tokens);
        }
        let chunks = self.chunks(self.shard.rank, seq_len).into_iter();
        let of_chunk = |chunk: Range<usize>| {
            tokens.chunks(seq_len).flat_map(move |sequence| &sequence[chunk.clone()])
        };
        Cow::Owned(chunks.flat_map(of_chunk).copied().collect())
    }

    /// Causal attention over full sequences: the outputs of this rank's queries, and the softmax lse.
    /// `drop` is the dropout of the full sequences, offset to this rank's first head.
    pub fn attention(
        &self,
        ctx: &PassCtx,
        of: AttentionShape,
        qkv: View<'_>,
        drop: Option<AttentionDropout>,
    ) -> Result<(PooledTensor, PooledTensor)> {
        let device = ctx.device;
        let (q, mut kv) = split_qkv(ctx, of, qkv);
        let mut y = ctx.full_precision(of.rows() * of.out_dim());
        let mut lse = ctx.full_precision(of.rows() * of.heads);
        device.fill(f64::NEG_INFINITY, lse.view_mut());
        for hop in 0..self.shard.ranks {
            let next_kv = self.forward_kv(ctx, &kv, hop)?;
            for tile in self.tiles(ctx, of, hop) {
                let AttentionTile { part, queries, keys, .. } = &tile;
                device.attention_chunk(AttentionChunkArgs {
                    shape: *part,
                    q: q.view().slice(scale(queries, part.out_dim())),
                    kv: kv.view().slice(scale(keys, part.kv_dim())),
                    dropout: tile.dropout(drop),
                    y: y.view_mut().slice(scale(queries, part.out_dim())),
                    lse: lse.view_mut().slice(scale(queries, part.heads)),
                });
            }
            if let Some(next_kv) = next_kv {
                kv = self.wait_time.measure(|| next_kv.wait(device))?;
            }
        }
        let mut heads = ctx.activation(y.len());
        device.copy(y.view(), heads.view_mut());
        Ok((heads, lse))
    }

    /// The gradient of queries, keys and values. The gradients of keys and values circulate with them,
    /// and take one hop more, back to their owner.
    pub fn attention_backward(
        &self,
        ctx: &PassCtx,
        of: AttentionShape,
        saved: AttentionSaved<'_>,
        drop: Option<AttentionDropout>,
        dy: View<'_>,
    ) -> Result<PooledTensor> {
        let device = ctx.device;
        let (q, mut kv) = split_qkv(ctx, of, saved.qkv);
        let [mut dq, mut dkv] = [ctx.full_precision(q.len()), ctx.full_precision(kv.len())];
        device.zero(dq.view_mut());
        device.zero(dkv.view_mut());
        for hop in 0..self.shard.ranks {
            let next_kv = self.forward_kv(ctx, &kv, hop)?;
            for tile in self.tiles(ctx, of, hop) {
                let AttentionTile { part, queries, keys, .. } = &tile;
                let elements = scale(queries, part.out_dim());
                device.attention_chunk_backward(AttentionChunkBackwardArgs {
                    shape: *part,
                    q: q.view().slice(elements.clone()),
                    kv: kv.view().slice(scale(keys, part.kv_dim())),
                    y: saved.y.slice(elements.clone()),
                    lse: saved.lse.slice(scale(queries, part.heads)),
                    dropout: tile.dropout(drop),
                    dy: dy.slice(elements.clone()),
                    dq: dq.view_mut().slice(elements),
                    dkv: dkv.view_mut().slice(scale(keys, part.kv_dim())),
                });
            }
            let next_dkv = self.send_recv(ctx, dkv)?;
            if let Some(next_kv) = next_kv {
                kv = self.wait_time.measure(|| next_kv.wait(device))?;
            }
            dkv = self.wait_time.measure(|| next_dkv.wait(device))?;
        }
        let mut dqkv = ctx.activation(saved.qkv.len());
        let (qkv_width, q_width) = (of.qkv_dim(), of.out_dim());
        device.copy_to_columns(dq.view(), dqkv.view_mut(), qkv_width, 0..q_width);
        device.copy_to_columns(dkv.view(), dqkv.view_mut(), qkv_width, q_width..qkv_width);
        Ok(dqkv)
    }

    /// The attention tiles of a hop: this rank's query chunks against the key chunks of the hop.
    /// Key chunks after a query chunk are fully masked, and skipped.
    fn tiles(&self, ctx: &PassCtx, of: AttentionShape, hop: usize) -> Vec<AttentionTile> {
        let Shard { rank, ranks } = self.shard;
        let seq_len = ctx.full_seq_len();
        let kv_owner = (rank + ranks - hop) % ranks;
        let mut tiles = Vec::new();
        for (i, queries) in self.chunks(rank, seq_len).into_iter().enumerate() {
            for (j, keys) in self.chunks(kv_owner, seq_len).into_iter().enumerate() {
                if keys.start > queries.start {
                    continue;
                }
                let part = AttentionChunkShape {
                    batch: ctx.batch,
                    queries: queries.len(),
                    keys: keys.len(),
                    heads: of.heads,
                    kv_heads: of.kv_heads,
                    head_dim: of.head_dim,
                    causal: keys.start == queries.start,
                };
                let rows = ctx.batch * queries.len();
                tiles.push(AttentionTile {
                    part,
                    queries: i * rows..(i + 1) * rows,
                    keys: j * rows..(j + 1) * rows,
                    first_query: queries.start,
                    first_key: keys.start,
                });
            }
        }
        tiles
    }

    /// Starts sending a copy of keys and values to the next rank, unless this is the last hop.
    fn forward_kv(&self, ctx: &PassCtx, kv: &Tensor, hop: usize) -> Result<Option<SendRecv>> {
        if hop + 1 == self.shard.ranks {
            return Ok(None);
        }
        let mut copy = ctx.like(kv, kv.len());
        ctx.device.copy(kv.view(), copy.view_mut());
        self.send_recv(ctx, copy).map(Some)
    }

    /// Starts a send to the next rank, and a receive of the same size from the previous one.
    fn send_recv(&self, ctx: &PassCtx, message: PooledTensor) -> Result<SendRecv> {
        let (Some(next), Some(previous)) = (&self.ring.send_to, &self.ring.recv_from) else {
            let what = "this rank has no context-parallel ring".to_owned();
            return Err(CommError::InvalidCall { call: CallKind::Send.name(), what });
        };
        let buffer = ctx.like(&message, message.len());
        let send = P2pTransfer::send(ctx.device, &**next, message);
        Ok(SendRecv { send, recv: P2pTransfer::recv(ctx.device, &**previous, buffer) })
    }
}

/// One chunk of queries against one chunk of keys.
struct AttentionTile {
    part: AttentionChunkShape,
    /// Rows of the local queries.
    queries: Range<usize>,
    /// Rows of the keys of the hop.
    keys: Range<usize>,
    first_query: usize,
    first_key: usize,
}

impl AttentionTile {
    fn dropout(&self, full: Option<AttentionDropout>) -> Option<AttentionDropout> {
        full.map(|full| full.shard([0, 0, self.first_query, self.first_key]))
    }
}

struct SendRecv {
    send: P2pTransfer,
    recv: P2pTransfer,
}

impl SendRecv {
    fn wait(self, device: &dyn Device) -> Result<PooledTensor> {
        let message = self.recv.wait(device)?;
        drop(self.send.wait(device)?);
        Ok(message)
    }
}

/// Queries, and keys with values.
fn split_qkv(ctx: &PassCtx, of: AttentionShape, qkv: View<'_>) -> (PooledTensor, PooledTensor) {
    let (rows, qkv_width, q_width) = (of.rows(), of.qkv_dim(), of.out_dim());
    let mut q = ctx.activation(rows * q_width);
    let mut kv = ctx.activation(rows * (qkv_width - q_width));
    ctx.device.copy_from_columns(qkv, qkv_width, 0..q_width, q.view_mut());
    ctx.device.copy_from_columns(qkv, qkv_width, q_width..qkv_width, kv.view_mut());
    (q, kv)
}

/// The elements of rows that are `width` wide.
fn scale(rows: &Range<usize>, width: usize) -> Range<usize> {
    rows.start * width..rows.end * width
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_all_tokens_and_balance_causal_attention() {
        let rank = |rank| ContextParallel::new(P2pLink::default(), Shard { rank, ranks: 3 });
        let tokens: Vec<u32> = (0..24).collect();
        let local: Vec<_> = (0..3).map(|i| rank(i).local_tokens(&tokens, 12).to_vec()).collect();
        assert_eq!(local[0], [0, 1, 12, 13, 10, 11, 22, 23]);
        assert_eq!(local[2], [4, 5, 16, 17, 6, 7, 18, 19]);
        let mut all: Vec<u32> = local.concat();
        all.sort_unstable();
        assert_eq!(all, tokens);
        let attended = |local: &Vec<u32>| local.iter().map(|token| token % 12 + 1).sum::<u32>();
        assert!(local.iter().all(|other| attended(other) == attended(&local[0])));
    }
}
