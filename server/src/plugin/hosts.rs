//! `hosts`: a table of names in memory, built aside from a file and swapped in whole.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use arc_swap::ArcSwap;
use hostsfile::{Found, Options, Report, Source, Table};
use wire::{Class, Flags, Query, RType, Reply};

use super::Lookup;
use crate::observe::Logger;
use crate::observe::counters::Tally;
use crate::setup::HostsSpec;

/// One block's view of a table.
pub struct Hosts {
    table: Arc<HostsTable>,
}

/// A table that follows its file; blocks with equal directives share one.
pub struct HostsTable {
    spec: HostsSpec,
    current: ArcSwap<Table>,
    /// How many entries the lines in the Corefile have.
    inline_entries: usize,
    /// The file's modification time in milliseconds since 1970; 0 before it was read.
    modified_ms: AtomicU64,
    /// When the table that serves was built, in milliseconds since 1970.
    built_ms: AtomicU64,
    state: Mutex<State>,
}

/// What the one reader of the file remembers.
#[derive(Default)]
struct State {
    seen: Option<Stamp>,
    /// A change that looks like a write in progress: taken only if the next look finds the same.
    doubted: Option<Stamp>,
    next_look: Option<Instant>,
    /// Replaced tables, dropped here and not by a worker that was still reading.
    replaced: Vec<Arc<Table>>,
    missing_reported: bool,
}

/// What tells one version of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    modified: (i64, i64),
    size: u64,
}

/// Every hosts table, found by what its directive says.
#[derive(Default)]
pub struct HostsRegistry {
    tables: Mutex<Vec<Arc<HostsTable>>>,
}

impl Hosts {
    /// Names answer A, AAAA and PTR; another type of a known name is NODATA.
    #[inline]
    pub fn lookup(&self, query: &Query<'_>, reply: &mut Reply<'_>, tally: Tally<'_>) -> Lookup {
        if query.class != Class::IN {
            return Lookup::Pass;
        }
        let table = self.table.current.load();
        match table.lookup(&query.name, query.rtype) {
            Found::Ready { body, count } => {
                reply.flags = Flags::AA;
                reply.push_ready(body, [count, 0, 0]);
                tally.add(|zone| &zone.hosts_hits);
                Lookup::Answer
            }
            Found::NoData if self.goes_on(query) => Lookup::Pass,
            Found::NoData => {
                reply.flags = Flags::AA;
                tally.add(|zone| &zone.hosts_hits);
                Lookup::Answer
            }
            Found::Absent => {
                let spec = &self.table.spec;
                if !spec.zones.iter().any(|zone| query.name.is_within(zone)) {
                    return Lookup::Pass;
                }
                tally.add(|zone| &zone.hosts_misses);
                if query.rtype == RType::PTR || spec.fallthrough.through(&query.name) {
                    Lookup::Pass
                } else {
                    // As CoreDNS: there is no SOA to deny the name with.
                    Lookup::Fail(crate::failure::Failure::NoHost)
                }
            }
        }
    }

    /// Whether a known name's unsupported type is for the next plugin.
    pub(crate) fn goes_on(&self, query: &Query<'_>) -> bool {
        let supported = matches!(query.rtype, RType::A | RType::AAAA | RType::PTR);
        self.table.spec.fallthrough_unsupported
            && !supported
            && self.table.spec.fallthrough.through(&query.name)
    }

    /// The table behind it.
    pub fn table(&self) -> &Arc<HostsTable> {
        &self.table
    }
}

impl HostsTable {
    /// What the directive says.
    pub fn spec(&self) -> &HostsSpec {
        &self.spec
    }

    /// The entries served now, names and addresses counted as CoreDNS does.
    pub fn entries(&self) -> usize {
        self.current.load().entries()
    }

    /// The file's modification time in milliseconds since 1970, 0 if it was never read.
    pub fn modified_ms(&self) -> u64 {
        self.modified_ms.load(Relaxed)
    }

    /// When the table that serves was built, in milliseconds since 1970.
    pub fn built_ms(&self) -> u64 {
        self.built_ms.load(Relaxed)
    }

    /// Whether the table knows the name, for `explain`.
    pub fn knows(&self, name: &wire::Name, rtype: RType) -> Option<bool> {
        match self.current.load().lookup(name, rtype) {
            Found::Ready { .. } => Some(true),
            Found::NoData => Some(false),
            Found::Absent => None,
        }
    }

