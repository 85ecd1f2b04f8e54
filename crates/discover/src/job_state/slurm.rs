//! Output of Slurm's squeue and sacct.

use super::{JobState, JobStatus, clock_seconds, said};

/// The `--format` of squeue that [`parse_squeue`] reads: ID, state, time used, limit, reason, name.
pub const SQUEUE_FORMAT: &str = "%i|%T|%M|%l|%r|%j";
/// The `--format` of sacct that [`parse_sacct`] reads.
pub const SACCT_FORMAT: &str = "JobID,State,ElapsedRaw,TimelimitRaw,ExitCode,JobName";

/// Parses the output of `squeue --noheader --format=%i|%T|%M|%l|%r|%j`.
pub fn parse_squeue(text: &str) -> Vec<JobStatus> {
    text.lines().filter_map(squeue_line).collect()
}

fn squeue_line(line: &str) -> Option<JobStatus> {
    let [id, state, elapsed, limit, reason, name] = fields(line)?;
    Some(JobStatus {
        id: job_id(id)?,
        name: said(name),
        state: job_state(state)?,
        reason: end_reason(state).or_else(|| said(reason)),
        elapsed: clock_seconds(elapsed),
        limit: clock_seconds(limit),
        exit_code: None,
    })
}

/// Parses the output of `sacct -X --noheader --parsable2` with [`SACCT_FORMAT`].
pub fn parse_sacct(text: &str) -> Vec<JobStatus> {
    text.lines().filter_map(sacct_line).collect()
}

fn sacct_line(line: &str) -> Option<JobStatus> {
    let [id, state, elapsed, limit, exit, name] = fields(line)?;
    // `CANCELLED by 1000`.
    let first = state.split(' ').next().unwrap_or_default();
    let (code, signal) = exit.split_once(':').unwrap_or((exit, "0"));
    let by_signal = Some(signal).filter(|signal| *signal != "0" && !signal.is_empty());
    let by_signal = by_signal.map(|signal| format!("signal {signal}"));
    Some(JobStatus {
        id: job_id(id)?,
        name: said(name),
        state: job_state(first)?,
        reason: end_reason(first).or(by_signal),
        elapsed: elapsed.parse().ok(),
        limit: limit.parse::<u64>().ok().and_then(|minutes| minutes.checked_mul(60)),
        exit_code: code.parse().ok(),
    })
}

/// The six fields of a line, of which the last, the name, may have separators.
fn fields(line: &str) -> Option<[&str; 6]> {
    line.trim().splitn(6, '|').map(str::trim).collect::<Vec<_>>().try_into().ok()
}

/// An ID; a header or an error message is none.
fn job_id(text: &str) -> Option<String> {
    let is_id = text.starts_with(|c: char| c.is_ascii_digit()) && !text.contains(' ');
    is_id.then(|| text.to_owned())
}

fn job_state(text: &str) -> Option<JobState> {
    // `CANCELLED+`: truncated by sacct.
    Some(match text.trim_end_matches('+') {
        "PENDING" | "CONFIGURING" | "REQUEUED" | "REQUEUE_HOLD" | "REQUEUE_FED"
        | "RESV_DEL_HOLD" | "SPECIAL_EXIT" => JobState::Pending,
        "RUNNING" | "COMPLETING" | "RESIZING" | "SIGNALING" | "STAGE_OUT" => JobState::Running,
        "SUSPENDED" | "STOPPED" => JobState::Suspended,
        "COMPLETED" => JobState::Completed,
        "CANCELLED" | "REVOKED" => JobState::Cancelled,
        "TIMEOUT" | "DEADLINE" => JobState::TimedOut,
        "FAILED" | "NODE_FAIL" | "BOOT_FAIL" | "OUT_OF_MEMORY" | "PREEMPTED" | "LAUNCH_FAILED"
        | "RECONFIG_FAIL" => JobState::Failed,
        _ => return None,
    })
}

