//! A queue of tasks from any thread to one that sleeps in epoll.

use std::collections::VecDeque;
use std::io;

use crate::sync::{Mutex, MutexGuard, PoisonError, Waker};

/// A mailbox: any thread puts tasks in, one is woken and takes them out. Whoever posts bounds what waits.
pub struct Mailbox<T> {
    tasks: Mutex<VecDeque<T>>,
    waker: Waker,
}

impl<T> Mailbox<T> {
    /// Empty.
    ///
    /// # Errors
    /// What the kernel says to one more file descriptor.
    pub fn new() -> io::Result<Self> {
        Ok(Self { tasks: Mutex::new(VecDeque::new()), waker: Waker::new()? })
    }

    /// Puts a task in and wakes the reader if the box was empty.
    pub fn post(&self, task: T) {
        let mut tasks = self.tasks();
        tasks.push_back(task);
        let was_empty = tasks.len() == 1;
        drop(tasks);
        if was_empty {
            self.waker.wake();
        }
    }

    /// Moves up to `most` tasks to the end of `into`. Where more wait, the reader is woken at once for them: nobody else
    /// wakes it while the box is not empty.
    pub fn take(&self, into: &mut VecDeque<T>, most: usize) {
        self.waker.drain();
        let mut tasks = self.tasks();
        let count = tasks.len().min(most);
        into.extend(tasks.drain(..count));
        let left = !tasks.is_empty();
        if !left {
            // Without this the queue would keep the memory of its largest burst.
            tasks.shrink_to(most);
        }
        drop(tasks);
        if left {
            self.waker.wake();
        }
    }

    /// What wakes the reader: it belongs into its epoll.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    fn tasks(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
