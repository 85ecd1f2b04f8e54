//! Output of `qstat -f`, as JSON (PBS 14 and later) or as text.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{JobState, JobStatus, clock_seconds, said};

/// Exit status of a job that PBS killed at its time limit.
const KILLED_AT_LIMIT: i32 = -29;
/// Substate of a job that was deleted by qdel.
const DELETED: &str = "91";

/// The attributes of a job by name: `Resource_List.walltime`.
type Attributes = BTreeMap<String, String>;

/// Parses the output of `qstat -f -x`, with or without `-F json`.
pub fn parse_qstat(text: &str) -> Vec<JobStatus> {
    // Some versions print invalid JSON if a variable of the job has a control character.
    let jobs = match serde_json::from_str(text) {
        Ok(json) => json_jobs(&json),
        Err(_) => text_jobs(text),
    };
    jobs.iter().filter_map(|(id, attributes)| job_status(id, attributes)).collect()
}

fn json_jobs(json: &Value) -> Vec<(String, Attributes)> {
    let jobs = json["Jobs"].as_object().into_iter().flatten();
    jobs.map(|(id, job)| (id.clone(), json_attributes(job))).collect()
}

fn json_attributes(job: &Value) -> Attributes {
    let mut attributes = Attributes::new();
    for (name, value) in job.as_object().into_iter().flatten() {
        match value {
            Value::Object(parts) => attributes
                .extend(parts.iter().map(|(part, value)| (format!("{name}.{part}"), plain(value)))),
            value => drop(attributes.insert(name.clone(), plain(value))),
        }
    }
    attributes
}

/// A value without JSON's quotes.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// `Job Id: ID`, then indented lines `name = value`; lines that start with a tab continue a value.
fn text_jobs(text: &str) -> Vec<(String, Attributes)> {
    let mut jobs: Vec<(String, Attributes)> = Vec::new();
    let mut last = String::new();
    for line in text.lines() {
        if let Some(id) = line.strip_prefix("Job Id:") {
            jobs.push((id.trim().to_owned(), Attributes::new()));
            last.clear();
            continue;
        }
        let Some((_, attributes)) = jobs.last_mut() else { continue };
        if let Some(more) = line.strip_prefix('\t') {
            attributes.entry(last.clone()).and_modify(|value| value.push_str(more.trim_end()));
        } else if let Some((name, value)) = line.split_once(" = ") {
            last = name.trim().to_owned();
            attributes.insert(last.clone(), value.trim_end().to_owned());
        }
    }
    jobs
}

