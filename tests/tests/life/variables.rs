//! Values of variables are in answers alone: neither `check` and `explain` nor the log, `status` and
//! the pages print them, whichever word of a Corefile has them.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tests::{Ask, Authority, Options, Server, binary, fresh_ip, http_get, output, port, tempdir};

use super::text;

const PATIENCE: Duration = Duration::from_secs(10);
/// The value of `NAME`, and of `DIR` the last part.
const SECRET: &str = "s3cr3t-value";

/// Lines of a server block; its keys are shown, and have no row.
const LINES: &[&str] = &[
    "hosts {$DIR}/hosts",
    "hosts {$DIR}/absent",
    "hosts {$DIR}",
    "hosts {$DIR}/weights",
    "root {$DIR}\nhosts hosts",
    "root {$DIR}\nhosts {$NAME}",
    "hosts {$DIR}/none/hosts {\nrefresh a.example\nrefresh_via 127.0.0.1:1\n}",
    "hosts {$DIR}/fresh {\nrefresh b.example\nrefresh_via 127.0.0.1:1\n}",
    "loadbalance weighted {$DIR}/weights\nwhoami",
    "loadbalance weighted {$DIR}/hosts\nwhoami",
    "loadbalance weighted {$DIR}/absent\nwhoami",
    "autopath {$DIR}/resolv.conf\nwhoami",
    "autopath {$DIR}/hosts\nwhoami",
    "autopath {$DIR}/absent\nwhoami",
    "forward . {$DIR}/resolv.conf",
    "forward . 127.0.0.1:1 {$DIR}/hosts",
    "forward . {$DIR}/absent",
    "forward . tls://127.0.0.1:1 {\ntls {$DIR}/cert.pem {$DIR}/key.pem {$DIR}/cert.pem\ntls_servername {$NAME}.example\n}",
    "forward . tls://127.0.0.1:1 {\ntls {$DIR}/absent\n}",
    "forward . tls://127.0.0.1:1 {\ntls {$DIR}/hosts\n}",
    "kubernetes cluster.local {\nkubeconfig {$DIR}/kubeconfig\nstartup_timeout 100ms\n}",
    "kubernetes cluster.local {\nkubeconfig {$DIR}/kubeconfig {$NAME}\nstartup_timeout 100ms\n}",
    "kubernetes cluster.local {\nkubeconfig {$DIR}/hosts\nstartup_timeout 100ms\n}",
    "kubernetes cluster.local {\nkubeconfig {$DIR}/absent\nstartup_timeout 100ms\n}",
    "kubernetes cluster.local {\nendpoint http://127.0.0.1:1/{$NAME}\nstartup_timeout 100ms\n}",
    "kubernetes cluster.local {\nendpoint https://user:{$NAME}@127.0.0.1:1\nstartup_timeout 100ms\n}",
    "kubernetes cluster.local {\nendpoint {$NAME}://127.0.0.1:1\nstartup_timeout 100ms\n}",
    "kubernetes cluster.local {\nendpoint https://127.0.0.1:1\ntls {$DIR}/cert.pem {$DIR}/key.pem {$DIR}/cert.pem\nstartup_timeout 100ms\n}",
    "kubernetes cluster.local {\nendpoint https://127.0.0.1:1\ntls {$DIR}/absent {$DIR}/key.pem {$DIR}/cert.pem\nstartup_timeout 100ms\n}",
    "kubernetes cluster.local {\nendpoint http://127.0.0.1:1\nsnapshot {$DIR}/hosts\nstartup_timeout 100ms\n}",
    "kubernetes cluster.local {\nendpoint http://127.0.0.1:1\nnamespaces {$NAME}\nlabels app={$NAME}\nnode {$NAME}\nstartup_timeout 100ms\n}",
    "template ANY ANY . {\nmatch .*|{$NAME}\nanswer \"a. 60 IN A {$NAME}\"\n}",
    "template ANY ANY . {\nanswer \"{{ .Name }} 60 IN A {$NAME}\"\n}",
    "template ANY ANY . {\nvar x \"'{$NAME}'\"\nanswer \"{{ .Name }} 60 IN A {{ .Var.x }}\"\n}",
    "template ANY ANY . {\nmatch (.*|{$NAME})\nanswer \"{{ .Name }} 60 IN A {{ .Regex }}\"\n}",
    "template ANY ANY . {\nexpr \"int('{$NAME}') > 1\"\nanswer \"{{ .Name }} 60 IN A 192.0.2.1\"\n}",
    "template ANY ANY . {\nanswer \"{{ slice `{$NAME}` 99 }}\"\n}",
    "errors {\nconsolidate 1s .*|{$NAME}\n}\nforward . 127.0.0.1:1",
    "rewrite name {$NAME}.example b.example\nwhoami",
    "rewrite name regex (.*)\\.{$NAME}\\.example {1}.b.example\nwhoami",
    "rewrite name exact q.example {$NAME}.test\nwhoami",
    "rewrite name exact q.example {$NAME}.test\nforward . 127.0.0.1:1",
    "rewrite name exact q.example {$NAME}.test\nforward {$NAME}.test 127.0.0.1:1",
    "rewrite name suffix q.example {$NAME}..test\nwhoami",
    "rewrite name exact q.example {$NAME}.test\nrewrite name substring test example\nautopath {$DIR}/resolv.conf\nwhoami",
    "rewrite name exact q.example {$NAME}.{$NAME}.svc.cluster.local\nkubernetes cluster.local {\nendpoint http://127.0.0.1:1\nstartup_timeout 100ms\n}",
    "rewrite name exact q.example {$NAME}.test\ntemplate IN A {$NAME}.test {\nrcode NXDOMAIN\n}",
    "rewrite name exact q.example {$NAME}.test\nacl {$NAME}.test {\nblock\n}\nwhoami",
    "template IN A q.example {$NAME}.test {\nrcode NXDOMAIN\n}",
    "forward {$NAME}.test 127.0.0.1:1",
    "hosts {$DIR}/hosts {$NAME}.test",
    "kubernetes {$NAME}.test {\nendpoint http://127.0.0.1:1\nstartup_timeout 100ms\n}",
    "autopath {$NAME}.test {$DIR}/resolv.conf\nwhoami",
    "metadata {$NAME}.test\nwhoami",
    "cache {$NAME}\nforward . 127.0.0.1:1",
    "cache 60 {$NAME}.example q.example\nforward . 127.0.0.1:1",
    "rewrite edns0 local set 0xffee {$NAME}\nwhoami",
    "log {$NAME}.example\nwhoami",
    "chaos {$NAME} {$NAME}\nwhoami",
    "nsid {$NAME}\nwhoami",
    "import {$DIR}/part",
    "import {$DIR}/absent",
    "import {$DIR}/hosts",
    "debug {$NAME}",
    "{$NAME}",
];

