use std::time::Instant;

use super::*;
use crate::agent_launcher::state::{MAX_LINE, TAIL_LINES};

/// A shell command in place of the launcher of one host.
fn shell(host: usize, script: &str) -> LaunchCommand {
    LaunchCommand {
        program: "sh".into(),
        args: vec!["-c".into(), script.into()],
        env_remove: vec!["REGATTA_TEST_UNSET".to_owned()],
        env: vec![("REGATTA_TEST_SET".to_owned(), "yes".to_owned())],
        hostfile: None,
        bootstrap_on_stdin: true,
        hosts: host..host + 1,
    }
}

fn spawn(scripts: &[&str], bootstrap: &str) -> LauncherHandle {
    let all = scripts.iter().enumerate().map(|(host, script)| shell(host, script)).collect();
    LauncherHandle::spawn(all, bootstrap, &hosts(scripts.len()), LOGIN_TIMEOUT).unwrap()
}

fn hosts(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("n{n}")).collect()
}

/// Polls until a value is available, with a timeout for slow machines.
fn wait_for<T>(mut poll: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "timed out");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Exit codes of `count` launchers, ordered by host.
fn exit_codes(launchers: &mut LauncherHandle, count: usize) -> Vec<Option<i32>> {
    let mut all = Vec::new();
    wait_for(|| {
        all.extend(launchers.take_exited());
        (all.len() == count).then_some(())
    });
    all.sort_by_key(|(range, _)| range.start);
    all.into_iter().map(|(_, status)| status.code()).collect()
}

fn is_alive(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().is_some_and(|s| s.starts_with(" Z")))
}

#[test]
fn launchers_read_the_bootstrap_document_and_their_output_is_kept() {
    let bootstrap = "secret\n".repeat(40_000);
    let count = "wc -c; echo $REGATTA_TEST_SET-$REGATTA_TEST_UNSET- >&2";
    let mut launchers = spawn(&[count, "exit 3", "kill -9 $$"], &bootstrap);
    assert_eq!(exit_codes(&mut launchers, 3), [Some(0), Some(3), None]);
    assert_eq!(launchers.output_tail(0), [bootstrap.len().to_string(), "yes--".to_owned()]);
    assert!(launchers.output_tail(1).is_empty() && launchers.output_tail(77).is_empty());
    assert!(launchers.take_exited().is_empty(), "each exit is reported once");
}

#[test]
fn only_the_last_lines_of_output_are_kept() {
    let mut launchers = spawn(&["seq 300000; printf 'no end'"], "");
    assert_eq!(exit_codes(&mut launchers, 1), [Some(0)]);
    let tail = launchers.output_tail(0);
    assert_eq!(tail.len(), TAIL_LINES);
    assert_eq!(tail[TAIL_LINES - 2..], ["300000", "no end"]);
}

#[test]
fn long_lines_are_truncated() {
    let mut launchers = spawn(&["printf 'ä%.0s' $(seq 5000)"], "");
    exit_codes(&mut launchers, 1);
    assert_eq!(launchers.output_tail(0), ["ä".repeat(MAX_LINE / 2)]);
}

#[test]
fn launcher_that_ignores_sigterm_is_killed_with_its_children() {
    let ignores_term = "trap '' TERM; sleep 600 & echo $$ $!; wait; sleep 600";
    let handles_term = "trap 'echo bye; exit 7' TERM; echo $$; while :; do sleep 0.01; done";
    let launchers = spawn(&[ignores_term, handles_term], "unread");
    let pids: Vec<String> = wait_for(|| {
        let words = |host| {
            launchers.output_tail(host).first().map(|l| l.split(' ').map(str::to_owned).collect())
        };
        let both: [Option<Vec<String>>; 2] = [words(0), words(1)];
        both.into_iter().collect::<Option<Vec<_>>>().map(|all| all.concat())
    });
    assert!(pids.len() == 3 && pids.iter().all(|pid| is_alive(pid)), "{pids:?}");
    // The launcher of a lost host is not waited for, nor reported.
    let late = launchers.shutdown(&[1], Duration::ZERO, Duration::from_millis(300));
    assert_eq!(late, [0], "had to be terminated");
    // SIGKILL has been sent to the whole group, but only the launchers themselves are waited for.
    wait_for(|| (!pids.iter().any(|pid| is_alive(pid))).then_some(()));
}

#[test]
fn shutdown_waits_for_launchers_that_exit_in_time() {
    let file = std::env::temp_dir().join(format!("regatta-leave-{}", std::process::id()));
    let slow = "echo ready; read go; sleep 0.3; echo done > $0";
    let mut command = shell(0, slow);
    command.args.push(file.clone().into());
    let launchers = LauncherHandle::spawn(vec![command], "go\n", &hosts(1), LOGIN_TIMEOUT).unwrap();
    wait_for(|| launchers.output_tail(0).pop());
    let forever = Duration::from_secs(86_400);
    assert!(launchers.shutdown(&[], forever, Duration::ZERO).is_empty());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "done\n");
    std::fs::remove_file(file).unwrap();
}

