//! Zones that follow the files of a directory, with scripted time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use scene::Scene;
use tempfile::TempDir;
use wire::RType;

const AT: &str = "127.0.0.1:53";

/// A directory, and a server that scans it every 5 s; the first scan is over.
struct Followed {
    scene: Scene,
    directory: TempDir,
}

fn zone(serial: u32, address: &str) -> String {
    format!("$TTL 60\n@ SOA ns h {serial} 1 1 1 60\n@ NS ns\nwww A {address}\n")
}

impl Followed {
    /// Files with their text are there at the start.
    fn new(files: &[(&str, &str)], pattern: &str, below: &str) -> Self {
        let directory = TempDir::new().unwrap();
        files.iter().for_each(|(name, text)| write(directory.path(), name, text));
        let corefile = format!(
            ". {{\nbind 127.0.0.1\nauto test {{\ndirectory {} {pattern}\nreload 5s\n}}\n{below}\n}}\n",
            directory.path().display()
        );
        let mut followed = Self { scene: Scene::build(&corefile).unwrap(), directory };
        // The first call sets the time of the next scan.
        followed.scan();
        followed
    }

    fn write(&self, name: &str, text: &str) {
        write(self.directory.path(), name, text);
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.directory.path().join(name)).unwrap();
    }

    /// Runs the next scan to its end.
    fn scan(&mut self) {
        self.scene.now += Duration::from_secs(5);
        let (shared, now) = (&self.scene.shared, self.scene.now);
        let look = || shared.lasting.all().iter().filter_map(|kept| kept.look(now, &shared.logger)).min();
        // The thread that reads takes as long as it takes.
        while look() != Some(now + Duration::from_secs(5)) {
            std::thread::yield_now();
        }
    }

    fn a(&self, name: &str) -> String {
        self.scene.ask(AT, name, RType::A)
    }

    fn log(&self) -> String {
        self.scene.shared.logger.flush(Duration::from_secs(5));
        self.scene.log.text()
    }
}

