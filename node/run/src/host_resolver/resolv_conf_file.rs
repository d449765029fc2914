//! Makes /etc/resolv.conf, if it is a regular file, name this server while the server runs, and
//! keeps the original text.

use std::fs;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::thread;

use super::{HostResolverError, RESOLV_CONF, Result, names, replace, write};
use node::{added_addresses, link_of, name_servers};

/// The file, and the copies of its original text.
pub(super) struct OwnFile {
    path: PathBuf,
    /// The copy under /run, which does not survive a reboot; its directory is created.
    kept: PathBuf,
    /// The copy under /etc, which survives a reboot; written only if its directory exists.
    lasting: PathBuf,
    /// Returns the link that has an address.
    link_of: fn(IpAddr) -> Option<String>,
    /// Returns the addresses that we added, on any link.
    added: fn() -> Vec<IpAddr>,
}

impl OwnFile {
    pub(super) fn of_machine() -> Self {
        Self { path: RESOLV_CONF.into(), kept: KEPT.into(), lasting: LASTING.into(), link_of, added }
    }

    /// Makes the file name `server` only, and keeps the original text. Writes the file in place,
    /// since it may be a mount point.
    pub(super) fn put(&self, server: IpAddr) -> Result<PathBuf> {
        if let Ok(target) = fs::read_link(&self.path) {
            return Err(HostResolverError::ForeignLink(target));
        }
        let text = fs::read_to_string(&self.path).map_err(|source| failed(&self.path, source))?;
        if names(&text, server) {
            return Ok(self.path.clone());
        }
        // Our own text for an earlier address must not be kept as the original.
        let held = self.held(&text);
        let is_new = held.is_none() && self.ours_alone(&text).is_none();
        let is_known = held.is_some() || is_new;
        let mut held = held.unwrap_or_else(|| Held { servers: Vec::new(), text: text.clone() });
        if is_known && !held.servers.contains(&server) {
            held.servers.push(server);
            self.keep(&held)?;
        }
        if let Err(source) = rewrite(&self.path, &turned(&held.text, server)) {
            // A truncated file would name no server: write the old text again.
            let _ = rewrite(&self.path, &text);
            if is_new {
                let _ = self.forget();
            }
            return Err(failed(&self.path, source));
        }
        Ok(self.path.clone())
    }

    /// Restores the original text; returns whether there was any. A file that another program has
    /// changed or replaced by a link is not touched.
    pub(super) fn restore(&self) -> Result<bool> {
        let held = self.text().and_then(|now| self.held(&now));
        match (&held, self.lost_original()) {
            (Some(held), _) => {
                rewrite(&self.path, &held.text).map_err(|source| failed(&self.path, source))?
            }
            (None, Some(error)) => return Err(error),
            (None, None) => {}
        }
        self.forget()?;
        Ok(held.is_some())
    }

    /// Whether the file sends the host's lookups to localdns.
    pub(super) fn stands(&self) -> bool {
        let Some(now) = self.text() else { return false };
        if self.held(&now).is_some() {
            return true;
        }
        let Some(first) = name_servers(&now).first().map(|first| first.ip()) else { return false };
        let is_here = || (self.link_of)(first).is_some_and(|link| link != "lo");
        (self.added)().contains(&first) || (self.has_kept().is_some() && is_here())
    }

    /// Whether the file names this server.
    pub(super) fn names(&self, server: IpAddr) -> bool {
        self.text().is_some_and(|now| names(&now, server))
    }

    /// Returns why the file cannot be restored, if it names only addresses of localdns.
    pub(super) fn lost_original(&self) -> Option<HostResolverError> {
        let now = self.text()?;
        let server = self.ours_alone(&now)?;
        match (self.held(&now), self.has_kept()) {
            (Some(_), _) => None,
            (None, None) => Some(HostResolverError::Unkept { server }),
            (None, Some(kept)) => Some(HostResolverError::Changed { server, kept: kept.clone() }),
        }
    }

    /// Returns the file's text; `None` if the file is a symbolic link or cannot be read.
    fn text(&self) -> Option<String> {
        if fs::read_link(&self.path).is_ok() {
            return None;
        }
        fs::read_to_string(&self.path).ok()
    }

    /// Returns the kept original from which the current text was made, if there is one.
    fn held(&self, now: &str) -> Option<Held> {
        self.all_held().find(|held| held.is_turned(now))
    }

    /// Returns the kept originals.
    fn all_held(&self) -> impl Iterator<Item = Held> {
        let texts = [&self.kept, &self.lasting].into_iter().filter_map(|kept| fs::read_to_string(kept).ok());
        texts.filter_map(|text| Held::parse(&text))
    }

    fn has_kept(&self) -> Option<&PathBuf> {
        [&self.kept, &self.lasting].into_iter().find(|kept| kept.is_file())
    }

