//! Round trips on any number of ranks, and pruning.

use super::*;

#[test]
fn any_sharding_is_read_as_any_other() {
    for (ranks, split) in
        [(1, Split::Tensors), (2, Split::Columns), (3, Split::Flat), (4, Split::Rows)]
    {
        let scratch = TempDir::in_memory();
        let mut writers = writers(&scratch.0, ranks, 2);
        let committed = save(&mut writers, 1000, split).unwrap().unwrap();
        assert_eq!(committed.path, scratch.0.join("step-00001000"));
        let checkpoint = Checkpoint::latest(&scratch.0).unwrap().unwrap();
        assert!(checkpoint.verify().unwrap() > 0);
        assert_is(&checkpoint, 1000);
        for (others, other) in [(1, Split::Rows), (3, Split::Columns), (5, Split::Flat)] {
            for rank in 0..others {
                for shard in shards(1000, other, rank, others) {
                    let mut read = vec![f32::NAN; shard.elements.len()];
                    let ShardMeta { name, kind, slice, .. } = &shard.meta;
                    checkpoint.read(name, *kind, slice, &mut read).unwrap();
                    assert_eq!(read, shard.elements, "{name} {slice}");
                }
            }
        }
    }
}

#[test]
fn elements_round_trip_bit_exactly() {
    let scratch = TempDir::in_memory();
    let mut writers = writers(&scratch.0, 1, 1);
    let odd = [f32::NAN, -0.0, f32::INFINITY, f32::MIN_POSITIVE / 8.0, f32::MAX];
    let shard = Shard::full_tensor("odd", StateTensor::Parameter, &[odd.len()], odd.to_vec());
    writers[0].begin(meta(1), vec![shard]).unwrap();
    assert!(matches!(writers[0].finish(TIMEOUT), State::Written { step: 1 }));
    writers[0].commit(1).unwrap();
    let read = Checkpoint::latest(&scratch.0).unwrap().unwrap();
    let read = read.read_whole("odd", StateTensor::Parameter).unwrap();
    let bits = |elements: &[f32]| elements.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&read), bits(&odd));
}

#[test]
fn old_checkpoints_are_pruned_but_never_the_newest() {
    let scratch = TempDir::in_memory();
    let mut writers = writers(&scratch.0, 2, 2);
    for step in [10, 20, 30] {
        save(&mut writers, step, Split::Rows).unwrap();
    }
    assert_eq!(names(&scratch), ["step-00000020", "step-00000030"]);
    // After going back to an earlier step, later checkpoints stay until they are replaced.
    save(&mut writers, 15, Split::Rows).unwrap();
    assert_eq!(names(&scratch), ["step-00000015", "step-00000020", "step-00000030"]);
    save(&mut writers, 20, Split::Flat).unwrap();
    assert_eq!(names(&scratch), ["step-00000015", "step-00000020", "step-00000030"]);
    let again = Checkpoint::open(&scratch.0.join("step-00000020")).unwrap();
    assert_is(&again, 20);
    let files = SystemDisk.list(again.folder()).unwrap().len();
    assert_eq!(files, 4, "two safetensors files, the manifest and its checksum");
}

#[test]
fn damaged_checkpoints_do_not_count_as_kept() {
    let scratch = TempDir::in_memory();
    let mut writers = writers(&scratch.0, 1, 2);
    for step in [10, 20] {
        save(&mut writers, step, Split::Flat).unwrap();
    }
    let folder = scratch.0.join("step-00000020");
    writers[0].mark_damaged(&[Skipped { folder, why: Vec::new() }]);
    save(&mut writers, 30, Split::Flat).unwrap();
    assert_eq!(names(&scratch), ["step-00000010", "step-00000020", "step-00000030"]);
    save(&mut writers, 40, Split::Flat).unwrap();
    assert_eq!(names(&scratch), ["step-00000030", "step-00000040"]);
}

#[test]
fn later_checkpoints_are_moved_aside_under_unique_names() {
    let scratch = TempDir::in_memory();
    let mut writers = writers(&scratch.0, 2, 3);
    for round in 1..=2 {
        for step in [10, 20] {
            save(&mut writers, step, Split::Rows).unwrap();
        }
        let aside = scratch.0.join(format!("step-00000020.aside-{round}"));
        assert_eq!(writers[0].move_aside(Some(10)).unwrap(), std::slice::from_ref(&aside));
        assert!(writers[1].move_aside(None).unwrap().is_empty(), "only rank 0 moves them");
        assert_is(&Checkpoint::open(&aside).unwrap(), 20);
    }
    let newest = latest_valid(&scratch.0).unwrap().0.unwrap();
    assert_eq!(newest.meta().step, 10);
    assert!(is_in_dir(&newest, &scratch.0));
    let aside = Checkpoint::open(&scratch.0.join("step-00000020.aside-1")).unwrap();
    assert!(!is_in_dir(&aside, &scratch.0));
    assert!(!is_in_dir(&newest, Path::new("/nowhere")));
    assert_eq!(writers[0].move_aside(None).unwrap().len(), 1);
    assert!(!has_checkpoint(&scratch.0).unwrap());
}

