use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::objects::{Key, Kind, Object, Sink};
use crate::settings::Wants;
use crate::testing::*;

/// What happens at the API.
#[derive(Debug, Clone)]
enum Step {
    Apply(usize),
    Delete(usize),
    /// A list of these objects of all kinds.
    List(Vec<usize>),
    /// A list that breaks off after these.
    Broken(Vec<usize>),
}

/// A few objects, each in several states, so that names and addresses meet.
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

fn key_of(object: &Object) -> (Kind, Key) {
    let key = match object {
        Object::Service(service) => service.key.clone(),
        Object::Slice(slice) => slice.key.clone(),
        Object::Namespace(name) => key(name),
        Object::Pod(pod) => pod.key.clone(),
        Object::ServiceImport(import) => import.key.clone(),
    };
    (object.kind(), key)
}

const KINDS: [Kind; 3] = [Kind::Service, Kind::Slice, Kind::Namespace];

/// Does a step, and to the model what it means.
fn step(cluster: &mut Cluster, model: &mut BTreeMap<(Kind, Key), Object>, pool: &[Object], step: &Step) {
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
            if is_whole {
                KINDS.into_iter().for_each(|kind| writer.complete(kind));
            }
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
        3 => number.prop_map(Step::Delete),
        1 => numbers.clone().prop_map(Step::List),
        1 => numbers.prop_map(Step::Broken),
    ];
    proptest::collection::vec(step, 1..40)
}

fn fresh() -> Cluster {
    let wants = Wants { endpoints: true, ..Wants::default() };
    Cluster::of(&wants, rules("cluster.local in-addr.arpa"), [])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// What happened on the way is in no answer, and nothing of it is left.
    #[test]
    fn answers_are_those_of_an_index_that_only_ever_saw_what_is_there(steps in steps()) {
        let (pool, mut model, mut cluster) = (pool(), BTreeMap::new(), fresh());
        for one in &steps {
            step(&mut cluster, &mut model, &pool, one);
        }
        let mut plain = fresh();
        // In the other order.
        model.values().rev().for_each(|object| plain.writer.apply(object.clone()));
        for question in questions() {
            let [seen, expected] = [&cluster, &plain].map(|cluster| cluster.ask(&question));
            prop_assert_eq!(seen, expected, "{}", question);
        }
        let sizes = |cluster: &Cluster| {
            let Cluster { index, .. } = cluster;
            let services = &index.services;
            (services.by_name.all().len(), services.by_address.all().len(), index.namespaces.all().len())
        };
        prop_assert_eq!(sizes(&cluster), sizes(&plain));
        for (_, key) in model.keys() {
            KINDS.into_iter().for_each(|kind| cluster.writer.delete(kind, key.clone()));
        }
        prop_assert_eq!(sizes(&cluster), (0, 0, 0));
        prop_assert!(cluster.writer.holds_nothing());
    }
}
