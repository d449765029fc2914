//! Points the machine's own lookups at the server, and gives them back: a drop-in for systemd-networkd, as AKS's script writes
//! it, or for systemd-resolved; or /etc/resolv.conf. It waits for programs: it belongs on a thread that serves nobody.

use std::fs;
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use crate::networkd::{NETWORKD_STATE, NetworkdLink};
use crate::program::run;
use crate::{Usable, WIRE_SERVER, link_of};

/// Who is told whom the machine asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostResolver {
    /// systemd-networkd, for the link that leads to the network's servers.
    Networkd,
    /// systemd-resolved.
    Resolved,
    /// /etc/resolv.conf, where it is a file of its own.
    ResolvConf,
    /// Nobody.
    None,
}

/// Why the machine's lookups were not turned.
#[derive(Debug, thiserror::Error)]
pub enum HostResolverError {
    /// networkd does not run.
    #[error(
        "systemd-networkd does not run here, so that nobody points this machine's own lookups at us; \
         choose another -host-resolver, or none"
    )]
    NoNetworkd,
    /// There is no route to the network's servers.
    #[error(
        "no link leads to {WIRE_SERVER} or to the network's first server, whose configuration would be changed; \
         give this machine a route there, or choose another -host-resolver, or none"
    )]
    NoUplink,
    /// networkd does not say which file the link is configured by.
    #[error(
        "networkd has no .network file for {link}; give it one, or choose another -host-resolver, or none"
    )]
    NoNetworkFile {
        /// The link.
        link: String,
    },
    /// /etc/resolv.conf is a link to a file that another program writes.
    #[error("{RESOLV_CONF} leads to {}, which its owner writes; use -host-resolver networkd or resolved", .0.display())]
    SomebodyElses(PathBuf),
    /// A file.
    #[error("{}: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A program.
    #[error("{0}")]
    Program(#[source] io::Error),
    /// The change did not take effect in time.
    #[error("{} is written, and after 10 s {what}; see what `networkctl status` says", .path.display())]
    Unsettled {
        /// The drop-in.
        path: PathBuf,
        /// What is still to come.
        what: &'static str,
    },
}

/// What reads the resolv.conf that the network's servers stand in; it waits no longer than a file may take.
pub type ReadServers<'r> = &'r dyn Fn() -> io::Result<String>;

type Result<T> = std::result::Result<T, HostResolverError>;

impl HostResolver {
    /// Points the machine at `server`, and waits until that counts; does nothing where it is so already. `upstreams` has
    /// the network's servers; `go_on` ends the waiting, and keeps it from beginning.
    ///
    /// # Errors
    /// [`HostResolverError`]; nothing is changed then, save where it is [`HostResolverError::Unsettled`].
    pub fn put(
        self,
        server: IpAddr,
        upstreams: ReadServers<'_>,
        go_on: &AtomicBool,
    ) -> Result<Option<PathBuf>> {
        match self {
            Self::Networkd => put_networkd(server, upstreams, go_on).map(Some),
            Self::Resolved => put_resolved(server).map(Some),
            Self::ResolvConf => put_resolv_conf(server).map(Some),
            Self::None => Ok(None),
        }
    }

    /// Gives the machine's lookups back, whichever of these had them, a killed predecessor's and AKS's script's too. The
    /// files that are gone, or back; and what went wrong.
    pub fn take_back() -> (Vec<PathBuf>, Vec<HostResolverError>) {
        let (mut gone, mut failed) = (Vec::new(), Vec::new());
        for (files, owner) in [(networkd_drop_ins(), NETWORKD), (resolved_drop_ins(), RESOLVED)] {
            // Whoever removes the files may end, or be ended, before their owner has heard of it: the next one tells it then.
            let before = owner.untold();
            owner.note_untold(&files);
            let mut removed = !before.is_empty();
            for path in files {
                match fs::remove_file(&path) {
                    Ok(()) => {
                        removed = true;
                        // The directory stays where it has drop-ins of others.
                        let _ = path.parent().map(fs::remove_dir);
                        gone.push(path);
                    }
                    Err(source) => failed.push(HostResolverError::File { path, source }),
                }
            }
            match removed.then(|| owner.tell()) {
                Some(Ok(())) => {
                    for path in before {
                        if !gone.contains(&path) {
                            gone.push(path);
                        }
                    }
                }
                Some(Err(error)) => failed.push(error),
                None => {}
            }
        }
        match restore_resolv_conf() {
            Ok(false) => {}
            Ok(true) => gone.push(RESOLV_CONF.into()),
            Err(error) => failed.push(error),
        }
        (gone, failed)
    }

