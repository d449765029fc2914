//! Answers to clients while names are refreshed.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use tests::{
    Action, Ask, Options, Says, Server, Stream, Upstream, ask, assert_contains, eventually, fresh_ip, output,
    publish, tempdir, tool,
};

use super::{EVERY_5_S, NAMES, Node, SOA, address, files, localdns};

/// Names of the Corefile have the upstream's answers.
#[test]
fn corefile_names_are_answered() {
    let node =
        Node::start(None, "refresh a.test b.test", &[], |asked| match (asked.name.as_str(), asked.rtype) {
            ("a.test.", 1) => Action::answer("a.test. 60 IN A 192.0.2.2\na.test. 60 IN A 192.0.2.1"),
            ("a.test.", 28) => Action::answer("a.test. 60 IN AAAA 2001:db8::1"),
            ("b.test.", 1) => Action::answer("b.test. 60 IN CNAME c.test.\nc.test. 60 IN A 192.0.2.3"),
            _ => Action::Reply(Says::nodata(SOA)),
        });
    node.file_holds("192.0.2.3 b.test");
    // The file may be written before all lookups are answered.
    node.rounds("ok", 1.0);
    node.sees("a.test", "A", &["192.0.2.1", "192.0.2.2"]);
    node.sees("b.test", "A", &["192.0.2.3"]);
    node.upstream.forget();
    for (name, rtype, addresses) in [
        ("A.test", "A", &["192.0.2.1", "192.0.2.2"][..]),
        ("a.test", "AAAA", &["2001:db8::1"]),
        ("b.test", "A", &["192.0.2.3"]),
        ("b.test", "AAAA", &[]),
        ("a.test", "TXT", &[]),
    ] {
        let reply = node.ask(name, rtype);
        assert_eq!((reply.status(), reply.short()), ("NOERROR", addresses.to_vec()));
        assert!(reply.answers.iter().all(|record| record.ttl == 5), "{name} {rtype}");
        assert_contains!(reply.flag_names(), "aa");
    }
    assert_eq!(node.upstream.asked().len(), 0, "nothing of it went upstream");
    assert!(!node.text().contains("c.test"), "aliases are followed, not stored:\n{}", node.text());
    assert_eq!(fs::metadata(node.hosts()).unwrap().permissions().mode() & 0o777, 0o644);
    assert_eq!(files(&node.directory), ["hosts", "status.sock"], "nothing is left over");
}

/// Names of the environment are refreshed at its interval; a change is logged once.
#[test]
fn environment_names_are_refreshed() {
    let node = Node::start(Some(""), "", &[(NAMES, "a.test, b.test"), EVERY_5_S], address(1));
    node.sees("a.test", "A", &["192.0.2.1"]);
    node.server.wait_for_log("a.test is 192.0.2.1", Duration::from_secs(5));
    let line = node.server.wait_for_log("because of LOCALDNS_CRITICAL_FQDNS", Duration::from_secs(5));
    let file = node.hosts().display().to_string();
    assert_eq!(
        line,
        format!(
            "[INFO] plugin/hosts: 2 names of {file} are refreshed every 5s, because of LOCALDNS_CRITICAL_FQDNS"
        )
    );
    // NODATA for AAAA is an answer.
    node.rounds("ok", 2.0);
    assert_eq!(
        logged_changes(&node).len(),
        3,
        "a round that changes nothing tells nothing: {:?}",
        logged_changes(&node)
    );
    node.upstream.answer_by(address(7));
    node.sees("b.test", "A", &["192.0.2.7"]);
    node.file_holds("192.0.2.7 b.test");
    let lines = node.server.wait_for_lines("is 192.0.2.7, was 192.0.2.1", 2, Duration::from_secs(5));
    assert!(lines.iter().all(|line| line.contains("[INFO] plugin/hosts: ")), "{lines:?}");
    // Each name and family is queried once per round, and rounds are 5 s apart.
    let metrics = node.rounds("ok", 3.0);
    let rounds = metrics.count("localdns_refresh_rounds_total", &[]);
    let asked = node.upstream.count("a.test.") as f64;
    assert!(asked <= 2.0 * (rounds + 1.0) + 1.0, "{asked} questions in {rounds} rounds");
}

