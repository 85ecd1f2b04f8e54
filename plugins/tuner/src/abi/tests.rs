//! Panics at the boundary, and functions of a plug-in without a table.

use std::cell::Cell;
use std::ptr::null_mut;

use regatta_plugin_abi::SUCCESS;

use super::*;
use crate::abi::v3::ncclTunerPlugin_v3;
use crate::abi::v4::ncclTunerPlugin_v4;
use crate::abi::v5::ncclTunerPlugin_v5;

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
    let mut calls = 0;
    let mut check = |result: NcclResult| {
        assert_eq!(result, SUCCESS);
        calls += 1;
    };
    let (mut costs, mut context, mut channels) = ([1.0f32; 21], null_mut(), 7);
    let table: *mut *mut f32 = costs.as_mut_ptr().cast();
    // SAFETY: NULL is allowed for all pointers.
    unsafe {
        check((ncclTunerPlugin_v3.init)(2, 1, None, null_mut()));
        check((ncclTunerPlugin_v3.init)(2, 1, None, &mut context));
        check((ncclTunerPlugin_v4.init)(2, 1, None, &mut context));
        check((ncclTunerPlugin_v5.init)(&mut context, 0, 2, 1, None, null_mut(), null_mut()));
        check((ncclTunerPlugin_v5.init)(null_mut(), 0, 2, 1, None, null_mut(), null_mut()));
        for table in [null_mut(), table] {
            let v3 = ncclTunerPlugin_v3.get_coll_info;
            check(v3(null_mut(), 4, 8, 1, table, 7, 3, &mut channels));
            for v4 in [ncclTunerPlugin_v4.get_coll_info, ncclTunerPlugin_v5.get_coll_info] {
                check(v4(null_mut(), 4, 8, 1, table, 7, 3, 0, &mut channels));
                check(v4(null_mut(), 4, 8, 1, table, 7, 3, 0, null_mut()));
            }
        }
        check((ncclTunerPlugin_v3.destroy)(null_mut()));
        check((ncclTunerPlugin_v4.destroy)(null_mut()));
        check((ncclTunerPlugin_v5.destroy)(null_mut()));
    }
    assert_eq!((costs, channels), ([1.0; 21], 7));
    assert!(context.is_null());
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
    assert_eq!(call_everything(), 18);
}
