//! Gathers the rows of all ranks on rank 0.

use regatta_comm::{Collectives, Comm, CommError};
use regatta_model::RankRoofline;

use super::RooflineRow;
use crate::CommResult;

/// Gathers the rows of all ranks on rank 0, with rank and host; the other ranks get an empty list.
/// Collective: a rank whose measurement failed takes part without rows.
pub fn gather(comm: &dyn Comm, rows: &[RooflineRow]) -> CommResult<Vec<RankRoofline>> {
    let failed = |rank: u32, error: serde_json::Error| CommError::System {
        what: format!("roofline rows of {}", comm.peer(rank)),
        why: error.to_string(),
    };
    let own = serde_json::to_vec(rows).map_err(|error| failed(comm.rank(), error))?;
    let mut lengths = vec![0i64; comm.size() as usize];
    comm.all_gather(&[own.len() as i64], &mut lengths)?;
    let lengths: Vec<usize> = lengths.into_iter().map(|bytes| bytes.max(0) as usize).collect();
    let mut all = vec![0u8; if comm.rank() == 0 { lengths.iter().sum() } else { 0 }];
    comm.gather_v(&own, &mut all, &lengths, 0)?;
    let mut found = Vec::new();
    if comm.rank() != 0 {
        return Ok(found);
    }
    let mut rest = all.as_slice();
    for (rank, bytes) in (0..).zip(lengths) {
        let (own, others) = rest.split_at(bytes.min(rest.len()));
        rest = others;
        let rows: Vec<RooflineRow> =
            serde_json::from_slice(own).map_err(|error| failed(rank, error))?;
        let host = comm.peer(rank).host;
        found.extend(rows.into_iter().map(|row| RankRoofline { rank, host: host.clone(), row }));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectives::testing::on_ranks;

    fn rows(rank: u32) -> Vec<RooflineRow> {
        let row = |at: u32| RooflineRow {
            case: format!("row {at} of “{rank}”\n"),
            median: f64::from(rank) * 1.75,
            notes: vec!["odd".to_owned(); at as usize],
            ..RooflineRow::default()
        };
        // One rank has no rows.
        (0..(rank + 2) % 3).map(row).collect()
    }

    #[test]
    fn rank_0_receives_all_rows_unchanged() {
        let mut found = on_ranks(4, |comm| gather(&comm, &rows(comm.rank())).unwrap());
        assert!(found[1..].iter().all(Vec::is_empty));
        let first = found.remove(0);
        let found: Vec<_> = first.iter().map(|of| (of.rank, of.row.clone())).collect();
        let of_rank = |rank| rows(rank).into_iter().map(move |row| (rank, row));
        assert_eq!(found, (0..4).flat_map(of_rank).collect::<Vec<_>>());
        assert_eq!(first.len(), 5);
        assert!(first.iter().all(|of| !of.host.is_empty()));
    }
}
