//! Configures the host's resolver to send lookups to the server, and restores it: by a drop-in for
//! systemd-networkd, like AKS's, or systemd-resolved, or by /etc/resolv.conf. Runs programs, and
//! blocks.

mod resolv_conf_file;

use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use crate::networkd::{NETWORKD_STATE, NetworkdLink};
use node::run_program as run;
use node::{Diagnosis, Usable, WIRE_SERVER, escaped, link_of};
use resolv_conf_file::OwnFile;

/// The mechanism that sends the host's lookups to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostResolver {
    /// systemd-networkd, for the link that leads to the network's name servers.
    Networkd,
    /// systemd-resolved.
    Resolved,
    /// /etc/resolv.conf, if it is a regular file.
    ResolvConf,
    /// No mechanism: the host's resolver is not changed.
    None,
}

/// Why the host's lookups are not sent to the server.
#[derive(Debug, thiserror::Error)]
pub enum HostResolverError {
    /// networkd does not run.
    NoNetworkd,
    /// There is no route to the network's name servers.
    NoUplink,
    /// networkd does not report the link's configuration file.
    NoNetworkFile {
        /// The link.
        link: String,
    },
    /// /etc/resolv.conf is a symbolic link to a file that another program writes.
    ForeignLink(PathBuf),
    /// /etc/resolv.conf names only this server, and its original text is unknown.
    Unkept {
        /// The server that the file names.
        server: IpAddr,
    },
    /// /etc/resolv.conf names only this server, and another program has changed our text.
    Changed {
        /// The server that the file names.
        server: IpAddr,
        /// The copy of the file's original text.
        kept: PathBuf,
    },
    /// A file error.
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// An error of a program.
    Program(#[source] io::Error),
    /// The change did not take effect in time.
    Unsettled {
        /// The drop-in.
        path: PathBuf,
        /// The missing step.
        what: &'static str,
    },
}

impl fmt::Display for HostResolverError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        Diagnosis::from(self).fmt(out)
    }
}

impl From<&HostResolverError> for Diagnosis {
    fn from(error: &HostResolverError) -> Self {
        match error {
            HostResolverError::NoNetworkd => Self::new(
                "systemd-networkd does not run, and -host-resolver networkd needs it",
                "set -host-resolver to another value, or to none",
            ),
            HostResolverError::NoUplink => Self::new(
                format!(
                    "there is no route to {WIRE_SERVER} or to the network's first name server, so the link to configure is not known"
                ),
                "add a route, or set -host-resolver to another value, or to none",
            ),
            HostResolverError::NoNetworkFile { link } => Self::new(
                format!("networkd has no .network file for {link}"),
                "add one, or set -host-resolver to another value, or to none",
            ),
            HostResolverError::ForeignLink(target) => Self::new(
                format!(
                    "{RESOLV_CONF} is a symbolic link to {}, which another program writes",
                    target.display()
                ),
                "set -host-resolver to networkd or resolved",
            ),
            HostResolverError::Unkept { server } => Self::new(
                format!(
                    "{RESOLV_CONF} names only {server}, this server's address, and its original text is lost"
                ),
                "write the network's name servers into it",
            ),
            HostResolverError::Changed { server, kept } => Self::new(
                format!(
                    "{RESOLV_CONF} names only {server}, this server's address, and another program has changed it"
                ),
                format!("restore its original text from {}", kept.display()),
            ),
            HostResolverError::File { path, source } => {
                Self::without_remedy(format!("{}: {source}", path.display()))
            }
            HostResolverError::Program(source) => Self::from(source),
            HostResolverError::Unsettled { path, what } => Self::new(
                format!("{} is written, but after 10 s {what}", path.display()),
                "see `networkctl status`",
            ),
        }
    }
}

/// Function that reads the resolv.conf with the network's name servers; a read has a time limit.
pub(crate) type ReadServers<'r> = &'r dyn Fn() -> io::Result<String>;

type Result<T> = std::result::Result<T, HostResolverError>;

impl HostResolver {
    /// Makes the host's resolver send lookups to `server`, and waits until this takes effect.
    /// Clearing `go_on` ends the wait, or prevents a change of networkd. Idempotent.
    ///
    /// # Errors
    /// `HostResolverError`; nothing is changed then, except for `HostResolverError::Unsettled`.
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

