//! Rank 0 waits until all are here. No I/O.

use super::control::Member;

/// So many different strangers are told of.
const STRANGERS: usize = 8;

/// Who is here already.
#[derive(Debug)]
pub struct Gathering {
    members: Vec<Option<Member>>,
    /// What strangers came, and how often.
    strangers: Vec<(String, u32)>,
}

/// Why it comes to nothing, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// What is so.
    pub what: String,
    /// What to do.
    pub hint: String,
}

impl Gathering {
    /// For so many ranks.
    pub fn new(world: u32) -> Self {
        Self { members: vec![None; world as usize], strangers: Vec::new() }
    }

    /// A rank came.
    pub fn welcome(&mut self, world: u32, member: Member) -> Result<(), Failed> {
        let ours = self.members.len();
        let failed = |what: String, hint: &str| Err(Failed { what, hint: hint.to_owned() });
        let (rank, host) = (member.rank, member.host.clone());
        if world as usize != ours {
            let what =
                format!("rank {rank} on {host} is one of {world} ranks, rank 0 one of {ours}");
            return failed(what, "WORLD_SIZE must be the same for all ranks of a job");
        }
        let known = self.members.iter().flatten().find(|other| other.debug != member.debug);
        if let Some(other) = known {
            let (on, off) = if member.debug { (&member, other) } else { (other, &member) };
            let what = format!(
                "rank {} on {} compares calls first, rank {} on {} does not",
                on.rank, on.host, off.rank, off.host
            );
            return failed(what, "REGATTA_COMM_DEBUG must be the same for all ranks of a job");
        }
        let Some(place) = self.members.get_mut(rank as usize) else {
            let what = format!("rank {rank} on {host} is not below the number of ranks, {ours}");
            return failed(what, "RANK must be from 0 to WORLD_SIZE - 1");
        };
        if let Some(other) = place {
            let what = format!("there are two of rank {rank}, on {} and on {host}", other.host);
            return failed(what, "each rank needs a RANK of its own, and each job a MASTER_PORT");
        }
        *place = Some(member);
        Ok(())
    }

    /// Somebody came who is none of us.
    pub fn stranger(&mut self, from: String, why: &str) {
        let what = format!("{from}: {why}");
        let known = self.strangers.iter().position(|(known, _)| *known == what);
        match known {
            Some(at) => self.strangers[at].1 += 1,
            None if self.strangers.len() < STRANGERS => self.strangers.push((what, 1)),
            None => {}
        }
    }

    /// All members, if all are here.
    pub fn complete(&self) -> Option<Vec<Member>> {
        self.members.iter().cloned().collect()
    }

    /// Time is up.
    pub fn overdue(&self, seconds: u64) -> Failed {
        const SHOWN: usize = 16;
        let ranks = self.members.iter().enumerate().filter(|(_, m)| m.is_none());
        let missing: Vec<String> = ranks.map(|(rank, _)| rank.to_string()).collect();
        let mut what = format!("after {seconds} s still missing of {}: rank ", self.members.len());
        what += &missing[..missing.len().min(SHOWN)].join(", ");
        if missing.len() > SHOWN {
            what += &format!(" and {} more", missing.len() - SHOWN);
        }
        for (who, times) in &self.strangers {
            what += &format!("; refused {times} times from {who}");
        }
        let hint = "see why they did not start, and whether they can reach MASTER_ADDR".to_owned();
        Failed { what, hint }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(rank: u32, host: &str) -> Member {
        let ips = vec![std::net::Ipv4Addr::LOCALHOST.into()];
        let fabric = crate::fabric::Wish::Tcp;
        let host = host.to_owned();
        Member { rank, local_rank: 0, host, node: 0, ips, port: 1, debug: false, fabric }
    }

    #[test]
    fn all_come_or_it_is_said_who_does_not() {
        let mut all = Gathering::new(3);
        all.welcome(3, member(2, "c")).unwrap();
        all.stranger("10.0.0.9".to_owned(), "no secret");
        all.stranger("10.0.0.9".to_owned(), "no secret");
        let overdue = all.overdue(60).what;
        assert_eq!(
            overdue,
            "after 60 s still missing of 3: rank 0, 1; refused 2 times from 10.0.0.9: no secret"
        );
        all.welcome(3, member(0, "a")).unwrap();
        assert!(all.complete().is_none());
        all.welcome(3, member(1, "b")).unwrap();
        assert_eq!(all.complete().unwrap()[2].host, "c");
    }

    #[test]
    fn two_of_a_rank_and_other_worlds_are_told() {
        let mut all = Gathering::new(2);
        all.welcome(2, member(1, "a")).unwrap();
        assert!(
            all.welcome(2, member(1, "b"))
                .unwrap_err()
                .what
                .contains("two of rank 1, on a and on b")
        );
        assert!(all.welcome(4, member(0, "b")).unwrap_err().what.contains("one of 4 ranks"));
        let odd = Member { debug: true, ..member(0, "b") };
        let what = all.welcome(2, odd).unwrap_err().what;
        assert_eq!(what, "rank 0 on b compares calls first, rank 1 on a does not");
        assert!(all.welcome(2, member(7, "b")).unwrap_err().what.contains("not below"));
    }
}
