//! Bugs on demand, in this crate's own tests alone: a query for `panic-PLACE.anything` panics there.

use std::panic::resume_unwind;
use std::sync::Mutex;

use wire::Name;

/// Panics if that is what `name` asks for.
pub(crate) fn at(place: &str, name: &Name) {
    if name.to_string().starts_with(&format!("panic-{place}.")) {
        panic();
    }
}

/// Panics in every turn of the workers of the server with this probe name, as long as it stands in [`SICK`].
pub(crate) fn each_turn(server: Name) {
    let sick = SICK.lock().unwrap_or_else(std::sync::PoisonError::into_inner).contains(&server);
    if sick {
        panic();
    }
}

/// Without a word: a backtrace, where the environment asks for one, takes seconds on a busy machine.
fn panic() -> ! {
    resume_unwind(Box::new("on demand"))
}

/// Servers of this process, by their probe names, whose workers panic in every turn.
pub(crate) static SICK: Mutex<Vec<Name>> = Mutex::new(Vec::new());
