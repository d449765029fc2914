//! Epoll, and waking a thread that waits in it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use libc::{c_int, epoll_event};

use crate::wake_flag::WakeFlag;

/// A set of file descriptors, level-triggered: unread data is reported again.
#[derive(Debug)]
pub struct Epoll {
    fd: OwnedFd,
    /// The kernel has epoll_pwait2 (Linux 5.11), which takes nanoseconds.
    precise: AtomicBool,
}

impl Epoll {
    /// Creates an empty set.
    ///
    /// # Errors
    /// Of the kernel, such as too many open files.
    pub fn new() -> io::Result<Self> {
        // SAFETY: takes no pointer.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, precise: AtomicBool::new(true) })
    }

    /// Adds a descriptor for reading; its events, including errors, carry `token`. Remove it before
    /// passing the descriptor to another process; closing it here removes it.
    ///
    /// # Errors
    /// `AlreadyExists` if it is in the set; others of the kernel.
    pub fn add(&self, fd: &impl AsFd, token: u64) -> io::Result<()> {
        let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: token };
        self.control(libc::EPOLL_CTL_ADD, fd, &raw mut event)
    }

    /// Removes a descriptor.
    ///
    /// # Errors
    /// `NotFound` if it is not in the set.
    pub fn remove(&self, fd: &impl AsFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut())
    }

    /// Waits for events, at most `timeout`; `None` waits without limit. Returns the number of
    /// events: 0 after the timeout or a signal. Never returns before the timeout: kernels with a
    /// resolution of milliseconds get it rounded up.
    ///
    /// # Errors
    /// Of the kernel.
    pub fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<usize> {
        events.count = 0;
        let waited = if self.precise.load(Ordering::Relaxed) {
            match self.wait_precise(events, timeout) {
                // EPERM: a container's seccomp filter that is older than this system call.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                    self.precise.store(false, Ordering::Relaxed);
                    self.wait_millis(events, timeout)
                }
                waited => waited,
            }
        } else {
            self.wait_millis(events, timeout)
        };
        match waited {
            Ok(count) => events.count = count as usize,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(events.count)
    }

    fn wait_precise(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<c_int> {
        // The kernel's struct has two 64-bit fields on every architecture.
        let timeout = timeout.map(|timeout| {
            [i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX), i64::from(timeout.subsec_nanos())]
        });
        let pointer = timeout.as_ref().map_or(std::ptr::null(), |timeout| timeout.as_ptr());
        // SAFETY: the list is live and has this length; the timeout is live or null; no signal mask
        // is passed.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.fd.as_raw_fd(),
                events.list.as_mut_ptr(),
                events.list.len() as c_int,
                pointer,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        check(count as c_int)
    }

    fn wait_millis(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<c_int> {
        let millis = timeout.map_or(-1, round_up_to_millis);
        // SAFETY: the list is live and has this length.
        check(unsafe {
            libc::epoll_wait(
                self.fd.as_raw_fd(),
                events.list.as_mut_ptr(),
                events.list.len() as c_int,
                millis,
            )
        })
    }

    fn control(&self, operation: c_int, fd: &impl AsFd, event: *mut epoll_event) -> io::Result<()> {
        // SAFETY: `event` is null, as removal allows, or points to a live event of the caller.
        check(unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), operation, fd.as_fd().as_raw_fd(), event) })?;
        Ok(())
    }
}

/// A reused list that [`Epoll::wait`] fills.
pub struct Events {
    count: usize,
    list: Vec<epoll_event>,
}

impl Events {
    /// Creates space for `capacity` events (at least 1); further ones are reported by the next
    /// wait.
    pub fn new(capacity: usize) -> Self {
        Self { count: 0, list: vec![epoll_event { events: 0, u64: 0 }; capacity.max(1)] }
    }

    /// Returns the events of the last wait.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Event> {
        self.list[..self.count].iter().map(|event| {
            let events = event.events as c_int;
            Event {
                token: event.u64,
                readable: events & libc::EPOLLIN != 0,
                error: events & (libc::EPOLLERR | libc::EPOLLHUP) != 0,
            }
        })
    }
}

/// A ready descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The token that the descriptor was added with.
    pub token: u64,
    /// There is data to read.
    pub readable: bool,
    /// There is an error, which reading returns.
    pub error: bool,
}

/// Wakes the thread that waits in its [`Epoll`]. Clones wake the same thread.
///
/// The waking side queues its work, then calls [`Waker::wake`]; the woken side calls
/// [`Waker::drain`], then empties the queue. In this order no work is missed, and only the first of
/// many wake-ups makes a system call.
#[derive(Clone, Debug)]
pub struct Waker {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    eventfd: OwnedFd,
    pending: WakeFlag,
}

