use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use rustix::fs::{XattrFlags, getxattr, setxattr};

use files::WriteError;

use super::{HostsFile, ManagedLine, Marker, UpdateOutcome};

#[test]
fn replacement_keeps_attributes() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("hosts");
    fs::write(&path, OTHERS).unwrap();
    let root = std::os::unix::fs::chown(&path, Some(4242), Some(4243)).is_ok();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let acl = setxattr(&path, "system.posix_acl_access", ACL, XattrFlags::empty());
    let user = setxattr(&path, "user.note", b"kept", XattrFlags::empty());
    let label = setxattr(&path, "security.selinux", LABEL, XattrFlags::empty());
    let before = fs::metadata(&path).unwrap();
    assert_eq!(update(&path, &["10.96.0.1"]).unwrap(), UpdateOutcome::Replaced);
    let after = fs::metadata(&path).unwrap();
    assert_ne!(before.ino(), after.ino());
    assert_eq!((before.mode(), before.uid(), before.gid()), (after.mode(), after.uid(), after.gid()));
    assert!(!root || after.uid() == 4242);
    // Only attributes that the file system and the test's privileges allow.
    for (set, name, want) in [
        (acl, "system.posix_acl_access", ACL),
        (user, "user.note", &b"kept"[..]),
        (label, "security.selinux", LABEL),
    ] {
        if set.is_ok() {
            let mut value = [0; 256];
            let length = getxattr(&path, name, &mut value).unwrap();
            assert_eq!(&value[..length], want, "{name}");
        }
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), format!("{OTHERS}{}", line("10.96.0.1")));
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
}

#[test]
fn unchanged_file_is_not_written() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("hosts");
    fs::write(&path, OTHERS).unwrap();
    update(&path, &["10.96.0.1", "fd00::1"]).unwrap();
    let state = |path: &Path| {
        let found = fs::metadata(path).unwrap();
        let home = fs::metadata(path.parent().unwrap()).unwrap();
        (found.ino(), found.mtime_nsec(), found.ctime_nsec(), home.mtime_nsec())
    };
    let before = state(&path);
    assert_eq!(update(&path, &["fd00::1", "10.96.0.1", "fd00::1"]).unwrap(), UpdateOutcome::Unchanged);
    assert_eq!(state(&path), before);
}

#[test]
fn hard_links_are_rewritten_in_place() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("hosts");
    fs::write(&path, OTHERS).unwrap();
    fs::hard_link(&path, home.path().join("twin")).unwrap();
    let inode = fs::metadata(&path).unwrap().ino();
    for addresses in
        [&["10.96.0.1", "fd00::1"][..], &["10.96.0.2"], &["10.96.0.3", "10.96.0.4", "10.96.0.5"], &[]]
    {
        assert_eq!(update(&path, addresses).unwrap(), UpdateOutcome::InPlace);
        let lines: String = addresses.iter().map(|address| line(address)).collect();
        assert_eq!(fs::read_to_string(home.path().join("twin")).unwrap(), format!("{OTHERS}{lines}"));
        assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
        assert_eq!(update(&path, addresses).unwrap(), UpdateOutcome::Unchanged);
    }
}

#[test]
fn follows_symbolic_links() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("real"), OTHERS).unwrap();
    symlink("real", home.path().join("hosts")).unwrap();
    assert_eq!(update(&home.path().join("hosts"), &["10.96.0.1"]).unwrap(), UpdateOutcome::Replaced);
    assert!(fs::symlink_metadata(home.path().join("hosts")).unwrap().is_symlink());
    assert!(fs::read_to_string(home.path().join("real")).unwrap().ends_with(&line("10.96.0.1")));
}

#[test]
fn refuses_missing_and_huge_files() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("hosts");
    let error = update(&path, &["10.96.0.1"]).unwrap_err().to_string();
    assert!(error.starts_with("cannot open ") && error.contains("No such file"), "{error}");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
    fs::create_dir(&path).unwrap();
    assert!(matches!(update(&path, &[]), Err(WriteError::NotAFile(_))));
    fs::remove_dir(&path).unwrap();
    fs::File::create(&path).unwrap().set_len(super::MAX_REPLACED_BYTES + 1).unwrap();
    assert!(matches!(update(&path, &["10.96.0.1"]), Err(WriteError::TooLarge(_))));
}

