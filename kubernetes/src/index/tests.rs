use std::collections::BTreeMap;

use proptest::prelude::*;

use super::ServiceIndex;
use crate::testing::*;
use kubernetes_api::settings::{PodWatch, WatchConfig, WatchError};
use kubernetes_api::{Kind, Object, ObjectKey, Sink};

/// An event of the API.
#[derive(Debug, Clone)]
enum Step {
    Apply(usize),
    Delete(usize),
    /// A complete list of these objects.
    List(Vec<usize>),
    /// A list that breaks off after these objects.
    Broken(Vec<usize>),
    /// A batch of changes: whether an object exists, and which.
    Together(Vec<(bool, usize)>),
}

/// A few objects in several versions, with common names and addresses.
fn pool() -> Vec<Object> {
    let mut pool = vec![namespace("a"), namespace("b")];
    for at in ["a/x", "b/x"] {
        pool.extend([
            service(at, "10.0.0.1", "http:80/tcp"),
            service(at, "10.0.0.2 fd00::2", ""),
            service(at, "None", "http:80/tcp"),
            service(at, "to example.net", ""),
        ]);
    }
    for at in ["a/one", "a/two", "b/one"] {
        pool.extend([
            slice(at, "x", "10.1.0.1=h 10.1.0.2", "http:80/tcp"),
            slice(at, "x", "10.1.0.2=h", "dns:53/udp"),
            slice(at, "y", "10.1.0.1", ""),
            slice(at, "", "10.1.0.3", ""),
        ]);
    }
    pool
}

fn key_of(object: &Object) -> (Kind, ObjectKey) {
    let key = match object {
        Object::Service(service) => (*service.key).clone(),
        Object::Slice(slice) => (*slice.key).clone(),
        Object::Namespace(name) => key(name),
        Object::Pod(pod) => (*pod.key).clone(),
        Object::ServiceImport(import) => (*import.key).clone(),
    };
    (object.kind(), key)
}

const KINDS: [Kind; 3] = [Kind::Service, Kind::Slice, Kind::Namespace];

/// Applies a step to the index and to the model.
fn step(
    cluster: &mut Cluster,
    model: &mut BTreeMap<(Kind, ObjectKey), Object>,
    pool: &[Object],
    step: &Step,
) {
    let writer = &mut cluster.writer;
    match step {
        Step::Apply(number) => {
            writer.apply(pool[*number].clone());
            model.insert(key_of(&pool[*number]), pool[*number].clone());
        }
        Step::Delete(number) => {
            let (kind, key) = key_of(&pool[*number]);
            writer.delete(kind, key.clone());
            model.remove(&(kind, key));
        }
        Step::Together(changes) => {
            KINDS.into_iter().for_each(|kind| cluster.writer.begin_batch(kind));
            for (is_there, number) in changes {
                let one = if *is_there { Step::Apply(*number) } else { Step::Delete(*number) };
                self::step(cluster, model, pool, &one);
            }
            KINDS.into_iter().for_each(|kind| cluster.writer.end_batch(kind));
        }
        Step::List(numbers) | Step::Broken(numbers) => {
            let is_whole = matches!(step, Step::List(_));
            KINDS.into_iter().for_each(|kind| writer.begin(kind));
            if is_whole {
                model.clear();
            }
            for number in numbers {
                writer.apply(pool[*number].clone());
                model.insert(key_of(&pool[*number]), pool[*number].clone());
            }
            KINDS.into_iter().for_each(|kind| match is_whole {
                true => writer.complete(kind),
                false => writer.failed(kind, &WatchError::Silent(std::time::Duration::from_secs(150))),
            });
        }
    }
}

