//! The DaemonSet and the unit: the node resolver works with the privileges that they request.

use std::fs;
use std::path::Path;
use std::process::Command;

use tests::{binary, isolated, output, privileged, skip, tempdir, tool};
use yaml_rust2::{Yaml, YamlLoader};

use super::{Node, OTHERS, PATIENCE, line, succeeded, zone};

/// The DaemonSet has no privilege but root and the host's /etc.
#[test]
fn daemonset_privileges() {
    let pod = daemonset()["spec"]["template"]["spec"].clone();
    for absent in ["hostNetwork", "hostPID", "hostIPC", "serviceAccountName", "initContainers"] {
        assert!(pod[absent].is_badvalue(), "{absent}");
    }
    assert_eq!(pod["automountServiceAccountToken"].as_bool(), Some(false));
    assert_eq!(pod["priorityClassName"].as_str(), Some("system-node-critical"));
    assert_eq!(pod["tolerations"][0]["operator"].as_str(), Some("Exists"));
    let [container] = &pod["containers"].as_vec().unwrap()[..] else { panic!("one container") };
    let security = &container["securityContext"];
    for (name, want) in
        [("privileged", false), ("allowPrivilegeEscalation", false), ("readOnlyRootFilesystem", true)]
    {
        assert_eq!(security[name].as_bool(), Some(want), "{name}");
    }
    assert_eq!(security["capabilities"]["drop"][0].as_str(), Some("ALL"));
    assert!(security["capabilities"]["add"].is_badvalue());
    assert_eq!(security["seccompProfile"]["type"].as_str(), Some("RuntimeDefault"));
    // The directory, so that a file can be renamed in it, and nothing else of the host.
    let volumes = pod["volumes"].as_vec().unwrap();
    let host: Vec<&Yaml> = volumes.iter().filter(|volume| !volume["hostPath"].is_badvalue()).collect();
    let [etc] = host[..] else { panic!("one directory of the host") };
    assert_eq!(etc["hostPath"]["path"].as_str(), Some("/etc"));
    assert_eq!(etc["hostPath"]["type"].as_str(), Some("Directory"));
    let mounts = container["volumeMounts"].as_vec().unwrap();
    for mount in mounts {
        let is_etc = mount["name"] == etc["name"];
        assert_eq!(is_etc, mount["mountPath"].as_str() == Some("/host/etc"));
        assert_eq!(mount["readOnly"].as_bool().unwrap_or(false), !is_etc);
        assert!(volumes.iter().any(|volume| volume["name"] == mount["name"]));
    }
    let selector = &daemonset()["spec"]["selector"]["matchLabels"];
    assert_eq!(*selector, daemonset()["spec"]["template"]["metadata"]["labels"]);
}

/// Root without a capability suffices for the DaemonSet's pod.
#[test]
fn daemonset_without_capabilities() {
    let test = "daemonset_without_capabilities";
    let container = daemonset()["spec"]["template"]["spec"]["containers"][0].clone();
    let words: Vec<&str> =
        container["command"].as_vec().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    assert_eq!(words[0], "/localdns");
    // The host's /etc and the ConfigMap, as the pod sees them.
    let node =
        Node::new("", zone("image-registry.openshift-image-registry.svc.cluster.local. 5 IN A 172.30.1.1"));
    let host = node.home.path().join("etc");
    fs::create_dir(&host).unwrap();
    fs::write(host.join("hosts"), OTHERS).unwrap();
    let list = tempdir();
    let services = documents()[0]["data"]["services"].as_str().unwrap().to_owned();
    fs::write(list.path().join("services"), services).unwrap();
    let places = [("/host/etc", host.as_path()), ("/etc/node-resolver", list.path())];
    let replace = |word: &str| {
        places.iter().fold(word.to_owned(), |word, (inside, outside)| {
            word.replace(&format!("={inside}/"), &format!("={}/", outside.display()))
        })
    };
    let args: Vec<String> = words[1..].iter().map(|word| replace(word)).collect();
    assert!(args.iter().all(|arg| !arg.contains("=/host") && !arg.contains("=/etc")), "{args:?}");
    let mut command = Command::new(binary());
    if !privileged() {
        skip(test, "needs root to take capabilities from; run with those of an ordinary user");
    } else if tool(test, "setpriv") {
        command = Command::new("setpriv");
        command.args(["--bounding-set", "-all", "--inh-caps", "-all", "--no-new-privs"]).arg(binary());
    }
    command.args(&args).arg("-once");
    let nameserver = node.upstream.word();
    for variable in container["env"].as_vec().unwrap() {
        let value = variable["value"].as_str().unwrap().replace("$(KUBE_DNS_SERVICE_HOST)", &nameserver);
        command.env(variable["name"].as_str().unwrap(), value);
    }
    succeeded(&output(command, PATIENCE));
    let want = format!("{OTHERS}{}", line("172.30.1.1", "image-registry.openshift-image-registry.svc"));
    assert_eq!(fs::read_to_string(host.join("hosts")).unwrap(), want);
    // The rename succeeded, and no temporary file is left.
    assert_eq!(fs::read_dir(&host).unwrap().count(), 1);
}

