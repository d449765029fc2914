//! The shipped units under the test's own systemd: their settings match the program's behaviour.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use tests::{
    Action, Ask, Systemd, Upstream, assert_contains, eventually, isolated, isolated_steadily, output, run,
    tool,
};

/// The unit serves, reloads, restarts after a kill and a SIGSTOP, and ends.
#[test]
fn unit_through_its_life() {
    isolated(|| {
        let Some(systemd) = Systemd::boot("unit_through_its_life") else {
            return;
        };
        let at: SocketAddr = "169.254.10.10:53".parse().unwrap();
        let corefile = |answer: &str| {
            let hosts = format!("hosts {{\n192.0.2.{answer} a.example\n}}");
            fs::write("/etc/localdns/Corefile", format!(".:53 {{\nbind 169.254.10.10\n{hosts}\n}}")).unwrap();
        };
        let answers = |answer: &str| {
            let want = [format!("192.0.2.{answer}")];
            eventually(&format!("the answer {answer}"), PATIENCE, || {
                let reply = Ask::new("a.example", "A").timeout(Duration::from_millis(200)).try_of(at).ok()?;
                (reply.short() == want).then_some(())
            });
        };
        corefile("1");
        // 2 s instead of a minute, to see a ping and a kill.
        systemd.more("localdns", "[Service]\nWatchdogSec=2\n");
        // Type=notify: `systemctl start` returns after READY.
        systemd.ctl(&["start", "localdns"]);
        assert_eq!(Ask::new("a.example", "A").of(at).short(), ["192.0.2.1"]);
        let pid = systemd.main_pid("localdns");

        corefile("2");
        systemd.ctl(&["reload", "localdns"]);
        answers("2");
        assert_eq!(systemd.main_pid("localdns"), pid);

        systemd.ctl(&["kill", "--kill-who=main", "--signal=KILL", "localdns"]);
        systemd.restarts("localdns", 1);
        answers("2");
        // A stopped process sends no pings: systemd kills it and starts another.
        systemd.ctl(&["kill", "--kill-who=main", "--signal=STOP", "localdns"]);
        systemd.restarts("localdns", 2);
        answers("2");
        assert_contains!(systemd.log("localdns"), "Watchdog timeout");

        systemd.ctl(&["stop", "localdns"]);
        assert_eq!(
            systemd.show("localdns", "ActiveState,Result,ExecMainStatus"),
            ["inactive", "0", "success"]
        );
        // The address stays, so that a restart causes no network errors for clients.
        assert_contains!(run("ip", &["address", "show"]), "169.254.10.10/32");
        assert_no_complaint(&systemd, "localdns");
    });
}

/// A stop is no restart and lasts until the last query in flight is answered.
#[test]
fn stop_answers_queries_in_flight() {
    isolated(|| {
        let test = "stop_answers_queries_in_flight";
        let Some(systemd) = Systemd::boot(test) else { return };
        let upstream = Upstream::start("127.0.0.53".parse().unwrap(), |_| Action::Silent);
        let block = format!(
            "bind 169.254.10.10\nhosts {{\n192.0.2.1 a.example\nfallthrough\n}}\nforward . {}",
            upstream.word()
        );
        fs::write("/etc/localdns/Corefile", format!(".:53 {{\n{block}\n}}")).unwrap();
        systemd.ctl(&["start", "localdns"]);
        eventually("sockets in systemd's store", PATIENCE, || {
            (systemd.show("localdns", "NFileDescriptorStore") != ["0"]).then_some(())
        });
        let at: SocketAddr = "169.254.10.10:53".parse().unwrap();
        let in_flight = thread::spawn(move || Ask::new("slow.example", "A").timeout(PATIENCE).of(at));
        eventually("a query in flight", PATIENCE, || (upstream.total() > 0).then_some(()));
        systemd.ctl(&["stop", "--no-block", "localdns"]);
        // No next process is expected: nothing is kept for one.
        eventually("an empty store", PATIENCE, || {
            (systemd.show("localdns", "NFileDescriptorStore") == ["0"]).then_some(())
        });
        assert_eq!(systemd.show("localdns", "ActiveState"), ["deactivating"]);
        assert_eq!(Ask::new("a.example", "A").of(at).short(), ["192.0.2.1"]);
        assert_eq!(in_flight.join().unwrap().status(), "SERVFAIL");
        eventually("the end", PATIENCE, || {
            (systemd.show("localdns", "ActiveState,Result") == ["inactive", "success"]).then_some(())
        });
    });
}

