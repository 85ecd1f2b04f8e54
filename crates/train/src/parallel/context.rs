//! Context parallel: ranks share every sequence. Keys and values go round a ring of the ranks, and
//! each rank's queries look at them as they come by.
//!
//! A sequence is cut into two chunks a rank, and rank *i* of *n* has chunks *i* and *2n-1-i*: late
//! tokens see more than early ones, and so each rank has as much to do as the others. A rank's rows
//! are those of its first chunk of all sequences, then those of its second.

use std::borrow::Cow;
use std::ops::Range;

use regatta_comm::{CommError, Kind};

use super::message::Message;
use super::{Link, Waits};
use crate::model::{Lent, Run};
use regatta_device::device::{
    Attention, AttentionDrop, AttentionPart, AttentionPartSaved, AttentionSaved,
};
use regatta_device::memory::{Tensor, View};
use regatta_predict::shape::Share;

/// The ranks that share sequences, seen by one of them.
#[derive(Clone)]
pub struct Ring {
    link: Link,
    /// Which of them this is.
    pub share: Share,
    /// How long passes waited for the others.
    pub waits: Waits,
}

impl Ring {
    /// No other ranks.
    pub fn alone() -> Self {
        Self::new(Link::default(), Share::ALL)
    }

    /// A rank of several, with links to its neighbours.
    pub fn new(link: Link, share: Share) -> Self {
        Self { link, share, waits: Waits::default() }
    }

    /// Whether there are no other ranks.
    pub fn is_alone(&self) -> bool {
        self.share.ranks == 1
    }

    /// The positions of a rank's tokens in sequences of this length.
    pub fn chunks(&self, rank: usize, whole: usize) -> Vec<Range<usize>> {
        let ranks = self.share.ranks;
        if ranks == 1 {
            return std::iter::once(0..whole).collect();
        }
        let each = whole / (2 * ranks);
        [rank, 2 * ranks - 1 - rank].map(|chunk| chunk * each..(chunk + 1) * each).to_vec()
    }

    /// This rank's tokens of whole sequences.
    pub fn take<'t>(&self, tokens: &'t [u32], whole: usize) -> Cow<'t, [u32]> {
        if self.is_alone() {
            return Cow::Borrowed(tokens);
        }
        let chunks = self.chunks(self.share.rank, whole).into_iter();
        let of =
            |chunk: Range<usize>| tokens.chunks(whole).flat_map(move |all| &all[chunk.clone()]);
        Cow::Owned(chunks.flat_map(of).copied().collect())
    }

    /// Causal attention over whole sequences: what this rank's heads find, and the logarithms of
    /// the softmaxes' sums. `drop` is that of the whole, of the first of this rank's heads on.
    pub fn attend(
        &self,
        run: &Run<'_>,
        of: Attention,
        qkv: View<'_>,
        drop: Option<AttentionDrop>,
    ) -> Result<(Lent, Lent), CommError> {
        let device = run.device;
        let (q, mut kv) = apart(run, of, qkv);
        let mut y = run.real(of.rows() * of.width());
        let mut log_sums = run.real(of.rows() * of.heads);
        device.fill(f64::NEG_INFINITY, log_sums.view_mut());
        for hop in 0..self.share.ranks {
            let passing = self.pass_on(run, &kv, hop)?;
            for pair in self.pairs(run, of, hop) {
                let Pair { part, rows, keys, .. } = &pair;
                let (mut y, mut sums) = (y.view_mut(), log_sums.view_mut());
                device.attention_part(
                    *part,
                    q.view().part(times(rows, part.width())),
                    kv.view().part(times(keys, part.kv_width())),
                    pair.drop(drop),
                    y.part(times(rows, part.width())),
                    sums.part(times(rows, part.heads)),
                );
            }
            if let Some(passing) = passing {
                kv = self.waits.count(|| passing.wait())?;
            }
        }
        let mut heads = run.activation(y.len());
        device.copy(y.view(), heads.view_mut());
        Ok((heads, log_sums))
    }

    /// The gradient of queries, keys and values. Those of keys and values go round with them, and
    /// one hop farther, home.
    pub fn attend_back(
        &self,
        run: &Run<'_>,
        of: Attention,
        saved: AttentionSaved<'_>,
        drop: Option<AttentionDrop>,
        dy: View<'_>,
    ) -> Result<Lent, CommError> {
        let device = run.device;
        let (q, mut kv) = apart(run, of, saved.qkv);
        let [mut dq, mut dkv] = [run.real(q.len()), run.real(kv.len())];
        device.clear(dq.view_mut());
        device.clear(dkv.view_mut());
        for hop in 0..self.share.ranks {
            let passing = self.pass_on(run, &kv, hop)?;
            for pair in self.pairs(run, of, hop) {
                let Pair { part, rows, keys, .. } = &pair;
                let numbers = times(rows, part.width());
                let needed = AttentionPartSaved {
                    q: q.view().part(numbers.clone()),
                    kv: kv.view().part(times(keys, part.kv_width())),
                    y: saved.y.part(numbers.clone()),
                    log_sums: saved.log_sums.part(times(rows, part.heads)),
                };
                let (mut dq, mut dkv) = (dq.view_mut(), dkv.view_mut());
                device.attention_part_back(
                    *part,
                    needed,
                    pair.drop(drop),
                    dy.part(numbers.clone()),
                    dq.part(numbers),
                    dkv.part(times(keys, part.kv_width())),
                );
            }
            let next = self.pass(run, dkv)?;
            if let Some(passing) = passing {
                kv = self.waits.count(|| passing.wait())?;
            }
            dkv = self.waits.count(|| next.wait())?;
        }
        let mut dqkv = run.activation(saved.qkv.len());
        let (wide, width) = (of.qkv_width(), of.width());
        device.put_columns(dq.view(), dqkv.view_mut(), wide, 0..width);
        device.put_columns(dkv.view(), dqkv.view_mut(), wide, width..wide);
        Ok(dqkv)
    }

    /// Which of this rank's rows look at which of the rows that are here after so many hops.
    fn pairs(&self, run: &Run<'_>, of: Attention, hop: usize) -> Vec<Pair> {
        let Share { rank, ranks } = self.share;
        let whole = run.sequence * ranks;
        let from = (rank + ranks - hop) % ranks;
        let mut pairs = Vec::new();
        for (i, queries) in self.chunks(rank, whole).into_iter().enumerate() {
            for (j, keys) in self.chunks(from, whole).into_iter().enumerate() {
                if keys.start > queries.start {
                    continue;
                }
                let each = run.batch * queries.len();
                let part = AttentionPart {
                    batch: run.batch,
                    queries: queries.len(),
                    keys: keys.len(),
                    heads: of.heads,
                    kv_heads: of.kv_heads,
                    head_width: of.head_width,
                    causal: keys.start == queries.start,
                };
                let (rows, keyed) = (i * each..(i + 1) * each, j * each..(j + 1) * each);
                let at = [queries.start, keys.start];
                pairs.push(Pair { part, rows, keys: keyed, at });
            }
        }
        pairs
    }

    /// Passes a copy of keys and values on, if somebody still needs them.
    fn pass_on(
        &self,
        run: &Run<'_>,
        kv: &Tensor,
        hop: usize,
    ) -> Result<Option<Passing>, CommError> {
        if hop + 1 == self.share.ranks {
            return Ok(None);
        }
        let mut copy = run.like(kv, kv.len());
        run.device.copy(kv.view(), copy.view_mut());
        self.pass(run, copy).map(Some)
    }

    /// Passes something on to the next rank, while the rank before passes as much on to this one.
    fn pass(&self, run: &Run<'_>, message: Lent) -> Result<Passing, CommError> {
        let (Some(to), Some(from)) = (&self.link.to, &self.link.from) else {
            let what = "the ring has no link there".to_owned();
            return Err(CommError::Shape { call: Kind::Send.name(), what });
        };
        let room = run.like(&message, message.len());
        let sent = Message::send(&**to, message);
        Ok(Passing { sent, coming: Message::receive(&**from, room) })
    }
}

