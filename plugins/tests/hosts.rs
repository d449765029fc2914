//! A hosts table that follows its file, with scripted time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;
use std::time::Duration;

use files::READ_TIMEOUT;
use metrics::counters::ThreadCounters;
use plugin::{HostsGuard, Lookup, QueryContext};
use plugins::hosts::HostsTable;
use query::Block;
use scene::Scene;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use tempfile::TempDir;
use wire::{Proto, Query, RType, Reply};

const AT: &str = "127.0.0.1:53";

/// A hosts file in its own directory, and a server that checks it every 5 s.
struct Followed {
    scene: Scene,
    file: std::path::PathBuf,
    _dir: TempDir,
}

impl Followed {
    fn new(text: Option<&str>, properties: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("hosts");
        if let Some(text) = text {
            fs::write(&file, text).unwrap();
        }
        let scene =
            Scene::new(&format!(". {{\nbind 127.0.0.1\nhosts {} {{\n{properties}\n}}\n}}\n", file.display()));
        Self { scene, file, _dir: dir }
    }

    /// Writes the file; the version differs even if the file system's clock has not advanced.
    fn write(&self, text: &str) {
        let before = fs::metadata(&self.file).and_then(|data| data.modified());
        fs::write(&self.file, text).unwrap();
        let after = before.map_or_else(|_| clock::wall(), |at| at + Duration::from_secs(1));
        self.touch(after);
    }

    fn touch(&self, at: std::time::SystemTime) {
        fs::File::options().append(true).open(&self.file).unwrap().set_modified(at).unwrap();
    }

    /// Runs the next check, and returns the addresses then served for `a`.
    fn look(&mut self) -> String {
        self.scene.now += Duration::from_secs(5);
        let table = self.table();
        let next = table.look_for(self.scene.now, READ_TIMEOUT, &self.scene.shared.logger);
        assert_eq!(next, Some(self.scene.now + Duration::from_secs(5)));
        self.a()
    }

    fn a(&self) -> String {
        let reply = self.scene.ask(AT, "a", RType::A);
        reply
            .split("; ")
            .skip(1)
            .filter_map(|record| record.split(' ').next_back())
            .collect::<Vec<_>>()
            .join(" ")
    }

    fn table(&self) -> Arc<HostsTable> {
        self.scene.shared.hosts.all().remove(0)
    }

    fn log(&self) -> String {
        self.scene.log.read(&self.scene.shared.logger)
    }
}

#[test]
fn batch_keeps_its_table() {
    let (mut one, other) =
        (Followed::new(Some("192.0.2.1 a\n"), ""), Followed::new(Some("192.0.2.9 a\n"), ""));
    let packet = scene::packet("a", RType::A, None);
    let wire::Verdict::Pass(query) = wire::accept(&packet) else { panic!("refused") };
    fn last<'h>(block: &'h Block, query: &Query<'_>, tables: &mut HostsGuard<'h>) -> u8 {
        let mut out = Vec::new();
        let mut reply = Reply::start(&mut out, query);
        let client = scene::client();
        let context = QueryContext::new(clock::now(), &client, AT.parse().unwrap(), Proto::Udp, 0);
        let counters = ThreadCounters::new(None, 0);
        let found = block.pipeline.answer_now(&context, tables, query, &mut reply, counters);
        assert!(matches!(found, Lookup::Answer), "{found:?}");
        reply.octets()[reply.octets().len() - 1]
    }
    let [first, second] = [&one, &other].map(|file| file.scene.configuration.blocks[0].clone());
    let mut batch = HostsGuard::default();
    let answers = [&first, &second, &first, &first].map(|block| last(block, &query, &mut batch));
    assert_eq!(answers, [1, 9, 1, 1]);
    one.write("192.0.2.2 a\n");
    one.look();
    assert_eq!((last(&first, &query, &mut batch), last(&first, &query, &mut HostsGuard::default())), (1, 2));
}

#[test]
fn change_is_served_after_next_check() {
    let mut file = Followed::new(Some("192.0.2.1 a\n"), "");
    assert_eq!(file.a(), "192.0.2.1");
    file.write("192.0.2.2 a\n192.0.2.3 a\n");
    assert_eq!(file.a(), "192.0.2.1");
    let early = file.scene.now + Duration::from_millis(4999);
    let next = file.table().look_for(early, READ_TIMEOUT, &file.scene.shared.logger);
    assert_eq!((next, file.a()), (Some(file.scene.now + Duration::from_secs(5)), "192.0.2.1".into()));
    assert_eq!(file.look(), "192.0.2.2 192.0.2.3");
    let modified = fs::metadata(&file.file).unwrap().modified().unwrap();
    assert_eq!(
        u128::from(file.table().modified_ms()),
        modified.duration_since(std::time::UNIX_EPOCH).unwrap().as_millis()
    );
}