fn write(directory: &Path, name: &str, text: &str) {
    let path = directory.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn files_appear_change_and_go() {
    let mut auto = Followed::new(&[("db.one.test", &zone(1, "192.0.2.1"))], "", "");
    assert!(auto.a("www.one.test").contains("192.0.2.1"), "{}", auto.a("www.one.test"));
    auto.write("db.two.test", &zone(1, "192.0.2.2"));
    auto.write("db.one.test", &zone(1, "192.0.2.11"));
    auto.scan();
    assert!(auto.a("www.two.test").contains("192.0.2.2"));
    assert!(
        auto.a("www.one.test").contains("192.0.2.1;"),
        "the serial is the same: {}",
        auto.a("www.one.test")
    );
    auto.write("db.one.test", &(zone(2, "192.0.2.11") + "; longer"));
    auto.scan();
    assert!(auto.a("www.one.test").contains("192.0.2.11"));
    auto.remove("db.one.test");
    auto.scan();
    assert!(auto.a("www.one.test").starts_with("REFUSED"), "{}", auto.a("www.one.test"));
    assert!(auto.a("www.two.test").contains("192.0.2.2"));
    assert!(auto.log().contains("db.one.test is gone"), "{}", auto.log());
}

#[test]
fn bad_files_and_directories_leave_zones() {
    let mut auto = Followed::new(
        &[("db.one.test", &zone(1, "192.0.2.1")), ("db.bad.test", &zone(1, "192.0.2.256"))],
        "",
        "",
    );
    assert!(auto.a("www.bad.test").starts_with("REFUSED"));
    auto.write("db.one.test", &zone(2, "192.0.2.256"));
    auto.scan();
    auto.scan();
    assert!(auto.a("www.one.test").contains("192.0.2.1"));
    let log = auto.log();
    for (expected, count) in [
        ("db.one.test:4:7: \"192.0.2.256\" in the data of A", 1),
        ("db.bad.test:4:7: \"192.0.2.256\" in the data of A", 1),
        ("the zone is not served", 1),
        ("the zone stays as it was", 1),
    ] {
        assert_eq!(log.matches(expected).count(), count, "{expected}: {log}");
    }
    let (here, away) = (auto.directory.path().to_owned(), auto.directory.path().with_extension("away"));
    fs::rename(&here, &away).unwrap();
    auto.scan();
    assert!(auto.a("www.one.test").contains("192.0.2.1"), "the directory is not there");
    assert!(auto.log().contains("its zones stay"), "{}", auto.log());
    fs::rename(&away, &here).unwrap();
    auto.write("db.bad.test", &zone(1, "192.0.2.7"));
    auto.scan();
    assert!(auto.a("www.bad.test").contains("192.0.2.7"));
}

/// Directories below are scanned; a mounted `ConfigMap`'s files are links to a directory `..data`.
#[test]
fn files_are_found_by_name() {
    let files = [
        ("sub/deep/a.test.zone", &*zone(1, "192.0.2.1")),
        ("other/a.test.zone", &zone(1, "192.0.2.2")),
        ("b.test.zone.bak", &zone(1, "192.0.2.3")),
        ("..2026/c.test.zone", &zone(1, "192.0.2.4")),
        ("bad..name.zone", &zone(1, "192.0.2.5")),
    ];
    let mut auto = Followed::new(&files, r"^(.*)\.zone$ {1}", "");
    symlink("..2026/c.test.zone", auto.directory.path().join("c.test.zone")).unwrap();
    auto.scan();
    assert!(auto.a("www.a.test").contains("192.0.2.2"), "the first by path: {}", auto.a("www.a.test"));
    assert!(auto.a("www.b.test").starts_with("REFUSED"));
    assert!(auto.a("www.c.test").contains("192.0.2.4"));
    let log = auto.log();
    for expected in ["sub/deep/a.test.zone is not served: ", "its zone would be \"bad..name\""] {
        assert_eq!(log.matches(expected).count(), 1, "{expected}: {log}");
    }
}

#[test]
fn names_that_pass() {
    let files = [("db.one.test", &*zone(1, "192.0.2.1")), ("db.sub.one.test", &zone(1, "192.0.2.2"))];
    let auto = Followed::new(&files, "", "whoami");
    for (name, expected) in [
        ("www.one.test", "192.0.2.1"),
        ("www.sub.one.test", "192.0.2.2"),
        ("no.one.test", "NXDOMAIN"),
        // Only whoami has an SRV record in its answer.
        ("www.two.test", "SRV"),
        ("www.one.other", "SRV"),
    ] {
        assert!(auto.a(name).contains(expected), "{name}: {}", auto.a(name));
    }
}

#[test]
fn thousand_zones() {
    let mut auto = Followed::new(&[], "", "");
    for number in 0..1_000 {
        auto.write(
            &format!("db.z{number}.test"),
            &zone(1, &format!("192.0.{}.{}", number / 250, number % 250)),
        );
    }
    auto.scan();
    for number in [0, 7, 999] {
        let expected = format!("192.0.{}.{}", number / 250, number % 250);
        assert!(auto.a(&format!("www.z{number}.test")).contains(&expected));
    }
}

/// Each directive of a block has its own directory, which is scanned at the start.
#[test]
fn several_directories_of_a_block() {
    let dir = TempDir::new().unwrap();
    write(dir.path(), "a/db.a.test", &zone(1, "192.0.2.1"));
    write(dir.path(), "b/db.b.test", &zone(1, "192.0.2.2"));
    let directive = |of: &str| format!("auto {of}.test {{\ndirectory {of}\nreload 0\n}}\n");
    let corefile = format!(
        ". {{\nbind 127.0.0.1\nroot {}\n{}{}}}\n",
        dir.path().display(),
        directive("a"),
        directive("b")
    );
    let scene = Scene::build(&corefile).unwrap();
    for (name, address) in [("www.a.test", "192.0.2.1"), ("www.b.test", "192.0.2.2")] {
        assert!(scene.ask(AT, name, RType::A).contains(address), "{name}");
    }
}

/// A scan logs 16 messages and the number of the others, and repeats none.
#[test]
fn messages_of_a_scan_are_bounded() {
    let mut auto = Followed::new(&[], "", "");
    for number in 0..2_000 {
        auto.write(&format!("db.z{number}.test"), "@ SOA x");
    }
    auto.scan();
    auto.scan();
    let log = auto.log();
    assert_eq!(log.matches("the zone is not served").count(), 16, "{log}");
    assert_eq!(log.matches("1984 more files of the directory are not served").count(), 1, "{log}");
}
