use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use super::temp_file::{LOCK, NEW, path_beside};
use super::{Beside, PublishError, Step};

#[test]
fn a_file_is_made_or_replaced_with_mode_0644_and_nothing_stays_beside_it() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("hosts");
    for text in ["192.0.2.1 a\n", "", "192.0.2.2 b\n192.0.2.3 c"] {
        publish(&path, text.as_bytes()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o644);
        assert_eq!(names(home.path()), ["hosts"]);
    }
}

#[test]
fn a_file_that_holds_the_bytes_already_is_left_alone_unless_its_mode_is_wrong() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("hosts");
    publish(&path, b"x\n").unwrap();
    let first = fs::metadata(&path).unwrap();
    publish(&path, b"x\n").unwrap();
    let second = fs::metadata(&path).unwrap();
    assert_eq!((first.ino(), first.ctime_nsec()), (second.ino(), second.ctime_nsec()));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    publish(&path, b"x\n").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o644);
}

#[test]
fn a_symbolic_link_is_followed() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("real")).unwrap();
    fs::write(home.path().join("real/hosts"), "old\n").unwrap();
    symlink("real/hosts", home.path().join("hosts")).unwrap();
    publish(&home.path().join("hosts"), b"new\n").unwrap();
    assert!(fs::symlink_metadata(home.path().join("hosts")).unwrap().is_symlink());
    assert_eq!(fs::read_to_string(home.path().join("real/hosts")).unwrap(), "new\n");
    assert_eq!(names(&home.path().join("real")), ["hosts"]);
}

#[test]
fn what_is_no_file_in_a_directory_is_refused_and_nothing_is_made() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("directory")).unwrap();
    fs::write(home.path().join("file"), "").unwrap();
    for (path, error) in [
        ("directory", "is not a regular file"),
        ("absent/hosts", "cannot find "),
        ("file/hosts", "cannot find "),
        ("directory/..", "is not a regular file"),
    ] {
        let told = publish(&home.path().join(path), b"x").unwrap_err().to_string();
        assert!(told.contains(error), "{path}: {told}");
    }
    assert!(matches!(publish(Path::new("/"), b"x"), Err(PublishError::NotAFile(_))));
    assert!(matches!(publish(Path::new("/dev/null"), b"x"), Err(PublishError::NotAFile(_))));
    assert_eq!(names(home.path()), ["directory", "file"]);
}

#[test]
fn what_a_killed_run_left_beside_the_file_is_overwritten() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("hosts");
    // Once it is overwritten, and once the file is right already.
    for _ in 0..2 {
        for ending in [LOCK, NEW] {
            let left = "half a line of a much longer text that was never fini";
            fs::write(path_beside(&path, ending).unwrap(), left).unwrap();
        }
        publish(&path, b"whole\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "whole\n");
        assert_eq!(names(home.path()), ["hosts"]);
    }
}

#[test]
fn what_another_program_wrote_meanwhile_stays() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("hosts");
    let over = |base: &str| super::publish(&path, Some(base.as_bytes()), b"ours\n");
    assert!(over("").is_ok(), "a file that is not there is nobody's");
    for theirs in ["", "theirs\n", "their longer text\n"] {
        fs::write(&path, theirs).unwrap();
        for base in ["base\n", "theirS\n", "their longer text, and more\n"] {
            let before = fs::metadata(&path).unwrap();
            let error = over(base).unwrap_err();
            assert!(matches!(error, PublishError::Changed(_)), "{error}");
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
fn a_rename_between_the_last_look_and_ours_is_not_lost() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("hosts");
    fs::write(&path, "0").unwrap();
    let (done, lost) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        // Adds one to the number in the file, and renames as careful programs do; it knows no lock of ours.
        let other = scope.spawn(|| {
            let mut last = 0;
            for number in 1..2000_u32 {
                let beside = home.path().join("other");
                fs::write(&beside, number.to_string()).unwrap();
                fs::rename(&beside, &path).unwrap();
                last = number;
            }
            done.store(true, Ordering::Relaxed);
            last
        });
        while !done.load(Ordering::Relaxed) {
            let base = fs::read_to_string(&path).unwrap();
            let mut beside = Beside::open(&path).unwrap();
            beside.write(format!("{base} and ours").as_bytes()).unwrap();
            match beside.replace_target(Some(base.as_bytes())) {
                Ok(true) => {}
                Ok(false) | Err(PublishError::Changing(_)) => drop(lost.fetch_add(1, Ordering::Relaxed)),
                Err(error) => panic!("{error}"),
            }
        }
        let last = other.join().unwrap().to_string();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.split(' ').next(), Some(&*last), "the last number stands, with ours or without");
    });
    assert!(lost.into_inner() > 0, "they never met");
    assert_eq!(names(home.path()), ["hosts"]);
}

#[test]
fn a_link_planted_beside_the_file_is_not_written_through() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("hosts");
    fs::write(home.path().join("victim"), "keep\n").unwrap();
    symlink("victim", path_beside(&path, LOCK).unwrap()).unwrap();
    let error = publish(&path, b"x\n").unwrap_err();
    assert!(matches!(error, PublishError::Io { step: Step::Open, .. }), "{error}");
    assert_eq!(fs::read_to_string(home.path().join("victim")).unwrap(), "keep\n");
}

#[test]
fn a_lock_that_is_never_released_is_an_error_and_the_file_stays() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("hosts");
    fs::write(&path, "old\n").unwrap();
    let holder = File::create(path_beside(&path, LOCK).unwrap()).unwrap();
    holder.lock().unwrap();
    let error = publish(&path, b"new\n").unwrap_err();
    assert!(matches!(error, PublishError::Busy(_)), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "old\n");
    drop(holder);
    publish(&path, b"new\n").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "new\n");
}

#[test]
fn writers_take_turns_and_a_reader_finds_one_text_whole() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("hosts");
    let text = |writer: usize| format!("192.0.2.{writer} name\n").repeat(2000);
    publish(&path, text(0).as_bytes()).unwrap();
    thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let path = &path;
                scope.spawn(move || {
                    for round in 0..10 {
                        publish(path, text(writer + 4 * (round % 2)).as_bytes()).unwrap();
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

/// Whatever the file holds.
fn publish(path: &Path, bytes: &[u8]) -> Result<(), PublishError> {
    super::publish(path, None, bytes)
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
