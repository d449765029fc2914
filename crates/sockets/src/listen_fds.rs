//! File descriptors inherited from the parent process (LISTEN_FDS).

use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Takes ownership of `count` descriptors from `first` on, `None` for one that is not open, and
/// sets FD_CLOEXEC on them. A second call returns none: each has one owner.
pub fn inherited(first: RawFd, count: u32) -> Vec<Option<OwnedFd>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if first <= libc::STDERR_FILENO || TAKEN.swap(true, Ordering::Relaxed) {
        return Vec::new();
    }
    let last = first.saturating_add(i32::try_from(count).unwrap_or(i32::MAX));
    (first..last).map(take).collect()
}

fn take(descriptor: RawFd) -> Option<OwnedFd> {
    // SAFETY: takes no pointer; fails for a number that is no open descriptor.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFD) };
    // With FD_CLOEXEC it was opened by this process and has an owner.
    if flags < 0 || flags & libc::FD_CLOEXEC != 0 {
        return None;
    }
    // SAFETY: as above.
    unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    // SAFETY: it is open and was inherited, because this process opens no descriptor without
    // FD_CLOEXEC. It has no other owner, because this is done once, and not for stdin, stdout and
    // stderr.
    Some(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_inherited_descriptors_are_taken() {
        use std::os::fd::AsRawFd as _;
        let own = std::fs::File::open("/dev/null").expect("it is there");
        assert!(take(own.as_raw_fd()).is_none());
        assert!(take(9999).is_none());
        assert!(inherited(0, 3).is_empty(), "standard input is never inherited as a socket");
    }
}
