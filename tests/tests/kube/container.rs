//! Runs the Deployment's pod as far as that is possible without kubelet: the program with the
//! manifest's arguments, user, capabilities, volumes and sysctls, in its own network, against the
//! real API with only the manifest's role.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use tests::kube::{Cluster, NAMESPACES};
use tests::{
    Action, Ask, Pod, Says, Server, Upstream, add_address, ask, eventually, fresh_ip, http_get, isolated_for,
    output, run, skip, tempdir, tool, wire, within,
};
use yaml_rust2::yaml::Hash;
use yaml_rust2::{Yaml, YamlEmitter};

use super::deployed::{manifest, of_kind, parsed, path_of};

/// What the Deployment runs serves with no more than the manifest gives it.
#[test]
fn container_with_manifest_privileges() {
    const TEST: &str = "container_with_manifest_privileges";
    isolated_for(Duration::from_secs(400), || {
        if !["setpriv", "nsenter"].into_iter().all(|program| tool(TEST, program)) {
            return;
        }
        if chown(tempdir().path(), None, Some(65_532)).is_err() {
            return skip(TEST, "files cannot be given to another user here (try as root)");
        }
        run("mount", &["-t", "tmpfs", "tmpfs", "/run"]);
        wire(POD, 5);
        add_address(&format!("{SERVICE_HOST}/32"));
        let Some(cluster) = Cluster::up_at("0.0.0.0", TEST) else { return };
        for path in ["clusterroles/localdns", "clusterrolebindings/localdns"] {
            let (status, body) =
                cluster.send("DELETE", &format!("/apis/rbac.authorization.k8s.io/v1/{path}"), "");
            assert_eq!(status, 200, "{body}");
        }
        fill(&cluster);
        let (rights, rest): (Vec<String>, Vec<String>) = documents("localdns.yaml")
            .into_iter()
            .partition(|text| text.contains("rbac.authorization.k8s.io/v1\n"));
        assert_eq!(rights.len(), 2);
        apply(&cluster, &rest);
        let upstream = Upstream::start([10, 5, 0, 1].into(), |_| {
            Action::Reply(Says::answer("example.com. 60 IN A 192.0.2.80"))
        });
        fs::write("/etc/resolv.conf", "nameserver 10.5.0.1\n").expect("a file of its own");
        let container = Container::new(&cluster);

        // Without a permission it logs which one is missing, and is not ready.
        let first = container.start();
        until_logged(&first, "bind the account to the ClusterRole system:coredns");
        container.until_alive();
        assert_eq!(container.probe("readinessProbe").0, 503);
        nothing_is_guessed(&cluster, &upstream);
        apply(&cluster, &rights);
        eventually("readiness", PATIENCE, || (container.probe("readinessProbe").0 == 200).then_some(()));
        container.answers();
        container.has_no_privilege(&first);
        container.accepts_another_corefile();
        let snapshot = container.snapshot.path().join("cluster");
        eventually("a snapshot", PATIENCE, || snapshot.exists().then_some(()));
        let owner = fs::metadata(&snapshot).expect("it is there");
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&owner), 65_532);
        let mut first = first;
        assert_eq!(first.end(), Some(0), "{}", first.log());

        // The container restarts in its pod while the API is down.
        cluster.lose();
        let second = container.start();
        until_logged(&second, "Answers are from the snapshot");
        container.until_alive();
        assert_eq!(container.probe("readinessProbe").0, 200);
        container.answers();
        cluster.start();
        until_logged(&second, "the snapshot is not used any more");
        container.answers();
    });
}

