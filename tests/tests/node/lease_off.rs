//! `-lease off`: a lease that ends only with its process.

use std::time::Duration;

use tests::{Ask, eventually, isolated, run, signal, tool};

use super::availability::status;
use super::clients::{ADDRESSES, answers_everywhere, asked_at, at};
use super::lab::{CLUSTER, COREFILE, Lab, NAME, PLAIN, POD, US, within};

/// A lease without an expiry ends only with its process.
#[test]
fn lease_without_expiry_ends_with_process() {
    isolated(|| {
        if !tool("lease flags", "nft") {
            return;
        }
        let lab = Lab::new();
        let mut server = lab.serve(&["-lease", "off", "-host-resolver", "none"]);
        for ip in ADDRESSES {
            server.wait_for_log(&format!("queries to {ip} are answered here"), PATIENCE);
        }
        answers_everywhere(US, US);
        let leases = run("nft", &["list", "ruleset"]);
        assert!(!leases.contains("expires") && !leases.contains("timeout 600ms"), "{leases}");

        // It hangs for five times the default lease, without failover.
        let asked = lab.asked();
        server.signal("STOP");
        let stat = format!("/proc/{}/task", server.pid());
        // Threads stop one by one, and one that still runs may answer.
        eventually("every thread stands still", PATIENCE, || {
            let threads = std::fs::read_dir(&stat).expect("the process is there");
            let stands = |thread: std::io::Result<std::fs::DirEntry>| {
                let stat = std::fs::read_to_string(thread.expect("a thread").path().join("stat"));
                stat.is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T")))
            };
            threads.into_iter().all(stands).then_some(())
        });
        let unanswered = || {
            let ask = Ask::new(NAME, "A").timeout(Duration::from_millis(400));
            let answer = |ip: &&str| Some(format!("{ip}: {:?}", ask.try_of(at(ip)).ok()?.short()));
            ADDRESSES.iter().filter_map(answer).collect::<String>()
        };
        assert_eq!(unanswered(), "", "another server answers in its place");
        assert_eq!(
            within(POD, unanswered).join().expect("it asks"),
            "",
            "somebody answers a pod in its place"
        );
        assert_eq!(lab.asked(), asked, "an upstream was asked");
        server.signal("CONT");
        answers_everywhere(US, US);
        let printed = status(&server, 0);
        assert!(printed.contains("leases that end with the process\n"), "{printed}");
        assert_eq!(printed.matches("held, lost 0 times").count(), ADDRESSES.len(), "{printed}");
        assert!(!server.log_text().contains("the lease of "), "{}", server.log_text());

        signal(server.pid(), "KILL");
        server.wait(PATIENCE);
        answers_everywhere(CLUSTER, PLAIN);
    });
}

/// A lease without an expiry ends when a reload removes its address.
#[test]
fn lease_ends_with_its_address() {
    isolated(|| {
        if !tool("lease flags", "nft") {
            return;
        }
        let lab = Lab::new();
        let server = lab.serve(&["-lease", "off", "-host-resolver", "none"]);
        for ip in ADDRESSES {
            server.wait_for_log(&format!("queries to {ip} are answered here"), PATIENCE);
        }
        assert_eq!(asked_at(SERVICE, false), US);
        server.write_corefile(&COREFILE.replace(&format!(" {SERVICE}"), ""));
        server.signal("USR1");
        eventually("kube-proxy has it again", PATIENCE, || {
            let answer = Ask::new(NAME, "A").timeout(Duration::from_millis(400)).try_of(at(SERVICE)).ok()?;
            (answer.short() == [CLUSTER]).then_some(())
        });
        // A second reload adds it again.
        server.write_corefile(COREFILE);
        server.signal("USR1");
        eventually("we have it again", PATIENCE, || {
            let answer = Ask::new(NAME, "A").timeout(Duration::from_millis(400)).try_of(at(SERVICE)).ok()?;
            (answer.short() == [US]).then_some(())
        });
        assert!(!server.log_text().contains("cannot renew leases"), "{}", server.log_text());
    });
}

const SERVICE: &str = "10.96.0.20";
const PATIENCE: Duration = Duration::from_secs(20);
