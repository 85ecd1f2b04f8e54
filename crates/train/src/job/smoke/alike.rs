//! Whether ranks have the same numbers, to the bit.

use regatta_comm::Comm;
use sha2::{Digest, Sha256};

use super::gather::gather;
use super::places::usual;
use crate::checkpoint::Kind;
use crate::job::{TrainError, keep};
use crate::parallel::Groups;
use crate::step::Engine;

/// The checksum of all that this rank trains, in hexadecimal digits.
pub fn digest(engine: &mut Engine) -> Result<String, TrainError> {
    let mut sum = Sha256::new();
    let mut numbers = Vec::new();
    for block in engine.state.held() {
        for kind in Kind::ALL {
            for chunk in keep::chunks(0..engine.state.shares[block].len()) {
                numbers.resize(chunk.len(), 0.0);
                keep::fetch(engine, (block, kind), chunk.start, &mut numbers)?;
                let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
                sum.update(&bytes);
            }
        }
    }
    Ok(sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Which ranks have the same numbers: those of one tensor rank, stage and share.
fn copies(engine: &Engine) -> (usize, usize, usize) {
    let Groups { mesh, seat, .. } = &engine.groups;
    (seat.tp, seat.pp, seat.data_rank(mesh) % engine.state.sharing)
}

/// Nothing if all ranks that should have the same have it, or who differs.
pub fn difference(comm: &dyn Comm, engine: &mut Engine) -> Result<Option<String>, TrainError> {
    let all: Vec<Said> = gather(comm, &(copies(engine), digest(engine)?))?;
    Ok(named(&odd(&all), &|rank| comm.peer(rank).to_string()))
}

/// Whose copy a rank's numbers are, and their checksum.
type Said = ((usize, usize, usize), String);

/// The ranks that differ from the most of those that should have the same; of several, from what the
/// first of them has.
fn odd(all: &[Said]) -> Vec<u32> {
    let is_odd = |one: &Said| {
        let alike = all.iter().filter(|other| other.0 == one.0).map(|other| other.1.clone());
        let alike: Vec<String> = alike.collect();
        usual(&alike) != Some(&one.1)
    };
    (0..).zip(all).filter(|(_, one)| is_odd(one)).map(|(rank, _)| rank).collect()
}

/// Some of them by name, and how many more.
fn named(odd: &[u32], name: &dyn Fn(u32) -> String) -> Option<String> {
    const SHOWN: usize = 4;
    let shown: Vec<String> = odd.iter().take(SHOWN).map(|rank| name(*rank)).collect();
    let more = match odd.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let verb = if odd.len() == 1 { "has" } else { "have" };
    (!odd.is_empty())
        .then(|| format!("{}{more} {verb} other parameters than the other ranks", shown.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(all: &[&str]) -> Option<String> {
        let all: Vec<Said> = all.iter().map(|&one| ((0, 0, 0), one.to_owned())).collect();
        named(&odd(&all), &|rank| format!("rank {rank} on n{rank}"))
    }

    #[test]
    fn who_differs_from_the_most_is_named() {
        assert_eq!(said(&["a"; 5]), None);
        let one = said(&["a", "b", "b"]).unwrap();
        assert!(one.starts_with("rank 0 on n0 has other parameters"), "{one}");
        let two = said(&["a", "b"]).unwrap();
        assert!(two.starts_with("rank 1 on n1 has"), "{two}");
        let many = said(&["a", "a", "a", "a", "a", "a", "b", "c", "d", "e", "f"]).unwrap();
        assert!(many.contains("rank 9 on n9 and 1 more have"), "{many}");
    }

    #[test]
    fn ranks_with_other_parts_may_differ() {
        let one = |tp: usize, digest: &str| ((tp, 0, 0), digest.to_owned());
        let all = [one(0, "a"), one(1, "b"), one(0, "a"), one(1, "b")];
        assert_eq!(odd(&all), [0u32; 0]);
        let all = [one(0, "a"), one(1, "b"), one(0, "b"), one(1, "b")];
        assert_eq!(odd(&all), [2]);
    }
}
