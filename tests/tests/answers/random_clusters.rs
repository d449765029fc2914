//! Random clusters: namespaces, services, slices and pods, and the queries for them.

use serde_json::{Value, json};
use tests::kube::Object;

use crate::cluster::{ROWS, SEARCHED, namespace, pod, service, setup, slice, to_go};
use crate::corefiles::block;
use crate::external;
use crate::random_numbers::Dice;
use crate::run::Setup;

/// The cluster with this number, with a random Corefile.
pub(crate) fn cluster(seed: u64, number: u64) -> Setup {
    let mut drawn = Drawn {
        dice: Dice::new(seed ^ number.wrapping_mul(0xd1b5_4a32_d192_ed03)),
        objects: Vec::new(),
        names: Vec::new(),
        outside: Vec::new(),
    };
    drawn.namespaces();
    for n in 0..12 {
        drawn.service(n);
    }
    for n in 0..8 {
        drawn.pod(n);
    }
    let text = drawn.corefile();
    if text.contains("k8s_external ") {
        drawn.names.append(&mut drawn.outside);
    }
    drawn.names.sort();
    drawn.names.dedup();
    let name = format!("cluster {number} {{ {} }}", text.replace('\n', "; "));
    setup(&name, text, drawn.objects, drawn.names)
}

struct Drawn {
    dice: Dice,
    objects: Vec<Object>,
    /// Names to query.
    names: Vec<String>,
    /// Names to query where `k8s_external` is used.
    outside: Vec<String>,
}

impl Drawn {
    /// Some of the objects' namespaces, always that of the client.
    fn namespaces(&mut self) {
        for name in SPACES {
            let labels = if self.dice.one_in(2) { json!({"team": "dns"}) } else { json!({}) };
            if name == "t1" || !self.dice.one_in(4) {
                self.objects.push(namespace(name, &labels));
            }
            self.names.push(format!("{name}.svc.cluster.local"));
            self.names.push(format!("{name}.pod.cluster.local"));
            self.outside.push(format!("{name}.example.org"));
        }
        self.outside.extend(["example.org", "dns.example.org", "ns1.dns.example.org"].map(str::to_owned));
        self.objects.push(pod("t1", "client", &["127.0.0.1"]));
    }

    fn labels(&mut self) -> Value {
        match self.dice.below(3) {
            0 => json!({}),
            1 => json!({"app": "web"}),
            _ => json!({"app": "other"}),
        }
    }

    /// A service with slices, unless it exists.
    fn service(&mut self, n: u64) {
        let space = *self.dice.of(&SPACES);
        let name = format!("s{}", self.dice.below(8));
        let ports = self.ports();
        let is_there = |(_, object): &Object| {
            object["metadata"]["name"] == *name && object["metadata"]["namespace"] == space
        };
        if !self.objects.iter().any(is_there) {
            let (labels, spec) = (self.labels(), self.spec(n, &ports));
            let (path, mut object) = service(space, &name, &labels, spec);
            if self.dice.one_in(3) {
                object["status"] = json!({"loadBalancer": {"ingress": self.ingress(n)}});
            }
            self.objects.push((path, object));
        }
        for part in 0..self.dice.below(3) {
            let part = format!("{name}-{n}-{part}");
            let slice = self.slice(space, &name, &part, &ports);
            self.objects.push(slice);
        }
        self.ask_for(&format!("{name}.{space}.svc.cluster.local"));
        self.names.push(format!("{n}.0.96.10.in-addr.arpa"));
        self.outside.push(format!("{n}.2.0.192.in-addr.arpa"));
        self.outside.push(format!("{n}.200.168.192.in-addr.arpa"));
        self.outside.push(format!("{n:x}{}.8.b.d.0.1.0.0.2.ip6.arpa", ".0".repeat(23)));
    }

    /// The addresses of a load balancer, sometimes a name.
    fn ingress(&mut self, n: u64) -> Value {
        let four = json!({"ip": format!("192.0.2.{n}")});
        let six = json!({"ip": format!("2001:db8::{n:x}")});
        match self.dice.below(5) {
            0 | 1 => json!([four]),
            2 => json!([six, four]),
            3 => json!([{"ip": "192.0.2.1"}, four]),
            // The API refuses a host name that is an address.
            _ => json!([{"hostname": self.dice.of(&TARGETS[..3])}]),
        }
    }

    fn ports(&mut self) -> Vec<Value> {
        let mut port = |nth| {
            let name = if self.dice.one_in(4) { String::new() } else { format!("p{nth}") };
            let protocol = *self.dice.of(&["TCP", "UDP", "SCTP"]);
            json!({"name": name, "protocol": protocol, "port": 1 + self.dice.below(65_535)})
        };
        (0..3).map(&mut port).collect()
    }

    fn spec(&mut self, n: u64, ports: &[Value]) -> Value {
        let own = format!("10.96.0.{n}");
        let mut spec = match self.dice.below(5) {
            0 | 1 => json!({"clusterIP": "None", "clusterIPs": ["None"]}),
            2 => json!({"type": "ExternalName", "externalName": self.dice.of(&TARGETS)}),
            3 => json!({"clusterIP": own, "clusterIPs": [own, format!("fd00:96::{n}")]}),
            _ => json!({"clusterIP": own, "clusterIPs": [own]}),
        };
        spec["ports"] = json!(ports[..self.dice.below(4) as usize]);
        if self.dice.one_in(6) {
            spec["externalIPs"] = json!([format!("192.168.200.{n}")]);
        }
        spec
    }