#[test]
fn renamed_file_is_a_change() {
    let mut file = Followed::new(Some("192.0.2.1 a\n"), "");
    let modified = fs::metadata(&file.file).unwrap().modified().unwrap();
    let other = file.file.with_extension("new");
    fs::write(&other, "192.0.2.2 a\n").unwrap();
    fs::File::options().append(true).open(&other).unwrap().set_modified(modified).unwrap();
    fs::rename(&other, &file.file).unwrap();
    assert_eq!(file.look(), "192.0.2.2");
}

#[test]
fn deleted_file_keeps_entries() {
    let mut file = Followed::new(Some("192.0.2.1 a\n"), "");
    fs::remove_file(&file.file).unwrap();
    assert_eq!(file.log(), "");
    for _ in 0..3 {
        assert_eq!(file.look(), "192.0.2.1");
    }
    let logged = format!(
        "[WARNING] plugin/hosts: Cannot read {}: No such file or directory (os error 2); the entries stay\n",
        file.file.display()
    );
    assert_eq!(file.log(), logged);
    file.write("192.0.2.2 a\n");
    assert_eq!(file.look(), "192.0.2.2");
    fs::remove_file(&file.file).unwrap();
    assert_eq!(file.look(), "192.0.2.2");
    assert_eq!(file.log(), logged);
}

#[test]
fn emptied_file_needs_two_checks() {
    for properties in ["", "192.0.2.9 inline"] {
        for emptied in ["", "# nothing\n", "\n\n", "no address\n"] {
            let mut file = Followed::new(Some("192.0.2.1 a\n"), properties);
            file.write(emptied);
            assert_eq!(file.look(), "192.0.2.1", "{properties:?} {emptied:?}");
            assert_eq!(file.look(), "", "{properties:?} {emptied:?}");
        }
    }
}

#[test]
fn refilled_file_never_empties_table() {
    let mut file = Followed::new(Some("192.0.2.1 a\n"), "");
    file.write("");
    assert_eq!(file.look(), "192.0.2.1");
    file.write("192.0.2.2 a\n");
    assert_eq!(file.look(), "192.0.2.2");
    // The doubted version is forgotten: the next empty file is doubted again.
    file.write("");
    assert_eq!(file.look(), "192.0.2.2");
}

#[test]
fn unterminated_file_needs_two_checks() {
    let mut file = Followed::new(Some("192.0.2.1 a\n"), "");
    file.write("192.0.2.2 a\n192.0.2.3 a.exam");
    assert_eq!(file.look(), "192.0.2.1");
    // Another process is still writing.
    file.write("192.0.2.2 a\n192.0.2.3 a.example.o");
    assert_eq!(file.look(), "192.0.2.1");
    file.write("192.0.2.2 a\n192.0.2.3 a");
    assert_eq!(file.look(), "192.0.2.1");
    assert_eq!(file.look(), "192.0.2.2 192.0.2.3");
    // The first table has no names to lose.
    assert_eq!(Followed::new(Some("192.0.2.1 a"), "").a(), "192.0.2.1");
}

#[test]
fn touched_file_is_read_again() {
    let mut file = Followed::new(Some("192.0.2.1 a\n"), "");
    let later = fs::metadata(&file.file).unwrap().modified().unwrap() + Duration::from_secs(60);
    let before = file.table().modified_ms();
    file.touch(later);
    assert_eq!(file.look(), "192.0.2.1");
    assert_eq!(file.table().modified_ms(), before + 60_000);
    assert_eq!(file.log(), "");
}

#[test]
fn unchanged_file_is_not_read() {
    let mut file = Followed::new(Some("192.0.2.1 a\nbad\n"), "");
    let table = file.table();
    let first = table.built();
    assert!(file.log().contains("line 2"));
    file.look();
    assert_eq!(table.built(), first);
    assert_eq!(file.log(), "");
}

#[test]
fn missing_file_is_served_once_created() {
    let mut file = Followed::new(None, "192.0.2.9 inline");
    assert!(file.log().starts_with("[WARNING] plugin/hosts: Cannot read "));
    assert_eq!((file.a(), file.table().modified_ms()), (String::new(), 0));
    assert_eq!(file.scene.ask(AT, "inline", RType::A), "NOERROR aa; inline. 3600 IN A 192.0.2.9");
    assert_eq!(file.look(), "");
    file.write("192.0.2.1 a\n");
    assert_eq!(file.look(), "192.0.2.1");
    assert_eq!(file.scene.ask(AT, "inline", RType::A), "NOERROR aa; inline. 3600 IN A 192.0.2.9");
}

#[test]
fn no_reload_reads_once() {
    let mut file = Followed::new(Some("192.0.2.1 a\n"), "reload 0");
    file.write("192.0.2.2 a\n");
    file.scene.now += Duration::from_secs(3600);
    assert_eq!(file.table().look_for(file.scene.now, READ_TIMEOUT, &file.scene.shared.logger), None);
    assert_eq!(file.a(), "192.0.2.1");
}