/// The pod meets the restricted standard, and the API accepts it.
#[test]
fn restricted_pod_is_accepted() {
    isolated_for(Duration::from_secs(300), || {
        let test = "restricted_pod_is_accepted";
        let Some(cluster) = Cluster::up(test) else { return };
        let labels = r#"{"pod-security.kubernetes.io/enforce": "restricted"}"#;
        cluster.create(NAMESPACES, &format!(r#"{{"metadata": {{"name": "strict", "labels": {labels}}}}}"#));
        let pod = |change: fn(&str) -> String| {
            let spec = deployment()["spec"]["template"]["spec"].clone();
            let field = |name: &str| Yaml::String(name.to_owned());
            let mut object = Hash::new();
            object
                .insert(field("metadata"), Yaml::Hash(Hash::from_iter([(field("name"), field("localdns"))])));
            object.insert(field("spec"), spec);
            let mut text = String::new();
            YamlEmitter::new(&mut text).dump(&Yaml::Hash(object)).expect("a text takes all");
            let path = "/api/v1/namespaces/strict/pods?dryRun=All&fieldValidation=Strict";
            cluster.send_in("application/yaml", "POST", path, &change(&text))
        };
        let (status, body) = pod(str::to_owned);
        assert_eq!(status, 201, "{body}");
        // The admission check works: it refuses these changes.
        for change in [
            |text: &str| text.replace("NET_BIND_SERVICE", "NET_ADMIN"),
            |text: &str| text.replace("runAsNonRoot: true", "runAsNonRoot: false"),
            |text: &str| text.replace("net.ipv4.ip_unprivileged_port_start", "net.ipv4.ip_forward"),
        ] {
            let (status, body) = pod(change);
            assert!(status == 403 && body.contains("violates PodSecurity"), "{status} {body}");
        }
    });
}

/// The Deployment's pod spec, and the directories in place of the volumes that it mounts.
struct Container {
    spec: Yaml,
    config: TempDir,
    account: TempDir,
    snapshot: TempDir,
}

impl Container {
    /// Volumes as kubelet makes them, owned by the pod's group.
    fn new(cluster: &Cluster) -> Self {
        let spec = deployment()["spec"]["template"]["spec"].clone();
        let group = Some(number(&spec["securityContext"]["fsGroup"]));
        let (config, account, snapshot) = (tempdir(), tempdir(), tempdir());
        let this = Self { spec, config, account, snapshot };
        this.configure("first", |text| text.to_owned());
        for name in ["token", "ca.crt", "namespace"] {
            let file = this.account.path().join(name);
            fs::copy(cluster.path("serviceaccount").join(name), &file).expect("the test's own");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o440)).expect("the test's own");
            chown(&file, None, group).expect("root may");
        }
        for (place, mode) in [(&this.config, 0o755), (&this.account, 0o750), (&this.snapshot, 0o2777)] {
            chown(place.path(), None, group).expect("root may");
            fs::set_permissions(place.path(), fs::Permissions::from_mode(mode)).expect("the test's own");
        }
        this
    }

    /// Publishes a ConfigMap's file like kubelet: through two symlinks, one of which is replaced.
    fn configure(&self, version: &str, change: impl Fn(&str) -> String) {
        let place = self.config.path();
        let corefile = of_kind(&parsed(&manifest("localdns.yaml")), "ConfigMap")["data"]["Corefile"].clone();
        let versioned = place.join(format!("..{version}"));
        fs::create_dir(&versioned).expect("the test's own");
        fs::write(versioned.join("Corefile"), change(corefile.as_str().expect("a text")))
            .expect("the test's own");
        symlink(format!("..{version}"), place.join("..data_tmp")).expect("the test's own");
        fs::rename(place.join("..data_tmp"), place.join("..data")).expect("the test's own");
        if !place.join("Corefile").exists() {
            symlink("..data/Corefile", place.join("Corefile")).expect("the test's own");
        }
    }

    /// Starts the process with the manifest's settings, as PID 1, on a read-only root.
    fn start(&self) -> Pod {
        let (pod, container) = (&self.spec["securityContext"], &self.spec["containers"][0]);
        let security = &container["securityContext"];
        assert_eq!(security["readOnlyRootFilesystem"].as_bool(), Some(true));
        assert_eq!(security["allowPrivilegeEscalation"].as_bool(), Some(false));
        let capabilities: String = strings(&security["capabilities"]["add"])
            .iter()
            .map(|name| format!(",+{}", name.to_lowercase()))
            .collect();
        let sysctls: String = pod["sysctls"]
            .as_vec()
            .expect("a list")
            .iter()
            .map(|sysctl| {
                let path = sysctl["name"].as_str().expect("a name").replace('.', "/");
                format!("echo {} > /proc/sys/{path}\n", sysctl["value"].as_str().expect("a text"))
            })
            .collect();
        let mount = |name: &str| {
            let mounts = container["volumeMounts"].as_vec().expect("a list");
            let mount = mounts.iter().find(|mount| mount["name"].as_str() == Some(name));
            mount.and_then(|mount| mount["mountPath"].as_str()).expect("it is mounted").to_owned()
        };
        let (user, group, own) =
            (number(&pod["runAsUser"]), number(&pod["runAsGroup"]), number(&pod["fsGroup"]));
        let (corefile, snapshot) = (mount("corefile"), mount("snapshot"));
        let prepare = format!(
            "{sysctls}cp \"$1\" /run/localdns
            shift
            mkdir -p {corefile} {ACCOUNT}
            mount --bind \"$CONFIG\" {corefile}
            mount --bind \"$ACCOUNT\" {ACCOUNT}
            mount -t tmpfs tmpfs $(dirname {snapshot})
            mkdir {snapshot}
            mount --bind \"$SNAPSHOT\" {snapshot}
            while read -r _ _ _ _ place _; do
                case $place in
                    {snapshot} | /proc* | /dev* | /sys*) ;;
                    *) mount -o remount,bind,ro \"$place\" 2> /dev/null || true ;;
                esac
            done < /proc/self/mountinfo
            export KUBERNETES_SERVICE_HOST={SERVICE_HOST} KUBERNETES_SERVICE_PORT=6443
            cd /
            set -- setpriv --reuid {user} --regid {group} --groups {own} --bounding-set=-all{capabilities} \\
                --inh-caps=-all --no-new-privs /run/localdns \"$@\""
        );
        let words = strings(&container["args"]);
        let [config, account, snapshot] =
            [&self.config, &self.account, &self.snapshot].map(|place| place.path().to_owned());
        let start = move || {
            let places: [(&str, &Path); 3] =
                [("CONFIG", &config), ("ACCOUNT", &account), ("SNAPSHOT", &snapshot)];
            Pod::start(&prepare, &places, &words)
        };
        within(POD, start).join().expect("it starts")
    }

    /// Sends a probe like kubelet and returns the HTTP status, 0 without a connection.
    fn probe(&self, name: &str) -> (u16, String) {
        let get = &self.spec["containers"][0][name]["httpGet"];
        let port = u16::try_from(number(&get["port"])).expect("a port");
        let path = get["path"].as_str().expect("a path");
        http_get(SocketAddr::from((AT.ip(), port)), path).unwrap_or_default()
    }

    fn until_alive(&self) {
        eventually("the server's life", PATIENCE, || (self.probe("livenessProbe").0 == 200).then_some(()));
    }

    fn answers(&self) {
        for (name, rtype, expected) in [
            ("kubernetes.default.svc.cluster.local", "A", "10.96.0.1"),
            ("web.t1.svc.cluster.local", "A", "10.96.7.1"),
            ("_http._tcp.web.t1.svc.cluster.local", "SRV", "0 100 80 web.t1.svc.cluster.local."),
            ("1.7.96.10.in-addr.arpa", "PTR", "web.t1.svc.cluster.local."),
            ("1-2-3-4.t1.pod.cluster.local", "A", "1.2.3.4"),
            // Answered by the node's resolver.
            ("example.com", "A", "192.0.2.80"),
        ] {
            assert_eq!(ask(AT, name, rtype).short(), [expected], "{name}");
            assert_eq!(Ask::new(name, rtype).tcp().of(AT).short(), [expected], "{name} over TCP");
        }
        let port = self.spec["containers"][0]["ports"].as_vec().expect("a list").iter();
        let metrics = port.clone().find(|port| port["name"].as_str() == Some("metrics")).expect("it has one");
        let metrics = u16::try_from(number(&metrics["containerPort"])).expect("a port");
        let (status, page) = http_get((AT.ip(), metrics).into(), "/metrics").expect("it is there");
        assert!(status == 200 && page.contains("\ncoredns_dns_requests_total{"), "{page}");
    }

    /// The process may listen on port 53 and write its snapshot, and has no other privilege.
    fn has_no_privilege(&self, pod: &Pod) {
        let status = fs::read_to_string(format!("/proc/{}/status", pod.pid)).expect("it runs");
        for line in [
            "Uid:\t65532\t65532\t65532\t65532",
            "Gid:\t65532\t65532\t65532\t65532",
            "CapEff:\t0000000000000000",
            "CapPrm:\t0000000000000000",
            // Only NET_BIND_SERVICE.
            "CapBnd:\t0000000000000400",
            "NoNewPrivs:\t1",
        ] {
            assert!(status.contains(line), "{line}: {status}");
        }
        for (place, may) in
            [("/x", false), ("/run/x", false), ("/etc/coredns/x", false), ("/var/lib/localdns/x", true)]
        {
            let mut command = Command::new("nsenter");
            command.args(["--target", &pod.pid.to_string(), "--mount", "touch", place]);
            assert_eq!(output(command, PATIENCE).status.success(), may, "{place}");
        }
    }

    /// `reload` applies a change of the ConfigMap.
    fn accepts_another_corefile(&self) {
        self.configure("second", |text| text.replace("ttl 30", "ttl 7"));
        eventually("another TTL", Duration::from_secs(90), || {
            ask(AT, "web.t1.svc.cluster.local", "A").rows()[0].contains(" 7 ").then_some(())
        });
    }
}

