//! Panics at the boundary, and functions of a plug-in that records nothing.

use std::cell::Cell;
use std::ptr::{null, null_mut};

use super::*;
use crate::abi::v3::ncclProfiler_v3;
use crate::abi::v4::ncclProfiler_v4;
use crate::abi::v5::ncclProfiler_v5;
use crate::abi::v6::ncclProfiler_v6;

thread_local! {
    static INJECT: Cell<bool> = const { Cell::new(false) };
    static INJECTED: Cell<u32> = const { Cell::new(0) };
}

/// Panics inside of the next functions of the boundary, if a test wants it.
pub(super) fn panic_if_injected() {
    if INJECT.get() {
        INJECTED.set(INJECTED.get() + 1);
        panic!("injected by a test");
    }
}

/// Calls every function of every table, with NULL for most pointers. Returns the number of calls.
fn call_everything() -> u32 {
    let context = std::ptr::without_provenance_mut(1);
    let mut calls = 0;
    let mut check = |result: NcclResult| {
        assert_eq!(result, SUCCESS);
        calls += 1;
    };
    macro_rules! events {
        ($table:expr) => {
            check(($table.start_event)(context, null_mut(), null()));
            check(($table.start_event)(null_mut(), &mut null_mut(), null()));
            check(($table.stop_event)(null_mut()));
            check(($table.record_event_state)(null_mut(), 22, null()));
            check(($table.finalize)(null_mut()));
        };
    }
    // SAFETY: NULL is allowed for all pointers.
    unsafe {
        check((ncclProfiler_v3.init)(null_mut(), null_mut()));
        check((ncclProfiler_v4.init)(null_mut(), null_mut(), null(), 0, 0, 0, 0, None));
        check((ncclProfiler_v5.init)(null_mut(), 0, null_mut(), null(), 0, 0, 0, None));
        check((ncclProfiler_v6.init)(null_mut(), 0, null_mut(), null(), 0, 0, 0, None));
        events!(ncclProfiler_v3);
        events!(ncclProfiler_v4);
        events!(ncclProfiler_v5);
        events!(ncclProfiler_v6);
    }
    calls
}

#[test]
fn no_panic_crosses_the_boundary() {
    INJECT.set(true);
    let calls = call_everything();
    INJECT.set(false);
    assert_eq!(INJECTED.get(), calls, "each function panicked inside");
}

#[test]
fn null_pointers_are_accepted() {
    assert_eq!(call_everything(), 24);
}

#[test]
fn levels_select_events() {
    let all = u64::MAX;
    assert_eq!(mask(Level::Operations, all) as u64 & (event::PROXY_OP | event::PROXY_STEP), 0);
    assert_eq!(mask(Level::Network, all) as u64 & event::PROXY_STEP, 0);
    assert_ne!(mask(Level::Network, all) as u64 & event::PROXY_OP, 0);
    assert_ne!(mask(Level::Steps, all) as u64 & event::PROXY_STEP, 0);
    assert_eq!(mask(Level::Steps, event::COLLECTIVE), event::COLLECTIVE as c_int);
}
