//! I/O errors: one clear error, and earlier checkpoints are unaffected.

use super::faulty::{Fault, Faulty};
use super::*;

fn on(disk: &Faulty, folder: &Path, ranks: usize) -> Result<Vec<Writer>, CheckpointError> {
    let one = |rank| Writer::with_disk(Arc::new(disk.clone()), folder, rank, ranks, 1);
    (0..ranks).map(one).collect()
}

/// Saves step 1, then step 2 on a disk that fails at this operation.
fn fail_at(at: usize, error: i32) -> (TempDir, Result<(), String>) {
    let scratch = TempDir::in_memory();
    save(&mut writers(&scratch.0, 1, 1), 1, Split::Rows).unwrap();
    let disk = Faulty::new(at, Fault::Error(error));
    let result = on(&disk, &scratch.0, 2).map_err(|error| error.to_string()).and_then(|mut all| {
        save(&mut all, 2, Split::Flat).map(|_| ()).map_err(|error| error.to_string())
    });
    (scratch, result)
}

#[test]
fn a_failure_of_any_operation_leaves_a_valid_checkpoint_and_no_leftovers() {
    let disk = Faulty::new(0, Fault::None);
    let scratch = TempDir::in_memory();
    save(&mut on(&disk, &scratch.0, 2).unwrap(), 2, Split::Flat).unwrap();
    // The other rank's operations interleave arbitrarily: try some more.
    let operations = disk.count() + 8;
    assert!(operations > 20, "{:?}", disk.log());
    for error in [libc::EIO, libc::ENOSPC] {
        for at in 0..operations {
            let (scratch, result) = fail_at(at, error);
            let (good, skipped) = latest_valid(&scratch.0).unwrap();
            assert!(skipped.is_empty(), "operation {at}: {skipped:?}");
            let step = good.as_ref().unwrap().meta().step;
            assert_is(&good.unwrap(), step);
            match result {
                Ok(()) => assert_eq!(step, 2, "operation {at}"),
                // The failure was after the rename, or before.
                Err(why) => assert!(why.contains(&*scratch.0.to_string_lossy()), "{why}"),
            }
            // The next start cleans up.
            drop(writers(&scratch.0, 1, 1));
            let left = names(&scratch);
            assert!(left.iter().all(|name| !name.contains('.')), "{left:?}");
        }
    }
}

#[test]
fn a_full_disk_is_reported_with_file_and_size() {
    let scratch = TempDir::in_memory();
    save(&mut writers(&scratch.0, 1, 1), 1, Split::Rows).unwrap();
    // Creating the writer: directory, list. Then the partial directory, the file, its header.
    let disk = Faulty::new(4, Fault::Error(libc::ENOSPC));
    let mut full = on(&disk, &scratch.0, 1).unwrap();
    let error = save(&mut full, 2, Split::Rows).unwrap_err();
    let CheckpointError::NoSpace { path, needed, .. } = &*error else { panic!("{error}") };
    assert_eq!(path, &scratch.0.join("step-00000002.partial/rank-00000.safetensors"));
    assert!(*needed > 1000);
    assert!(error.to_string().contains("existing checkpoints are intact"), "{error}");
    assert_eq!(names(&scratch), ["step-00000001"]);
    // Once there is space, saving works again.
    save(&mut full, 3, Split::Rows).unwrap();
    assert_eq!(names(&scratch), ["step-00000003"]);
}

#[test]
fn a_file_size_limit_is_reported_with_the_limit_to_raise() {
    let scratch = TempDir::in_memory();
    let disk = Faulty::new(4, Fault::Error(libc::EFBIG));
    let error = save(&mut on(&disk, &scratch.0, 1).unwrap(), 2, Split::Rows).unwrap_err();
    assert!(matches!(&*error, CheckpointError::FileTooLarge { .. }), "{error}");
    assert!(error.to_string().contains("`ulimit -f unlimited`"), "{error}");
    assert!(names(&scratch).is_empty());
}

#[test]
fn insufficient_space_is_reported_before_anything_is_written() {
    let scratch = TempDir::in_memory();
    let disk = Arc::new(Faulty::new(0, Fault::LittleSpace(100)));
    let mut writer = Writer::with_disk(disk, &scratch.0, 0, 1, 1).unwrap();
    let error = save(std::slice::from_mut(&mut writer), 1, Split::Rows).unwrap_err().to_string();
    assert!(error.contains("100 free") && error.contains("rank-00000.safetensors"), "{error}");
    assert!(names(&scratch).is_empty());
}

#[test]
fn an_unwritable_directory_is_named() {
    for code in [libc::EROFS, libc::EACCES, libc::ENOTDIR, libc::EIO] {
        let scratch = TempDir::in_memory();
        let error = on(&Faulty::new(0, Fault::Error(code)), &scratch.0, 1).err().unwrap();
        assert!(matches!(error, CheckpointError::NotWritable { .. }), "{error}");
        let fix = "; set checkpoint.dir to a writable directory";
        assert!(error.to_string().ends_with(fix), "{error}");
    }
}

#[test]
fn files_that_rank_0_does_not_see_are_named() {
    let (here, there) = (TempDir::in_memory(), TempDir::in_memory());
    let mut all =
        [(&here, 0), (&there, 1)].map(|(dir, rank)| Writer::new(&dir.0, rank, 2, 1).unwrap());
    let error = save(&mut all, 5, Split::Rows).unwrap_err().to_string();
    assert!(error.contains("rank-00001.json") && error.contains("all nodes share"), "{error}");
    assert!(names(&here).is_empty());
}

#[test]
fn leftovers_of_a_running_job_stay_and_those_of_a_killed_one_are_removed() {
    let scratch = TempDir::in_memory();
    let partial = scratch.0.join("step-00000007.partial");
    std::fs::create_dir(&partial).unwrap();
    drop(Writer::new(&scratch.0, 1, 2, 1).unwrap());
    assert!(partial.exists(), "only rank 0 removes");
    let running = Writer::new(&scratch.0, 0, 1, 1).unwrap();
    assert!(!partial.exists());
    std::fs::create_dir(&partial).unwrap();
    assert!(Writer::new(&scratch.0, 0, 1, 1).is_err());
    assert!(partial.exists(), "it is the running job's");
    drop(running);
}

#[test]
fn data_is_synced_before_the_rename_and_old_checkpoints_are_removed_after() {
    let scratch = TempDir::in_memory();
    save(&mut writers(&scratch.0, 1, 1), 1, Split::Rows).unwrap();
    let disk = Faulty::new(0, Fault::None);
    save(&mut on(&disk, &scratch.0, 1).unwrap(), 2, Split::Rows).unwrap();
    let log = disk.log();
    let root = scratch.0.file_name().unwrap().to_string_lossy().into_owned();
    let order = [
        "create rank-00000.safetensors",
        "write rank-00000.safetensors",
        "sync rank-00000.safetensors",
        "create rank-00000.json",
        "sync rank-00000.json",
        "sync step-00000002.partial",
        "write checkpoint.json",
        "sync checkpoint.json",
        "sync checkpoint.json.sha256",
        "sync step-00000002.partial",
        "rename step-00000002.partial",
        &format!("sync {root}"),
        "rename step-00000001",
        "remove step-00000001.removed",
    ];
    let mut rest = log.iter();
    for expected in order {
        assert!(rest.any(|done| done == expected), "{expected} is not in its place in {log:#?}");
    }
}
