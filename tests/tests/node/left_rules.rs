//! Rules that a killed server or AKS's script left, found by a server with another kind of rules.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tests::{Server, ask, eventually, isolated, run, signal, tempdir};

use super::clients::answers_everywhere;
use super::iptables::{Tools, both, lab, scripts_rules};
use super::lab::{CLUSTER, COREFILE, NAME, PLAIN, US};
use super::node_cache::{TEMPLATE, options_of};

/// The start keeps its own rules in another kind of table.
#[test]
fn start_removes_the_scripts_rules() {
    isolated(|| {
        let Some(lab) = lab() else { return };
        for tools in both() {
            scripts_rules().iter().for_each(|rule| tools.change("-A", rule));
            assert_eq!(tools.ours().len(), 8, "{}", tools.0);
            let mut server =
                lab.serve_with(|options| options.args(["-host-resolver", "none"]).env("PATH", &tools.path()));
            server.wait_for_log("removed 8 iptables rules", PATIENCE);
            server.wait_for_log("queries to fd10::11 are answered here", PATIENCE);
            assert!(tools.ours().is_empty(), "{}", tools.0);
            answers_everywhere(US, US);
            signal(server.pid(), "KILL");
            server.wait(Duration::from_secs(5));
            // Untracked queries would not be translated to the cluster's DNS.
            answers_everywhere(CLUSTER, PLAIN);
        }
    });
}

/// Rules of the other kind and of former addresses go at a start, all rules at a clean stop.
#[test]
fn start_removes_former_rules() {
    isolated(|| {
        let Some(lab) = lab() else { return };
        let former = scripts_rules()[0].replace("169.254.10.10", "169.254.10.99");
        for tools in both() {
            let mut left = 0;
            for (rules, comment, count, end) in [
                ("iptables", "localdns: ", 16, "KILL"),
                ("node-cache", "NodeLocal DNS Cache: ", 48, "KILL"),
                ("iptables", "localdns: ", 16, "TERM"),
            ] {
                tools.change("-A", &former);
                let mut server = tools.serve(&lab, rules);
                let ours = tools.settled(&server, count);
                assert!(ours.iter().all(|rule| rule.contains(comment)), "{}: {ours:#?}", tools.0);
                let gone = format!("removed {} iptables rules", left + 1);
                server.wait_for_log(&gone, PATIENCE);
                answers_everywhere(US, US);
                if end == "TERM" {
                    // Periodic checks leave it alone: another process may be using it.
                    tools.change("-A", &former);
                }
                signal(server.pid(), end);
                server.wait(PATIENCE);
                left = count;
            }
            assert!(tools.ours().is_empty(), "{}: {:#?}", tools.0, tools.ours());
        }
    });
}

/// A start with iptables rules removes the tables of a killed server.
#[test]
fn iptables_start_removes_nft_tables() {
    isolated(|| {
        let Some(lab) = lab() else { return };
        let tools = Tools("nft");
        for rules in ["none", "iptables"] {
            let mut before = lab.serve(&["-host-resolver", "none"]);
            before.wait_for_log("queries to fd10::11 are answered here", PATIENCE);
            signal(before.pid(), "KILL");
            before.wait(Duration::from_secs(5));
            assert_eq!(run("nft", &["list", "tables", "inet"]), "table inet localdns\n");
            let server = tools.serve(&lab, rules);
            if rules == "iptables" {
                tools.settled(&server, 16);
            }
            // The server's own table was for the probes at the start.
            eventually("no table of ours", PATIENCE, || {
                (run("nft", &["list", "tables", "inet"]).is_empty()).then_some(())
            });
            // Only this address: with these rules another program's may redirect a Service's
            // queries.
            let asked = ask("169.254.10.11:53".parse().expect("an address"), NAME, "A");
            assert_eq!(asked.short(), [US], "-rules {rules}");
        }
    });
}

