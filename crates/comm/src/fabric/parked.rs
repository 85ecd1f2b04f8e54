//! Endpoints of shm stay open until the last one of this process is given up: those of one process
//! use each other's memory where it is mapped, and closing one takes it from under the others.

use std::sync::{Mutex, PoisonError};

use super::gear::Gear;

struct Lot {
    open: usize,
    left: Vec<Gear>,
}

static LOT: Mutex<Lot> = Mutex::new(Lot { open: 0, left: Vec::new() });

/// One more is used.
pub fn enter(gear: &Gear) {
    if gear.facts().entangled {
        LOT.lock().unwrap_or_else(PoisonError::into_inner).open += 1;
    }
}

/// One is not used any more: it is closed now, or with the last of them.
pub fn leave(gear: Gear) {
    if !gear.facts().entangled {
        return;
    }
    let mut lot = LOT.lock().unwrap_or_else(PoisonError::into_inner);
    lot.left.push(gear);
    lot.open = lot.open.saturating_sub(1);
    if lot.open == 0 {
        lot.left.clear();
    }
}
