//! The plugins that answer from memory, and those for logs and metrics.

mod admin;
mod answers;
mod authentic;
mod autopath;
mod cache;
mod cancel;
mod dns64;
mod erratic;
mod hosts;
mod log;
mod nodata;
mod options;
mod scrape;
mod steps;
mod targets;
mod template;

use std::time::Duration;

use tests::{Action, Asked, Dns, Says, Upstream, ask, eventually};

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

/// Waits until an entry cached for a second before this call has expired: one cached during the
/// call, for the same time, has.
fn expire(dns: &Dns, upstream: &Upstream) {
    eventually("a name that is fetched again", Duration::from_secs(10), || {
        ask(dns.at, "later.example", "A");
        (upstream.count("later.example.") > 1).then_some(())
    });
}