/// Before the role is granted, names of the cluster are unknown: they are answered SERVFAIL and
/// never forwarded, also with `fallthrough`.
fn nothing_is_guessed(cluster: &Cluster, upstream: &Upstream) {
    let with_fallthrough = SocketAddr::from((fresh_ip(), 53));
    let server = Server::start(&format!(
        ".:53 {{\nbind {ip}\nready {ip}:8181\nkubernetes cluster.local in-addr.arpa ip6.arpa {{\nkubeconfig {}\nstartup_timeout 100ms\n\
         pods verified\nfallthrough\n}}\nk8s_external example.org {{\nheadless\nfallthrough\n}}\nforward . {}\n}}\n",
        cluster.path("dns.kubeconfig").display(),
        upstream.word(),
        ip = with_fallthrough.ip(),
    ));
    server.wait_for_log("may not watch services", PATIENCE);
    for at in [AT, with_fallthrough] {
        for (name, rtype) in [
            ("web.t1.svc.cluster.local", "A"),
            ("_http._tcp.web.t1.svc.cluster.local", "SRV"),
            ("absent.t1.svc.cluster.local", "AAAA"),
            ("1.7.96.10.in-addr.arpa", "PTR"),
            ("1-2-3-4.t1.pod.cluster.local", "A"),
            ("web.t1.example.org", "A"),
            ("_http._tcp.web.t1.example.org", "SRV"),
        ] {
            // The manifest's Corefile has no `k8s_external`.
            if at == AT && name.ends_with("example.org") {
                continue;
            }
            let ask = Ask::new(name, rtype).edns(1232);
            for reply in [ask.of(at), ask.tcp().of(at)] {
                let code = reply.extended_error().map(|(code, _)| code);
                assert_eq!((reply.status(), code), ("SERVFAIL", Some(14)), "{name} at {at}");
            }
        }
        assert_eq!(ask(at, "example.com", "A").short(), ["192.0.2.80"]);
    }
    assert_eq!(http_get((with_fallthrough.ip(), 8181).into(), "/ready").expect("it is there").0, 503);
    let names: Vec<_> = upstream.asked().into_iter().map(|asked| asked.name).collect();
    let is_of_cluster = |name: &&String| {
        ["cluster.local.", "10.in-addr.arpa.", "example.org."].iter().any(|zone| name.ends_with(zone))
    };
    assert!(names.iter().any(|name| name == "example.com."), "{names:?}");
    assert_eq!(names.iter().find(is_of_cluster), None, "{names:?}");
}