    /// The files by which the machine's lookups are turned now.
    pub fn stands() -> Vec<PathBuf> {
        let saved = Path::new(SAVED).exists().then(|| RESOLV_CONF.into());
        networkd_drop_ins().into_iter().chain(resolved_drop_ins()).chain(saved).collect()
    }

    /// Files that are gone, and whose reader may not have heard of it.
    pub fn untold() -> Vec<PathBuf> {
        let gone = |path: &PathBuf| !path.exists();
        [NETWORKD, RESOLVED].iter().flat_map(Owner::untold).filter(gone).collect()
    }
}

/// Who reads drop-ins once it is told to.
struct Owner {
    /// What tells it.
    command: &'static [&'static str],
    /// Where it stands which files are gone that it has not been told of.
    mark: &'static str,
}

impl Owner {
    /// Has it read its files.
    fn tell(&self) -> Result<()> {
        run(self.command[0], &self.command[1..], "").map_err(HostResolverError::Program)?;
        let _ = fs::remove_file(self.mark);
        Ok(())
    }

    fn untold(&self) -> Vec<PathBuf> {
        fs::read_to_string(self.mark).unwrap_or_default().lines().map(PathBuf::from).collect()
    }

    fn note_untold(&self, files: &[PathBuf]) {
        let new = files.iter().cloned();
        let mut all: Vec<_> = self.untold().into_iter().chain(new).collect();
        all.dedup();
        let lines: String = all.iter().map(|path| format!("{}\n", path.display())).collect();
        if !lines.is_empty() {
            // Without the mark it is told all the same by whoever removes the files, once.
            let _ = write(Path::new(self.mark), &lines);
        }
    }

    /// Gives up a drop-in that it could not be told of; it may have heard of it, where that took too long.
    fn take_away(&self, path: &Path, error: HostResolverError) -> HostResolverError {
        if matches!(&error, HostResolverError::Program(source) if source.kind() == io::ErrorKind::TimedOut) {
            self.note_untold(&[path.to_owned()]);
        }
        remove(path);
        error
    }
}

fn put_networkd(server: IpAddr, upstreams: ReadServers<'_>, go_on: &AtomicBool) -> Result<PathBuf> {
    if !Path::new(NETWORKD_STATE).is_dir() {
        return Err(HostResolverError::NoNetworkd);
    }
    let text = format!(
        "# Set DNS server to localdns cluster listernerIP.\n[Network]\nDNS={server}\n\n\
         # Disable DNS provided by DHCP to ensure local DNS is used.\n[DHCP]\nUseDNS=false\n"
    );
    let is_there = |path: &PathBuf| fs::read_to_string(path).is_ok_and(|there| there == text);
    let Some(link) = uplink(upstreams, server) else {
        // Of a link that a predecessor has turned, the list may name us alone.
        let is_turned = upstreams().is_ok_and(|text| names(&text, server));
        let left = networkd_drop_ins().into_iter().find(|path| is_turned && is_there(path));
        return left.ok_or(HostResolverError::NoUplink);
    };
    let file = networkd_of(&link)?.network_file;
    let file = file.filter(|file| Path::new(file).is_file());
    let name = file.as_deref().and_then(|file| Path::new(file).file_name()?.to_str());
    let name = name.ok_or_else(|| HostResolverError::NoNetworkFile { link: link.clone() })?;
    let path = Path::new(NETWORKD_DIRECTORY).join(format!("{name}.d")).join(DROP_IN);
    // A predecessor may have been killed after it wrote the file and before networkd was told to reload.
    let counts = || upstreams().map_or(true, |text| names(&text, server));
    if !go_on.load(Relaxed) || (is_there(&path) && counts()) {
        return Ok(path);
    }
    write(&path, &text)?;
    NETWORKD.tell().map_err(|error| NETWORKD.take_away(&path, error))?;
    settle(&path, &link, server, upstreams, go_on)
}

