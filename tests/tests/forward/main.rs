//! The `forward` plugin against mock upstreams.

mod choice;
mod edns;
mod faults;
mod network;
mod own_addresses;
mod pending;
mod relay;

use tests::{Action, Asked};

fn good(asked: &Asked) -> Action {
    match asked.rtype {
        1 => Action::answer(&format!("{} 300 IN A 192.0.2.1", asked.name)),
        _ => Action::rcode(0),
    }
}
