//! What the receiver of a connection has granted, and which grant a send uses. No I/O.
//!
//! Sends match groups of receives in order; within a group the tag selects the receive. A group stays the
//! first until each of its receives has a send.

use super::{ClearToSend, MAX_GROUPED_RECVS, MAX_REQUESTS};

/// More than the groups that a receiver may have posted, of which the first is the one that sends wait for.
const WINDOW: usize = 2 * MAX_REQUESTS;

/// A receive that a send may go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Number of the group.
    pub sequence: u16,
    /// Index in the group.
    pub index: usize,
    /// Bytes that the receive takes at most.
    pub size: u64,
}

#[derive(Debug, Clone, Copy)]
struct Group {
    count: usize,
    recvs: [(i32, u64); MAX_GROUPED_RECVS],
    /// Which receives have a send, a bit each.
    used: u8,
}

/// The grants of a connection.
#[derive(Debug)]
pub struct Grants {
    groups: [Option<Group>; WINDOW],
    /// Number of the first group that has receives left.
    first: u16,
}

impl Default for Grants {
    fn default() -> Self {
        Self { groups: [None; WINDOW], first: 0 }
    }
}

impl Grants {
    /// Adds a group. Messages may overtake each other, and arrive at most once. Returns false if the number
    /// cannot be right.
    pub fn add(&mut self, message: &ClearToSend) -> bool {
        let ahead = usize::from(message.sequence.wrapping_sub(self.first));
        let slot = &mut self.groups[usize::from(message.sequence) % WINDOW];
        if ahead >= WINDOW || slot.is_some() {
            return false;
        }
        let count = usize::from(message.count).min(MAX_GROUPED_RECVS);
        *slot = Some(Group { count, recvs: message.recvs, used: 0 });
        true
    }

    /// Takes the receive that a send with this tag goes to, if it is granted.
    pub fn take(&mut self, tag: i32) -> Option<Grant> {
        let sequence = self.first;
        let slot = &mut self.groups[usize::from(sequence) % WINDOW];
        let group = slot.as_mut()?;
        let is_free = |index: &usize| group.recvs[*index].0 == tag && group.used & 1 << index == 0;
        let index = (0..group.count).find(is_free)?;
        group.used |= 1 << index;
        let size = group.recvs[index].1;
        if group.used.count_ones() as usize == group.count {
            *slot = None;
            self.first = sequence.wrapping_add(1);
        }
        Some(Grant { sequence, index, size })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn group(sequence: u16, tags: &[i32]) -> ClearToSend {
        let mut recvs = [(0, 0); MAX_GROUPED_RECVS];
        for (index, tag) in tags.iter().enumerate() {
            recvs[index] = (*tag, 100 + index as u64);
        }
        ClearToSend { connection: 1, key: 2, sequence, count: tags.len() as u8, recvs }
    }

    #[test]
    fn tags_select_within_the_first_group_only() {
        let mut grants = Grants::default();
        assert_eq!(grants.take(7), None);
        assert!(grants.add(&group(1, &[9])) && grants.add(&group(0, &[7, 8, 7])));
        assert_eq!(grants.take(9), None, "the first group has no such tag");
        let take =
            |grants: &mut Grants, tag| grants.take(tag).map(|g| (g.sequence, g.index, g.size));
        assert_eq!(take(&mut grants, 7), Some((0, 0, 100)));
        assert_eq!(take(&mut grants, 7), Some((0, 2, 102)));
        assert_eq!(take(&mut grants, 7), None);
        assert_eq!(take(&mut grants, 8), Some((0, 1, 101)));
        assert_eq!(take(&mut grants, 9), Some((1, 0, 100)));
        assert_eq!(take(&mut grants, 9), None);
    }

    #[test]
    fn impossible_numbers_are_rejected() {
        let mut grants = Grants::default();
        assert!(grants.add(&group(3, &[1])));
        assert!(!grants.add(&group(3, &[1])), "twice");
        assert!(!grants.add(&group(WINDOW as u16, &[1])), "too far ahead");
        assert!(!grants.add(&group(u16::MAX, &[1])), "before the first");
    }

    proptest! {
        /// As many groups as fit are granted out of order, many times around; sends take them in order.
        #[test]
        fn every_send_matches_in_order(
            sizes in proptest::collection::vec(1..=MAX_GROUPED_RECVS, 1..200),
            ahead in 1..=MAX_REQUESTS,
        ) {
            let mut grants = Grants { first: u16::MAX - 20, ..Grants::default() };
            let number = |at: usize| (u16::MAX - 20).wrapping_add(at as u16);
            let mut at = 0;
            for batch in sizes.chunks(ahead) {
                for (offset, size) in batch.iter().enumerate().rev() {
                    let tags: Vec<i32> = (0..*size as i32).collect();
                    prop_assert!(grants.add(&group(number(at + offset), &tags)));
                }
                for (offset, size) in batch.iter().enumerate() {
                    for tag in (0..*size).rev() {
                        let grant = grants.take(tag as i32).unwrap();
                        prop_assert_eq!((grant.sequence, grant.index), (number(at + offset), tag));
                    }
                }
                at += batch.len();
            }
            prop_assert_eq!(grants.take(0), None);
        }
    }
}
