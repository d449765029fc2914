//! `localdns refresh --once`, which replaces a script and a timer.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use tests::{Action, Says, Upstream, add_address, assert_contains, fresh_ip, isolated, tempdir};

use super::{NAMES, SOA, address, files, localdns};

const HOSTS: &str = "/etc/localdns/hosts";
const LIST: &str = "/etc/localdns/upstream-dns";
const AB: [(&str, &str); 1] = [(NAMES, "a.test,b.test")];

/// Upstreams at 192.0.2.53 and .54, and the node listener's address, as on a provisioned node.
fn node(script: impl Fn(&tests::Asked) -> Action + Send + Sync + Clone + 'static) -> [Upstream; 2] {
    for ip in ["192.0.2.53", "192.0.2.54", "169.254.10.10"] {
        add_address(&format!("{ip}/32"));
    }
    fs::create_dir_all("/etc/localdns").expect("/etc is ours");
    fs::write(LIST, "192.0.2.53 192.0.2.54\n").expect("/etc is ours");
    ["192.0.2.53:53", "192.0.2.54:53"].map(|at| Upstream::at(at.parse().expect("an address"), script.clone()))
}

/// Answers are written, and failed names keep their lines.
#[test]
fn failed_names_keep_their_lines() {
    isolated(|| {
        let [first, second] = node(|asked| match (asked.name.as_str(), asked.rtype) {
            ("a.test.", 1) => Action::answer("a.test. 60 IN A 192.0.2.2"),
            ("a.test.", _) => Action::answer("a.test. 60 IN AAAA 2001:db8::2"),
            _ => Action::rcode(2),
        });
        let itself = Upstream::at("169.254.10.10:53".parse().unwrap(), address(66));
        fs::write(LIST, "169.254.10.10 192.0.2.53 192.0.2.54\n").unwrap();
        fs::write(HOSTS, "192.0.2.1 a.test\n192.0.2.7 b.test\n2001:db8::7 b.test\n192.0.2.99 canary.test\n")
            .unwrap();
        let done = localdns(&["refresh", "--once"], &AB);
        assert!(done.status.success(), "{done:?}");
        let text = fs::read_to_string(HOSTS).unwrap();
        let mut lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        lines.sort_unstable();
        let expected = [
            "192.0.2.2 a.test",
            "192.0.2.7 b.test",
            "192.0.2.99 canary.test",
            "2001:db8::2 a.test",
            "2001:db8::7 b.test",
        ];
        assert_eq!(lines, expected);
        assert_eq!(fs::metadata(HOSTS).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(files(Path::new("/etc/localdns")), ["hosts", "upstream-dns"], "nothing is left over");
        let stderr = String::from_utf8(done.stderr).unwrap();
        assert_contains!(stderr, "b.test. A: the server answered");
        assert_eq!(itself.total(), 0, "it asked itself");
        // In order: the second server receives only lookups that failed at the first.
        assert_eq!((first.count("a.test."), second.count("a.test.")), (2, 0));
        assert!(first.count("b.test.") >= 2 && second.count("b.test.") >= 2);
    });
}

#[test]
fn no_answers_no_write() {
    isolated(|| {
        let upstreams = node(|asked| match asked.name.as_str() {
            "a.test." => Action::rcode(2),
            _ => Action::nxdomain(SOA),
        });
        let text = "192.0.2.1 a.test\n# as it was";
        fs::write(HOSTS, text).unwrap();
        let identity =
            || fs::metadata(HOSTS).map(|data| (data.ino(), data.mtime(), data.mtime_nsec())).unwrap();
        let before = identity();
        for variables in [&AB[..], &[], &[(NAMES, "")]] {
            let done = localdns(&["refresh", "--once"], variables);
            assert!(done.status.success(), "{done:?}");
            assert_eq!(
                (fs::read_to_string(HOSTS).unwrap(), identity()),
                (text.to_owned(), before),
                "{variables:?}"
            );
        }
        // Invalid answers are not written either.
        for script in [
            |_: &tests::Asked| Action::Octets(b"999.1.1.1 and 1:2".to_vec()),
            |asked: &tests::Asked| Action::answer(&format!("{} 60 IN TXT \"999.1.1.1\"", asked.name)),
            |asked: &tests::Asked| Action::answer(&format!("{} 60 IN A 0.0.0.0", asked.name)),
            |asked: &tests::Asked| {
                Action::WrongId(Says::answer(&format!("{} 60 IN A 192.0.2.66", asked.name)))
            },
        ] {
            upstreams.iter().for_each(|upstream| upstream.answer_by(script));
            let done = localdns(&["refresh", "--once"], &AB);
            assert!(done.status.success(), "{done:?}");
            assert_eq!((fs::read_to_string(HOSTS).unwrap(), identity()), (text.to_owned(), before));
        }
    });
}

/// The list, then the Corefile, then the system.
#[test]
fn upstream_precedence() {
    isolated(|| {
        let [first, second] = node(address(1));
        let corefile = "/etc/localdns/Corefile";
        fs::write(corefile, ".:53 {\nbind 169.254.10.10\nhosts /etc/localdns/other {\nfallthrough\n}\nforward . 192.0.2.54\n}\n").unwrap();
        fs::write("/etc/resolv.conf", "nameserver 169.254.10.10\nnameserver 192.0.2.53\n").unwrap();
        let asked = |args: &[&str]| {
            first.forget();
            second.forget();
            let done = localdns(args, &[(NAMES, "a.test")]);
            assert!(done.status.success(), "{done:?}");
            (first.asked().len(), second.asked().len())
        };
        assert_eq!(asked(&["refresh", "--once", "-conf", corefile]), (2, 0), "the list");
        assert!(Path::new("/etc/localdns/other").exists(), "the Corefile's file");
        assert_eq!(
            asked(&["refresh", "--once", "-conf", corefile, "--hosts", "/etc/localdns/third"]),
            (2, 0)
        );
        assert!(Path::new("/etc/localdns/third").exists(), "the command line's file");
        fs::remove_file(LIST).unwrap();
        assert_eq!(asked(&["refresh", "--once", "-conf", corefile]), (0, 2), "the Corefile");
        assert_eq!(asked(&["refresh", "--once"]), (2, 0), "the system, without ourselves");
        assert!(Path::new(HOSTS).exists(), "the default file");
    });
}

#[test]
fn print_writes_nothing() {
    let upstream = Upstream::start(fresh_ip(), address(1));
    let directory = tempdir();
    let (hosts, corefile) = (directory.path().join("hosts"), directory.path().join("Corefile"));
    let text = format!(
        ".:5399 {{\nhosts {} {{\nrefresh a.test\nrefresh_via {}\n}}\n}}\n",
        hosts.display(),
        upstream.word()
    );
    fs::write(&corefile, text).unwrap();
    let done = localdns(&["refresh", "--once", "--print", "-conf", &corefile.to_string_lossy()], &[]);
    assert!(done.status.success(), "{done:?}");
    assert_contains!(String::from_utf8(done.stdout).unwrap(), "\n192.0.2.1 a.test\n");
    assert!(!hosts.exists());
}

#[test]
fn errors_are_one_line() {
    let directory = tempdir();
    let missing = directory.path().join("none/hosts");
    let upstream = Upstream::start(fresh_ip(), address(1));
    let corefile = directory.path().join("Corefile");
    let text = format!(
        ".:5399 {{\nhosts {} {{\nrefresh a.test\nrefresh_via {}\n}}\n}}\n",
        missing.display(),
        upstream.word()
    );
    fs::write(&corefile, text).unwrap();
    let corefile = corefile.to_string_lossy().into_owned();
    for (args, message) in [
        (&["refresh"][..], "`refresh` needs --once"),
        (&["refresh", "--once", "-conf", "/nowhere/Corefile"], "/nowhere/Corefile"),
        (&["refresh", "--once", "-conf", &corefile], "none"),
        (&["refresh", "--once", "--hosts", "/", "-conf", &corefile], "cannot read /"),
    ] {
        let done = localdns(args, &[]);
        let stderr = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(1), "{args:?}: {stderr}");
        assert_contains!(stderr, message);
        assert!(stderr.lines().last().unwrap().starts_with("localdns: "), "{stderr}");
    }
}
