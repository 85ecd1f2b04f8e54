//! What was written is read, on any number of ranks; the newest are kept.

use super::*;

#[test]
fn any_split_is_read_as_any_other() {
    for (ranks, split) in
        [(1, Split::Tensors), (2, Split::Columns), (3, Split::Flat), (4, Split::Rows)]
    {
        let scratch = Scratch::new("round");
        let mut writers = writers(&scratch.0, ranks, 2);
        let committed = save(&mut writers, 1000, split).unwrap().unwrap();
        assert_eq!(committed.path, scratch.0.join("step-00001000"));
        let checkpoint = Checkpoint::latest(&scratch.0).unwrap().unwrap();
        assert!(checkpoint.verify().unwrap() > 0);
        assert_is(&checkpoint, 1000);
        for (others, other) in [(1, Split::Rows), (3, Split::Columns), (5, Split::Flat)] {
            for rank in 0..others {
                for piece in pieces(1000, other, rank, others) {
                    let mut read = vec![f32::NAN; piece.numbers.len()];
                    checkpoint.read(&piece.name, piece.kind, &piece.part, &mut read).unwrap();
                    assert_eq!(read, piece.numbers, "{} {}", piece.name, piece.part);
                }
            }
        }
    }
}

#[test]
fn numbers_are_kept_to_the_bit() {
    let scratch = Scratch::new("bits");
    let mut writers = writers(&scratch.0, 1, 1);
    let odd = [f32::NAN, -0.0, f32::INFINITY, f32::MIN_POSITIVE / 8.0, f32::MAX];
    let piece = Piece::whole("odd", Kind::Parameter, &[odd.len()], odd.to_vec());
    writers[0].begin(about(1), vec![piece]).unwrap();
    assert!(matches!(writers[0].finish(PATIENCE), State::Written { step: 1 }));
    writers[0].commit(1).unwrap();
    let read = Checkpoint::latest(&scratch.0).unwrap().unwrap();
    let read = read.read_whole("odd", Kind::Parameter).unwrap();
    assert_eq!(read.map_bits(), odd.to_vec().map_bits());
}

trait Bits {
    fn map_bits(&self) -> Vec<u32>;
}

impl Bits for Vec<f32> {
    fn map_bits(&self) -> Vec<u32> {
        self.iter().map(|number| number.to_bits()).collect()
    }
}

#[test]
fn only_so_many_are_kept_and_never_the_new_one_goes() {
    let scratch = Scratch::new("keep");
    let mut writers = writers(&scratch.0, 2, 2);
    for step in [10, 20, 30] {
        save(&mut writers, step, Split::Rows).unwrap();
    }
    assert_eq!(scratch.names(), ["step-00000020", "step-00000030"]);
    // Gone back, for whatever reason: what is later is not touched, and replaced when it is due.
    save(&mut writers, 15, Split::Rows).unwrap();
    assert_eq!(scratch.names(), ["step-00000015", "step-00000020", "step-00000030"]);
    save(&mut writers, 20, Split::Flat).unwrap();
    assert_eq!(scratch.names(), ["step-00000015", "step-00000020", "step-00000030"]);
    let again = Checkpoint::open(&scratch.0.join("step-00000020")).unwrap();
    assert_is(&again, 20);
    let files = System.list(again.folder()).unwrap().len();
    assert_eq!(files, 4, "two files of numbers, the manifest and its checksum");
}

#[test]
fn damaged_ones_do_not_count_as_kept() {
    let scratch = Scratch::new("good");
    let mut writers = writers(&scratch.0, 1, 2);
    for step in [10, 20] {
        save(&mut writers, step, Split::Flat).unwrap();
    }
    writers[0].pass_over(&[scratch.0.join("step-00000020")]);
    save(&mut writers, 30, Split::Flat).unwrap();
    assert_eq!(scratch.names(), ["step-00000010", "step-00000020", "step-00000030"]);
    save(&mut writers, 40, Split::Flat).unwrap();
    assert_eq!(scratch.names(), ["step-00000030", "step-00000040"]);
}

#[test]
fn later_ones_are_put_aside_each_under_a_name_of_its_own() {
    let scratch = Scratch::new("aside");
    let mut writers = writers(&scratch.0, 2, 3);
    for round in 1..=2 {
        for step in [10, 20] {
            save(&mut writers, step, Split::Rows).unwrap();
        }
        let aside = scratch.0.join(format!("step-00000020.aside-{round}"));
        assert_eq!(writers[0].set_aside(Some(10)).unwrap(), std::slice::from_ref(&aside));
        assert!(writers[1].set_aside(None).unwrap().is_empty(), "by rank 0 alone");
        assert_is(&Checkpoint::open(&aside).unwrap(), 20);
    }
    let newest = newest_good(&scratch.0).unwrap().0.unwrap();
    assert_eq!(newest.about().step, 10);
    assert!(is_among(&newest, &scratch.0));
    let aside = Checkpoint::open(&scratch.0.join("step-00000020.aside-1")).unwrap();
    assert!(!is_among(&aside, &scratch.0));
    assert!(!is_among(&newest, Path::new("/nowhere")));
    assert_eq!(writers[0].set_aside(None).unwrap().len(), 1);
    assert!(!any(&scratch.0).unwrap());
}

