//! Judges the collectives of a communicator.

use std::collections::BTreeSet;

use regatta_events::operation::{Name, OperationKind};
use regatta_events::status::CurrentOperation;

use super::groups::{Group, Groups, Member};
use super::text::{Names, describe_collective, seconds};
use super::{Finding, JobStatus, Role, age};

/// The oldest collective in flight, if it has been for long.
pub(super) fn judge(
    job: &JobStatus<'_>,
    groups: &Groups<'_>,
    group: &Group<'_>,
) -> Option<Finding> {
    let in_flight = || group.members.iter().filter_map(|m| Some((m, m.status.current.as_ref()?)));
    let index = in_flight().map(|(_, current)| current.index).min()?;
    let oldest = in_flight().map(|(member, current)| age(member.process, current)).max()?;
    if oldest < job.min_age {
        return None;
    }
    let case = Case { job, groups, group, index };
    let (ranks, message) = case
        .mismatch()
        .or_else(|| case.missing())
        .or_else(|| case.behind(|member| member.status.completed, "completed"))
        .or_else(|| case.behind(|member| member.status.started, "started on its GPU"))
        .unwrap_or_else(|| case.stuck());
    let waiting = in_flight().map(|(member, _)| member.rank);
    let waiting = waiting.filter(|rank| !ranks.contains(rank)).collect();
    let message = message + &case.lost();
    // Without a rank that is behind, a collective that no GPU starts waits for earlier work.
    let unstarted = case.select(|member| member.status.started <= index);
    let blocked_by = if ranks.is_empty() { unstarted } else { ranks.clone() };
    Some(Finding { role: Role::Cause, ranks, waiting, blocked_by, age: oldest, message })
}

/// A collective that does not complete.
struct Case<'a> {
    job: &'a JobStatus<'a>,
    groups: &'a Groups<'a>,
    group: &'a Group<'a>,
    /// Its number in the communicator.
    index: u64,
}

impl Case<'_> {
    fn names(&self) -> Names<'_> {
        Names { job: self.job, groups: self.groups }
    }

    fn select(&self, is: impl Fn(&Member<'_>) -> bool) -> BTreeSet<u32> {
        self.group.members.iter().filter(|member| is(member)).map(|member| member.rank).collect()
    }

    /// The members for which it is the oldest in flight.
    fn entered(&self) -> impl Iterator<Item = (&Member<'_>, &CurrentOperation)> {
        let current =
            self.group.members.iter().filter_map(|m| Some((m, m.status.current.as_ref()?)));
        current.filter(|(_, current)| current.index == self.index)
    }

    fn description(&self) -> String {
        let first = self.entered().next();
        first.map_or_else(String::new, |(member, current)| {
            describe_collective(current, &member.status.communicator)
        })
    }

    fn since(&self) -> String {
        let ages = self.entered().map(|(member, current)| age(member.process, current));
        seconds(ages.max().unwrap_or(0))
    }

    /// Ranks that call different collectives.
    fn mismatch(&self) -> Option<(BTreeSet<u32>, String)> {
        let (_, first) = self.entered().next()?;
        let differs = |(_, current): &(&Member<'_>, &CurrentOperation)| !agree(first, current);
        let (other, different) = self.entered().find(differs)?;
        let like = |operation: &CurrentOperation| -> BTreeSet<u32> {
            let same = self.entered().filter(|(_, current)| agree(operation, current));
            same.map(|(member, _)| member.rank).collect()
        };
        let [a, b] = [like(first), like(different)];
        let fewer = if b.len() <= a.len() { b.clone() } else { a.clone() };
        let names = self.names();
        let text = format!(
            "the ranks call different collectives: {} {}, but {} {}; since {}",
            names.list(&a),
            self.description(),
            names.list(&b),
            describe_collective(different, &other.status.communicator),
            self.since()
        );
        Some((fewer, text))
    }

    /// Ranks that have not enqueued it.
    fn missing(&self) -> Option<(BTreeSet<u32>, String)> {
        let mut ranks = self.select(|member| member.status.enqueued <= self.index);
        let absent = self.group.absent(self.job, self.groups);
        let no_status = &absent.ranks;
        if ranks.is_empty() && absent.count == 0 {
            return None;
        }
        let (names, what) = (self.names(), self.description());
        let waiting = names.list(&self.select(|member| member.status.enqueued > self.index));
        let entered = format!("{waiting} entered {} ago", self.since());
        let late =
            |ranks: &BTreeSet<u32>| format!("{} did not arrive at {what}", names.with_hosts(ranks));
        let arrived = match (ranks.is_empty(), no_status.is_empty()) {
            (false, true) => format!("{}, which {entered}", late(&ranks)),
            (false, false) => {
                format!(
                    "{}, which {entered}; neither did {}",
                    late(&ranks),
                    names.without(no_status)
                )
            }
            (true, false) => {
                format!("{} did not arrive at {what}, which {entered}", names.without(no_status))
            }
            (true, true) => {
                let count = absent.count;
                format!("{count} of the ranks of {what}, which {entered}, have no status")
            }
        };
        ranks.extend(no_status);
        let arrived = arrived + &self.ended(&ranks);
        Some((ranks, arrived))
    }

    /// Ranks that have enqueued it, but have not reached a count that others have.
    fn behind(
        &self,
        count: impl Fn(&Member<'_>) -> u64,
        verb: &str,
    ) -> Option<(BTreeSet<u32>, String)> {
        let ranks = self.select(|member| count(member) <= self.index);
        let others = self.select(|member| count(member) > self.index);
        if ranks.is_empty() || others.is_empty() {
            return None;
        }
        let (names, since) = (self.names(), self.since());
        let (late, others) = (names.with_hosts(&ranks), names.list(&others));
        let has = if ranks.len() == 1 { "has" } else { "have" };
        let what = self.description();
        let text =
            format!("{late} {has} enqueued {what} {since} ago, but not {verb}, as {others} did");
        Some((ranks, text))
    }

    /// All ranks are equally far.
    fn stuck(&self) -> (BTreeSet<u32>, String) {
        let (what, since) = (self.description(), self.since());
        let is_started = self.group.members.iter().all(|m| m.status.started > self.index);
        let text = match is_started {
            true => format!(
                "all ranks entered {what} {since} ago, and none has completed it: a GPU, a link or a \
                 network transfer is stuck"
            ),
            false => format!(
                "all ranks enqueued {what} {since} ago, and no GPU has started it: earlier work of the \
                 GPUs does not complete"
            ),
        };
        (BTreeSet::new(), text)
    }

    /// Those whose processes have ended.
    fn ended(&self, ranks: &BTreeSet<u32>) -> String {
        let ended = ranks.iter().filter(|rank| self.groups.has_ended(self.job, **rank));
        let ended: BTreeSet<u32> = ended.copied().collect();
        match ended.is_empty() {
            true => String::new(),
            false => format!("; {} had ended", self.names().list(&ended)),
        }
    }

    /// Counts of ranks that lost events are too low.
    fn lost(&self) -> String {
        let lossy = self.select(|member| member.process.lost > 0);
        match lossy.is_empty() {
            true => String::new(),
            false => format!(
                " (events of {} were lost: their counts may be incomplete)",
                self.names().list(&lossy)
            ),
        }
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
