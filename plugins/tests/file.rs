//! Zones that follow their files, with scripted time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use scene::Scene;
use tempfile::TempDir;
use wire::RType;

const AT: &str = "127.0.0.1:53";

/// A zone file in its own directory, and a server that checks it every 5 s.
struct Followed {
    scene: Scene,
    file: PathBuf,
    corefile: String,
    _dir: TempDir,
}

fn text(serial: u32, rest: &str) -> String {
    format!("$TTL 60\n@ SOA ns h {serial} 1 1 1 60\n@ NS ns\n{rest}\n")
}

impl Followed {
    fn try_new(text: Option<&str>, properties: &str, below: &str) -> Result<Self, String> {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("db");
        if let Some(text) = text {
            fs::write(&file, text).unwrap();
        }
        let corefile = format!(
            ". {{\nbind 127.0.0.1\nfile {} example.org {{\nreload 5s\n{properties}\n}}\n{below}\n}}\n",
            file.display()
        );
        Ok(Self { scene: Scene::build(&corefile)?, file, corefile, _dir: dir })
    }

    fn new(text: Option<&str>, properties: &str, below: &str) -> Self {
        Self::try_new(text, properties, below).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs the next check to its end.
    fn check(&mut self) {
        self.scene.now += Duration::from_secs(5);
        let shared = &self.scene.shared;
        let look = || {
            let next = shared
                .lasting
                .all()
                .iter()
                .filter_map(|kept| kept.look(self.scene.now, &shared.logger))
                .min();
            next == Some(self.scene.now + Duration::from_secs(5))
        };
        // The thread that reads the file takes as long as it takes.
        while !look() {
            std::thread::yield_now();
        }
    }

    fn a(&self, name: &str) -> String {
        self.scene.ask(AT, name, RType::A)
    }

    fn has(&self, address: &str) -> bool {
        self.a("www.example.org").contains(address)
    }

    fn log(&self) -> String {
        self.scene.shared.logger.flush(Duration::from_secs(5));
        self.scene.log.text()
    }
}

#[test]
fn changed_serial_is_served() {
    let mut file = Followed::new(Some(&text(1, "www A 192.0.2.1")), "", "");
    file.check();
    assert!(file.has("192.0.2.1"));
    fs::write(&file.file, text(1, "www A 192.0.2.22")).unwrap();
    file.check();
    assert!(file.has("192.0.2.1"), "the serial is the same");
    fs::write(&file.file, text(2, "www A 192.0.2.22\n; longer")).unwrap();
    file.check();
    assert!(file.has("192.0.2.22"));
}

#[test]
fn changed_time_is_served_on_request() {
    let mut file = Followed::new(Some(&text(1, "www A 192.0.2.1")), "reload_by_mtime", "");
    file.check();
    fs::write(&file.file, text(1, "www A 192.0.2.22")).unwrap();
    file.check();
    assert!(file.has("192.0.2.22"));
}

#[test]
fn bad_file_leaves_the_zone() {
    let mut file = Followed::new(Some(&text(1, "www A 192.0.2.1")), "", "");
    file.check();
    fs::write(&file.file, text(2, "www A 192.0.2.256")).unwrap();
    file.check();
    file.check();
    assert!(file.has("192.0.2.1"));
    let (log, expected) =
        (file.log(), format!("{}:4:7: \"192.0.2.256\" in the data of A", file.file.display()));
    assert_eq!(log.matches(&expected).count(), 1, "{log}");
    assert!(log.contains("the zone stays as it was"), "{log}");
    fs::remove_file(&file.file).unwrap();
    file.check();
    assert!(file.has("192.0.2.1"));
    file.scene.reload(&file.corefile.clone());
    assert!(file.has("192.0.2.1"), "a reload of the Corefile keeps it");
}

#[test]
fn missing_file_appears() {
    let mut file = Followed::new(None, "fallthrough", "whoami");
    assert!(file.a("www.example.org").starts_with("SERVFAIL"), "{}", file.a("www.example.org"));
    assert!(file.log().contains("Cannot read"), "{}", file.log());
    file.check();
    fs::write(&file.file, text(0, "www A 192.0.2.1")).unwrap();
    file.check();
    assert!(file.has("192.0.2.1"));
}

/// CoreDNS refuses such a Corefile as well.
#[test]
fn files_that_refuse_the_corefile() {
    let error = Followed::try_new(Some(&text(1, "www A x")), "", "").err().unwrap();
    assert!(error.contains("stdin:3:6: plugin/file: ") && error.contains("db:4:7: \"x\""), "{error}");
    let error = Followed::try_new(None, "reload 0", "").err().unwrap();
    assert!(error.contains("plugin/file: cannot read"), "{error}");
}

/// As in CoreDNS, names that do not exist and empty non-terminals pass; NODATA does not.
#[test]
fn names_that_pass() {
    let zone = text(1, "www A 192.0.2.1\na.ent A 192.0.2.2\nto CNAME nx");
    for (properties, below, name, passes) in [
        ("fallthrough", "whoami", "nx.example.org", true),
        ("fallthrough", "whoami", "ent.example.org", true),
        ("fallthrough", "whoami", "to.example.org", false),
        ("fallthrough other.org", "whoami", "nx.example.org", false),
        ("", "whoami", "nx.example.org", false),
        ("", "whoami", "other.org", true),
    ] {
        let file = Followed::new(Some(&zone), properties, below);
        // Only whoami has an SRV record in its answer.
        assert_eq!(file.a(name).contains("SRV"), passes, "{properties} {name}: {}", file.a(name));
    }
    let alone = Followed::new(Some(&zone), "", "");
    assert!(alone.a("other.org").starts_with("REFUSED"), "{}", alone.a("other.org"));
}

/// The target of the last alias is looked up by the server; its rcode is that of the answer (RFC 6604).
#[test]
fn targets_outside_are_followed() {
    let zone = text(
        1,
        "one CNAME two\ntwo CNAME www.other.net.\nnx CNAME nx.other.net.\nfail CNAME fail.other.net.",
    );
    let template = "template IN A other.net {\nmatch ^www\nanswer \"{{ .Name }} 60 IN A 192.0.2.77\"\nfallthrough\n}\n\
                    template IN A other.net {\nmatch ^nx\nrcode NXDOMAIN\nfallthrough\n}\n\
                    template IN A other.net {\nmatch ^fail\nrcode SERVFAIL\n}";
    let file = Followed::new(Some(&zone), "", template);
    let one = file.a("one.example.org");
    assert_eq!((one.matches("CNAME").count(), one.matches("192.0.2.77").count()), (2, 1), "{one}");
    for (name, rcode) in [("nx.example.org", "NXDOMAIN"), ("fail.example.org", "SERVFAIL")] {
        let answer = file.a(name);
        assert!(answer.starts_with(rcode) && answer.contains("CNAME"), "{answer}");
    }
}

/// All zones of a block are read at the start, and after a reload of the Corefile. Aliases that lead
/// from zone to zone and back end.
#[test]
fn several_zones_of_a_block() {
    let dir = TempDir::new().unwrap();
    for (zone, other) in [("a", "b"), ("b", "a")] {
        let rest = format!("www A 192.0.2.1\nto CNAME www.{other}.test.\ncircle CNAME circle.{other}.test.");
        fs::write(dir.path().join(zone), text(1, &rest)).unwrap();
    }
    let corefile = format!(
        ". {{\nbind 127.0.0.1\nroot {}\nfile a a.test {{\nreload 0\n}}\nfile b b.test c.test\n}}\n",
        dir.path().display()
    );
    let mut scene = Scene::build(&corefile).unwrap();
    for _ in 0..2 {
        for zone in ["a", "b", "c"] {
            let answer = scene.ask(AT, &format!("www.{zone}.test"), RType::A);
            assert!(answer.contains("192.0.2.1"), "{zone}: {answer}");
            let answer = scene.ask(AT, &format!("to.{zone}.test"), RType::A);
            assert!(answer.contains("CNAME") && answer.contains("192.0.2.1"), "{zone}: {answer}");
        }
        let answer = scene.ask(AT, "circle.a.test", RType::A);
        assert!(answer.starts_with("SERVFAIL"), "{answer}");
        scene.reload(&corefile);
    }
}
