//! What objects take, and what they are known by.

use std::borrow::Cow;

use kubernetes_api::objects::{Endpoint, ExternalAddress, Object, ObjectKey, Port, Target};

pub(super) fn key_of(object: &Object) -> Cow<'_, ObjectKey> {
    Cow::Borrowed(match object {
        Object::Service(service) => &service.key,
        Object::Slice(slice) => &slice.key,
        Object::Namespace(name) => {
            return Cow::Owned(ObjectKey { namespace: Box::default(), name: name.clone() });
        }
        Object::Pod(pod) => &pod.key,
        Object::ServiceImport(import) => &import.key,
    })
}

/// What an object takes, about: its own octets, those of its name in a table or two, and of the places that lead to it.
pub(super) fn octets_of(object: &Object) -> usize {
    let key = key_of(object);
    let ports = |ports: &[Port]| ports.iter().map(|port| PART + port.name.len()).sum::<usize>();
    let addresses = |target: &Target| match target {
        Target::ClusterIps(addresses) => addresses.len() * ADDRESS,
        Target::ExternalName(name) => name.len(),
        Target::Headless => 0,
    };
    let own = match object {
        Object::Namespace(_) => 0,
        Object::Service(service) => {
            let name = |external: &ExternalAddress| match external {
                ExternalAddress::Ip(_) => ADDRESS,
                ExternalAddress::Name(name) => PART + name.len(),
            };
            let external = service.external.iter().map(name).sum::<usize>();
            addresses(&service.target) + ports(&service.ports) + external
        }
        Object::ServiceImport(import) => addresses(&import.target) + ports(&import.ports),
        Object::Slice(slice) => {
            let names = |endpoint: &Endpoint| {
                [&endpoint.hostname, &endpoint.pod].map(|name| name.as_ref().map_or(0, |name| name.len()))
            };
            let endpoint = |endpoint: &Endpoint| ENDPOINT + names(endpoint).into_iter().sum::<usize>();
            let import =
                slice.import.as_ref().map_or(0, |import| PART + import.service.len() + import.cluster.len());
            slice.service.len()
                + import
                + ports(&slice.ports)
                + slice.endpoints.iter().map(endpoint).sum::<usize>()
        }
        Object::Pod(pod) => {
            let labels = pod.labels.iter().map(|(name, value)| PART + name.len() + value.len());
            pod.addresses.len() * ADDRESS + labels.sum::<usize>()
        }
    };
    OBJECT + 2 * (key.namespace.len() + key.name.len()) + own
}

/// Of an object, its places in tables included; of what it has several of.
const OBJECT: usize = 512;
const PART: usize = 48;
const ADDRESS: usize = 128;
const ENDPOINT: usize = 192;
