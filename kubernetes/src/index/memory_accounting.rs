//! Estimates the memory of objects.

use std::sync::Arc;

use kubernetes_api::objects::{Endpoint, ExternalAddress, Object, ObjectKey, Port, Target};

/// Returns the key of an object.
pub(super) fn key_of(object: &Object) -> Arc<ObjectKey> {
    match object {
        Object::Service(service) => service.key.clone(),
        Object::Slice(slice) => slice.key.clone(),
        Object::Namespace(name) => Arc::new(ObjectKey { namespace: Box::default(), name: name.clone() }),
        Object::Pod(pod) => pod.key.clone(),
        Object::ServiceImport(import) => import.key.clone(),
    }
}

/// Returns an upper estimate of the memory of an object: its own bytes, those of its service, and
/// its entries in tables.
pub(super) fn bytes_of(object: &Object) -> usize {
    let key = key_of(object);
    let ports = |ports: &[Port]| ports.iter().map(|port| PART + port.name.len()).sum::<usize>();
    let addresses = |target: &Target| match target {
        Target::ClusterIps(addresses) => addresses.len() * ADDRESS,
        Target::ExternalName(name) => name.len(),
        Target::Headless => 0,
    };
    // The name is stored in the service and a table, the namespace in two more tables.
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
                names.into_iter().flatten().map(|name| ALLOCATION + name.len()).sum::<usize>()
            };
            let endpoints = slice.endpoints.iter().map(|endpoint| ENDPOINT + names(endpoint));
            // The first slice of a service creates its index entry, even before the Service object
            // arrives. Any slice may be the first, so each counts a whole service.
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

/// Bytes of an object with its key and table entries.
const OBJECT: usize = 416;
/// Bytes of an indexed service, with or without an object.
const SERVICE: usize = 320;
/// Bytes of a list element.
const PART: usize = 48;
const ADDRESS: usize = 128;
const ENDPOINT: usize = 192;
/// Two entries: with namespace and without.
const POD_ADDRESS: usize = 192;
/// Overhead of an allocation.
const ALLOCATION: usize = 12;

#[cfg(test)]
mod tests;