fn job_status(id: &str, attributes: &Attributes) -> Option<JobStatus> {
    let value = |name: &str| attributes.get(name).map(String::as_str);
    let exit_code = value("Exit_status").and_then(|code| code.trim().parse::<i32>().ok());
    let state = match value("job_state")?.trim() {
        "Q" | "H" | "W" | "T" | "M" => JobState::Pending,
        "R" | "E" | "B" => JobState::Running,
        "S" | "U" => JobState::Suspended,
        "F" | "X" => match (exit_code, value("substate")) {
            (_, Some(DELETED)) => JobState::Cancelled,
            (Some(0), _) => JobState::Completed,
            (Some(KILLED_AT_LIMIT), _) => JobState::TimedOut,
            // Deleted before its start.
            (None, _) => JobState::Cancelled,
            (Some(_), _) => JobState::Failed,
        },
        _ => return None,
    };
    Some(JobStatus {
        id: Some(id.trim()).filter(|id| !id.is_empty())?.to_owned(),
        name: value("Job_Name").and_then(said),
        state,
        // While a job runs, the comment is when it started.
        reason: value("comment").filter(|_| state != JobState::Running).and_then(said),
        elapsed: value("resources_used.walltime").and_then(clock_seconds),
        limit: value("Resource_List.walltime").and_then(clock_seconds),
        exit_code,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// In the form of PBS Professional 2022.
    const JSON: &str = r#"{
    "timestamp":1763400000,
    "pbs_version":"2022.1.1",
    "pbs_server":"polaris-pbs-01",
    "Jobs":{
        "100.polaris-pbs-01":{
            "Job_Name":"train",
            "Job_Owner":"ada@polaris-login-01",
            "job_state":"Q",
            "queue":"prod",
            "Resource_List":{"nodect":2,"place":"scatter","walltime":"01:00:00"},
            "comment":"Not Running: Insufficient amount of resource: ngpus"
        },
        "101.polaris-pbs-01":{
            "Job_Name":"gpt",
            "job_state":"R",
            "resources_used":{"cpupercent":10,"walltime":"00:10:05"},
            "Resource_List":{"walltime":"24:00:00"},
            "comment":"Job run at Mon Nov 16 at 10:00 on (x3001:ncpus=64)"
        },
        "102.polaris-pbs-01":{"Job_Name":"a","job_state":"F","substate":92,"Exit_status":0},
        "103.polaris-pbs-01":{"Job_Name":"b","job_state":"F","substate":93,"Exit_status":75},
        "104.polaris-pbs-01":{"Job_Name":"c","job_state":"F","substate":91,"Exit_status":271},
        "105.polaris-pbs-01":{"Job_Name":"d","job_state":"F","substate":93,"Exit_status":-29}
    }
}"#;

    const TEXT: &str = "\
Job Id: 100.server
    Job_Name = train
    Job_Owner = ada@login
    job_state = Q
    Resource_List.walltime = 01:00:00
    comment = Not Running: Insufficient amount of resource: ngp
\tus (R: 8 A: 4 T: 4)
    Variable_List = PBS_O_HOME=/home/ada,A=b = c

Job Id: 101.server
    Job_Name = gpt
    resources_used.walltime = 00:10:05
    job_state = R
qstat: Unknown Job Id 102.server
";

    #[test]
    fn json_has_states_times_and_reasons() {
        let jobs = parse_qstat(JSON);
        let states: Vec<JobState> = jobs.iter().map(|job| job.state).collect();
        use JobState::{Cancelled, Completed, Failed, Pending, Running, TimedOut};
        assert_eq!(states, [Pending, Running, Completed, Failed, Cancelled, TimedOut]);
        let reason = "Not Running: Insufficient amount of resource: ngpus";
        assert_eq!(jobs[0].reason.as_deref(), Some(reason));
        assert_eq!((jobs[0].elapsed, jobs[0].limit), (None, Some(3600)));
        assert_eq!((jobs[1].elapsed, jobs[1].reason.as_deref()), (Some(605), None));
        assert_eq!(jobs[3].exit_code, Some(75));
    }

    #[test]
    fn text_has_the_same() {
        let jobs = parse_qstat(TEXT);
        assert_eq!(jobs.len(), 2);
        assert_eq!((jobs[0].id.as_str(), jobs[0].limit), ("100.server", Some(3600)));
        let reason = "Not Running: Insufficient amount of resource: ngpus (R: 8 A: 4 T: 4)";
        assert_eq!(jobs[0].reason.as_deref(), Some(reason));
        assert_eq!((jobs[1].state, jobs[1].elapsed), (JobState::Running, Some(605)));
    }

    proptest! {
        #[test]
        fn json_and_text_agree(
            name in "[A-Za-z][A-Za-z0-9_.+-]{0,12}",
            state in "[QHWTREBSUF]",
            exit in prop::option::of(-30i32..300),
            comment in "[A-Za-z][A-Za-z :()]{0,40}",
        ) {
            let mut job = serde_json::json!({
                "Job_Name": name, "job_state": state, "comment": comment,
                "Resource_List": {"walltime": "02:00:00"},
            });
            let mut text = format!(
                "Job Id: 7.s\n    Job_Name = {name}\n    job_state = {state}\n    comment = \
                 {comment}\n    Resource_List.walltime = 02:00:00\n"
            );
            if let Some(exit) = exit {
                job["Exit_status"] = exit.into();
                text += &format!("    Exit_status = {exit}\n");
            }
            let json = serde_json::json!({"Jobs": {"7.s": job}}).to_string();
            let jobs = parse_qstat(&json);
            prop_assert_eq!(jobs.len(), 1);
            prop_assert_eq!(jobs, parse_qstat(&text));
        }
    }
}