/// The script's rules go if there are to be no rules, and stay if they belong to others.
#[test]
fn start_without_rules_removes_its_own() {
    isolated(|| {
        let Some(lab) = lab() else { return };
        for tools in both() {
            let status = |server: &Server, rules: &str| {
                let mut command = Command::new(tests::binary());
                command.args(["node", "status", "-rules", rules, "-conf"]).arg(server.path("Corefile"));
                command.env("PATH", tools.path());
                let output = tests::output(command, PATIENCE);
                String::from_utf8_lossy(&output.stdout).into_owned()
            };
            let flags = ["-localip", "169.254.20.10", "-setupiptables=false"];
            scripts_rules().iter().for_each(|rule| tools.change("-A", rule));
            let others = options_of(TEMPLATE).args(flags).env("PATH", &tools.path());
            let others = Server::start_with("", others);
            eventually("others' rules are none of its own", PATIENCE, || {
                others.write_corefile(".:53 {\n    bind 169.254.20.10\n    whoami\n}\n");
                let printed = status(&others, "nft");
                (printed.starts_with("rules     none, as configured\n")
                    && printed.contains("answered a probe"))
                .then_some(())
            });
            assert_eq!(tools.ours().len(), 8, "{}", tools.0);
            drop(others);

            let none = tools.serve(&lab, "none");
            none.wait_for_log("removed 8 iptables rules", PATIENCE);
            assert!(tools.ours().is_empty(), "{}", tools.0);
            assert!(status(&none, "none").starts_with("rules     none, as configured\n"));
            scripts_rules().iter().for_each(|rule| tools.change("-A", rule));
            let printed = status(&none, "none");
            let line = "rules     8 iptables rules remain, but none should; start the server";
            assert!(printed.starts_with(line), "{printed}");
            scripts_rules().iter().for_each(|rule| tools.change("-D", rule));
        }
    });
}

#[test]
fn handover_to_other_rules_removes_tables() {
    isolated(|| {
        let Some(lab) = lab() else { return };
        let tools = Tools("nft");
        for rules in ["none", "iptables"] {
            let directory = tempdir();
            let door = directory.path().join("door").to_string_lossy().into_owned();
            let serve = |rules: &str| {
                lab.serve_with(|options| {
                    let options =
                        options.args(["-rules", rules, "-host-resolver", "none", "-handover", &door]);
                    options.env("PATH", &tools.path())
                })
            };
            let mut before = serve("nft");
            before.wait_for_log("queries to fd10::11 are answered here", PATIENCE);
            eventually("it may be succeeded", PATIENCE, || Path::new(&door).exists().then_some(()));
            let server = serve(rules);
            assert!(before.wait(PATIENCE).success(), "{}", before.log_text());
            eventually("no table of ours", PATIENCE, || {
                (run("nft", &["list", "tables", "inet"]).is_empty()).then_some(())
            });
            let status_shows = |code: i32| {
                let mut command = Command::new(tests::binary());
                command
                    .args(["node", "status", "-conf"])
                    .arg(server.path("Corefile"))
                    .env("PATH", tools.path());
                let output = tests::output(command, PATIENCE);
                (output.status.code() == Some(code))
                    .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
            };
            eventually("well", PATIENCE, || status_shows(0));
            assert_eq!(
                ask("169.254.10.11:53".parse().expect("an address"), NAME, "A").short(),
                [US],
                "-rules {rules}"
            );
            // A table created later may be wanted, so it stays; where its fallback answers, the
            // address is not well.
            let mut up = Command::new(tests::binary());
            up.args(["node", "up", "-host-resolver", "none", "-conf"]).arg(server.path("Corefile"));
            assert!(tests::output(up, PATIENCE).status.success());
            let failed = "169.254.10.11  the last probe failed: 169.254.10.11:53 does not answer over UDP";
            let printed = eventually("not well", PATIENCE, || {
                status_shows(1).filter(|printed| printed.contains(failed))
            });
            assert!(
                printed.contains("address   169.254.10.11  on localdns")
                    && !printed.contains("does not answer\n"),
                "{printed}"
            );
            run("nft", &["delete", "table", "inet", "localdns"]);
            eventually("well again", PATIENCE, || status_shows(0));
        }
    });
}

#[test]
fn up_counts_rules_without_a_server() {
    isolated(|| {
        let Some(_lab) = lab() else { return };
        std::fs::write("/run/Corefile", COREFILE).expect("the test's own");
        for tools in both() {
            scripts_rules().iter().for_each(|rule| tools.change("-A", rule));
            let mut up = Command::new(tests::binary());
            up.args(["node", "up", "-conf", "/run/Corefile", "-host-resolver", "none", "-rules", "iptables"]);
            up.env("PATH", tools.path());
            let output = tests::output(up, PATIENCE);
            let printed = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{output:?}");
            let stand = "no rules added: no server is running; 8 of 16 remain from before";
            assert!(printed.contains(stand) && !printed.contains("no rules: "), "{printed}");
            assert_eq!(tools.ours().len(), 8, "{}: they stay", tools.0);
            scripts_rules().iter().for_each(|rule| tools.change("-D", rule));
        }
    });
}

const PATIENCE: Duration = Duration::from_secs(20);
