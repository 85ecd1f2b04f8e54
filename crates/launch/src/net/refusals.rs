//! Who was not let in. A stranger can knock ten thousand times a second: what is kept has a limit,
//! and the same reason for the same stranger is told once.

use std::collections::HashMap;
use std::mem::Discriminant;
use std::net::{IpAddr, Ipv4Addr};

use regatta_wire::link::LinkError;

/// Strangers and reasons that are kept apart; any more are counted together.
const KEPT: usize = 1000;

/// Connections that were not let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// From where; the unspecified address stands for more strangers than are kept apart.
    pub peer: IpAddr,
    /// Why, in a sentence; of the first one, where they differ in a number.
    pub why: String,
    /// How many so far.
    pub count: u64,
}

/// Why an accepted connection is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum Reason {
    #[error("it left before it had proved that it is of this job")]
    Left,
    #[error("too many connections waited to prove that they are of this job")]
    Crowded,
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// A reason without its numbers: a stranger could invent as many versions as there are.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key(IpAddr, Discriminant<Reason>, Option<Discriminant<LinkError>>);

/// All refusals, in the order of the first of each kind.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    all: Vec<Refusal>,
    places: HashMap<Key, usize>,
    told: usize,
}

impl Refusals {
    pub(super) fn count(&mut self, peer: IpAddr, reason: &Reason) {
        let error =
            if let Reason::Link(e) = reason { Some(std::mem::discriminant(e)) } else { None };
        let key = Key(peer, std::mem::discriminant(reason), error);
        let place = match self.places.get(&key) {
            Some(&place) => place,
            None if self.all.len() >= KEPT => self.place_of_the_rest(),
            None => {
                self.places.insert(key, self.all.len());
                self.all.push(Refusal { peer, why: reason.to_string(), count: 0 });
                self.all.len() - 1
            }
        };
        self.all[place].count += 1;
    }

    /// Those that are not yet told.
    pub(super) fn news(&mut self) -> Vec<Refusal> {
        let news = self.all[self.told..].to_vec();
        self.told = self.all.len();
        news
    }

    pub(super) fn all(&self) -> &[Refusal] {
        &self.all
    }

    fn place_of_the_rest(&mut self) -> usize {
        if self.all.len() == KEPT {
            let why = format!("various, after {KEPT} that were kept apart");
            self.all.push(Refusal { peer: Ipv4Addr::UNSPECIFIED.into(), why, count: 0 });
        }
        KEPT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(theirs: u16) -> Reason {
        LinkError::Version { theirs, ours: 1 }.into()
    }

    #[test]
    fn each_stranger_and_reason_is_told_once_and_counted_on() {
        let (one, two) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let mut refusals = Refusals::default();
        for reason in [Reason::Left, version(7), version(8), LinkError::Garbage.into()] {
            refusals.count(one, &reason);
        }
        refusals.count(two, &Reason::Left);
        let counts: Vec<_> = refusals.news().iter().map(|r| (r.peer, r.count)).collect();
        assert_eq!(counts, [(one, 1), (one, 2), (one, 1), (two, 1)]);

        refusals.count(two, &Reason::Left);
        assert_eq!(refusals.news(), []);
        assert_eq!(refusals.all()[3].count, 2);
    }

    #[test]
    fn a_world_of_strangers_is_counted_together() {
        let mut refusals = Refusals::default();
        for n in 0..5000u32 {
            refusals.count(Ipv4Addr::from(n).into(), &Reason::Left);
        }
        assert_eq!(refusals.news().len(), KEPT + 1);
        assert_eq!(refusals.all().iter().map(|r| r.count).sum::<u64>(), 5000);
    }
}
