//! Commands on a cluster in documents: their files, objects and values exist.

use std::collections::BTreeSet;

use yaml_rust2::{Yaml, YamlLoader};

use super::commands::fenced;
use super::{read, root};

/// kubeadm's Deployment of CoreDNS, in `kube-system`
/// (cmd/kubeadm/app/phases/addons/dns/manifests.go).
const COREDNS: (&str, &str) = ("deployment", "coredns");
/// Its number of replicas (`Replicas` in dns.go, same directory).
const COREDNS_REPLICAS: &str = "2";
const NAMESPACE: &str = "kube-system";

/// The files, objects and values that commands of kubectl and helm name exist.
#[test]
fn kubectl_and_helm_arguments_exist() {
    let (mut kubectl, mut helm) = (0, 0);
    for document in ["README.md", "docs/kubernetes.md"] {
        for block in fenced(&read(document), "sh") {
            for line in block.replace("\\\n", " ").lines() {
                for command in line.split(" && ") {
                    let words: Vec<&str> =
                        command.split_whitespace().take_while(|word| *word != ">").collect();
                    let is_right = match &words[..] {
                        ["kubectl", rest @ ..] => {
                            kubectl += 1;
                            is_kubectl(rest)
                        }
                        ["helm", rest @ ..] => {
                            helm += 1;
                            is_helm(rest)
                        }
                        _ => Ok(()),
                    };
                    assert_eq!(is_right, Ok(()), "{document}: {command}");
                }
            }
        }
    }
    // Installation and removal in both documents, and those of the chart.
    assert!(kubectl >= 9 && helm >= 4, "{kubectl} lines of kubectl, {helm} of helm");
}

/// The steps back to CoreDNS remove what the steps of the migration added.
#[test]
fn migration_steps_match_in_reverse() {
    let blocks = fenced(&read("README.md"), "sh").concat();
    let lines: Vec<&str> = blocks.lines().filter(|line| line.starts_with("kubectl ")).collect();
    let [forth, back] = lines[..] else { panic!("there in a line, and back in another: {lines:?}") };
    for (line, parts) in [
        (
            forth,
            [
                "kubectl apply -f deploy/kubernetes/localdns.yaml",
                "kubectl -n kube-system rollout status deployment/localdns",
                "kubectl -n kube-system scale deployment/coredns --replicas=0",
            ],
        ),
        (
            back,
            [
                "kubectl -n kube-system scale deployment/coredns --replicas=2",
                "kubectl -n kube-system rollout status deployment/coredns",
                "kubectl delete -f deploy/kubernetes/localdns.yaml",
            ],
        ),
    ] {
        assert_eq!(line.split(" && ").collect::<Vec<_>>(), parts);
    }
}

/// `apply` and `scale` return before a pod runs; pods that never become ready must not replace
/// others.
#[test]
fn replacements_wait_for_readiness() {
    for (document, ways) in [("README.md", 2), ("docs/kubernetes.md", 2)] {
        let mut goes = 0;
        for block in fenced(&read(document), "sh") {
            // On one line: if the status is not the expected one, the commands behind `&&` do not
            // run.
            for line in block.replace("\\\n", " ").lines() {
                let commands: Vec<&str> = line.split(" && ").map(str::trim).collect();
                for (at, command) in commands.iter().enumerate() {
                    let takes = |words: &str| command.starts_with("kubectl ") && command.contains(words);
                    let wait = if takes("--replicas=0") {
                        "deployment/localdns"
                    } else if takes(" delete ") && command.contains("localdns.yaml") {
                        "deployment/coredns"
                    } else {
                        continue;
                    };
                    goes += 1;
                    let waits = at.checked_sub(1).map(|before| commands[before]).unwrap_or_default();
                    let is_awaited = waits.starts_with("kubectl ")
                        && waits.contains(" rollout status ")
                        && waits.ends_with(wait);
                    assert!(is_awaited, "{document}: {command} does not wait for {wait}: {line}");
                }
            }
        }
        assert_eq!(goes, ways, "{document}: there, and back");
    }
}

