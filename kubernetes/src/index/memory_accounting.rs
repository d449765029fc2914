//! What objects take, and what they are known by.

use std::sync::Arc;

use kubernetes_api::objects::{Endpoint, ExternalAddress, Object, ObjectKey, Port, Target};

pub(super) fn key_of(object: &Object) -> Arc<ObjectKey> {
    match object {
        Object::Service(service) => service.key.clone(),
        Object::Slice(slice) => slice.key.clone(),
        Object::Namespace(name) => Arc::new(ObjectKey { namespace: Box::default(), name: name.clone() }),
        Object::Pod(pod) => pod.key.clone(),
        Object::ServiceImport(import) => import.key.clone(),
    }
}

/// What an object takes, about and not less: its own octets, what the service that it is of takes, and the places in tables
/// that lead to them.
pub(super) fn octets_of(object: &Object) -> usize {
    let key = key_of(object);
    let ports = |ports: &[Port]| ports.iter().map(|port| PART + port.name.len()).sum::<usize>();
    let addresses = |target: &Target| match target {
        Target::ClusterIps(addresses) => addresses.len() * ADDRESS,
        Target::ExternalName(name) => name.len(),
        Target::Headless => 0,
    };
    // Its name stands there, and in a table, and its namespace's in two more.
    let service = |name: &str| SERVICE + 2 * name.len() + 4 * key.namespace.len();
    let own = match object {
        Object::Namespace(_) => 0,
        Object::Service(object) => {
            let name = |external: &ExternalAddress| match external {
                ExternalAddress::Ip(_) => ADDRESS,
                ExternalAddress::Name(name) => PART + name.len(),
            };
            let external = object.external.iter().map(name).sum::<usize>();
            service(&key.name) + addresses(&object.target) + ports(&object.ports) + external
        }
        Object::ServiceImport(import) => {
            service(&key.name) + addresses(&import.target) + ports(&import.ports)
        }
        Object::Slice(slice) => {
            let names = |endpoint: &Endpoint| {
                let names = [&endpoint.hostname, &endpoint.pod];
                names.into_iter().flatten().map(|name| PIECE + name.len()).sum::<usize>()
            };
            let endpoints = slice.endpoints.iter().map(|endpoint| ENDPOINT + names(endpoint));
            // It may be the only one of its service, which needs no object to be kept.
            let of = |name: &str| if name.is_empty() { 0 } else { name.len() + service(name) };
            let import = slice.import.as_ref();
            let import = import.map_or(0, |import| PART + import.cluster.len() + of(&import.service));
            of(&slice.service) + import + ports(&slice.ports) + endpoints.sum::<usize>()
        }
        Object::Pod(pod) => {
            let labels = pod.labels.iter().map(|(name, value)| PART + name.len() + value.len());
            pod.addresses.len() * POD_ADDRESS + labels.sum::<usize>()
        }
    };
    OBJECT + 2 * (key.namespace.len() + key.name.len()) + own
}

/// Of an object with its name, its places in tables included.
const OBJECT: usize = 416;
/// Of what queries find of a service, whether it has an object or is only named by slices.
const SERVICE: usize = 320;
/// Of what an object has several of.
const PART: usize = 48;
const ADDRESS: usize = 128;
const ENDPOINT: usize = 192;
/// Each leads to its pod twice, by its namespace and without.
const POD_ADDRESS: usize = 192;
/// What an allocator keeps with each piece, or rounds it up by.
const PIECE: usize = 12;

#[cfg(test)]
mod tests;