#[test]
fn keeps_concurrent_changes() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("hosts");
    fs::write(&path, OTHERS).unwrap();
    let mut calls = 0;
    let written = HostsFile::new(&path, marker()).update(|_| {
        calls += 1;
        if calls == 2 {
            // The file changes between read and rename.
            fs::write(&path, format!("{OTHERS}192.0.2.7 late\n")).unwrap();
        }
        vec![entry("10.96.0.1")]
    });
    assert_eq!((written.unwrap(), calls), (UpdateOutcome::Replaced, 3));
    assert_eq!(fs::read_to_string(&path).unwrap(), format!("{OTHERS}192.0.2.7 late\n{}", line("10.96.0.1")));
    let mut size = 0;
    let error = HostsFile::new(&path, marker()).update(|_| {
        size += 1;
        fs::write(&path, "#".repeat(size)).unwrap();
        vec![entry("10.96.0.2")]
    });
    assert!(matches!(error, Err(WriteError::Changing(_))), "{error:?}");
}

#[test]
fn localhost_is_readable_during_updates() {
    // In memory, since a disk would be slow.
    let home = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    for (_, path) in plain_and_linked(home.path()) {
        let reads = AtomicU32::new(0);
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut round = 0_u32;
                while round < UPDATES || round < 100 * UPDATES && reads.load(Ordering::Relaxed) < READS {
                    let addresses: Vec<String> =
                        (0..round % 4).map(|n| format!("10.96.{n}.{}", round % 250)).collect();
                    update(&path, &addresses.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
                    round += 1;
                }
            });
            while !writer.is_finished() {
                reads.fetch_add(1, Ordering::Relaxed);
                let text = fs::read_to_string(&path).unwrap();
                assert!(text.starts_with(OTHERS), "{text:?}");
            }
        });
    }
}

#[test]
fn two_markers_keep_each_others_lines() {
    let home = tempfile::tempdir().unwrap();
    for (linked, path) in plain_and_linked(home.path()) {
        thread::scope(|scope| {
            for marker in ["one", "two"] {
                let file = HostsFile::new(&path, Marker::new(marker).unwrap());
                scope.spawn(move || {
                    for round in 0..100 {
                        let wanted =
                            vec![entry(&format!("10.96.0.{round}")), entry(&format!("fd00::{round}"))];
                        // A lost race is retried, as the next round of the resolver does.
                        while let Err(error) = file.update(|_| wanted.clone()) {
                            let is_lost_race = matches!(error, WriteError::Changing(_) | WriteError::Busy(_));
                            assert!(is_lost_race, "{error}");
                        }
                        let text = fs::read_to_string(file.path()).unwrap();
                        let own = format!("10.96.0.{round} a.n.svc a.n.svc.cluster.local # {marker}\n");
                        assert!(linked || text.contains(&own), "{text}");
                    }
                });
            }
        });
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with(OTHERS) && text.lines().count() == OTHERS.lines().count() + 4, "{text}");
        assert_eq!((text.matches("# one\n").count(), text.matches("# two\n").count()), (2, 2));
    }
}

/// Creates a file, and one that cannot be replaced because it has a second hard link.
fn plain_and_linked(home: &Path) -> [(bool, PathBuf); 2] {
    [false, true].map(|linked| {
        let path = home.join(format!("hosts{linked}"));
        fs::write(&path, OTHERS).unwrap();
        if linked {
            fs::hard_link(&path, home.join("twin")).unwrap();
        }
        (linked, path)
    })
}

/// For each file: a million reads during a thousand updates in all.
const READS: u32 = 500_000;
const UPDATES: u32 = 500;

fn update(path: &Path, addresses: &[&str]) -> Result<UpdateOutcome, WriteError> {
    HostsFile::new(path, marker()).update(|_| addresses.iter().map(|address| entry(address)).collect())
}

fn marker() -> Marker {
    Marker::new("openshift-generated-node-resolver").unwrap()
}

fn entry(address: &str) -> ManagedLine {
    ManagedLine { name: "a.n.svc".into(), domain: "cluster.local".into(), address: address.parse().unwrap() }
}

fn line(address: &str) -> String {
    format!("{address} a.n.svc a.n.svc.cluster.local # openshift-generated-node-resolver\n")
}

const OTHERS: &str = "# a comment\r\n127.0.0.1 localhost\n\n::1\tlocalhost ip6-localhost\n";
/// Version 2: the owner rw, user 1 r, the group r, the mask r, others nothing.
const ACL: &[u8] = &[
    2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 1, 0, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255, 16,
    0, 4, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
];
const LABEL: &[u8] = b"system_u:object_r:net_conf_t:s0\0";
