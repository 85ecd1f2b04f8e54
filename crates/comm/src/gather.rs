//! All-gathers of serialised values.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Collectives, Comm, ReduceOp, Result};

/// The values of all ranks. A value that does not parse, from a rank of another version, becomes the default.
pub fn all_gather<T>(comm: &dyn Comm, own: &T) -> Result<Vec<T>>
where
    T: Serialize + DeserializeOwned + Default,
{
    let mut text = serde_json::to_vec(own).unwrap_or_default();
    let mut longest = [text.len().max(1) as i64];
    comm.all_reduce(&mut longest, ReduceOp::Max)?;
    // Texts of equal length: NCCL, too, has an algorithm for them that does not connect all pairs of ranks.
    text.resize(longest[0] as usize, b' ');
    let mut all = vec![0u8; text.len() * comm.size() as usize];
    comm.all_gather(&text, &mut all)?;
    let read = |text: &[u8]| serde_json::from_slice(text).unwrap_or_default();
    Ok(all.chunks(text.len()).map(read).collect())
}

/// The error of the first rank that has one.
pub fn first_error(comm: &dyn Comm, own: Option<String>) -> Result<Option<String>> {
    let all: Vec<Option<String>> = all_gather(comm, &own)?;
    let first = (0..).zip(all).find_map(|(rank, error)| Some((rank, error?)));
    Ok(first.map(|(rank, why)| format!("{}: {why}", comm.peer(rank))))
}