fn logged_changes(node: &Node) -> Vec<String> {
    node.server.log_lines().into_iter().filter(|line| line.contains("plugin/hosts: ")).collect()
}

/// Shipped entries are answered at once, and only if there is no file.
#[test]
fn shipped_entries_need_no_file() {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/hosts");
    let shipped = ("LOCALDNS_SHIPPED_HOSTS", &*shipped.to_string_lossy());
    let node =
        Node::start(None, "refresh @azure-public\nrefresh_interval 5s", &[shipped], |_| Action::Silent);
    for (name, rtype, addresses) in [
        ("mcr.microsoft.com", "A", &["20.61.99.68"][..]),
        ("mcr.microsoft.com", "AAAA", &["2603:1061:1002::2"]),
        ("packages.aks.azure.com", "A", &["20.7.0.233"]),
        ("packages.aks.azure.com", "AAAA", &[]),
        (
            "login.microsoftonline.com",
            "A",
            &["20.190.151.67", "20.190.151.68", "20.190.151.69", "20.190.151.70"],
        ),
        (
            "login.microsoftonline.com",
            "AAAA",
            &["2603:1036:3000:d8::5", "2603:1037:1:c8::8", "2603:1037:1:c8::9", "2603:1037:1:c8::a"],
        ),
        ("management.azure.com", "A", &["20.37.158.0"]),
        ("management.azure.com", "AAAA", &["2603:1030:408:6::3e8"]),
        ("packages.microsoft.com", "A", &["52.184.220.97"]),
        ("packages.microsoft.com", "AAAA", &["2600:1417:76:1a2::e59"]),
        ("acs-mirror.azureedge.net", "A", &["152.199.39.108"]),
        ("acs-mirror.azureedge.net", "AAAA", &["2606:2800:233:1cb7:261b:1f9c:2074:3c"]),
        ("eastus.data.mcr.microsoft.com", "A", &["204.79.197.219"]),
        ("eastus.data.mcr.microsoft.com", "AAAA", &["2620:1ec:bdf::50"]),
    ] {
        let reply = Ask::new(name, rtype).timeout(Duration::from_secs(1)).of(node.at);
        assert_eq!((reply.status(), reply.short()), ("NOERROR", addresses.to_vec()), "{name}");
    }
    assert_eq!(node.entry("mcr.microsoft.com", "ipv4")["source"], "shipped");
    let shipped_ones = |count: usize| {
        let metrics = node.server.metrics((node.at.ip(), 9153).into());
        let sources = metrics.label_values("localdns_refresh_entry_age_seconds", "source");
        assert_eq!(sources.iter().filter(|source| **source == "shipped").count(), count, "{sources:?}");
    };
    shipped_ones(13);
    assert_eq!(files(&node.directory), ["status.sock"], "what is shipped is not published by itself");
    node.upstream.answer_by(address(1));
    node.sees("mcr.microsoft.com", "A", &["192.0.2.1"]);
    assert_eq!(node.entry("mcr.microsoft.com", "ipv4")["source"], "refreshed");
    // The upstream has no addresses of the other family.
    shipped_ones(6);

    let empty = Node::start(Some(""), "refresh @azure-public", &[shipped], |asked| match asked.rtype {
        1 => {
            Action::answer(&format!("{} 60 IN A 198.51.100.1", asked.name)).after(Duration::from_millis(500))
        }
        _ => Action::Reply(Says::nodata(SOA)),
    });
    assert_eq!(empty.ask("mcr.microsoft.com", "A").short(), ["198.51.100.1"], "an empty file is a file");
}

