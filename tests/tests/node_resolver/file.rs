//! The hosts file has other owners: other content survives, readers find whole files, and it works
//! where no file can be renamed.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use rustix::fs::{XattrFlags, getxattr, setxattr};
use tests::{Action, Upstream, assert_contains, eventually, fresh_ip, isolated, output, run, tempdir};

use super::running::{Running, SOON};
use super::{Node, OTHERS, PATIENCE, SOA, command_on, line, succeeded, text, zone};

const WEB: &str = "web.t1.svc.cluster.local. 5 IN A 10.96.0.100";

/// Bytes of other programs stay, and `remove` leaves them too.
#[test]
fn bytes_of_others_stay() {
    let mention = "10.0.0.9 mine # not openshift-generated-node-resolver";
    for others in [
        "",
        "127.0.0.1 localhost",
        "127.0.0.1 localhost\n",
        "# top\r\n\r\n127.0.0.1\tlocalhost\r\n::1 localhost\r\n",
        "\n\n  # indented\n127.0.0.1 localhost # home\n\n\n",
        "127.0.0.1 localhost\n# no end",
        &format!(
            "{mention}\n# openshift-generated-node-resolver\n127.0.0.1 localhost # openshift-generated-node-resolver"
        ),
    ] {
        let node = Node::new(others, zone(WEB));
        node.once("web.t1.svc");
        let own = line("10.96.0.100", "web.t1.svc");
        let written = node.text();
        assert_eq!(written.matches(&own).count(), 1, "{written:?}");
        assert_eq!(written.replace(&own, ""), others);
        assert!(
            written.split('\n').any(|found| format!("{found}\n") == own),
            "a line of its own: {written:?}"
        );
        assert_contains!(node.remove(), "1 lines removed");
        assert_eq!(node.text(), others);
        assert_contains!(node.remove(), "no managed lines");
        assert_eq!(node.names(), ["hosts"]);
    }
}

#[test]
fn non_text_bytes_stay() {
    let node = Node::new("", zone(WEB));
    let others = b"127.0.0.1 localhost # \xff\xfe\n\x00\x01 \xc3\n";
    fs::write(node.hosts(), others).unwrap();
    node.once("web.t1.svc");
    let own = line("10.96.0.100", "web.t1.svc");
    assert_eq!(fs::read(node.hosts()).unwrap(), [&others[..], own.as_bytes()].concat());
    node.remove();
    assert_eq!(fs::read(node.hosts()).unwrap(), others);
}

/// Lines that the script left are replaced.
#[test]
fn scripts_lines_are_replaced() {
    let theirs = format!("{OTHERS}{}192.0.2.7 other\n", line("10.96.0.9", "web.t1.svc"));
    let node = Node::new(&theirs, zone(WEB));
    node.once("web.t1.svc");
    assert_eq!(node.text(), format!("{OTHERS}192.0.2.7 other\n{}", line("10.96.0.100", "web.t1.svc")));
}

/// A second round with the same answers leaves inode and times.
#[test]
fn unchanged_answers_write_nothing() {
    let node = Node::new(OTHERS, zone(WEB));
    node.once("web.t1.svc");
    let state = || {
        let (file, home) = (fs::metadata(node.hosts()).unwrap(), fs::metadata(node.home.path()).unwrap());
        (file.ino(), file.mtime(), file.mtime_nsec(), file.ctime_nsec(), home.mtime_nsec())
    };
    let before = state();
    node.once("web.t1.svc");
    assert_eq!(state(), before);
}

/// Mode, owner, ACL, label and other attributes stay.
#[test]
fn mode_owner_and_attributes_stay() {
    let node = Node::new(OTHERS, zone(WEB));
    let path = node.hosts();
    let owned = chown(&path, Some(4242), Some(4243)).is_ok();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    // The owner rw, user 1 r, the group r, the mask r, others nothing (version 2, little endian).
    let entry = |tag: u8, may: u8, id: u32| [&[tag, 0, may, 0], &id.to_le_bytes()[..]].concat();
    let all = u32::MAX;
    let acl = [entry(1, 6, all), entry(2, 4, 1), entry(4, 4, all), entry(16, 4, all), entry(32, 0, all)];
    let acl = [vec![2, 0, 0, 0], acl.concat()].concat();
    let attributes = [
        ("system.posix_acl_access", acl),
        ("security.selinux", b"system_u:object_r:net_conf_t:s0\0".to_vec()),
        ("user.note", b"kept".to_vec()),
    ];
    let set: Vec<_> = attributes
        .iter()
        .filter(|(name, value)| setxattr(&path, *name, value, XattrFlags::empty()).is_ok())
        .collect();
    let before = fs::metadata(&path).unwrap();
    node.once("web.t1.svc");
    let after = fs::metadata(&path).unwrap();
    assert_ne!(before.ino(), after.ino(), "renamed");
    assert_eq!((before.mode(), before.uid(), before.gid()), (after.mode(), after.uid(), after.gid()));
    assert_eq!(owned, after.uid() == 4242);
    for (name, want) in set {
        let mut value = [0; 256];
        let length = getxattr(&path, *name, &mut value).unwrap();
        assert_eq!(&value[..length], want, "{name}");
    }
}

