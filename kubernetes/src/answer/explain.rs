//! Which objects decide about an answer, in words.

use std::net::IpAddr;

use wire::{Name, Query, RType};

use super::endpoints::{Order, chosen};
use super::external::{self, External, Meant};
use super::name::{self, Asked, Below};
use super::{Grammar, Pods, Recalled, Responder};
use crate::index::{At, Index, Service, named};
use kubernetes_api::objects::{self, ExternalAddress, Kind, Target};

impl Responder {
    /// What the cluster has for such a query: its services, slices and endpoints by name.
    pub fn explain(&self, index: &Index, query: &Query<'_>) -> String {
        let Some((_, zone)) = self.zone_of(&query.name) else { return "in none of its zones".to_owned() };
        let Some(grammar) = zone.grammar else { return self.explain_reverse(index, &query.name) };
        match name::read(&query.name, &zone.name, grammar) {
            Asked::Apex | Asked::Above | Asked::Version | Asked::NameServer => {
                "it is there in every cluster".to_owned()
            }
            Asked::Namespace(name) => match index.has_namespace(name) && self.shows(name) {
                true => format!("namespace {}", text(name)),
                false => format!("there is no namespace {}", text(name)),
            },
            Asked::Pod { namespace, .. } => match self.rules.pods {
                Pods::Disabled => "`pods disabled`: no pod has a name".to_owned(),
                Pods::Insecure => format!("`pods insecure`: any address, in namespace {}", text(namespace)),
                Pods::Verified => {
                    format!(
                        "`pods verified`: a pod of namespace {} with that address decides",
                        text(namespace)
                    )
                }
            },
            Asked::Service(below) => self.explain_service(index, grammar, &below, query.rtype),
            Asked::Nothing => "no name below a cluster's zone is of this form".to_owned(),
        }
    }

    fn explain_service(&self, index: &Index, grammar: Grammar, below: &Below<'_>, rtype: RType) -> String {
        let directory = if grammar.multicluster { &index.imports } else { &index.services };
        let what = if grammar.multicluster { "service import" } else { "service" };
        let place = directory.of_name(below.key);
        let found = named(&place, below.key).filter(|_| self.shows(below.namespace));
        let found = found.and_then(|entry| Some((&entry.service, entry.service.object.as_ref()?)));
        let Some((service, object)) = found else {
            return format!("there is no {what} {}", key_text(below.namespace, below.key));
        };
        let of = format!("{what} {}", object.key);
        if !service.namespace.is_known() {
            return format!("the namespace of {of} is not among those that are followed");
        }
        match &object.target {
            Target::ExternalName(to) => format!("{of} is the external name {to:?}"),
            Target::ClusterIps(addresses) if below.endpoint.is_none() => match below.means_any(&object.ports)
            {
                true => format!("{of} has {}", list(addresses.iter().map(IpAddr::to_string))),
                false => format!("{of} has no such port"),
            },
            Target::ClusterIps(_) | Target::Headless => {
                let ports = below.ports_of(service, false);
                let chosen = chosen(service, below, ports.as_ref(), Order::Label);
                let endpoints = list(chosen.filter(|at| answers(*at, rtype)).map(endpoint));
                match endpoints.is_empty() {
                    true => format!("{of} has no such ready endpoint{}", of_family(rtype)),
                    false => format!("{of}: {endpoints}"),
                }
            }
        }
    }

    fn explain_reverse(&self, index: &Index, name: &Name) -> String {
        let Some(address) = wire::reverse::address(name) else { return "it is no whole address".to_owned() };
        let services = index.services.of_address(address);
        let of = |service: &Service| match &service.object {
            Some(object) => service_of(object),
            None => "a service that is not there".to_owned(),
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
    /// What decides about such a query: services with where they are reached, or their slices and endpoints.
    pub fn explain(&self, of: &Responder, index: &Index, query: &Query<'_>) -> String {
        let Some((_, zone)) = self.zone_of(&query.name) else { return "in none of its zones".to_owned() };
        let shown = |namespace: &[u8]| of.shows(namespace) && index.has_namespace(namespace);
        match self.read(&query.name, zone) {
            external::Below::Apex | external::Below::Servers(_) => {
                "the zone itself, and where this server is reached".to_owned()
            }
            external::Below::Address(address) => {
                let services = external::reached_at(of, index, address);
                match list(services.iter().filter_map(|service| Some(service_of(service.object.as_ref()?)))) {
                    none if none.is_empty() => format!("no service is reached at {address}"),
                    services => format!("{services} is reached at {address}"),
                }
            }
            external::Below::Namespace(name) if shown(name) => format!("namespace {}", text(name)),
            external::Below::Service(meant) if shown(meant.namespace) => self.explain_service(index, &meant),
            external::Below::Namespace(name) | external::Below::Service(Meant { namespace: name, .. }) => {
                format!("there is no namespace {}", text(name))
            }
            external::Below::Nothing => "no name of a service is of this form".to_owned(),
        }
    }

    fn explain_service(&self, index: &Index, meant: &Meant<'_>) -> String {
        let found = index.services.get(meant.key);
        let Some((service, object)) = found.as_ref().and_then(|found| Some((found, found.object.as_ref()?)))
        else {
            return format!("there is no service {}", key_text(meant.namespace, meant.key));
        };
        let what = service_of(object);
        if self.is_by_endpoints(service, meant) {
            let ports = meant.ports_of(service);
            return match list(meant.endpoints(service, &ports, Order::Label).map(endpoint)) {
                none if none.is_empty() => format!("{what} has no such ready endpoint"),
                endpoints => format!("{what}: {endpoints}"),
            };
        }
        match service.external() {
            [] => format!("{what} is not reached from outside"),
            _ if meant.count(service.ports()) == 0 => format!("{what} has no such port"),
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

/// `NAMESPACE/NAME` of the labels of both in wire form.
fn key_text(namespace: &[u8], key: &[u8]) -> String {
    let name = key.get(1..).and_then(|key| key.get(..key.len().checked_sub(namespace.len() + 1)?));
    format!("{}/{}", text(namespace), text(name.unwrap_or_default()))
}

/// Whether an answer of that type may have an endpoint's address.
fn answers(at: At<'_>, rtype: RType) -> bool {
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

fn endpoint(at: At<'_>) -> String {
    format!("endpoint {} of slice {}", at.endpoint.address, at.slice.key)
}

impl Recalled {
    /// By what it is known, behind what is known.
    pub fn source(&self) -> String {
        match self.0 {
            Ok(Some(age)) => format!(", by the snapshot of {} s ago", age.as_secs()),
            _ => String::new(),
        }
    }

    /// That objects of a kind decide, and are not known.
    pub fn lacks(&self, kind: Kind) -> String {
        let why = self.0.as_ref().err().map(|why| format!(": {why}")).unwrap_or_default();
        format!("what the cluster has decides: its {kind} are not known here{why}")
    }
}

/// The first of them, and how many more there are.
fn list(all: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = all.collect();
    let shown = all.iter().take(MOST_SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(MOST_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn text(label: &[u8]) -> String {
    String::from_utf8_lossy(label).into_owned()
}

const MOST_SHOWN: usize = 4;
