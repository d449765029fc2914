//! Counts examined items, for tests of the cost of a query.

use std::cell::Cell;

/// Counts an examined endpoint, port or item of a transfer.
pub(crate) fn count() {
    COUNT.set(COUNT.get() + 1);
}

/// Returns the number of items that `f` examines.
pub(crate) fn count_of(f: impl FnOnce()) -> usize {
    COUNT.set(0);
    f();
    COUNT.get()
}

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}