#[test]
fn values_of_variables_are_printed_nowhere() {
    let directory = tempdir();
    let secret = directory.path().join(SECRET);
    fs::create_dir(&secret).unwrap();
    fill(&secret);
    let variables = [("DIR", secret.to_str().unwrap()), ("NAME", SECRET)];
    let ip = fresh_ip();
    let keylog = format!(
        "tls://.:{} {{\nbind {ip}\ntls {{$DIR}}/cert.pem {{$DIR}}/key.pem {{$DIR}}/cert.pem {{\nkeylog {{$DIR}}/keys\n}}\nprometheus {ip}:9153\nwhoami\n}}\n",
        port() + 1
    );
    let block = |lines: &&str| {
        let port = port();
        format!(".:{port} {{\nbind {ip}\nprometheus {ip}:9153\n{lines}\n}}\n")
    };
    let mut leaks = Vec::new();
    for corefile in LINES.iter().map(block).chain([keylog]) {
        let file = directory.path().join("Corefile");
        fs::write(&file, &corefile).unwrap();
        let run = |args: &[&str]| {
            let mut command = Command::new(binary());
            command.args(args).arg("-conf").arg(&file).envs(variables);
            let output = output(command, PATIENCE);
            (output.status.success(), text(&output.stdout) + &text(&output.stderr))
        };
        let (is_valid, checked) = run(&["check"]);
        let explained = run(&["explain", "q.example", "A"]).1;
        let mut printed = vec![("check", checked), ("explain", explained)];
        let options =
            variables.iter().fold(Options::default(), |options, (name, value)| options.env(name, value));
        if is_valid {
            let socket = directory.path().join("socket");
            let options = options.args(["-status", socket.to_str().unwrap()]);
            let mut server = Server::start_with(&corefile, options);
            if !corefile.starts_with("tls") {
                for name in ["q.example", "a.cluster.local"] {
                    drop(Ask::new(name, "A").try_of((ip, port()).into()));
                }
            }
            // Refused for another line, with the one of the row beside it.
            server.write_corefile(&corefile.replace(&format!("prometheus {ip}:9153"), "forwrad . x"));
            server.signal("USR1");
            server.wait_for_log("Restart failed: ", PATIENCE);
            for path in ["/status", "/status.html", "/metrics"] {
                printed.push((path, http_get((ip, 9153).into(), path).unwrap().1));
            }
            let status = super::localdns(&["status", "-status", socket.to_str().unwrap()]);
            printed.push(("status", text(&status.stdout) + &text(&status.stderr)));
            server.stop();
            printed.push(("log", server.log_text()));
        } else {
            let failed = Server::expect_failure(&corefile, options);
            printed.push(("start", text(&failed.stdout) + &text(&failed.stderr)));
        }
        for (place, text) in printed {
            let found = text.lines().find(|line| line.contains(SECRET));
            leaks.extend(found.map(|line| format!("{place} of {corefile}{line}")));
        }
    }
    assert!(leaks.is_empty(), "{}", leaks.join("\n\n"));
}

