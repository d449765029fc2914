//! Stops one thread of a process while its other threads run.

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// A stopped thread; dropping this value on the thread that made it lets the stopped thread
/// continue.
#[derive(Debug)]
pub struct Held(Pid);

impl Held {
    /// Stops a thread listed by [`crate::Server::threads`].
    ///
    /// # Errors
    /// Where this process may not trace another.
    ///
    /// # Panics
    /// When `thread` is not a valid ID.
    pub fn stop(thread: u32) -> Result<Self, Errno> {
        let thread = Pid::from_raw(i32::try_from(thread).expect("the kernel's ids are such numbers"));
        ptrace::seize(thread, ptrace::Options::empty())?;
        let held = Self(thread);
        ptrace::interrupt(thread)?;
        waitpid(thread, Some(WaitPidFlag::__WALL))?;
        Ok(held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Detaching fails only for a thread that has ended.
        let _ = ptrace::detach(self.0, None);
    }
}