fn questions() -> Vec<String> {
    let mut questions = Vec::new();
    for namespace in ["a", "b"] {
        questions.push(format!("{namespace}.svc.cluster.local A"));
        for below in ["", "h.", "10-1-0-1.", "10-1-0-2.", "_http._tcp.", "_dns._udp."] {
            for service in ["x", "y"] {
                for rtype in ["A", "AAAA", "SRV", "CNAME"] {
                    questions.push(format!("{below}{service}.{namespace}.svc.cluster.local {rtype}"));
                }
            }
        }
    }
    for last in ["1.0.0.10", "2.0.0.10", "1.0.1.10", "2.0.1.10", "3.0.1.10"] {
        questions.push(format!("{last}.in-addr.arpa PTR"));
    }
    questions
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let number = 0..pool().len();
    let numbers = proptest::collection::vec(number.clone(), 0..12);
    let step = prop_oneof![
        6 => number.clone().prop_map(Step::Apply),
        3 => number.clone().prop_map(Step::Delete),
        2 => proptest::collection::vec((any::<bool>(), number), 0..12).prop_map(Step::Together),
        1 => numbers.clone().prop_map(Step::List),
        1 => numbers.prop_map(Step::Broken),
    ];
    proptest::collection::vec(step, 1..40)
}

fn fresh() -> Cluster {
    Cluster::of(&wants(), zones(), [])
}

fn wants() -> WatchConfig {
    WatchConfig { endpoints: true, ..WatchConfig::default() }
}

fn zones() -> crate::Rules {
    rules("cluster.local in-addr.arpa")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Answers do not depend on earlier events, and no memory of them is left.
    #[test]
    fn answers_equal_a_fresh_index(
        steps in steps(),
        is_known in any::<bool>(),
    ) {
        let (pool, mut model) = (pool(), BTreeMap::new());
        let mut cluster = if is_known { fresh() } else { Cluster::new(&wants(), zones()) };
        for one in &steps {
            step(&mut cluster, &mut model, &pool, one);
        }
        // An empty list.
        for kind in KINDS.into_iter().filter(|_| !is_known) {
            cluster.writer.begin(kind);
            let objects = model.values().filter(|object| object.kind() == kind);
            objects.for_each(|object| cluster.writer.apply(object.clone()));
            cluster.writer.complete(kind);
        }
        let mut plain = fresh();
        // In reverse order.
        model.values().rev().for_each(|object| plain.writer.apply(object.clone()));
        for question in questions() {
            let [seen, expected] = [&cluster, &plain].map(|cluster| cluster.ask(&question));
            prop_assert_eq!(seen, expected, "{}", question);
        }
        let sizes = |cluster: &Cluster| {
            let Cluster { index, .. } = cluster;
            let services = &index.services;
            let mut counts = [0, 0, 0, services.entries.count()];
            services.by_name.each(|_| counts[0] += 1);
            services.by_address.each(|_| counts[1] += 1);
            index.namespaces.each(|_| counts[2] += 1);
            counts
        };
        prop_assert_eq!(sizes(&cluster), sizes(&plain));
        for (_, key) in model.keys() {
            KINDS.into_iter().for_each(|kind| cluster.writer.delete(kind, key.clone()));
        }
        prop_assert_eq!(sizes(&cluster), [0; 4]);
        prop_assert!(cluster.writer.is_empty());
    }
}

