//! The deployment: the chart, the manifests rendered from it, and the API's validation of both.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tests::kube::Cluster;
use tests::{binary, eventually, fixtures, isolated, lacking, output, tempdir};
use yaml_rust2::{Yaml, YamlLoader};

use super::container::{apply, documents};

const PATIENCE: Duration = Duration::from_secs(60);

/// Each manifest, and the arguments that render it from the chart.
const MANIFESTS: [(&str, &[&str]); 4] = [
    ("localdns.yaml", &[]),
    ("service.yaml", &["--set", "service.create=true", "--show-only", "templates/service.yaml"]),
    ("autoscaler.yaml", &["--set", "autoscaler.enabled=true", "--show-only", "templates/autoscaler.yaml"]),
    ("node-local.yaml", &["--set", "nodeLocal.enabled=true", "--show-only", "templates/daemonset.yaml"]),
];

const CHART: &str = "localdns";

/// A value other than the default for each value of the chart.
const OTHER_VALUES: &str = r#"
image: {repository: registry.example/dns, tag: "1.0", pullPolicy: Always}
replicas: 3
corefile: |
  .:53 {
      template IN A example {
          answer "{{ .Name }} 60 IN A 192.0.2.1"
      }
      forward . /etc/resolv.conf
  }
service: {create: true, name: cluster-dns, clusterIP: 10.96.0.53}
podDisruptionBudget: {minAvailable: 50%}
autoscaler: {enabled: true, image: "registry.example/autoscaler:1", coresPerReplica: 64, nodesPerReplica: 8}
resources: {requests: {cpu: 250m, memory: 128Mi}, limits: {memory: 256Mi}}
nodeLocal:
  enabled: true
  addresses: [169.254.20.10]
  nodeSelector: {kubernetes.io/os: windows}
  maxSurge: 1%
  snapshotDirectory: /var/lib/other
  corefile: |
    .:53 {
        bind __PILLAR__LOCAL__DNS__
        forward . __PILLAR__UPSTREAM__SERVERS__
    }
  resources: {requests: {cpu: 50m, memory: 96Mi}, limits: {memory: 512Mi}}
"#;

/// The Corefile in these values.
const COREFILE: &str = r#".:53 {
    template IN A example {
        answer "{{ .Name }} 60 IN A 192.0.2.1"
    }
    forward . /etc/resolv.conf
}
"#;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

pub(super) fn manifest(name: &str) -> String {
    let path = deploy().join("kubernetes").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(super) fn parsed(text: &str) -> Vec<Yaml> {
    YamlLoader::load_from_str(text).expect("it is YAML")
}

pub(super) fn of_kind(documents: &[Yaml], kind: &str) -> Yaml {
    let found = documents.iter().find(|document| document["kind"].as_str() == Some(kind));
    found.unwrap_or_else(|| panic!("no {kind}")).clone()
}

/// Helm, from the PATH or from the directory of `go install`.
fn helm(test: &str) -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain([home.join("go/bin")]);
    let found = places.map(|place| place.join("helm")).find(|place| place.is_file());
    if found.is_none() {
        lacking(test, "helm", "helm is not installed (go install helm.sh/helm/v3/cmd/helm@v3.21.4)");
    }
    found
}

