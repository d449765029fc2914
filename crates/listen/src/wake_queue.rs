//! A queue of tasks from any thread to one that sleeps in epoll.

use std::collections::VecDeque;
use std::io;

use crate::sync::{Mutex, MutexGuard, PoisonError, Waker};

/// A queue that any thread may post to; its one reader is woken through epoll. The posters bound
/// its length.
pub struct WakeQueue<T> {
    tasks: Mutex<VecDeque<T>>,
    waker: Waker,
}

impl<T> WakeQueue<T> {
    /// Creates an empty queue.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        Ok(Self { tasks: Mutex::new(VecDeque::new()), waker: Waker::new()? })
    }

    /// Posts a task, and wakes the reader if the queue was empty.
    pub fn post(&self, task: T) {
        let mut tasks = self.tasks();
        tasks.push_back(task);
        let was_empty = tasks.len() == 1;
        drop(tasks);
        if was_empty {
            self.waker.wake();
        }
    }

    /// Moves up to `most` tasks to the end of `into`. If tasks are left, wakes the reader again, as
    /// no poster does while the queue is not empty.
    pub fn take(&self, into: &mut VecDeque<T>, most: usize) {
        self.waker.drain();
        let mut tasks = self.tasks();
        let count = tasks.len().min(most);
        into.extend(tasks.drain(..count));
        let left = !tasks.is_empty();
        if !left {
            // Frees the memory of a large burst.
            tasks.shrink_to(most);
        }
        drop(tasks);
        if left {
            self.waker.wake();
        }
    }

    /// The waker, for the reader's epoll.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    fn tasks(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