impl Waker {
    /// Creates a waker without a pending wake-up.
    ///
    /// # Errors
    /// Of the kernel, such as too many open files.
    pub fn new() -> io::Result<Self> {
        // SAFETY: takes no pointer.
        let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        let eventfd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { shared: Arc::new(Shared { eventfd, pending: WakeFlag::new() }) })
    }

    /// Makes the descriptor readable, until drained.
    pub fn wake(&self) {
        self.shared.pending.raise(|| {
            let one = 1u64;
            // SAFETY: reads eight live bytes. It cannot fail: the counter stays far below its
            // limit, because only the first wake-up after a drain adds to it.
            unsafe {
                libc::write(self.shared.eventfd.as_raw_fd(), (&raw const one).cast(), size_of_val(&one))
            };
        });
    }

    /// Makes the descriptor unreadable. Call it before reading the queue.
    pub fn drain(&self) {
        self.shared.pending.lower(|| {
            let mut count = 0u64;
            // SAFETY: writes eight live bytes. EAGAIN is no error: the descriptor was drained
            // before.
            unsafe {
                libc::read(self.shared.eventfd.as_raw_fd(), (&raw mut count).cast(), size_of_val(&count));
            }
        });
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.eventfd.as_fd()
    }
}

fn round_up_to_millis(timeout: Duration) -> c_int {
    c_int::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;

    #[test]
    fn timeout_is_rounded_up() {
        let rows = [
            (Duration::ZERO, 0),
            (Duration::from_nanos(1), 1),
            (Duration::from_millis(1), 1),
            (Duration::from_micros(1001), 2),
            (Duration::from_secs(60), 60_000),
            (Duration::MAX, c_int::MAX),
        ];
        for (timeout, millis) in rows {
            assert_eq!(round_up_to_millis(timeout), millis, "{timeout:?}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no level-triggered epoll")]
    fn wait_lasts_until_the_timeout() {
        for precise in [true, false] {
            let (epoll, mut events) = empty(precise);
            let timeout = Duration::from_micros(300);
            let start = now();
            assert_eq!(epoll.wait(&mut events, Some(timeout)).expect("waits"), 0);
            assert!(now() - start >= timeout, "precise: {precise}");
            assert_eq!(epoll.wait(&mut events, Some(Duration::ZERO)).expect("looks only"), 0);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no level-triggered epoll")]
    fn huge_timeout_is_clamped() {
        for precise in [true, false] {
            let (epoll, mut events) = empty(precise);
            let waker = Waker::new().expect("a waker");
            epoll.add(&waker, 7).expect("added");
            waker.wake();
            assert_eq!(epoll.wait(&mut events, Some(Duration::MAX)).expect("waits"), 1, "precise: {precise}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no level-triggered epoll")]
    fn wake_up_is_reported_until_drained() {
        let (epoll, mut events) = empty(true);
        let waker = Waker::new().expect("a waker");
        epoll.add(&waker, 7).expect("added");
        for _ in 0..2 {
            waker.wake();
            waker.clone().wake();
            for _ in 0..2 {
                epoll.wait(&mut events, None).expect("waits");
                let seen: Vec<_> = events.iter().collect();
                assert_eq!(seen, [Event { token: 7, readable: true, error: false }]);
            }
            waker.drain();
            assert_eq!(epoll.wait(&mut events, Some(Duration::ZERO)).expect("looks only"), 0);
        }
        waker.wake();
        epoll.remove(&waker).expect("it was added");
        assert_eq!(epoll.wait(&mut events, Some(Duration::ZERO)).expect("looks only"), 0);
        assert_eq!(epoll.remove(&waker).expect_err("gone").kind(), io::ErrorKind::NotFound);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no level-triggered epoll")]
    fn no_wake_up_is_lost() {
        const PIECES: u32 = 20_000;
        let (epoll, mut events) = empty(true);
        let waker = Waker::new().expect("a waker");
        epoll.add(&waker, 0).expect("added");
        let (sender, receiver) = mpsc::channel();
        let remote = waker.clone();
        let worker = std::thread::spawn(move || {
            for piece in 0..PIECES {
                sender.send(piece).expect("the receiver lives");
                remote.wake();
            }
        });
        let mut next = 0;
        while next < PIECES {
            let count = epoll.wait(&mut events, Some(Duration::from_secs(10))).expect("waits");
            assert_eq!(count, 1, "a wake-up was lost after {next} pieces");
            waker.drain();
            for piece in receiver.try_iter() {
                assert_eq!(piece, next);
                next += 1;
            }
        }
        worker.join().expect("no panic");
    }

    fn empty(precise: bool) -> (Epoll, Events) {
        let epoll = Epoll::new().expect("an epoll");
        epoll.precise.store(precise, Ordering::Relaxed);
        (epoll, Events::new(4))
    }

    #[allow(clippy::disallowed_methods, reason = "the length of a real wait is what is tested")]
    fn now() -> Instant {
        Instant::now()
    }
}