/// Some rows of this rank and some that came by, the latter not behind the former.
struct Pair {
    part: AttentionPart,
    rows: Range<usize>,
    keys: Range<usize>,
    /// The positions of the first query and the first key.
    at: [usize; 2],
}

impl Pair {
    fn drop(&self, whole: Option<AttentionDrop>) -> Option<AttentionDrop> {
        let [query, key] = self.at;
        whole.map(|whole| whole.from([0, 0, query, key]))
    }
}

struct Passing {
    sent: Message,
    coming: Message,
}

impl Passing {
    fn wait(self) -> Result<Lent, CommError> {
        let message = self.coming.wait()?;
        drop(self.sent.wait()?);
        Ok(message)
    }
}

/// Queries, and keys with values.
fn apart(run: &Run<'_>, of: Attention, qkv: View<'_>) -> (Lent, Lent) {
    let (rows, wide, width) = (of.rows(), of.qkv_width(), of.width());
    let mut q = run.activation(rows * width);
    let mut kv = run.activation(rows * (wide - width));
    run.device.take_columns(qkv, wide, 0..width, q.view_mut());
    run.device.take_columns(qkv, wide, width..wide, kv.view_mut());
    (q, kv)
}

fn times(rows: &Range<usize>, width: usize) -> Range<usize> {
    rows.start * width..rows.end * width
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_is_one_ranks_and_all_have_as_much_to_do() {
        let ring = |rank| Ring::new(Link::default(), Share { rank, ranks: 3 });
        let tokens: Vec<u32> = (0..24).collect();
        let all: Vec<Vec<u32>> = (0..3).map(|rank| ring(rank).take(&tokens, 12).to_vec()).collect();
        assert_eq!(all[0], [0, 1, 12, 13, 10, 11, 22, 23]);
        assert_eq!(all[2], [4, 5, 16, 17, 6, 7, 18, 19]);
        let mut whole: Vec<u32> = all.concat();
        whole.sort_unstable();
        assert_eq!(whole, tokens);
        let seen = |one: &Vec<u32>| one.iter().map(|token| token % 12 + 1).sum::<u32>();
        assert!(all.iter().all(|one| seen(one) == seen(&all[0])));
    }
}