/// Waits until networkd is through, and the resolv.conf that comes of it names the server: before, a lookup may meet the
/// moment in which there is none.
fn settle(
    path: &Path,
    link: &str,
    server: IpAddr,
    upstreams: ReadServers<'_>,
    go_on: &AtomicBool,
) -> Result<PathBuf> {
    let mut what = "";
    for _ in 0..SETTLED_TRIES {
        what = match upstreams() {
            Ok(text) if !names(&text, server) => "the machine's resolv.conf does not name us yet",
            _ => match networkd_of(link)?.state.as_deref() {
                Some("configured") => return Ok(path.to_owned()),
                Some("failed") => {
                    "networkd fails to configure its link, and says why: journalctl -u systemd-networkd"
                }
                _ => "networkd has not configured its link yet",
            },
        };
        if !go_on.load(Relaxed) {
            return Ok(path.to_owned());
        }
        thread::sleep(SETTLED_AGAIN);
    }
    Err(HostResolverError::Unsettled { path: path.to_owned(), what })
}

fn names(resolv_conf: &str, server: IpAddr) -> bool {
    let is_ours = |ip| ip == server;
    Usable::of_resolv_conf(resolv_conf, &is_ours).left_out.contains(&server)
}

/// The link over which the network's servers are reached.
fn uplink(upstreams: ReadServers<'_>, ours: IpAddr) -> Option<String> {
    let text = upstreams().unwrap_or_default();
    let servers = Usable::of_resolv_conf(&text, &|ip| ip == ours).servers;
    // Others of ours lead to no link of the network's: the next one counts.
    [SocketAddr::new(WIRE_SERVER, 53)].into_iter().chain(servers).find_map(|server| {
        // Connecting a datagram socket sends nothing: the kernel looks the route up.
        let any: IpAddr = if server.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(server).ok()?;
        link_of(socket.local_addr().ok()?.ip()).filter(|link| link != "lo" && link != crate::LINK)
    })
}

fn networkd_of(link: &str) -> Result<NetworkdLink> {
    NetworkdLink::of(link).map_err(HostResolverError::Program)
}

fn put_resolved(server: IpAddr) -> Result<PathBuf> {
    let path = Path::new(RESOLVED_DIRECTORY).join(DROP_IN);
    // The empty one ends the list of resolved.conf, whose servers would be asked first.
    let text =
        format!("# Lookups of this machine go to localdns.\n[Resolve]\nDNS=\nDNS={server}\nDomains=~.\n");
    if fs::read_to_string(&path).is_ok_and(|there| there == text) {
        return Ok(path);
    }
    write(&path, &text)?;
    RESOLVED.tell().map_err(|error| RESOLVED.take_away(&path, error))?;
    Ok(path)
}

/// In its place, for it may be mounted by itself; what it held is kept beside our other files.
fn put_resolv_conf(server: IpAddr) -> Result<PathBuf> {
    let path = PathBuf::from(RESOLV_CONF);
    let failed = |source| HostResolverError::File { path: path.clone(), source };
    if let Ok(target) = fs::read_link(&path) {
        return Err(HostResolverError::SomebodyElses(target));
    }
    let text = fs::read_to_string(&path).map_err(failed)?;
    if names(&text, server) {
        return Ok(path);
    }
    write(Path::new(SAVED), &text)?;
    if let Err(source) = rewrite(&path, &turned(&text, server)) {
        // A file that was cut off would name no nameserver: the old text is put back.
        let _ = rewrite(&path, &text);
        let _ = fs::remove_file(SAVED);
        return Err(failed(source));
    }
    Ok(path)
}

/// A resolv.conf that names us in place of whom it named.
fn turned(text: &str, server: IpAddr) -> String {
    let is_server = |line: &&str| line.split_ascii_whitespace().next() == Some("nameserver");
    let others = text.lines().filter(|line| !is_server(line)).map(|line| format!("{line}\n"));
    [format!("nameserver {server}\n")].into_iter().chain(others).collect()
}

fn restore_resolv_conf() -> Result<bool> {
    let Ok(saved) = fs::read_to_string(SAVED) else { return Ok(false) };
    let failed = |source| HostResolverError::File { path: RESOLV_CONF.into(), source };
    // Where others have changed the file meanwhile, or made it a link, it is left alone.
    let is_ours = fs::read_link(RESOLV_CONF).is_err()
        && is_turned(&fs::read_to_string(RESOLV_CONF).unwrap_or_default(), &saved);
    if is_ours {
        rewrite(Path::new(RESOLV_CONF), &saved).map_err(failed)?;
    }
    fs::remove_file(SAVED).map_err(failed)?;
    Ok(is_ours)
}

