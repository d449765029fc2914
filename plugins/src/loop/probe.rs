//! Probes every upstream of a block with `loop` for loops.

use std::sync::{Arc, Weak};
use std::time::Duration;

use forwarder::{Stanza, Stanzas, Upstream};
use rand::Rng as _;
use wire::{Class, Flags, Name, RType};

use super::Watch;
use logging::Logger;

/// Probes a block's upstreams while `server` exists. Logs each loop, and removes the upstream from
/// its stanza while the loop lasts.
pub async fn probe(watch: Watch, chain: Arc<Stanzas>, server: Weak<impl Send + Sync>, logger: Logger) {
    let Some(zone) = watch.zones().first().copied() else { return };
    let mut stanzas: Vec<Watched> = chain.stanzas().iter().map(Watched::new).collect();
    loop {
        let mut probes = Vec::new();
        let mut targets = Vec::new();
        for upstream in stanzas.iter().flat_map(|watched| watched.upstreams.iter()) {
            let Some(name) = probe_name(&zone) else { return };
            probes.push((name, targets.len()));
            targets.push(upstream.clone());
        }
        watch.start(probes.clone());
        // A probe is sent several times, since datagrams may be lost.
        for pause in PAUSES {
            for (name, index) in &probes {
                // Over TLS a loop would need this server's certificate. A failure to send a probe
                // proves nothing.
                if targets[*index].tls().is_none() && !watch.has_seen(*index) {
                    let _ = send(&targets[*index], name).await;
                }
            }
            tokio::time::sleep(pause).await;
        }
        let seen = watch.stop();
        if server.strong_count() == 0 {
            return;
        }
        let (mut first, mut anew) = (0, false);
        for watched in &mut stanzas {
            let count = watched.upstreams.len();
            let seen: Vec<bool> = (first..first + count).map(|index| seen.contains(&index)).collect();
            first += count;
            let looping = watched.judge(&seen);
            anew |= watched.apply(looping, &zone, &logger);
        }
        if anew {
            continue;
        }
        if seen.is_empty() && !stanzas.iter().any(|watched| watched.looping.contains(&true)) {
            return;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// The upstreams of a stanza, with those found to be loops.
struct Watched {
    stanza: Arc<Stanza>,
    upstreams: Arc<Vec<Arc<Upstream>>>,
    looping: Vec<bool>,
    /// Consecutive rounds without a returned probe.
    clean: Vec<u32>,
}

impl Watched {
    fn new(stanza: &Arc<Stanza>) -> Self {
        let upstreams = stanza.upstreams();
        let count = upstreams.len();
        Self { stanza: stanza.clone(), upstreams, looping: vec![false; count], clean: vec![0; count] }
    }

    /// Returns which upstreams are loops, given which returned a probe in this round. An upstream
    /// is a loop from its first returned probe until [`CLEAN_ROUNDS`] rounds without one, since a
    /// lost probe proves nothing.
    fn judge(&mut self, seen: &[bool]) -> Vec<bool> {
        for (clean, seen) in self.clean.iter_mut().zip(seen) {
            *clean = if *seen { 0 } else { clean.saturating_add(1) };
        }
        let still = self.looping.iter().zip(&self.clean).map(|(was, clean)| *was && *clean < CLEAN_ROUNDS);
        seen.iter().zip(still).map(|(seen, still)| *seen || still).collect()
    }

    /// Whether the stanza's upstreams are unchanged.
    fn is_ours(&self, now: &[Arc<Upstream>]) -> bool {
        let left = self.upstreams.iter().zip(&self.looping).filter(|(_, looping)| !**looping);
        left.clone().count() == now.len()
            && left.zip(now.iter()).all(|((ours, _), theirs)| Arc::ptr_eq(ours, theirs))
    }

    /// Removes looping upstreams from the stanza, and restores those that no longer loop. Returns
    /// true if a followed file or name has changed the upstreams, which must be probed then.
    fn apply(&mut self, looping: Vec<bool>, zone: &Name, logger: &Logger) -> bool {
        let now = self.stanza.upstreams();
        if !self.is_ours(&now) {
            *self = Self::new(&self.stanza);
            return true;
        }
        if looping == self.looping {
            return false;
        }
        for (upstream, (was, is)) in self.upstreams.iter().zip(self.looping.iter().zip(&looping)) {
            let address = upstream.address();
            match (was, is) {
                (false, true) => logger.error(
                    Some("loop"),
                    &format!(
                        "Loop (127.0.0.1 -> {address}) detected for zone {:?}: the upstream {address} sends our queries \
                         back to us; it is not asked while it does",
                        zone.to_string()
                    ),
                ),
                (true, false) => {
                    logger.info(Some("loop"), &format!("the upstream {address} no longer sends our queries back"));
                }
                _ => {}
            }
        }
        let those = |wanted: bool| {
            let all = self.upstreams.iter().zip(&looping).filter(move |(_, looping)| **looping == wanted);
            all.map(|(upstream, _)| upstream.clone()).collect()
        };
        // If the upstreams have changed meanwhile, the next round probes them.
        if self.stanza.leave_out(&now, those(true), those(false)) {
            self.looping = looping;
        }
        false
    }
}

/// Returns `<random>.<random>.ZONE`, as in CoreDNS: 128 random bits.
fn probe_name(zone: &Name) -> Option<Name> {
    let [first, second]: [u64; 2] = rand::rng().random();
    let zone = zone.to_string();
    Name::from_text(&format!("{first}.{second}.{}", zone.trim_start_matches('.'))).ok()
}

/// Sends a probe. The answer is not read: only its return to this server matters.
async fn send(upstream: &Upstream, name: &Name) -> std::io::Result<()> {
    let socket = stub_resolver::udp_socket(upstream.address(), upstream.source()).await?;
    let query = stub_resolver::query(rand::random(), Flags::RD, name, RType::HINFO, Class::IN);
    socket.send(&query).await.map(drop)
}

/// A probe is sent before each of these pauses, in which its return is awaited; the last one of 2 s
/// covers a slow upstream.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_millis(500), Duration::from_secs(2)];
/// Interval of probing while an upstream loops.
const AGAIN: Duration = Duration::from_secs(10);
/// Rounds without a returned probe until an upstream is used again; each round sends three probes.
const CLEAN_ROUNDS: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use scene::Scene;

    #[test]
    fn upstreams_of_a_file_are_probed() {
        let scene = Scene::new(". {\nbind 127.0.0.1\nforward . 192.0.2.1 192.0.2.2\n}\n");
        let forwarding = scene.configuration.blocks[0].pipeline.forwarding().unwrap();
        let mut watched = Watched::new(&forwarding.chain.stanzas()[0]);
        let logger = &scene.shared.logger;
        assert!(!watched.apply(vec![true, false], &Name::ROOT, logger));
        let addresses =
            |of: &[Arc<Upstream>]| of.iter().map(|of| of.address().to_string()).collect::<Vec<_>>();
        assert_eq!(
            addresses(&watched.stanza.upstreams()),
            ["192.0.2.2:53"],
            "the first is not asked while it leads back"
        );
        assert_eq!(addresses(&watched.stanza.left_out()), ["192.0.2.1:53"], "and is not forgotten");
        assert!(!watched.apply(vec![true, false], &Name::ROOT, logger));
        let new = scene.shared.upstreams.upstream("192.0.2.3:53".parse().unwrap(), None, None);
        watched.stanza.set_upstreams(vec![new]).unwrap();
        // The old upstream still loops; the new one may do so as well.
        let before = Arc::new(Vec::new());
        assert!(!watched.stanza.leave_out(&before, Vec::new(), Vec::new()), "what a file brought is kept");
        assert_eq!(addresses(&watched.stanza.upstreams()), ["192.0.2.3:53"]);
        assert!(watched.stanza.left_out().is_empty());
        assert!(watched.apply(vec![true, false], &Name::ROOT, logger));
        assert_eq!(
            (addresses(&watched.upstreams), &watched.looping[..]),
            (vec!["192.0.2.3:53".to_owned()], &[false][..])
        );
    }

    #[test]
    fn looping_upstream_returns_after_three_rounds() {
        let spec = forwarder::StanzaSpec::default();
        let stanza = Arc::new(Stanza::new(spec, Vec::new(), Arc::default()).unwrap());
        let mut watched = Watched { looping: vec![false; 2], clean: vec![0; 2], ..Watched::new(&stanza) };
        let mut round = |first, second| {
            watched.looping = watched.judge(&[first, second]);
            [watched.looping[0], watched.looping[1]]
        };
        for (first, second, out) in [
            (false, false, [false, false]),
            (true, false, [true, false]),
            (false, false, [true, false]),
            (false, true, [true, true]),
            // One of six probes was returned: the count restarts.
            (true, false, [true, true]),
            (false, false, [true, true]),
            (false, false, [true, false]),
            (false, false, [false, false]),
            (false, false, [false, false]),
        ] {
            assert_eq!(round(first, second), out);
        }
    }
}
