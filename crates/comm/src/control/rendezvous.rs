//! Registration of all ranks with rank 0. No I/O.

use regatta_wire::reactor::Refusal;

use super::messages::{RankInfo, RendezvousError};

/// Number of distinct refused peers that are reported.
const MAX_REPORTED: usize = 8;

/// The ranks registered so far.
#[derive(Debug)]
pub struct Rendezvous {
    members: Vec<Option<RankInfo>>,
    /// The number of registered ranks.
    registered: usize,
}

impl Rendezvous {
    /// A rendezvous of `world_size` ranks.
    pub fn new(world_size: u32) -> Self {
        let members = vec![None; world_size as usize];
        Self { members, registered: 0 }
    }

    pub fn register(&mut self, world_size: u32, member: RankInfo) -> Result<(), RendezvousError> {
        let ours = self.members.len();
        let failed = |what, hint: &str| Err(RendezvousError { what, hint: hint.to_owned() });
        let (rank, host) = (member.rank, member.host.clone());
        if world_size as usize != ours {
            let what =
                format!("rank {rank} on {host} has WORLD_SIZE {world_size}, rank 0 has {ours}");
            return failed(what, "WORLD_SIZE must be the same on all ranks of a job");
        }
        // All registered ranks have the same setting.
        let any = self.members.iter().flatten().next();
        if let Some(other) = any.filter(|other| other.debug != member.debug) {
            let (on, off) = if member.debug { (&member, other) } else { (other, &member) };
            let what = format!(
                "REGATTA_COMM_DEBUG is 1 on rank {} ({}) and 0 on rank {} ({})",
                on.rank, on.host, off.rank, off.host
            );
            return failed(what, "REGATTA_COMM_DEBUG must be the same on all ranks of a job");
        }
        let Some(slot) = self.members.get_mut(rank as usize) else {
            let what = format!("rank {rank} on {host} is out of range: the world size is {ours}");
            return failed(what, "RANK must be between 0 and WORLD_SIZE - 1");
        };
        if let Some(other) = slot {
            let what = format!("duplicate rank {rank}, on {} and on {host}", other.host);
            return failed(what, "give every rank a unique RANK and every job its own MASTER_PORT");
        }
        *slot = Some(member);
        self.registered += 1;
        Ok(())
    }

    /// Takes all ranks, once the last one is registered.
    pub fn complete(&mut self) -> Option<Vec<RankInfo>> {
        if self.registered < self.members.len() {
            return None;
        }
        std::mem::take(&mut self.members).into_iter().collect()
    }

    /// The error after the deadline, with the connections that were refused.
    pub fn timeout_error(&self, seconds: u64, refusals: &[Refusal]) -> RendezvousError {
        const SHOWN: usize = 16;
        let ranks = self.members.iter().enumerate().filter(|(_, m)| m.is_none());
        let missing: Vec<String> = ranks.map(|(rank, _)| rank.to_string()).collect();
        let world_size = self.members.len();
        let mut what = format!(
            "timed out after {seconds} s: {} of {world_size} ranks missing: rank ",
            missing.len()
        );
        what += &missing[..missing.len().min(SHOWN)].join(", ");
        if missing.len() > SHOWN {
            what += &format!(" and {} more", missing.len() - SHOWN);
        }
        for Refusal { peer, why, count } in refusals.iter().take(MAX_REPORTED) {
            what += &format!("; rejected {count} connections from {peer}: {why}");
        }
        let hint = "check that the missing ranks started and can reach MASTER_ADDR".to_owned();
        RendezvousError { what, hint }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(rank: u32, host: &str) -> RankInfo {
        let ips = vec![std::net::Ipv4Addr::LOCALHOST.into()];
        let fabric = crate::libfabric::Preference::Tcp;
        let host = host.to_owned();
        RankInfo { rank, local_rank: 0, host, node: 0, ips, port: 1, debug: false, fabric }
    }

    #[test]
    fn missing_ranks_and_rejected_peers_are_reported() {
        let mut rendezvous = Rendezvous::new(3);
        rendezvous.register(3, member(2, "c")).unwrap();
        let refused = Refusal { peer: [10, 0, 0, 9].into(), why: "no secret".to_owned(), count: 2 };
        assert_eq!(
            rendezvous.timeout_error(60, &[refused]).what,
            "timed out after 60 s: 2 of 3 ranks missing: rank 0, 1; \
             rejected 2 connections from 10.0.0.9: no secret"
        );
        rendezvous.register(3, member(0, "a")).unwrap();
        assert!(rendezvous.complete().is_none());
        rendezvous.register(3, member(1, "b")).unwrap();
        assert_eq!(rendezvous.complete().unwrap()[2].host, "c");
    }

    #[test]
    fn duplicate_ranks_and_inconsistent_settings_are_rejected() {
        let mut rendezvous = Rendezvous::new(2);
        rendezvous.register(2, member(1, "a")).unwrap();
        let mut error = |world_size, info| rendezvous.register(world_size, info).unwrap_err().what;
        assert_eq!(error(2, member(1, "b")), "duplicate rank 1, on a and on b");
        assert_eq!(error(4, member(0, "b")), "rank 0 on b has WORLD_SIZE 4, rank 0 has 2");
        let debug = RankInfo { debug: true, ..member(0, "b") };
        assert_eq!(error(2, debug), "REGATTA_COMM_DEBUG is 1 on rank 0 (b) and 0 on rank 1 (a)");
        assert_eq!(error(2, member(7, "b")), "rank 7 on b is out of range: the world size is 2");
    }
}