#[test]
fn another_writer_of_the_folder_is_refused_until_the_first_is_gone() {
    let scratch = Scratch::new("lock");
    let first = Writer::new(&scratch.0, 0, 1, 1).unwrap();
    let second = Writer::new(&scratch.0, 0, 1, 1).err().unwrap().to_string();
    let own = format!("process {}", std::process::id());
    assert!(second.contains("another job") && second.contains(&own), "{second}");
    drop(first);
    assert!(Writer::new(&scratch.0, 0, 1, 1).is_ok());
}

#[test]
fn one_at_a_time_and_in_order() {
    let scratch = Scratch::new("order");
    let mut writers = writers(&scratch.0, 1, 1);
    assert!(matches!(writers[0].state(), State::Idle));
    let early = writers[0].commit(1).unwrap_err();
    assert!(matches!(early, CheckpointError::NotWritten { step: 1, .. }), "{early}");
    save(&mut writers, 1, Split::Rows).unwrap();
    assert!(matches!(writers[0].state(), State::Idle));
    assert!(writers[0].commit(1).is_err(), "it is done");
}

#[test]
fn pieces_that_do_not_fit_are_refused_at_once() {
    let scratch = Scratch::new("pieces");
    let mut writer = Writer::new(&scratch.0, 0, 1, 1).unwrap();
    let piece = Piece::whole("a", Kind::Parameter, &[2, 3], vec![0.0; 6]);
    let short = Piece { numbers: vec![0.0; 5], ..piece.clone() };
    let outside = Piece { part: Part::Flat(3..9), ..piece.clone() };
    let cases = [
        (vec![short], "5 numbers"),
        (vec![outside], "outside"),
        (vec![piece.clone(), piece], "twice"),
    ];
    for (pieces, says) in cases {
        let error = writer.begin(about(1), pieces).unwrap_err().to_string();
        assert!(error.contains("tensor a") && error.contains(says), "{error}");
    }
    assert!(scratch.names().is_empty());
}

#[test]
fn pieces_are_asked_for_in_turn_and_one_that_does_not_come_ends_it() {
    let scratch = Scratch::new("now");
    let mut writer = Writer::new(&scratch.0, 0, 1, 1).unwrap();
    let all = pieces(1, Split::Rows, 0, 1);
    let outlines: Vec<_> = all.iter().map(Piece::outline).collect();
    let mut asked = Vec::new();
    let mut numbers = |number: usize| {
        asked.push(number);
        Ok::<_, CheckpointError>(all[number].numbers.clone())
    };
    writer.write_now(about(1), outlines.clone(), &mut numbers).unwrap();
    assert_eq!(asked, (0..all.len()).collect::<Vec<_>>());
    writer.commit(1).unwrap();
    assert_is(&Checkpoint::latest(&scratch.0).unwrap().unwrap(), 1);
    let mut none = |_| Err(CheckpointError::Busy { writing: 7 });
    let error = writer.write_now(about(2), outlines, &mut none).unwrap_err();
    assert!(matches!(error, CheckpointError::Busy { writing: 7 }), "{error}");
    assert!(matches!(writer.state(), State::Failed { step: 2, .. }));
    assert_eq!(scratch.names(), ["step-00000001"]);
}

#[test]
fn an_empty_or_missing_folder_has_none() {
    let scratch = Scratch::new("none");
    assert!(Checkpoint::latest(&scratch.0).unwrap().is_none());
    assert!(Checkpoint::latest(&scratch.0.join("nowhere")).unwrap().is_none());
    let (found, skipped) = newest_good(&scratch.0).unwrap();
    assert!(found.is_none() && skipped.is_empty());
}

#[test]
fn what_is_asked_wrongly_is_said() {
    let scratch = Scratch::new("asked");
    save(&mut writers(&scratch.0, 1, 1), 1, Split::Rows).unwrap();
    let checkpoint = Checkpoint::latest(&scratch.0).unwrap().unwrap();
    let mut room = [0.0; 3];
    let mut read = |name: &str, part| {
        checkpoint.read(name, Kind::Moment1, &part, &mut room).unwrap_err().to_string()
    };
    assert!(read("layer.9.qkv.weight", Part::Whole).contains("has no moment1/layer.9.qkv.weight"));
    assert!(read("head.norm.weight", Part::Whole).contains("room for 3"));
    assert!(read("head.norm.weight", Part::Flat(2..5)).contains("outside"));
}