#[test]
fn failed_name_keeps_its_addresses() {
    let names = ["servfail", "gone", "silent", "inside", "mapped", "blocked", "other", "empty", "garbage"]
        .map(|name| format!("{name}.test"));
    let properties = format!("refresh a.test {}\nrefresh_sinkhole 192.0.2.66", names.join(" "));
    let node = Node::start(None, &properties, &[EVERY_5_S], address(1));
    for name in &names {
        node.file_holds(&format!("192.0.2.1 {name}"));
    }
    node.upstream.answer_by(|asked| match asked.name.as_str() {
        "a.test." => address(2)(asked),
        "servfail.test." => Action::rcode(2),
        "gone.test." => Action::nxdomain(SOA),
        "silent.test." => Action::Silent,
        "inside.test." => Action::answer("inside.test. 60 IN A 127.0.0.1\ninside.test. 60 IN A 169.254.1.1"),
        "mapped.test." => {
            let rtype = if asked.rtype == 1 { "A 224.0.0.1" } else { "AAAA ::ffff:192.0.2.9" };
            Action::answer(&format!("mapped.test. 60 IN {rtype}"))
        }
        "blocked.test." => address(66)(asked),
        "other.test." => Action::answer("victim.test. 60 IN A 192.0.2.66"),
        "empty.test." => Action::Reply(Says::nodata(SOA)),
        _ => Action::Octets(b"no reply at all".to_vec()),
    });
    node.sees("a.test", "A", &["192.0.2.2"]);
    for (name, why) in [
        ("servfail.test", "the server answered"),
        ("gone.test", "no such name"),
        ("silent.test", "no reply"),
        ("inside.test", "every address was refused: loopback"),
        ("mapped.test", "every address was refused: multicast"),
        ("blocked.test", "every address was refused: a sinkhole"),
        ("other.test", "the reply is about other names"),
        ("empty.test", "no address of this family"),
        ("garbage.test", ""),
    ] {
        let failed = eventually(name, Duration::from_secs(30), || {
            let entry = node.entry(name, "ipv4");
            (entry["failures"].as_u64() > Some(0)).then_some(entry)
        });
        assert_contains!(failed["failure"].as_str().unwrap(), why);
        assert_eq!(node.ask(name, "A").short(), ["192.0.2.1"]);
        assert_contains!(node.text(), format!("192.0.2.1 {name}\n"));
    }
    assert_eq!(node.entry("mapped.test", "ipv6")["failure"], "every address was refused: IPv4-mapped");
    let metrics = node.server.metrics((node.at.ip(), 9153).into());
    let labels = [("name", "gone.test."), ("family", "ipv4")];
    assert!(metrics.value("localdns_refresh_failures_total", &labels).unwrap() >= 1.0);
}

/// A name with a too old entry is queried at the upstream.
#[test]
fn too_old_entry_is_dropped() {
    let node = Node::start(None, "refresh b.test\nmax_age 7s", &[EVERY_5_S], address(1));
    node.file_holds("192.0.2.1 b.test");
    node.upstream.answer_by(|_| Action::nxdomain(SOA));
    eventually("b.test goes upstream", Duration::from_secs(30), || {
        sleep(Duration::from_millis(50));
        (node.ask("b.test", "A").status() == "NXDOMAIN").then_some(())
    });
    node.server.wait_for_log("b.test goes upstream", Duration::from_secs(5));
    eventually("its line goes", Duration::from_secs(5), || (!node.text().contains("b.test")).then_some(()));
}

/// It counts until the next good answer, and its other lines stay.
#[test]
fn other_programs_write_is_temporary() {
    let node = Node::start(None, "refresh a.test", &[EVERY_5_S], address(1));
    node.sees("a.test", "A", &["192.0.2.1"]);
    node.upstream.answer_by(|_| Action::rcode(2));
    // No successful lookup is in progress any more.
    node.rounds("failed", 1.0);
    publish(&node.hosts(), "# mine\n192.0.2.50 a.test\n192.0.2.99 canary.test\n");
    node.sees("a.test", "A", &["192.0.2.50"]);
    node.sees("canary.test", "A", &["192.0.2.99"]);
    assert_eq!(node.entry("a.test", "ipv4")["source"], "file");
    node.upstream.answer_by(address(2));
    node.sees("a.test", "A", &["192.0.2.2"]);
    node.file_holds("192.0.2.2 a.test");
    assert_contains!(node.text(), "# mine\n192.0.2.99 canary.test\n");
    assert_eq!(node.ask("canary.test", "A").short(), ["192.0.2.99"]);
    assert!(!node.text().contains("192.0.2.50"), "{}", node.text());
}

