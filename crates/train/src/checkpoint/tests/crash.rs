//! Processes killed at every file operation leave a valid checkpoint.

use std::process::Command;

use super::faulty::{Fault, Faulty};
use super::*;

const FOLDER: &str = "REGATTA_TEST_CRASH_FOLDER";
const AT: &str = "REGATTA_TEST_CRASH_AT";

/// What the child does: resumes, saves two steps, the second over an existing one, and is killed at some
/// operation.
fn train(disk: &Faulty, folder: &Path) -> Result<(), String> {
    let one = |rank| Writer::with_disk(Arc::new(disk.clone()), folder, rank, 2, 1);
    let writers: Result<Vec<Writer>, _> = (0..2).map(one).collect();
    let mut writers = writers.map_err(|error| error.to_string())?;
    for step in [2, 3] {
        save(&mut writers, step, Split::Flat).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// What the next job finds: at least step 1, complete, and no leftovers.
fn check(scratch: &TempDir, at: usize) -> u64 {
    let (good, skipped) = latest_valid(&scratch.0).unwrap();
    assert!(skipped.is_empty(), "killed at {at}: {skipped:?}");
    let good = good.unwrap_or_else(|| panic!("killed at {at}: nothing is left"));
    let step = good.meta().step;
    assert_is(&good, step);
    let mut next = writers(&scratch.0, 1, 1);
    assert!(names(scratch).iter().all(|name| !name.contains('.')), "{:?}", names(scratch));
    let (still, _) = latest_valid(&scratch.0).unwrap();
    assert_eq!(still.unwrap().meta().step, step, "putting in order loses nothing");
    save(&mut next, 9, Split::Rows).unwrap();
    assert_eq!(Checkpoint::latest(&scratch.0).unwrap().unwrap().meta().step, 9);
    step
}

/// Step 1, and a step 3 to be replaced.
fn before() -> TempDir {
    let scratch = TempDir::in_memory();
    let mut writers = writers(&scratch.0, 1, 3);
    save(&mut writers, 1, Split::Rows).unwrap();
    save(&mut writers, 3, Split::Rows).unwrap();
    scratch
}

fn operations() -> usize {
    let scratch = before();
    let disk = Faulty::new(0, Fault::None);
    train(&disk, &scratch.0).unwrap();
    disk.count()
}

/// Not a test: the process that the next one starts and kills.
#[test]
fn child() {
    let (Ok(folder), Ok(at)) = (std::env::var(FOLDER), std::env::var(AT)) else { return };
    let disk = Faulty::new(at.parse().unwrap(), Fault::Kill);
    train(&disk, Path::new(&folder)).unwrap();
}

#[test]
fn a_process_killed_at_any_operation_leaves_a_valid_checkpoint() {
    let own = std::env::current_exe().unwrap();
    let name = "checkpoint::tests::crash::child";
    let (operations, mut killed) = (operations(), 0);
    for at in 0..operations {
        let scratch = before();
        let mut command = Command::new(&own);
        command.args([name, "--exact", "--nocapture", "--test-threads=1"]);
        command.env(FOLDER, &scratch.0).env(AT, at.to_string());
        let output = command.output().unwrap();
        killed += usize::from(output.status.code().is_none());
        check(&scratch, at);
    }
    assert!(killed >= operations - 4, "{killed} of {operations} were killed");
}

#[test]
fn a_disk_that_fails_from_any_operation_on_leaves_a_valid_checkpoint() {
    let mut steps = std::collections::BTreeSet::new();
    for at in 0..operations() {
        let scratch = before();
        let done = train(&Faulty::new(at, Fault::Dead), &scratch.0);
        assert!(done.is_err() || at + 6 >= operations(), "operation {at}");
        steps.insert(check(&scratch, at));
    }
    assert!(steps.contains(&3), "{steps:?}");
}
