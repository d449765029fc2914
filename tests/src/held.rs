//! One thread of a process that stands still while the others go on.

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// One thread that stands still, alone of its process; it goes on when this is dropped, by the thread that stopped it.
#[derive(Debug)]
pub struct Held(Pid);

impl Held {
    /// Stops a thread, of those that [`crate::Server::threads`] names.
    ///
    /// # Errors
    /// Where this process may trace no other.
    ///
    /// # Panics
    /// When that is no number of a thread.
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
        // A thread that is gone needs no leave to go on.
        let _ = ptrace::detach(self.0, None);
    }
}
