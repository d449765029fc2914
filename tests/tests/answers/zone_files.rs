//! Zone files in the directory `@DIR@` of every setup.

use std::fs;
use std::path::Path;

use tests::{Server, fresh_ip, port, tempdir};

use crate::coredns::CoreDns;
use crate::transfers::{records, transfer};

/// Transfers the zones of `file` and `auto` from both servers, by AXFR and by IXFR with an older and
/// the current serial.
pub(crate) fn are_transferred_alike(program: &Path) {
    let directory = tempdir();
    write(directory.path());
    let directory = directory.path().display();
    for source in [
        format!("file {directory}/db.example.org example.org"),
        format!("auto {{\ndirectory {directory}\n}}"),
    ] {
        let block = |ip| format!(".:{} {{\nbind {ip}\ntransfer {{\nto *\n}}\n{source}\n}}\n", port());
        let ips = [fresh_ip(), fresh_ip()];
        let _coredns = CoreDns::start(program, &block(ips[0]));
        let _ours = Server::start(&block(ips[1]));
        for (zone, has) in [
            ("example.org.", None),
            ("example.org.", Some(2_026_112_900)),
            ("example.org.", Some(2_026_112_901)),
            ("www.example.org.", None),
            ("sub.example.org.", None),
        ] {
            let [theirs, ours] =
                ips.map(|ip| transfer((ip, port()).into(), None, zone, has).map(|sent| records(&sent)));
            assert_eq!(theirs, ours, "{source}: {zone} {has:?}");
        }
    }
}

/// Writes `db.example.org` and `db.sub.example.org`.
pub(crate) fn write(directory: &Path) {
    for (name, text) in [("db.example.org", PARENT), ("db.sub.example.org", CHILD)] {
        fs::write(directory.join(name), text).expect("the test's directory is writable");
    }
}

/// Every kind of node. The SOA record's TTL is its MINIMUM, and the servers agree in the TTL of
/// denials.
const PARENT: &str = "\
$TTL 300
@        SOA ns hostmaster 2026112901 7200 3600 1209600 300
@        NS  ns
@        NS  ns.other.x.
@        MX  10 mail
@        TXT \"two\" \"strings\"
ns       A   192.0.2.1
ns       AAAA 2001:db8::1
mail     A   192.0.2.2
www      60 A 192.0.2.3
www      60 A 192.0.2.4
www      60 AAAA 2001:db8::4
_web._tcp SRV 0 5 80 www
*.wild   A   192.0.2.9
*.wild   TXT \"any\"
a.ent    A   192.0.2.10
sub      NS  ns.sub
sub      NS  ns
ns.sub   A   192.0.2.11
old      DNAME new
a.new    A   192.0.2.12
caa      CAA 0 issue \"ca.example.org\"
$ORIGIN deep.example.org.
one      A   192.0.2.13
";

/// A zone that the parent delegates.
const CHILD: &str = "\
$TTL 60
@        SOA ns hostmaster 7 7200 3600 1209600 60
@        NS  ns
ns       A   192.0.2.11
www      A   192.0.2.14
";
