//! Faults on a node: hostile clients, overload, a stalled machine, and attacks that succeeded
//! against other servers.

mod advisories;
mod clients;
mod load;
mod machine;
mod memory;
mod scrapers;
mod slow;
mod upstreams;

use tests::{Action, Asked};

/// Answers 192.0.2.1 to every name.
fn good(asked: &Asked) -> Action {
    Action::answer(&format!("{} 300 IN A 192.0.2.1", asked.name))
}
