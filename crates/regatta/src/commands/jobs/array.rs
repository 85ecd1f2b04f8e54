//! Job arrays with the states of their tasks.

use regatta_discover::job_state::JobStatus;
use regatta_place::batch::{JobArray, RunDir};

use super::{EntryStatus, JobEntry, JobRecord, TaskEntry, query, run_folder, status_by_run, tasks};

/// Records which tasks of an array have ended, and the end of the array with the last of them.
pub fn record_ended_tasks(record: &mut JobRecord, array: JobArray, found: &query::Answers) {
    let tasks = found.tasks(record).into_iter();
    let is_new = |index: &u32| !record.ended_tasks.contains_key(index);
    let ended = tasks.filter(|(index, status)| status.state.is_final() && is_new(index));
    let ended = ended.map(|(index, status)| (index, status.clone())).collect();
    record.add_ended_tasks(ended);
    let ended: Vec<_> = array.indices().filter_map(|i| record.ended_tasks.get(&i)).collect();
    if ended.len() == array.count() as usize
        && let Some(status) = tasks::end_of(&record.id, &record.name, &ended)
    {
        record.set_ended(&status);
    }
}

fn task_entry(record: &JobRecord, index: u32, found: Option<&JobStatus>) -> TaskEntry {
    let folder = record.folder.join(format!("{}{index}", RunDir::TASK_PREFIX));
    let run_folder = run_folder(record, &folder);
    let by_run = || run_folder.as_deref().and_then(|run| status_by_run(record, run));
    let status = record.ended_tasks.get(&index).or(found).cloned().or_else(by_run);
    let id = tasks::task_id(record.scheduler, &record.id, index);
    TaskEntry { id, index, status: EntryStatus::new(status, run_folder, || None) }
}

/// An array with its tasks.
pub fn array_entry(record: JobRecord, array: JobArray, found: &query::Answers) -> JobEntry {
    let states = found.tasks(&record);
    let entry = |index| task_entry(&record, index, states.get(&index).copied());
    let tasks: Vec<TaskEntry> = array.indices().map(entry).collect();
    let states: Vec<_> = tasks.iter().map(|task| task.status.state).collect();
    let reason = match tasks.iter().all(|task| task.status.state.is_none()) {
        true => found.problem(record.scheduler),
        false => tasks::summary(&states),
    };
    let status = EntryStatus {
        state: tasks::combined_state(&states),
        reason: Some(reason),
        elapsed: tasks.iter().filter_map(|task| task.status.elapsed).max(),
        limit: tasks.iter().find_map(|task| task.status.limit),
        exit_code: record.ended.as_ref().and_then(|status| status.exit_code),
        run_folder: None,
        progress: None,
    };
    JobEntry { record, status, tasks }
}