    /// Returns the first server of the text if all its servers are addresses that localdns added,
    /// or that replaced the servers of a kept original (these may have been removed since).
    fn ours_alone(&self, text: &str) -> Option<IpAddr> {
        let servers = name_servers(text);
        let first = servers.first()?.ip();
        let mut ours = (self.added)();
        ours.extend(self.all_held().flat_map(|held| held.servers));
        servers.iter().all(|server| ours.contains(&server.ip())).then_some(first)
    }

    fn keep(&self, held: &Held) -> Result<()> {
        let text = held.to_text();
        write(&self.kept, &text)?;
        // Without this copy the original is lost at a reboot, which `status` then reports. If the
        // write fails, an earlier copy of the same original stays.
        let is_new = held.servers.len() == 1;
        if self.lasting.parent().is_some_and(Path::is_dir) && replace(&self.lasting, &text).is_err() && is_new
        {
            let _ = fs::remove_file(&self.lasting);
        }
        Ok(())
    }

    fn forget(&self) -> Result<()> {
        for kept in [&self.kept, &self.lasting] {
            match fs::remove_file(kept) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(failed(kept, source)),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Lists the addresses that localdns added, from the kernel; empty on error. Uses a thread of its
/// own, since the caller's thread may run a tokio runtime.
fn added() -> Vec<IpAddr> {
    let ask = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        runtime.block_on(added_addresses()).ok()
    };
    let asked = thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, ask).ok()?;
        thread.join().ok().flatten()
    });
    asked.unwrap_or_default().into_iter().map(|(ip, _)| ip).collect()
}

fn failed(path: &Path, source: io::Error) -> HostResolverError {
    HostResolverError::File { path: path.to_owned(), source }
}

/// A kept copy: the original text and, in a comment on the first line, our addresses that replaced
/// its servers. The addresses distinguish our text from another program's.
struct Held {
    servers: Vec<IpAddr>,
    text: String,
}

impl Held {
    fn parse(kept: &str) -> Option<Self> {
        let (first, text) = kept.strip_prefix(TURNED)?.split_once('\n')?;
        let servers = first.split_ascii_whitespace().map(str::parse).collect::<std::result::Result<_, _>>();
        Some(Self { servers: servers.ok()?, text: text.to_owned() })
    }

    fn to_text(&self) -> String {
        let servers: String = self.servers.iter().map(|server| format!(" {server}")).collect();
        format!("{TURNED}{servers}\n{}", self.text)
    }

    /// Whether localdns made the text `now` from this original; ignores line feeds at the end,
    /// which an interrupted [`rewrite`] leaves.
    fn is_turned(&self, now: &str) -> bool {
        let is_now = |text: String| text.trim_end_matches('\n') == now.trim_end_matches('\n');
        self.servers.iter().any(|server| is_now(turned(&self.text, *server)))
    }
}

/// Returns the text with this server in place of its name servers.
fn turned(text: &str, server: IpAddr) -> String {
    let is_server = |line: &&str| line.split_ascii_whitespace().next() == Some("nameserver");
    let others = text.lines().filter(|line| !is_server(line)).map(|line| format!("{line}\n"));
    [format!("nameserver {server}\n")].into_iter().chain(others).collect()
}

/// Writes in place, and truncates only after the new text is written, so that the file always names
/// a server, even on a full disk. Line feeds cover the part to be truncated, so that nothing of the
/// old text remains if the process is killed in between.
fn rewrite(path: &Path, text: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).open(path)?;
    let before = file.metadata()?.len().min(LONGEST) as usize;
    let covering = "\n".repeat(before.saturating_sub(text.len()));
    file.write_all(format!("{text}{covering}").as_bytes())?;
    file.set_len(text.len() as u64)?;
    file.sync_all()
}

