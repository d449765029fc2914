//! Another program removes our link or all its addresses: they are back within 2 s, and the server
//! answers there.

use std::time::Duration;

use tests::{Ask, eventually, isolated_steadily, run, skip, tool};

use super::clients::{ADDRESSES, answers_everywhere, at};
use super::lab::{Lab, NAME, US};

/// A link that is removed or set down and addresses that are flushed are back within 2 s.
#[test]
fn lost_links_and_flushed_addresses() {
    isolated_steadily(Duration::from_secs(120), || {
        if !tool("taken links", "nft") {
            return;
        }
        skip("taken links, by NetworkManager", "no test starts one; `ip` takes from a link what it would");
        let lab = Lab::new();
        let server = lab.serve(&["-host-resolver", "none"]);
        for ip in ADDRESSES {
            server.wait_for_log(&format!("queries to {ip} are answered here"), PATIENCE);
        }
        for taken in [
            "link del localdns",
            // Also removes the IPv6 addresses.
            "link set localdns down",
            "addr flush dev localdns",
            "-6 addr flush dev localdns",
            "link set localdns down",
            "link del localdns",
        ] {
            run("ip", &taken.split(' ').collect::<Vec<_>>());
            eventually(&format!("all of it after ip {taken}"), Duration::from_secs(2), || {
                is_whole().then_some(())?;
                ADDRESSES.iter().all(|ip| is_answered(ip)).then_some(())
            });
            answers_everywhere(US, US);
        }
    });
}

/// Whether our link is up and has every address.
pub(crate) fn is_whole() -> bool {
    let link = run("sh", &["-c", "ip -o link show dev localdns 2>&1; ip -o addr show dev localdns 2>&1"]);
    let is_up = link.lines().next().is_some_and(|line| line.contains("UP"));
    is_up && ADDRESSES.iter().all(|ip| link.contains(&format!(" {ip}/")))
}

fn is_answered(ip: &str) -> bool {
    let ask = Ask::new(NAME, "A").timeout(Duration::from_millis(250));
    [ask.clone(), ask.tcp()].iter().all(|ask| ask.try_of(at(ip)).is_ok_and(|reply| reply.short() == [US]))
}

const PATIENCE: Duration = Duration::from_secs(20);