/// A reload keeps learned names and learns new ones.
#[test]
fn reload_keeps_learned_names() {
    let node = Node::start(None, "refresh a.test", &[], address(1));
    node.sees("a.test", "A", &["192.0.2.1"]);
    node.file_holds("192.0.2.1 a.test");
    node.upstream.answer_by(|asked| match asked.name.as_str() {
        "b.test." => address(2)(asked),
        _ => Action::Silent,
    });
    node.server.write_corefile(&node.corefile.replace("refresh a.test", "refresh a.test b.test"));
    node.server.signal("HUP");
    node.sees("b.test", "A", &["192.0.2.2"]);
    assert_eq!(node.ask("a.test", "A").short(), ["192.0.2.1"]);
    node.server.write_corefile(&node.corefile.replace("refresh a.test", ""));
    node.server.signal("HUP");
    node.server.wait_for_lines("Reloading complete", 2, Duration::from_secs(10));
    assert_eq!(node.ask("a.test", "A").short(), ["192.0.2.1"], "the file still says so");
    node.upstream.forget();
    publish(&node.hosts(), "192.0.2.9 a.test\n");
    node.sees("a.test", "A", &["192.0.2.9"]);
    assert_eq!(node.upstream.asked().len(), 0, "no server refreshes it any more");
}

#[test]
fn status_and_metrics_of_each_name() {
    let node = Node::start(None, "refresh a.test gone.test", &[], |asked| match asked.name.as_str() {
        "a.test." => address(1)(asked),
        _ => Action::nxdomain(SOA),
    });
    let metrics = node.rounds("partial", 1.0);
    let a = [("name", "a.test."), ("family", "ipv4")];
    assert!(
        metrics.value("localdns_refresh_entry_age_seconds", &[a[0], a[1], ("source", "refreshed")]).unwrap()
            < 60.0
    );
    assert_eq!(metrics.value("localdns_refresh_entry_ttl_seconds", &a), Some(60.0));
    assert_eq!(metrics.value("localdns_refresh_failures_total", &a), Some(0.0));
    assert_eq!(metrics.value("localdns_refresh_failures_total", &[("name", "gone.test."), a[1]]), Some(1.0));
    assert_eq!(metrics.value("localdns_refresh_last_round_failed", &[]), Some(2.0));
    assert!(metrics.value("localdns_refresh_last_round_timestamp_seconds", &[]).unwrap() > 1.7e9);
    assert!(metrics.value("localdns_refresh_last_round_duration_seconds", &[]).unwrap() < 15.0);

    let status = node.status();
    assert_eq!(status["servers"][0], node.upstream.word());
    assert_eq!(
        (&status["last_round"]["result"], &status["last_round"]["answered"]),
        (&"partial".into(), &2.into())
    );
    let entries = status["entries"].as_array().unwrap();
    let word = |entry: &serde_json::Value, key: &str| entry[key].as_str().unwrap().to_owned();
    let rows: Vec<_> =
        entries.iter().map(|entry| word(entry, "name") + " " + &word(entry, "family")).collect();
    assert_eq!(rows, ["a.test ipv4", "a.test ipv6", "gone.test ipv4", "gone.test ipv6"], "in order");
    assert_eq!(entries[1]["failure"], serde_json::Value::Null, "no AAAA is an answer");
    let entry = node.entry("a.test", "ipv4");
    assert_eq!((&entry["addresses"][0], &entry["ttl_seconds"]), (&"192.0.2.1".into(), &60.into()));
    // With a TTL of a minute the next round is due after 5 min, plus or minus a minute.
    let next = entry["next_refresh_seconds"].as_u64().unwrap();
    assert!((240..=360).contains(&next), "{next}");
    assert_eq!(node.entry("gone.test", "ipv4")["failure"], "no such name");

    let socket = node.directory.join("status.sock");
    let printed = localdns(&["status", "-status", &socket.to_string_lossy()], &[]);
    let table = String::from_utf8(printed.stdout).unwrap();
    assert!(printed.status.success(), "{table}");
    let row = table.lines().find(|line| line.starts_with("a.test ")).unwrap_or_else(|| panic!("{table}"));
    let cells: Vec<_> = row.split_whitespace().collect();
    assert_eq!((cells[1], cells[2], cells[5]), ("ipv4", "refreshed", "192.0.2.1"), "{table}");
    let first = table.lines().next().unwrap();
    assert_contains!(first, ": 2 of 4 lookups answered, the last round was ");
    assert!(table.lines().skip(1).all(|line| line.len() <= 100), "{table}");
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    drop(node);
    let output_without_server = localdns(&["status", "-status", &socket.to_string_lossy()], &[]);
    assert_eq!(output_without_server.status.code(), Some(1));
    assert_contains!(
        String::from_utf8(output_without_server.stderr).unwrap(),
        "localdns: no server answers at "
    );
}