#[test]
fn drop_kills_launchers() {
    let launchers = spawn(&["echo $$; exec sleep 600"], "");
    let pid = wait_for(|| launchers.output_tail(0).pop());
    drop(launchers);
    assert!(!is_alive(&pid));
}

#[test]
fn signals_are_forwarded_to_launchers() {
    let script = "trap 'echo received; exit 5' USR1; echo ready; while :; do sleep 0.01; done";
    let mut launchers = spawn(&[script], "");
    wait_for(|| launchers.output_tail(0).pop());
    launchers.signal(libc::SIGUSR1);
    assert_eq!(exit_codes(&mut launchers, 1), [Some(5)]);
    assert_eq!(launchers.output_tail(0).pop().as_deref(), Some("received"));
}

#[test]
fn orphans_of_a_launcher_are_killed() {
    let mut launchers = spawn(&["sleep 600 & echo $!"], "");
    assert_eq!(exit_codes(&mut launchers, 1), [Some(0)]);
    let orphan = launchers.output_tail(0).remove(0);
    wait_for(|| (!is_alive(&orphan)).then_some(()));
}

#[test]
fn missing_program_is_an_error_and_kills_the_others() {
    let mut missing = shell(1, "");
    missing.program = "/no/such/srun".into();
    let marker = std::env::temp_dir().join(format!("regatta-launchers-{}", std::process::id()));
    let first = shell(0, &format!("echo $$ > {}; exec sleep 600", marker.display()));
    let error = LauncherHandle::spawn(vec![first, missing], "", &hosts(2), LOGIN_TIMEOUT)
        .unwrap_err()
        .to_string();
    assert!(error.contains("/no/such/srun") && error.contains(" n1:"), "{error}");
    // It may have been killed before it wrote its process ID.
    let pid = std::fs::read_to_string(&marker).unwrap_or_default();
    assert!(pid.trim().is_empty() || !is_alive(pid.trim()));
    let _ = std::fs::remove_file(marker);
}

#[test]
fn concurrent_logins_are_limited() {
    let gate = std::env::temp_dir().join(format!("regatta-gate-{}", std::process::id()));
    let wait = format!("while [ ! -e {} ]; do sleep 0.05; done", gate.display());
    let script = format!("echo connected; {wait}; cat > /dev/null");
    let all = (0..100).map(|host| shell(host, &script)).collect();
    let forever = Duration::from_secs(86_400);
    let mut launchers = LauncherHandle::spawn(all, "bootstrap", &hosts(100), forever).unwrap();
    let connected = |launchers: &LauncherHandle| {
        (0..100).filter(|&h| !launchers.output_tail(h).is_empty()).count()
    };
    wait_for(|| (connected(&launchers) == 64).then_some(()));
    assert_eq!(lock(&launchers.state).running.iter().flatten().count(), 64);
    std::fs::write(&gate, "").unwrap();
    assert_eq!(exit_codes(&mut launchers, 100), vec![Some(0); 100]);
    assert_eq!(connected(&launchers), 100);
    std::fs::remove_file(gate).unwrap();
}

#[test]
fn hanging_logins_do_not_block_others_forever() {
    let mut all: Vec<LaunchCommand> = (0..64).map(|host| shell(host, "exec sleep 600")).collect();
    all.extend((64..100).map(|host| shell(host, "cat > /dev/null")));
    let moment = Duration::from_millis(10);
    let mut launchers = LauncherHandle::spawn(all, "bootstrap", &hosts(100), moment).unwrap();
    assert_eq!(exit_codes(&mut launchers, 36), vec![Some(0); 36]);
    launchers.shutdown(&[], Duration::ZERO, Duration::ZERO);
}

#[test]
fn later_launcher_that_cannot_be_executed_is_reported_as_exited() {
    let mut all: Vec<LaunchCommand> = (0..65).map(|host| shell(host, "cat > /dev/null")).collect();
    all[64].program = "/no/such/ssh".into();
    let mut launchers = LauncherHandle::spawn(all, "bootstrap", &hosts(65), LOGIN_TIMEOUT).unwrap();
    assert_eq!(exit_codes(&mut launchers, 65)[64], Some(127));
    let line = launchers.output_tail(64).remove(0);
    assert!(line.contains("/no/such/ssh"), "{line}");
}

#[test]
fn host_file_is_written_before_the_launcher_starts() {
    let file = std::env::temp_dir().join(format!("regatta-hosts-{}", std::process::id()));
    let mut cat = shell(0, &format!("cat {}", file.display()));
    cat.hostfile = Some((file.clone(), "n0:1\n".to_owned()));
    let mut launchers =
        LauncherHandle::spawn(vec![cat.clone()], "", &hosts(1), LOGIN_TIMEOUT).unwrap();
    exit_codes(&mut launchers, 1);
    assert_eq!(launchers.output_tail(0), ["n0:1"]);
    std::fs::remove_file(&file).unwrap();
    cat.hostfile = Some(("/no/such/dir/hosts".into(), String::new()));
    let error =
        LauncherHandle::spawn(vec![cat], "", &hosts(1), LOGIN_TIMEOUT).unwrap_err().to_string();
    assert!(error.contains("/no/such/dir/hosts"), "{error}");
}