    /// Looks at the file if it is time to, and says when it will be the next time; `None` for never.
    ///
    /// A file that is gone, cannot be read or is being written leaves the table as it is: a change that would lose every
    /// name, or whose last line has no end, is believed only when the next look finds it unchanged.
    pub fn look(&self, now: Instant, logger: &Logger) -> Option<Instant> {
        let mut state = self.state();
        state.replaced.retain(|table| Arc::strong_count(table) > 1);
        if self.spec.reload.is_zero() && state.seen.is_some() {
            return None;
        }
        if let Some(next) = state.next_look
            && now < next
        {
            return Some(next);
        }
        let next = now + self.spec.reload.max(Duration::from_millis(100));
        state.next_look = Some(next);
        self.read(&mut state, logger);
        Some(next)
    }

    /// Reads the file now, whatever was read before: for the first table and for tests.
    fn read(&self, state: &mut State, logger: &Logger) {
        let file = &self.spec.file;
        let (text, stamp) = match read_if_changed(file, state.seen) {
            Ok(Some(read)) => read,
            Ok(None) => {
                state.doubted = None;
                return;
            }
            Err(error) => {
                if !std::mem::replace(&mut state.missing_reported, true) {
                    logger.warning(
                        Some("hosts"),
                        &format!("Cannot read {}: {error}; the entries stay", file.display()),
                    );
                }
                return;
            }
        };
        state.missing_reported = false;
        let (table, report) = self.build(&text);
        let emptied = table.entries() == self.inline_entries && self.entries() > self.inline_entries;
        let doubtful = state.seen.is_some() && (emptied || text.last().is_some_and(|&last| last != b'\n'));
        if doubtful && state.doubted != Some(stamp) {
            state.doubted = Some(stamp);
            return;
        }
        self.swap(state, table);
        state.doubted = None;
        state.seen = Some(stamp);
        let modified = stamp.modified.0.max(0) as u64 * 1000 + stamp.modified.1.max(0) as u64 / 1_000_000;
        self.modified_ms.store(modified, Relaxed);
        self.report(&report, logger);
    }

    fn build(&self, text: &[u8]) -> (Table, Report) {
        let name = self.spec.file.display().to_string();
        let sources =
            [Source { name: &name, text }, Source { name: "Corefile", text: self.spec.inline.as_bytes() }];
        Table::build(&sources, &self.options())
    }

    fn options(&self) -> Options {
        Options { ttl: self.spec.ttl, zones: self.spec.zones.clone(), reverse: self.spec.reverse }
    }

    fn swap(&self, state: &mut State, table: Table) {
        state.replaced.push(self.current.swap(Arc::new(table)));
        self.built_ms.store(wall_ms(), Relaxed);
    }

