//! A kernel that has no nftables.

use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use tests::{Options, Server, ask, eventually, isolated, run, tempdir, tool, without_nftables};

use super::lab::{Lab, NAME, POD, US, within};
use super::never_dark::{node, status};

#[test]
fn a_kernel_without_nftables_is_told_of_in_one_line_and_every_address_is_served() {
    isolated(|| {
        if !tool("without nftables", "nft") {
            return;
        }
        let _lab = Lab::new();
        let directory = tempdir();
        let notify = directory.path().join("notify");
        let told = UnixDatagram::bind(&notify).expect("the directory is ours");
        told.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        let mut server = without_nftables(|| {
            let options = Options::default().subcommand(&["node", "run"]).args(["-host-resolver", "none"]);
            let options = options.env("NOTIFY_SOCKET", &notify.to_string_lossy());
            Server::start_with(COREFILE, options.export("SYSTEMD_EXEC_PID", "$$"))
        });
        let mut message = [0; 512];
        let length = told.recv(&mut message).expect("READY comes");
        assert!(String::from_utf8_lossy(&message[..length]).contains("READY=1"));
        for at in ["169.254.10.10:53", "[fd10::11]:53"] {
            let at: SocketAddr = at.parse().expect("an address");
            assert_eq!(ask(at, NAME, "A").short(), [US], "{at}");
            let of_pod = within(POD, move || ask(at, NAME, "A").short().concat());
            assert_eq!(of_pod.join().expect("it is answered"), US, "{at}");
        }
        let cause = "this kernel has no nftables, or not all that the rules need (open netlink): Protocol not supported";
        let mend = "; have it load nf_tables, or choose other -rules\n";
        let said = without_nftables(|| {
            eventually("a probe that was answered", PATIENCE, || {
                let said = status(&server, 1);
                (said.matches("answered a probe").count() == 2).then_some(said)
            })
        });
        for line in [
            format!("rules     {cause}"),
            "leases    nobody has one\n".to_owned(),
            "address   169.254.10.10  on localdns, way out 10.3.0.2, answers\n".to_owned(),
            "lease     169.254.10.10  not held, lost 0 times, answered a probe ".to_owned(),
            format!(
                "note      there are neither leases nor rules, and clients are dark when this server dies: {cause}"
            ),
        ] {
            assert!(said.contains(&line), "{line}\n{said}");
        }
        assert!(said.contains(mend), "{said}");
        let log = server.log_text();
        assert_eq!(log.matches("nftables").count(), 1, "{log}");
        // Nothing half-applied, and nothing is left.
        without_nftables(|| {
            let down = node(&server, &["down"], 0);
            assert!(down.contains("there were no rules: this kernel has no nftables"), "{down}");
            assert!(!run("ip", &["link"]).contains("localdns"));
            let up = node(&server, &["up", "-host-resolver", "none"], 1);
            assert!(up.contains(cause) && up.lines().count() == 1, "{up}");
            assert!(!run("ip", &["link"]).contains("localdns"));
        });
        assert!(server.stop().success());
    });
}

const PATIENCE: Duration = Duration::from_secs(20);
const COREFILE: &str = "
.:53 {
    bind 169.254.10.10 fd10::11
    hosts {
        192.0.2.1 who.test
        ttl 5
    }
    forward . 10.3.0.2 fd03::2
}
";
