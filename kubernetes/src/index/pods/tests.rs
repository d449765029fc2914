use proptest::prelude::*;

use super::*;
use crate::index::{Index, IndexedObject};
use crate::testing::{Cluster, key, pod, rules};
use kubernetes_api::settings::{PodWatch, WatchConfig};
use kubernetes_api::{Kind, Object, Sink};

const NAMESPACES: [&str; 3] = ["a", "a-b", "b"];
const ADDRESSES: [&str; 2] = ["10.0.0.1", "fd00::1"];

fn cluster() -> Cluster {
    let wants = WatchConfig { pods: Some(PodWatch::default()), ..WatchConfig::default() };
    let mut cluster = Cluster::of(&wants, rules("cluster.local"), []);
    cluster.writer.watching(Kind::Pod);
    cluster
}

fn name_of(number: usize) -> String {
    format!("{}/p{}", NAMESPACES[number % 3], number / 3)
}

/// A version of one of nine pods: which of two addresses it has, in which order, and whether they
/// are certain. `None` deletes it.
fn step() -> impl Strategy<Value = (usize, Option<(usize, bool)>)> {
    (0..9_usize, proptest::option::weighted(0.7, (0..5_usize, proptest::bool::weighted(0.2))))
}

fn shown(index: &Index) -> Vec<(String, Option<String>, Vec<bool>)> {
    let of = |address: &&str| {
        let address = address.parse().unwrap();
        let certain = index.certain_pod(address).map(|pod| pod.key.namespace.to_string());
        let namespaces = NAMESPACES.map(|namespace| index.pod_of(address, namespace).is_some());
        (address.to_string(), certain, namespaces.to_vec())
    };
    ADDRESSES.iter().map(of).collect()
}

fn expected(pods: &BTreeMap<usize, Pod>) -> Vec<(String, Option<String>, Vec<bool>)> {
    let of = |address: &&str| {
        let address: IpAddr = address.parse().unwrap();
        let here: Vec<&Pod> = pods.values().filter(|pod| pod.addresses.contains(&address)).collect();
        let namespaces =
            NAMESPACES.map(|namespace| here.iter().any(|pod| *pod.key.namespace == *namespace)).to_vec();
        let is_one = namespaces.iter().filter(|is_there| **is_there).count() == 1;
        let certain = is_one && here.iter().all(|pod| !pod.host_network);
        let certain = certain.then(|| here[0].key.namespace.to_string());
        (address.to_string(), certain, namespaces)
    };
    ADDRESSES.iter().map(of).collect()
}

proptest! {
    // Each case makes several clusters.
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The representatives in the index, and in a snapshot, yield the same answers as all pods.
    #[test]
    fn indexed_pods_equal_all_pods(steps in proptest::collection::vec(step(), 1..60)) {
        let (mut cluster, mut pods) = (cluster(), BTreeMap::new());
        for (number, change) in steps {
            let at = name_of(number);
            match change {
                Some((addresses, host_network)) => {
                    let addresses = ["", "10.0.0.1", "fd00::1", "10.0.0.1 fd00::1", "fd00::1 10.0.0.1"][addresses];
                    let Object::Pod(own) = pod(&at, addresses) else { unreachable!("a pod") };
                    let own = Pod { host_network, ..own };
                    pods.insert(number, own.clone());
                    cluster.writer.apply(Object::Pod(own));
                }
                None => {
                    pods.remove(&number);
                    cluster.writer.delete(Kind::Pod, key(&at));
                }
            }
            prop_assert_eq!(shown(&cluster.index), expected(&pods));
        }
        let mut kept = Vec::new();
        cluster.index.each(&mut |known| if let IndexedObject::Pod(pod) = known { kept.push(Object::Pod(pod.clone())) });
        prop_assert!(kept.len() <= 6, "one for each address and namespace");
        let again = self::cluster();
        let mut writer = again.writer;
        kept.into_iter().for_each(|pod| writer.apply(pod));
        let namespaces = |index: &Index| shown(index).into_iter().map(|(.., there)| there).collect::<Vec<_>>();
        prop_assert_eq!(namespaces(&again.index), namespaces(&cluster.index));
    }
}

#[test]
fn shared_address_copies_one_bucket() {
    const MANY: usize = 3_000;
    let mut cluster = cluster();
    let stores = |cluster: &Cluster| cluster.index.pods.stores();
    let before = stores(&cluster);
    for number in 0..MANY {
        cluster.writer.apply(pod(&format!("a/p{number:05}"), "10.0.0.1"));
    }
    let hash = hash_of_address("10.0.0.1".parse().unwrap());
    assert_eq!(stores(&cluster) - before, 1);
    // In distinct namespaces, with entries of their own.
    for number in 0..MANY {
        cluster.writer.apply(pod(&format!("n{number:05}/p"), "10.0.0.1"));
    }
    assert!(stores(&cluster) - before <= MANY + 2);
    assert_eq!(cluster.index.pods.of(hash).iter().count(), 1);
    for number in 0..MANY {
        cluster.writer.delete(Kind::Pod, key(&format!("n{number:05}/p")));
    }
    assert_eq!(
        cluster.index.certain_pod("10.0.0.1".parse().unwrap()).map(|pod| pod.key.to_string()),
        Some("a/p00000".into())
    );
}