const TURNED: &str = "# replaced by localdns with";
const KEPT: &str = "/run/localdns/resolv.conf";
const LASTING: &str = "/etc/localdns/resolv.conf";
/// Maximum of bytes that are covered, more than the size of any resolv.conf.
const LONGEST: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_changes_are_kept() {
        let held = "nameserver 10.2.0.2\nsearch a.b\nnameserver fd00::4\noptions edns0";
        let ours = turned(held, [169, 254, 10, 10].into());
        assert_eq!(ours, "nameserver 169.254.10.10\nsearch a.b\noptions edns0\n");
        for (now, is_ours) in [
            (ours.as_str(), true),
            ("nameserver fd10::10\nsearch a.b\noptions edns0\n", true),
            // A network manager's text for another server.
            ("nameserver 10.2.0.9\nsearch a.b\noptions edns0\n", false),
            (held, false),
            // The process was killed before it truncated the file.
            ("nameserver 169.254.10.10\nsearch a.b\noptions edns0\n\n\n\n", true),
            ("nameserver 169.254.10.10\n", false),
            ("nameserver 169.254.10.10\nsearch c.d\noptions edns0\n", false),
            ("nameserver so\nsearch a.b\noptions edns0\n", false),
            ("", false),
        ] {
            let held = Held {
                servers: vec![[169, 254, 10, 10].into(), "fd10::10".parse().expect("one")],
                text: held.to_owned(),
            };
            let held = Held::parse(&held.to_text()).expect("it reads as it was written");
            assert_eq!(held.is_turned(now), is_ours, "{now:?}");
        }
    }

    #[test]
    fn rewrite_in_place_is_never_empty() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("resolv.conf");
        fs::write(&path, "a longer text than the next").expect("written");
        let seen = fs::File::open(&path).expect("there");
        rewrite(&path, "short").expect("written");
        assert_eq!(io::read_to_string(seen).expect("read"), "short", "the same file");
        let error = rewrite(&directory.path().join("absent"), "x").expect_err("it is not made");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    /// The texts of the three files.
    fn texts(file: &OwnFile) -> [Option<String>; 3] {
        [&file.path, &file.kept, &file.lasting].map(|path| fs::read_to_string(path).ok())
    }

    #[test]
    fn restores_original_after_several_changes() {
        let (held, other) = ("nameserver 10.2.0.2\nsearch a.b\n", "nameserver 10.2.0.9\n");
        let (a, b) = ([169, 254, 10, 10].into(), [169, 254, 10, 11].into());
        for (has_lasting, boots, between, back) in [
            (true, false, None, Some(held)),
            (true, true, None, Some(held)),
            (false, false, None, Some(held)),
            (true, true, Some(other), Some(other)),
            (false, true, Some(other), Some(other)),
            // The original text is lost, which is reported.
            (false, true, None, None),
        ] {
            let directory = tempfile::tempdir().expect("a directory");
            let at = |name: &str| directory.path().join(name);
            let file = OwnFile {
                path: at("resolv.conf"),
                kept: at("run/resolv.conf"),
                lasting: at("etc/resolv.conf"),
                link_of: |_| None,
                added: || vec![[169, 254, 10, 10].into(), [169, 254, 10, 11].into()],
            };
            if has_lasting {
                fs::create_dir(at("etc")).expect("made");
            }
            let row = format!("{has_lasting} {boots} {between:?}");
            fs::write(&file.path, held).expect("written");
            assert!(!file.stands(), "{row}");
            file.put(a).expect("put");
            assert!(file.stands() && file.names(a) && !file.names(b), "{row}");
            if boots {
                fs::remove_dir_all(at("run")).expect("there");
            }
            if let Some(text) = between {
                fs::write(&file.path, text).expect("written");
                assert!(!file.stands(), "{row}");
            }
            file.put(b).expect("put");
            file.put(b).expect("it stands");
            assert!(file.names(b) && !file.names(a) && file.stands(), "{row}");
            match back {
                Some(back) => {
                    assert!(file.lost_original().is_none(), "{row}");
                    assert!(file.restore().expect("it is restored"), "{row}");
                    assert_eq!(texts(&file), [Some(back.to_owned()), None, None], "{row}");
                    assert!(!file.restore().expect("once"), "{row}");
                }
                None => {
                    assert!(
                        matches!(file.lost_original(), Some(HostResolverError::Unkept { server }) if server == b)
                    );
                    file.restore().expect_err("its text is unknown");
                    file.restore().expect_err("nor later");
                }
            }
        }
    }

    /// The file names only this server, and another program changed it.
    #[test]
    fn changed_file_keeps_the_original() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut file = OwnFile {
            path: directory.path().join("resolv.conf"),
            kept: directory.path().join("run/resolv.conf"),
            lasting: directory.path().join("etc/resolv.conf"),
            link_of: |_| None,
            added: || vec![[169, 254, 10, 10].into()],
        };
        fs::write(&file.path, "nameserver 10.2.0.2\n").expect("written");
        file.put([169, 254, 10, 10].into()).expect("put");
        for (more, is_refused) in [("options edns0\n", true), ("nameserver 10.2.0.2\n", false)] {
            fs::write(&file.path, format!("nameserver 169.254.10.10\n{more}")).expect("written");
            assert_eq!(
                matches!(file.restore(), Err(HostResolverError::Changed { .. })),
                is_refused,
                "{more}"
            );
            assert_eq!(file.kept.exists(), is_refused, "{more}");
            if is_refused {
                // `node down` removes the address: the next `node down` must not delete the only
                // copy.
                let added = std::mem::replace(&mut file.added, Vec::new);
                file.restore().expect_err("it still names only that address");
                assert!(file.kept.exists(), "{more}");
                file.added = added;
            }
        }
    }
}
