//! The Corefile, addresses and upstream of these tests.

use std::time::Duration;

use tests::{Action, Upstream};

use crate::clients::{LOCAL, REMOTE};

pub(crate) const AT: &str = "127.0.0.1:53";
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn corefile(sockets: usize, upstream: &Upstream) -> String {
    format!(
        ".:53 {{\nbind 127.0.0.1\nmultisocket {sockets}\nhosts {{\n{LOCAL} x.example\nfallthrough\n}}\nforward . {}\n}}\n",
        upstream.word()
    )
}

pub(crate) fn upstream() -> Upstream {
    Upstream::start("127.0.0.53".parse().expect("an address"), |asked| {
        Action::answer(&format!("{} 300 IN A {REMOTE}", asked.name)).after(Duration::from_millis(20))
    })
}

/// The names in the store for one address with this number of sockets.
pub(crate) fn names(sockets: usize) -> Vec<String> {
    let mut names: Vec<_> = (0..sockets).map(|nth| format!("udp-{nth}-53-127.0.0.1")).collect();
    names.insert(0, "tcp-53-127.0.0.1".to_owned());
    names
}
