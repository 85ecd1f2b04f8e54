//! Panics at the boundary.

use std::cell::Cell;

use regatta_plugin_abi::{SUCCESS, SYSTEM_ERROR};

use super::*;

thread_local! {
    static INJECTED: Cell<bool> = const { Cell::new(false) };
}

/// Panics inside the guard, if a test of this thread wants it.
pub fn panic_if_injected() {
    assert!(!INJECTED.get(), "injected");
}

#[test]
fn panics_and_errors_end_at_the_boundary() {
    let mut count = -1;
    INJECTED.set(true);
    // SAFETY: the pointers are valid or NULL, and no function gets further than the panic.
    unsafe {
        assert_eq!(devices(&mut count), SYSTEM_ERROR);
        assert_eq!(close_connection(std::ptr::null_mut()), SYSTEM_ERROR);
        assert_eq!(test(std::ptr::null_mut(), &mut count, std::ptr::null_mut()), SYSTEM_ERROR);
    }
    INJECTED.set(false);
    // SAFETY: NULL is an error of each function.
    unsafe {
        assert_eq!(
            test(std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut()),
            SYSTEM_ERROR
        );
        assert_eq!(
            accept(std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut()),
            SYSTEM_ERROR
        );
        assert_eq!(close_listen(std::ptr::null_mut()), SUCCESS);
    }
}