    /// Restores the host's resolver; returns the removed or restored files, and the errors.
    pub fn take_back() -> (Vec<PathBuf>, Vec<HostResolverError>) {
        Self::None.restore_others()
    }

    /// Restores all mechanisms but this one, as [`take_back`](Self::take_back) does.
    pub fn restore_others(self) -> (Vec<PathBuf>, Vec<HostResolverError>) {
        let (mut gone, mut failed) = (Vec::new(), Vec::new());
        let owners = [
            (Self::Networkd, networkd_drop_ins(), NETWORKD),
            (Self::Resolved, resolved_drop_ins(), RESOLVED),
        ];
        for (_, files, owner) in owners.into_iter().filter(|(kind, ..)| *kind != self) {
            // The mark lets a later process reload the owner if this one ends before it has.
            let before = owner.not_reloaded();
            owner.note_not_reloaded(&files);
            let mut removed = !before.is_empty();
            for path in files {
                match fs::remove_file(&path) {
                    Ok(()) => {
                        removed = true;
                        // The directory stays if it has other drop-ins.
                        let _ = path.parent().map(fs::remove_dir);
                        gone.push(path);
                    }
                    Err(source) => failed.push(HostResolverError::File { path, source }),
                }
            }
            match removed.then(|| owner.reload()) {
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

    /// Returns the files that currently send the host's lookups to localdns.
    pub fn stands() -> Vec<PathBuf> {
        let own = OwnFile::of_machine().stands().then(|| RESOLV_CONF.into());
        networkd_drop_ins().into_iter().chain(resolved_drop_ins()).chain(own).collect()
    }

    /// Whether this file still sends lookups to `server`.
    pub fn is_put(self, path: &Path, server: IpAddr) -> bool {
        match self {
            Self::ResolvConf => OwnFile::of_machine().names(server),
            Self::Networkd | Self::Resolved => Self::stands().iter().any(|stands| stands == path),
            Self::None => true,
        }
    }

    /// Returns why a restore would leave the host without a name server; `None` if it would not.
    pub fn lost_original() -> Option<HostResolverError> {
        OwnFile::of_machine().lost_original()
    }

    /// Returns removed drop-ins after which the owner may not have been reloaded.
    pub fn not_reloaded() -> Vec<PathBuf> {
        let gone = |path: &PathBuf| !path.exists();
        [NETWORKD, RESOLVED].iter().flat_map(Owner::not_reloaded).filter(gone).collect()
    }
}

/// A daemon that reads drop-ins when it is reloaded.
struct Owner {
    /// The daemon's reload command.
    command: &'static [&'static str],
    /// The file that lists removed drop-ins after which the daemon has not been reloaded.
    mark: &'static str,
}

impl Owner {
    /// Reloads the daemon, and removes the mark.
    fn reload(&self) -> Result<()> {
        run(self.command[0], &self.command[1..], "").map_err(HostResolverError::Program)?;
        let _ = fs::remove_file(self.mark);
        Ok(())
    }

    fn not_reloaded(&self) -> Vec<PathBuf> {
        fs::read_to_string(self.mark).unwrap_or_default().lines().map(PathBuf::from).collect()
    }

    fn note_not_reloaded(&self, files: &[PathBuf]) {
        let new = files.iter().cloned();
        let mut all: Vec<_> = self.not_reloaded().into_iter().chain(new).collect();
        all.dedup();
        let lines: String = all.iter().map(|path| format!("{}\n", path.display())).collect();
        if !lines.is_empty() {
            // Without the mark, only the process that removes the files reloads the daemon.
            let _ = write(Path::new(self.mark), &lines);
        }
    }

    /// Removes a drop-in after a failed reload; marks it if the reload may still succeed.
    fn take_away(&self, path: &Path, error: HostResolverError) -> HostResolverError {
        if matches!(&error, HostResolverError::Program(source) if source.kind() == io::ErrorKind::TimedOut) {
            self.note_not_reloaded(&[path.to_owned()]);
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
        // With a predecessor's drop-in, the resolv.conf may name only this server.
        let is_turned = upstreams().is_ok_and(|text| names(&text, server));
        let left = networkd_drop_ins().into_iter().find(|path| is_turned && is_there(path));
        return left.ok_or(HostResolverError::NoUplink);
    };
    let file = networkd_of(&link)?.network_file;
    let name = file.as_deref().and_then(network_name);
    let name = name.ok_or_else(|| HostResolverError::NoNetworkFile { link: link.clone() })?;
    let path = Path::new(NETWORKD_DIRECTORY).join(format!("{name}.d")).join(DROP_IN);
    // A predecessor may have been killed after writing the file and before the reload.
    let counts = || upstreams().map_or(true, |text| names(&text, server));
    if !go_on.load(Relaxed) || (is_there(&path) && counts()) {
        return Ok(path);
    }
    write(&path, &text)?;
    NETWORKD.reload().map_err(|error| NETWORKD.take_away(&path, error))?;
    settle(&path, &link, server, upstreams, go_on)
}

/// Returns the name of an existing .network file, without path separators, for the drop-in's path.
fn network_name(file: &str) -> Option<&str> {
    let path = Path::new(file);
    let is_one = path.is_file() && path.extension().is_some_and(|end| end == "network");
    path.file_name()?.to_str().filter(|name| is_one && *name == escaped(name))
}

/// Waits until networkd has configured the link and the resulting resolv.conf names the server.
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

/// Returns the link to the network's name servers.
fn uplink(upstreams: ReadServers<'_>, ours: IpAddr) -> Option<String> {
    let text = upstreams().unwrap_or_default();
    let servers = Usable::of_resolv_conf(&text, &|ip| ip == ours).servers;
    // A local address of lo or of our own link means that the server is one of our addresses.
    [SocketAddr::new(WIRE_SERVER, 53)].into_iter().chain(servers).find_map(|server| {
        // Connecting a datagram socket sends nothing, but looks up the route.
        let any: IpAddr = if server.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(server).ok()?;
        link_of(socket.local_addr().ok()?.ip()).filter(|link| link != "lo" && link != node::LINK)
    })
}

fn networkd_of(link: &str) -> Result<NetworkdLink> {
    NetworkdLink::of(link).map_err(HostResolverError::Program)
}

fn put_resolved(server: IpAddr) -> Result<PathBuf> {
    let path = Path::new(RESOLVED_DIRECTORY).join(DROP_IN);
    // The empty entry clears the servers of resolved.conf, which would be queried first.
    let text =
        format!("# Lookups of this host are sent to localdns.\n[Resolve]\nDNS=\nDNS={server}\nDomains=~.\n");
    if fs::read_to_string(&path).is_ok_and(|there| there == text) {
        return Ok(path);
    }
    write(&path, &text)?;
    RESOLVED.reload().map_err(|error| RESOLVED.take_away(&path, error))?;
    Ok(path)
}

/// Removes a drop-in, and its directory if no other drop-in is in it.
fn remove(path: &Path) {
    let _ = fs::remove_file(path);
    let _ = path.parent().map(fs::remove_dir);
}

/// Returns the names of the .network files with our drop-in.
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

/// Writes a file atomically; readable by all, unless its directory is not.
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

/// Creates missing directories, readable by all whatever the umask; existing ones keep their mode.
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

/// Writes a file as [`write()`] does, in an existing directory.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let aside = path.with_extension("new");
    let written = || {
        let mut file = fs::File::create(&aside)?;
        file.write_all(text.as_bytes())?;
        // The file must not be empty after a power loss.
        file.sync_all()?;
        fs::set_permissions(&aside, fs::Permissions::from_mode(0o644))?;
        fs::rename(&aside, path)
    };
    written().inspect_err(|_| drop(fs::remove_file(&aside)))
}

/// The name of our drop-ins; AKS's script uses the same name.
const DROP_IN: &str = "70-localdns.conf";
const NETWORKD_DIRECTORY: &str = "/run/systemd/network";
const RESOLVED_DIRECTORY: &str = "/run/systemd/resolved.conf.d";
const NETWORKD: Owner = Owner { command: &["networkctl", "reload"], mark: "/run/localdns/networkd-pending" };
const RESOLVED: Owner = Owner {
    command: &["systemctl", "try-reload-or-restart", "systemd-resolved.service"],
    mark: "/run/localdns/resolved-pending",
};
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Maximum of checks whether a change has taken effect: 10 s in total.
const SETTLED_TRIES: u32 = 100;
const SETTLED_AGAIN: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drop_in_path_by_network_file() {
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
    fn existing_directory_keeps_its_mode() {
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
        // A file is in the place of a directory.
        write(&closed.join("file/file"), "text").expect_err("no directory");
        assert_eq!(fs::read_to_string(closed.join("file")).expect("there"), "text");
    }
}
