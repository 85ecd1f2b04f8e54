//! Threads of vendor libraries stay in the child that loaded them. Without the test harness, because
//! that has several threads.

#![allow(clippy::unwrap_used, reason = "a test panics")]

use std::time::Duration;

use regatta_launch::forked::{run_in_child, thread_count};

fn start_thread() {
    std::thread::spawn(|| std::thread::sleep(Duration::from_secs(3600)));
}

fn main() {
    let parent = run_in_child(|| {
        start_thread();
        assert_eq!(thread_count(), 2);
        std::os::unix::process::parent_id().to_le_bytes().to_vec()
    });
    assert_eq!(parent.unwrap(), std::process::id().to_le_bytes());
    assert_eq!(thread_count(), 1);

    let large = run_in_child(|| vec![7; 1 << 20]).unwrap();
    assert_eq!(large.len(), 1 << 20);

    let crashed = run_in_child(|| std::process::abort()).unwrap_err().to_string();
    assert!(crashed.contains("wait status"), "{crashed}");
    std::panic::set_hook(Box::new(|_| ()));
    assert!(run_in_child(|| panic!("in the child")).is_err());

    // A fork next to another thread is a bug, which debug builds report.
    start_thread();
    let forked = std::panic::catch_unwind(|| run_in_child(Vec::new));
    assert_eq!(forked.is_err(), cfg!(debug_assertions));
}
