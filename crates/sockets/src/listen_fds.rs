//! Descriptors that whoever started this process opened for it.

use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Takes over `count` descriptors from `first` on, `None` for one that is not open; no program that this one starts inherits
/// them. A second call gets none: each has one owner.
pub fn inherited(first: RawFd, count: u32) -> Vec<Option<OwnedFd>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if first <= libc::STDERR_FILENO || TAKEN.swap(true, Ordering::Relaxed) {
        return Vec::new();
    }
    let last = first.saturating_add(i32::try_from(count).unwrap_or(i32::MAX));
    (first..last).map(take).collect()
}

fn take(descriptor: RawFd) -> Option<OwnedFd> {
    // SAFETY: takes no pointer; of a number that is no open descriptor it fails.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFD) };
    // What this process opened itself is closed on exec, and belongs to whoever opened it.
    if flags < 0 || flags & libc::FD_CLOEXEC != 0 {
        return None;
    }
    // SAFETY: as above.
    unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    // SAFETY: it is open, and came with the exec, for nothing in this process opens descriptors without FD_CLOEXEC; nobody
    // else owns it, for this is done once, and not for standard input, output and error.
    Some(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_process_opened_and_what_is_not_open_is_not_taken() {
        use std::os::fd::AsRawFd as _;
        let own = std::fs::File::open("/dev/null").expect("it is there");
        assert!(take(own.as_raw_fd()).is_none());
        assert!(take(9999).is_none());
        assert!(inherited(0, 3).is_empty(), "standard input is nobody's to take");
    }
}
