//! `DisplayFn`: a value whose text a function writes.
//!
//! `std::fmt::from_fn` does the same and needs a newer compiler than this crate does.

use std::fmt;

/// A value that is displayed by calling the function.
pub(crate) struct DisplayFn<F>(pub(crate) F);

impl<F: Fn(&mut fmt::Formatter<'_>) -> fmt::Result> fmt::Display for DisplayFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.0)(f)
    }
}
