//! Counts what is looked at, for tests of what a query costs.

use std::cell::Cell;

/// Counts a look at an endpoint, a port or a place of a transfer.
pub(crate) fn looked() {
    LOOKS.set(LOOKS.get() + 1);
}

/// How many looks something takes.
pub(crate) fn looks_of(what: impl FnOnce()) -> usize {
    LOOKS.set(0);
    what();
    LOOKS.get()
}

thread_local! {
    static LOOKS: Cell<usize> = const { Cell::new(0) };
}
