//! Rules in iptables' tables, in both its variants, as `iptables -S` prints them.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tests::{Action, Manager, Options, Says, Server, Upstream, ask, eventually, isolated, run, signal, tool};

use super::clients::asked_at;
use super::lab::{CLUSTER, Lab, NAME, POD, US, within};

/// The eight rules of the script are installed once and removed at the end.
#[test]
fn eight_rules_of_the_script() {
    isolated(|| {
        let Some(lab) = lab() else { return };
        for tools in both() {
            tools.run("iptables", &["-t", "raw", "-A", "OUTPUT", "-d", "192.0.2.9", "-j", "NOTRACK"]);
            let others = tools.listed("iptables", "raw");
            // A version of AKS's script adds these too.
            for answer in ANSWERS {
                tools.change("-A", answer);
            }
            let expected = sorted(&(rules() + &ANSWERS.join("\n")));
            let mut server = tools.serve(&lab, "iptables");
            assert_eq!(tools.settled(&server, 18), expected, "{}", tools.0);
            let status = tools.node(&server, &["status", "-rules", "iptables"], 0);
            assert!(status.starts_with("rules     in place\nleases    none with these rules"), "{status}");
            // `status` takes the kind of rules from the running server.
            let plain = tools.node(&server, &["status"], 0);
            assert!(plain.starts_with("rules     in place\nleases    none with these rules"), "{plain}");
            let note = "note      the running server has other rules: -rules iptables\n";
            assert!(plain.contains(note), "{plain}");
            // No address has a fallback.
            assert!(plain.contains("address   169.254.10.11  on localdns, answers\n"), "{plain}");
            let json = tools.node(&server, &["status", "-json"], 0);
            let json: serde_json::Value = serde_json::from_str(&json).expect("one object");
            for addresses in [&json["addresses"], &json["servers"][0]["addresses"]] {
                let fallbacks: Vec<_> =
                    addresses.as_array().expect("a list").iter().map(|one| &one["fallback"]).collect();
                assert_eq!(fallbacks, [&serde_json::Value::Null; 4], "{json:#}");
            }
            let up = tools.node(&server, &["up", "-rules", "iptables"], 0);
            assert!(up.contains("0 rules added, the others exist already"), "{up}");
            assert_eq!(tools.ours(), expected, "twice in a row changes nothing");

            tools.change("-D", rules().lines().next().expect("there are some"));
            assert_eq!(tools.ours().len(), 17);
            assert_eq!(tools.settled(&server, 18), expected, "what was taken away is back");

            signal(server.pid(), "KILL");
            server.wait(Duration::from_secs(5));
            assert_eq!(tools.ours(), expected, "a killed server leaves them");
            tools.change("-D", rules().lines().nth(4).expect("there are some"));
            let mut server = tools.serve(&lab, "iptables");
            assert_eq!(tools.settled(&server, 18), expected, "what is there does not come twice");
            signal(server.pid(), "TERM");
            assert!(server.wait(Duration::from_secs(15)).success());
            assert!(tools.ours().is_empty(), "{}", tools.0);
            assert_eq!(tools.listed("iptables", "raw"), others, "others' stay");
            assert!(!run("ip", &["link"]).contains("localdns"));
        }
    });
}

