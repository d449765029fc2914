//! Asks every upstream of a block with `loop` whether it leads back here.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use forwarder::{Group, Upstream};
use rand::Rng as _;
use tokio::net::UdpSocket;
use tokio::runtime::Handle;
use wire::{Flags, Name};

use crate::house::{Block, House};
use crate::observe::Logger;
use crate::running::Running;

/// Probes in the background; what is found is logged and, for a loop, the upstream is marked down while it lasts.
pub(crate) fn start(handle: &Handle, house: &House, running: &Arc<Running>) {
    for block in &house.blocks {
        if block.pipeline.loop_watch().is_some() {
            handle.spawn(watch(block.clone(), Arc::downgrade(running)));
        }
    }
}

/// What a stanza's Corefile says, and which of it was found to lead back here.
struct Stanza {
    group: Arc<Group>,
    upstreams: Arc<Vec<Arc<Upstream>>>,
    looping: Vec<bool>,
}

async fn watch(block: Arc<Block>, running: Weak<Running>) {
    let (Some(watch), Some(dial)) = (block.pipeline.loop_watch(), block.pipeline.dial()) else { return };
    let Some(zone) = watch.zones().first().copied() else { return };
    let mut stanzas: Vec<Stanza> = dial.chain.groups().iter().map(Stanza::new).collect();
    loop {
        let mut probes = Vec::new();
        let mut targets = Vec::new();
        for upstream in stanzas.iter().flat_map(|stanza| stanza.upstreams.iter()) {
            let Some(name) = probe_name(&zone) else { return };
            probes.push((name, targets.len()));
            targets.push(upstream.clone());
        }
        watch.start(probes.clone());
        for (name, index) in &probes {
            // Over TLS a loop would need our own certificate. A probe that cannot be sent finds nothing.
            if targets[*index].tls().is_none() {
                let _ = send(&targets[*index], name).await;
            }
        }
        tokio::time::sleep(LISTEN).await;
        let seen = watch.stop();
        let Some(running) = running.upgrade() else { return };
        let mut first = 0;
        for stanza in &mut stanzas {
            let looping =
                (first..first + stanza.upstreams.len()).map(|index| seen.contains(&index)).collect();
            first += stanza.upstreams.len();
            stanza.apply(looping, &zone, &running.logger);
        }
        drop(running);
        if seen.is_empty() {
            return;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

impl Stanza {
    fn new(group: &Arc<Group>) -> Self {
        let upstreams = group.upstreams();
        Self { group: group.clone(), looping: vec![false; upstreams.len()], upstreams }
    }

    /// Whether the stanza still asks whom it was left with.
    fn is_ours(&self) -> bool {
        let left = self.upstreams.iter().zip(&self.looping).filter(|(_, looping)| !**looping);
        let now = self.group.upstreams();
        left.clone().count() == now.len()
            && left.zip(now.iter()).all(|((ours, _), theirs)| Arc::ptr_eq(ours, theirs))
    }

    /// Takes upstreams that lead back here out of the stanza, and puts back those that no longer do.
    fn apply(&mut self, looping: Vec<bool>, zone: &Name, logger: &Logger) {
        if looping == self.looping {
            return;
        }
        if !self.is_ours() {
            // A followed file has given the stanza other upstreams meanwhile: they are looked at from now on.
            *self = Self::new(&self.group);
            return;
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
        let keep = self.upstreams.iter().zip(&looping).filter(|(_, looping)| !**looping);
        if self.group.set_upstreams(keep.map(|(upstream, _)| upstream.clone()).collect()).is_ok() {
            self.looping = looping;
        }
    }
}

/// `<random>.<random>.ZONE`, as CoreDNS's; 128 bits that nobody outside can guess.
fn probe_name(zone: &Name) -> Option<Name> {
    let [first, second]: [u64; 2] = rand::rng().random();
    let zone = zone.to_string();
    Name::from_text(&format!("{first}.{second}.{}", zone.trim_start_matches('.'))).ok()
}

async fn send(upstream: &Upstream, name: &Name) -> std::io::Result<()> {
    let address = upstream.address();
    let source = upstream.source().unwrap_or_else(|| match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    });
    let socket = UdpSocket::bind((source, 0)).await?;
    socket.connect(address).await?;
    let mut query = Vec::with_capacity(64);
    query.extend_from_slice(&rand::rng().random::<u16>().to_be_bytes());
    query.extend_from_slice(&Flags::RD.to_be_bytes());
    query.extend_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0]);
    query.extend_from_slice(name.as_wire());
    query.extend_from_slice(&wire::RType::HINFO.0.to_be_bytes());
    query.extend_from_slice(&wire::Class::IN.0.to_be_bytes());
    socket.send(&query).await.map(drop)
}

/// How long a probe may be on its way: an upstream that needs longer to send it back has an answer's worth of delay.
const LISTEN: Duration = Duration::from_secs(2);
/// How long until an upstream that leads back here is tried again.
const AGAIN: Duration = Duration::from_secs(10);