    fn report(&self, report: &Report, logger: &Logger) {
        for line in &report.bad_lines {
            logger.error(
                Some("hosts"),
                &format!("Hosts file {:?}, line {}: {}", &*line.source, line.line, line.error),
            );
        }
        if report.bad_count > report.bad_lines.len() {
            let more = report.bad_count - report.bad_lines.len();
            logger.error(Some("hosts"), &format!("Hosts file {:?}: {more} more bad lines", self.spec.file));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HostsRegistry {
    /// The table of a directive: the one that serves already, or a new one that has read its file.
    pub fn hosts(&self, spec: &HostsSpec) -> Hosts {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        // Only the registry holds what no house needs any more.
        tables.retain(|table| Arc::strong_count(table) > 1 || table.spec == *spec);
        if let Some(table) = tables.iter().find(|table| table.spec == *spec) {
            return Hosts { table: table.clone() };
        }
        let mut table = HostsTable {
            spec: spec.clone(),
            current: ArcSwap::from_pointee(Table::empty()),
            inline_entries: 0,
            modified_ms: AtomicU64::new(0),
            built_ms: AtomicU64::new(wall_ms()),
            state: Mutex::default(),
        };
        let (inline, _) = table.build(&[]);
        table.inline_entries = inline.entries();
        table.current.store(Arc::new(inline));
        let table = Arc::new(table);
        tables.push(table.clone());
        Hosts { table }
    }

    /// Every table in use.
    pub fn all(&self) -> Vec<Arc<HostsTable>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The file's text and stamp, or nothing if it is what was `seen` last.
fn read_if_changed(path: &Path, seen: Option<Stamp>) -> io::Result<Option<(Vec<u8>, Stamp)>> {
    let mut file = File::open(path)?;
    let before = stamp(&file.metadata()?);
    if seen == Some(before) {
        return Ok(None);
    }
    let mut text = Vec::new();
    file.by_ref().take(MAX_FILE).read_to_end(&mut text)?;
    if text.len() as u64 == MAX_FILE {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "more than 1 GiB"));
    }
    let after = stamp(&file.metadata()?);
    // Written while it was read: the next look will see it whole.
    if before != after { Ok(None) } else { Ok(Some((text, after))) }
}

fn stamp(metadata: &Metadata) -> Stamp {
    Stamp {
        device: metadata.dev(),
        inode: metadata.ino(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        size: metadata.size(),
    }
}

/// The wall clock in seconds since 1970, for ages.
pub(crate) fn wall_ms() -> u64 {
    crate::clock::wall().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

const MAX_FILE: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::house::tests::Scene;
    use std::fs;
    use tempfile::TempDir;

    const AT: &str = "127.0.0.1:53";

    /// A hosts file in a directory of its own, and a server that follows it every 5 s.
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
            let scene = Scene::new(&format!(
                ". {{\nbind 127.0.0.1\nhosts {} {{\n{properties}\n}}\n}}\n",
                file.display()
            ));
            Self { scene, file, _dir: dir }
        }

        /// Writes the file, unlike before even where the clock of the file system stands still.
        fn write(&self, text: &str) {
            let before = fs::metadata(&self.file).and_then(|data| data.modified());
            fs::write(&self.file, text).unwrap();
            let after = before.map_or_else(|_| crate::clock::wall(), |at| at + Duration::from_secs(1));
            self.touch(after);
        }

        fn touch(&self, at: std::time::SystemTime) {
            File::options().append(true).open(&self.file).unwrap().set_modified(at).unwrap();
        }

        /// Lets the next look come; the addresses of `a` that are served then.
        fn look(&mut self) -> String {
            self.scene.now += Duration::from_secs(5);
            let table = self.table();
            let next = table.look(self.scene.now, &self.scene.shared.logger);
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
            self.scene.house.blocks[0].pipeline.hosts().unwrap().table().clone()
        }

        fn log(&self) -> String {
            self.scene.paper.read(&self.scene.shared.logger)
        }
    }

    #[test]
    fn a_change_is_served_from_the_next_look_on() {
        let mut file = Followed::new(Some("192.0.2.1 a\n"), "");
        assert_eq!(file.a(), "192.0.2.1");
        file.write("192.0.2.2 a\n192.0.2.3 a\n");
        assert_eq!(file.a(), "192.0.2.1");
        let early = file.scene.now + Duration::from_millis(4999);
        let next = file.table().look(early, &file.scene.shared.logger);
        assert_eq!((next, file.a()), (Some(file.scene.now + Duration::from_secs(5)), "192.0.2.1".into()));
        assert_eq!(file.look(), "192.0.2.2 192.0.2.3");
        let modified = fs::metadata(&file.file).unwrap().modified().unwrap();
        assert_eq!(
            u128::from(file.table().modified_ms()),
            modified.duration_since(UNIX_EPOCH).unwrap().as_millis()
        );
    }

    #[test]
    fn a_renamed_file_is_a_change_even_with_the_same_time_and_size() {
        let mut file = Followed::new(Some("192.0.2.1 a\n"), "");
        let modified = fs::metadata(&file.file).unwrap().modified().unwrap();
        let other = file.file.with_extension("new");
        fs::write(&other, "192.0.2.2 a\n").unwrap();
        File::options().append(true).open(&other).unwrap().set_modified(modified).unwrap();
        fs::rename(&other, &file.file).unwrap();
        assert_eq!(file.look(), "192.0.2.2");
    }

    #[test]
    fn a_deleted_file_keeps_its_entries_and_is_told_once() {
        let mut file = Followed::new(Some("192.0.2.1 a\n"), "");
        fs::remove_file(&file.file).unwrap();
        assert_eq!(file.log(), "");
        for _ in 0..3 {
            assert_eq!(file.look(), "192.0.2.1");
        }
        let told = format!(
            "[WARNING] plugin/hosts: Cannot read {}: No such file or directory (os error 2); the entries stay\n",
            file.file.display()
        );
        assert_eq!(file.log(), told);
        file.write("192.0.2.2 a\n");
        assert_eq!(file.look(), "192.0.2.2");
        fs::remove_file(&file.file).unwrap();
        assert_eq!(file.look(), "192.0.2.2");
        assert_eq!(file.log(), told);
    }

    #[test]
    fn an_emptied_file_is_believed_at_the_second_look() {
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
    fn an_emptied_file_that_is_filled_meanwhile_never_empties_the_table() {
        let mut file = Followed::new(Some("192.0.2.1 a\n"), "");
        file.write("");
        assert_eq!(file.look(), "192.0.2.1");
        file.write("192.0.2.2 a\n");
        assert_eq!(file.look(), "192.0.2.2");
        // What was doubted is forgotten: the next emptying is doubted anew.
        file.write("");
        assert_eq!(file.look(), "192.0.2.2");
    }

    #[test]
    fn a_file_whose_last_line_has_no_end_is_believed_at_the_second_look() {
        let mut file = Followed::new(Some("192.0.2.1 a\n"), "");
        file.write("192.0.2.2 a\n192.0.2.3 a.exam");
        assert_eq!(file.look(), "192.0.2.1");
        // Somebody is still writing.
        file.write("192.0.2.2 a\n192.0.2.3 a.example.o");
        assert_eq!(file.look(), "192.0.2.1");
        file.write("192.0.2.2 a\n192.0.2.3 a");
        assert_eq!(file.look(), "192.0.2.1");
        assert_eq!(file.look(), "192.0.2.2 192.0.2.3");
        // The first table has nothing to lose.
        assert_eq!(Followed::new(Some("192.0.2.1 a"), "").a(), "192.0.2.1");
    }

    #[test]
    fn a_touched_file_is_read_again_and_serves_the_same() {
        let mut file = Followed::new(Some("192.0.2.1 a\n"), "");
        let later = fs::metadata(&file.file).unwrap().modified().unwrap() + Duration::from_secs(60);
        let before = file.table().modified_ms();
        file.touch(later);
        assert_eq!(file.look(), "192.0.2.1");
        assert_eq!(file.table().modified_ms(), before + 60_000);
        assert_eq!(file.log(), "");
    }

    #[test]
    fn an_unchanged_file_is_not_read_again() {
        let mut file = Followed::new(Some("192.0.2.1 a\nbad\n"), "");
        let table = file.table();
        let first = table.current.load_full();
        assert!(file.log().contains("line 2"));
        file.look();
        assert!(Arc::ptr_eq(&first, &table.current.load_full()));
        assert_eq!(file.log(), "");
    }

    #[test]
    fn a_file_missing_at_the_start_is_told_and_served_once_it_comes() {
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
    fn without_reload_the_file_is_read_once() {
        let mut file = Followed::new(Some("192.0.2.1 a\n"), "reload 0");
        file.write("192.0.2.2 a\n");
        file.scene.now += Duration::from_secs(3600);
        assert_eq!(file.table().look(file.scene.now, &file.scene.shared.logger), None);
        assert_eq!(file.a(), "192.0.2.1");
    }

    #[test]
    fn bad_and_huge_lines_are_skipped_and_told() {
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
    fn a_directory_or_a_pipe_in_its_place_keeps_the_entries() {
        let mut file = Followed::new(Some("192.0.2.1 a\n"), "");
        fs::remove_file(&file.file).unwrap();
        fs::create_dir(&file.file).unwrap();
        assert_eq!(file.look(), "192.0.2.1");
        assert!(file.log().contains("Is a directory"));
    }

    #[test]
    fn equal_directives_share_a_table_and_reloads_keep_it() {
        let hosts = |extra: &str| {
            format!(
                "a. {{\nbind 127.0.0.1\nhosts /nowhere/h . {{\nttl 5\n}}\n}}\nb. {{\nbind 127.0.0.1\nhosts /nowhere/h . {{\nttl 5\n}}\n}}\n{extra}"
            )
        };
        let mut scene = Scene::new(&hosts("c. {\nbind 127.0.0.1\nhosts /nowhere/h . {\nttl 6\n}\n}\n"));
        let table = |scene: &Scene, block: usize| {
            Arc::downgrade(scene.house.blocks[block].pipeline.hosts().unwrap().table())
        };
        let (first, third) = (table(&scene, 0), table(&scene, 2));
        assert!(first.ptr_eq(&table(&scene, 1)) && !first.ptr_eq(&third));
        scene.reload(&hosts(""));
        assert!(first.ptr_eq(&table(&scene, 0)));
        // Who is no longer named is dropped at the next building.
        scene.reload(&hosts(""));
        assert_eq!((first.strong_count() > 0, third.strong_count()), (true, 0));
    }
}