/// The unit for nodes without the DaemonSet.
#[test]
fn unit_privileges() {
    let test = "unit_privileges";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/localdns-node-resolver.service");
    let unit = fs::read_to_string(path).expect("the unit is there");
    for setting in [
        "CapabilityBoundingSet=",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "ReadWritePaths=/etc",
        "RestrictAddressFamilies=AF_INET AF_INET6",
        "SystemCallFilter=~@privileged @resources",
        "EnvironmentFile=/etc/localdns/node-resolver",
        "Restart=always",
        "StartLimitIntervalSec=0",
        "ExecStart=/usr/local/bin/localdns node-resolver",
    ] {
        assert_eq!(unit.lines().filter(|line| *line == setting).count(), 1, "{setting}");
    }
    for absent in ["AmbientCapabilities", "User=", "PrivateNetwork=no"] {
        assert!(!unit.contains(absent), "{absent}");
    }
    if tool(test, "systemd-analyze") {
        let directory = tempdir();
        let path = directory.path().join("localdns-node-resolver.service");
        fs::write(&path, unit.replace("/usr/local/bin/localdns", &binary().to_string_lossy())).unwrap();
        let mut command = Command::new("systemd-analyze");
        command.args(["verify", "--man=no"]).arg(&path);
        let verified = succeeded(&output(command, PATIENCE));
        assert!(!verified.contains("localdns-node-resolver.service:"), "{verified}");
    }
}

/// The unit's program works on the node's own file without a capability.
#[test]
fn unit_without_capabilities() {
    isolated(|| {
        if !tool("unit_without_capabilities", "setpriv") {
            return;
        }
        fs::write("/etc/hosts", OTHERS).unwrap();
        let node = Node::new("", zone("web.t1.svc.cluster.local. 5 IN A 10.96.0.100"));
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", "-all", "--inh-caps", "-all", "--no-new-privs"]).arg(binary());
        command.args(["node-resolver", "-once"]);
        command.env("SERVICES", "web.t1.svc").env("NAMESERVER", node.upstream.word());
        succeeded(&output(command, PATIENCE));
        let want = format!("{OTHERS}{}", line("10.96.0.100", "web.t1.svc"));
        assert_eq!(fs::read_to_string("/etc/hosts").unwrap(), want);
    });
}

fn documents() -> Vec<Yaml> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/node-resolver.yaml");
    let text = fs::read_to_string(path).expect("the manifest is there");
    YamlLoader::load_from_str(&text).expect("the manifest is YAML")
}

fn daemonset() -> Yaml {
    let documents = documents();
    assert_eq!(documents.len(), 2);
    assert_eq!(documents[1]["kind"].as_str(), Some("DaemonSet"));
    documents[1].clone()
}