fn is_turned(now: &str, saved: &str) -> bool {
    let server = now.lines().next().and_then(|line| line.strip_prefix("nameserver ")?.parse().ok());
    server.is_some_and(|server| turned(saved, server) == now)
}

/// In its place, and cut only once the new text stands: on a full disk, too, it goes on naming somebody.
fn rewrite(path: &Path, text: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).open(path)?;
    file.write_all(text.as_bytes())?;
    file.set_len(text.len() as u64)?;
    file.sync_all()
}

/// A drop-in, with the directory that was made for it; others' may be beside it.
fn remove(path: &Path) {
    let _ = fs::remove_file(path);
    let _ = path.parent().map(fs::remove_dir);
}

/// The names of the .network files that have our drop-in.
pub(crate) fn turned_networks() -> Vec<String> {
    let of = |drop_in: PathBuf| Some(drop_in.parent()?.file_stem()?.to_str()?.to_owned());
    networkd_drop_ins().into_iter().filter_map(of).collect()
}

fn networkd_drop_ins() -> Vec<PathBuf> {
    let directories = fs::read_dir(NETWORKD_DIRECTORY).into_iter().flatten().flatten();
    let mut found: Vec<_> = directories
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "d"))
        .map(|path| path.join(DROP_IN))
        .filter(|path| path.is_file())
        .collect();
    found.sort();
    found
}

fn resolved_drop_ins() -> Vec<PathBuf> {
    let path = Path::new(RESOLVED_DIRECTORY).join(DROP_IN);
    if path.is_file() { vec![path] } else { Vec::new() }
}

/// A whole file, or none; others may read it.
fn write(path: &Path, text: &str) -> Result<()> {
    let failed = |source| HostResolverError::File { path: path.to_owned(), source };
    let aside = path.with_extension("new");
    let written = || {
        let directory = path.parent().unwrap_or_else(|| Path::new("/"));
        fs::create_dir_all(directory)?;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
        fs::write(&aside, text)?;
        fs::set_permissions(&aside, fs::Permissions::from_mode(0o644))?;
        fs::rename(&aside, path)
    };
    written().map_err(|source| {
        remove(&aside);
        failed(source)
    })
}

/// What AKS's script calls it, too.
const DROP_IN: &str = "70-localdns.conf";
const NETWORKD_DIRECTORY: &str = "/run/systemd/network";
const RESOLVED_DIRECTORY: &str = "/run/systemd/resolved.conf.d";
const NETWORKD: Owner = Owner { command: &["networkctl", "reload"], mark: "/run/localdns/networkd-untold" };
const RESOLVED: Owner = Owner {
    command: &["systemctl", "try-reload-or-restart", "systemd-resolved.service"],
    mark: "/run/localdns/resolved-untold",
};
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// What /etc/resolv.conf held.
const SAVED: &str = "/run/localdns/resolv.conf";
/// 10 s in all.
const SETTLED_TRIES: u32 = 100;
const SETTLED_AGAIN: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_else_made_of_a_resolv_conf_is_not_undone() {
        let saved = "nameserver 10.2.0.2\nsearch a.b\nnameserver fd00::4\noptions edns0";
        let ours = turned(saved, [169, 254, 10, 10].into());
        assert_eq!(ours, "nameserver 169.254.10.10\nsearch a.b\noptions edns0\n");
        for (now, is_ours) in [
            (ours.as_str(), true),
            ("nameserver fd10::10\nsearch a.b\noptions edns0\n", true),
            (saved, false),
            ("nameserver 169.254.10.10\n", false),
            ("nameserver 169.254.10.10\nsearch c.d\noptions edns0\n", false),
            ("nameserver so\nsearch a.b\noptions edns0\n", false),
            ("", false),
        ] {
            assert_eq!(is_turned(now, saved), is_ours, "{now:?}");
        }
    }

    #[test]
    fn a_file_that_is_rewritten_is_never_empty_and_keeps_its_place() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("resolv.conf");
        fs::write(&path, "a longer text than the next").expect("written");
        let seen = fs::File::open(&path).expect("there");
        rewrite(&path, "short").expect("written");
        assert_eq!(io::read_to_string(seen).expect("read"), "short", "the same file");
        let error = rewrite(&directory.path().join("absent"), "x").expect_err("it is not made");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
