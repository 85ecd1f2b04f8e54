//! Output of `flux jobs --json`.

use serde_json::Value;

use super::{JobState, JobStatus, said};

/// Parses the output of `flux jobs --json`: one job, or all in `jobs`. A missing key is one that the
/// job does not have yet.
pub fn parse_flux_jobs(text: &str) -> Vec<JobStatus> {
    let Ok(json) = serde_json::from_str::<Value>(text) else { return Vec::new() };
    match json["jobs"].as_array() {
        Some(jobs) => jobs.iter().filter_map(job_status).collect(),
        None => job_status(&json).into_iter().collect(),
    }
}

fn job_status(job: &Value) -> Option<JobStatus> {
    // Newer versions also print the ID as `flux batch` does.
    let id = match (&job["jobid"], &job["id"]) {
        (Value::String(id), _) | (_, Value::String(id)) => id.clone(),
        (_, Value::Number(id)) => id.to_string(),
        _ => return None,
    };
    let state = job["state"].as_str()?;
    // INACTIVE jobs have a result.
    let result = job["result"].as_str().unwrap_or_default();
    let state = match (state, result) {
        ("NEW" | "DEPEND" | "PRIORITY" | "SCHED", _) => JobState::Pending,
        ("RUN" | "CLEANUP", _) => JobState::Running,
        ("INACTIVE", "COMPLETED") => JobState::Completed,
        ("INACTIVE", "CANCELED") => JobState::Cancelled,
        ("INACTIVE", "TIMEOUT") => JobState::TimedOut,
        ("INACTIVE", _) => JobState::Failed,
        _ => return None,
    };
    let text = |value: &Value| value.as_str().and_then(said);
    // 0 is no limit.
    let seconds = |value: &Value| value.as_f64().filter(|s| *s > 0.0).map(|s| s as u64);
    let exit_code = job["returncode"].as_i64().and_then(|code| i32::try_from(code).ok());
    Some(JobStatus {
        id: Some(id).filter(|id| !id.is_empty())?,
        name: text(&job["name"]),
        state,
        reason: match state {
            JobState::Pending => pending_reason(job),
            _ => text(&job["exception"]["note"]),
        },
        elapsed: seconds(&job["runtime"]),
        limit: seconds(&job["duration"]),
        exit_code: exit_code.filter(|_| state.is_final()),
    })
}

fn pending_reason(job: &Value) -> Option<String> {
    let sched = &job["annotations"]["sched"];
    let reason = sched["reason_pending"].as_str().and_then(said);
    let list = |value: &Value| {
        let names = value.as_array()?.iter().filter_map(Value::as_str).collect::<Vec<_>>();
        (!names.is_empty()).then(|| format!("waits for {}", names.join(", ")))
    };
    reason.or_else(|| list(&job["dependencies"]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// In the form of flux-core 0.60, shortened.
    const JOBS: &str = r#"{"jobs": [
        {"id": 1001, "name": "train", "state": "SCHED", "status": "SCHED", "duration": 3600.0,
         "annotations": {"sched": {"reason_pending": "insufficient resources"}}},
        {"id": 1002, "name": "next", "state": "DEPEND", "dependencies": ["after-success=1001"]},
        {"id": 1003, "jobid": "ƒKs", "name": "gpt", "state": "RUN", "status": "RUN", "duration": 7200.0,
         "runtime": 61.7, "exception": {"occurred": false}},
        {"id": 1004, "name": "a", "state": "INACTIVE", "result": "COMPLETED", "returncode": 0,
         "runtime": 10.0, "duration": 0.0},
        {"id": 1005, "name": "b", "state": "INACTIVE", "result": "TIMEOUT", "returncode": 142,
         "exception": {"occurred": true, "type": "timeout", "note": "resource allocation expired"}},
        {"id": 1006, "name": "c", "state": "INACTIVE", "result": "FAILED", "returncode": 75},
        {"id": 1007, "name": "d", "state": "INACTIVE", "result": "CANCELED", "returncode": -128}
    ]}"#;

    #[test]
    fn jobs_have_states_and_reasons() {
        let jobs = parse_flux_jobs(JOBS);
        let states: Vec<JobState> = jobs.iter().map(|job| job.state).collect();
        use JobState::{Cancelled, Completed, Failed, Pending, Running, TimedOut};
        assert_eq!(states, [Pending, Pending, Running, Completed, TimedOut, Failed, Cancelled]);
        assert_eq!(jobs[0].reason.as_deref(), Some("insufficient resources"));
        assert_eq!(jobs[1].reason.as_deref(), Some("waits for after-success=1001"));
        assert_eq!((jobs[1].id.as_str(), jobs[2].id.as_str()), ("1002", "ƒKs"));
        assert_eq!((jobs[2].elapsed, jobs[2].limit), (Some(61), Some(7200)));
        assert_eq!((jobs[3].limit, jobs[3].exit_code), (None, Some(0)));
        assert_eq!(jobs[4].reason.as_deref(), Some("resource allocation expired"));
        assert_eq!(jobs[5].exit_code, Some(75));
    }

    #[test]
    fn one_job_is_an_object() {
        let jobs = parse_flux_jobs(r#"{"id": 7, "state": "RUN", "name": "x"}"#);
        assert_eq!((jobs.len(), jobs[0].id.as_str()), (1, "7"));
        assert!(parse_flux_jobs("flux-jobs: ERROR: no such job").is_empty());
    }

    proptest! {
        #[test]
        fn list_and_object_agree(id in 1u64.., state in "RUN|SCHED|INACTIVE", name in "[a-z]{1,9}") {
            let job = serde_json::json!({"id": id, "state": state, "name": name});
            let list = serde_json::json!({"jobs": [job]}).to_string();
            let jobs = parse_flux_jobs(&list);
            prop_assert_eq!(jobs.len(), 1);
            prop_assert_eq!(jobs, parse_flux_jobs(&job.to_string()));
        }
    }
}