/// Checks that the files, objects and namespace of a command exist.
fn is_kubectl(words: &[&str]) -> Result<(), String> {
    let (mut options, mut rest) = (Vec::new(), Vec::new());
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.split_once('=') {
            Some(option) if word.starts_with('-') => options.push(option),
            _ if word.starts_with('-') => {
                options.push((*word, words.next().ok_or("an option without its value")?))
            }
            _ => rest.push(*word),
        }
    }
    let namespaced = !matches!(rest[..], ["apply" | "delete"]);
    let mut namespace = None;
    for (name, value) in options {
        match name {
            "-f" | "--filename" => {
                let objects = objects(value)?;
                // The objects' namespace is in the manifest.
                if let Some(object) = objects
                    .iter()
                    .find(|object| object.namespace.as_deref().unwrap_or(NAMESPACE) != NAMESPACE)
                {
                    return Err(format!("{}/{} is in another namespace", object.kind, object.name));
                }
            }
            "-n" | "--namespace" => namespace = Some(value),
            "--replicas" if value == "0" || value == COREDNS_REPLICAS => {}
            "--output" => {}
            _ => return Err(format!("{name} {value} is not known to this test")),
        }
    }
    if namespaced && namespace != Some(NAMESPACE) {
        return Err(format!("in namespace {namespace:?}"));
    }
    let named: Vec<Option<(&str, &str)>> = match &rest[..] {
        ["apply" | "delete"] => Vec::new(),
        ["scale", object] | ["rollout", "status", object] => vec![object.split_once('/')],
        ["delete", objects @ ..] => objects.iter().map(|object| object.split_once('/')).collect(),
        ["get", kind, name] => vec![Some((*kind, *name))],
        _ => return Err(format!("{rest:?} is not known to this test")),
    };
    let ours = ["localdns", "service", "autoscaler", "node-local"]
        .map(|name| format!("deploy/kubernetes/{name}.yaml"));
    let ours: Vec<Object> = ours.iter().map(|file| objects(file)).collect::<Result<Vec<_>, _>>()?.concat();
    for named in named {
        let named = named.ok_or("no KIND/NAME")?;
        // kubeadm's ConfigMap has the name of its Deployment.
        let is_kubeadms = named == COREDNS || named == ("configmap", COREDNS.1);
        if !is_kubeadms && !ours.iter().any(|object| (&*object.kind, &*object.name) == named) {
            return Err(format!("there is no {}/{}", named.0, named.1));
        }
    }
    Ok(())
}

#[derive(Clone, Debug)]
struct Object {
    /// The kind in lower case.
    kind: String,
    name: String,
    namespace: Option<String>,
}

fn objects(file: &str) -> Result<Vec<Object>, String> {
    if !root().join(file).is_file() {
        return Err(format!("there is no {file}"));
    }
    let documents = YamlLoader::load_from_str(&read(file)).map_err(|error| format!("{file}: {error}"))?;
    let text = |value: &Yaml| value.as_str().map(str::to_owned);
    let object = |document: &Yaml| {
        let metadata = &document["metadata"];
        let (kind, name) = (text(&document["kind"])?.to_lowercase(), text(&metadata["name"])?);
        Some(Object { kind, name, namespace: text(&metadata["namespace"]) })
    };
    documents
        .iter()
        .map(object)
        .collect::<Option<_>>()
        .ok_or_else(|| format!("{file}: an object without a name"))
}

/// Checks that the chart, its namespace and its values exist.
fn is_helm(words: &[&str]) -> Result<(), String> {
    let (["upgrade", "--install", _, rest @ ..] | ["template", _, rest @ ..]) = words else {
        return Err("not known to this test".to_owned());
    };
    let [chart, options @ ..] = rest else { return Err("no chart".to_owned()) };
    if !root().join(chart).join("Chart.yaml").is_file() {
        return Err(format!("there is no chart {chart}"));
    }
    let values = YamlLoader::load_from_str(&read(&format!("{chart}/values.yaml")))
        .map_err(|error| error.to_string())?;
    let (options, odd) = options.as_chunks::<2>();
    if !odd.is_empty() {
        return Err(format!("{odd:?} is half an option"));
    }
    let mut seen = BTreeSet::new();
    for [name, value] in options {
        seen.insert(*name);
        match *name {
            "--namespace" if *value == NAMESPACE => {}
            "--set" | "--set-file" => {
                for pair in value.split(',') {
                    let (path, _) = pair.split_once('=').ok_or_else(|| format!("{pair} has no value"))?;
                    let found = path.split('.').fold(&values[0], |values, name| &values[name]);
                    if found.is_badvalue() || found.as_hash().is_some() {
                        return Err(format!("{chart} has no value {path}"));
                    }
                }
            }
            _ => return Err(format!("{name} {value} is not known to this test")),
        }
    }
    seen.contains("--namespace").then_some(()).ok_or_else(|| "no namespace".to_owned())
}
