//! The tasks of job arrays, and the state of an array by those of its tasks.

use regatta_discover::job_state::{JobState, JobStatus};
use regatta_place::batch::BatchScheduler;

/// The order in which states are counted.
const STATES: [JobState; 7] = [
    JobState::Failed,
    JobState::TimedOut,
    JobState::Cancelled,
    JobState::Running,
    JobState::Suspended,
    JobState::Pending,
    JobState::Completed,
];

/// The index of a task by its ID: 3 of `12345_3` (Slurm) or `12345[3].server` (PBS).
pub fn task_index(scheduler: BatchScheduler, array: &str, task: &str) -> Option<u32> {
    let index = match scheduler {
        BatchScheduler::Slurm => task.strip_prefix(array)?.strip_prefix('_')?,
        BatchScheduler::Pbs => {
            let (number, server) = array.split_once("[]")?;
            task.strip_prefix(number)?.strip_prefix('[')?.strip_suffix(server)?.strip_suffix(']')?
        }
        BatchScheduler::Flux => return None,
    };
    index.parse().ok()
}

/// The ID of a task.
pub fn task_id(scheduler: BatchScheduler, array: &str, index: u32) -> String {
    match scheduler {
        BatchScheduler::Slurm | BatchScheduler::Flux => format!("{array}_{index}"),
        BatchScheduler::Pbs => array.replacen("[]", &format!("[{index}]"), 1),
    }
}

/// The state of an array: one that has not ended, else the worst end; `None` if a state is not known
/// and none says more.
pub fn combined_state(tasks: &[Option<JobState>]) -> Option<JobState> {
    let has = |state: &JobState| tasks.contains(&Some(*state));
    let open = [JobState::Running, JobState::Suspended, JobState::Pending].into_iter().find(has);
    let is_known = !tasks.contains(&None);
    open.or_else(|| STATES.into_iter().find(has).filter(|_| is_known))
}

/// How many tasks have which state: `1 failed, 2 running, 7 pending`.
pub fn summary(tasks: &[Option<JobState>]) -> String {
    let count = |state: Option<JobState>| tasks.iter().filter(|task| **task == state).count();
    let known = STATES.into_iter().map(|state| (count(Some(state)), state.name()));
    let all = known.chain([(count(None), "unknown")]).filter(|(count, _)| *count > 0);
    all.map(|(count, name)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
}

/// The end of an array whose tasks have all ended.
pub fn end_of(id: &str, name: &str, tasks: &[&JobStatus]) -> Option<JobStatus> {
    let states: Vec<_> = tasks.iter().map(|task| Some(task.state)).collect();
    let state = combined_state(&states).filter(|state| state.is_final())?;
    let worst = tasks.iter().filter(|task| task.state == state).find_map(|task| task.exit_code);
    Some(JobStatus {
        id: id.to_owned(),
        name: Some(name.to_owned()),
        state,
        reason: Some(summary(&states)),
        elapsed: tasks.iter().filter_map(|task| task.elapsed).max(),
        limit: tasks.iter().find_map(|task| task.limit),
        exit_code: worst,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_have_ids_with_their_index() {
        use BatchScheduler::{Flux, Pbs, Slurm};
        for (scheduler, array, task, index) in [
            (Slurm, "123", "123_4", Some(4)),
            (Slurm, "123", "123", None),
            (Slurm, "123", "123_[5-9%2]", None),
            (Slurm, "123", "1234_5", None),
            (Pbs, "123[].server", "123[4].server", Some(4)),
            (Pbs, "123[].server", "123[].server", None),
            (Pbs, "123[].server", "123[4].other", None),
            (Flux, "f1", "f1_2", None),
        ] {
            assert_eq!(task_index(scheduler, array, task), index, "{task}");
            if let Some(index) = index {
                assert_eq!(task_id(scheduler, array, index), task);
            }
        }
    }

    #[test]
    fn array_has_the_state_of_its_tasks() {
        use JobState::{Cancelled, Completed, Failed, Pending, Running};
        let state = |tasks: &[JobState]| {
            combined_state(&tasks.iter().map(|state| Some(*state)).collect::<Vec<_>>())
        };
        assert_eq!(state(&[Completed, Running, Pending, Failed]), Some(Running));
        assert_eq!(state(&[Completed, Pending, Failed]), Some(Pending));
        assert_eq!(state(&[Completed, Cancelled, Failed]), Some(Failed));
        assert_eq!(state(&[Completed, Completed]), Some(Completed));
        assert_eq!(combined_state(&[Some(Completed), None]), None);
        assert_eq!(combined_state(&[Some(Running), None]), Some(Running));
        let tasks = [Some(Completed), Some(Pending), Some(Pending), Some(Failed), None];
        assert_eq!(summary(&tasks), "1 failed, 2 pending, 1 completed, 1 unknown");
    }
}
