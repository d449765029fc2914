//! What goes wrong on a node: clients that mean harm, too much of everything, a machine that stands still, attacks that other servers fell to.

mod advisories;
mod clients;
mod load;
mod machine;
mod memory;
mod scrapers;
mod slow;
mod upstreams;

use tests::{Action, Asked};

/// 192.0.2.1 for every name.
fn good(asked: &Asked) -> Action {
    Action::answer(&format!("{} 300 IN A 192.0.2.1", asked.name))
}
