//! Socket names under which the ranks of a node bootstrap shared memory. Every process of the node
//! can see such a name, so it must not be possible to guess the next one and bind it first.

use std::hash::{BuildHasher, RandomState};

use regatta_wire::secret::Secret;

/// Hex digits of the unguessable part, as many as fit beside the job's part.
const DIGITS: usize = 28;

/// The name for the ranks of a node in a communicator: a prefix that identifies the job, and a part
/// that only holders of the job's secret can compute.
pub fn socket_name(secret: &Secret, comm_id: u64, node: u32) -> String {
    let job = secret.derive("shared memory").to_hex();
    let own = secret.derive(&format!("shared memory of {comm_id}.{node}")).to_hex();
    format!("{job}.{}", &own[..DIGITS])
}

/// A fresh communicator id, different from all earlier ones of the job, whose names were visible.
/// It need not be secret.
pub fn fresh_comm_id() -> u64 {
    // Each `RandomState` has different random keys.
    RandomState::new().hash_one("a communicator")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Maximum length of an abstract socket name, minus the prefix.
    const MAX_NAME_BYTES: usize = 107 - "regatta-comm/".len();

    #[test]
    fn names_are_unique_and_depend_on_the_secret() {
        let (secret, other) = (Secret::generate().unwrap(), Secret::generate().unwrap());
        let job = secret.derive("shared memory").to_hex();
        let ids: Vec<u64> = (0..20).map(|_| fresh_comm_id()).chain([0, 1, u64::MAX]).collect();
        let each = || ids.iter().flat_map(|id| [(*id, 0), (*id, u32::MAX)]);
        let names = |secret: &Secret| -> Vec<String> {
            each().map(|(id, node)| socket_name(secret, id, node)).collect()
        };
        let (names, guessed) = (names(&secret), names(&other));
        assert!(names.iter().all(|name| name.starts_with(&job) && name.len() <= MAX_NAME_BYTES));
        let mut own: HashSet<&str> = names.iter().map(|name| &name[job.len() + 1..]).collect();
        let digits = |own: &&str| own.len() == DIGITS && own.bytes().all(|b| b.is_ascii_hexdigit());
        assert!(own.iter().all(digits), "{own:?}");
        // Another secret derives different names from the same ids.

        own.extend(guessed.iter().map(|name| &name[job.len() + 1..]));
        assert_eq!(own.len(), 2 * names.len());
    }
}
