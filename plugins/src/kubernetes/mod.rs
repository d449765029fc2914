//! `kubernetes`: answers a cluster's zones from an index of the objects in the cluster's API.

mod cluster;
mod memory_limit;
mod metadata_provider;
mod metrics;
mod pod_search_path;
mod registry;
mod setup;
mod snapshot;
mod status;
mod sync_problem;

use std::net::IpAddr;
use std::sync::Arc;

use ::kubernetes::{AnswerOutcome, ClusterHandle, Responder, Rules, SnapshotSource as _};
use wire::{Class, Name, Proto, Query, Reply, ZoneRequest};

pub use self::registry::ClusterRegistry;
pub(crate) use self::setup::read;
pub use self::setup::{KubernetesSpec, keep_snapshots_apart, odd, unreachable};
pub use self::snapshot::SnapshotSpec;
pub use self::status::{ClusterStatus, KindStatus};
pub use self::sync_problem::SyncProblem;
use crate::kubernetes_zone;
use ::metrics::counters::ThreadCounters;
use cluster::Cluster;
use logging::metadata::Labels;
use metadata_provider::Published;
use plugin::Fallthrough;
use plugin::endpoint::Endpoint;
use plugin::search_path::SearchPaths;
use plugin::spec::{BuildContext, Explanation, Source, SourceSpec};
use plugin::zone_request::ZoneOutcome;
use plugin::{HostsGuard, Lookup, QueryContext};
use pod_search_path::PodPaths;

/// One block's view of a cluster.
pub struct Kubernetes {
    cluster: Arc<Cluster>,
    responder: Responder,
    fallthrough: Fallthrough,
}

impl SourceSpec for KubernetesSpec {
    fn zones(&self) -> &[Name] {
        &self.rules.zones
    }

    fn build(&self, context: &BuildContext<'_>) -> plugin::args::Result<Box<dyn Source>> {
        let rules = Rules { own: own_addresses(context.endpoints), ..self.rules.clone() };
        let cluster = context.reload_state.get::<ClusterRegistry>().cluster(self);
        let (index, responder) = (cluster.shared_index(), Responder::new(rules.clone()));
        let lent = ClusterHandle { index, responder, snapshot: cluster.clone() };
        // A block has only one `kubernetes`, so that neither value was set before.
        let _ = context.extensions.get().set(lent);
        if self.is_searched {
            let paths = PodPaths::new(cluster.clone(), self.rules.zones.clone());
            let _ = context.extensions.get::<Arc<dyn SearchPaths>>().set(Arc::new(paths));
        }
        let (responder, fallthrough) = (Responder::new(rules), self.fallthrough.clone());
        Ok(Box::new(Kubernetes { cluster, responder, fallthrough }))
    }

    fn labels(&self, context: &BuildContext<'_>) -> Option<Arc<dyn Labels>> {
        let cluster = context.reload_state.get::<ClusterRegistry>().cluster(self);
        Some(Arc::new(Published { cluster, responder: Responder::new(self.rules.clone()) }))
    }
}

impl Source for Kubernetes {
    #[inline]
    fn lookup<'h>(
        &'h self,
        context: &QueryContext<'_>,
        _: &mut HostsGuard<'h>,
        query: &Query<'_>,
        reply: &mut Reply<'_>,
        _: ThreadCounters<'_>,
    ) -> Lookup {
        if query.class != Class::IN {
            return Lookup::Pass;
        }
        let room = context.room(query);
        let index = self.cluster.index();
        match self.responder.answer(index, query, room, reply) {
            AnswerOutcome::NotInZones => Lookup::Pass,
            AnswerOutcome::Written => Lookup::Answer,
            AnswerOutcome::Follow => Lookup::FollowOrFail,
            AnswerOutcome::NoName(_) if self.fallthrough.through(&query.name) => Lookup::Pass,
            AnswerOutcome::NoName(zone) => {
                self.responder.deny(index, zone, query, reply);
                Lookup::Answer
            }
            // `fallthrough` is for names that do not exist. Whether this name exists is not known
            // yet, so that the query does not pass.
            AnswerOutcome::Unsynced(kind) => Lookup::Fail(kubernetes_zone::not_known_yet(kind)),
        }
    }

    fn of_zone(
        &self,
        request: &ZoneRequest<'_>,
        context: &QueryContext<'_>,
        _: &mut Reply<'_>,
    ) -> ZoneOutcome {
        if !request.is_transfer() {
            return ZoneOutcome::Pass;
        }
        // Over UDP the reply to a transfer is the SOA alone: the client retries over TCP.
        let soa_alone = context.proto == Proto::Udp;
        let name = &request.query.name;
        let transfer = self.responder.transfer(self.cluster.index(), name, request.serial(), soa_alone);
        kubernetes_zone::of_zone(transfer)
    }

    fn explain(&self, query: &Query<'_>) -> Explanation {
        if query.class != Class::IN {
            return Explanation::Passes(None);
        }
        let mut octets = Vec::new();
        let mut reply = Reply::start(&mut octets, query);
        let index = self.cluster.index();
        let recalled = self.cluster.load_snapshot();
        let why = self.responder.explain(index, query) + &recalled.source();
        match self.responder.answer(index, query, usize::from(u16::MAX), &mut reply) {
            AnswerOutcome::NotInZones => Explanation::Passes(None),
            AnswerOutcome::Written | AnswerOutcome::Follow => Explanation::Ends(why),
            AnswerOutcome::NoName(_) if self.fallthrough.through(&query.name) => {
                Explanation::Passes(Some(why))
            }
            AnswerOutcome::NoName(_) => Explanation::Ends(format!("NXDOMAIN: {why}")),
            AnswerOutcome::Unsynced(kind) => Explanation::Ends(recalled.unsynced(kind)),
        }
    }
}

/// Returns the addresses of a block with these endpoints, for NS records, without loopback and
/// link-local addresses.
fn own_addresses(endpoints: &[Endpoint]) -> Vec<IpAddr> {
    let mut own = Vec::new();
    for ip in endpoints.iter().map(|endpoint| endpoint.address.ip()) {
        if !ip.is_unspecified() {
            own.push(ip);
            continue;
        }
        // The block listens on the wildcard address: all addresses of this machine count.
        let all = node::interfaces().unwrap_or_default();
        own.extend(all.iter().flat_map(|interface| &interface.addresses).map(|address| address.ip));
    }
    own.retain(|address| !address.is_loopback() && !is_link_local(*address));
    own.sort_unstable();
    own.dedup();
    own
}

/// Whether an address belongs to one link only.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

#[cfg(test)]
mod tests;
