//! Points the machine's own lookups at the server, and gives them back: a drop-in for systemd-networkd, as AKS's script writes
//! it, or for systemd-resolved; or /etc/resolv.conf. It waits for programs: it belongs on a thread that serves nobody.

mod resolv_conf_file;

use std::fs;
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use crate::networkd::{NETWORKD_STATE, NetworkdLink};
use crate::subprocess::run;
use crate::{Usable, WIRE_SERVER, escaped, link_of};
use resolv_conf_file::OwnFile;

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
        "systemd-networkd does not run, and -host-resolver networkd needs it; set -host-resolver to another value, or to none"
    )]
    NoNetworkd,
    /// There is no route to the network's servers.
    #[error(
        "there is no route to {WIRE_SERVER} or to the network's first name server, so the link to configure is not known; add a route, or set -host-resolver to another value, or to none"
    )]
    NoUplink,
    /// networkd does not say which file the link is configured by.
    #[error(
        "networkd has no .network file for {link}; add one, or set -host-resolver to another value, or to none"
    )]
    NoNetworkFile {
        /// The link.
        link: String,
    },
    /// /etc/resolv.conf is a link to a file that another program writes.
    #[error("{RESOLV_CONF} is a symbolic link to {}, which another program writes; set -host-resolver to networkd or resolved", .0.display())]
    SomebodyElses(PathBuf),
    /// /etc/resolv.conf leads to us alone, and nobody knows where it led before.
    #[error(
        "{RESOLV_CONF} names only {server}, this server's address, and its original text is lost; write the network's name servers into it"
    )]
    Unkept {
        /// Whom it names.
        server: IpAddr,
    },
    /// /etc/resolv.conf leads to us alone, and is not what we made of it.
    #[error(
        "{RESOLV_CONF} names only {server}, this server's address, and another program has changed it; restore its original text from {}", .kept.display()
    )]
    Changed {
        /// Whom it names.
        server: IpAddr,
        /// Where the earlier text is.
        kept: PathBuf,
    },
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
    #[error("{} is written, but after 10 s {what}; see `networkctl status`", .path.display())]
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
            Self::ResolvConf => OwnFile::of_machine().put(server).map(Some),
            Self::None => Ok(None),
        }
    }

    /// Gives the machine's lookups back, whichever of these had them, a killed predecessor's and AKS's script's too. The
    /// files that are gone, or back; and what went wrong.
    pub fn take_back() -> (Vec<PathBuf>, Vec<HostResolverError>) {
        Self::None.take_back_others()
    }

    /// The same for what is not of this kind.
    pub fn take_back_others(self) -> (Vec<PathBuf>, Vec<HostResolverError>) {
        let (mut gone, mut failed) = (Vec::new(), Vec::new());
        let owners = [
            (Self::Networkd, networkd_drop_ins(), NETWORKD),
            (Self::Resolved, resolved_drop_ins(), RESOLVED),
        ];
        for (_, files, owner) in owners.into_iter().filter(|(kind, ..)| *kind != self) {
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
        match if self == Self::ResolvConf { Ok(false) } else { OwnFile::of_machine().restore() } {
            Ok(false) => {}
            Ok(true) => gone.push(RESOLV_CONF.into()),
            Err(error) => failed.push(error),
        }
        (gone, failed)
    }

    /// The files by which the machine's lookups are turned now.
    pub fn stands() -> Vec<PathBuf> {
        let own = OwnFile::of_machine().stands().then(|| RESOLV_CONF.into());
        networkd_drop_ins().into_iter().chain(resolved_drop_ins()).chain(own).collect()
    }

    /// Whether what was put there for `server`, this file, still leads here.
    pub fn is_put(self, path: &Path, server: IpAddr) -> bool {
        match self {
            Self::ResolvConf => OwnFile::of_machine().names(server),
            Self::Networkd | Self::Resolved => Self::stands().iter().any(|stands| stands == path),
            Self::None => true,
        }
    }

    /// Why this machine asks nobody once its lookups are given back.
    pub fn unkept() -> Option<HostResolverError> {
        OwnFile::of_machine().unkept()
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
    let name = file.as_deref().and_then(network_name);
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

/// The name of a .network file, which becomes part of the drop-in's path: that of a file that is there, and nothing that a reader
/// of the path would take for more than a name.
fn network_name(file: &str) -> Option<&str> {
    let path = Path::new(file);
    let is_one = path.is_file() && path.extension().is_some_and(|end| end == "network");
    path.file_name()?.to_str().filter(|name| is_one && *name == escaped(name))
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
            Ok(text) if !names(&text, server) => "the host's resolv.conf does not name this server yet",
            _ => match networkd_of(link)?.state.as_deref() {
                Some("configured") => return Ok(path.to_owned()),
                Some("failed") => "networkd fails to configure its link (see journalctl -u systemd-networkd)",
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
        format!("# Lookups of this host are sent to localdns.\n[Resolve]\nDNS=\nDNS={server}\nDomains=~.\n");
    if fs::read_to_string(&path).is_ok_and(|there| there == text) {
        return Ok(path);
    }
    write(&path, &text)?;
    RESOLVED.tell().map_err(|error| RESOLVED.take_away(&path, error))?;
    Ok(path)
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

/// A whole file, or none; others may read it, unless they may not enter its directory.
fn write(path: &Path, text: &str) -> Result<()> {
    let directory = path.parent().unwrap_or_else(|| Path::new("/"));
    let is_there = directory.is_dir();
    create_directory(directory).and_then(|()| replace(path, text)).map_err(|source| {
        if !is_there {
            let _ = fs::remove_dir(directory);
        }
        HostResolverError::File { path: path.to_owned(), source }
    })
}

/// Creates what is missing of a directory, for all to read, whatever the umask; what is there keeps its mode.
fn create_directory(path: &Path) -> io::Result<()> {
    match (fs::create_dir(path), path.parent()) {
        (Ok(()), _) => fs::set_permissions(path, fs::Permissions::from_mode(0o755)),
        (Err(error), Some(parent)) if error.kind() == io::ErrorKind::NotFound => {
            create_directory(parent)?;
            create_directory(path)
        }
        (Err(error), _) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        (Err(error), _) => Err(error),
    }
}

/// The same in a directory that is there.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let aside = path.with_extension("new");
    let written = || {
        let mut file = fs::File::create(&aside)?;
        file.write_all(text.as_bytes())?;
        // Where power is lost next, it is not empty.
        file.sync_all()?;
        fs::set_permissions(&aside, fs::Permissions::from_mode(0o644))?;
        fs::rename(&aside, path)
    };
    written().inspect_err(|_| drop(fs::remove_file(&aside)))
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
/// 10 s in all.
const SETTLED_TRIES: u32 = 100;
const SETTLED_AGAIN: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drop_in_has_the_name_of_a_network_file() {
        let home = tempfile::tempdir().expect("a directory");
        let at = |name: &str| home.path().join(name).to_string_lossy().into_owned();
        for name in ["10-eth0.network", ".network", "passwd", "a\nb.network", "\u{202e}.network"] {
            fs::write(at(name), "").expect("written");
        }
        fs::create_dir(at("d.network")).expect("made");
        for (file, name) in [
            ("10-eth0.network", Some("10-eth0.network")),
            ("d.network/../10-eth0.network", Some("10-eth0.network")),
            ("absent.network", None),
            (".network", None),
            ("passwd", None),
            ("d.network", None),
            ("d.network/..", None),
            ("a\nb.network", None),
            ("\u{202e}.network", None),
            ("10-eth0.network\0", None),
        ] {
            assert_eq!(network_name(&at(file)), name, "{file:?}");
        }
        assert_eq!(network_name(""), None);
    }

    #[test]
    fn a_directory_that_is_there_keeps_its_mode() {
        let home = tempfile::tempdir().expect("a directory");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o7777;
        let closed = home.path().join("closed");
        fs::create_dir(&closed).expect("made");
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o2700)).expect("set");
        write(&closed.join("file"), "text").expect("written");
        assert_eq!(mode(&closed), 0o2700);
        write(&closed.join("a/b/file"), "text").expect("written");
        for (path, is) in [("", 0o2700), ("a", 0o755), ("a/b", 0o755), ("a/b/file", 0o644)] {
            assert_eq!(mode(&closed.join(path)) & !0o2000, is & !0o2000, "{path}");
        }
        // A file stands where a directory is to be.
        write(&closed.join("file/file"), "text").expect_err("no directory");
        assert_eq!(fs::read_to_string(closed.join("file")).expect("there"), "text");
    }
}
