//! All-gathers of serialised values.

use regatta_comm::{Collectives, Comm, CommError};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The values of all ranks. A value that does not parse, from a rank of another version, becomes the default.
pub fn all_gather<T>(comm: &dyn Comm, own: &T) -> Result<Vec<T>, CommError>
where
    T: Serialize + DeserializeOwned + Default,
{
    let text = serde_json::to_vec(own).unwrap_or_default();
    let ranks = comm.size() as usize;
    let mut lengths = vec![0i64; ranks];
    comm.all_gather(&[text.len() as i64], &mut lengths)?;
    let counts: Vec<usize> = lengths.iter().map(|&n| usize::try_from(n).unwrap_or(0)).collect();
    let mut all = vec![0u8; counts.iter().sum()];
    comm.all_gather_v(&text, &mut all, &counts)?;
    let mut rest = &all[..];
    let read = |count: usize| {
        let (own, others) = rest.split_at(count);
        rest = others;
        serde_json::from_slice(own).unwrap_or_default()
    };
    Ok(counts.into_iter().map(read).collect())
}

/// The error of the first rank that has one.
pub fn first_error(comm: &dyn Comm, own: Option<String>) -> Result<Option<String>, CommError> {
    let all: Vec<Option<String>> = all_gather(comm, &own)?;
    let first = (0..).zip(all).find_map(|(rank, error)| Some((rank, error?)));
    Ok(first.map(|(rank, why)| format!("{}: {why}", comm.peer(rank))))
}
