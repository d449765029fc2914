//! `node annotate` against the real API: the annotation of a node that serves the hosts plugin.

use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tests::kube::Cluster;
use tests::{Options, Server, binary, isolated, output, publish};

/// A node is annotated while its server answers from a hosts file.
#[test]
fn node_is_annotated_while_it_answers() {
    isolated(|| {
        let test = "node_is_annotated_while_it_answers";
        let Some(cluster) = Cluster::up(test) else { return };
        cluster
            .create("/api/v1/nodes", r#"{"metadata": {"name": "n1", "annotations": {"theirs": "stays"}}}"#);
        let annotations = || {
            let (_, node) = cluster.send("GET", "/api/v1/nodes/n1", "");
            let node: Value = serde_json::from_str(&node).expect("it is JSON");
            node["metadata"]["annotations"].clone()
        };
        let tokens = fs::read_to_string(cluster.path("tokens.csv")).expect("it was started");
        let token = tokens.split(',').next().expect("there is one");
        let admin = cluster.path("admin.kubeconfig");
        let admin = admin.to_str().expect("its path is text");
        let (empty, nobodys) = (cluster.path("nothing"), cluster.path("dns.kubeconfig"));
        let nobodys = nobodys.to_str().expect("its path is text");
        fs::write(admin, KUBECONFIG.replace("TOKEN", token)).expect("it is the test's own");
        annotate(admin, 1, "no `localdns node run` runs on this node; start it");

        let options = Options::default().subcommand(&["node", "run"]);
        let hosts = cluster.path("hosts");
        publish(&hosts, "192.0.2.1 a.example\n");
        let corefile =
            format!(".:1053 {{\nbind 127.0.0.1\nhosts {} {{\nfallthrough\n}}\nwhoami\n}}\n", hosts.display());
        let options = options.args(["-rules", "none", "-host-resolver", "none"]);
        let server = Server::start_with(&corefile, options);
        annotate(admin, 0, "node n1 has the annotation kubernetes.azure.com/localdns-hosts-plugin=enabled\n");
        let both =
            serde_json::json!({"theirs": "stays", "kubernetes.azure.com/localdns-hosts-plugin": "enabled"});
        assert_eq!(annotations(), both);
        // A second time, without permission, and without a kubeconfig.
        annotate(admin, 0, "localdns-hosts-plugin=enabled\n");
        annotate(nobodys, 1, "403 from the API: nodes \"n1\" is forbidden: ");
        annotate(empty.to_str().expect("its path is text"), 1, "nothing: No such file or directory");

        server.write_corefile(".:1053 {\nbind 127.0.0.1\nwhoami\n}\n");
        server.signal("HUP");
        server.wait_for_log("Reloading complete", PATIENCE);
        annotate(
            admin,
            0,
            "node n1 has no annotation kubernetes.azure.com/localdns-hosts-plugin: no hosts file",
        );
        assert_eq!(annotations(), serde_json::json!({"theirs": "stays"}));

        // The node is created while the command waits for it.
        let waits = command(admin, "60s", "n2").spawn().expect("it starts");
        annotate_node(admin, "n2", 1, "404 from the API: nodes \"n2\" not found");
        cluster.create("/api/v1/nodes", r#"{"metadata": {"name": "n2"}}"#);
        let ended = waits.wait_with_output().expect("it was started");
        assert!(ended.status.success(), "{ended:?}");
    });
}

fn annotate(kubeconfig: &str, code: i32, expected: &str) {
    annotate_node(kubeconfig, "n1", code, expected);
}

fn annotate_node(kubeconfig: &str, node: &str, code: i32, expected: &str) {
    let output = output(command(kubeconfig, "0s", node), PATIENCE);
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.contains(expected), "{text}");
}

fn command(kubeconfig: &str, wait: &str, node: &str) -> Command {
    let mut command = Command::new(binary());
    command.args(["node", "annotate", "-kubeconfig", kubeconfig, "-wait", wait, "-node", node]);
    command
}

const PATIENCE: Duration = Duration::from_secs(20);
const KUBECONFIG: &str = "
current-context: admin
clusters:
- {name: kube, cluster: {server: 'https://127.0.0.1:6443', certificate-authority: ca.crt}}
users:
- {name: admin, user: {token: TOKEN}}
contexts:
- {name: admin, context: {cluster: kube, user: admin}}
";
