use super::*;

/// A shell command that stands for a starter of one host.
fn stand_in(host: usize, script: &str) -> Invocation {
    Invocation {
        program: "sh".into(),
        args: vec!["-c".into(), script.into()],
        unset: vec!["REGATTA_TEST_UNSET".to_owned()],
        set: vec![("REGATTA_TEST_SET".to_owned(), "yes".to_owned())],
        hostfile: None,
        takes_boot: true,
        hosts: host..host + 1,
    }
}

fn spawn(scripts: &[&str], boot: &str) -> Started {
    let all = scripts.iter().enumerate().map(|(host, script)| stand_in(host, script)).collect();
    Started::spawn(all, boot, &hosts(scripts.len())).unwrap()
}

fn hosts(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("n{n}")).collect()
}

/// Waits for what is to come, for as long as it takes on a slow machine.
fn until<T>(mut what: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = what() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "it never came");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The codes of so many starters, by host.
fn codes(started: &mut Started, count: usize) -> Vec<Option<i32>> {
    let mut all = Vec::new();
    until(|| {
        all.extend(started.ended());
        (all.len() == count).then_some(())
    });
    all.sort_by_key(|(range, _)| range.start);
    all.into_iter().map(|(_, status)| status.code()).collect()
}

fn lives(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().is_some_and(|s| s.starts_with(" Z")))
}

#[test]
fn each_gets_the_boot_document_and_is_heard() {
    let boot = "secret\n".repeat(40_000);
    let count = "wc -c; echo $REGATTA_TEST_SET-$REGATTA_TEST_UNSET- >&2";
    let mut started = spawn(&[count, "exit 3", "kill -9 $$"], &boot);
    assert_eq!(codes(&mut started, 3), [Some(0), Some(3), None]);
    assert_eq!(started.said(0), [boot.len().to_string(), "yes--".to_owned()]);
    assert!(started.said(1).is_empty() && started.said(77).is_empty());
    assert!(started.ended().is_empty(), "each end is told once");
}

#[test]
fn a_flood_is_read_and_only_its_end_kept() {
    let mut started = spawn(&["seq 300000; printf 'no end'"], "");
    assert_eq!(codes(&mut started, 1), [Some(0)]);
    let said = started.said(0);
    assert_eq!(said.len(), KEPT);
    assert_eq!(said[KEPT - 2..], ["300000", "no end"]);
}

#[test]
fn a_line_is_kept_in_part() {
    let mut started = spawn(&["printf 'ä%.0s' $(seq 5000)"], "");
    codes(&mut started, 1);
    assert_eq!(started.said(0), ["ä".repeat(LINE / 2)]);
}

#[test]
fn what_ignores_term_is_killed_with_what_it_started() {
    let deaf = "trap '' TERM; sleep 600 & echo $$ $!; wait; sleep 600";
    let polite = "trap 'echo bye; exit 7' TERM; echo $$; while :; do sleep 0.01; done";
    let started = spawn(&[deaf, polite], "unread");
    let pids: Vec<String> = until(|| {
        let words =
            |host| started.said(host).first().map(|l| l.split(' ').map(str::to_owned).collect());
        let both: [Option<Vec<String>>; 2] = [words(0), words(1)];
        both.into_iter().collect::<Option<Vec<_>>>().map(|all| all.concat())
    });
    assert!(pids.len() == 3 && pids.iter().all(|pid| lives(pid)), "{pids:?}");
    // Nobody waits for what is gone, nor says that it is late.
    let late = started.end(&[1], Duration::ZERO, Duration::from_millis(300));
    assert_eq!(late, [0], "asked in vain");
    assert!(!pids.iter().any(|pid| lives(pid)), "{pids:?}");
}

#[test]
fn what_is_about_to_end_is_not_disturbed() {
    let file = std::env::temp_dir().join(format!("regatta-leave-{}", std::process::id()));
    let slow = "echo ready; read go; sleep 0.3; echo done > $0";
    let mut invocation = stand_in(0, slow);
    invocation.args.push(file.clone().into());
    let started = Started::spawn(vec![invocation], "go\n", &hosts(1)).unwrap();
    until(|| started.said(0).pop());
    let forever = Duration::from_secs(86_400);
    assert!(started.end(&[], forever, Duration::ZERO).is_empty());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "done\n");
    std::fs::remove_file(file).unwrap();
}

#[test]
fn dropping_kills() {
    let started = spawn(&["echo $$; exec sleep 600"], "");
    let pid = until(|| started.said(0).pop());
    drop(started);
    assert!(!lives(&pid));
}