/// The reason that is in the state itself.
fn end_reason(state: &str) -> Option<String> {
    let reason = match state {
        "NODE_FAIL" => "a node failed",
        "BOOT_FAIL" => "a node did not boot",
        "OUT_OF_MEMORY" => "out of memory",
        "PREEMPTED" => "preempted",
        "DEADLINE" => "its deadline passed",
        "CONFIGURING" => "nodes are booting",
        "COMPLETING" => "completing",
        _ => return None,
    };
    Some(reason.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// In the form of Slurm 22.05.
    const SQUEUE: &str = "\
12345|PENDING|0:00|1:00:00|Priority|train
12346|RUNNING|1-02:03:04|2-00:00:00|None|gpt
12347_3|PENDING|0:00|UNLIMITED|Dependency|array
12348|FAILED|0:02|1:00|NonZeroExitCode|bad
12349|NODE_FAIL|10:00|1:00:00|NodeDown|lost
12350|PENDING|0:00|2:00:00|(ReqNodeNotAvail, UnavailableNodes:nid001234)|a|b
12351|COMPLETING|0:30|1:00:00|None|x
slurm_load_jobs error: Invalid job id specified
";

    #[test]
    fn squeue_states_have_reason_and_times() {
        let jobs = parse_squeue(SQUEUE);
        let shown: Vec<String> = jobs.iter().map(|j| format!("{} {:?}", j.id, j.state)).collect();
        assert_eq!(
            shown,
            [
                "12345 Pending",
                "12346 Running",
                "12347_3 Pending",
                "12348 Failed",
                "12349 Failed",
                "12350 Pending",
                "12351 Running"
            ]
        );
        assert_eq!((jobs[0].elapsed, jobs[0].limit), (Some(0), Some(3600)));
        assert_eq!(jobs[0].reason.as_deref(), Some("Priority"));
        assert_eq!((jobs[1].elapsed, jobs[1].reason.as_deref()), (Some(93_784), None));
        assert_eq!(jobs[2].limit, None);
        assert_eq!(jobs[4].reason.as_deref(), Some("a node failed"));
        assert_eq!(jobs[5].name.as_deref(), Some("a|b"));
    }

    #[test]
    fn sacct_states_have_exit_codes() {
        let text = "\
12345|COMPLETED|3600|60|0:0|train
12346|CANCELLED by 1000|12|60|0:15|gpt
12347|TIMEOUT|3601|60|0:0|long
12348|FAILED|7|UNLIMITED|75:0|stopped
12349|OUT_OF_MEMORY|7|Partition_Limit|0:125|big
";
        let jobs = parse_sacct(text);
        let states: Vec<JobState> = jobs.iter().map(|job| job.state).collect();
        use JobState::{Cancelled, Completed, Failed, TimedOut};
        assert_eq!(states, [Completed, Cancelled, TimedOut, Failed, Failed]);
        assert_eq!((jobs[0].limit, jobs[0].exit_code), (Some(3600), Some(0)));
        assert_eq!(jobs[1].reason.as_deref(), Some("signal 15"));
        assert_eq!((jobs[3].limit, jobs[3].exit_code), (None, Some(75)));
        assert_eq!(jobs[4].reason.as_deref(), Some("out of memory"));
    }

    proptest! {
        #[test]
        fn squeue_lines_round_trip(
            id in 1u32..9_999_999,
            name in "[A-Za-z0-9_.+-]{1,12}",
            elapsed in 0u64..400_000,
            reason in "[A-Za-z]{2,12}",
            junk in "[a-z: ]{0,20}",
        ) {
            prop_assume!(reason != "None");
            let clock = |s: u64| format!("{}-{:02}:{:02}:{:02}", s / 86_400, s / 3600 % 24, s / 60 % 60, s % 60);
            let text = format!("{junk}\n{id}|PENDING|{}|1:00|{reason}|{name}\n", clock(elapsed));
            let expected = JobStatus {
                id: id.to_string(),
                name: Some(name).filter(|name| name != "None"),
                state: JobState::Pending,
                reason: Some(reason),
                elapsed: Some(elapsed),
                limit: Some(60),
                exit_code: None,
            };
            prop_assert_eq!(parse_squeue(&text), [expected]);
        }
    }
}