fn fill(cluster: &Cluster) {
    cluster.create(NAMESPACES, r#"{"metadata": {"name": "t1"}}"#);
    let spec = r#"{"clusterIP": "10.96.7.1", "ports": [{"name": "http", "port": 80}]}"#;
    let web = format!(r#"{{"metadata": {{"name": "web"}}, "spec": {spec}}}"#);
    cluster.create("/api/v1/namespaces/t1/services", &web);
}

/// The documents of a manifest, each as text.
pub(super) fn documents(name: &str) -> Vec<String> {
    let text = manifest(name);
    text.split("\n---\n").filter(|text| text.contains("kind:")).map(|text| format!("{text}\n")).collect()
}

/// `kubectl apply --server-side`.
pub(super) fn apply(cluster: &Cluster, documents: &[String]) {
    for text in documents {
        let [document] = &parsed(text)[..] else { panic!("one document: {text}") };
        let name = document["metadata"]["name"].as_str().expect("a name");
        let path =
            format!("{}/{name}?fieldManager=test&force=true&fieldValidation=Strict", path_of(document));
        let (status, body) = cluster.send_in("application/apply-patch+yaml", "PATCH", &path, text);
        assert!(matches!(status, 200 | 201), "{name}: {status} {body}");
    }
}

fn until_logged(pod: &Pod, part: &str) {
    eventually(part, PATIENCE, || pod.log().contains(part).then_some(()));
}

fn deployment() -> Yaml {
    of_kind(&parsed(&manifest("localdns.yaml")), "Deployment")
}

fn number(value: &Yaml) -> u32 {
    value.as_i64().and_then(|number| u32::try_from(number).ok()).expect("a number")
}

fn strings(list: &Yaml) -> Vec<String> {
    list.as_vec().expect("a list").iter().map(|word| word.as_str().expect("a word").to_owned()).collect()
}

const POD: &str = "pod";
/// The pod's address, made by [`wire`].
const AT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 5, 0, 2)), 53);
/// The address of the Service `kubernetes`, which is the API's own here.
const SERVICE_HOST: &str = "10.96.0.1";
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const PATIENCE: Duration = Duration::from_secs(90);