/// It is reported for each place.
#[test]
fn status_without_a_reachable_server() {
    let (directory, ip) = (tempdir(), fresh_ip());
    let conf = directory.path().join("Corefile");
    let blocks = format!(".:0 {{\nprometheus {ip}:9153\n}}\nexample.org:0 {{\nprometheus {ip}:9154\n}}\n");
    fs::write(&conf, blocks).unwrap();
    let bare = directory.path().join("bare");
    fs::write(&bare, ".:0 {\nwhoami\n}\n").unwrap();
    let refused = |port: u16| format!("{ip}:{port} (Connection refused (os error 111))");
    let (first, second) = (refused(9153), refused(9154));
    for (flag, value, expected) in [
        ("-status", format!("{ip}:9153"), format!("answers at {first};")),
        ("-conf", conf.to_string_lossy().into_owned(), format!("{first}, {second};")),
        (
            "-conf",
            bare.to_string_lossy().into_owned(),
            "the Corefile has no `prometheus` to show its status; no server answers at /run/localdns.sock"
                .to_owned(),
        ),
        (
            "-status",
            ip.to_string(),
            format!("{ip} has no port: -status needs the address of the server's metrics, such as {ip}:9153"),
        ),
        ("-conf", "/nowhere/Corefile".to_owned(), "/nowhere/Corefile".to_owned()),
    ] {
        let output_without_server = localdns(&["status", flag, &value], &[]);
        assert_eq!(output_without_server.status.code(), Some(1), "{value}");
        assert_contains!(String::from_utf8(output_without_server.stderr).unwrap(), expected);
    }
}

/// A killed server answers at its next start what it published.
#[test]
fn killed_server_reuses_its_file() {
    let mut node = Node::start(None, "refresh a.test", &[], address(1));
    node.file_holds("192.0.2.1 a.test");
    node.server.signal("KILL");
    node.server.wait(Duration::from_secs(10));
    node.upstream.answer_by(|_| Action::Silent);
    node.server = Server::start_with(&node.corefile, node.options.clone());
    assert_eq!(Ask::new("a.test", "A").timeout(Duration::from_secs(1)).of(node.at).short(), ["192.0.2.1"]);
    let entry = node.entry("a.test", "ipv4");
    assert_eq!(entry["source"], "file");
    assert!(entry["age_seconds"].as_u64().unwrap() < 120, "{entry}");
}