/// The script's first bug: it copied over the file, which was empty for an instant.
#[test]
fn readers_never_find_half_a_file() {
    let count = AtomicU32::new(0);
    let node = Node::new(OTHERS, move |asked| {
        let n = count.fetch_add(1, Ordering::Relaxed);
        match asked.rtype {
            1 => Action::answer(&format!("{} 5 IN A 10.96.{}.{}", asked.name, n / 250, n % 250 + 1)),
            _ if n.is_multiple_of(3) => Action::answer(&format!("{} 5 IN AAAA fd00::{n:x}", asked.name)),
            _ => Action::Reply(tests::Says::nodata(SOA)),
        }
    });
    let path = node.hosts();
    // First renamed; then, with a hard link, written in place.
    for twin in [false, true] {
        if twin {
            fs::hard_link(&path, node.home.path().join("twin")).unwrap();
        }
        // Held open, so that no later file gets its inode number.
        let first = fs::File::open(&path).unwrap();
        let done = AtomicBool::new(false);
        let reads = thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut reads = 0;
                while !done.load(Ordering::Relaxed) {
                    let text = fs::read_to_string(&path).unwrap();
                    // A read that takes longer than a write in place mixes old and new lines of
                    // ours: only the others count.
                    let whole = text
                        .lines()
                        .skip(1)
                        .all(|line| line.ends_with("# openshift-generated-node-resolver"));
                    assert!(text.starts_with(OTHERS) && (twin || whole && text.ends_with('\n')), "{text:?}");
                    reads += 1;
                }
                reads
            });
            for _ in 0..25 {
                node.once("web.t1.svc");
            }
            done.store(true, Ordering::Relaxed);
            reader.join().unwrap()
        });
        assert!(reads > 1000, "{reads} reads");
        assert_eq!(fs::metadata(&path).unwrap().ino() == first.metadata().unwrap().ino(), twin);
    }
}

/// The new file is written when the other program renames its own.
#[test]
fn concurrent_rename_is_not_lost() {
    if !tests::tool("concurrent_rename_is_not_lost", "strace") {
        return;
    }
    let node = Node::new(OTHERS, zone(WEB));
    let round = node.command("web.t1.svc", &["-once"]);
    let mut traced = Command::new("strace");
    traced.args(["-f", "-qq", "-o", "/dev/null", "-e", "inject=renameat2:delay_enter=5000000:when=1"]);
    traced.arg(round.get_program()).args(round.get_args());
    traced.envs(round.get_envs().filter_map(|(name, value)| Some((name, value?))));
    thread::scope(|scope| {
        let ended = scope.spawn(|| output(traced, PATIENCE));
        let new = node.home.path().join(".hosts.localdns.new");
        eventually("the new file", SOON, || {
            fs::read_to_string(&new).unwrap_or_default().contains("10.96.0.100").then_some(())
        });
        tests::publish(&node.hosts(), format!("{OTHERS}192.0.2.1 late\n"));
        succeeded(&ended.join().unwrap());
    });
    assert_eq!(node.text(), format!("{OTHERS}192.0.2.1 late\n{}", line("10.96.0.100", "web.t1.svc")));
    assert_eq!(node.names(), ["hosts"]);
}

/// The node's own hosts file is changed, but never used for lookups.
#[test]
fn own_hosts_file_is_changed_only() {
    isolated(|| {
        // If the lookup read this file, its own line would answer it.
        fs::write("/etc/hosts", format!("{OTHERS}{}", line("10.96.0.9", "web.t1.svc"))).unwrap();
        let upstream = Upstream::start(fresh_ip(), zone(""));
        let mut command = Command::new(tests::binary());
        command
            .args(["node-resolver", "-once"])
            .env("SERVICES", "web.t1.svc")
            .env("NAMESERVER", upstream.word());
        succeeded(&output(command, PATIENCE));
        assert_eq!(fs::read_to_string("/etc/hosts").unwrap(), OTHERS);
    });
}

