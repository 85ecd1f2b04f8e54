//! Gathers the rows of all ranks on rank 0.

use regatta_comm::Comm;
use regatta_comm::gather::all_gather;
use regatta_model::RankRoofline;

use super::RooflineRow;
use crate::CommResult;

/// Gathers the rows of all ranks on rank 0, with rank and host; the other ranks get an empty list.
/// Collective: a rank whose measurement failed takes part without rows.
pub fn gather(comm: &dyn Comm, rows: &[RooflineRow]) -> CommResult<Vec<RankRoofline>> {
    let all = all_gather(comm, &rows.to_vec())?;
    let of_rank = |(rank, rows): (u32, Vec<RooflineRow>)| {
        let host = comm.peer(rank).host;
        rows.into_iter().map(move |row| RankRoofline { rank, host: host.clone(), row })
    };
    let gathered = (0..).zip(all).flat_map(of_rank);
    Ok(if comm.rank() == 0 { gathered.collect() } else { Vec::new() })
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