/// A change copies nothing that grows with the cluster, except for the removal of a namespace with
/// services.
#[test]
fn change_replaces_own_buckets_only() {
    const SERVICES: usize = 200;
    let service_of =
        |number: usize, ports: &str| service(&format!("a/s{number}"), &format!("10.96.0.{number}"), ports);
    let slice_of = |number: usize, endpoints: &str| {
        let endpoints: Vec<_> =
            endpoints.split(' ').map(|last| format!("10.{}.0.{last}", number + 1)).collect();
        slice(&format!("a/s{number}-1"), &format!("s{number}"), &endpoints.join(" "), "http:80/tcp")
    };
    let pod_of = |number: usize, addresses: &str| {
        let addresses = addresses.split(' ').map(|last| format!("10.{}.0.{last}", number + 1));
        pod(&format!("a/p{number}"), &addresses.collect::<Vec<_>>().join(" "))
    };
    let all = (0..SERVICES)
        .flat_map(|number| [service_of(number, ""), slice_of(number, "1 2 3"), pod_of(number, "1 2")]);
    let wants = WatchConfig { endpoints: true, pods: Some(PodWatch::default()), ..WatchConfig::default() };
    let objects = all.chain(["a", "b"].map(namespace));
    let mut cluster = Cluster::of(&wants, rules("cluster.local in-addr.arpa"), objects);
    let gone = |object: Object| (object, false);
    let applied = |object: Object| (object, true);
    // Replaced: inline services, services by name, by address, namespaces, pods.
    let rows: [(&str, (Object, bool), [usize; 5]); 17] = [
        ("an endpoint is replaced", applied(slice_of(7, "1 2 4")), [0, 1, 2, 0, 0]),
        ("an unchanged slice", applied(slice_of(7, "1 2 4")), [0; 5]),
        ("an endpoint is added", applied(slice_of(7, "1 2 3 4")), [0, 1, 1, 0, 0]),
        ("a slice goes", gone(slice_of(7, "1")), [2, 1, 4, 0, 0]),
        ("and is added", applied(slice_of(7, "1")), [2, 1, 1, 0, 0]),
        ("a slice without a service", applied(slice("a/x-1", "x", "10.250.0.1", "")), [0, 1, 1, 0, 0]),
        ("other ports", applied(service_of(7, "http:80/tcp")), [0, 1, 0, 0, 0]),
        ("unchanged", applied(service_of(7, "http:80/tcp")), [0; 5]),
        ("another address", applied(service("a/s7", "10.97.0.1", "")), [2, 1, 2, 0, 0]),
        ("it goes", gone(service_of(7, "")), [1, 1, 1, 0, 0]),
        ("a namespace is added", applied(namespace("c")), [0, 0, 0, 1, 0]),
        ("unchanged", applied(namespace("c")), [0; 5]),
        ("one goes in which services lie", gone(namespace("a")), [199, 0, 0, 1, 0]),
        ("another address of a pod", applied(pod_of(7, "1 3")), [0, 0, 0, 0, 3]),
        ("unchanged", applied(pod_of(7, "1 3")), [0; 5]),
        ("a pod is terminating", applied(terminating(pod_of(7, "1 3"))), [0, 0, 0, 0, 2]),
        ("it goes", gone(pod_of(7, "1 3")), [0, 0, 0, 0, 2]),
    ];
    let stores = |cluster: &Cluster| {
        let index = &cluster.index;
        let ServiceIndex { entries, by_name, by_address } = &index.services;
        let [namespaces, pods] = [index.namespaces.stores(), index.pods.stores()];
        [entries.stores(), by_name.stores(), by_address.stores(), namespaces, pods]
    };
    for (what, (object, is_there), expected) in rows {
        let before = stores(&cluster);
        match is_there {
            true => cluster.writer.apply(object),
            false => {
                let (kind, key) = key_of(&object);
                cluster.writer.delete(kind, key);
            }
        }
        let after = stores(&cluster);
        let replaced: Vec<_> = after.iter().zip(before).map(|(after, before)| after - before).collect();
        assert_eq!(replaced, expected, "{what}");
    }
}

#[test]
fn inline_services_need_known_namespaces() {
    let objects = [
        namespace("a"),
        service("a/x", "10.96.0.1", ""),
        service("b/x", "10.96.0.2", ""),
        import("a/y", "10.112.0.1", ""),
    ];
    let wants = WatchConfig { endpoints: true, imports: true, ..WatchConfig::default() };
    let mut cluster = Cluster::of(&wants, rules("cluster.local"), objects);
    let counts = |cluster: &Cluster| {
        [&cluster.index.services, &cluster.index.imports].map(|directory| directory.entries.count())
    };
    assert_eq!(counts(&cluster), [1, 1]);
    cluster.writer.delete(Kind::Namespace, key_of(&namespace("a")).1);
    assert_eq!(counts(&cluster), [0, 0]);
    assert_eq!(cluster.ask("x.a.svc.cluster.local A"), "NXDOMAIN cluster.local.");
    cluster.writer.apply(namespace("a"));
    assert_eq!(counts(&cluster), [1, 1]);
    cluster.writer.begin(Kind::Namespace);
    ["a", "b"].into_iter().for_each(|name| cluster.writer.apply(namespace(name)));
    assert_eq!(cluster.ask("x.b.svc.cluster.local A"), "A 10.96.0.2");
    assert_eq!(counts(&cluster), [1, 1], "a list replaces once");
    cluster.writer.complete(Kind::Namespace);
    assert_eq!(counts(&cluster), [2, 1]);
    cluster.writer.begin(Kind::Namespace);
    cluster.writer.apply(namespace("b"));
    cluster.writer.complete(Kind::Namespace);
    assert_eq!(counts(&cluster), [1, 0]);
}