/// Runs helm and returns its output.
fn run(helm: &Path, args: &[&str]) -> String {
    let home = tempdir();
    let mut command = Command::new(helm);
    // The user's own helm configuration must not apply.
    command.args(args).env("HOME", home.path()).env_remove("KUBECONFIG").current_dir(deploy().join("helm"));
    let output = output(command, PATIENCE);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{args:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn rendered(helm: &Path, args: &[&str]) -> String {
    run(helm, &[&["template", "localdns", CHART, "--namespace=kube-system"], args].concat())
}

/// The chart with [`OTHER_VALUES`].
fn rendered_otherwise(helm: &Path, args: &[&str]) -> String {
    let directory = tempdir();
    let file = directory.path().join("values.yaml");
    fs::write(&file, OTHER_VALUES).expect("it can be written");
    rendered(helm, &[&["--values", file.to_str().expect("its path is text")], args].concat())
}

/// The leaves of the values, each by the path of its names.
fn leaves(values: &Yaml) -> BTreeMap<String, Yaml> {
    let Some(pairs) = values.as_hash() else { return [(String::new(), values.clone())].into() };
    let inner = |(name, value): (&Yaml, &Yaml)| {
        let name = name.as_str().expect("values have names").to_owned();
        leaves(value).into_iter().map(move |(rest, leaf)| (format!("{name}.{rest}"), leaf))
    };
    pairs.iter().flat_map(inner).collect()
}

/// The chart is sound, and the manifests are what it renders.
#[test]
fn manifests_match_the_chart() {
    let Some(helm) = helm("manifests_match_the_chart") else { return };
    run(&helm, &["lint", "--strict", CHART]);
    for (name, args) in MANIFESTS {
        let rendered = rendered(&helm, args);
        assert_eq!(parsed(&rendered), parsed(&manifest(name)), "{name}");
    }
}

#[test]
fn chart_for_nodes_alone() {
    let Some(helm) = helm("chart_for_nodes_alone") else { return };
    let documents = parsed(&rendered(
        &helm,
        &["--namespace=dns", "--set=clusterDns.enabled=false,nodeLocal.enabled=true"],
    ));
    let kinds: BTreeSet<_> = documents.iter().filter_map(|document| document["kind"].as_str()).collect();
    assert!(kinds.contains("DaemonSet"), "{kinds:?}");
    assert!(!kinds.contains("Deployment") && !kinds.contains("PodDisruptionBudget"), "{kinds:?}");
    for binding in documents.iter().filter(|document| !document["subjects"].is_badvalue()) {
        assert_eq!(binding["subjects"][0]["namespace"].as_str(), Some("dns"));
    }
}

#[test]
fn every_value_of_the_chart_counts() {
    let Some(helm) = helm("every_value_of_the_chart_counts") else { return };
    let defaults =
        fs::read_to_string(deploy().join("helm/localdns/values.yaml")).expect("the chart has values");
    let (mut defaults, others) = (leaves(&parsed(&defaults)[0]), leaves(&parsed(OTHER_VALUES)[0]));
    // Without it most other values have no effect; another test covers it.
    assert!(defaults.remove("clusterDns.enabled.").is_some());
    for (name, value) in &others {
        let default = defaults.get(name).unwrap_or_else(|| panic!("the chart has no value {name}"));
        assert_ne!(default, value, "{name}: another value than that by default");
    }
    let names = |values: &BTreeMap<String, Yaml>| values.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&defaults), names(&others), "this test gives each value another one");

    let text = rendered_otherwise(&helm, &["--namespace=dns"]);
    let documents = parsed(&text);
    let named = |kind: &str, name: &str| {
        let found = documents.iter().find(|document| {
            document["kind"].as_str() == Some(kind) && document["metadata"]["name"].as_str() == Some(name)
        });
        found.unwrap_or_else(|| panic!("no {kind} {name} in:\n{text}"))
    };
    for document in &documents {
        let namespace = document["metadata"]["namespace"].as_str();
        assert!(matches!(namespace, None | Some("dns")), "{document:?}");
    }
    let dns = &named("Deployment", "localdns")["spec"];
    let container = &dns["template"]["spec"]["containers"][0];
    let autoscaler = &named("Deployment", "localdns-autoscaler")["spec"]["template"]["spec"]["containers"][0];
    let budget = named("PodDisruptionBudget", "localdns");
    let node = of_kind(&documents, "DaemonSet")["spec"].clone();
    let of_node = &node["template"]["spec"]["containers"][0];
    let local_ip = of_node["args"].as_vec().expect("words").iter();
    let local_ip = local_ip.skip_while(|word| word.as_str() != Some("-localip")).nth(1).expect("its value");
    for part in ["path: /var/lib/other", "bind __PILLAR__LOCAL__DNS__\n"] {
        assert!(text.contains(part), "no {part} in:\n{text}");
    }
    for (found, value) in [
        (&container["image"], "registry.example/dns:1.0"),
        (&container["imagePullPolicy"], "Always"),
        (&container["resources"]["requests"]["cpu"], "250m"),
        (&container["resources"]["requests"]["memory"], "128Mi"),
        (&container["resources"]["limits"]["memory"], "256Mi"),
        (&named("Service", "cluster-dns")["spec"]["clusterIP"], "10.96.0.53"),
        (&budget["spec"]["minAvailable"], "50%"),
        (&autoscaler["image"], "registry.example/autoscaler:1"),
        (&named("ConfigMap", "localdns")["data"]["Corefile"], COREFILE),
        (&node["template"]["spec"]["nodeSelector"]["kubernetes.io/os"], "windows"),
        (&node["updateStrategy"]["rollingUpdate"]["maxSurge"], "1%"),
        (&of_node["resources"]["requests"]["cpu"], "50m"),
        (&of_node["resources"]["requests"]["memory"], "96Mi"),
        (&of_node["resources"]["limits"]["memory"], "512Mi"),
        (local_ip, "169.254.20.10"),
    ] {
        assert_eq!(found.as_str(), Some(value));
    }
    let linear = named("ConfigMap", "localdns-autoscaler")["data"]["linear"].as_str().unwrap_or_default();
    assert!(linear.contains(r#""coresPerReplica": 64, "nodesPerReplica": 8,"#), "{linear}");
    // Without the autoscaler the Deployment has a number of replicas.
    assert!(dns["replicas"].is_badvalue());
    let documents = parsed(&rendered_otherwise(&helm, &["--set=autoscaler.enabled=false"]));
    assert_eq!(of_kind(&documents, "Deployment")["spec"]["replicas"].as_i64(), Some(3));
}

/// Their Corefile can be served.
#[test]
fn manifests_need_no_privilege() {
    let documents = parsed(&manifest("localdns.yaml"));
    let corefile = of_kind(&documents, "ConfigMap")["data"]["Corefile"].as_str().expect("a text").to_owned();
    // kubeadm's Corefile with a snapshot and without its comment.
    let kubeadm: String =
        fixtures::KUBEADM.lines().filter(|line| !line.starts_with('#')).fold(String::new(), |text, line| {
            text + line
                + "\n"
                + if line.ends_with("ttl 30") { "       snapshot /var/lib/localdns/cluster\n" } else { "" }
        });
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(&corefile), words(&kubeadm));
    let directory = tempdir();
    let file = directory.path().join("Corefile");
    fs::write(&file, &corefile).expect("it can be written");
    let mut command = Command::new(binary());
    command.args(["check", "-conf"]).arg(&file);
    let checked = output(command, PATIENCE);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));

    let deployment = of_kind(&documents, "Deployment");
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(pod["dnsPolicy"].as_str(), Some("Default"));
    assert_eq!(pod["securityContext"]["runAsNonRoot"].as_bool(), Some(true));
    for absent in ["hostNetwork", "hostPID", "hostIPC", "initContainers"] {
        assert!(pod[absent].is_badvalue(), "{absent}");
    }
    let security = &pod["containers"][0]["securityContext"];
    assert_eq!(security["allowPrivilegeEscalation"].as_bool(), Some(false));
    assert_eq!(security["readOnlyRootFilesystem"].as_bool(), Some(true));
    let capabilities = |what: &str| security["capabilities"][what].as_vec().cloned().unwrap_or_default();
    assert_eq!(capabilities("drop"), [Yaml::String("ALL".to_owned())]);
    assert_eq!(capabilities("add"), [Yaml::String("NET_BIND_SERVICE".to_owned())]);
    // The snapshot is in a writable volume.
    let mounts = pod["containers"][0]["volumeMounts"].as_vec().expect("mounts").clone();
    let place = mounts.iter().find(|mount| mount["mountPath"].as_str() == Some("/var/lib/localdns"));
    assert!(place.is_some_and(|place| place["readOnly"].is_badvalue()), "{mounts:?}");

    // All objects select the same pods.
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    let selected = |selector: &Yaml| {
        let pairs = selector.as_hash().expect("labels");
        pairs.iter().all(|(name, value)| labels[name.as_str().unwrap_or_default()] == *value)
    };
    assert!(selected(&deployment["spec"]["selector"]["matchLabels"]));
    assert!(selected(&of_kind(&documents, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"]));
    assert!(selected(&of_kind(&parsed(&manifest("service.yaml")), "Service")["spec"]["selector"]));
    assert_eq!(of_kind(&documents, "ServiceAccount")["metadata"]["name"], pod["serviceAccountName"]);
}

/// The real API accepts every manifest, and the chart with other values.
#[test]
fn api_accepts_manifests_and_chart() {
    const TEST: &str = "api_accepts_manifests_and_chart";
    isolated(|| {
        let Some(cluster) = Cluster::up(TEST) else { return };
        let otherwise =
            helm(TEST).map(|helm| ("the chart with other values", rendered_otherwise(&helm, &[])));
        for (name, text) in MANIFESTS.map(|(name, _)| (name, manifest(name))).into_iter().chain(otherwise) {
            let texts: Vec<&str> = text.split("\n---\n").filter(|text| text.contains("kind:")).collect();
            assert!(!texts.is_empty(), "{name}");
            for text in texts {
                let [document] = &parsed(text)[..] else { panic!("one document: {text}") };
                let (status, body) = dry_run(&cluster, document, text);
                // 200: the object exists, like the test's service account.
                assert!(matches!(status, 200 | 201), "{name}: {status} {body}");
            }
        }
        // The validation works: it refuses an unknown field.
        let wrong = manifest("service.yaml").replace("selector:", "selectors:");
        let (status, body) = dry_run(&cluster, &parsed(&wrong)[0], &wrong);
        assert!(matches!(status, 400 | 422 | 500) && body.contains("selectors"), "{status} {body}");
    });
}

/// The requests of cluster-proportional-autoscaler with this target and this ConfigMap, and no
/// others.
#[test]
fn autoscaler_scales_its_deployment_only() {
    const TEST: &str = "autoscaler_scales_its_deployment_only";
    isolated(|| {
        let Some(cluster) = Cluster::up(TEST) else { return };
        apply(&cluster, &documents("autoscaler.yaml"));
        let may = |(verb, group, resource, namespace, name): (&str, &str, &str, &str, &str)| {
            let (resource, part) = resource.split_once('/').unwrap_or((resource, ""));
            let review = json!({"spec": {
                "user": "system:serviceaccount:kube-system:localdns-autoscaler",
                "groups": ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"],
                "resourceAttributes": {
                    "verb": verb, "group": group, "resource": resource, "subresource": part,
                    "namespace": namespace, "name": name,
                },
            }});
            let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
            let (status, body) = cluster.send("POST", path, &review.to_string());
            assert_eq!(status, 201, "{body}");
            let review: Value = serde_json::from_str(&body).expect("an object");
            review["status"]["allowed"] == true
        };
        let own = "localdns-autoscaler";
        for right in [
            ("get", "apps", "deployments/scale", "kube-system", "localdns"),
            ("update", "apps", "deployments/scale", "kube-system", "localdns"),
            ("get", "", "configmaps", "kube-system", own),
            ("create", "", "configmaps", "kube-system", ""),
            ("list", "", "nodes", "", ""),
            ("watch", "", "nodes", "", ""),
        ] {
            // The authorizer learns of new roles after a delay.
            eventually(&format!("{right:?}"), PATIENCE, || may(right).then_some(()));
        }
        for right in [
            ("get", "apps", "deployments/scale", "kube-system", "coredns"),
            ("update", "apps", "deployments/scale", "kube-system", "coredns"),
            ("update", "apps", "deployments/scale", "default", "localdns"),
            ("update", "apps", "deployments", "kube-system", "localdns"),
            ("delete", "apps", "deployments", "kube-system", "localdns"),
            ("update", "", "configmaps", "kube-system", own),
            ("get", "", "configmaps", "default", own),
            ("get", "", "secrets", "kube-system", own),
            ("update", "", "nodes", "", ""),
            ("list", "", "pods", "", ""),
        ] {
            assert!(!may(right), "{right:?}");
        }
    });
}

/// `kubectl apply --server-side --dry-run=server`.
fn dry_run(cluster: &Cluster, document: &Yaml, text: &str) -> (u16, String) {
    let name = document["metadata"]["name"].as_str().expect("a name");
    let path = format!(
        "{}/{name}?fieldManager=test&force=true&dryRun=All&fieldValidation=Strict",
        path_of(document)
    );
    cluster.send_in("application/apply-patch+yaml", "PATCH", &path, text)
}

/// The path of a kind's objects.
pub(super) fn path_of(document: &Yaml) -> String {
    let version = document["apiVersion"].as_str().expect("a version");
    let root = if version == "v1" { "/api/v1".to_owned() } else { format!("/apis/{version}") };
    let kind = document["kind"].as_str().expect("a kind").to_lowercase();
    match document["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{root}/namespaces/{namespace}/{kind}s"),
        None => format!("{root}/{kind}s"),
    }
}