    fn slice(&mut self, space: &str, of: &str, name: &str, ports: &[Value]) -> Object {
        let six = self.dice.one_in(3);
        let endpoints: Vec<Value> = (0..self.dice.below(4)).map(|_| self.endpoint(six)).collect();
        let ports: Vec<Value> = ports.iter().filter(|_| !self.dice.one_in(5)).cloned().collect();
        let family = if six { "IPv6" } else { "IPv4" };
        let (path, mut object) = slice(space, name, of, family, &json!(endpoints), &json!(ports));
        if self.dice.one_in(3) {
            object["metadata"]["labels"]["app"] = "other".into();
        }
        (path, object)
    }

    fn endpoint(&mut self, six: bool) -> Value {
        let last = 1 + self.dice.below(9);
        let address = if six { format!("fd00:17::{last}") } else { format!("172.17.0.{last}") };
        let mut endpoint = json!({"addresses": [address], "conditions": {}});
        if !self.dice.one_in(5) {
            endpoint["conditions"]["ready"] = json!(!self.dice.one_in(4));
        }
        if self.dice.one_in(4) {
            endpoint["conditions"]["serving"] = json!(self.dice.one_in(2));
        }
        if self.dice.one_in(2) {
            endpoint["hostname"] = json!(format!("h{}", self.dice.below(4)));
        }
        if self.dice.one_in(2) {
            let name = format!("pod-{}", self.dice.below(8));
            endpoint["targetRef"] = json!({"kind": "Pod", "name": name});
        }
        if self.dice.one_in(2) {
            endpoint["zone"] = json!(format!("z{}", self.dice.below(3)));
        }
        endpoint
    }

    /// A pod, with its own address or another pod's.
    fn pod(&mut self, n: u64) {
        let space = *self.dice.of(&SPACES);
        let last = 1 + self.dice.below(9);
        let addresses = [format!("172.17.0.{last}"), format!("fd00:17::{last}")];
        let count = 1 + self.dice.below(2) as usize;
        let addresses: Vec<&str> = addresses[..count].iter().map(String::as_str).collect();
        let (path, mut object) = pod(space, &format!("pod-{n}"), &addresses);
        object["status"]["phase"] =
            (*self.dice.of(&["Running", "Running", "Pending", "Succeeded", "Failed"])).into();
        let pod = (path, object);
        self.objects.push(if self.dice.one_in(4) { to_go(pod) } else { pod });
        for name in [format!("172-17-0-{last}"), format!("fd00-17--{last}")] {
            self.names.push(format!("{name}.{space}.pod.cluster.local"));
        }
    }

    /// A service's names: some that may exist, and some that do not.
    fn ask_for(&mut self, service: &str) {
        self.names.push(service.to_owned());
        let from_outside = service.replace(".svc.cluster.local", ".example.org");
        let (last, label) = (1 + self.dice.below(9), self.dice.below(4));
        let protocol = *self.dice.of(&["tcp", "udp", "sctp", "TCP"]);
        for label in [
            format!("h{label}"),
            format!("pod-{}", self.dice.below(8)),
            format!("172-17-0-{last}"),
            format!("fd00-17--{last}"),
            format!("_p{label}._{protocol}"),
            format!("p{label}.{protocol}"),
            format!("z{label}.pin._zone"),
            format!("z{label}.prefer._zone"),
            format!("x.h{label}"),
        ] {
            self.names.push(format!("{label}.{service}"));
            if !label.contains("._zone") {
                self.outside.push(format!("{label}.{from_outside}"));
            }
        }
        self.outside.push(from_outside);
        self.names.push(format!("{last}.0.17.172.in-addr.arpa"));
        self.names.push(format!("{last}{}.7.1.0.0.0.0.d.f.ip6.arpa", ".0".repeat(23)));
        if self.dice.one_in(2) {
            // Also queries the name with the search domain that the client's resolver appends.
            let short = service.trim_end_matches(".svc.cluster.local");
            self.names.push(format!("{short}.t1.svc.cluster.local"));
            self.names.push(format!("{short}.svc.cluster.local.t1.svc.cluster.local"));
        }
    }

    fn corefile(&mut self) -> String {
        if self.dice.one_in(4) {
            let directives: &&str = self.dice.of(SEARCHED);
            return block(directives);
        }
        if self.dice.one_in(5) {
            return external::corefile(self.dice.of(external::ROWS));
        }
        let &(zones, properties, around) = self.dice.of(ROWS);
        let others = !self.dice.one_in(2);
        // `multicluster` requires its own zone among the zones.
        let is_free = !properties.contains("multicluster");
        let zones = if others && is_free { "cluster.local in-addr.arpa ip6.arpa" } else { zones };
        block(&format!("{around}\nkubernetes {zones} {{\nendpoint @API@\n{properties}\n}}"))
    }
}

const SPACES: [&str; 3] = ["t1", "t2", "t3"];
const TARGETS: [&str; 4] = ["a.target.test", "s1.t1.svc.cluster.local", "nx.target.test", "192.0.2.7"];