#[test]
fn no_reload_reads_with_corefile() {
    let mut file = Followed::new(Some("192.0.2.1 a\n"), "reload 0");
    let corefile = format!(". {{\nbind 127.0.0.1\nhosts {} {{\nreload 0\n}}\n}}\n", file.file.display());
    file.write("192.0.2.2 a\n");
    file.scene.reload(&corefile);
    assert_eq!(file.a(), "192.0.2.2");
    // Another process is writing: the file is read until it stays the same.
    file.write("192.0.2.3 a\n192.0");
    file.scene.reload(&corefile);
    assert_eq!(file.a(), "192.0.2.2");
    file.write("192.0.2.3 a\n192.0.2.4 a\n");
    file.scene.now += Duration::from_secs(5);
    assert_eq!(file.table().look_for(file.scene.now, READ_TIMEOUT, &file.scene.shared.logger), None);
    assert_eq!(file.a(), "192.0.2.3 192.0.2.4");
}

#[test]
fn missing_file_check_interval() {
    for (properties, interval) in [("", Some(5)), ("reload 30s", Some(30)), ("reload 0", None)] {
        let file = Followed::new(None, properties);
        let now = file.scene.now + Duration::from_secs(60);
        let next = file.table().look_for(now, READ_TIMEOUT, &file.scene.shared.logger);
        assert_eq!(next, interval.map(|seconds| now + Duration::from_secs(seconds)), "{properties:?}");
    }
}

#[test]
fn rewrite_of_same_size_and_time() {
    let mut file = Followed::new(Some("192.0.2.1 a\n"), "");
    let modified = fs::metadata(&file.file).unwrap().modified().unwrap();
    let changed = || fs::metadata(&file.file).map(|data| (data.ctime(), data.ctime_nsec())).unwrap();
    let before = changed();
    // The file system's clock has a coarse resolution.
    while changed() == before {
        fs::write(&file.file, "192.0.2.2 a\n").unwrap();
        file.touch(modified);
    }
    assert_eq!(file.look(), "192.0.2.2");
}

#[test]
fn bad_and_huge_lines_are_skipped() {
    let huge = format!("192.0.2.7 {}\n192.0.2.1 {} a\n", "b ".repeat(100_000), "x".repeat(2000));
    let mut text = format!("nonsense a\n{huge}192.0.2.2\n");
    let file = Followed::new(Some(&text), "");
    let name = file.file.display().to_string();
    assert_eq!(file.a(), "192.0.2.1");
    assert_eq!(
        file.log(),
        format!(
            "[ERROR] plugin/hosts: Hosts file {name:?}, line 1: not an IP address, dropping the line\n\
             [ERROR] plugin/hosts: Hosts file {name:?}, line 3: name longer than 1024 bytes, dropping the name\n\
             [ERROR] plugin/hosts: Hosts file {name:?}, line 4: an address without a name\n"
        )
    );
    text = "x y\n".repeat(25) + "192.0.2.1 a\n";
    let file = Followed::new(Some(&text), "");
    assert_eq!(file.a(), "192.0.2.1");
    let log = file.log();
    assert_eq!(log.lines().count(), 11);
    assert!(log.ends_with(&format!("Hosts file {:?}: 15 more bad lines\n", file.file)), "{log}");
}

#[test]
fn non_files_keep_entries() {
    let mut file = Followed::new(Some("192.0.2.1 a\n"), "");
    fs::remove_file(&file.file).unwrap();
    fs::create_dir(&file.file).unwrap();
    assert_eq!(file.look(), "192.0.2.1");
    assert!(file.log().contains("expected a file, found a directory"));
    let mut file = Followed::new(Some("192.0.2.1 a\n"), "");
    fs::remove_file(&file.file).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&file.file).status().unwrap();
    assert!(made.success());
    assert_eq!(file.look(), "192.0.2.1", "the server does not wait for a writer");
    assert!(file.log().contains("expected a file, found a pipe"));
    let mut file = Followed::new(Some("192.0.2.1 a\n"), "");
    fs::remove_file(&file.file).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &file.file).unwrap();
    assert_eq!(file.look(), "192.0.2.1", "an endless file is not read");
    assert!(file.log().contains("expected a file, found a device"));
}

#[test]
fn equal_directives_share_a_table() {
    let hosts = |extra: &str| {
        format!(
            "a. {{\nbind 127.0.0.1\nhosts /nowhere/h . {{\nttl 5\n}}\n}}\nb. {{\nbind 127.0.0.1\nhosts /nowhere/h . {{\nttl 5\n}}\n}}\n{extra}"
        )
    };
    let mut scene = Scene::new(&hosts("c. {\nbind 127.0.0.1\nhosts /nowhere/h . {\nttl 6\n}\n}\n"));
    let tables = |scene: &Scene| scene.shared.hosts.all().iter().map(Arc::downgrade).collect::<Vec<_>>();
    let [first, third] = &*tables(&scene) else { panic!("two tables for three blocks") };
    scene.reload(&hosts(""));
    assert!(first.ptr_eq(&tables(&scene)[0]));
    // A name that was removed from the Corefile is dropped at the next build.
    scene.reload(&hosts(""));
    assert_eq!((first.strong_count() > 0, third.strong_count()), (true, 0));
}
