//! Whether ranks have the same numbers, to the bit.

use regatta_comm::Comm;
use sha2::{Digest, Sha256};

use super::gather::{complaint, gather};
use super::places::usual;
use crate::checkpoint::Kind;
use crate::job::TrainError;
use crate::step::{Engine, StepError};

/// The checksum of all that this rank trains, in hexadecimal digits.
pub fn digest(engine: &mut Engine) -> Result<String, StepError> {
    let Engine { net, state, .. } = engine;
    let mut sum = Sha256::new();
    for block in state.held() {
        for kind in Kind::ALL {
            let mut numbers = vec![0.0; state.shares[block].len()];
            state.look(block, kind, |own| net.device.fetch(own, &mut numbers))?;
            let bytes: Vec<u8> = numbers.into_iter().flat_map(f32::to_le_bytes).collect();
            sum.update(&bytes);
        }
    }
    Ok(sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Nothing if all ranks that have the same share have the same, or who differs.
pub fn difference(
    world: &dyn Comm,
    engine: &Engine,
    own: &str,
) -> Result<Option<String>, TrainError> {
    let Some(comm) = engine.groups.copies(engine.state.sharing) else {
        return Ok(complaint(world, None)?);
    };
    let all = gather(&**comm, &own.to_owned())?;
    let wrong = named(&odd(&all), &|rank| comm.peer(rank).to_string());
    if comm.size() == world.size() { Ok(wrong) } else { Ok(complaint(world, wrong)?) }
}

/// The ranks that differ from the most; of several, from what the first of them has.
fn odd(all: &[String]) -> Vec<u32> {
    let usual = usual(all);
    let ranks = (0..).zip(all);
    ranks.filter(|(_, one)| Some(*one) != usual).map(|(rank, _)| rank).collect()
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
        let all: Vec<String> = all.iter().map(|&one| one.to_owned()).collect();
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
}