#[test]
fn signals_reach_them() {
    let script = "trap 'echo heard; exit 5' USR1; echo ready; while :; do sleep 0.01; done";
    let mut started = spawn(&[script], "");
    until(|| started.said(0).pop());
    started.signal(libc::SIGUSR1);
    assert_eq!(codes(&mut started, 1), [Some(5)]);
    assert_eq!(started.said(0).pop().as_deref(), Some("heard"));
}

#[test]
fn what_it_leaves_behind_ends_with_it() {
    let mut started = spawn(&["sleep 600 & echo $!"], "");
    assert_eq!(codes(&mut started, 1), [Some(0)]);
    let left = started.said(0).remove(0);
    until(|| (!lives(&left)).then_some(()));
}

#[test]
fn what_does_not_exist_is_an_error_and_ends_the_others() {
    let mut missing = stand_in(1, "");
    missing.program = "/no/such/srun".into();
    let marker = std::env::temp_dir().join(format!("regatta-started-{}", std::process::id()));
    let first = stand_in(0, &format!("echo $$ > {}; exec sleep 600", marker.display()));
    let error = Started::spawn(vec![first, missing], "", &hosts(2)).unwrap_err().to_string();
    assert!(error.contains("/no/such/srun") && error.contains(" n1:"), "{error}");
    // It may have been killed before it wrote anything.
    let pid = std::fs::read_to_string(&marker).unwrap_or_default();
    assert!(pid.trim().is_empty() || !lives(pid.trim()));
    let _ = std::fs::remove_file(marker);
}

#[test]
fn many_log_in_by_turns() {
    let gate = std::env::temp_dir().join(format!("regatta-gate-{}", std::process::id()));
    let script = format!(
        "echo here; while [ ! -e {} ]; do sleep 0.05; done; cat > /dev/null",
        gate.display()
    );
    let all = (0..100).map(|host| stand_in(host, &script)).collect();
    let forever = Duration::from_secs(86_400);
    let mut started = Started::spawn_with(all, "boot", &hosts(100), forever).unwrap();
    let here = |started: &Started| (0..100).filter(|&h| !started.said(h).is_empty()).count();
    until(|| (here(&started) == 64).then_some(()));
    assert_eq!(lock(&started.state).running.iter().flatten().count(), 64);
    std::fs::write(&gate, "").unwrap();
    assert_eq!(codes(&mut started, 100), vec![Some(0); 100]);
    assert_eq!(here(&started), 100);
    std::fs::remove_file(gate).unwrap();
}

#[test]
fn logins_that_hang_do_not_hold_up_others_for_ever() {
    let mut all: Vec<Invocation> = (0..64).map(|host| stand_in(host, "exec sleep 600")).collect();
    all.extend((64..100).map(|host| stand_in(host, "cat > /dev/null")));
    let moment = Duration::from_millis(10);
    let mut started = Started::spawn_with(all, "boot", &hosts(100), moment).unwrap();
    assert_eq!(codes(&mut started, 36), vec![Some(0); 36]);
    started.end(&[], Duration::ZERO, Duration::ZERO);
}

#[test]
fn a_later_one_that_cannot_be_run_is_an_end() {
    let mut all: Vec<Invocation> = (0..65).map(|host| stand_in(host, "cat > /dev/null")).collect();
    all[64].program = "/no/such/ssh".into();
    let mut started = Started::spawn(all, "boot", &hosts(65)).unwrap();
    assert_eq!(codes(&mut started, 65)[64], Some(127));
    assert!(started.said(64)[0].contains("/no/such/ssh"), "{:?}", started.said(64));
}

#[test]
fn the_host_file_is_there_first() {
    let file = std::env::temp_dir().join(format!("regatta-hosts-{}", std::process::id()));
    let mut cat = stand_in(0, &format!("cat {}", file.display()));
    cat.hostfile = Some((file.clone(), "n0:1\n".to_owned()));
    let mut started = Started::spawn(vec![cat.clone()], "", &hosts(1)).unwrap();
    codes(&mut started, 1);
    assert_eq!(started.said(0), ["n0:1"]);
    std::fs::remove_file(&file).unwrap();
    cat.hostfile = Some(("/no/such/folder/hosts".into(), String::new()));
    let error = Started::spawn(vec![cat], "", &hosts(1)).unwrap_err().to_string();
    assert!(error.contains("/no/such/folder/hosts"), "{error}");
}

#[test]
fn questions_have_an_end() {
    let ask = |script: &str, limit| output_of("sh", &["-c", script], limit);
    let long = Duration::from_secs(60);
    assert_eq!(ask("echo a; echo b >&2", long).as_deref(), Some("a\nb\n"));
    assert_eq!(ask("echo a; exit 1", long), None);
    assert_eq!(ask("echo a; sleep 600", Duration::from_millis(100)), None);
    assert_eq!(output_of("/no/such/mpiexec", &["--version"], long), None);
}