/// A restart is no stop; a stop leaves the fallback.
#[test]
fn node_unit_restart_and_stop() {
    isolated_steadily(Duration::from_secs(180), || {
        let test = "node_unit_restart_and_stop";
        if !tool(test, "nft") {
            return;
        }
        let Some(systemd) = Systemd::boot(test) else { return };
        let hosts = "hosts {\n192.0.2.1 a.example\n}";
        let corefile = format!(".:53 {{\nbind 169.254.10.10\n{hosts}\nforward . 192.0.2.53\n}}");
        fs::write("/etc/localdns/Corefile", corefile).unwrap();
        let at: SocketAddr = "169.254.10.10:53".parse().unwrap();
        let tables = || run("nft", &["list", "tables", "inet"]);
        // Stands in for networkd's drop-in.
        let shell = |script: &str| {
            let mut command = systemd.inside("sh");
            command.args(["-ec", script]);
            output(command, PATIENCE).status.success()
        };
        let drop_in = || shell(&format!("test -e {DROP_IN}"));
        systemd.ctl(&["start", "localdns-node-up"]);
        assert_eq!(tables(), "table inet localdns\n");
        systemd.ctl(&["start", "localdns-node"]);
        assert_eq!(Ask::new("a.example", "A").of(at).short(), ["192.0.2.1"]);
        assert!(shell(&format!("mkdir -p $(dirname {DROP_IN}); touch {DROP_IN}")));

        const LAST_CLIENTS: &str = "queries that still arrive are answered for 5s";
        systemd.ctl(&["restart", "localdns-node"]);
        assert!(!systemd.log("localdns-node").contains(LAST_CLIENTS), "a restart waits for no client");
        assert_eq!(Ask::new("a.example", "A").of(at).short(), ["192.0.2.1"]);
        assert!(drop_in(), "a restart gives nothing back");
        systemd.ctl(&["kill", "--kill-who=main", "--signal=KILL", "localdns-node"]);
        systemd.restarts("localdns-node", 1);
        assert!(drop_in(), "before an automatic restart the host's resolver stays");
        assert_contains!(systemd.log("localdns-node"), "a start follows: the host's resolver stays");

        systemd.more("localdns-node", "[Service]\nKillSignal=SIGKILL\n");
        let mut stop = systemd.inside("systemctl");
        stop.args(["stop", "localdns-node"]);
        output(stop, PATIENCE);
        assert!(!drop_in(), "killed in a stop, it has the unit give it back");
        eventually("its word on it", PATIENCE, || {
            systemd.log("localdns-node").contains("the host's resolver is restored").then_some(())
        });

        fs::remove_file(Path::new(UNITS).join("localdns-node.service.d/more.conf")).unwrap();
        systemd.ctl(&["daemon-reload"]);
        systemd.ctl(&["start", "localdns-node"]);
        assert!(shell(&format!("mkdir -p $(dirname {DROP_IN}); touch {DROP_IN}")));
        let began = tests::now();
        systemd.ctl(&["stop", "localdns-node"]);
        let took = began.elapsed();
        assert!((5.0..7.0).contains(&took.as_secs_f64()), "5 s for the remaining clients: {took:?}");
        assert_contains!(systemd.log("localdns-node"), LAST_CLIENTS);
        assert!(!drop_in());
        assert_eq!(tables(), "table inet localdns\n");
        let end = systemd.show("localdns-node", "ActiveState,Result,ExecMainStatus");
        assert_eq!(end, ["inactive", "0", "success"]);
        for unit in ["localdns-node", "localdns-node-up"] {
            assert_no_complaint(&systemd, unit);
        }
    });
}

/// A script that starts the server is ready when the server notifies systemd.
#[test]
fn script_started_server_is_ready() {
    isolated(|| {
        let Some(systemd) = Systemd::boot("script_started_server_is_ready") else {
            return;
        };
        let corefile = ".:53 {\nbind 169.254.10.10\nwhoami\n}";
        fs::create_dir_all("/etc/localdns").unwrap();
        fs::write("/etc/localdns/Corefile", corefile).unwrap();
        // As in AKS's unit: NotifyAccess=all, and the script continues while the server runs.
        let unit = "[Service]\nType=notify\nNotifyAccess=all\nWatchdogSec=60\nTimeoutStartSec=3\n\
             ExecStart=/bin/sh -c '/usr/local/bin/localdns -conf /etc/localdns/Corefile & wait'\n";
        fs::write(Path::new(UNITS).join("script.service"), unit).unwrap();
        systemd.ctl(&["daemon-reload"]);
        let mut start = systemd.inside("systemctl");
        start.args(["start", "script"]);
        let started = output(start, PATIENCE);
        let log = systemd.log("script");
        assert_contains!(log, "which must send READY");
        assert!(!started.status.success(), "the server's READY counted for the script's:\n{log}");
        assert_eq!(systemd.show("script", "Result"), ["timeout"]);
    });
}

#[test]
fn timer_unit_writes_the_hosts_file() {
    isolated(|| {
        let Some(systemd) = Systemd::boot("timer_unit_writes_the_hosts_file") else { return };
        let upstream = Upstream::start("127.0.0.53".parse().unwrap(), |asked| match asked.rtype {
            1 => Action::answer(&format!("{} 300 IN A 192.0.2.7", asked.name)),
            _ => Action::answer(""),
        });
        let corefile = format!(".:53 {{\nbind 169.254.10.10\nforward . {}\n}}", upstream.word());
        fs::write("/etc/localdns/Corefile", corefile).unwrap();
        fs::write("/etc/localdns/environment", "LOCALDNS_CRITICAL_FQDNS=a.example\n").unwrap();
        // Type=oneshot: returns after the round.
        systemd.ctl(&["start", "localdns-refresh.service"]);
        let written = fs::read_to_string("/etc/localdns/hosts").unwrap();
        assert!(written.contains("192.0.2.7 a.example\n"), "{written}");
        assert_eq!(fs::metadata("/etc/localdns/hosts").unwrap().permissions().mode() & 0o777, 0o644);
        systemd.ctl(&["start", "localdns-refresh.timer"]);
        assert_eq!(systemd.show("localdns-refresh.timer", "ActiveState"), ["active"]);
        assert_no_complaint(&systemd, "localdns-refresh");
    });
}

