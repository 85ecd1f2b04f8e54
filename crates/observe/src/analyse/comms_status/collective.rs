//! Judges the collectives of a communicator.

use std::collections::{BTreeMap, BTreeSet};

use regatta_events::hang::wording::{behind, mismatch, stuck};
use regatta_events::hang::{self, Cause, Role, Stage, Wait, at_fault};
use regatta_events::operation::{Name, OperationKind};
use regatta_events::status::{CommunicatorStatus, CurrentOperation};
use regatta_model::units::pluralize;

use super::groups::{Absent, Groups, Member};
use super::text::{describe, seconds};
use super::{Finding, age};

/// The oldest collective in flight, if it has been for long.
pub(super) fn judge(groups: &Groups<'_>, group: &[Member<'_>]) -> Option<(Finding, Wait)> {
    let in_flight = || group.iter().filter_map(|m| Some((m, m.status.current.as_ref()?)));
    let index = in_flight().map(|(_, current)| current.index).min()?;
    let oldest = in_flight().map(|(member, current)| age(member.process, current)).max()?;
    if oldest < groups.job.min_age {
        return None;
    }
    let entered = in_flight().filter(|(_, current)| current.index == index).collect();
    let absent = groups.absent(group);
    let case = Case { groups, group, index, entered, absent };
    let (ranks, sentence) = case.judge();
    let message = sentence + &case.remarks(&ranks);
    let waiting = in_flight().map(|(member, _)| member.rank);
    let waiting = waiting.filter(|rank| !ranks.contains(rank)).collect();
    // Without a rank that is behind, a collective that no GPU starts waits for earlier work.
    let unstarted = || case.select(|stage| stage < Stage::Started);
    let blocked_by = if ranks.is_empty() { unstarted() } else { ranks.clone() };
    let finding = Finding { role: Role::Cause, ranks, age: oldest, message };
    Some((finding, Wait { waiting, blocked_by }))
}

/// A member and the collective that it is in.
type Entered<'a> = (&'a Member<'a>, &'a CurrentOperation);

fn describe_call((member, current): &Entered<'_>) -> String {
    describe(current, &member.status.communicator)
}

/// A collective that does not complete.
struct Case<'a> {
    groups: &'a Groups<'a>,
    group: &'a [Member<'a>],
    /// Its number in the communicator.
    index: u64,
    /// The members for which it is the oldest in flight.
    entered: Vec<Entered<'a>>,
    absent: Absent,
}

impl<'a> Case<'a> {
    fn stage(&self, status: &CommunicatorStatus) -> Stage {
        match status {
            it if it.completed > self.index => Stage::Completed,
            it if it.started > self.index => Stage::Started,
            it if it.enqueued > self.index => Stage::Enqueued,
            _ => Stage::NotEntered,
        }
    }

    /// The members at these stages.
    fn select(&self, is: impl Fn(Stage) -> bool) -> BTreeSet<u32> {
        let members = self.group.iter().filter(|member| is(self.stage(member.status)));
        members.map(|member| member.rank).collect()
    }

    fn cause(&self) -> Cause<Entered<'a>> {
        let absent = self.absent.ranks.iter().map(|rank| (*rank, Stage::NotEntered));
        let members = self.group.iter().map(|m| (m.rank, self.stage(m.status)));
        let calls = self.entered.iter().map(|entered| (entered.0.rank, *entered)).collect();
        let calls = BTreeMap::from([(self.index, calls)]);
        hang::judge(&calls, &members.chain(absent).collect(), |one, other| agree(one.1, other.1))
    }

    /// The ranks at fault, and one sentence.
    fn judge(&self) -> (BTreeSet<u32>, String) {
        let ages = self.entered.iter().map(|(member, current)| age(member.process, current));
        let seconds = seconds(ages.max().unwrap_or(0));
        let what = self.entered.first().map_or_else(String::new, describe_call);
        let operation = (what.as_str(), seconds);
        let further = |stage| self.groups.list(&self.select(|other| other > stage));
        let all_entered = self.select(|stage| stage == Stage::NotEntered).is_empty();
        match self.cause() {
            Cause::Mismatch { sequence, majority, minority } => self.mismatch(
                &format!("call {sequence}, in flight for {seconds} s"),
                [majority.1, minority.1],
            ),
            // Nothing tells which ranks the others are.
            _ if all_entered && self.absent.count > self.absent.ranks.len() => {
                let late = pluralize(self.absent.count, "rank") + " without a status";
                let others = further(Stage::NotEntered);
                (
                    BTreeSet::new(),
                    behind(&late, self.absent.count, Stage::NotEntered, operation, &others),
                )
            }
            Cause::Behind(ranks, stage) => {
                let ranks = at_fault(ranks, &self.groups.waiting);
                let (late, others) = (self.late(&ranks), further(stage));
                let text = behind(&late, ranks.len(), stage, operation, &others);
                (ranks, text)
            }
            Cause::Unknown(stage) => (BTreeSet::new(), stuck(stage, operation)),
        }
    }

    fn mismatch(&self, place: &str, calls: [Entered<'_>; 2]) -> (BTreeSet<u32>, String) {
        let callers = calls.map(|(_, call)| -> BTreeSet<u32> {
            let same = self.entered.iter().filter(|(_, current)| agree(call, current));
            same.map(|(member, _)| member.rank).collect()
        });
        let [majority, minority] = callers;
        let names = [self.groups.list(&majority), self.groups.with_hosts(&minority)];
        let [one, other] = calls.map(|call| describe_call(&call));
        (minority, mismatch(place, [(&names[0], &one), (&names[1], &other)]))
    }

    /// The names of ranks, those that no status lists last.
    fn late(&self, ranks: &BTreeSet<u32>) -> String {
        let (listed, absent) = (ranks - &self.absent.ranks, ranks & &self.absent.ranks);
        let listed = (!listed.is_empty()).then(|| self.groups.with_hosts(&listed));
        let absent = (!absent.is_empty()).then(|| self.groups.without(&absent));
        listed.into_iter().chain(absent).collect::<Vec<_>>().join(" and ")
    }

    /// Which of the ranks at fault have ended, and whose counts are too low because events were lost.
    fn remarks(&self, ranks: &BTreeSet<u32>) -> String {
        let ended = ranks.iter().copied().filter(|rank| self.groups.has_ended(*rank)).collect();
        let lossy = self.group.iter().filter(|member| member.process.lost > 0);
        let lossy = lossy.map(|member| member.rank).collect();
        let remark = |ranks: BTreeSet<u32>, before: &str, after: &str| match ranks.is_empty() {
            true => String::new(),
            false => format!("{before}{}{after}", self.groups.list(&ranks)),
        };
        let lost = " were lost: their counts may be incomplete)";
        remark(ended, "; ", " had ended") + &remark(lossy, " (events of ", lost)
    }
}

/// Whether two ranks call the same collective. Counts may differ where each rank has its own part.
fn agree(a: &CurrentOperation, b: &CurrentOperation) -> bool {
    use OperationKind::{AllReduce, Broadcast, Reduce};
    let same_count = !matches!(a.kind, AllReduce | Broadcast | Reduce) || a.count == b.count;
    // Names that are not built in have other codes in each process.
    let same_kind = a.kind == b.kind || (is_unnamed(a.kind.code()) && is_unnamed(b.kind.code()));
    let same_type =
        a.dtype == b.dtype || (is_unnamed(a.dtype.code()) && is_unnamed(b.dtype.code()));
    same_kind && same_type && a.peer == b.peer && same_count
}

fn is_unnamed(code: u8) -> bool {
    code >= Name::CUSTOM
}
