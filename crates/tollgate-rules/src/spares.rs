//! Spare memory: what a finished request used, kept by its thread for the next ones, so that a decision
//! allocates nothing.

use std::cell::RefCell;
use std::thread::LocalKey;

/// Spare values of one thread. Bound: [`SPARES_MAX`].
pub(crate) type Spares<T> = RefCell<Vec<T>>;

/// The most spare values of one kind and thread: a stride of requests, and some that are decided meanwhile.
const SPARES_MAX: usize = 32;

/// Takes a spare value, or makes one. A thread that ends has no spare values any more.
#[inline]
pub(crate) fn take_spare<T: Default>(spares: &'static LocalKey<Spares<T>>) -> T {
    let spare = spares.try_with(|spares| spares.borrow_mut().pop());
    spare.ok().flatten().unwrap_or_default()
}

/// Keeps a value for the next request of this thread.
#[inline]
pub(crate) fn keep_spare<T>(spares: &'static LocalKey<Spares<T>>, value: T) {
    // A thread that ends keeps nothing.
    let _ = spares.try_with(|spares| {
        let mut spares = spares.borrow_mut();
        if spares.len() < SPARES_MAX {
            spares.push(value);
        }
    });
}
