//! Time until a change at the API is visible in the answers of both servers.

use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use super::api::{Api, Size};
use super::https::Connection;
use super::subject::{Started, question};
use load::clock::Clock;
use load::judge::Expect;

/// Times from the API's reply to the first answer with the change.
#[derive(Default)]
pub(super) struct Visible(Vec<Duration>);

impl Visible {
    /// Returns the quantile for this share of all changes.
    pub(super) fn quantile(&self, share: f64) -> Duration {
        let mut all = self.0.clone();
        all.sort_unstable();
        let rank = (all.len() as f64 * share).ceil() as usize;
        all.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }
}

/// A client of the API that changes an endpoint's address.
struct Changer {
    connection: Connection,
    slice: String,
}

impl Changer {
    fn new(api: &Api, size: Size) -> Result<Self> {
        Ok(Self { connection: api.access.open()?, slice: size.changed_slice() })
    }

    /// # Errors
    /// When the API refuses.
    fn change(&mut self, address: Ipv4Addr) -> Result<()> {
        let endpoints =
            json!({"endpoints": [{"addresses": [address.to_string()], "conditions": {"ready": true}}]});
        let form = "application/merge-patch+json";
        let (status, body) = self.connection.request("PATCH", &self.slice, form, &endpoints)?;
        ensure!(status == 200, "{}: {status} {}", self.slice, String::from_utf8_lossy(&body));
        Ok(())
    }
}

/// Changes an endpoint repeatedly, and queries both servers in turns until their answers have the
/// change; returns the times.
pub(super) fn changes(api: &Api, size: Size, started: &[Started; 2], count: u32) -> Result<[Visible; 2]> {
    let question = question(&size.changed())?;
    let mut changer = Changer::new(api, size)?;
    let mut all = [Visible::default(), Visible::default()];
    for number in 0..count {
        let address = address(number);
        changer.change(address)?;
        let clock = Clock::start();
        let mut seen = [None; 2];
        while seen.contains(&None) {
            // The server that is queried first alternates.
            for at in if number % 2 == 0 { [0, 1] } else { [1, 0] } {
                if seen[at].is_none() {
                    let probe = &started[at].probe;
                    probe.send(&question)?;
                    let is_right = probe.receive(&question, Expect::Address(address))?;
                    seen[at] = is_right.then(|| Duration::from_nanos(clock.now_ns()));
                }
            }
            ensure!(clock.now_ns() < SEEN_MAX.as_nanos() as u64, "{address} is not seen: {seen:?}");
        }
        for (all, seen) in all.iter_mut().zip(seen) {
            all.0.extend(seen);
        }
        thread::sleep(PAUSE);
    }
    Ok(all)
}

/// Returns a different address for each number.
pub(super) fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 250, 0, 0).to_bits() + number)
}

const SEEN_MAX: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);