/// No query is lost while a hundred thousand lines are published.
#[test]
fn hundred_thousand_lines_lose_no_query() {
    let lines: String =
        (0..100_000).map(|n| format!("10.{}.{}.{} n{n}.test\n", n >> 16, n >> 8 & 255, n & 255)).collect();
    let node = Node::start(Some(&lines), "refresh a.test", &[EVERY_5_S], address(1));
    node.sees("a.test", "A", &["192.0.2.1"]);
    let stream = Stream::start(
        node.at,
        1000,
        |n| Ask::new(if n % 2 == 0 { "n77777.test" } else { "a.test" }, "A"),
        |n, reply| {
            let found = reply.answers.first().map_or("", |record| &record.data);
            match n % 2 {
                0 => found == "10.1.47.209",
                _ => ["192.0.2.1", "192.0.2.2", "192.0.2.3"].contains(&found),
            }
        },
    );
    for last in [2, 3] {
        node.upstream.answer_by(address(last));
        node.file_holds(&format!("192.0.2.{last} a.test"));
        node.sees("a.test", "A", &[&format!("192.0.2.{last}")]);
    }
    stream.finish(Duration::from_secs(5)).assert_clean();
    assert_eq!(node.text().lines().filter(|line| line.starts_with("10.")).count(), 100_000);
}

/// Everything resolves, and new entries count even if queried before.
#[test]
fn cold_start_with_an_empty_file() {
    let directory = tempdir();
    let hosts = directory.path().join("hosts");
    fs::write(&hosts, "").unwrap();
    let upstream = Upstream::start(fresh_ip(), |asked| match asked.name.as_str() {
        "canary.localdns.test." => Action::nxdomain(SOA),
        "bing.test." => address(9)(asked),
        _ => address(1)(asked),
    });
    let at = SocketAddr::from((fresh_ip(), tests::port()));
    let corefile = format!(
        ".:{} {{\nbind {}\nhosts {} {{\nttl 5\nreload 5s\nfallthrough\n}}\ncache 3600\nforward . {}\n}}\n",
        at.port(),
        at.ip(),
        hosts.display(),
        upstream.word()
    );
    let options = Options::default().env(NAMES, "a.test").args(["-status", ""]);
    let _server = Server::start_with(&corefile, options);
    assert_eq!(ask(at, "a.test", "A").short(), ["192.0.2.1"]);
    assert_eq!(ask(at, "bing.test", "A").short(), ["192.0.2.9"]);
    assert_eq!(ask(at, "canary.localdns.test", "A").status(), "NXDOMAIN");
    eventually("the first publication", Duration::from_secs(10), || {
        fs::read_to_string(&hosts).unwrap().contains("192.0.2.1 a.test\n").then_some(())
    });
    let text = fs::read_to_string(&hosts).unwrap();
    publish(&hosts, format!("{text}192.0.2.99 canary.localdns.test\n"));
    eventually("the new entry", Duration::from_secs(15), || {
        sleep(Duration::from_millis(50));
        (ask(at, "canary.localdns.test", "A").short() == ["192.0.2.99"]).then_some(())
    });
    let entry = ask(at, "a.test", "A");
    assert_eq!(
        (entry.short(), entry.answers[0].ttl),
        (vec!["192.0.2.1"], 5),
        "from the table, not from the cache"
    );
}

#[test]
fn dig_finds_the_files_entries() {
    if !tool("dig_finds_the_files_entries", "dig") {
        return;
    }
    let node =
        Node::start(Some("192.0.2.1 a.test\n192.0.2.2 a.test\n"), "refresh a.test", &[], |_| Action::Silent);
    let mut command = std::process::Command::new("dig");
    command.args(["a.test", &format!("@{}", node.at.ip()), "-p", &node.at.port().to_string(), "-t", "A"]);
    command.args(["+timeout=5", "+tries=2", "+short"]);
    let found = String::from_utf8(output(command, Duration::from_secs(15)).stdout).unwrap();
    let mut found: Vec<_> = found.lines().collect();
    found.sort_unstable();
    assert_eq!(found, ["192.0.2.1", "192.0.2.2"]);
}