#[test]
fn batched_slices_rebuild_service_once() {
    let mut cluster = fresh();
    let own = [namespace("a"), service("a/x", "None", ""), slice("a/x-0", "x", "10.1.0.1", "")];
    own.into_iter().for_each(|object| cluster.writer.apply(object));
    let before = cluster.index.changes();
    cluster.writer.begin_batch(Kind::Slice);
    for number in 0..20 {
        let name = format!("a/x-{}", number % 5);
        cluster.writer.apply(slice(&name, "x", &format!("10.1.1.{number}"), ""));
    }
    cluster.writer.delete(Kind::Slice, key("a/x-4"));
    assert_eq!(cluster.ask("x.a.svc.cluster.local A"), "A 10.1.0.1", "they are not put in one by one");
    cluster.writer.end_batch(Kind::Slice);
    assert_eq!(cluster.ask("x.a.svc.cluster.local A"), "A 10.1.1.15, A 10.1.1.16, A 10.1.1.17, A 10.1.1.18");
    assert_eq!(cluster.index.changes() - before, 1);
    cluster.writer.end_batch(Kind::Slice);
    assert_eq!(cluster.index.changes() - before, 1, "nothing more was at hand");
    cluster.writer.apply(slice("a/x-0", "x", "10.1.2.1", ""));
    assert!(cluster.ask("x.a.svc.cluster.local A").ends_with("A 10.1.2.1"), "a change alone is seen at once");
}

#[test]
fn certain_pod_has_its_address_alone() {
    let wants = WatchConfig { pods: Some(PodWatch::default()), ..WatchConfig::default() };
    let with =
        |at: &str, addresses: &str, change: fn(&mut kubernetes_api::objects::Pod)| match pod(at, addresses) {
            Object::Pod(mut pod) => {
                change(&mut pod);
                Object::Pod(pod)
            }
            other => other,
        };
    let as_it_is: fn(&mut kubernetes_api::objects::Pod) = |_| {};
    let rows: &[(&str, Vec<Object>, Option<&str>)] = &[
        ("nobody", vec![], None),
        ("one", vec![with("a/x", "10.0.0.1 fd00::1", as_it_is)], Some("a")),
        ("its other family", vec![with("a/x", "fd00::1 10.0.0.1", as_it_is)], Some("a")),
        ("another", vec![with("a/x", "10.0.0.2", as_it_is)], None),
        ("its node's", vec![with("a/x", "10.0.0.1", |pod| pod.host_network = true)], None),
        ("not running yet", vec![with("a/x", "10.0.0.1", |pod| pod.running = false)], None),
        ("about to be deleted", vec![with("a/x", "10.0.0.1", |pod| pod.terminating = true)], None),
        (
            "two of one namespace",
            vec![with("a/x", "10.0.0.1", as_it_is), with("a/y", "10.0.0.1", as_it_is)],
            Some("a"),
        ),
        (
            "two of two namespaces",
            vec![with("a/x", "10.0.0.1", as_it_is), with("b/y", "10.0.0.1", as_it_is)],
            None,
        ),
        (
            "one that has ended and its successor",
            vec![with("a/x", "10.0.0.1", |pod| pod.terminating = true), with("b/y", "10.0.0.1", as_it_is)],
            None,
        ),
        (
            "a node's and one of its pods",
            vec![with("a/x", "10.0.0.1", |pod| pod.host_network = true), with("a/y", "10.0.0.1", as_it_is)],
            None,
        ),
    ];
    for (what, objects, expected) in rows {
        let mut cluster = Cluster::of(&wants, crate::Rules::of(vec![wire::Name::ROOT]), objects.clone());
        let certain = |cluster: &Cluster, address: &str| {
            let pod = cluster.index.certain_pod(address.parse().unwrap());
            pod.map(|pod| pod.key.namespace.to_string())
        };
        assert_eq!(certain(&cluster, "10.0.0.1"), None, "{what}: the watch is not connected");
        cluster.writer.watching(Kind::Pod);
        assert_eq!(certain(&cluster, "10.0.0.1").as_deref(), *expected, "{what}");
        cluster.writer.failed(Kind::Pod, &WatchError::Silent(std::time::Duration::from_secs(150)));
        assert_eq!(certain(&cluster, "10.0.0.1"), None, "{what}: its owner is unknown");
        cluster.writer.watching(Kind::Pod);
        for object in objects {
            cluster.writer.delete(Kind::Pod, key_of(object).1);
        }
        assert_eq!(certain(&cluster, "10.0.0.1"), None, "{what}: gone");
    }
}

