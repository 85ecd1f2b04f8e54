//! Under which names ranks of a node meet in its memory. Every process of the node sees such a name
//! while they meet, and if it could guess the next one, could take it before them.

use std::hash::{BuildHasher, RandomState};

use regatta_wire::secret::Secret;

use crate::{join, shm};

/// Digits of what nobody can guess; a name has room for so many beside the job's.
const DIGITS: usize = 28;

/// What the names of all communicators of a job are made of.
#[derive(Clone)]
pub struct Naming {
    secret: Secret,
    /// This node, as a number.
    pub node: u64,
    /// How its ranks are to be connected.
    pub settings: shm::Settings,
}

impl Naming {
    pub fn new(settings: &join::Settings) -> Self {
        Self {
            secret: settings.secret.clone(),
            node: fingerprint(&settings.node),
            settings: shm::Settings {
                desync_after: settings.desync_after,
                debug: settings.debug,
                join_within: settings.join_within,
                ..shm::Settings::default()
            },
        }
    }

    /// The name for the ranks of a node in the communicator with this number: the job's, by which
    /// its sockets can be told from others, and what only those who have its secret can make.
    pub fn name(&self, number: u64, node: u32) -> String {
        let job = self.secret.derive("shared memory").to_hex();
        let own = self.secret.derive(&format!("shared memory of {number}.{node}")).to_hex();
        format!("{job}.{}", &own[..DIGITS])
    }
}

/// A number that no communicator has had before, also of those that the same job made earlier and
/// whose names others have seen. It need not be secret.
pub fn number() -> u64 {
    // The standard library's hash maps have random keys, each another.
    RandomState::new().hash_one("a communicator")
}

/// A number for a text: FNV-1a, the same on every machine.
fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// A name that is in no folder has at most this many bytes, less those before ours.
    const LONGEST: usize = 107 - "regatta-comm/".len();

    fn naming(secret: &Secret) -> Naming {
        Naming::new(&join::Settings::new(0, 1, "localhost", 1, secret.clone()))
    }

    #[test]
    fn no_name_can_be_made_of_another() {
        let (secret, other) = (Secret::generate().unwrap(), Secret::generate().unwrap());
        let job = secret.derive("shared memory").to_hex();
        let numbers: Vec<u64> = (0..20).map(|_| number()).chain([0, 1, u64::MAX]).collect();
        let each = || numbers.iter().flat_map(|number| [(*number, 0), (*number, u32::MAX)]);
        let names: Vec<String> = each().map(|(n, node)| naming(&secret).name(n, node)).collect();
        assert!(names.iter().all(|name| name.starts_with(&job) && name.len() <= LONGEST));
        let mut own: HashSet<&str> = names.iter().map(|name| &name[job.len() + 1..]).collect();
        let digits = |own: &&str| own.len() == DIGITS && own.bytes().all(|b| b.is_ascii_hexdigit());
        assert!(own.iter().all(digits), "{own:?}");
        // Who knows the numbers and not the secret comes to others.
        let guessed: Vec<String> = each().map(|(n, node)| naming(&other).name(n, node)).collect();
        own.extend(guessed.iter().map(|name| &name[job.len() + 1..]));
        assert_eq!(own.len(), 2 * names.len());
    }
}