#[test]
fn explain_shows_words_as_written() {
    let (directory, ip) = (tempdir(), fresh_ip());
    let of_zone = format!("x.{SECRET}.test");
    let rewrite = "rewrite name exact q.example";
    for (lines, name, expected) in [
        (
            format!("{rewrite} {{$NAME}}.test\nwhoami"),
            "q.example",
            "`rewrite name exact q.example {$NAME}.test`: A of the name that the rule makes is looked up; it answers",
        ),
        (
            format!(
                "{rewrite} a.{{$NAME}}.svc.cluster.local\nkubernetes cluster.local {{\nendpoint http://127.0.0.1:1\nnamespaces b\n}}"
            ),
            "q.example",
            "why is not shown: it names what `rewrite` makes of a variable's value",
        ),
        (
            "template IN A {$NAME}.test {\nrcode NXDOMAIN\n}".to_owned(),
            &of_zone,
            "`template IN A {$NAME}.test NXDOMAIN` matches",
        ),
        (
            "acl {$NAME}.test {\nblock\n}\nwhoami".to_owned(),
            &of_zone,
            "REFUSED: `block` of `acl {$NAME}.test` fits every client",
        ),
        ("forward {$NAME}.test 127.0.0.1:1".to_owned(), &of_zone, "`forward {$NAME}.test` asks 127.0.0.1:1"),
    ] {
        let file = directory.path().join("Corefile");
        fs::write(&file, format!(".:{} {{\nbind {ip}\n{lines}\n}}\n", port())).unwrap();
        let mut command = Command::new(binary());
        command.args(["explain", name, "A", "-conf"]).arg(&file).env("NAME", SECRET);
        let output = output(command, PATIENCE);
        let explained = text(&output.stdout) + &text(&output.stderr);
        assert!(explained.contains(expected), "{lines}: {explained}");
        assert!(!explained.replace(&of_zone, "").contains(SECRET), "{lines}: {explained}");
    }
}

/// Makes the files that the rows name.
fn fill(directory: &Path) {
    Authority::new().certify(directory, "localhost");
    for (name, content) in [
        ("hosts", "192.0.2.1 q.example\nnonsense\n"),
        ("weights", "q.example\n192.0.2.1 3\n"),
        ("resolv.conf", "search example\nnameserver 127.0.0.1\n"),
        ("part", "hosts {$DIR}/hosts\n"),
        (
            "kubeconfig",
            "apiVersion: v1\nkind: Config\ncurrent-context: there\ncontexts:\n- {name: there, context: {cluster: near, user: me}}\n\
             clusters:\n- {name: near, cluster: {server: 'https://127.0.0.1:1', certificate-authority: absent.crt}}\n\
             users:\n- {name: me, user: {tokenFile: absent}}\n",
        ),
    ] {
        fs::write(directory.join(name), content).expect("the directory is writable");
    }
}
