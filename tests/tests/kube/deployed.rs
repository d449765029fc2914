//! What is deployed: the chart, the manifests that are rendered from it, and what the API says of both.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tests::kube::Cluster;
use tests::{binary, fixtures, isolated, lacking, output, tempdir};
use yaml_rust2::{Yaml, YamlLoader};

const PATIENCE: Duration = Duration::from_secs(60);

/// Each manifest, and what the chart is told to render it.
const MANIFESTS: [(&str, &[&str]); 4] = [
    ("localdns.yaml", &[]),
    ("service.yaml", &["--set", "service.create=true", "--show-only", "templates/service.yaml"]),
    ("autoscaler.yaml", &["--set", "autoscaler.enabled=true", "--show-only", "templates/autoscaler.yaml"]),
    ("node-local.yaml", &["--set", "nodeLocal.enabled=true", "--show-only", "templates/daemonset.yaml"]),
];

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

/// Helm, where it is on the PATH or where `go install` puts it.
fn helm(test: &str) -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain([home.join("go/bin")]);
    let found = places.map(|place| place.join("helm")).find(|place| place.is_file());
    if found.is_none() {
        lacking(test, "helm", "helm is not installed (go install helm.sh/helm/v3/cmd/helm@latest)");
    }
    found
}

#[test]
fn the_chart_is_sound_and_the_manifests_are_what_it_renders() {
    let Some(helm) = helm("the_chart_is_sound_and_the_manifests_are_what_it_renders") else { return };
    let home = tempdir();
    let run = |args: &[&str]| {
        let mut command = Command::new(&helm);
        // Whatever its owner has configured counts for nothing.
        command.args(args).env("HOME", home.path()).env_remove("KUBECONFIG");
        let output = output(command, PATIENCE);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{args:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    };
    let chart = deploy().join("helm/localdns");
    let chart = chart.to_str().expect("its path is text");
    run(&["lint", "--strict", chart]);
    for (name, args) in MANIFESTS {
        let rendered = run(&[&["template", "localdns", chart, "--namespace", "kube-system"], args].concat());
        assert_eq!(parsed(&rendered), parsed(&manifest(name)), "{name}");
    }
    // What a cluster may need otherwise.
    let args = [
        "template",
        "localdns",
        chart,
        "--namespace=dns",
        "--set=autoscaler.enabled=true,image.tag=x,service.create=true,service.clusterIP=10.0.0.10",
    ];
    let documents = parsed(&run(&args));
    let deployment = of_kind(&documents, "Deployment");
    let has_replicas = |document: &Yaml| !document["spec"]["replicas"].is_badvalue();
    let of_dns =
        documents.iter().filter(|document| document["metadata"]["name"].as_str() == Some("localdns"));
    assert!(
        of_dns
            .filter(|document| document["kind"].as_str() == Some("Deployment"))
            .all(|dns| !has_replicas(dns))
    );
    assert_eq!(deployment["metadata"]["namespace"].as_str(), Some("dns"));
    assert_eq!(of_kind(&documents, "Service")["spec"]["clusterIP"].as_str(), Some("10.0.0.10"));
    // On the nodes alone, beside another cluster DNS; with kube-proxy in mode ipvs.
    let args = [
        "template",
        "localdns",
        chart,
        "--namespace=dns",
        "--set=clusterDns.enabled=false,nodeLocal.enabled=true,nodeLocal.addresses={169.254.20.10},nodeLocal.maxSurge=1%",
    ];
    let documents = parsed(&run(&args));
    let kinds: BTreeSet<_> = documents.iter().filter_map(|document| document["kind"].as_str()).collect();
    assert!(!kinds.contains("Deployment") && !kinds.contains("PodDisruptionBudget"), "{kinds:?}");
    let daemonset = &of_kind(&documents, "DaemonSet")["spec"];
    assert_eq!(daemonset["updateStrategy"]["rollingUpdate"]["maxSurge"].as_str(), Some("1%"));
    let args = daemonset["template"]["spec"]["containers"][0]["args"].as_vec().expect("words");
    let local_ip = args.iter().skip_while(|word| word.as_str() != Some("-localip")).nth(1);
    assert_eq!(local_ip.and_then(Yaml::as_str), Some("169.254.20.10"));
    for binding in documents.iter().filter(|document| !document["subjects"].is_badvalue()) {
        assert_eq!(binding["subjects"][0]["namespace"].as_str(), Some("dns"));
    }
}

#[test]
fn the_manifests_take_no_privilege_and_their_corefile_can_be_served() {
    let documents = parsed(&manifest("localdns.yaml"));
    let corefile = of_kind(&documents, "ConfigMap")["data"]["Corefile"].as_str().expect("a text").to_owned();
    // kubeadm's, with the snapshot and without its comment.
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
    // What is written lies where something may be written.
    let mounts = pod["containers"][0]["volumeMounts"].as_vec().expect("mounts").clone();
    let place = mounts.iter().find(|mount| mount["mountPath"].as_str() == Some("/var/lib/localdns"));
    assert!(place.is_some_and(|place| place["readOnly"].is_badvalue()), "{mounts:?}");

    // Everybody means the same pods.
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

#[test]
fn the_real_api_takes_every_manifest() {
    isolated(|| {
        let Some(cluster) = Cluster::up("the_real_api_takes_every_manifest") else { return };
        for (name, _) in MANIFESTS {
            let text = manifest(name);
            let texts: Vec<&str> = text.split("\n---\n").filter(|text| text.contains("kind:")).collect();
            assert!(!texts.is_empty(), "{name}");
            for text in texts {
                let [document] = &parsed(text)[..] else { panic!("one document: {text}") };
                let (status, body) = dry_run(&cluster, document, text);
                // What is there already is the test's own account.
                assert!(matches!(status, 200 | 201), "{name}: {status} {body}");
            }
        }
        // It would have said so.
        let wrong = manifest("service.yaml").replace("selector:", "selectors:");
        let (status, body) = dry_run(&cluster, &parsed(&wrong)[0], &wrong);
        assert!(matches!(status, 400 | 422 | 500) && body.contains("selectors"), "{status} {body}");
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

/// Where objects like this are.
pub(super) fn path_of(document: &Yaml) -> String {
    let version = document["apiVersion"].as_str().expect("a version");
    let root = if version == "v1" { "/api/v1".to_owned() } else { format!("/apis/{version}") };
    let kind = document["kind"].as_str().expect("a kind").to_lowercase();
    match document["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{root}/namespaces/{namespace}/{kind}s"),
        None => format!("{root}/{kind}s"),
    }
}
