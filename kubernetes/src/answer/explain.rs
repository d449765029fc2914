//! Text for `explain`: which objects decide about an answer.

use std::net::IpAddr;

use wire::{Name, Query, RType};

use super::endpoints::{Order, select};
use super::external::{self, External, ExternalService};
use super::name_parser::{self, ParsedName, ServiceName};
use super::{Grammar, Pods, Responder, SnapshotAge, external_target, pod};
use crate::index::{Index, Service, SliceEndpoint};
use kubernetes_api::objects::{self, ExternalAddress, Kind, Target};

impl Responder {
    /// Returns a text with the objects that decide about a query.
    pub fn explain(&self, index: &Index, query: &Query<'_>) -> String {
        let Some((_, zone)) = self.zone_of(&query.name) else { return "in none of its zones".to_owned() };
        let Some(grammar) = zone.grammar else { return self.explain_reverse(index, &query.name) };
        match name_parser::parse(&query.name, &zone.name, grammar) {
            ParsedName::Apex | ParsedName::Above | ParsedName::Version | ParsedName::NameServer => {
                "exists in every cluster".to_owned()
            }
            ParsedName::Namespace(name) => {
                self.no_namespace(index, name).unwrap_or_else(|| format!("namespace {}", text(name)))
            }
            ParsedName::Pod { address, namespace } => self.explain_pod(index, address, namespace),
            ParsedName::Service(below) => self.explain_service(index, grammar, below, query.rtype),
            ParsedName::Invalid => "not a valid name in a cluster's zone".to_owned(),
        }
    }

    /// Returns why a namespace has no answers.
    fn no_namespace(&self, index: &Index, name: &[u8]) -> Option<String> {
        if !self.shows(name) {
            Some(format!("namespace {} is not listed in `namespaces`", text(name)))
        } else if !index.has_namespace(name) {
            Some(format!("namespace {} does not exist", text(name)))
        } else {
            None
        }
    }

    fn explain_pod(&self, index: &Index, dashed: &[u8], namespace: &[u8]) -> String {
        if self.rules.pods == Pods::Disabled {
            return "`pods disabled`: pods have no names".to_owned();
        }
        let Some(address) = pod::address(dashed) else {
            return format!("{} is not an address", text(dashed));
        };
        if let Some(why) = self.no_namespace(index, namespace) {
            return why;
        }
        let namespace = text(namespace);
        match (self.rules.pods, index.pod_of(address, &namespace)) {
            (Pods::Verified, Some(pod)) => format!("`pods verified`: pod {} has {address}", pod.key),
            (Pods::Verified, None) => {
                format!("`pods verified`: no pod of namespace {namespace} has {address}")
            }
            (Pods::Insecure | Pods::Disabled, _) => {
                format!("`pods insecure`: any address, in namespace {namespace}")
            }
        }
    }

    fn explain_service(
        &self,
        index: &Index,
        grammar: Grammar,
        mut below: ServiceName<'_>,
        rtype: RType,
    ) -> String {
        if let Some(why) = self.no_namespace(index, below.namespace) {
            return why;
        }
        let directory = if grammar.multicluster { &index.imports } else { &index.services };
        let what = if grammar.multicluster { "service import" } else { "service" };
        let found = directory.get(below.key);
        let found = found.as_ref().and_then(|service| Some((service, service.object.as_ref()?)));
        let Some((service, object)) = found else {
            return format!("{what} {} does not exist", key_text(below.namespace, below.key));
        };
        let of = format!("{what} {}", object.key);
        match &object.target {
            Target::ClusterIps(_) | Target::ExternalName(_) if below.topology.is_some() => {
                format!("{of} is not headless, and has no names for a topology zone")
            }
            Target::ExternalName(to) => match (external_target(to), below.is_bare()) {
                (None, _) => format!("{of} is the external name {to:?}, which is not a valid name"),
                (Some(_), true) => format!("{of} is the external name {to:?}"),
                (Some(_), false) => {
                    format!("{of} is the external name {to:?}, and has no names below its own")
                }
            },
            Target::ClusterIps(_) if self.is_empty(service.has_endpoints()) => {
                format!("{of} has no ready endpoint, and `ignore empty_service` is set")
            }
            Target::ClusterIps(addresses) if below.endpoint.is_none() => {
                match below.matches_any(&object.ports) {
                    true => format!("{of} has {}", list(addresses.iter().map(IpAddr::to_string))),
                    false => format!("{of} has no matching port"),
                }
            }
            Target::ClusterIps(_) | Target::Headless => {
                let ports = below.ports_of(service, rtype == RType::SRV);
                let is_none = |below: &ServiceName<'_>| {
                    select(service, below, ports.as_ref(), Order::Label).next().is_none()
                };
                if below.topology.is_some_and(|topology| topology.prefer) && is_none(&below) {
                    below.topology = None;
                }
                if is_none(&below) {
                    let matching = if below.is_bare() { "" } else { "matching " };
                    return format!("{of} has no {matching}ready endpoint");
                }
                let chosen = select(service, &below, ports.as_ref(), Order::Label);
                match list(chosen.filter(|at| answers(*at, rtype)).map(endpoint)) {
                    none if none.is_empty() => {
                        format!("{of} has no matching ready endpoint{}", of_family(rtype))
                    }
                    endpoints => format!("{of}: {endpoints}"),
                }
            }
        }
    }

    fn explain_reverse(&self, index: &Index, name: &Name) -> String {
        let Some(address) = wire::reverse::address(name) else {
            return "not a complete reverse name".to_owned();
        };
        let services = index.services.of_address(address);
        let of = |service: &Service| match &service.object {
            Some(object) => service_of(object),
            None => "a service without an object".to_owned(),
        };
        if let Some(owner) = services.iter().find(|service| service.owns(address)) {
            return format!("{} has {address}", of(owner));
        }
        let all = services.iter().flat_map(|service| {
            service.of_address(address).map(|at| format!("{} of {}", endpoint(at), of(service)))
        });
        let words = list(all);
        if words.is_empty() { format!("no service and no endpoint has {address}") } else { words }
    }
}

