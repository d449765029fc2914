//! Corefiles by which no address is protected: reported, and never well.

use std::fs;
use std::process::{Command, Output};
use std::time::Duration;

use tests::{Options, Server, ask, eventually, isolated, tool};

use super::availability::{node, status};
use super::lab::{COREFILE, Lab, NAME, US};

/// A Corefile without a server block is refused before anything is changed.
#[test]
fn corefile_without_a_block_is_refused() {
    isolated(|| {
        let _lab = Lab::new();
        for text in ["", "# of another tool\n"] {
            fs::write("/run/Corefile", text).expect("the test's own");
            for (word, code) in [("run", 217), ("up", 1), ("status", 1)] {
                let ended = ended(&["node", word, "-conf", "/run/Corefile"]);
                let stderr = String::from_utf8_lossy(&ended.stderr);
                assert_eq!(ended.status.code(), Some(code), "{word} {text:?}: {ended:?}");
                let expected = "localdns: /run/Corefile: the Corefile holds no server block; expected at least `. { ... }`\n";
                assert!(stderr.ends_with(expected), "{word} {text:?}: {stderr}");
            }
        }
        // Without the subcommand `node` it behaves like CoreDNS.
        let plain = Server::start_with("# nothing\n", Options::default().args(["-dns.port", "5300"]));
        plain.wait_for_log("only whoami is served", PATIENCE);
    });
}

/// After a reload to an empty Corefile, `status` uses the running server's state.
#[test]
fn emptied_corefile_and_status() {
    isolated(|| {
        if !tool("no address", "nft") {
            return;
        }
        let lab = Lab::new();
        let server = lab.serve(&["-host-resolver", "none"]);
        server.wait_for_log("queries to fd10::11 are answered here", PATIENCE);
        server.write_corefile("# nothing\n");
        let printed = status(&server, 0);
        for line in [
            "address   169.254.10.11  on localdns, fallback 10.3.0.2, answers\n",
            "corefile  ",
            ": the Corefile holds no server block",
        ] {
            assert!(printed.contains(line), "{line}: {printed}");
        }
        assert_eq!(ask("169.254.10.11:53".parse().expect("an address"), NAME, "A").short(), [US]);
    });
}

/// It is a problem unless there are to be no rules.
#[test]
fn corefile_without_rule_addresses() {
    isolated(|| {
        if !tool("no address", "nft") {
            return;
        }
        let lab = Lab::new();
        let line = "no server block listens on port 53 of an address that can have rules; have `bind` name the addresses that clients query\n";
        for corefile in [
            COREFILE.replace(".:53", ".:5300"),
            ".:53 {\n    whoami\n}\n".to_owned(),
            ".:53 {\n    bind 127.0.0.1\n    whoami\n}\n".to_owned(),
        ] {
            let server = lab.serve_of(&corefile, &["-host-resolver", "none"]);
            eventually("it says so of itself", PATIENCE, || {
                fs::read_to_string("/proc/net/unix").ok()?.contains("localdns-node-").then_some(())
            });
            let printed = status(&server, 1);
            assert!(printed.contains(&format!("address   {line}")), "{corefile}{printed}");
            let up = node(&server, &["up", "-host-resolver", "none"], 1);
            assert!(up.ends_with(line), "{corefile}{up}");
            drop(server);
            let server = lab.serve_of(&corefile, &["-host-resolver", "none", "-rules", "none"]);
            let words = ["-rules", "none", "-host-resolver", "none"];
            let printed = eventually("it says so of itself", PATIENCE, || {
                let printed = node(&server, &[&["status"], &words[..]].concat(), 0);
                printed.contains("server    process").then_some(printed)
            });
            assert!(printed.contains(&format!("note      {line}")), "{corefile}{printed}");
            let up = node(&server, &[&["up"], &words[..]].concat(), 0);
            assert!(up.ends_with(line), "{corefile}{up}");
        }
    });
}

fn ended(words: &[&str]) -> Output {
    let mut command = Command::new(tests::binary());
    command.args(words).args(["-host-resolver", "none"]);
    tests::output(command, PATIENCE)
}

const PATIENCE: Duration = Duration::from_secs(15);