/// A file mounted by itself is changed in place; if it was replaced outside, the process ends.
#[test]
fn bind_mounted_file_is_rewritten() {
    isolated(|| {
        let home = tempdir();
        let outside = home.path().join("hosts");
        fs::write(&outside, OTHERS).unwrap();
        let mount = || run("mount", &["--bind", &outside.to_string_lossy(), "/etc/hosts"]);
        mount();
        let inode = fs::metadata(&outside).unwrap().ino();
        let upstream = Upstream::start(fresh_ip(), zone(WEB));
        let command = || {
            let mut command = command_on(Path::new("/etc/hosts"));
            command.args(["-interval", "1"]).env("SERVICES", "web.t1.svc").env("NAMESERVER", upstream.word());
            command
        };
        let mut running = Running::start(command());
        let seen = |want: String| {
            eventually(&want, SOON, || (fs::read_to_string(&outside).unwrap() == want).then_some(()));
        };
        seen(format!("{OTHERS}{}", line("10.96.0.100", "web.t1.svc")));
        assert_eq!(fs::metadata(&outside).unwrap().ino(), inode, "in place");
        // A shorter text is truncated, without padding.
        upstream.answer_by(zone("web.t1.svc.cluster.local. 5 IN A 10.9.0.1"));
        seen(format!("{OTHERS}{}", line("10.9.0.1", "web.t1.svc")));
        // Replaced as by vim and `sed -i`: the mount still shows the old file.
        tests::publish(&outside, "127.0.0.1 localhost\n192.0.2.1 new\n");
        assert_eq!(running.end(), Some(1));
        running.wait_for("/etc/hosts is a bind mount whose source file was replaced");
        run("umount", &["/etc/hosts"]);
        mount();
        let mut again = Running::start(command());
        seen(format!("{OTHERS}192.0.2.1 new\n{}", line("10.9.0.1", "web.t1.svc")));
        assert_eq!(again.stop(), Some(0));
        assert!(!Path::new("/etc/.hosts.localdns").exists());
    });
}

#[test]
fn a_full_disk_loses_nothing() {
    isolated(|| {
        let home = tempdir();
        run("mount", &["-t", "tmpfs", "-o", "size=32k", "none", &home.path().to_string_lossy()]);
        let path = home.path().join("hosts");
        // The page is full: a longer file needs another one.
        let others = format!("{OTHERS}{}\n", "#".repeat(4090 - OTHERS.len()));
        fs::write(&path, &others).unwrap();
        fs::hard_link(&path, home.path().join("twin")).unwrap();
        let upstream = Upstream::start(fresh_ip(), zone(WEB));
        let once = || {
            let mut command = command_on(&path);
            command.arg("-once").env("SERVICES", "web.t1.svc").env("NAMESERVER", upstream.word());
            output(command, PATIENCE)
        };
        // In place, because of the hard link; then by renaming.
        for twin in [true, false] {
            if !twin {
                fs::remove_file(home.path().join("twin")).unwrap();
            }
            let filler = home.path().join("filler");
            // The write may fail: it only has to fill the disk.
            drop(fs::write(&filler, vec![0; 64 << 10]));
            let failed = once();
            assert_eq!(failed.status.code(), Some(1), "{}", text(&failed.stdout));
            assert_contains!(text(&failed.stderr), "No space left on device");
            assert_eq!(fs::read_to_string(&path).unwrap(), others);
            assert!(!home.path().join(".hosts.localdns").exists());
            fs::remove_file(&filler).unwrap();
            succeeded(&once());
            assert_eq!(
                fs::read_to_string(&path).unwrap(),
                format!("{others}{}", line("10.96.0.100", "web.t1.svc"))
            );
            fs::write(&path, &others).unwrap();
        }
        run("umount", &[&home.path().to_string_lossy()]);
    });
}

/// A read-only disk is an error that changes nothing.
#[test]
fn read_only_disk_changes_nothing() {
    isolated(|| {
        let home = tempdir();
        let place = home.path().to_string_lossy().into_owned();
        let path = home.path().join("hosts");
        fs::write(&path, OTHERS).unwrap();
        run("mount", &["--bind", &place, &place]);
        run("mount", &["-o", "remount,bind,ro", &place]);
        let upstream = Upstream::start(fresh_ip(), zone(WEB));
        let mut command = command_on(&path);
        command.arg("-once").env("SERVICES", "web.t1.svc").env("NAMESERVER", upstream.word());
        let failed = output(command, PATIENCE);
        assert_eq!(failed.status.code(), Some(1));
        assert_contains!(text(&failed.stderr), "Read-only file system");
        assert_eq!(fs::read_to_string(&path).unwrap(), OTHERS);
        run("umount", &[&place]);
    });
}