#[test]
fn reused_address_belongs_to_new_pod() {
    let wants = WatchConfig { pods: Some(PodWatch::default()), ..WatchConfig::default() };
    let mut cluster =
        Cluster::of(&wants, crate::Rules::of(vec![wire::Name::ROOT]), [pod("a/x", "10.0.0.1 fd00::1")]);
    cluster.writer.watching(Kind::Pod);
    let certain = |cluster: &Cluster, address: &str| {
        let pod = cluster.index.certain_pod(address.parse().unwrap());
        pod.map_or_else(|| "nobody".to_owned(), |pod| pod.key.to_string())
    };
    assert_eq!((certain(&cluster, "10.0.0.1"), certain(&cluster, "fd00::1")), ("a/x".into(), "a/x".into()));
    cluster.writer.apply(pod("b/y", "10.0.0.1"));
    assert_eq!(
        (certain(&cluster, "10.0.0.1"), certain(&cluster, "fd00::1")),
        ("nobody".into(), "a/x".into())
    );
    cluster.writer.delete(Kind::Pod, key("a/x"));
    assert_eq!(
        (certain(&cluster, "10.0.0.1"), certain(&cluster, "fd00::1")),
        ("b/y".into(), "nobody".into())
    );
    cluster.writer.apply(pod("b/y", "10.0.0.2"));
    assert_eq!(
        (certain(&cluster, "10.0.0.1"), certain(&cluster, "10.0.0.2")),
        ("nobody".into(), "b/y".into())
    );
}

#[test]
fn memory_limit_unsyncs_the_kind() {
    let wants = WatchConfig { endpoints: true, ..WatchConfig::default() };
    let mut cluster = Cluster::new(&wants, rules("cluster.local"));
    cluster.writer = cluster.writer.with_limit(20_000);
    let list = |cluster: &mut Cluster, count: usize| {
        let objects = (0..count).map(|n| service(&format!("a/s{n}"), "10.0.0.1", "http:80/tcp"));
        cluster.list([namespace("a")].into_iter().chain(objects));
    };
    list(&mut cluster, 10);
    let ask = |cluster: &Cluster, name: &str| cluster.ask(&format!("{name}.a.svc.cluster.local A"));
    assert_eq!(ask(&cluster, "x"), "NXDOMAIN cluster.local.");
    // Many more than the limit, repeatedly.
    for _ in 0..3 {
        list(&mut cluster, 10_000);
        assert!(cluster.index.count(Kind::Service) < 40, "{}", cluster.index.count(Kind::Service));
        assert_eq!(
            (ask(&cluster, "s0").as_str(), ask(&cluster, "s9999").as_str()),
            ("A 10.0.0.1", "services are not known")
        );
    }
    // An object that grows beyond the limit keeps its old version.
    let ports = "http:80/tcp ".repeat(1_000);
    cluster.writer.apply(service("a/s0", "10.0.0.2", &ports));
    assert_eq!(ask(&cluster, "s0"), "A 10.0.0.1");
    cluster.writer.apply(service("a/s0", "10.0.0.3", ""));
    assert_eq!(ask(&cluster, "s0"), "A 10.0.0.3");
    // A list is needed when memory is available again.
    let count = cluster.index.count(Kind::Service);
    assert!(!cluster.writer.needs_relist(Kind::Service), "a list would not fit either");
    (1..count).for_each(|n| cluster.writer.delete(Kind::Service, key(&format!("a/s{n}"))));
    let wanted = [Kind::Service, Kind::Slice].map(|kind| cluster.writer.needs_relist(kind));
    assert_eq!((wanted, ask(&cluster, "s9").as_str()), ([true, false], "services are not known"));
    list(&mut cluster, 3);
    assert!(!cluster.writer.needs_relist(Kind::Service));
    // Not for an object that exceeds the limit by itself.
    cluster.writer.apply(service("a/large", "10.0.0.9", &"http:80/tcp ".repeat(1_000)));
    assert!(!cluster.writer.needs_relist(Kind::Service), "a list would not fit either");
    list(&mut cluster, 3);
    assert_eq!(
        (ask(&cluster, "s0").as_str(), ask(&cluster, "s9").as_str()),
        ("A 10.0.0.1", "NXDOMAIN cluster.local.")
    );
    for name in ["a/s0", "a/s1", "a/s2"] {
        cluster.writer.delete(Kind::Service, key(name));
    }
    cluster.writer.delete(Kind::Namespace, key("a"));
    assert!(cluster.writer.is_empty());
}

