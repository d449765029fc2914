use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use super::temp_file::{LOCK, NEW, sibling_path};
use super::{TempFile, WriteError, WriteStep};

#[test]
fn creates_and_replaces_with_mode_0644() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("hosts");
    for text in ["192.0.2.1 a\n", "", "192.0.2.2 b\n192.0.2.3 c"] {
        atomic_write(&path, text.as_bytes()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o644);
        assert_eq!(names(home.path()), ["hosts"]);
    }
}

#[test]
fn keeps_a_file_with_same_bytes_and_mode() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("hosts");
    atomic_write(&path, b"x\n").unwrap();
    let first = fs::metadata(&path).unwrap();
    atomic_write(&path, b"x\n").unwrap();
    let second = fs::metadata(&path).unwrap();
    assert_eq!((first.ino(), first.ctime_nsec()), (second.ino(), second.ctime_nsec()));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    atomic_write(&path, b"x\n").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o644);
}

#[test]
fn follows_symbolic_links() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("real")).unwrap();
    fs::write(home.path().join("real/hosts"), "old\n").unwrap();
    symlink("real/hosts", home.path().join("hosts")).unwrap();
    atomic_write(&home.path().join("hosts"), b"new\n").unwrap();
    assert!(fs::symlink_metadata(home.path().join("hosts")).unwrap().is_symlink());
    assert_eq!(fs::read_to_string(home.path().join("real/hosts")).unwrap(), "new\n");
    assert_eq!(names(&home.path().join("real")), ["hosts"]);
}

#[test]
fn refuses_what_is_no_regular_file() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("directory")).unwrap();
    fs::write(home.path().join("file"), "").unwrap();
    for (path, error) in [
        ("directory", "is not a regular file"),
        ("absent/hosts", "cannot find "),
        ("file/hosts", "cannot find "),
        ("directory/..", "is not a regular file"),
    ] {
        let found = atomic_write(&home.path().join(path), b"x").unwrap_err().to_string();
        assert!(found.contains(error), "{path}: {found}");
    }
    assert!(matches!(atomic_write(Path::new("/"), b"x"), Err(WriteError::NotAFile(_))));
    assert!(matches!(atomic_write(Path::new("/dev/null"), b"x"), Err(WriteError::NotAFile(_))));
    assert_eq!(names(home.path()), ["directory", "file"]);
}

#[test]
fn removes_files_of_a_killed_process() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("hosts");
    // In the second round the target is up to date already.
    for _ in 0..2 {
        for ending in [LOCK, NEW] {
            let remains = "half a line of a much longer text that was never fini";
            fs::write(sibling_path(&path, ending).unwrap(), remains).unwrap();
        }
        atomic_write(&path, b"whole\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "whole\n");
        assert_eq!(names(home.path()), ["hosts"]);
    }
}

#[test]
fn keeps_another_programs_content() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("hosts");
    let over = |base: &str| super::atomic_write(&path, Some(base.as_bytes()), b"ours\n");
    assert!(over("").is_ok(), "a missing file has no expected content");
    for theirs in ["", "theirs\n", "their longer text\n"] {
        fs::write(&path, theirs).unwrap();
        for base in ["base\n", "theirS\n", "their longer text, and more\n"] {
            let before = fs::metadata(&path).unwrap();
            let error = over(base).unwrap_err();
            assert!(matches!(error, WriteError::Changed(_)), "{error}");
            let after = fs::metadata(&path).unwrap();
            assert_eq!((before.ino(), before.mtime_nsec()), (after.ino(), after.mtime_nsec()));
            assert_eq!(fs::read_to_string(&path).unwrap(), theirs);
        }
        over(theirs).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "ours\n");
        assert_eq!(names(home.path()), ["hosts"]);
    }
}

#[test]
fn loses_no_concurrent_rename() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("hosts");
    fs::write(&path, "0").unwrap();
    let (done, lost) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        // Increments the number in the file by a rename, without our lock.
        let writer = scope.spawn(|| {
            let mut last = 0;
            for number in 1..2000_u32 {
                let other = home.path().join("other");
                fs::write(&other, number.to_string()).unwrap();
                fs::rename(&other, &path).unwrap();
                last = number;
            }
            done.store(true, Ordering::Relaxed);
            last
        });
        while !done.load(Ordering::Relaxed) {
            let base = fs::read_to_string(&path).unwrap();
            let mut temp = TempFile::create(&path).unwrap();
            temp.write(format!("{base} and ours").as_bytes()).unwrap();
            match temp.replace_target(Some(base.as_bytes())) {
                Ok(true) => {}
                Ok(false) | Err(WriteError::Changing(_)) => drop(lost.fetch_add(1, Ordering::Relaxed)),
                Err(error) => panic!("{error}"),
            }
        }
        let last = writer.join().unwrap().to_string();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.split(' ').next(), Some(&*last), "the last number is in place");
    });
    assert!(lost.into_inner() > 0, "no concurrent rename happened");
    assert_eq!(names(home.path()), ["hosts"]);
}

#[test]
fn does_not_follow_a_planted_link() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("hosts");
    fs::write(home.path().join("victim"), "keep\n").unwrap();
    symlink("victim", sibling_path(&path, LOCK).unwrap()).unwrap();
    let error = atomic_write(&path, b"x\n").unwrap_err();
    assert!(matches!(error, WriteError::Io { step: WriteStep::Open, .. }), "{error}");
    assert_eq!(fs::read_to_string(home.path().join("victim")).unwrap(), "keep\n");
}

#[test]
fn fails_if_the_lock_is_never_released() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("hosts");
    fs::write(&path, "old\n").unwrap();
    let holder = File::create(sibling_path(&path, LOCK).unwrap()).unwrap();
    holder.lock().unwrap();
    let error = atomic_write(&path, b"new\n").unwrap_err();
    assert!(matches!(error, WriteError::Busy(_)), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "old\n");
    drop(holder);
    atomic_write(&path, b"new\n").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "new\n");
}

#[test]
fn concurrent_writers_never_tear_a_file() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("hosts");
    let text = |writer: usize| format!("192.0.2.{writer} name\n").repeat(2000);
    atomic_write(&path, text(0).as_bytes()).unwrap();
    thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let path = &path;
                scope.spawn(move || {
                    for round in 0..10 {
                        atomic_write(path, text(writer + 4 * (round % 2)).as_bytes()).unwrap();
                    }
                })
            })
            .collect();
        while !writers.iter().all(thread::ScopedJoinHandle::is_finished) {
            let found = fs::read_to_string(&path).unwrap();
            assert!((0..8).any(|writer| found == text(writer)), "{} bytes, torn", found.len());
        }
    });
    assert_eq!(names(home.path()), ["hosts"]);
}

/// Replaces unconditionally.
fn atomic_write(path: &Path, bytes: &[u8]) -> Result<(), WriteError> {
    super::atomic_write(path, None, bytes)
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