#[test]
fn a_second_writer_is_refused_until_the_first_is_dropped() {
    let scratch = TempDir::in_memory();
    let first = Writer::new(&scratch.0, 0, 1, 1).unwrap();
    let second = Writer::new(&scratch.0, 0, 1, 1).err().unwrap().to_string();
    let own = format!("process {}", std::process::id());
    assert!(second.contains("another job") && second.contains(&own), "{second}");
    drop(first);
    assert!(Writer::new(&scratch.0, 0, 1, 1).is_ok());
}

#[test]
fn saves_run_one_at_a_time_and_in_order() {
    let scratch = TempDir::in_memory();
    let mut writers = writers(&scratch.0, 1, 1);
    assert!(matches!(writers[0].state(), State::Idle));
    let early = writers[0].commit(1).unwrap_err();
    assert!(matches!(early, CheckpointError::NotWritten { step: 1, .. }), "{early}");
    save(&mut writers, 1, Split::Rows).unwrap();
    assert!(matches!(writers[0].state(), State::Idle));
    assert!(writers[0].commit(1).is_err(), "it is done");
}

#[test]
fn invalid_shards_are_refused_immediately() {
    let scratch = TempDir::in_memory();
    let mut writer = Writer::new(&scratch.0, 0, 1, 1).unwrap();
    let shard = Shard::full_tensor("a", StateTensor::Parameter, &[2, 3], vec![0.0; 6]);
    let short = Shard { elements: vec![0.0; 5], ..shard.clone() };
    let mut outside = shard.clone();
    outside.meta.slice = TensorSlice::Flat(3..9);
    let cases = [
        (vec![short], "5 elements"),
        (vec![outside], "outside"),
        (vec![shard.clone(), shard], "twice"),
    ];
    for (shards, expected) in cases {
        let error = writer.begin(meta(1), shards).unwrap_err().to_string();
        assert!(error.contains("tensor a") && error.contains(expected), "{error}");
    }
    assert!(names(&scratch).is_empty());
}

#[test]
fn blocking_saves_request_shards_in_order_and_stop_at_an_error() {
    let scratch = TempDir::in_memory();
    let mut writer = Writer::new(&scratch.0, 0, 1, 1).unwrap();
    let all = shards(1, Split::Rows, 0, 1);
    let metas: Vec<_> = all.iter().map(|shard| shard.meta.clone()).collect();
    let mut requested = Vec::new();
    let mut elements = |number: usize| {
        requested.push(number);
        Ok::<_, CheckpointError>(all[number].elements.clone())
    };
    writer.write_blocking(meta(1), metas.clone(), &mut elements).unwrap();
    assert_eq!(requested, (0..all.len()).collect::<Vec<_>>());
    writer.commit(1).unwrap();
    assert_is(&Checkpoint::latest(&scratch.0).unwrap().unwrap(), 1);
    let mut none = |_| Err(CheckpointError::Busy { writing: 7 });
    let error = writer.write_blocking(meta(2), metas, &mut none).unwrap_err();
    assert!(matches!(error, CheckpointError::Busy { writing: 7 }), "{error}");
    assert!(matches!(writer.state(), State::Failed { step: 2, .. }));
    assert_eq!(names(&scratch), ["step-00000001"]);
}

#[test]
fn an_empty_or_missing_directory_has_no_checkpoint() {
    let scratch = TempDir::in_memory();
    assert!(Checkpoint::latest(&scratch.0).unwrap().is_none());
    assert!(Checkpoint::latest(&scratch.0.join("nowhere")).unwrap().is_none());
    let (found, skipped) = latest_valid(&scratch.0).unwrap();
    assert!(found.is_none() && skipped.is_empty());
}

#[test]
fn invalid_reads_are_refused() {
    let scratch = TempDir::in_memory();
    save(&mut writers(&scratch.0, 1, 1), 1, Split::Rows).unwrap();
    let checkpoint = Checkpoint::latest(&scratch.0).unwrap().unwrap();
    let mut buffer = [0.0; 3];
    let mut read = |name: &str, slice| {
        checkpoint.read(name, StateTensor::Moment1, &slice, &mut buffer).unwrap_err().to_string()
    };
    let missing = read("layer.9.qkv.weight", TensorSlice::Whole);
    assert!(missing.contains("has no moment1/layer.9.qkv.weight"), "{missing}");
    assert!(read("head.norm.weight", TensorSlice::Whole).contains("the buffer has 3"));
    assert!(read("head.norm.weight", TensorSlice::Flat(2..5)).contains("outside"));
}