#[test]
fn list_completes_partial_snapshot() {
    let wants = WatchConfig { endpoints: true, ..WatchConfig::default() };
    let few = || {
        vec![
            namespace("a"),
            service("a/hl", "None", "http:80/tcp"),
            service("a/web", "10.0.0.1", "http:80/tcp"),
            slice("a/hl-1", "hl", "10.1.0.1=h 10.1.0.2", "http:80/tcp"),
        ]
    };
    let questions = ["web.a A", "hl.a A", "h.hl.a A", "none.a A", "none.b A"]
        .map(|question| question.replace(' ', ".svc.cluster.local "))
        .into_iter()
        .chain(
            ["1.0.0.10", "1.0.1.10", "2.0.1.10", "9.0.1.10"].map(|last| format!("{last}.in-addr.arpa PTR")),
        );
    let questions: Vec<String> = questions.collect();
    let plain = Cluster::of(&wants, rules("cluster.local in-addr.arpa"), few());
    const BACK: &str = "PTR h.hl.a.svc.cluster.local.";
    const NO_SLICES: &str = "endpointslices are not known";
    type More = fn(usize) -> Object;
    // The kind that is too large, and the PTR answer after the snapshot and after a list that is
    // too large.
    let rows: [(More, [&str; 2]); 3] = [
        (|number| service(&format!("a/s{number}"), "10.0.1.1", ""), ["services are not known", BACK]),
        (|number| slice(&format!("a/e{number}"), "other", "10.1.1.1", ""), [NO_SLICES; 2]),
        (|number| namespace(&format!("n{number}")), [BACK; 2]),
    ];
    for (more, [at_first, later]) in rows {
        let mut cluster = Cluster::new(&wants, rules("cluster.local in-addr.arpa"));
        cluster.writer = cluster.writer.with_limit(20_000);
        cluster.writer.restore(few().into_iter().chain((0..1_000).map(more)));
        let kind = more(0).kind();
        assert!(cluster.index.count(kind) < 50, "{}", cluster.index.count(kind));
        assert_eq!(cluster.ask("web.a.svc.cluster.local A"), "A 10.0.0.1", "{kind}");
        assert_eq!(cluster.ask("1.0.1.10.in-addr.arpa PTR"), at_first, "{kind}");

        // Fewer objects; twice, so that the limit is reached again in between.
        for _ in 0..2 {
            cluster.list(few());
            for question in &questions {
                assert_eq!(cluster.ask(question), plain.ask(question), "{kind}: {question}");
            }
            cluster.list(few().into_iter().chain((0..1_000).map(more)));
            assert_eq!(cluster.ask("1.0.1.10.in-addr.arpa PTR"), later, "{kind}");
            assert!(!cluster.index.unsynced().is_empty(), "{kind}");
        }
        cluster.list([]);
        assert!(cluster.writer.is_empty(), "{kind}");
    }
}