/// It maintains the node's file and restarts after a kill.
#[test]
fn node_resolver_unit() {
    isolated(|| {
        let test = "node_resolver_unit";
        let Some(systemd) = Systemd::boot(test) else { return };
        let upstream = Upstream::start("127.0.0.53".parse().unwrap(), |asked| match asked.rtype {
            1 => Action::answer(&format!("{} 5 IN A 10.96.0.100", asked.name)),
            _ => Action::answer(""),
        });
        let environment =
            format!("NAMESERVER={}\nSERVICES=web.t1.svc\nSERVICE_CIDRS=10.96.0.0/12\n", upstream.word());
        fs::write("/etc/localdns/node-resolver", environment).unwrap();
        systemd.more("localdns-node-resolver", "[Service]\nRestartSec=100ms\n");
        let line = "\n10.96.0.100 web.t1.svc web.t1.svc.cluster.local # openshift-generated-node-resolver\n";
        let kept = || {
            eventually("the service's line", PATIENCE, || {
                let hosts = fs::read_to_string("/etc/hosts").unwrap();
                assert!(hosts.starts_with("127.0.0.1 localhost\n"), "{hosts}");
                hosts.contains(line).then_some(())
            });
        };
        systemd.ctl(&["start", "localdns-node-resolver"]);
        kept();
        fs::write("/etc/hosts", "127.0.0.1 localhost\n").unwrap();
        systemd.ctl(&["kill", "--kill-who=main", "--signal=KILL", "localdns-node-resolver"]);
        systemd.restarts("localdns-node-resolver", 1);
        kept();
        systemd.ctl(&["stop", "localdns-node-resolver"]);
        let end = systemd.show("localdns-node-resolver", "ActiveState,Result,ExecMainStatus");
        assert_eq!(end, ["inactive", "0", "success"]);
        assert_no_complaint(&systemd, "localdns-node-resolver");
    });
}

/// The drop-in of docs/command-line.md: systemd knows all its settings, and it permits all that the
/// server does.
#[test]
fn unit_with_its_own_user() {
    isolated(|| {
        let Some(systemd) = Systemd::boot("unit_with_its_own_user") else { return };
        let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/command-line.md");
        let document = fs::read_to_string(document).unwrap();
        let blocks =
            document.split("```\n").filter(|block| block.starts_with("[Service]\nDynamicUser=yes\n"));
        let drop_in: String = blocks.collect();
        let at: SocketAddr = "169.254.10.10:53".parse().unwrap();
        let corefile = ".:53 {\nbind 169.254.10.10\nhosts {\n192.0.2.1 a.example\n}\n}";
        fs::write("/etc/localdns/Corefile", corefile).unwrap();
        systemd.more("localdns", &drop_in);
        systemd.ctl(&["start", "localdns"]);
        for signal in ["TERM", "KILL"] {
            assert_eq!(Ask::new("a.example", "A").of(at).short(), ["192.0.2.1"], "{signal}");
            let pid = systemd.main_pid("localdns");
            let mut id = systemd.inside("sh");
            id.args(["-c", &format!("stat -c %u /proc/{pid}; cat /run/localdns-server/pid")]);
            let id_output = String::from_utf8(output(id, PATIENCE).stdout).unwrap();
            let (uid, own) = id_output.trim().split_once('\n').unwrap();
            assert!(uid.parse::<u32>().unwrap() > 60_000, "{id_output}");
            assert_eq!(own, pid);
            match signal {
                "TERM" => systemd.ctl(&["restart", "localdns"]),
                _ => {
                    systemd.ctl(&["kill", "--kill-who=main", "--signal=KILL", "localdns"]);
                    systemd.restarts("localdns", 1);
                    eventually("an answer", PATIENCE, || {
                        let ask = Ask::new("a.example", "A").timeout(Duration::from_millis(200));
                        ask.try_of(at).ok()
                    });
                }
            }
        }
        assert_no_complaint(&systemd, "localdns");
    });
}

fn assert_no_complaint(systemd: &Systemd, unit: &str) {
    let log = systemd.log(unit);
    for word in ["Unknown key", "Failed to parse", "Invalid", "not permitted", "denied", "panicked"] {
        assert!(!log.contains(word), "{log}");
    }
}

const DROP_IN: &str = "/run/systemd/network/10-netplan-eth0.network.d/70-localdns.conf";
/// The only directory where this systemd looks for units.
const UNITS: &str = "/etc/systemd/system";
const PATIENCE: Duration = Duration::from_secs(20);
