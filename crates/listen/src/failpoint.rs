//! Failpoints for this crate's tests: a query for `panic-PLACE.anything` panics at that place.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::panic::resume_unwind;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use wire::{Name, Verdict, accept};

/// Panics if `name` selects this place.
pub(crate) fn at(place: &str, name: &Name) {
    if name.to_string().starts_with(&format!("panic-{place}.")) {
        panic();
    }
}

/// Panics if the query's name selects `packet`.
pub(crate) fn packet(gate: &Verdict<'_>) {
    if let Verdict::Pass(query) = gate {
        at("packet", &query.name);
    }
}

/// Panics if the name in `message` selects `place`, or selects `second` and was seen before.
pub(crate) fn within(message: &[u8], place: &str, second: &str) {
    let Verdict::Pass(query) = accept(message) else { return };
    at(place, &query.name);
    let seen_before = !SEEN.lock().unwrap_or_else(PoisonError::into_inner).insert(query.name.to_string());
    if seen_before {
        at(second, &query.name);
    }
}

/// Panics in every turn of the workers of the server with this probe name while it is in [`SICK`];
/// blocks while it is in [`HALTED`].
pub(crate) fn each_turn(server: Name) {
    *TURNS.lock().unwrap_or_else(PoisonError::into_inner).entry(server.to_string()).or_default() += 1;
    while HALTED.lock().unwrap_or_else(PoisonError::into_inner).contains(&server) {
        HALTS.lock().unwrap_or_else(PoisonError::into_inner).insert(server.to_string());
        std::thread::yield_now();
    }
    let sick = SICK.lock().unwrap_or_else(PoisonError::into_inner).contains(&server);
    if sick {
        panic();
    }
}

/// Panics without message: a backtrace, if the environment enables it, takes seconds on a busy
/// machine.
fn panic() -> ! {
    resume_unwind(Box::new("on demand"))
}

/// The number of turns that the workers of the server with this probe name have begun.
pub(crate) fn turns(server: &Name) -> u64 {
    let turns = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    turns.get(&server.to_string()).copied().unwrap_or_default()
}

/// Returns the start time of a transfer to this client: before `now` by the duration in
/// [`EARLIER`], so that tests need not wait.
pub(crate) fn began_earlier(client: IpAddr, now: Instant) -> Instant {
    let earlier = EARLIER.lock().unwrap_or_else(PoisonError::into_inner);
    let ago = earlier.filter(|(of, _)| *of == client).map(|(_, ago)| ago);
    now.checked_sub(ago.unwrap_or_default()).unwrap_or(now)
}

/// Whether a worker of this server, named as in [`HALTED`], has blocked.
pub(crate) fn is_halted(server: &Name) -> bool {
    HALTS.lock().unwrap_or_else(PoisonError::into_inner).contains(&server.to_string())
}

/// Servers of which a worker is blocked.
static HALTS: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);
static TURNS: LazyLock<Mutex<HashMap<String, u64>>> = LazyLock::new(Mutex::default);
/// Names seen by [`within`].
static SEEN: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);

/// Probe names of servers in this process; their workers block while the name is in the list.
pub(crate) static HALTED: Mutex<Vec<Name>> = Mutex::new(Vec::new());
/// Probe names of servers; their workers panic in every turn.
pub(crate) static SICK: Mutex<Vec<Name>> = Mutex::new(Vec::new());
/// A client, and how much earlier than now its transfers begin.
pub(crate) static EARLIER: Mutex<Option<(IpAddr, Duration)>> = Mutex::new(None);