/// node-cache's twelve rules are installed once for each address and open a closed firewall.
#[test]
fn twelve_rules_of_node_cache() {
    isolated(|| {
        let Some(lab) = lab() else { return };
        for tools in both() {
            for program in ["iptables", "ip6tables"] {
                let established =
                    ["-A", "INPUT", "-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "ACCEPT"];
                tools.run(program, &established);
                tools.run(program, &["-A", "INPUT", "-i", "lo", "-j", "ACCEPT"]);
                tools.run(program, &["-P", "INPUT", "DROP"]);
            }
            tools.run("ip6tables", &["-A", "INPUT", "-p", "ipv6-icmp", "-j", "ACCEPT"]);
            let expected = sorted(&twelve());
            let mut server = tools.serve(&lab, "node-cache");
            assert_eq!(tools.settled(&server, 48), expected, "{}", tools.0);
            for address in ["169.254.10.10", "10.96.0.20", "169.254.10.11", "fd10::11"] {
                for tcp in [false, true] {
                    let asks = move || assert_eq!(asked_at(address, tcp), US, "{address}, TCP: {tcp}");
                    asks();
                    within(POD, asks).join().expect("it is answered");
                }
            }
            let up = tools.node(&server, &["up", "-rules", "node-cache"], 0);
            assert!(up.contains("0 rules added, the others exist already"), "{up}");
            assert_eq!(tools.ours(), expected, "twice in a row changes nothing");
            signal(server.pid(), "TERM");
            assert!(server.wait(Duration::from_secs(15)).success());
            assert!(tools.ours().is_empty(), "{}", tools.0);
            for program in ["iptables", "ip6tables"] {
                tools.run(program, &["-P", "INPUT", "ACCEPT"]);
                tools.run(program, &["-F", "INPUT"]);
            }
        }
    });
}

/// `node up` installs no rules where another program answers.
#[test]
fn up_leaves_anothers_address_alone() {
    isolated(|| {
        let Some(_lab) = lab() else { return };
        let service = "10.96.0.20:53".parse().expect("an address");
        let corefile = ".:53 {\nbind 10.96.0.20 169.254.10.10\nforward . 10.2.0.2\n}\n";
        std::fs::write("/run/Corefile", corefile).expect("the test's own");
        // Another server answers at the link-local address too: a client sees right answers
        // everywhere.
        tests::add_address("169.254.10.10/32");
        let at = (Ipv4Addr::new(169, 254, 10, 10), 53).into();
        let answer = |_: &tests::Asked| Action::Reply(Says::answer(&format!("{NAME}. 5 IN A {CLUSTER}\n")));
        let _stranger = Upstream::at(at, answer);
        let mut command = Command::new(tests::binary());
        let words = ["node", "up", "-conf", "/run/Corefile", "-host-resolver", "resolv.conf"];
        command.args(words).env("PATH", Tools("nft").path());
        let resolv_conf = std::fs::read("/etc/resolv.conf").expect("it is there");
        for rules in ["iptables", "node-cache"] {
            let mut up = Command::new(tests::binary());
            up.args(words).args(["-rules", rules]).env("PATH", Tools("nft").path());
            let output = tests::output(up, Duration::from_secs(20));
            let printed = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{output:?}");
            assert!(printed.contains("no rules added: no server is running\n"), "{printed}");
            assert!(
                printed.contains("host lookups are not sent to this server: no server is running\n"),
                "{printed}"
            );
            assert!(Tools("nft").ours().is_empty(), "{printed}");
            assert_eq!(
                ask(service, NAME, "A").short(),
                [CLUSTER],
                "-rules {rules}: who was answered still is"
            );
        }
        // The same where our server runs, but at other addresses.
        let other = ".:53 {\nbind 169.254.10.11\nforward . 10.2.0.2\n}\n";
        let options = Options::default().subcommand(&["node", "run"]);
        let server = Server::start_with(other, options.args(["-rules", "none", "-host-resolver", "none"]));
        let name = format!("@localdns-node-{}-0", server.pid());
        eventually("it listens for words", Duration::from_secs(10), || {
            std::fs::read_to_string("/proc/net/unix").ok()?.contains(&name).then_some(())
        });
        let output = tests::output(
            {
                command.args(["-rules", "iptables"]);
                command
            },
            Duration::from_secs(20),
        );
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let no_server = "does not answer: no localdns has answered a probe there\n";
        assert_eq!(printed.matches(no_server).count(), 2, "{printed}");
        assert!(Tools("nft").ours().is_empty(), "{printed}");
        assert_eq!(std::fs::read("/etc/resolv.conf").expect("it is there"), resolv_conf);
    });
}

/// No program runs if no iptables rule is ours.
#[test]
fn no_rules_no_iptables_processes() {
    isolated(|| {
        let Some(lab) = lab() else { return };
        let nft = Tools("nft");
        for table in ["raw", "filter"] {
            nft.run("iptables", &["-t", table, "-A", "OUTPUT", "-d", "192.0.2.9", "-j", "ACCEPT"]);
        }
        // Each of these programs records its calls.
        std::fs::create_dir("/run/told").expect("the test's own");
        for name in [
            "iptables",
            "iptables-save",
            "iptables-restore",
            "ip6tables",
            "ip6tables-save",
            "ip6tables-restore",
            "nft",
            "ip",
        ] {
            let path = format!("/run/told/{name}");
            std::fs::write(&path, "#!/bin/sh\necho $0 $* >> /run/called\nexit 1\n").expect("the test's own");
            run("chmod", &["755", &path]);
        }
        let server = lab.serve_with(|options| {
            options.args(["-host-resolver", "none"]).env("PATH", "/run/told:/usr/bin:/bin:/usr/sbin:/sbin")
        });
        server.wait_for_log("queries to fd10::11 are answered here", Duration::from_secs(10));
        let up = |path: &str| {
            let mut command = Command::new(tests::binary());
            command.env("PATH", path);
            nft.output(command, &server, &["up", "-host-resolver", "none"], 0)
        };
        let printed = up("/run/told");
        assert!(!printed.contains("iptables"), "{printed}");
        assert!(!Path::new("/run/called").exists(), "{:?}", std::fs::read_to_string("/run/called"));
        assert!(!server.log_text().contains("iptables"), "{}", server.log_text());
        // Removing our rule needs iptables; an image without it gets that remedy alone.
        nft.change("-A", ANSWERS[0]);
        let printed = up("/nonexistent");
        assert!(printed.contains("install iptables to remove them"), "{printed}");
        assert!(!printed.contains("-rules nft"), "{printed}");
        let printed = up(&nft.path());
        assert!(printed.contains("removed 1 iptables rules"), "{printed}");
        // Only the legacy program can list the rules of iptables-legacy.
        Tools("legacy").run("iptables", &["-t", "raw", "-S"]);
        let printed = up("/nonexistent");
        assert!(printed.contains("iptables-legacy has tables"), "{printed}");
    });
}

/// A start changes each family's tables with one program, and a second start runs none.
#[test]
fn one_iptables_process_a_family() {
    isolated(|| {
        let Some(lab) = lab() else { return };
        let tools = Tools("nft");
        std::fs::create_dir("/run/told").expect("the test's own");
        for name in ["iptables", "iptables-restore", "ip6tables", "ip6tables-restore"] {
            let script = format!(
                "#!/bin/sh\necho {name} $* >> /run/called\nexec /usr/sbin/xtables-nft-multi {name} \"$@\"\n"
            );
            let path = format!("/run/told/{name}");
            std::fs::write(&path, script).expect("the test's own");
            run("chmod", &["755", &path]);
        }
        for (rules, count) in [("iptables", 16), ("node-cache", 48)] {
            for changes in [&["iptables-restore -w 4 --noflush", "ip6tables-restore -w 4 --noflush"][..], &[]]
            {
                let _ = std::fs::remove_file("/run/called");
                let manager = Manager::new();
                let mut server = lab.serve_with(|_| {
                    let options = manager.options().subcommand(&["node", "run"]);
                    let options = options.args(["-rules", rules, "-host-resolver", "none"]);
                    options.env("PATH", &format!("/run/told:{}", tools.path()))
                });
                // READY follows once all rules are in place.
                manager.wait_for("READY=1", 1, Duration::from_secs(15));
                assert_eq!(tools.ours().len(), count);
                let called = std::fs::read_to_string("/run/called").expect("it asks what is there");
                let (reads, others): (Vec<_>, Vec<_>) =
                    called.lines().partition(|line| line.contains(" -S "));
                assert_eq!(others, changes, "-rules {rules}");
                assert!(reads.iter().all(|line| line.contains("tables -w 4 -t ")), "{called}");
                signal(server.pid(), "KILL");
                server.wait(Duration::from_secs(5));
                manager.forget();
            }
            let mut down = Command::new(tests::binary());
            down.args(["node", "down"]).env("PATH", tools.path());
            assert!(tests::output(down, Duration::from_secs(20)).status.success());
        }
    });
}

#[test]
fn down_removes_a_running_servers_rules() {
    isolated(|| {
        let Some(lab) = lab() else { return };
        for tools in both() {
            let server = tools.serve(&lab, "iptables");
            tools.settled(&server, 16);
            let printed = tools.node(&server, &["down"], 0);
            assert!(printed.contains("removed 16 iptables rules"), "{printed}");
            assert!(tools.ours().is_empty(), "{}", tools.0);
            let up = tools.node(&server, &["up", "-rules", "iptables"], 0);
            assert!(up.contains(" rules added"), "{up}");
        }
    });
}

/// Our rules are found in a firewall of many thousand rules.
#[test]
fn large_firewall_can_be_listed() {
    isolated(|| {
        let Some(lab) = lab() else { return };
        let tools = Tools("nft");
        // 1.5 MB as listed, like the rules for Services without endpoints and for network policies.
        let rule = |n: usize| {
            format!(
                "-A others -d 10.{}.{}.{}/32 -p tcp -m comment --comment \"default/a-service-with-a-name:https has no endpoints\" \
                 -m tcp --dport 443 -j REJECT --reject-with icmp-port-unreachable\n",
                n >> 16,
                n >> 8 & 255,
                n & 255
            )
        };
        let rules: String = (0..10_000).map(rule).collect();
        std::fs::write("/run/others", format!("*filter\n:others - [0:0]\n{rules}COMMIT\n"))
            .expect("the test's own");
        run("sh", &["-ec", "/usr/sbin/iptables-nft-restore --noflush < /run/others"]);
        let server = tools.serve(&lab, "node-cache");
        assert_eq!(tools.settled(&server, 48), sorted(&twelve()));
        let printed = tools.node(&server, &["down"], 0);
        assert!(printed.contains("removed 48 iptables rules"), "{printed}");
    });
}

/// What iptables lacks is reported with its remedy.
#[test]
fn missing_iptables_parts_have_a_remedy() {
    isolated(|| {
        let Some(lab) = lab() else { return };
        if !tool("iptables", "setpriv") {
            return;
        }
        let server = Tools("legacy").serve(&lab, "none");
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", "-net_raw", "--"]).arg(tests::binary());
        let text = Tools("legacy").output(command, &server, &["status", "-rules", "iptables"], 1);
        assert!(text.contains("iptables-legacy needs CAP_NET_RAW besides CAP_NET_ADMIN"), "{text}");
        let mut command = Command::new(tests::binary());
        command.env("PATH", "/nonexistent");
        let text = Tools("nft").output(command, &server, &["status", "-rules", "iptables"], 1);
        assert!(text.contains("install iptables, or use `-rules nft`"), "{text}");
    });
}

pub(super) fn lab() -> Option<Lab> {
    ["/usr/sbin/xtables-nft-multi", "/usr/sbin/xtables-legacy-multi"]
        .iter()
        .all(|program| tool("iptables", program))
        .then(Lab::new)
}

/// One variant of iptables, under the usual program names.
pub(super) struct Tools(pub(super) &'static str);

pub(super) fn both() -> [Tools; 2] {
    [Tools("nft"), Tools("legacy")]
}

impl Tools {
    /// A PATH that starts with this variant.
    pub(super) fn path(&self) -> String {
        let directory = format!("/run/iptables-{}", self.0);
        std::fs::create_dir_all(&directory).expect("/run is ours");
        for name in ["iptables", "iptables-restore", "ip6tables", "ip6tables-restore"] {
            let link = Path::new(&directory).join(name);
            if !link.is_symlink() {
                let program = format!("/usr/sbin/xtables-{}-multi", self.0);
                std::os::unix::fs::symlink(program, link).expect("/run is ours");
            }
        }
        format!("{directory}:{}", std::env::var("PATH").unwrap_or_default())
    }

    pub(super) fn serve(&self, lab: &Lab, rules: &'static str) -> Server {
        let how = |options: Options| {
            options.args(["-rules", rules, "-host-resolver", "none"]).env("PATH", &self.path())
        };
        lab.serve_with(how)
    }

    fn run(&self, program: &str, args: &[&str]) -> String {
        run(&format!("/usr/sbin/{}", program.replacen("tables", &format!("tables-{}", self.0), 1)), args)
    }

    fn listed(&self, program: &str, table: &str) -> String {
        self.run(program, &["-t", table, "-S"])
    }

    /// Runs this change with an IPv4 rule of the table `raw`, written as `iptables -S` prints it.
    pub(super) fn change(&self, how: &str, rule: &str) {
        let (before, rest) = rule.split_once(" \"").expect("it has a comment");
        let (comment, after) = rest.split_once("\" ").expect("the comment ends");
        let before = before.split(' ').skip(1);
        let words = ["-t", "raw", how].into_iter().chain(before).chain([comment]).chain(after.split(' '));
        self.run("iptables", &words.collect::<Vec<_>>());
    }

    /// Our rules of both families, sorted.
    pub(super) fn ours(&self) -> Vec<String> {
        let mut all = String::new();
        for program in ["iptables", "ip6tables"] {
            for table in ["raw", "filter"] {
                all += &self.listed(program, table);
            }
        }
        let mut ours = sorted(&all);
        ours.retain(|line| COMMENTS.iter().any(|comment| line.contains(comment)));
        ours
    }

    /// Waits for this number of rules and returns them.
    pub(super) fn settled(&self, server: &Server, count: usize) -> Vec<String> {
        let waited = std::panic::catch_unwind(|| {
            eventually(&format!("{count} rules"), Duration::from_secs(15), || {
                let ours = self.ours();
                (ours.len() == count).then_some(ours)
            })
        });
        waited.unwrap_or_else(|_| panic!("{:#?}\n{}", self.ours(), server.log_text()))
    }

    fn node(&self, server: &Server, words: &[&str], code: i32) -> String {
        let mut command = Command::new(tests::binary());
        command.env("PATH", self.path());
        self.output(command, server, words, code)
    }

    fn output(&self, mut command: Command, server: &Server, words: &[&str], code: i32) -> String {
        if command.get_envs().next().is_none() {
            command.env("PATH", self.path());
        }
        command.arg("node").args(words);
        if words != ["down"] {
            command.arg("-conf").arg(server.path("Corefile"));
        }
        let output = tests::output(command, Duration::from_secs(20));
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{text}");
        text.into_owned()
    }
}

/// Production's rules for three addresses, and the same for one IPv6 address.
fn rules() -> String {
    ADDRESSES.map(|ip| FOUR.replace("IP", ip)).concat()
}

/// node-cache's rules for the same addresses.
fn twelve() -> String {
    ADDRESSES.map(|ip| TWELVE.replace("IP", ip)).concat()
}

/// The eight rules of AKS's script.
pub(super) fn scripts_rules() -> Vec<String> {
    ["169.254.10.10/32", "169.254.10.11/32"]
        .map(|ip| FOUR.replace("IP", ip))
        .concat()
        .lines()
        .map(str::to_owned)
        .collect()
}

fn sorted(rules: &str) -> Vec<String> {
    let mut lines: Vec<_> = rules.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

const COMMENTS: [&str; 2] = ["localdns: skip conntrack", "NodeLocal DNS Cache: "];
const ADDRESSES: [&str; 4] = ["10.96.0.20/32", "169.254.10.10/32", "169.254.10.11/32", "fd10::11/128"];
const TWELVE: &str = "\
-A PREROUTING -d IP -p tcp -m tcp --dport 53 -m comment --comment \"NodeLocal DNS Cache: skip conntrack\" -j NOTRACK
-A PREROUTING -d IP -p udp -m udp --dport 53 -m comment --comment \"NodeLocal DNS Cache: skip conntrack\" -j NOTRACK
-A INPUT -d IP -p tcp -m tcp --dport 53 -m comment --comment \"NodeLocal DNS Cache: allow DNS traffic\" -j ACCEPT
-A INPUT -d IP -p udp -m udp --dport 53 -m comment --comment \"NodeLocal DNS Cache: allow DNS traffic\" -j ACCEPT
-A OUTPUT -s IP -p tcp -m tcp --sport 53 -m comment --comment \"NodeLocal DNS Cache: skip conntrack\" -j NOTRACK
-A OUTPUT -s IP -p udp -m udp --sport 53 -m comment --comment \"NodeLocal DNS Cache: skip conntrack\" -j NOTRACK
-A OUTPUT -s IP -p tcp -m tcp --sport 53 -m comment --comment \"NodeLocal DNS Cache: allow DNS traffic\" -j ACCEPT
-A OUTPUT -s IP -p udp -m udp --sport 53 -m comment --comment \"NodeLocal DNS Cache: allow DNS traffic\" -j ACCEPT
-A OUTPUT -d IP -p tcp -m tcp --dport 53 -m comment --comment \"NodeLocal DNS Cache: skip conntrack\" -j NOTRACK
-A OUTPUT -d IP -p udp -m udp --dport 53 -m comment --comment \"NodeLocal DNS Cache: skip conntrack\" -j NOTRACK
-A OUTPUT -d IP -p tcp -m tcp --dport 8080 -m comment --comment \"NodeLocal DNS Cache: skip conntrack\" -j NOTRACK
-A OUTPUT -s IP -p tcp -m tcp --sport 8080 -m comment --comment \"NodeLocal DNS Cache: skip conntrack\" -j NOTRACK
";
const FOUR: &str = "\
-A PREROUTING -d IP -p tcp -m comment --comment \"localdns: skip conntrack\" -m tcp --dport 53 -j NOTRACK
-A PREROUTING -d IP -p udp -m comment --comment \"localdns: skip conntrack\" -m udp --dport 53 -j NOTRACK
-A OUTPUT -d IP -p tcp -m comment --comment \"localdns: skip conntrack\" -m tcp --dport 53 -j NOTRACK
-A OUTPUT -d IP -p udp -m comment --comment \"localdns: skip conntrack\" -m udp --dport 53 -j NOTRACK
";
const ANSWERS: [&str; 2] = [
    "-A OUTPUT -s 169.254.10.10/32 -p tcp -m comment --comment \"localdns: skip conntrack\" -m tcp --sport 53 -j NOTRACK",
    "-A OUTPUT -s 169.254.10.10/32 -p udp -m comment --comment \"localdns: skip conntrack\" -m udp --sport 53 -j NOTRACK",
];
