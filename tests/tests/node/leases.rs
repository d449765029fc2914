//! Changes of the network's servers while our drop-in hides them from resolv.conf: DHCP leases name
//! them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tests::{Server, ask, eventually, isolated, publish, signal, tool};

use super::host_resolver::{DROP_IN, Machine};
use super::lab::{CLUSTER, Lab, NAME, PLAIN};

/// An invalid change has no effect.
#[test]
fn changed_lease_counts_within_5_s() {
    isolated(|| {
        if !tool("leases", "nft") {
            return;
        }
        let lab = Lab::new();
        let machine = Machine::new();
        machine.state("configured");
        fs::create_dir_all("/etc/localdns").expect("the test's own");
        for (file, network) in [("2", "10-netplan-eth0"), ("3", "20-other")] {
            write("links", file, &format!("NETWORK_FILE=/run/systemd/network/{network}.network\n"));
        }
        write("leases", "2", "ADDRESS=10.2.0.1\nDNS=10.2.0.2\n");
        write("leases", "3", "DNS=10.9.9.9\n");
        // The resolv.conf that networkd writes once the drop-in is there.
        machine.resolv_conf("nameserver 10.2.0.2\n");
        let mut server = serve(&lab, &machine);
        eventually("the drop-in", PATIENCE, || Path::new(DROP_IN).exists().then_some(()));
        machine.resolv_conf("nameserver 169.254.10.10\n");
        kept("10.2.0.2");
        assert_eq!(answer(), CLUSTER);

        // The network has another server; invalid words are left out.
        write("leases", "2", "DNS=127.0.0.53 10.3.0.2 169.254.10.10 so\n");
        eventually("the other server", Duration::from_secs(5), || (answer() == PLAIN).then_some(()));
        kept("10.3.0.2");
        server.wait_for_log("node: 168.63.129.16 stands for 10.3.0.2", PATIENCE);
        assert!(!server.log_text().contains("Reloading"), "{}", server.log_text());
        let status = super::availability::status(&server, 0);
        assert!(status.contains("upstreams 10.3.0.2 from /run/systemd/netif/leases\n"), "{status}");

        // Another link's server in resolv.conf follows the lease's.
        machine.resolv_conf("nameserver 169.254.10.10\nnameserver 10.2.0.2\n");
        kept("10.3.0.2 10.2.0.2");
        machine.resolv_conf("nameserver 169.254.10.10\n");
        kept("10.3.0.2");

        // A missing or empty lease, as during a renewal, keeps the last valid one, even after a
        // kill.
        write("leases", "2", "DNS=\n");
        server.wait_for_log(
            "names only this node (169.254.10.10): unchanged, 168.63.129.16 stands for",
            PATIENCE,
        );
        fs::remove_file("/run/systemd/netif/leases/2").expect("it is there");
        signal(server.pid(), "KILL");
        server.wait(Duration::from_secs(5));
        let server = serve(&lab, &machine);
        server.wait_for_log("stands for 10.3.0.2, from /etc/localdns/upstream-dns", PATIENCE);
        assert_eq!(answer(), PLAIN);
        write("leases", "2", "DNS=10.2.0.2\n");
        eventually("the new lease's", Duration::from_secs(5), || (answer() == CLUSTER).then_some(()));
        kept("10.2.0.2");
    });
}

fn serve(_lab: &Lab, machine: &Machine) -> Server {
    let options = machine.on_path(tests::Options::default().subcommand(&["node", "run"]));
    let server = Server::start_with(COREFILE, options);
    server.wait_for_log("queries to 169.254.10.10 are answered here", PATIENCE);
    server
}

fn write(directory: &str, file: &str, text: &str) {
    let directory = Path::new("/run/systemd/netif").join(directory);
    fs::create_dir_all(&directory).expect("the test's own");
    publish(&directory.join(file), text);
}

fn kept(list: &str) {
    eventually(list, PATIENCE, || {
        (fs::read_to_string("/etc/localdns/upstream-dns").ok()? == format!("{list}\n")).then_some(())
    });
}

fn answer() -> String {
    ask("169.254.10.10:53".parse().expect("an address"), NAME, "A").short().concat()
}

const PATIENCE: Duration = Duration::from_secs(10);
const COREFILE: &str = "
.:53 {
    bind 169.254.10.10
    forward . 168.63.129.16
}
";