impl External {
    /// Returns a text with the objects that decide about a query.
    pub fn explain(&self, of: &Responder, index: &Index, query: &Query<'_>) -> String {
        let Some((_, zone)) = self.zone_of(&query.name) else { return "in none of its zones".to_owned() };
        let shown = |namespace: &[u8]| of.shows(namespace) && index.has_namespace(namespace);
        match self.parse(&query.name, zone) {
            external::ParsedExternalName::Apex | external::ParsedExternalName::Servers(_) => {
                "the zone itself, with the addresses of this server".to_owned()
            }
            external::ParsedExternalName::Address(address) => {
                let services = external::reached_at(of, index, address);
                match list(services.iter().filter_map(|service| Some(service_of(service.object.as_ref()?)))) {
                    none if none.is_empty() => format!("no service is reached at {address}"),
                    services => format!("{services} is reached at {address}"),
                }
            }
            external::ParsedExternalName::Namespace(name) if shown(name) => {
                format!("namespace {}", text(name))
            }
            external::ParsedExternalName::Service(meant) if shown(meant.namespace) => {
                self.explain_service(index, &meant)
            }
            external::ParsedExternalName::Namespace(name)
            | external::ParsedExternalName::Service(ExternalService { namespace: name, .. }) => {
                format!("namespace {} does not exist", text(name))
            }
            external::ParsedExternalName::Invalid => "not a valid name of a service".to_owned(),
        }
    }

    fn explain_service(&self, index: &Index, meant: &ExternalService<'_>) -> String {
        let found = index.services.get(meant.key);
        let Some((service, object)) = found.as_ref().and_then(|found| Some((found, found.object.as_ref()?)))
        else {
            return format!("service {} does not exist", key_text(meant.namespace, meant.key));
        };
        let what = service_of(object);
        if self.is_by_endpoints(service, meant) {
            let ports = meant.ports_of(service, false);
            return match list(meant.endpoints(service, ports.as_ref(), Order::Label).map(endpoint)) {
                none if none.is_empty() => format!("{what} has no matching ready endpoint"),
                endpoints => format!("{what}: {endpoints}"),
            };
        }
        match service.external() {
            [] => format!("{what} has no external address"),
            _ if meant.count(service.ports()) == 0 => format!("{what} has no matching port"),
            places => format!("{what} is reached at {}", list(places.iter().map(place))),
        }
    }
}

fn place(place: &ExternalAddress) -> String {
    match place {
        ExternalAddress::Ip(address) => address.to_string(),
        ExternalAddress::Name(name) => format!("{name:?}"),
    }
}

fn service_of(object: &objects::Service) -> String {
    format!("service {}", object.key)
}

/// Returns `NAMESPACE/NAME` of a key.
fn key_text(namespace: &[u8], key: &[u8]) -> String {
    let name = key.get(1..).and_then(|key| key.get(..key.len().checked_sub(namespace.len() + 1)?));
    format!("{}/{}", text(namespace), text(name.unwrap_or_default()))
}

/// Whether an answer of a type may have the address of an endpoint.
fn answers(at: SliceEndpoint<'_>, rtype: RType) -> bool {
    match rtype {
        RType::A => at.endpoint.address.is_ipv4(),
        RType::AAAA => at.endpoint.address.is_ipv6(),
        _ => true,
    }
}

fn of_family(rtype: RType) -> &'static str {
    match rtype {
        RType::A => " with an IPv4 address",
        RType::AAAA => " with an IPv6 address",
        _ => "",
    }
}

fn endpoint(at: SliceEndpoint<'_>) -> String {
    format!("endpoint {} of slice {}", at.endpoint.address, at.slice.key)
}

impl SnapshotAge {
    /// Returns a suffix that names the snapshot.
    pub fn source(&self) -> String {
        match self.0 {
            Ok(Some(age)) => format!(", from the snapshot of {} s ago", age.as_secs()),
            _ => String::new(),
        }
    }

    /// Returns a text for an answer that depends on an unsynced kind.
    pub fn unsynced(&self, kind: Kind) -> String {
        let why = self.0.as_ref().err().map(|why| format!(": {why}")).unwrap_or_default();
        format!("depends on the cluster's {kind}, which are not known here{why}")
    }
}

/// Joins the first texts, and adds the number of the others.
fn list(all: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = all.collect();
    let shown = all.iter().take(MAX_LISTED).cloned().collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(MAX_LISTED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn text(label: &[u8]) -> String {
    String::from_utf8_lossy(label).into_owned()
}

const MAX_LISTED: usize = 4;
