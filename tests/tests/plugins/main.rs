//! The plugins that answer from memory, and those that tell what happens.

mod admin;
mod answers;
mod around;
mod autopath;
mod cache;
mod hosts;
mod log;
mod options;
mod scrape;
mod template;

use tests::{Action, Asked, Says};

const SOA: &str = "example. 300 IN SOA ns.example. host.example. 1 7200 900 86400 20";

fn good(asked: &Asked) -> Action {
    match asked.rtype {
        1 => Action::answer(&format!("{} 300 IN A 192.0.2.1", asked.name)),
        _ => Action::Reply(Says::nodata(SOA)),
    }
}

fn short_lived(asked: &Asked) -> Action {
    Action::answer(&format!("{} 1 IN A 192.0.2.1", asked.name))
}
